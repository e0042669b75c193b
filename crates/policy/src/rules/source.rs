//! The origin of a rule, for explanations.

use std::fmt;

use model::objects::NodeAccess;
use types::{GroupName, TenantName};

use crate::problems::PolicyObject;

/// Where a rule comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleSource {
    /// A rule of a ClusterNetworkPolicy, counted from 0 per direction.
    ClusterPolicy { name: String, rule: usize, rule_name: Option<String> },
    /// A rule of a ClusterNetworkPolicy with a kind of peer that this version does not know.
    UnknownPeer { name: String, rule: usize },
    /// Both ends belong to this tenant.
    SameTenant(TenantName),
    /// The peer is outside of the cluster.
    OutsideCluster,
    /// The peer is the pod's own node.
    OwnNode,
    /// The peer is another node: a setting of the pod's tenant.
    OtherNode { tenant: TenantName, access: NodeAccess },
    /// A share of this tenant.
    Share { tenant: TenantName, name: String },
    /// The peer's tenant is not this one, and no share allows the flow.
    NoShare(TenantName),
    /// The peer's address is inside a network of the cluster but belongs to no known pod.
    UnknownAddress,
    /// The peer is the pod itself or its own node.
    SelfOrOwnNode,
    /// A rule of a policy that is bound to the pod's group.
    GroupRule { group: GroupName, policy: String, id: u32 },
    /// A rule of a NetworkPolicy, counted from 0 per direction.
    NetworkPolicy { namespace: String, name: String, rule: usize },
    /// No rule of the NetworkPolicies that isolate the pod matches.
    Isolated { namespace: String, policies: Vec<String> },
    /// A policy that is not in force because of a problem.
    NotCompiled(PolicyObject),
}

impl fmt::Display for RuleSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClusterPolicy { name, rule, rule_name: None } => {
                write!(f, "ClusterNetworkPolicy {name}, rule {rule}")
            }
            Self::ClusterPolicy { name, rule, rule_name: Some(rule_name) } => {
                write!(f, "ClusterNetworkPolicy {name}, rule {rule} ({rule_name})")
            }
            Self::UnknownPeer { name, rule } => {
                write!(f, "ClusterNetworkPolicy {name}, rule {rule}, which has an unknown kind of peer")
            }
            Self::SameTenant(tenant) => write!(f, "both ends belong to tenant {tenant}"),
            Self::OutsideCluster => f.write_str("the peer is outside of the cluster"),
            Self::OwnNode => f.write_str("the peer is the pod's own node"),
            Self::OtherNode { tenant, access } => {
                let access = match access {
                    NodeAccess::Allow => "allow",
                    NodeAccess::Deny => "deny",
                };
                write!(f, "the peer is another node, and tenant {tenant} has nodes = {access}")
            }
            Self::Share { tenant, name } => write!(f, "share {name} of tenant {tenant}"),
            Self::NoShare(tenant) => {
                write!(f, "the peer is a pod of another tenant than {tenant}, without a share")
            }
            Self::UnknownAddress => f.write_str("the peer's address belongs to no known pod"),
            Self::SelfOrOwnNode => f.write_str("the peer is the pod itself or its own node"),
            Self::GroupRule { group, policy, id } => {
                write!(f, "group {group}, policy {policy}, rule id {id}")
            }
            Self::NetworkPolicy { namespace, name, rule } => {
                write!(f, "NetworkPolicy {namespace}/{name}, rule {rule}")
            }
            Self::Isolated { namespace, policies } => {
                write!(f, "isolated in namespace {namespace} by {}, and no rule matches", policies.join(", "))
            }
            Self::NotCompiled(object) => write!(f, "{object} is not in force because of a problem"),
        }
    }
}
