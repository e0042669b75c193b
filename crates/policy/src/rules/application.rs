//! The rules of group policies and NetworkPolicies.

use std::cmp::Reverse;

use model::objects::{
    Direction, GroupPeer, GroupPolicy, GroupRule, NamespaceScope, NetworkPolicy, NetworkPolicyPeer,
    NetworkPolicyPort, NetworkPolicyRule, PortMatch, PortRange, RuleAction, RuleProtocol,
};
use types::GroupName;

use super::cluster::deny_all;
use super::{JudgeRule, PolicyTier, PortName, RuleInputs, RuleOutcome, RulePeers, RuleSource, RuleTraffic};
use crate::predicate::{NamespaceCondition, Predicate};
use crate::problems::PolicyObject;
use crate::profile::ProfileKey;
use crate::traffic::{TrafficSet, with_ports};

/// IP protocol numbers of ICMP and ICMPv6.
const ICMP: [u8; 2] = [1, 58];

/// A pod always reaches itself and its own node, unless a ClusterNetworkPolicy denies it.
fn self_and_own_node(tier: PolicyTier) -> JudgeRule {
    JudgeRule {
        tier,
        peers: RulePeers::AnyOf(vec![Predicate::OwnNode]),
        matches_self: true,
        traffic: RuleTraffic::all(),
        outcome: RuleOutcome::NextTier,
        source: RuleSource::SelfOrOwnNode,
    }
}

pub(super) fn push_group_rules(
    rules: &mut Vec<JudgeRule>,
    inputs: RuleInputs<'_>,
    key: &ProfileKey,
    direction: Direction,
) {
    let Some(group) = &key.group else { return };
    let mut ordered = Vec::new();
    for policy in inputs.world.group_policies_of(&key.tenant, group) {
        let policy = match policy {
            Ok(policy) => policy,
            // It may deny what a rule of any other policy allows, so it comes first.
            Err(missing) => {
                let first = (Reverse(u8::MAX), GroupRule::UNASSIGNED);
                ordered.push((first, deny_all(PolicyTier::Group, RuleSource::NotCompiled(missing))));
                continue;
            }
        };
        let of_direction = || policy.rules.iter().filter(|rule| rule.direction == direction);
        let object = PolicyObject::GroupPolicy { tenant: policy.tenant.clone(), name: policy.name.clone() };
        if !inputs.suspended.contains(&object) {
            ordered.extend(of_direction().map(|rule| (rule.order(), group_rule(group, policy, rule))));
        } else if let Some(first) = of_direction().map(GroupRule::order).min() {
            ordered.push((first, deny_all(PolicyTier::Group, RuleSource::NotCompiled(object))));
        }
    }
    if ordered.is_empty() {
        return;
    }
    ordered.sort_by_key(|(order, _)| *order);
    rules.push(self_and_own_node(PolicyTier::Group));
    rules.extend(ordered.into_iter().map(|(_, rule)| rule));
}

fn group_rule(group: &GroupName, policy: &GroupPolicy, rule: &GroupRule) -> JudgeRule {
    let tenant = policy.tenant.clone();
    JudgeRule {
        tier: PolicyTier::Group,
        peers: match &rule.peer {
            GroupPeer::Any => RulePeers::All,
            GroupPeer::Group(peer) => RulePeers::AnyOf(vec![Predicate::Group(tenant, peer.clone())]),
            GroupPeer::Network(peer) => RulePeers::AnyOf(vec![Predicate::Network(tenant, peer.clone())]),
            GroupPeer::Block(cidr) => {
                RulePeers::AnyOf(vec![Predicate::Block { cidr: *cidr, except: Vec::new() }])
            }
        },
        matches_self: false,
        traffic: RuleTraffic { fixed: group_traffic(rule), named: Vec::new() },
        outcome: match rule.action {
            RuleAction::Allow => RuleOutcome::NextTier,
            RuleAction::Deny => RuleOutcome::Drop,
        },
        source: RuleSource::GroupRule { group: group.clone(), policy: policy.name.clone(), id: rule.id },
    }
}

/// A rule with ports matches no protocol without ports.
fn group_traffic(rule: &GroupRule) -> TrafficSet {
    let range = rule.ports.unwrap_or(PortRange::ALL);
    match (rule.protocol, rule.ports) {
        (RuleProtocol::Any, None) => TrafficSet::all(),
        (RuleProtocol::Any, Some(range)) => TrafficSet::of_any_protocol(range),
        (RuleProtocol::WithPorts(protocol), _) => TrafficSet::of_ports(protocol, range),
        (RuleProtocol::Icmp, None) => {
            let [v4, v6] = ICMP.map(TrafficSet::of_protocol);
            v4.union(&v6)
        }
        (RuleProtocol::Number(number), ports) => match (with_ports(number), ports) {
            (Some(protocol), _) => TrafficSet::of_ports(protocol, range),
            (None, None) => TrafficSet::of_protocol(number),
            (None, Some(_)) => TrafficSet::none(),
        },
        (RuleProtocol::Icmp, Some(_)) => TrafficSet::none(),
    }
}

pub(super) fn push_network_policies(
    rules: &mut Vec<JudgeRule>,
    inputs: RuleInputs<'_>,
    key: &ProfileKey,
    direction: Direction,
) {
    let Some(namespace) = &key.namespace else { return };
    let policies = inputs.world.network_policies_of(namespace);
    let isolating: Vec<_> = policies
        .filter(|policy| key.network_policies.contains(&policy.name) && policy.rules(direction).is_some())
        .collect();
    if isolating.is_empty() {
        return;
    }
    rules.push(self_and_own_node(PolicyTier::NetworkPolicy));
    for policy in &isolating {
        let object =
            PolicyObject::NetworkPolicy { namespace: policy.namespace.clone(), name: policy.name.clone() };
        if inputs.suspended.contains(&object) {
            continue;
        }
        for (number, rule) in policy.rules(direction).into_iter().flatten().enumerate() {
            let mut rule = network_policy_rule(policy, number, rule);
            if direction == Direction::Ingress {
                rule.traffic = rule.traffic.resolve_at_subject(&key.ports);
            }
            if !rule.traffic.is_empty() {
                rules.push(rule);
            }
        }
    }
    let policies = isolating.iter().map(|policy| policy.name.clone()).collect();
    let source = RuleSource::Isolated { namespace: namespace.clone(), policies };
    rules.push(deny_all(PolicyTier::NetworkPolicy, source));
}

fn network_policy_rule(policy: &NetworkPolicy, number: usize, rule: &NetworkPolicyRule) -> JudgeRule {
    let peer = |peer: &NetworkPolicyPeer| match peer {
        NetworkPolicyPeer::Pods { namespaces, pods } => Predicate::Pods {
            namespaces: match namespaces {
                NamespaceScope::Own => NamespaceCondition::Named(policy.namespace.clone()),
                NamespaceScope::Matching(selector) => NamespaceCondition::Matching(selector.clone()),
            },
            pods: pods.clone(),
        },
        NetworkPolicyPeer::Block { cidr, except } => Predicate::Block { cidr: *cidr, except: except.clone() },
    };
    JudgeRule {
        tier: PolicyTier::NetworkPolicy,
        peers: if rule.peers.is_empty() {
            RulePeers::All
        } else {
            RulePeers::AnyOf(rule.peers.iter().map(peer).collect())
        },
        matches_self: false,
        traffic: network_policy_traffic(&rule.ports),
        outcome: RuleOutcome::Accept,
        source: RuleSource::NetworkPolicy {
            namespace: policy.namespace.clone(),
            name: policy.name.clone(),
            rule: number,
        },
    }
}

fn network_policy_traffic(ports: &[NetworkPolicyPort]) -> RuleTraffic {
    if ports.is_empty() {
        return RuleTraffic::all();
    }
    let mut traffic = RuleTraffic::default();
    for NetworkPolicyPort { protocol, port } in ports {
        let mut add = |range| traffic.fixed = traffic.fixed.union(&TrafficSet::of_ports(*protocol, range));
        match port {
            PortMatch::All => add(PortRange::ALL),
            PortMatch::Range(range) => add(*range),
            PortMatch::Named(name) => {
                traffic.named.push(PortName { protocol: Some(*protocol), name: name.clone() });
            }
        }
    }
    traffic
}
