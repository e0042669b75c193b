use model::Selector;
use model::objects::{
    ClusterAction, ClusterNetworkPolicy, ClusterPeer, ClusterProtocol, ClusterRule, ClusterSubject,
    ClusterTier, NamespaceScope, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicyRule,
    PortMatch,
};
use policy::WorldChange;

use super::{net, port, selector};

/// `namespace/name`, with a selector of its subjects. It isolates nothing yet.
pub fn network_policy(name: &str, subjects: &str) -> NetworkPolicyBuilder {
    let (namespace, name) = name.split_once('/').unwrap_or_else(|| panic!("{name:?} is not namespace/name"));
    NetworkPolicyBuilder(NetworkPolicy {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        subjects: selector(subjects),
        ingress: None,
        egress: None,
    })
}

#[derive(Debug, Clone)]
pub struct NetworkPolicyBuilder(NetworkPolicy);

impl NetworkPolicyBuilder {
    pub fn ingress<const N: usize>(mut self, rules: [NetworkPolicyRule; N]) -> Self {
        self.0.ingress = Some(rules.into());
        self
    }

    pub fn egress<const N: usize>(mut self, rules: [NetworkPolicyRule; N]) -> Self {
        self.0.egress = Some(rules.into());
        self
    }
}

impl From<NetworkPolicyBuilder> for WorldChange {
    fn from(builder: NetworkPolicyBuilder) -> Self {
        Self::SetNetworkPolicy(builder.0)
    }
}

/// A rule of a NetworkPolicy.
pub fn rule<const N: usize, const M: usize>(
    peers: [NetworkPolicyPeer; N],
    ports: [&str; M],
) -> NetworkPolicyRule {
    let ports = ports.map(port).map(|(protocol, port)| NetworkPolicyPort { protocol, port });
    NetworkPolicyRule { peers: peers.into(), ports: ports.into() }
}

/// Pods of the policy's namespace.
pub fn pods(text: &str) -> NetworkPolicyPeer {
    NetworkPolicyPeer::Pods { namespaces: NamespaceScope::Own, pods: selector(text) }
}

pub fn pods_in(namespaces: &str, pods: &str) -> NetworkPolicyPeer {
    NetworkPolicyPeer::Pods {
        namespaces: NamespaceScope::Matching(selector(namespaces)),
        pods: selector(pods),
    }
}

pub fn block(cidr: &str, except: &[&str]) -> NetworkPolicyPeer {
    NetworkPolicyPeer::Block { cidr: net(cidr), except: except.iter().map(|text| net(text)).collect() }
}

/// Of priority 10, for all pods with a namespace.
pub fn cluster_policy(name: &str, tier: ClusterTier) -> ClusterPolicyBuilder {
    ClusterPolicyBuilder(ClusterNetworkPolicy {
        name: name.to_owned(),
        tier,
        priority: 10,
        subject: ClusterSubject::Namespaces(Selector::all()),
        ingress: Vec::new(),
        egress: Vec::new(),
    })
}

#[derive(Debug, Clone)]
pub struct ClusterPolicyBuilder(ClusterNetworkPolicy);

impl ClusterPolicyBuilder {
    pub fn priority(mut self, priority: u16) -> Self {
        self.0.priority = priority;
        self
    }

    pub fn namespaces(mut self, text: &str) -> Self {
        self.0.subject = ClusterSubject::Namespaces(selector(text));
        self
    }

    pub fn pods(mut self, namespaces: &str, pods: &str) -> Self {
        self.0.subject = ClusterSubject::Pods { namespaces: selector(namespaces), pods: selector(pods) };
        self
    }

    pub fn ingress<const N: usize>(mut self, rules: [ClusterRule; N]) -> Self {
        self.0.ingress = rules.into();
        self
    }

    pub fn egress<const N: usize>(mut self, rules: [ClusterRule; N]) -> Self {
        self.0.egress = rules.into();
        self
    }
}

impl From<ClusterPolicyBuilder> for WorldChange {
    fn from(builder: ClusterPolicyBuilder) -> Self {
        Self::SetClusterPolicy(builder.0)
    }
}

/// A rule without protocols.
pub fn cluster_rule<const N: usize>(action: ClusterAction, peers: [ClusterPeer; N]) -> ClusterRule {
    ClusterRule { name: None, action, peers: peers.into(), protocols: Vec::new() }
}

/// The rule, limited to ports: `tcp/80` or `*/http` for a named port of any protocol.
pub fn cluster_ports<const N: usize>(rule: ClusterRule, ports: [&str; N]) -> ClusterRule {
    let protocol = |text: &str| match text.strip_prefix("*/") {
        Some(name) => ClusterProtocol::NamedPort(name.to_owned()),
        None => {
            let (protocol, port): (_, PortMatch) = port(text);
            ClusterProtocol::Ports { protocol, port }
        }
    };
    ClusterRule { protocols: ports.map(protocol).into(), ..rule }
}

pub fn namespaces_peer(text: &str) -> ClusterPeer {
    ClusterPeer::Namespaces(selector(text))
}

pub fn pods_peer(namespaces: &str, pods: &str) -> ClusterPeer {
    ClusterPeer::Pods { namespaces: selector(namespaces), pods: selector(pods) }
}

pub fn nodes_peer(text: &str) -> ClusterPeer {
    ClusterPeer::Nodes(selector(text))
}

pub fn networks_peer(blocks: &[&str]) -> ClusterPeer {
    ClusterPeer::Networks(blocks.iter().map(|text| net(text)).collect())
}
