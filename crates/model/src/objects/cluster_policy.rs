//! ClusterNetworkPolicy (policy.networking.k8s.io/v1alpha2) in parsed form.

use ipnet::IpNet;
use types::Protocol;

use super::{Direction, PortMatch};
use crate::selector::Selector;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterNetworkPolicy {
    pub name: String,
    pub tier: ClusterTier,
    /// 0 to 1000. Policies with a lower number are evaluated first, those with equal numbers by name.
    pub priority: u16,
    pub subject: ClusterSubject,
    /// At most 25. The first match decides.
    pub ingress: Vec<ClusterRule>,
    pub egress: Vec<ClusterRule>,
}

impl ClusterNetworkPolicy {
    pub fn rules(&self, direction: Direction) -> &[ClusterRule] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClusterTier {
    /// Before tenants and all other policies.
    Admin,
    /// After all other policies.
    Baseline,
}

/// Pods of the host's network are never selected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterSubject {
    Namespaces(Selector),
    Pods { namespaces: Selector, pods: Selector },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterRule {
    pub name: Option<String>,
    pub action: ClusterAction,
    /// At least one. A rule matches if one of them matches.
    pub peers: Vec<ClusterPeer>,
    /// Empty: all protocols and ports.
    pub protocols: Vec<ClusterProtocol>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterAction {
    /// Final.
    Accept,
    /// Final.
    Deny,
    /// Ends this tier; the next one decides.
    Pass,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterPeer {
    Namespaces(Selector),
    Pods {
        namespaces: Selector,
        pods: Selector,
    },
    /// Only in egress rules: the nodes that the selector matches.
    Nodes(Selector),
    /// Only in egress rules: all addresses of the blocks, also those of pods and nodes.
    Networks(Vec<IpNet>),
    /// Only in egress rules of action Accept. Not supported: matches nothing.
    DomainNames,
    /// A kind that this version does not know. In an Accept rule, this peer matches nothing. A Deny or Pass rule with such a peer
    /// denies all flows of its direction.
    Unknown,
}

/// Which protocol and destination port a rule matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterProtocol {
    Ports {
        protocol: Protocol,
        port: PortMatch,
    },
    /// A container port of the destination, of any protocol.
    NamedPort(String),
}
