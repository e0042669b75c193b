//! The rules of ClusterNetworkPolicies.

use model::objects::{
    ClusterAction, ClusterNetworkPolicy, ClusterPeer, ClusterProtocol, ClusterRule, ClusterSubject,
    ClusterTier, Direction, PortMatch, PortRange,
};

use super::{JudgeRule, PolicyTier, PortName, RuleInputs, RuleOutcome, RulePeers, RuleSource, RuleTraffic};
use crate::predicate::{NamespaceCondition, Predicate};
use crate::problems::PolicyObject;
use crate::profile::{ProfileKey, cluster_order};
use crate::traffic::TrafficSet;

fn is_in_tier(policy: &ClusterNetworkPolicy, tier: PolicyTier) -> bool {
    match policy.tier {
        ClusterTier::Admin => tier == PolicyTier::Admin,
        ClusterTier::Baseline => tier == PolicyTier::Baseline,
    }
}

/// The conditions of a rule's peers. None: it denies all flows, because it has an unknown kind of peer.
pub(crate) fn cluster_peers(rule: &ClusterRule) -> Option<Vec<Predicate>> {
    let mut predicates = Vec::new();
    for peer in &rule.peers {
        match peer {
            ClusterPeer::Namespaces(selector) => predicates.push(Predicate::Pods {
                namespaces: NamespaceCondition::Matching(selector.clone()),
                pods: model::Selector::all(),
            }),
            ClusterPeer::Pods { namespaces, pods } => predicates.push(Predicate::Pods {
                namespaces: NamespaceCondition::Matching(namespaces.clone()),
                pods: pods.clone(),
            }),
            ClusterPeer::Nodes(selector) => predicates.push(Predicate::Nodes(selector.clone())),
            ClusterPeer::Networks(cidrs) => predicates
                .extend(cidrs.iter().map(|cidr| Predicate::Block { cidr: *cidr, except: Vec::new() })),
            ClusterPeer::DomainNames => {}
            ClusterPeer::Unknown => match rule.action {
                ClusterAction::Accept => {}
                ClusterAction::Deny | ClusterAction::Pass => return None,
            },
        }
    }
    Some(predicates)
}

fn traffic(rule: &ClusterRule) -> RuleTraffic {
    if rule.protocols.is_empty() {
        return RuleTraffic::all();
    }
    let mut traffic = RuleTraffic::default();
    let mut add = |protocol, range| {
        traffic.fixed = traffic.fixed.union(&TrafficSet::of_ports(protocol, range));
    };
    for one in &rule.protocols {
        match one {
            ClusterProtocol::Ports { protocol, port: PortMatch::All } => add(*protocol, PortRange::ALL),
            ClusterProtocol::Ports { protocol, port: PortMatch::Range(range) } => add(*protocol, *range),
            ClusterProtocol::Ports { protocol: _, port: PortMatch::Named(_) }
            | ClusterProtocol::NamedPort(_) => {}
        }
    }
    traffic.named = rule.protocols.iter().filter_map(port_name).collect();
    traffic
}

fn port_name(protocol: &ClusterProtocol) -> Option<PortName> {
    match protocol {
        ClusterProtocol::Ports { protocol, port: PortMatch::Named(name) } => {
            Some(PortName { protocol: Some(*protocol), name: name.clone() })
        }
        ClusterProtocol::NamedPort(name) => Some(PortName { protocol: None, name: name.clone() }),
        ClusterProtocol::Ports { protocol: _, port: PortMatch::All | PortMatch::Range(_) } => None,
    }
}

fn judge_rule(policy: &ClusterNetworkPolicy, number: usize, rule: &ClusterRule) -> JudgeRule {
    let tier = match policy.tier {
        ClusterTier::Admin => PolicyTier::Admin,
        ClusterTier::Baseline => PolicyTier::Baseline,
    };
    let name = policy.name.clone();
    let Some(peers) = cluster_peers(rule) else {
        return deny_all(tier, RuleSource::UnknownPeer { name, rule: number });
    };
    JudgeRule {
        tier,
        peers: RulePeers::AnyOf(peers),
        matches_self: false,
        traffic: traffic(rule),
        outcome: match rule.action {
            ClusterAction::Accept => RuleOutcome::Accept,
            ClusterAction::Deny => RuleOutcome::Drop,
            ClusterAction::Pass => RuleOutcome::NextTier,
        },
        source: RuleSource::ClusterPolicy { name, rule: number, rule_name: rule.name.clone() },
    }
}

pub(super) fn deny_all(tier: PolicyTier, source: RuleSource) -> JudgeRule {
    JudgeRule {
        tier,
        peers: RulePeers::All,
        matches_self: true,
        traffic: RuleTraffic::all(),
        outcome: RuleOutcome::Drop,
        source,
    }
}

fn not_compiled(inputs: RuleInputs<'_>, policy: &ClusterNetworkPolicy) -> Option<PolicyObject> {
    let object = PolicyObject::ClusterNetworkPolicy(policy.name.clone());
    inputs.suspended.contains(&object).then_some(object)
}

pub(super) fn push_rules(
    rules: &mut Vec<JudgeRule>,
    (inputs, key): (RuleInputs<'_>, &ProfileKey),
    tier: PolicyTier,
    direction: Direction,
) {
    for (position, name) in key.cluster_policies.iter().enumerate() {
        let Some(policy) = inputs.world.cluster_policies.get(name) else { continue };
        if !is_in_tier(policy, tier) || policy.rules(direction).is_empty() {
            continue;
        }
        if let Some(object) = not_compiled(inputs, policy) {
            rules.push(deny_all(tier, RuleSource::NotCompiled(object)));
            continue;
        }
        for (number, rule) in policy.rules(direction).iter().enumerate() {
            let mut rule = judge_rule(policy, number, rule);
            rule.matches_self |= key.self_rules.contains(&(position, direction, number));
            if direction == Direction::Ingress {
                rule.traffic = rule.traffic.resolve_at_subject(&key.ports);
            }
            if !rule.traffic.is_empty() {
                rules.push(rule);
            }
        }
    }
}

/// The Admin rules that apply to all pods with a namespace, except rules for all peers. A rule with a port name of the subject is
/// not the same for all of them, so the list ends before it.
pub(crate) fn universal_rules(inputs: RuleInputs<'_>, direction: Direction) -> Vec<JudgeRule> {
    let is_universal = |subject: &ClusterSubject| match subject {
        ClusterSubject::Namespaces(selector) => selector.requirements.is_empty(),
        ClusterSubject::Pods { namespaces, pods } => {
            namespaces.requirements.is_empty() && pods.requirements.is_empty()
        }
    };
    let policies = inputs.world.cluster_policies.values();
    let mut policies: Vec<_> = policies
        .filter(|policy| is_in_tier(policy, PolicyTier::Admin) && is_universal(&policy.subject))
        .filter(|policy| not_compiled(inputs, policy).is_none())
        .collect();
    policies.sort_by_key(|policy| cluster_order(policy));
    let rules = policies.into_iter().flat_map(|policy| {
        let rules = policy.rules(direction).iter().enumerate();
        rules.map(move |(number, rule)| judge_rule(policy, number, rule))
    });
    let is_same_for_all = |rule: &JudgeRule| {
        rule.peers != RulePeers::All && (direction == Direction::Egress || rule.traffic.named.is_empty())
    };
    rules.take_while(is_same_for_all).collect()
}
