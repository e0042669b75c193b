//! Tier 3, first part: rules of groups.

use std::cmp::Reverse;

use model::objects::{GroupPeer, GroupRule, RuleAction, RuleProtocol};

use super::{JudgedEnd, NaiveJudgement, NaiveTier};

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// "A pod in a group is subject to the rules of all policies bound to the group, highest priority first, ties by rule id; the first
/// match decides." "Deny is final, allow passes on." A pod always reaches itself, and its own node is not judged.
pub(super) fn judge(question: &JudgedEnd<'_>) -> Option<NaiveJudgement> {
    if question.peer.is_itself() || question.peer.is_own_node(question.pod) {
        return None;
    }
    // "A policy that cannot be compiled still isolates its subjects and allows nothing." Its rules are unknown, so it decides first.
    let Some(mut rules) = bound_rules(question) else { return Some(NaiveJudgement::drop(NaiveTier::Group)) };
    rules.sort_by_key(|rule| (Reverse(rule.priority), rule.id));
    let first = rules.into_iter().find(|rule| matches(question, rule))?;
    match first.action {
        RuleAction::Allow => None,
        RuleAction::Deny => Some(NaiveJudgement::drop(NaiveTier::Group)),
    }
}

/// None: the group or one of its policies does not exist.
fn bound_rules<'a>(question: &JudgedEnd<'a>) -> Option<Vec<&'a GroupRule>> {
    let placement = &question.pod.identity.placement;
    let Some(group) = &placement.group else { return Some(Vec::new()) };
    let group = question.world.groups.get(&(placement.tenant.clone(), group.clone()))?;
    let mut rules = Vec::new();
    for name in &group.policies {
        let policy = question.world.group_policies.get(&(placement.tenant.clone(), name.clone()))?;
        rules.extend(policy.rules.iter().filter(|rule| rule.direction == question.direction));
    }
    Some(rules)
}

fn matches(question: &JudgedEnd<'_>, rule: &GroupRule) -> bool {
    matches_peer(question, &rule.peer) && matches_protocol(question, rule)
}

/// "Peers: group, network, CIDR or any." Groups and networks are those of the tenant.
fn matches_peer(question: &JudgedEnd<'_>, peer: &GroupPeer) -> bool {
    let tenant = &question.pod.identity.placement.tenant;
    let placement =
        question.peer.pod().map(|pod| &pod.identity.placement).filter(|one| one.tenant == *tenant);
    match peer {
        GroupPeer::Any => true,
        GroupPeer::Group(name) => placement.is_some_and(|one| one.group.as_ref() == Some(name)),
        GroupPeer::Network(id) => placement.is_some_and(|one| one.network == *id),
        GroupPeer::Block(block) => question.peer.is_in_block(block, &[]),
    }
}

/// Only TCP, UDP and SCTP have ports, so a rule with ports matches no other protocol.
fn matches_protocol(question: &JudgedEnd<'_>, rule: &GroupRule) -> bool {
    let number = question.flow.protocol;
    let is_protocol = match rule.protocol {
        RuleProtocol::Any => true,
        RuleProtocol::WithPorts(protocol) => number == protocol.number(),
        RuleProtocol::Icmp => number == ICMP || number == ICMPV6,
        RuleProtocol::Number(wanted) => number == wanted,
    };
    is_protocol && rule.ports.is_none_or(|range| question.flow.port.is_some_and(|port| range.contains(port)))
}
