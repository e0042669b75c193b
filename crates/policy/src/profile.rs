//! The key of a profile: the objects that select a pod, and the properties of the pod that their rules read.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::objects::{
    ClusterNetworkPolicy, ClusterSubject, Direction, Identity, NamedPort, NetworkPolicy, PortMatch, Share,
    SharedPart,
};
use types::{Digest, GroupName, NodeName, TenantName};

use crate::class::{ClassKey, PeerKind};
use crate::direction::DIRECTIONS;
use crate::predicate::Namespaces;
use crate::rules::cluster_peers;
use crate::uses::{Uses, port_names};
use crate::world::{PodEntry, PodPhase, World};

/// Pods with equal keys have the same rules.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ProfileKey {
    pub(crate) tenant: TenantName,
    /// None if no policies are bound to the pod's group.
    pub(crate) group: Option<GroupName>,
    /// Names of the tenant's shares that contain the pod.
    pub(crate) shares: Vec<String>,
    /// None if no NetworkPolicy selects the pod.
    pub(crate) namespace: Option<String>,
    pub(crate) network_policies: Vec<String>,
    /// In the order of evaluation.
    pub(crate) cluster_policies: Vec<String>,
    /// Own ports that rules name.
    pub(crate) ports: Vec<NamedPort>,
    /// The rules of `cluster_policies` that match the pod as its own peer: policy, direction, rule.
    pub(crate) self_rules: Vec<(usize, Direction, usize)>,
}

impl ProfileKey {
    pub(crate) fn digest(&self) -> Digest {
        let mut words = vec![self.tenant.to_string()];
        words.extend(self.group.iter().map(|group| format!("group {group}")));
        words.extend(self.shares.iter().map(|name| format!("share {name}")));
        words.extend(self.namespace.iter().map(|name| format!("namespace {name}")));
        words.extend(self.network_policies.iter().map(|name| format!("policy {name}")));
        words.extend(self.cluster_policies.iter().map(|name| format!("cluster policy {name}")));
        words.extend(self.ports.iter().map(|port| format!("{} {}/{}", port.name, port.protocol, port.port)));
        words.extend(self.self_rules.iter().map(|rule| format!("{rule:?}")));
        Digest::of(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub(crate) fn of(world: &World, uses: &Uses, pod: &PodEntry) -> Self {
        let identity = &pod.identity;
        let network_policies: Vec<_> = selecting_policies(world, identity).collect();
        let cluster_policies = selecting_cluster_policies(world, identity);
        let tenant = identity.placement.tenant.clone();
        let has_policies = |group: &&GroupName| !world.group_policies_of(&tenant, group).is_empty();
        Self {
            group: identity.placement.group.as_ref().filter(has_policies).cloned(),
            shares: shares_of(world, identity).map(|share| share.name.clone()).collect(),
            namespace: identity.namespace.clone().filter(|_| !network_policies.is_empty()),
            ports: own_ports(identity, &network_policies, &cluster_policies),
            self_rules: self_rules(world, &own_keys(uses, pod), &cluster_policies),
            network_policies: network_policies.iter().map(|policy| policy.name.clone()).collect(),
            cluster_policies: cluster_policies.iter().map(|policy| policy.name.clone()).collect(),
            tenant,
        }
    }
}

impl PodEntry {
    /// Policies apply to it, and its addresses are its own.
    pub(crate) fn is_subject(&self) -> bool {
        self.phase == PodPhase::Running && self.addresses.is_some()
    }

    pub(crate) fn is_local_subject(&self, node: &NodeName) -> bool {
        self.is_subject() && self.node == *node
    }
}

fn selecting_policies<'a>(
    world: &'a World,
    identity: &'a Identity,
) -> impl Iterator<Item = &'a NetworkPolicy> + 'a {
    let policies = identity.namespace.iter().flat_map(|namespace| world.network_policies_of(namespace));
    policies.filter(|policy| policy.subjects.matches(&identity.labels))
}

/// In the order of evaluation.
fn selecting_cluster_policies<'a>(world: &'a World, identity: &Identity) -> Vec<&'a ClusterNetworkPolicy> {
    let Some(namespace) = &identity.namespace else { return Vec::new() };
    let namespaces = Namespaces(world);
    let is_selected = |policy: &&ClusterNetworkPolicy| match &policy.subject {
        ClusterSubject::Namespaces(selector) => selector.matches(namespaces.labels(namespace)),
        ClusterSubject::Pods { namespaces: selector, pods } => {
            selector.matches(namespaces.labels(namespace)) && pods.matches(&identity.labels)
        }
    };
    let mut policies: Vec<_> = world.cluster_policies.values().filter(is_selected).collect();
    policies.sort_by_key(|policy| cluster_order(policy));
    policies
}

/// Policies of a tier are evaluated in this order.
pub(crate) fn cluster_order(policy: &ClusterNetworkPolicy) -> (u16, &str) {
    (policy.priority, &policy.name)
}

fn shares_of<'a>(world: &'a World, identity: &'a Identity) -> impl Iterator<Item = &'a Share> + 'a {
    let placement = &identity.placement;
    let contains_pod = move |share: &&Share| match &share.part {
        SharedPart::AllPods => true,
        SharedPart::Network(network) => placement.network == *network,
        SharedPart::Group(group) => placement.group.as_ref() == Some(group),
    };
    world.shares_of(&placement.tenant).filter(contains_pod)
}

/// Ingress rules resolve names at the subject. So do egress rules of ClusterNetworkPolicies when the subject is its own peer.
fn own_ports(
    identity: &Identity,
    network_policies: &[&NetworkPolicy],
    cluster_policies: &[&ClusterNetworkPolicy],
) -> Vec<NamedPort> {
    if identity.ports.is_empty() {
        return Vec::new();
    }
    let mut names = BTreeSet::new();
    for rule in network_policies.iter().flat_map(|policy| policy.ingress.iter().flatten()) {
        names.extend(rule.ports.iter().filter_map(|port| match &port.port {
            PortMatch::Named(name) => Some(name.as_str()),
            PortMatch::All | PortMatch::Range(_) => None,
        }));
    }
    let cluster_rules =
        cluster_policies.iter().flat_map(|policy| policy.ingress.iter().chain(&policy.egress));
    names.extend(cluster_rules.flat_map(port_names));
    let mut ports: Vec<_> =
        identity.ports.iter().filter(|port| names.contains(port.name.as_str())).cloned().collect();
    ports.sort_unstable();
    ports
}

/// The pod as a peer, one key per address.
fn own_keys(uses: &Uses, pod: &PodEntry) -> Vec<ClassKey> {
    let class = Arc::new(uses.pod_class(&pod.identity));
    let key = |cidrs| ClassKey { kind: PeerKind::Pod(Arc::clone(&class)), cidrs };
    match pod.addresses.as_deref() {
        None | Some([]) => vec![key(Vec::new())],
        Some(addresses) => addresses.iter().map(|address| key(uses.smallest_cidr(*address))).collect(),
    }
}

fn self_rules(
    world: &World,
    keys: &[ClassKey],
    policies: &[&ClusterNetworkPolicy],
) -> Vec<(usize, Direction, usize)> {
    let namespaces = Namespaces(world);
    let mut matching = Vec::new();
    for (position, policy) in policies.iter().enumerate() {
        for direction in DIRECTIONS {
            for (number, rule) in policy.rules(direction).iter().enumerate() {
                let peers = cluster_peers(rule).unwrap_or_default();
                let is_match = |key| peers.iter().any(|peer| peer.matches(key, &namespaces));
                if keys.iter().any(is_match) {
                    matching.push((position, direction, number));
                }
            }
        }
    }
    matching
}
