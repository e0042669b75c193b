//! Tier 3, second part: NetworkPolicy.

use model::objects::{Direction, NamespaceScope, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyRule};
use policy::PodEntry;

use super::peer::namespace_labels;
use super::{JudgedEnd, NaiveJudgement, NaiveTier};

/// "Isolated and unmatched = deny." A pod that no policy isolates in this direction is left to the next tier. "A pod always reaches
/// itself." "Pod → own node is exempt from NetworkPolicy."
pub(super) fn judge(question: &JudgedEnd<'_>) -> Option<NaiveJudgement> {
    if question.peer.is_itself() || question.peer.is_own_node(question.pod) {
        return None;
    }
    let isolating: Vec<_> = question
        .world
        .network_policies
        .values()
        .filter(|policy| selects(policy, question.pod))
        .filter_map(|policy| rules(policy, question.direction).map(|rules| (policy, rules)))
        .collect();
    if isolating.is_empty() {
        return None;
    }
    let is_allowed =
        isolating.iter().any(|(policy, rules)| rules.iter().any(|rule| matches(question, policy, rule)));
    Some(if is_allowed {
        NaiveJudgement::accept(NaiveTier::NetworkPolicy)
    } else {
        NaiveJudgement::drop(NaiveTier::NetworkPolicy)
    })
}

/// "Host-network pods are never subjects."
fn selects(policy: &NetworkPolicy, pod: &PodEntry) -> bool {
    pod.addresses.is_some()
        && pod.identity.namespace.as_ref() == Some(&policy.namespace)
        && policy.subjects.matches(&pod.identity.labels)
}

fn rules(policy: &NetworkPolicy, direction: Direction) -> Option<&Vec<NetworkPolicyRule>> {
    match direction {
        Direction::Ingress => policy.ingress.as_ref(),
        Direction::Egress => policy.egress.as_ref(),
    }
}

/// "Empty or missing from/to/ports = everything."
fn matches(question: &JudgedEnd<'_>, policy: &NetworkPolicy, rule: &NetworkPolicyRule) -> bool {
    let matches_peers =
        rule.peers.is_empty() || rule.peers.iter().any(|peer| matches_peer(question, policy, peer));
    let matches_ports =
        rule.ports.is_empty() || rule.ports.iter().any(|one| question.matches_port(one.protocol, &one.port));
    matches_peers && matches_ports
}

/// "One peer with both selectors = AND, two peers = OR." "Host-network pods match no selector."
fn matches_peer(question: &JudgedEnd<'_>, policy: &NetworkPolicy, peer: &NetworkPolicyPeer) -> bool {
    match peer {
        NetworkPolicyPeer::Pods { namespaces, pods } => {
            let Some(pod) = question.peer.pod() else { return false };
            let Some(namespace) = &pod.identity.namespace else { return false };
            let is_in_scope = match namespaces {
                NamespaceScope::Own => *namespace == policy.namespace,
                NamespaceScope::Matching(selector) => {
                    selector.matches(&namespace_labels(question.world, namespace))
                }
            };
            is_in_scope && pods.matches(&pod.identity.labels)
        }
        NetworkPolicyPeer::Block { cidr, except } => question.peer.is_in_block(cidr, except),
    }
}
