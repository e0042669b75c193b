//! Tenants, shares, groups and the identity of addresses.

use model::objects::{GroupPeer, NodeAccess, RuleAction, SharedPart};
use policy::{World, WorldChange};

use super::{Case, case};
use crate::build::{
    cluster, group, group_policy, group_rule, named, namespace, net, network, network_policy, pod, pods_in,
    rule, share, tenant, with,
};

/// Tenant default: `x/web`. Tenant blue, networks `front` and `back`: `b/web` in group web, `b/db` in group db, `b/back`, and `b/far`
/// on node `n2`. Tenant green: `g/web`.
fn world() -> World {
    let changes = [
        network("blue", "front", &["10.84.0.0/16", "fd00:89::/64"]),
        network("blue", "back", &["10.85.0.0/16"]),
        network("green", "net", &["10.86.0.0/16"]),
        namespace("b", "team=blue"),
        group("blue/web", &[]),
        group("blue/db", &[]),
        group("green/web", &[]),
        pod("x/web", 10, "app=web").into(),
        pod("b/web", 40, "app=web").placed("blue/front/web").at(&["10.84.1.40", "fd00:89::40"]).into(),
        pod("b/db", 41, "app=db").placed("blue/front/db").at(&["10.84.1.41"]).into(),
        pod("b/back", 42, "app=back").placed("blue/back").at(&["10.85.1.42"]).into(),
        pod("b/far", 43, "app=far").placed("blue/front/web").on("n2").at(&["10.84.2.43"]).into(),
        pod("g/web", 50, "app=web").placed("green/net/web").at(&["10.86.1.50"]).into(),
    ];
    with(cluster(), changes)
}

pub(super) fn cases() -> Vec<Case> {
    [tenants(), shares(), share_tiers(), group_order(), missing_objects(), group_peers()].concat()
}

fn tenants() -> Vec<Case> {
    vec![
        case(
            "d_pods_of_different_tenants_cannot_communicate",
            world(),
            "x/web b/web tcp/80,icmp,tcp/80@6 drop
             b/web x/web tcp/80 drop
             b/web g/web tcp/80 drop
             b/web b/back tcp/80 accept
             b/web b/far tcp/80 accept
             b/web world tcp/80 accept
             world b/web tcp/80 accept
             b/web n2 tcp/80 accept",
        ),
        case(
            "d_a_tenant_can_deny_nodes",
            with(world(), [tenant("blue", NodeAccess::Deny)]),
            "b/web n2 tcp/80,tcp/80@6 drop
             n2 b/web tcp/80 drop
             b/web n1 tcp/80 accept
             n1 b/web tcp/80 accept
             x/web n2 tcp/80 accept
             b/web world tcp/80 accept",
        ),
        case(
            "d_unknown_addresses_of_any_network_are_denied",
            world(),
            "b/web 10.84.9.9 tcp/80,icmp drop
             b/web 10.83.9.9 tcp/80 drop
             10.85.9.9 b/web tcp/80 drop
             b/web fd00:89::99 tcp/80@6 drop
             b/web 10.87.0.1 tcp/80 accept",
        ),
        case(
            "d_a_network_policy_cannot_connect_tenants",
            with(
                world(),
                [network_policy("b/p", "")
                    .ingress([rule([pods_in("", "")], [])])
                    .egress([rule([], [])])
                    .into()],
            ),
            "x/web b/web tcp/80 drop
             b/web x/web tcp/80 drop
             b/db b/web tcp/80 accept",
        ),
        case(
            "d_all_addresses_of_a_node_are_the_node",
            with(world(), [tenant("default", NodeAccess::Deny)]),
            "x/web 10.83.2.1 tcp/80 drop
             x/web 192.168.0.2 tcp/80 drop
             x/web 10.83.1.1 tcp/80 accept",
        ),
    ]
}

fn shares() -> Vec<Case> {
    let shared = |part, limits| with(world(), [share("blue/s", part, limits)]);
    vec![
        case(
            "d_a_share_lets_other_tenants_open_flows_to_its_owner",
            shared(SharedPart::AllPods, (&[], &[])),
            "x/web b/web tcp/80,icmp accept
             g/web b/back udp/1 accept
             b/web x/web tcp/80 drop
             x/web g/web tcp/80 drop",
        ),
        case(
            "d_a_share_is_limited_to_tenants",
            shared(SharedPart::AllPods, (&["green"], &[])),
            "g/web b/web tcp/80 accept
             x/web b/web tcp/80 drop",
        ),
        case(
            "d_a_share_is_limited_to_a_network",
            shared(SharedPart::Network(named("back")), (&[], &[])),
            "x/web b/back tcp/80 accept
             x/web b/web tcp/80 drop",
        ),
        case(
            "d_a_share_is_limited_to_a_group",
            shared(SharedPart::Group(named("web")), (&[], &[])),
            "x/web b/web tcp/80 accept
             x/web b/far tcp/80 accept
             x/web b/db tcp/80 drop
             g/web b/web tcp/80 accept",
        ),
        case(
            "d_a_share_is_limited_to_ports",
            shared(SharedPart::AllPods, (&[], &["tcp/80", "udp/1000-2000"])),
            "x/web b/web tcp/80,udp/1000,udp/2000 accept
             x/web b/web tcp/81,udp/999,udp/2001,icmp,sctp/80 drop",
        ),
        case(
            "d_a_share_of_a_whole_protocol_includes_all_ports",
            shared(SharedPart::AllPods, (&[], &["tcp"])),
            "x/web b/web tcp/0,tcp/65535 accept
             x/web b/web udp/80,icmp drop",
        ),
    ]
}

fn share_tiers() -> Vec<Case> {
    vec![
        case(
            "d_shares_are_united",
            with(
                world(),
                [
                    share("blue/s", SharedPart::AllPods, (&["green"], &["tcp/80"])),
                    share("blue/t", SharedPart::Group(named("web")), (&[], &["tcp/81"])),
                ],
            ),
            "g/web b/web tcp/80,tcp/81 accept
             x/web b/web tcp/81 accept
             x/web b/web tcp/80 drop
             g/web b/db tcp/81 drop",
        ),
        case(
            "d_a_share_does_not_bypass_network_policies",
            with(
                world(),
                [
                    share("blue/s", SharedPart::AllPods, (&[], &[])),
                    network_policy("b/p", "app=web")
                        .ingress([rule([pods_in("!team", "")], ["tcp/80"])])
                        .into(),
                ],
            ),
            "x/web b/web tcp/80 accept
             x/web b/web tcp/81 drop
             x/web b/db tcp/81 accept",
        ),
        case(
            "d_a_share_does_not_bypass_rules_of_groups",
            with(
                world(),
                [
                    share("blue/s", SharedPart::AllPods, (&[], &[])),
                    group("blue/web", &["p"]),
                    group_policy(
                        "blue/p",
                        [group_rule(1, RuleAction::Deny, GroupPeer::Any).protocol("tcp/81")],
                    ),
                ],
            ),
            "x/web b/web tcp/80 accept
             x/web b/web tcp/81 drop
             x/web b/db tcp/81 accept",
        ),
    ]
}

fn group_order() -> Vec<Case> {
    use RuleAction::{Allow, Deny};
    let bound = |first: [crate::build::GroupRuleBuilder; 2]| {
        let [one, two] = first;
        with(
            world(),
            [group("blue/web", &["p", "q"]), group_policy("blue/p", [one]), group_policy("blue/q", [two])],
        )
    };
    let ports = |id, action, ports| group_rule(id, action, GroupPeer::Any).protocol(ports);
    vec![
        case(
            "d_a_higher_priority_wins_over_all_policies_of_the_group",
            bound([ports(1, Deny, "tcp/1-1000"), ports(2, Allow, "tcp/80").priority(9)]),
            "b/db b/web tcp/80,udp/80,tcp/1001 accept
             b/db b/web tcp/1,tcp/79,tcp/81,tcp/1000 drop",
        ),
        case(
            "d_equal_priorities_are_ordered_by_id",
            bound([ports(7, Allow, "tcp/80"), ports(3, Deny, "tcp/80-81")]),
            "b/db b/web tcp/80,tcp/81 drop",
        ),
        case(
            "d_allow_passes_on_to_network_policies",
            with(
                bound([ports(1, Allow, "tcp/80"), ports(2, Deny, "tcp/81")]),
                [network_policy("b/p", "").ingress([]).into()],
            ),
            "b/db b/web tcp/80,tcp/82 drop",
        ),
        case(
            "d_deny_is_final",
            with(
                bound([ports(1, Allow, "tcp/80"), ports(2, Deny, "tcp/81")]),
                [network_policy("b/p", "").ingress([rule([], [])]).into()],
            ),
            "b/db b/web tcp/80 accept\nb/db b/web tcp/81 drop",
        ),
        case(
            "d_rules_of_groups_have_a_direction",
            bound([ports(1, Deny, "tcp/80").out(), ports(2, Deny, "tcp/81")]),
            "b/web b/db tcp/80 drop
             b/web b/db tcp/81 accept
             b/db b/web tcp/81 drop
             b/db b/web tcp/80 accept
             b/far b/web tcp/80 accept",
        ),
        case(
            "d_a_pod_in_a_group_reaches_itself_and_its_node",
            bound([group_rule(1, Deny, GroupPeer::Any), group_rule(2, Deny, GroupPeer::Any).out()]),
            "b/web b/web tcp/80 accept
             b/web n1 tcp/80 accept
             n1 b/web tcp/80 accept
             b/web n2 tcp/80 drop
             world b/web tcp/80 drop",
        ),
        case(
            "d_policies_that_are_not_bound_have_no_effect",
            with(world(), [group_policy("blue/p", [group_rule(1, Deny, GroupPeer::Any)])]),
            "b/db b/web tcp/80 accept\nworld b/web tcp/80 accept",
        ),
    ]
}

/// An object that is missing or was never valid may deny anything.
fn missing_objects() -> Vec<Case> {
    let closed = "b/db b/web tcp/80,icmp drop
             b/web b/db udp/53 drop
             world b/web tcp/80,tcp/80@6 drop
             b/web n2 tcp/80 drop
             b/web b/web tcp/80 accept
             b/web n1 tcp/80 accept
             n1 b/web tcp/80 accept
             b/db b/back tcp/80 accept
             g/web world tcp/80 accept";
    let allow = group_rule(1, RuleAction::Allow, GroupPeer::Any).priority(100);
    vec![
        case(
            "d_a_missing_policy_closes_the_pods_of_its_group",
            with(world(), [group("blue/web", &["missing"])]),
            closed,
        ),
        case(
            "d_no_rule_of_another_policy_precedes_a_missing_policy",
            with(
                world(),
                [group("blue/web", &["missing", "p"]), group_policy("blue/p", [allow.clone(), allow.out()])],
            ),
            closed,
        ),
        case(
            "d_a_missing_group_closes_its_pods",
            with(world(), [WorldChange::RemoveGroup(named("blue"), named("web"))]),
            closed,
        ),
    ]
}

fn group_peers() -> Vec<Case> {
    use RuleAction::{Allow, Deny};
    let only = |peer: GroupPeer| {
        let rules = [group_rule(2, Deny, GroupPeer::Any), group_rule(1, Allow, peer)];
        let changes: [WorldChange; 3] = [
            group("blue/web", &["p"]),
            group_policy("blue/p", rules),
            share("blue/s", SharedPart::AllPods, (&[], &[])),
        ];
        with(world(), changes)
    };
    let protocol = |text: &str| {
        let rule = group_rule(1, Deny, GroupPeer::Any).protocol(text);
        with(world(), [group("blue/web", &["p"]), group_policy("blue/p", [rule])])
    };
    vec![
        case(
            "d_a_peer_group_is_one_of_the_same_tenant",
            only(GroupPeer::Group(named("web"))),
            "b/far b/web tcp/80 accept
             b/db b/web tcp/80 drop
             g/web b/web tcp/80 drop",
        ),
        case(
            "d_a_peer_network_is_one_of_the_same_tenant",
            only(GroupPeer::Network(named("back"))),
            "b/back b/web tcp/80 accept
             b/db b/web tcp/80 drop
             g/web b/web tcp/80 drop",
        ),
        case(
            "d_a_peer_block_matches_pods_nodes_and_the_world",
            only(GroupPeer::Block(net("10.84.2.0/23"))),
            "b/far b/web tcp/80 accept
             b/db b/web tcp/80 drop
             world b/web tcp/80 drop",
        ),
        case(
            "d_icmp_includes_both_families",
            protocol("icmp"),
            "b/far b/web icmp drop
             world b/web icmp@6 drop
             b/far b/web tcp/80,47 accept",
        ),
        case("d_protocol_numbers", protocol("47"), "b/far b/web 47 drop\nb/far b/web 50,icmp,tcp/47 accept"),
        case(
            "d_a_protocol_number_with_ports_means_all_ports",
            protocol("17"),
            "b/far b/web udp/1,udp/65535 drop\nb/far b/web tcp/80 accept",
        ),
    ]
}
