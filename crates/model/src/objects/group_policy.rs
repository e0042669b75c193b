use std::cmp::Reverse;
use std::fmt;

use ipnet::IpNet;
use types::{GroupName, NetworkId, Protocol, TenantName};

use super::{Direction, PortRange};

/// A named set of pods of a tenant. The policies of all groups of a tenant form one ordered list of rules per group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub tenant: TenantName,
    pub name: GroupName,
    /// Names of policies of the same tenant.
    pub policies: Vec<String>,
}

/// Rules for the groups to which it is bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupPolicy {
    pub tenant: TenantName,
    pub name: String,
    pub rules: Vec<GroupRule>,
}

/// The first matching rule decides: the highest priority first, equal priorities by id. Deny is final. Allow passes on to the
/// policies of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupRule {
    /// Unique in the whole cluster. The catalog assigns it; until then it is [`GroupRule::UNASSIGNED`].
    pub id: u32,
    pub direction: Direction,
    /// 1 to 100. A higher number wins.
    pub priority: u8,
    pub peer: GroupPeer,
    pub protocol: RuleProtocol,
    /// None: all ports. Only TCP, UDP and SCTP have ports.
    pub ports: Option<PortRange>,
    pub action: RuleAction,
}

impl GroupRule {
    pub const UNASSIGNED: u32 = 0;

    /// Rules are evaluated in this order: the highest priority first, equal priorities by id.
    pub fn order(&self) -> (Reverse<u8>, u32) {
        (Reverse(self.priority), self.id)
    }

    /// Protocol and port: `tcp/5432`, `icmp` or `any`.
    pub fn traffic(&self) -> String {
        let protocol = match self.protocol {
            RuleProtocol::Any => "any".to_owned(),
            RuleProtocol::WithPorts(protocol) => protocol.to_string(),
            RuleProtocol::Icmp => "icmp".to_owned(),
            RuleProtocol::Number(number) => number.to_string(),
        };
        match self.ports {
            Some(ports) => format!("{protocol}/{ports}"),
            None => protocol,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupPeer {
    Any,
    /// Pods of a group of the same tenant.
    Group(GroupName),
    /// Pods of a network of the same tenant.
    Network(NetworkId),
    /// All addresses of the block, also those of pods and nodes.
    Block(IpNet),
}

impl fmt::Display for GroupPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Group(name) => write!(f, "group:{name}"),
            Self::Network(name) => write!(f, "network:{name}"),
            Self::Block(block) => write!(f, "{block}"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleProtocol {
    Any,
    WithPorts(Protocol),
    /// ICMP and ICMPv6.
    Icmp,
    /// An IP protocol number.
    Number(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleAction {
    Allow,
    Deny,
}

impl fmt::Display for RuleAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        })
    }
}
