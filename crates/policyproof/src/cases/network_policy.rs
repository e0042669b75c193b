//! NetworkPolicy. All policies are in namespace `x`.

use policy::World;

use super::{Case, case};
use crate::build::{block, cluster, namespace, network_policy, pod, pods, pods_in, rule, with};

/// Pods `web` and `db` in the namespaces `x` and `y`, all on the local node, and `y/far` on node `n2`.
pub(super) fn world() -> World {
    let changes = [
        namespace("x", "team=a,app=db"),
        namespace("y", "team=b"),
        pod("x/web", 10, "app=web").into(),
        pod("x/db", 11, "app=db").into(),
        pod("y/web", 20, "app=web").into(),
        pod("y/db", 21, "app=db").into(),
        pod("y/far", 22, "app=web,env=prod").on("n2").at(&["10.83.2.22", "fd00:88::2:22"]).into(),
        pod("/plain", 30, "app=web").into(),
    ];
    with(cluster(), changes)
}

pub(super) fn cases() -> Vec<Case> {
    [isolation(), unions(), selectors(), scopes(), blocks(), nested_blocks()].concat()
}

fn isolation() -> Vec<Case> {
    let open = rule([], []);
    let of = |policy: crate::build::NetworkPolicyBuilder| with(world(), [policy.into()]);
    vec![
        case(
            "np_without_policies_all_flows_are_accepted",
            world(),
            "x/web y/web tcp/80,udp/53,icmp,47,tcp/80@6 accept
             world x/web tcp/80,tcp/80@6 accept
             x/web n2 tcp/22 accept",
        ),
        case(
            "np_only_listed_directions_are_isolated",
            of(network_policy("x/p", "app=web").ingress([])),
            "x/web y/web tcp/80 accept
             y/web x/web tcp/80 drop
             y/web x/db tcp/80 accept",
        ),
        case(
            "np_only_egress_is_isolated",
            of(network_policy("x/p", "app=web").egress([])),
            "x/web y/web tcp/80,tcp/80@6,icmp drop
             x/web world tcp/80 drop
             x/web n2 tcp/80 drop
             y/web x/web tcp/80 accept",
        ),
        case(
            "np_no_rules_allow_nothing",
            of(network_policy("x/p", "").ingress([]).egress([])),
            "x/web x/db tcp/80,icmp,sctp/80,47 drop
             world x/db tcp/80,tcp/80@6 drop
             y/web y/db tcp/80 accept",
        ),
        case(
            "np_an_empty_rule_allows_everything",
            of(network_policy("x/p", "").ingress([open.clone()]).egress([open.clone()])),
            "x/web world tcp/80,icmp,47 accept
             world x/web tcp/80,sctp/1,tcp/80@6 accept
             n2 x/web tcp/80 accept",
        ),
    ]
}

fn unions() -> Vec<Case> {
    let of = |policy: crate::build::NetworkPolicyBuilder| with(world(), [policy.into()]);
    vec![
        case(
            "np_policies_of_one_pod_are_united",
            with(
                world(),
                [
                    network_policy("x/p", "").ingress([rule([pods("app=web")], ["tcp/80"])]).into(),
                    network_policy("x/q", "app=db")
                        .ingress([rule([pods_in("team=b", "")], ["tcp/81"])])
                        .into(),
                ],
            ),
            "x/web x/db tcp/80 accept
             x/web x/db tcp/81 drop
             y/web x/db tcp/81 accept
             y/web x/db tcp/80 drop
             y/web x/web tcp/81 drop",
        ),
        case(
            "np_both_ends_must_allow",
            with(
                world(),
                [
                    network_policy("x/out", "app=web")
                        .egress([rule([pods("app=db")], ["tcp/80", "tcp/81"])])
                        .into(),
                    network_policy("x/in", "app=db")
                        .ingress([rule([pods("app=web")], ["tcp/80", "tcp/82"])])
                        .into(),
                ],
            ),
            "x/web x/db tcp/80,tcp/80@6 accept
             x/web x/db tcp/81,tcp/82 drop
             x/db x/web tcp/80 accept",
        ),
        case(
            "np_a_policy_selects_pods_of_its_namespace_only",
            of(network_policy("x/p", "app=web").ingress([])),
            "world y/web tcp/80 accept
             world /plain tcp/80 accept
             world x/web tcp/80 drop",
        ),
    ]
}

fn selectors() -> Vec<Case> {
    let from = |peers: &str| {
        with(world(), [network_policy("x/p", "app=db").ingress([rule([pods_in("", peers)], [])]).into()])
    };
    vec![
        case(
            "np_an_empty_namespace_selector_selects_all_pods_with_a_namespace",
            from(""),
            "x/web x/db tcp/80 accept
             y/far x/db tcp/80,tcp/80@6 accept
             /plain x/db tcp/80 drop
             world x/db tcp/80 drop
             n2 x/db tcp/80 drop",
        ),
        case(
            "np_not_in_and_does_not_exist_match_a_missing_key",
            from("env notin test,!stage"),
            "x/web x/db tcp/80 accept
             y/far x/db tcp/80 accept",
        ),
        case(
            "np_in_and_exists_need_the_key",
            from("env in prod|test"),
            "x/web x/db tcp/80 drop\ny/far x/db tcp/80 accept",
        ),
    ]
}

fn scopes() -> Vec<Case> {
    vec![
        case(
            "np_both_selectors_of_one_peer_must_match",
            with(
                world(),
                [network_policy("x/p", "app=db").ingress([rule([pods_in("team=b", "app=web")], [])]).into()],
            ),
            "y/web x/db tcp/80 accept
             y/db x/db tcp/80 drop
             x/web x/db tcp/80 drop",
        ),
        case(
            "np_one_of_two_peers_must_match",
            with(
                world(),
                [network_policy("x/p", "app=db")
                    .ingress([rule([pods_in("team=b", ""), pods("app=web")], [])])
                    .into()],
            ),
            "y/db x/db tcp/80 accept
             x/web x/db tcp/80 accept
             /plain x/db tcp/80 drop",
        ),
        case(
            "np_a_pod_selector_alone_means_the_own_namespace",
            with(world(), [network_policy("x/p", "app=db").ingress([rule([pods("app=web")], [])]).into()]),
            "x/web x/db tcp/80 accept
             y/web x/db tcp/80 drop
             /plain x/db tcp/80 drop",
        ),
        case(
            "np_labels_of_pods_and_namespaces_are_distinct",
            with(
                world(),
                [network_policy("x/p", "app=web").ingress([rule([pods_in("app=db", "")], [])]).into()],
            ),
            "x/db x/web tcp/80 accept
             y/db x/web tcp/80 drop",
        ),
        case(
            "np_a_missing_namespace_has_no_labels",
            with(
                world(),
                [
                    pod("z/a", 40, "").into(),
                    network_policy("x/p", "").ingress([rule([pods_in("!team", "")], [])]).into(),
                ],
            ),
            "z/a x/web tcp/80 accept
             y/web x/web tcp/80 drop",
        ),
    ]
}

fn blocks() -> Vec<Case> {
    let to = |peer, other| {
        with(
            world(),
            [network_policy("x/p", "").egress([rule([peer], []), rule([other], ["tcp/99"])]).into()],
        )
    };
    vec![
        case(
            "np_a_block_matches_pods_nodes_and_the_world",
            to(block("0.0.0.0/0", &[]), block("203.0.113.0/24", &[])),
            "x/web y/web tcp/80 accept
             x/web world tcp/80 accept
             x/web n2 tcp/80 accept
             x/web y/web tcp/80@6 drop",
        ),
        case(
            "np_a_v4_block_still_isolates_v6",
            to(block("203.0.113.0/24", &[]), block("203.0.113.0/24", &[])),
            "x/web world tcp/80 accept
             x/web world tcp/80@6 drop
             x/web y/web tcp/80@6 drop",
        ),
        case(
            "np_except_limits_its_own_block_only",
            to(block("10.83.0.0/16", &["10.83.1.0/24"]), block("10.83.1.20/32", &[])),
            "x/web y/far tcp/80,tcp/99 accept
             x/web y/web tcp/99 accept
             x/web y/web tcp/80 drop
             x/web y/db tcp/99 drop",
        ),
    ]
}

fn nested_blocks() -> Vec<Case> {
    let to = |peer, other| {
        with(
            world(),
            [network_policy("x/p", "").egress([rule([peer], []), rule([other], ["tcp/99"])]).into()],
        )
    };
    vec![
        case(
            "np_a_node_is_in_a_block_if_one_of_its_addresses_is_not_excepted",
            to(block("0.0.0.0/0", &["10.0.0.0/8"]), block("10.83.2.0/24", &["10.83.2.1/32"])),
            "x/web n2 tcp/80,tcp/80@6 accept
             x/web 10.83.2.1 tcp/80 accept
             x/web y/far tcp/80 drop
             x/web y/far tcp/99 accept
             x/web y/web tcp/80 drop",
        ),
        case(
            "np_except_does_not_limit_selectors",
            with(
                world(),
                [network_policy("x/p", "")
                    .egress([rule([block("10.0.0.0/8", &["10.83.1.0/24"]), pods_in("", "app=web")], [])])
                    .into()],
            ),
            "x/web y/web tcp/80 accept
             x/web y/db tcp/80 drop",
        ),
        case(
            "np_nested_excepts_of_different_rules",
            with(
                world(),
                [network_policy("x/p", "")
                    .ingress([
                        rule([block("203.0.113.0/24", &["203.0.113.0/25"])], ["tcp/80"]),
                        rule([block("203.0.113.0/25", &["203.0.113.5/32"])], ["tcp/81"]),
                        rule([block("203.0.0.0/16", &["203.0.113.128/25"])], ["tcp/82"]),
                    ])
                    .into()],
            ),
            "world x/web tcp/80,tcp/81 drop
             world x/web tcp/82 accept
             203.0.113.6 x/web tcp/81,tcp/82 accept
             203.0.113.200 x/web tcp/80 accept
             203.0.113.200 x/web tcp/81,tcp/82 drop
             203.0.114.1 x/web tcp/82 accept
             203.1.0.1 x/web tcp/82 drop",
        ),
        case(
            "np_a_block_with_host_bits_means_its_network",
            to(block("10.83.2.77/24", &[]), block("203.0.113.0/24", &[])),
            "x/web y/far tcp/80 accept
             x/web y/web tcp/80 drop",
        ),
        case(
            "np_a_block_with_one_address_of_a_node_matches_all_of_them",
            to(block("192.168.0.2/32", &[]), block("203.0.113.0/24", &[])),
            "x/web n2 tcp/80,tcp/80@6 accept
             x/web 10.83.2.1 tcp/80 accept
             x/web n3 tcp/80 drop",
        ),
    ]
}
