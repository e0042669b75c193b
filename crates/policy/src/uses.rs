//! The properties of peers that rules read: labels, named ports and address blocks. Peers that differ in nothing else have one class.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use model::objects::{
    ClusterNetworkPolicy, ClusterPeer, ClusterProtocol, ClusterRule, GroupPeer, GroupPolicy, Identity,
    NetworkPolicy, NetworkPolicyPeer, PortMatch,
};
use model::{LabelOperator, LabelRequirement, Labels};

use crate::cidr::Cidrs;
use crate::class::{ClassKey, PeerKind, PodClass};
use crate::world::NodeEntry;

/// The properties of peers that rules read, with the number of rules that read each.
#[derive(Debug, Clone, Default)]
pub(crate) struct Uses {
    pod_labels: LabelUses,
    node_labels: LabelUses,
    /// Names of ports in egress rules, which are resolved at the peer.
    port_names: Counter,
    pub(crate) cidrs: Cidrs,
    /// A property became used or unused since the last call of `take_changes`.
    changes: UsesChanges,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UsesChanges {
    /// Any property, also blocks.
    pub(crate) any: bool,
    pub(crate) cidrs: bool,
}

#[derive(Debug, Clone, Default)]
struct Counter(BTreeMap<String, usize>);

#[derive(Clone, Copy)]
pub(crate) enum Use<'a> {
    PodLabel(&'a LabelRequirement),
    NodeLabel(&'a LabelRequirement),
    PortName(&'a str),
    Cidr(IpNet),
}

impl Counter {
    fn add(&mut self, key: &str) -> bool {
        if let Some(uses) = self.0.get_mut(key) {
            *uses += 1;
            return false;
        }
        self.0.insert(key.to_owned(), 1);
        true
    }

    fn remove(&mut self, key: &str) -> bool {
        let Some(uses) = self.0.get_mut(key) else { return false };
        *uses -= 1;
        *uses == 0 && self.0.remove(key).is_some()
    }
}

/// The label keys and values that selectors name.
#[derive(Debug, Clone, Default)]
struct LabelUses {
    keys: Counter,
    values: BTreeMap<String, Counter>,
}

/// Stands for all values that no selector names. No label has this value.
pub(crate) const OTHER_VALUE: &str = "\0";

fn values(requirement: &LabelRequirement) -> Option<&BTreeSet<String>> {
    match &requirement.operator {
        LabelOperator::In(values) | LabelOperator::NotIn(values) => Some(values),
        LabelOperator::Exists | LabelOperator::DoesNotExist => None,
    }
}

impl LabelUses {
    fn add(&mut self, requirement: &LabelRequirement) -> bool {
        let mut is_new = self.keys.add(&requirement.key);
        let known = self.values.entry(requirement.key.clone()).or_default();
        for value in values(requirement).into_iter().flatten() {
            is_new |= known.add(value);
        }
        is_new
    }

    fn remove(&mut self, requirement: &LabelRequirement) -> bool {
        let is_last = self.keys.remove(&requirement.key);
        let Some(known) = self.values.get_mut(&requirement.key) else { return is_last };
        let mut is_changed = is_last;
        for value in values(requirement).into_iter().flatten() {
            is_changed |= known.remove(value);
        }
        if is_last {
            self.values.remove(&requirement.key);
        }
        is_changed
    }

    /// The part of labels that selectors can distinguish.
    fn filter(&self, labels: &Labels) -> Labels {
        let used = labels.iter().filter_map(|(key, value)| {
            let known = self.values.get(key)?;
            let value = if known.0.contains_key(value) { value } else { OTHER_VALUE };
            Some((key.clone(), value.to_owned()))
        });
        used.collect()
    }
}

/// An object with rules that read properties of peers.
pub(crate) trait Reads {
    fn each_use<'a>(&'a self, visit: &mut dyn FnMut(Use<'a>));
}

impl Uses {
    pub(crate) fn add(&mut self, object: &impl Reads) {
        object.each_use(&mut |used| {
            let is_new = match used {
                Use::PodLabel(requirement) => self.pod_labels.add(requirement),
                Use::NodeLabel(requirement) => self.node_labels.add(requirement),
                Use::PortName(name) => self.port_names.add(name),
                Use::Cidr(cidr) => self.cidrs.add(cidr),
            };
            self.changes.note(used, is_new);
        });
    }

    pub(crate) fn remove(&mut self, object: &impl Reads) {
        object.each_use(&mut |used| {
            let is_last = match used {
                Use::PodLabel(requirement) => self.pod_labels.remove(requirement),
                Use::NodeLabel(requirement) => self.node_labels.remove(requirement),
                Use::PortName(name) => self.port_names.remove(name),
                Use::Cidr(cidr) => self.cidrs.remove(cidr),
            };
            self.changes.note(used, is_last);
        });
    }

    pub(crate) fn take_changes(&mut self) -> UsesChanges {
        std::mem::take(&mut self.changes)
    }

    /// The part of an identity that rules read.
    pub(crate) fn pod_class(&self, identity: &Identity) -> PodClass {
        let mut ports: Vec<_> = identity
            .ports
            .iter()
            .filter(|port| self.port_names.0.contains_key(&port.name))
            .cloned()
            .collect();
        ports.sort_unstable();
        PodClass {
            tenant: identity.placement.tenant.clone(),
            network: identity.placement.network.clone(),
            group: identity.placement.group.clone(),
            namespace: identity.namespace.clone(),
            labels: self.pod_labels.filter(&identity.labels),
            ports,
        }
    }

    /// All addresses of a node have one class, with the blocks that contain any of them.
    pub(crate) fn node_class(&self, node: &NodeEntry, is_own: bool) -> ClassKey {
        let mut cidrs: Vec<IpNet> =
            node.addresses.iter().filter_map(|address| self.cidrs.smallest(*address)).collect();
        cidrs.sort_unstable();
        cidrs.dedup();
        ClassKey { kind: PeerKind::Node { is_own, labels: self.node_labels.filter(&node.labels) }, cidrs }
    }

    pub(crate) fn smallest_cidr(&self, address: IpAddr) -> Vec<IpNet> {
        self.cidrs.smallest(address).into_iter().collect()
    }
}

impl UsesChanges {
    fn note(&mut self, used: Use<'_>, is_change: bool) {
        self.any |= is_change;
        self.cidrs |= is_change && matches!(used, Use::Cidr(_));
    }
}

impl Reads for NetworkPolicy {
    fn each_use<'a>(&'a self, visit: &mut dyn FnMut(Use<'a>)) {
        for rule in self.ingress.iter().chain(&self.egress).flatten() {
            for peer in &rule.peers {
                match peer {
                    NetworkPolicyPeer::Pods { namespaces: _, pods } => {
                        pods.requirements.iter().for_each(|one| visit(Use::PodLabel(one)));
                    }
                    NetworkPolicyPeer::Block { cidr, except } => {
                        [cidr].into_iter().chain(except).for_each(|cidr| visit(Use::Cidr(*cidr)));
                    }
                }
            }
        }
        for port in self.egress.iter().flatten().flat_map(|rule| &rule.ports) {
            if let PortMatch::Named(name) = &port.port {
                visit(Use::PortName(name));
            }
        }
    }
}

impl Reads for ClusterNetworkPolicy {
    fn each_use<'a>(&'a self, visit: &mut dyn FnMut(Use<'a>)) {
        for peer in self.ingress.iter().chain(&self.egress).flat_map(|rule| &rule.peers) {
            match peer {
                ClusterPeer::Pods { namespaces: _, pods } => {
                    pods.requirements.iter().for_each(|one| visit(Use::PodLabel(one)));
                }
                ClusterPeer::Nodes(selector) => {
                    selector.requirements.iter().for_each(|one| visit(Use::NodeLabel(one)));
                }
                ClusterPeer::Networks(cidrs) => cidrs.iter().for_each(|cidr| visit(Use::Cidr(*cidr))),
                ClusterPeer::Namespaces(_) | ClusterPeer::DomainNames | ClusterPeer::Unknown => {}
            }
        }
        for name in self.egress.iter().flat_map(port_names) {
            visit(Use::PortName(name));
        }
    }
}

/// The names of ports in a rule.
pub(crate) fn port_names(rule: &ClusterRule) -> impl Iterator<Item = &str> {
    rule.protocols.iter().filter_map(|protocol| match protocol {
        ClusterProtocol::NamedPort(name)
        | ClusterProtocol::Ports { protocol: _, port: PortMatch::Named(name) } => Some(name.as_str()),
        ClusterProtocol::Ports { protocol: _, port: PortMatch::All | PortMatch::Range(_) } => None,
    })
}

impl Reads for GroupPolicy {
    fn each_use<'a>(&'a self, visit: &mut dyn FnMut(Use<'a>)) {
        for rule in &self.rules {
            match &rule.peer {
                GroupPeer::Block(cidr) => visit(Use::Cidr(*cidr)),
                GroupPeer::Any | GroupPeer::Group(_) | GroupPeer::Network(_) => {}
            }
        }
    }
}
