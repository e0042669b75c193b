//! Tiers 1 and 4: ClusterNetworkPolicy.

use model::Selector;
use model::objects::{
    ClusterAction, ClusterNetworkPolicy, ClusterPeer, ClusterProtocol, ClusterRule, ClusterSubject,
    ClusterTier, Direction,
};
use policy::{PodEntry, World};

use super::peer::{Peer, namespace_labels};
use super::{JudgedEnd, NaiveJudgement, NaiveTier};

/// "Lower priority number wins, then name"; the rules of a policy in order. The first match decides: Accept and Deny are final, Pass
/// ends the tier.
pub(super) fn judge(question: &JudgedEnd<'_>, tier: ClusterTier) -> Option<NaiveJudgement> {
    let naive_tier = match tier {
        ClusterTier::Admin => NaiveTier::Admin,
        ClusterTier::Baseline => NaiveTier::Baseline,
    };
    for policy in in_order(question.world, tier) {
        if !selects(question.world, &policy.subject, question.pod) {
            continue;
        }
        let rules = match question.direction {
            Direction::Ingress => &policy.ingress,
            Direction::Egress => &policy.egress,
        };
        for rule in rules {
            match (rule.action, is_unknown(rule), matches(question, rule)) {
                // "An unknown kind of peer: Deny and Pass deny everything."
                (ClusterAction::Deny | ClusterAction::Pass, true, _) => {
                    return Some(NaiveJudgement::drop(naive_tier));
                }
                (ClusterAction::Accept, _, true) => return Some(NaiveJudgement::accept(naive_tier)),
                (ClusterAction::Deny, _, true) => return Some(NaiveJudgement::drop(naive_tier)),
                (ClusterAction::Pass, _, true) => return None,
                (_, _, false) => {}
            }
        }
    }
    None
}

fn in_order(world: &World, tier: ClusterTier) -> Vec<&ClusterNetworkPolicy> {
    let mut policies: Vec<_> = world.cluster_policies.values().filter(|policy| policy.tier == tier).collect();
    policies.sort_by_key(|policy| (policy.priority, &policy.name));
    policies
}

/// Subjects are pods of a namespace. "Host-network pods are never subjects."
fn selects(world: &World, subject: &ClusterSubject, pod: &PodEntry) -> bool {
    match subject {
        ClusterSubject::Namespaces(namespaces) => selects_pod(world, namespaces, &Selector::all(), pod),
        ClusterSubject::Pods { namespaces, pods } => selects_pod(world, namespaces, pods, pod),
    }
}

/// A pod without a namespace is never selected.
fn selects_pod(world: &World, namespaces: &Selector, pods: &Selector, pod: &PodEntry) -> bool {
    let Some(namespace) = &pod.identity.namespace else { return false };
    pod.addresses.is_some()
        && namespaces.matches(&namespace_labels(world, namespace))
        && pods.matches(&pod.identity.labels)
}

fn is_unknown(rule: &ClusterRule) -> bool {
    rule.peers.contains(&ClusterPeer::Unknown)
}

fn matches(question: &JudgedEnd<'_>, rule: &ClusterRule) -> bool {
    rule.peers.iter().any(|peer| matches_peer(question, peer)) && matches_protocols(question, rule)
}

fn matches_peer(question: &JudgedEnd<'_>, peer: &ClusterPeer) -> bool {
    let selects_peer = |namespaces, pods| {
        question.peer.pod().is_some_and(|pod| selects_pod(question.world, namespaces, pods, pod))
    };
    match peer {
        ClusterPeer::Namespaces(namespaces) => selects_peer(namespaces, &Selector::all()),
        ClusterPeer::Pods { namespaces, pods } => selects_peer(namespaces, pods),
        ClusterPeer::Nodes(selector) => {
            matches!(question.peer, Peer::Node { node, .. } if selector.matches(&node.labels))
        }
        ClusterPeer::Networks(blocks) => blocks.iter().any(|block| question.peer.is_in_block(block, &[])),
        // "`domainNames`: that Accept matches nothing."
        ClusterPeer::DomainNames | ClusterPeer::Unknown => false,
    }
}

/// Without protocols, a rule matches all traffic.
fn matches_protocols(question: &JudgedEnd<'_>, rule: &ClusterRule) -> bool {
    rule.protocols.is_empty()
        || rule.protocols.iter().any(|one| match one {
            ClusterProtocol::Ports { protocol, port } => question.matches_port(*protocol, port),
            ClusterProtocol::NamedPort(name) => question.matches_named_port(None, name),
        })
}
