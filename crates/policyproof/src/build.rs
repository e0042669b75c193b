//! Objects from short texts. Invalid texts panic: they are part of a test.
//!
//! | object | text |
//! |---|---|
//! | labels | `app=web,team=a` |
//! | selector | `app=web,tier!=db,team in a\|b,env notin x\|y,role,!old`; empty: all |
//! | protocol and port | `tcp/80`, `udp/9000-9100`, `tcp/http`, `sctp` (all ports) |
//! | pod | `namespace/name`, or `/name` without a namespace |

mod kubernetes;
mod podwire;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use model::objects::{Identity, NamedPort, NamespacedName, PortMatch, PortRange};
use model::{LabelOperator, LabelRequirement, Labels, Selector};
use policy::{NodeEntry, PodEntry, PodPhase, PolicyNetwork, World, WorldChange};
use types::{NetworkId, NodeName, Placement, Protocol, TenantName};

pub use kubernetes::{
    ClusterPolicyBuilder, NetworkPolicyBuilder, block, cluster_policy, cluster_ports, cluster_rule,
    namespaces_peer, network_policy, networks_peer, nodes_peer, pods, pods_in, pods_peer, rule,
};
pub use podwire::{GroupRuleBuilder, group, group_policy, group_rule, share, tenant};

pub const LOCAL_NODE: &str = "n1";
pub const NODES: [&str; 3] = [LOCAL_NODE, "n2", "n3"];

pub(crate) fn parsed<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is invalid"))
}

/// A name of any type.
pub(crate) fn named<'a, T: TryFrom<&'a str>>(text: &'a str) -> T {
    T::try_from(text).unwrap_or_else(|_| panic!("{text:?} is not a name"))
}

fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

pub fn labels(text: &str) -> Labels {
    let pair = |item: &str| {
        let (key, value) = item.split_once('=').unwrap_or_else(|| panic!("{item:?} is not key=value"));
        (key.to_owned(), value.to_owned())
    };
    items(text).map(pair).collect()
}

pub fn selector(text: &str) -> Selector {
    Selector { requirements: items(text).map(requirement).collect() }
}

fn requirement(item: &str) -> LabelRequirement {
    let values = |text: &str| -> BTreeSet<String> { text.split('|').map(str::to_owned).collect() };
    let (key, operator) = if let Some((key, list)) = item.split_once(" notin ") {
        (key, LabelOperator::NotIn(values(list)))
    } else if let Some((key, list)) = item.split_once(" in ") {
        (key, LabelOperator::In(values(list)))
    } else if let Some((key, value)) = item.split_once("!=") {
        (key, LabelOperator::NotIn(values(value)))
    } else if let Some((key, value)) = item.split_once('=') {
        (key, LabelOperator::In(values(value)))
    } else if let Some(key) = item.strip_prefix('!') {
        (key, LabelOperator::DoesNotExist)
    } else {
        (item, LabelOperator::Exists)
    };
    LabelRequirement { key: key.to_owned(), operator }
}

/// See the table above.
pub fn port(text: &str) -> (Protocol, PortMatch) {
    let Some((protocol, port)) = text.split_once('/') else { return (parsed(text), PortMatch::All) };
    let is_number = port.starts_with(|first: char| first.is_ascii_digit());
    let port = if is_number { PortMatch::Range(range(port)) } else { PortMatch::Named(port.to_owned()) };
    (parsed(protocol), port)
}

/// `80` or `80-90`.
pub fn range(text: &str) -> PortRange {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    PortRange::new(parsed(first), parsed(last)).unwrap_or_else(|| panic!("{text:?} is empty"))
}

pub fn net(text: &str) -> IpNet {
    parsed(text)
}

/// Three nodes with addresses of both families, and the default network. The local node is `n1`.
pub fn cluster() -> World {
    let mut world = World::new(named(LOCAL_NODE));
    for (index, name) in NODES.into_iter().enumerate() {
        world.apply(node(name, index + 1, ""));
    }
    world.apply(network("default", "default-net", &["10.83.0.0/16", "fd00:88::/64"]));
    world
}

/// A node with a status address of each family and the gateways of its blocks.
pub fn node(name: &str, number: usize, node_labels: &str) -> WorldChange {
    let addresses = [
        format!("192.168.0.{number}"),
        format!("fd00:1::{number}"),
        format!("10.83.{number}.1"),
        format!("fd00:88::{number}:1"),
    ];
    let addresses = addresses.iter().map(|text| parsed(text)).collect();
    WorldChange::SetNode(named(name), NodeEntry { addresses, labels: labels(node_labels) })
}

pub fn network(tenant: &str, id: &str, subnets: &[&str]) -> WorldChange {
    let subnets = subnets.iter().map(|text| net(text)).collect();
    WorldChange::SetNetwork(PolicyNetwork {
        tenant: named::<TenantName>(tenant),
        id: named::<NetworkId>(id),
        subnets,
    })
}

pub fn namespace(name: &str, namespace_labels: &str) -> WorldChange {
    WorldChange::SetNamespace(name.to_owned(), labels(namespace_labels))
}

/// A running pod on the local node, in the default network, with the addresses `10.83.1.NUMBER` and `fd00:88::1:NUMBER`.
pub fn pod(name: &str, number: u8, pod_labels: &str) -> PodBuilder {
    let (namespace, short) = name.split_once('/').unwrap_or_else(|| panic!("{name:?} is not namespace/name"));
    let namespace = (!namespace.is_empty()).then(|| namespace.to_owned());
    let identity = Identity {
        placement: Placement::default(),
        namespace: namespace.clone(),
        labels: labels(pod_labels),
        ports: Vec::new(),
    };
    PodBuilder(PodEntry {
        uid: Arc::from(format!("uid-{name}")),
        name: NamespacedName { namespace, name: short.to_owned() },
        node: named(LOCAL_NODE),
        identity: Arc::new(identity),
        addresses: Some(vec![parsed(&format!("10.83.1.{number}")), parsed(&format!("fd00:88::1:{number}"))]),
        phase: PodPhase::Running,
    })
}

#[derive(Debug, Clone)]
pub struct PodBuilder(PodEntry);

impl PodBuilder {
    fn identity(mut self, set: impl FnOnce(&mut Identity)) -> Self {
        set(Arc::make_mut(&mut self.0.identity));
        self
    }

    /// `TENANT/NETWORK` or `TENANT/NETWORK/GROUP`.
    pub fn placed(self, text: &str) -> Self {
        let mut parts = text.split('/');
        let placement = Placement::parse(parts.next(), parts.next(), parts.next())
            .unwrap_or_else(|_| panic!("{text:?} is not a placement"));
        self.identity(|identity| identity.placement = placement)
    }

    /// Named ports: `http=tcp/80,dns=udp/53`.
    pub fn ports(self, text: &str) -> Self {
        let declared = items(text).map(|item| {
            let (name, rest) = item.split_once('=').unwrap_or_else(|| panic!("{item:?} is not name=port"));
            let (protocol, number) = rest.split_once('/').unwrap_or_else(|| panic!("{rest:?} is not a port"));
            NamedPort { name: name.to_owned(), protocol: parsed(protocol), port: parsed(number) }
        });
        let declared = declared.collect();
        self.identity(|identity| identity.ports = declared)
    }

    pub fn on(mut self, node: &str) -> Self {
        self.0.node = named::<NodeName>(node);
        self
    }

    pub fn at(mut self, addresses: &[&str]) -> Self {
        self.0.addresses = Some(addresses.iter().map(|text| parsed::<IpAddr>(text)).collect());
        self
    }

    pub fn host_network(mut self) -> Self {
        self.0.addresses = None;
        self
    }

    pub fn completed(mut self) -> Self {
        self.0.phase = PodPhase::Completed;
        self
    }

    pub fn entry(self) -> PodEntry {
        self.0
    }
}

impl From<PodBuilder> for WorldChange {
    fn from(builder: PodBuilder) -> Self {
        Self::SetPod(builder.0)
    }
}

/// The world after the changes.
pub fn with<const N: usize>(mut world: World, changes: [WorldChange; N]) -> World {
    changes.into_iter().for_each(|change| world.apply(change));
    world
}
