//! Finds the results that a change of the inputs affects.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::objects::{ClusterNetworkPolicy, GroupPolicy, NetworkPolicy};
use types::{NodeName, TenantName};

use crate::address::{AddressOwner, AddressTable, owned_by};
use crate::cidr::Cidrs;
use crate::problems::PolicyObject;
use crate::uses::{Reads, Uses};
use crate::world::{NodeEntry, PodEntry, PodUid, PolicyNetwork, World, WorldChange};

/// The results that must be computed again. It may contain more than necessary, because an equal result changes nothing.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    /// Addresses that may get another class.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// The division into ranges may differ.
    pub(crate) ranges: bool,
    /// Namespaces with other labels than before.
    pub(crate) namespaces: BTreeSet<String>,
    /// Pods that may get another profile.
    pub(crate) pods: PodScope,
    /// Profiles that may get other rules.
    pub(crate) rules: RuleScope,
    /// A ClusterNetworkPolicy differs.
    pub(crate) cluster_policies: bool,
    /// The policies that differ.
    pub(crate) policies: Vec<PolicyObject>,
}

/// A set of local pods.
#[derive(Debug, Default)]
pub(crate) struct PodScope {
    pub(crate) all: bool,
    pub(crate) uids: BTreeSet<PodUid>,
    pub(crate) namespaces: BTreeSet<String>,
    pub(crate) tenants: BTreeSet<TenantName>,
}

/// A set of profiles.
#[derive(Debug, Default)]
pub(crate) struct RuleScope {
    pub(crate) all: bool,
    pub(crate) tenants: BTreeSet<TenantName>,
    pub(crate) network_policies: BTreeSet<(String, String)>,
}

/// The inputs and what is derived from each of them alone.
pub(crate) struct Inputs<'a> {
    pub(crate) world: &'a mut World,
    pub(crate) uses: &'a mut Uses,
    pub(crate) addresses: &'a mut AddressTable,
    pub(crate) networks: &'a mut Cidrs,
    pub(crate) dirty: &'a mut Dirty,
}

impl Inputs<'_> {
    pub(crate) fn apply(&mut self, change: WorldChange) {
        match &change {
            WorldChange::SetPod(pod) => self.pod(&pod.uid, Some(pod)),
            WorldChange::RemovePod(uid) => self.pod(uid, None),
            WorldChange::SetNode(name, node) => self.node(name, Some(node)),
            WorldChange::RemoveNode(name) => self.node(name, None),
            WorldChange::SetNetwork(network) => {
                self.network(&(network.tenant.clone(), network.id.clone()), Some(network));
            }
            WorldChange::RemoveNetwork(tenant, id) => self.network(&(tenant.clone(), id.clone()), None),
            WorldChange::SetTenant(tenant) => {
                if self.world.tenants.get(&tenant.name) != Some(tenant) {
                    self.dirty.rules.tenants.insert(tenant.name.clone());
                }
            }
            WorldChange::RemoveTenant(name) => drop(self.dirty.rules.tenants.insert(name.clone())),
            WorldChange::SetGroup(group) => {
                let old = self.world.groups.get(&(group.tenant.clone(), group.name.clone()));
                if old != Some(group) {
                    self.group_rules(&group.tenant);
                }
            }
            WorldChange::RemoveGroup(tenant, _) => self.group_rules(tenant),
            WorldChange::SetGroupPolicy(policy) => {
                self.group_policy(&(policy.tenant.clone(), policy.name.clone()), Some(policy));
            }
            WorldChange::RemoveGroupPolicy(tenant, name) => {
                self.group_policy(&(tenant.clone(), name.clone()), None);
            }
            WorldChange::SetShare(share) => {
                if self.world.shares.get(&(share.tenant.clone(), share.name.clone())) != Some(share) {
                    self.share(&share.tenant);
                }
            }
            WorldChange::RemoveShare(tenant, _) => self.share(tenant),
            WorldChange::SetNamespace(name, labels) => {
                if self.world.namespaces.get(name) != Some(labels) {
                    self.namespace(name);
                }
            }
            WorldChange::RemoveNamespace(name) => self.namespace(name),
            WorldChange::SetNetworkPolicy(policy) => {
                self.network_policy(&(policy.namespace.clone(), policy.name.clone()), Some(policy));
            }
            WorldChange::RemoveNetworkPolicy(namespace, name) => {
                self.network_policy(&(namespace.clone(), name.clone()), None);
            }
            WorldChange::SetClusterPolicy(policy) => self.cluster_policy(&policy.name, Some(policy)),
            WorldChange::RemoveClusterPolicy(name) => self.cluster_policy(name, None),
        }
        self.world.apply(change);
    }

    fn pod(&mut self, uid: &PodUid, new: Option<&PodEntry>) {
        let node = &self.world.local_node;
        let old = self.world.pods.get(uid);
        if old == new {
            return;
        }
        for (address, owner) in old.into_iter().flat_map(|pod| owned_by(pod, node)) {
            self.addresses.remove_owner(address, &owner);
            self.dirty.addresses.insert(address);
        }
        for (address, owner) in new.into_iter().flat_map(|pod| owned_by(pod, node)) {
            self.addresses.add_owner(address, owner);
            self.dirty.addresses.insert(address);
        }
        if old.into_iter().chain(new).any(|pod| pod.is_local_subject(node)) {
            self.dirty.pods.uids.insert(PodUid::clone(uid));
        }
    }

    fn node(&mut self, name: &NodeName, new: Option<&NodeEntry>) {
        let old = self.world.nodes.get(name);
        if old == new {
            return;
        }
        let owner = AddressOwner::Node(name.clone());
        for address in old.into_iter().flat_map(|node| &node.addresses) {
            self.addresses.remove_owner(*address, &owner);
            self.dirty.addresses.insert(*address);
        }
        for address in new.into_iter().flat_map(|node| &node.addresses) {
            self.addresses.add_owner(*address, owner.clone());
            self.dirty.addresses.insert(*address);
        }
    }

    fn network(&mut self, key: &(TenantName, types::NetworkId), new: Option<&PolicyNetwork>) {
        let old = self.world.networks.get(key);
        if old == new {
            return;
        }
        for subnet in old.into_iter().flat_map(|network| &network.subnets) {
            self.networks.remove(*subnet);
        }
        for subnet in new.into_iter().flat_map(|network| &network.subnets) {
            self.networks.add(*subnet);
        }
        self.dirty.ranges = true;
    }

    fn group_rules(&mut self, tenant: &TenantName) {
        self.dirty.pods.tenants.insert(tenant.clone());
        self.dirty.rules.tenants.insert(tenant.clone());
    }

    fn share(&mut self, tenant: &TenantName) {
        self.dirty.pods.tenants.insert(tenant.clone());
        self.dirty.rules.all = true;
    }

    fn namespace(&mut self, name: &str) {
        self.dirty.namespaces.insert(name.to_owned());
        self.dirty.pods.namespaces.insert(name.to_owned());
    }

    fn group_policy(&mut self, key: &(TenantName, String), new: Option<&GroupPolicy>) {
        if replace_uses(self.uses, self.world.group_policies.get(key), new) {
            self.group_rules(&key.0);
            let (tenant, name) = key.clone();
            self.dirty.policies.push(PolicyObject::GroupPolicy { tenant, name });
        }
    }

    fn network_policy(&mut self, key: &(String, String), new: Option<&NetworkPolicy>) {
        if replace_uses(self.uses, self.world.network_policies.get(key), new) {
            self.dirty.pods.namespaces.insert(key.0.clone());
            self.dirty.rules.network_policies.insert(key.clone());
            let (namespace, name) = key.clone();
            self.dirty.policies.push(PolicyObject::NetworkPolicy { namespace, name });
        }
    }

    fn cluster_policy(&mut self, name: &str, new: Option<&ClusterNetworkPolicy>) {
        if replace_uses(self.uses, self.world.cluster_policies.get(name), new) {
            self.dirty.cluster_policies = true;
            self.dirty.policies.push(PolicyObject::ClusterNetworkPolicy(name.to_owned()));
            self.dirty.pods.all = true;
            self.dirty.rules.all = true;
        }
    }
}

/// False if the objects are equal.
fn replace_uses<T: Reads + PartialEq>(uses: &mut Uses, old: Option<&T>, new: Option<&T>) -> bool {
    if old == new {
        return false;
    }
    if let Some(new) = new {
        uses.add(new);
    }
    if let Some(old) = old {
        uses.remove(old);
    }
    true
}
