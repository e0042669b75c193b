//! NetworkPolicy (networking.k8s.io/v1) in parsed form: defaults are filled in, so that the engine has no special cases.

use ipnet::IpNet;
use types::Protocol;

use super::{Direction, PortMatch};
use crate::selector::Selector;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkPolicy {
    pub namespace: String,
    pub name: String,
    /// Selects pods of its namespace. Pods of the host's network are never selected.
    pub subjects: Selector,
    /// None: the policy does not isolate its subjects in this direction. Without rules, it allows nothing.
    pub ingress: Option<Vec<NetworkPolicyRule>>,
    pub egress: Option<Vec<NetworkPolicyRule>>,
}

impl NetworkPolicy {
    /// None: it does not isolate its subjects in this direction.
    pub fn rules(&self, direction: Direction) -> Option<&[NetworkPolicyRule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }
}

/// Allows flows that match one of the peers and one of the ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkPolicyRule {
    /// Empty: all peers, also addresses of unknown pods.
    pub peers: Vec<NetworkPolicyPeer>,
    /// Empty: all protocols and ports, also ICMP.
    pub ports: Vec<NetworkPolicyPort>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkPolicyPeer {
    Pods {
        namespaces: NamespaceScope,
        pods: Selector,
    },
    /// All addresses of the block except some, also those of pods and nodes.
    Block {
        cidr: IpNet,
        except: Vec<IpNet>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamespaceScope {
    /// The namespace of the policy.
    Own,
    Matching(Selector),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkPolicyPort {
    pub protocol: Protocol,
    pub port: PortMatch,
}
