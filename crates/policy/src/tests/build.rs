//! Short constructors for inputs of the engine.

use std::sync::Arc;

use ipnet::IpNet;
use model::objects::*;
use model::{LabelOperator, LabelRequirement, Labels, Selector};
use types::{NodeName, Placement, Protocol, TenantName};

use crate::world::{NodeEntry, PodEntry, PodPhase, PolicyNetwork, WorldChange};

pub(crate) fn labels(text: &str) -> Labels {
    let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// `key=value key!=value key !key`
pub(crate) fn selector(text: &str) -> Selector {
    let requirement = |text: &str| {
        let set = |value: &str| [value.to_owned()].into();
        let (key, operator) = if let Some((key, value)) = text.split_once("!=") {
            (key, LabelOperator::NotIn(set(value)))
        } else if let Some((key, value)) = text.split_once('=') {
            (key, LabelOperator::In(set(value)))
        } else if let Some(key) = text.strip_prefix('!') {
            (key, LabelOperator::DoesNotExist)
        } else {
            (text, LabelOperator::Exists)
        };
        LabelRequirement { key: key.to_owned(), operator }
    };
    Selector { requirements: text.split_whitespace().map(requirement).collect() }
}

pub(crate) fn node_name(name: &str) -> NodeName {
    name.try_into().unwrap()
}

pub(crate) fn tenant_name(name: &str) -> TenantName {
    name.try_into().unwrap()
}

pub(crate) fn cidr(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// A pod of tenant `default` in namespace `default` on node `n1`.
#[derive(Clone)]
pub(crate) struct PodSpec {
    pub(crate) uid: String,
    pub(crate) node: String,
    pub(crate) placement: Placement,
    pub(crate) namespace: Option<String>,
    pub(crate) labels: Labels,
    pub(crate) ports: Vec<NamedPort>,
    pub(crate) addresses: Option<String>,
    pub(crate) phase: PodPhase,
}

pub(crate) fn pod(uid: &str, addresses: &str) -> PodSpec {
    PodSpec {
        uid: uid.to_owned(),
        node: "n1".to_owned(),
        placement: Placement::default(),
        namespace: Some("default".to_owned()),
        labels: Labels::new(),
        ports: Vec::new(),
        addresses: Some(addresses.to_owned()),
        phase: PodPhase::Running,
    }
}

impl PodSpec {
    pub(crate) fn node(mut self, node: &str) -> Self {
        self.node = node.to_owned();
        self
    }

    pub(crate) fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = (!namespace.is_empty()).then(|| namespace.to_owned());
        self
    }

    pub(crate) fn labels(mut self, text: &str) -> Self {
        self.labels = labels(text);
        self
    }

    pub(crate) fn tenant(mut self, tenant: &str) -> Self {
        self.placement.tenant = tenant_name(tenant);
        self
    }

    pub(crate) fn network(mut self, network: &str) -> Self {
        self.placement.network = network.try_into().unwrap();
        self
    }

    pub(crate) fn group(mut self, group: &str) -> Self {
        self.placement.group = Some(group.try_into().unwrap());
        self
    }

    pub(crate) fn port(mut self, name: &str, protocol: Protocol, port: u16) -> Self {
        self.ports.push(NamedPort { name: name.to_owned(), protocol, port });
        self
    }

    pub(crate) fn host_network(mut self) -> Self {
        self.addresses = None;
        self
    }

    pub(crate) fn completed(mut self) -> Self {
        self.phase = PodPhase::Completed;
        self
    }

    pub(crate) fn set(self) -> WorldChange {
        let identity = Identity {
            placement: self.placement,
            namespace: self.namespace.clone(),
            labels: self.labels,
            ports: self.ports,
        };
        let addresses = self
            .addresses
            .map(|text| text.split_whitespace().map(|address| address.parse().unwrap()).collect());
        WorldChange::SetPod(PodEntry {
            uid: self.uid.as_str().into(),
            name: NamespacedName { namespace: self.namespace, name: self.uid },
            node: node_name(&self.node),
            identity: Arc::new(identity),
            addresses,
            phase: self.phase,
        })
    }
}

pub(crate) fn node(name: &str, addresses: &str, text: &str) -> WorldChange {
    let addresses = addresses.split_whitespace().map(|address| address.parse().unwrap()).collect();
    WorldChange::SetNode(node_name(name), NodeEntry { addresses, labels: labels(text) })
}

pub(crate) fn network(tenant: &str, id: &str, subnets: &str) -> WorldChange {
    let subnets = subnets.split_whitespace().map(cidr).collect();
    WorldChange::SetNetwork(PolicyNetwork {
        tenant: tenant_name(tenant),
        id: id.try_into().unwrap(),
        subnets,
    })
}

pub(crate) fn namespace(name: &str, text: &str) -> WorldChange {
    WorldChange::SetNamespace(name.to_owned(), labels(text))
}

pub(crate) fn np_pods(namespaces: Option<&str>, pods: &str) -> NetworkPolicyPeer {
    let namespaces = namespaces.map_or(NamespaceScope::Own, |text| NamespaceScope::Matching(selector(text)));
    NetworkPolicyPeer::Pods { namespaces, pods: selector(pods) }
}

pub(crate) fn np_block(block: &str, except: &str) -> NetworkPolicyPeer {
    NetworkPolicyPeer::Block { cidr: cidr(block), except: except.split_whitespace().map(cidr).collect() }
}

pub(crate) fn tcp(port: u16) -> NetworkPolicyPort {
    NetworkPolicyPort { protocol: Protocol::Tcp, port: PortMatch::Range(PortRange::single(port)) }
}

pub(crate) fn np_rule(peers: &[NetworkPolicyPeer], ports: &[NetworkPolicyPort]) -> NetworkPolicyRule {
    NetworkPolicyRule { peers: peers.to_vec(), ports: ports.to_vec() }
}

/// In namespace `default`.
pub(crate) fn np(
    name: &str,
    subjects: &str,
    ingress: Option<Vec<NetworkPolicyRule>>,
    egress: Option<Vec<NetworkPolicyRule>>,
) -> WorldChange {
    WorldChange::SetNetworkPolicy(NetworkPolicy {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        subjects: selector(subjects),
        ingress,
        egress,
    })
}

pub(crate) fn cluster_rule(action: ClusterAction, peers: &[ClusterPeer]) -> ClusterRule {
    ClusterRule { name: None, action, peers: peers.to_vec(), protocols: Vec::new() }
}

/// For all namespaces.
pub(crate) fn cluster_policy(name: &str, tier: ClusterTier, priority: u16) -> ClusterNetworkPolicy {
    ClusterNetworkPolicy {
        name: name.to_owned(),
        tier,
        priority,
        subject: ClusterSubject::Namespaces(Selector::all()),
        ingress: Vec::new(),
        egress: Vec::new(),
    }
}
