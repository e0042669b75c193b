//! Objects that are not, or not completely, in force.

use std::collections::BTreeSet;
use std::fmt;

use model::objects::{ClusterAction, ClusterNetworkPolicy, ClusterPeer, Direction};
use types::{GroupName, TenantName};

use crate::direction::DIRECTIONS;
use crate::numbers::TenantSlots;
use crate::world::World;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyObject {
    Tenant(TenantName),
    Group { tenant: TenantName, name: GroupName },
    GroupPolicy { tenant: TenantName, name: String },
    NetworkPolicy { namespace: String, name: String },
    ClusterNetworkPolicy(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyProblem {
    pub object: PolicyObject,
    pub reason: ProblemReason,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProblemReason {
    /// With it, the firewall would need more elements than the limit. It isolates its subjects and allows nothing.
    TooLarge { elements: usize, limit: usize },
    /// A rule names domains, which are not supported. These peers match nothing.
    DomainNames { direction: Direction, rule: usize },
    /// A rule has a kind of peer that this version does not know.
    UnknownPeer { direction: Direction, rule: usize, action: ClusterAction },
    /// A group or policy that applies to pods of this node does not exist, or no version of it could be read.
    Missing,
    /// There are more tenants than numbers for them. Its pods are closed, and unknown to other pods.
    TooManyTenants,
}

impl fmt::Display for PolicyObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tenant(name) => write!(f, "tenant {name}"),
            Self::Group { tenant, name } => write!(f, "group {name} of tenant {tenant}"),
            Self::GroupPolicy { tenant, name } => write!(f, "policy {name} of tenant {tenant}"),
            Self::NetworkPolicy { namespace, name } => write!(f, "NetworkPolicy {namespace}/{name}"),
            Self::ClusterNetworkPolicy(name) => write!(f, "ClusterNetworkPolicy {name}"),
        }
    }
}

impl fmt::Display for PolicyProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.reason)
    }
}

fn direction_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    }
}

impl fmt::Display for ProblemReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { elements, limit } => write!(
                f,
                "the firewall would need {elements} elements with it, and the limit is {limit}; it isolates its pods and allows nothing"
            ),
            Self::DomainNames { direction, rule } => write!(
                f,
                "{} rule {rule} has domain names, which are not supported and match nothing",
                direction_name(*direction)
            ),
            Self::UnknownPeer { direction, rule, action } => {
                let effect = match action {
                    ClusterAction::Accept => "this peer matches nothing",
                    ClusterAction::Deny | ClusterAction::Pass => "the rule denies all flows",
                };
                let direction = direction_name(*direction);
                write!(f, "{direction} rule {rule} has a kind of peer that is not supported; {effect}")
            }
            Self::Missing => f.write_str("it is missing or cannot be read; its pods are closed"),
            Self::TooManyTenants => f.write_str("there are too many tenants; its pods are closed"),
        }
    }
}

/// Peers of ClusterNetworkPolicies that are not supported.
pub(crate) fn unsupported_peers(world: &World) -> Vec<PolicyProblem> {
    let mut problems = Vec::new();
    for policy in world.cluster_policies.values() {
        for direction in DIRECTIONS {
            push_unsupported(&mut problems, policy, direction);
        }
    }
    problems
}

fn push_unsupported(problems: &mut Vec<PolicyProblem>, policy: &ClusterNetworkPolicy, direction: Direction) {
    for (number, rule) in policy.rules(direction).iter().enumerate() {
        let mut push = |reason| {
            let object = PolicyObject::ClusterNetworkPolicy(policy.name.clone());
            problems.push(PolicyProblem { object, reason });
        };
        if rule.peers.contains(&ClusterPeer::DomainNames) {
            push(ProblemReason::DomainNames { direction, rule: number });
        }
        if rule.peers.contains(&ClusterPeer::Unknown) {
            push(ProblemReason::UnknownPeer { direction, rule: number, action: rule.action });
        }
    }
}

/// Groups of local pods, and policies that are bound to them, that are missing.
pub(crate) fn missing_objects(world: &World) -> BTreeSet<PolicyObject> {
    let subjects = world.pods.values().filter(|pod| pod.is_local_subject(&world.local_node));
    let placements = subjects.map(|pod| &pod.identity.placement);
    let groups: BTreeSet<_> = placements.filter_map(|one| Some((&one.tenant, one.group.as_ref()?))).collect();
    let policies = groups.into_iter().flat_map(|(tenant, group)| world.group_policies_of(tenant, group));
    policies.filter_map(Result::err).collect()
}

/// Tenants with pods, but without a slot.
pub(crate) fn refused_tenants(world: &World, slots: &TenantSlots) -> BTreeSet<TenantName> {
    let subjects = world.pods.values().filter(|pod| pod.is_subject());
    let tenants = subjects.map(|pod| &pod.identity.placement.tenant);
    tenants.filter(|tenant| !slots.has(tenant)).cloned().collect()
}
