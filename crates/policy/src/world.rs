//! The inputs of the engine: pods, nodes, networks and objects, each replaced or removed as a whole by a [`WorldChange`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use model::objects::{
    ClusterNetworkPolicy, Group, GroupPolicy, Identity, NamespacedName, NetworkPolicy, Share, Tenant,
};
use model::{ClusterObject, Labels};
use types::{GroupName, NetworkId, NodeName, TenantName};

use crate::problems::PolicyObject;

/// Identifies a pod. Two pods with the same name at different times have different uids.
pub type PodUid = Arc<str>;

/// A pod of any node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodEntry {
    pub uid: PodUid,
    pub name: NamespacedName,
    pub node: NodeName,
    pub identity: Arc<Identity>,
    /// None if the pod uses the network of its node: then no policy applies to it, and as a peer it counts as its node.
    pub addresses: Option<Vec<IpAddr>>,
    pub phase: PodPhase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodPhase {
    /// Also while the pod terminates.
    Running,
    /// Succeeded or failed. Its addresses may already belong to another pod, so it is ignored.
    Completed,
}

/// A node with all of its addresses: those of its status, the gateways of its blocks and its tunnels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeEntry {
    pub addresses: Vec<IpAddr>,
    pub labels: Labels,
}

/// The pod addresses of a network. An address inside that belongs to no known pod or node is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyNetwork {
    pub tenant: TenantName,
    pub id: NetworkId,
    pub subnets: Vec<IpNet>,
}

/// Everything that decides which flows are allowed. The maps' keys are also in the values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct World {
    /// The node whose pods are judged.
    pub local_node: NodeName,
    pub nodes: BTreeMap<NodeName, NodeEntry>,
    pub networks: BTreeMap<(TenantName, NetworkId), PolicyNetwork>,
    pub tenants: BTreeMap<TenantName, Tenant>,
    pub groups: BTreeMap<(TenantName, GroupName), Group>,
    pub group_policies: BTreeMap<(TenantName, String), GroupPolicy>,
    pub shares: BTreeMap<(TenantName, String), Share>,
    /// Labels of Kubernetes namespaces.
    pub namespaces: BTreeMap<String, Labels>,
    /// By namespace and name.
    pub network_policies: BTreeMap<(String, String), NetworkPolicy>,
    pub cluster_policies: BTreeMap<String, ClusterNetworkPolicy>,
    pub pods: BTreeMap<PodUid, PodEntry>,
}

/// One input that was added, replaced or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorldChange {
    SetPod(PodEntry),
    RemovePod(PodUid),
    SetNode(NodeName, NodeEntry),
    RemoveNode(NodeName),
    SetNetwork(PolicyNetwork),
    RemoveNetwork(TenantName, NetworkId),
    SetTenant(Tenant),
    RemoveTenant(TenantName),
    SetGroup(Group),
    RemoveGroup(TenantName, GroupName),
    SetGroupPolicy(GroupPolicy),
    RemoveGroupPolicy(TenantName, String),
    SetShare(Share),
    RemoveShare(TenantName, String),
    SetNamespace(String, Labels),
    RemoveNamespace(String),
    SetNetworkPolicy(NetworkPolicy),
    RemoveNetworkPolicy(String, String),
    SetClusterPolicy(ClusterNetworkPolicy),
    RemoveClusterPolicy(String),
}

impl WorldChange {
    /// Sets an object of the catalog. None for objects that do not decide about flows.
    pub fn of_object(object: &ClusterObject) -> Option<Self> {
        Some(match object {
            ClusterObject::Tenant(tenant) => Self::SetTenant(tenant.clone()),
            ClusterObject::Network(network) => Self::SetNetwork(PolicyNetwork {
                tenant: network.tenant.clone(),
                id: network.id.clone(),
                subnets: network.subnets.clone(),
            }),
            ClusterObject::Group(group) => Self::SetGroup(group.group.clone()),
            ClusterObject::Policy(policy) => Self::SetGroupPolicy(policy.clone()),
            ClusterObject::Share(share) => Self::SetShare(share.clone()),
            ClusterObject::Profile(_) => return None,
        })
    }
}

impl World {
    pub fn new(local_node: NodeName) -> Self {
        Self {
            local_node,
            nodes: BTreeMap::new(),
            networks: BTreeMap::new(),
            tenants: BTreeMap::new(),
            groups: BTreeMap::new(),
            group_policies: BTreeMap::new(),
            shares: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            network_policies: BTreeMap::new(),
            cluster_policies: BTreeMap::new(),
            pods: BTreeMap::new(),
        }
    }

    pub(crate) fn network_policies_of(&self, namespace: &str) -> impl Iterator<Item = &NetworkPolicy> {
        let policies = self.network_policies.range((namespace.to_owned(), String::new())..);
        policies.map(|(_, policy)| policy).take_while(move |policy| policy.namespace == namespace)
    }

    pub(crate) fn shares_of<'a>(&'a self, tenant: &TenantName) -> impl Iterator<Item = &'a Share> + use<'a> {
        let tenant = tenant.clone();
        let shares = self.shares.range((tenant.clone(), String::new())..);
        shares.map(|(_, share)| share).take_while(move |share| share.tenant == tenant)
    }

    /// The policies that are bound to a group, each once. `Err` is an object that is missing or was never valid: what it would
    /// deny is unknown.
    pub(crate) fn group_policies_of<'a>(
        &'a self,
        tenant: &TenantName,
        group: &GroupName,
    ) -> Vec<Result<&'a GroupPolicy, PolicyObject>> {
        let Some(found) = self.groups.get(&(tenant.clone(), group.clone())) else {
            return vec![Err(PolicyObject::Group { tenant: tenant.clone(), name: group.clone() })];
        };
        let names: BTreeSet<_> = found.policies.iter().collect();
        let policies = names.into_iter().map(|name| {
            let missing = || PolicyObject::GroupPolicy { tenant: tenant.clone(), name: name.clone() };
            self.group_policies.get(&(tenant.clone(), name.clone())).ok_or_else(missing)
        });
        policies.collect()
    }

    /// Applies a change. Objects may refer to others that do not exist (yet): a missing group or policy closes its pods, a missing
    /// tenant has the default settings, a missing namespace has no labels.
    pub fn apply(&mut self, change: WorldChange) {
        match change {
            WorldChange::SetPod(pod) => drop(self.pods.insert(Arc::clone(&pod.uid), pod)),
            WorldChange::RemovePod(uid) => drop(self.pods.remove(&uid)),
            WorldChange::SetNode(name, node) => drop(self.nodes.insert(name, node)),
            WorldChange::RemoveNode(name) => drop(self.nodes.remove(&name)),
            WorldChange::SetNetwork(network) => {
                drop(self.networks.insert((network.tenant.clone(), network.id.clone()), network));
            }
            WorldChange::RemoveNetwork(tenant, id) => drop(self.networks.remove(&(tenant, id))),
            WorldChange::SetTenant(tenant) => drop(self.tenants.insert(tenant.name.clone(), tenant)),
            WorldChange::RemoveTenant(name) => drop(self.tenants.remove(&name)),
            WorldChange::SetGroup(group) => {
                drop(self.groups.insert((group.tenant.clone(), group.name.clone()), group));
            }
            WorldChange::RemoveGroup(tenant, name) => drop(self.groups.remove(&(tenant, name))),
            WorldChange::SetGroupPolicy(policy) => {
                drop(self.group_policies.insert((policy.tenant.clone(), policy.name.clone()), policy));
            }
            WorldChange::RemoveGroupPolicy(tenant, name) => drop(self.group_policies.remove(&(tenant, name))),
            WorldChange::SetShare(share) => {
                drop(self.shares.insert((share.tenant.clone(), share.name.clone()), share));
            }
            WorldChange::RemoveShare(tenant, name) => drop(self.shares.remove(&(tenant, name))),
            WorldChange::SetNamespace(name, labels) => drop(self.namespaces.insert(name, labels)),
            WorldChange::RemoveNamespace(name) => drop(self.namespaces.remove(&name)),
            WorldChange::SetNetworkPolicy(policy) => {
                drop(self.network_policies.insert((policy.namespace.clone(), policy.name.clone()), policy));
            }
            WorldChange::RemoveNetworkPolicy(namespace, name) => {
                drop(self.network_policies.remove(&(namespace, name)));
            }
            WorldChange::SetClusterPolicy(policy) => {
                drop(self.cluster_policies.insert(policy.name.clone(), policy));
            }
            WorldChange::RemoveClusterPolicy(name) => drop(self.cluster_policies.remove(&name)),
        }
    }
}
