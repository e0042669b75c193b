//! The rules between tenants: the own tenant, nodes and shares.

use model::objects::{Direction, NodeAccess, PortRange, Share, SharedPart};
use types::Protocol;

use super::cluster::deny_all;
use super::{JudgeRule, PolicyTier, RuleOutcome, RulePeers, RuleSource, RuleTraffic};
use crate::predicate::Predicate;
use crate::profile::ProfileKey;
use crate::traffic::TrafficSet;
use crate::world::World;

fn rule(peer: Predicate, outcome: RuleOutcome, source: RuleSource) -> JudgeRule {
    JudgeRule {
        tier: PolicyTier::Tenant,
        matches_self: false,
        peers: RulePeers::AnyOf(vec![peer]),
        traffic: RuleTraffic::all(),
        outcome,
        source,
    }
}

pub(super) fn push_rules(rules: &mut Vec<JudgeRule>, world: &World, key: &ProfileKey, direction: Direction) {
    let tenant = &key.tenant;
    let same = rule(
        Predicate::Tenant(tenant.clone()),
        RuleOutcome::NextTier,
        RuleSource::SameTenant(tenant.clone()),
    );
    rules.push(JudgeRule { matches_self: true, ..same });
    rules.push(rule(Predicate::Outside, RuleOutcome::NextTier, RuleSource::OutsideCluster));
    rules.push(rule(Predicate::OwnNode, RuleOutcome::NextTier, RuleSource::OwnNode));
    let access = world.tenants.get(tenant).map(|tenant| tenant.nodes).unwrap_or_default();
    let outcome = match access {
        NodeAccess::Allow => RuleOutcome::NextTier,
        NodeAccess::Deny => RuleOutcome::Drop,
    };
    let source = RuleSource::OtherNode { tenant: tenant.clone(), access };
    rules.push(rule(Predicate::OtherNodes, outcome, source));
    match direction {
        Direction::Ingress => push_own_shares(rules, world, key),
        Direction::Egress => push_shares_of_others(rules, world, key),
    }
    let no_share = RuleSource::NoShare(tenant.clone());
    rules.push(rule(Predicate::OtherTenants(tenant.clone()), RuleOutcome::Drop, no_share));
    rules.push(deny_all(PolicyTier::Tenant, RuleSource::UnknownAddress));
}

fn push_own_shares(rules: &mut Vec<JudgeRule>, world: &World, key: &ProfileKey) {
    let shares = world.shares_of(&key.tenant).filter(|share| key.shares.contains(&share.name));
    rules.extend(shares.map(|share| {
        let peers = if share.with.is_empty() {
            Predicate::OtherTenants(share.tenant.clone())
        } else {
            Predicate::Tenants(share.with.clone())
        };
        share_rule(share, peers)
    }));
}

fn push_shares_of_others(rules: &mut Vec<JudgeRule>, world: &World, key: &ProfileKey) {
    let is_shared = |share: &&Share| {
        share.tenant != key.tenant && (share.with.is_empty() || share.with.contains(&key.tenant))
    };
    rules.extend(world.shares.values().filter(is_shared).map(|share| {
        let tenant = share.tenant.clone();
        let peers = match &share.part {
            SharedPart::AllPods => Predicate::Tenant(tenant),
            SharedPart::Network(network) => Predicate::Network(tenant, network.clone()),
            SharedPart::Group(group) => Predicate::Group(tenant, group.clone()),
        };
        share_rule(share, peers)
    }));
}

fn share_rule(share: &Share, peers: Predicate) -> JudgeRule {
    let source = RuleSource::Share { tenant: share.tenant.clone(), name: share.name.clone() };
    let traffic = RuleTraffic { fixed: shared_traffic(&share.ports), named: Vec::new() };
    JudgeRule { traffic, ..rule(peers, RuleOutcome::NextTier, source) }
}

fn shared_traffic(ports: &[(Protocol, PortRange)]) -> TrafficSet {
    if ports.is_empty() {
        return TrafficSet::all();
    }
    let sets = ports.iter().map(|(protocol, range)| TrafficSet::of_ports(*protocol, *range));
    sets.fold(TrafficSet::none(), |union, set| union.union(&set))
}
