//! Policies, groups, shares and tenants. Names are few, so objects refer to each other often.

use std::collections::BTreeSet;

use ipnet::IpNet;
use model::objects::{
    ClusterAction, ClusterNetworkPolicy, ClusterPeer, ClusterProtocol, ClusterRule, ClusterSubject,
    ClusterTier, Direction, Group, GroupPeer, GroupPolicy, GroupRule, NamespaceScope, NetworkPolicy,
    NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicyRule, NodeAccess, PortMatch, PortRange, RuleAction,
    RuleProtocol, Share, SharedPart, Tenant,
};
use model::{LabelOperator, LabelRequirement, Selector};
use policy::WorldChange;
use types::{GroupName, TenantName};

use super::pods::{namespace_name, protocol};
use super::{GROUPS, KEYS, NETWORKS, PORT_NAMES, VALUES};
use crate::Dice;
use crate::build::{named, net};

/// Nested blocks that contain pods, nodes and the world. Some have host bits.
const BLOCKS: [&str; 22] = [
    "0.0.0.0/0",
    "::/0",
    "10.0.0.0/8",
    "10.83.0.0/16",
    "10.83.1.0/24",
    "10.83.1.77/24",
    "10.83.1.8/29",
    "10.83.1.12/32",
    "10.83.2.0/24",
    "10.84.0.0/16",
    "10.84.1.0/24",
    "192.168.0.0/24",
    "192.168.0.1/32",
    "192.168.0.2/32",
    "203.0.113.0/24",
    "203.0.113.128/25",
    "fd00::/16",
    "fd00:88::/32",
    "fd00:88:1::/48",
    "fd00:88:1::12/128",
    "fd00:1::2/128",
    "2001:db8::/32",
];

pub(super) const POLICIES: [&str; 4] = ["p", "q", "r", "s"];

pub(super) fn network_policy(dice: &mut Dice) -> WorldChange {
    let mut rules = |percent: usize| dice.chance(percent).then(|| dice.list(0, 3, network_rule));
    let (ingress, egress) = (rules(60), rules(50));
    WorldChange::SetNetworkPolicy(NetworkPolicy {
        namespace: namespace_name(dice),
        name: (dice.pick(&POLICIES)).to_owned(),
        subjects: selector(dice),
        ingress,
        egress,
    })
}

fn network_rule(dice: &mut Dice) -> NetworkPolicyRule {
    let peers = if dice.chance(20) { Vec::new() } else { dice.list(1, 2, network_peer) };
    let port = |dice: &mut Dice| NetworkPolicyPort { protocol: protocol(dice), port: port_match(dice) };
    let ports = if dice.chance(35) { Vec::new() } else { dice.list(1, 3, port) };
    NetworkPolicyRule { peers, ports }
}

fn network_peer(dice: &mut Dice) -> NetworkPolicyPeer {
    if dice.chance(35) {
        let cidr = block(dice);
        let inner: Vec<IpNet> =
            BLOCKS.into_iter().map(net).filter(|one| *one != cidr && cidr.contains(one)).collect();
        let except = if inner.is_empty() { Vec::new() } else { dice.list(0, 2, |dice| dice.pick(&inner)) };
        return NetworkPolicyPeer::Block { cidr, except };
    }
    let namespaces =
        if dice.chance(50) { NamespaceScope::Own } else { NamespaceScope::Matching(selector(dice)) };
    NetworkPolicyPeer::Pods { namespaces, pods: selector(dice) }
}

pub(super) fn cluster_policy(dice: &mut Dice) -> WorldChange {
    let mut rules =
        |peer: fn(&mut Dice, ClusterAction) -> ClusterPeer| dice.list(0, 3, |dice| cluster_rule(dice, peer));
    let (ingress, egress) = (rules(pod_peer), rules(any_peer));
    let subject = if dice.chance(60) {
        ClusterSubject::Namespaces(selector(dice))
    } else {
        ClusterSubject::Pods { namespaces: selector(dice), pods: selector(dice) }
    };
    WorldChange::SetClusterPolicy(ClusterNetworkPolicy {
        name: (dice.pick(&POLICIES)).to_owned(),
        tier: if dice.chance(55) { ClusterTier::Admin } else { ClusterTier::Baseline },
        priority: dice.pick(&[0, 5, 5, 1000]),
        subject,
        ingress,
        egress,
    })
}

fn cluster_rule(dice: &mut Dice, peer: fn(&mut Dice, ClusterAction) -> ClusterPeer) -> ClusterRule {
    let action = dice.pick(&[ClusterAction::Accept, ClusterAction::Deny, ClusterAction::Pass]);
    let protocol = |dice: &mut Dice| {
        if dice.chance(25) {
            ClusterProtocol::NamedPort((dice.pick(&PORT_NAMES)).to_owned())
        } else {
            ClusterProtocol::Ports { protocol: protocol(dice), port: port_match(dice) }
        }
    };
    ClusterRule {
        name: None,
        action,
        peers: dice.list(1, 2, |dice| peer(dice, action)),
        protocols: if dice.chance(40) { Vec::new() } else { dice.list(1, 3, protocol) },
    }
}

fn pod_peer(dice: &mut Dice, _: ClusterAction) -> ClusterPeer {
    match dice.below(20) {
        0 => ClusterPeer::Unknown,
        1..=9 => ClusterPeer::Namespaces(selector(dice)),
        _ => ClusterPeer::Pods { namespaces: selector(dice), pods: selector(dice) },
    }
}

/// The peers of egress rules.
fn any_peer(dice: &mut Dice, action: ClusterAction) -> ClusterPeer {
    match dice.below(20) {
        0..=2 => ClusterPeer::Nodes(selector(dice)),
        3..=6 => ClusterPeer::Networks(dice.list(1, 2, block)),
        7 if action == ClusterAction::Accept => ClusterPeer::DomainNames,
        _ => pod_peer(dice, action),
    }
}

pub(super) fn group(dice: &mut Dice) -> WorldChange {
    let (tenant, name) = (named(tenant_name(dice)), named(dice.pick(&GROUPS)));
    group_named(dice, tenant, name)
}

pub(super) fn group_named(dice: &mut Dice, tenant: TenantName, name: GroupName) -> WorldChange {
    let policies = dice.list(1, 3, |dice| (dice.pick(&POLICIES)).to_owned());
    WorldChange::SetGroup(Group { tenant, name, policies })
}

pub(super) fn group_policy(dice: &mut Dice) -> WorldChange {
    let (tenant, name) = (named(tenant_name(dice)), (dice.pick(&POLICIES)).to_owned());
    group_policy_named(dice, tenant, name)
}

pub(super) fn group_policy_named(dice: &mut Dice, tenant: TenantName, name: String) -> WorldChange {
    WorldChange::SetGroupPolicy(GroupPolicy { tenant, name, rules: dice.list(1, 4, group_rule) })
}

fn group_rule(dice: &mut Dice) -> GroupRule {
    let (protocol, ports) = rule_protocol(dice);
    GroupRule {
        id: (dice.number() >> 32) as u32,
        direction: if dice.chance(50) { Direction::Ingress } else { Direction::Egress },
        priority: dice.pick(&[1, 1, 2, 100]),
        peer: group_peer(dice),
        protocol,
        ports,
        action: if dice.chance(50) { RuleAction::Allow } else { RuleAction::Deny },
    }
}

fn rule_protocol(dice: &mut Dice) -> (RuleProtocol, Option<PortRange>) {
    match dice.below(8) {
        0 | 1 => (RuleProtocol::Any, None),
        2 => (RuleProtocol::Icmp, None),
        3 => (RuleProtocol::Number(dice.pick(&[47, 6, 17, 1])), None),
        _ => {
            let ports = dice.chance(70).then(|| port_range(dice));
            (RuleProtocol::WithPorts(protocol(dice)), ports)
        }
    }
}

fn group_peer(dice: &mut Dice) -> GroupPeer {
    match dice.below(8) {
        0..=2 => GroupPeer::Any,
        3..=4 => GroupPeer::Group(named(dice.pick(&GROUPS))),
        5 => GroupPeer::Network(named(dice.pick(&NETWORKS).1)),
        _ => GroupPeer::Block(block(dice)),
    }
}

pub(super) fn share(dice: &mut Dice) -> WorldChange {
    let part = match dice.below(3) {
        0 => SharedPart::AllPods,
        1 => SharedPart::Network(named(dice.pick(&NETWORKS).1)),
        _ => SharedPart::Group(named(dice.pick(&GROUPS))),
    };
    let ports = |dice: &mut Dice| dice.list(1, 2, |dice| (protocol(dice), port_range(dice)));
    WorldChange::SetShare(Share {
        tenant: named(tenant_name(dice)),
        name: (dice.pick(&POLICIES)).to_owned(),
        part,
        with: dice.list(0, 2, |dice| named(tenant_name(dice))),
        ports: if dice.chance(50) { Vec::new() } else { ports(dice) },
    })
}

pub(super) fn tenant(dice: &mut Dice) -> WorldChange {
    WorldChange::SetTenant(Tenant {
        name: named(tenant_name(dice)),
        nodes: if dice.chance(50) { NodeAccess::Allow } else { NodeAccess::Deny },
        default_network: None,
    })
}

pub(super) fn tenant_name(dice: &mut Dice) -> &'static str {
    if dice.chance(60) { NETWORKS[0].0 } else { dice.pick(&NETWORKS).0 }
}

fn block(dice: &mut Dice) -> IpNet {
    net(dice.pick(&BLOCKS))
}

/// Often empty, which selects everything.
fn selector(dice: &mut Dice) -> Selector {
    let requirement = |dice: &mut Dice| {
        let values = |dice: &mut Dice| -> BTreeSet<String> {
            dice.list(1, 2, |dice| String::from(dice.pick(&VALUES))).into_iter().collect()
        };
        let operator = match dice.below(6) {
            0..=2 => LabelOperator::In(values(dice)),
            3 => LabelOperator::NotIn(values(dice)),
            4 => LabelOperator::Exists,
            _ => LabelOperator::DoesNotExist,
        };
        LabelRequirement { key: (dice.pick(&KEYS)).to_owned(), operator }
    };
    let most = dice.pick(&[0, 1, 1, 2]);
    Selector { requirements: dice.list(0, most, requirement) }
}

fn port_match(dice: &mut Dice) -> PortMatch {
    match dice.below(10) {
        0..=1 => PortMatch::All,
        2..=4 => PortMatch::Named((dice.pick(&PORT_NAMES)).to_owned()),
        _ => PortMatch::Range(port_range(dice)),
    }
}

/// Single ports, ranges of about 16 ports, and long ones, which overlap.
fn port_range(dice: &mut Dice) -> PortRange {
    const RANGES: [(u16, u16); 12] = [
        (80, 80),
        (81, 81),
        (8080, 8080),
        (80, 81),
        (8080, 8095),
        (8080, 8096),
        (8085, 8100),
        (8000, 8090),
        (1, 1024),
        (1000, 9000),
        (0, 65535),
        (8090, 65535),
    ];
    let (first, last) = dice.pick(&RANGES);
    PortRange::new(first, last).unwrap_or(PortRange::ALL)
}
