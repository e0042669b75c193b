//! ClusterNetworkPolicy.

use model::objects::ClusterAction::{Accept, Deny, Pass};
use model::objects::ClusterPeer;
use model::objects::ClusterTier::{Admin, Baseline};
use policy::World;

use super::{Case, case};
use crate::build::{
    cluster, cluster_policy, cluster_ports, cluster_rule, namespace, namespaces_peer, network,
    network_policy, networks_peer, node, pod, pods_peer, rule, with,
};

/// Pods in the namespaces `x` and `y` of tenant default, and `b/web` of tenant blue.
pub(super) fn world() -> World {
    let changes = [
        network("blue", "front", &["10.84.0.0/16"]),
        namespace("x", "team=a"),
        namespace("y", "team=b"),
        namespace("b", "team=blue"),
        node("n2", 2, "zone=west"),
        pod("x/web", 10, "app=web").ports("http=tcp/80,http=udp/8000").into(),
        pod("x/db", 11, "app=db").into(),
        pod("y/web", 20, "app=web").ports("http=tcp/8080").into(),
        pod("/plain", 30, "app=web").into(),
        pod("b/web", 40, "app=web").placed("blue/front").at(&["10.84.1.40"]).into(),
    ];
    with(cluster(), changes)
}

pub(super) fn cases() -> Vec<Case> {
    [order(), tiers(), subjects()].concat()
}

fn order() -> Vec<Case> {
    let everyone = || namespaces_peer("");
    vec![
        case(
            "cnp_the_first_rule_that_matches_decides",
            with(
                world(),
                [cluster_policy("p", Admin)
                    .ingress([
                        cluster_ports(cluster_rule(Accept, [pods_peer("", "app=db")]), ["tcp/80"]),
                        cluster_rule(Deny, [everyone()]),
                    ])
                    .into()],
            ),
            "x/db x/web tcp/80 accept
             x/db x/web tcp/81,icmp drop
             y/web x/web tcp/80 drop
             world x/web tcp/80 accept",
        ),
        case(
            "cnp_a_specific_rule_after_a_general_one_has_no_effect",
            with(
                world(),
                [cluster_policy("p", Admin)
                    .ingress([
                        cluster_rule(Deny, [everyone()]),
                        cluster_ports(cluster_rule(Accept, [pods_peer("", "app=db")]), ["tcp/80"]),
                    ])
                    .into()],
            ),
            "x/db x/web tcp/80 drop",
        ),
        case(
            "cnp_a_lower_priority_number_wins",
            with(
                world(),
                [
                    cluster_policy("a", Admin)
                        .priority(20)
                        .ingress([cluster_rule(Deny, [everyone()])])
                        .into(),
                    cluster_policy("b", Admin)
                        .priority(3)
                        .namespaces("team=a")
                        .ingress([cluster_ports(cluster_rule(Accept, [everyone()]), ["tcp/1000-1999"])])
                        .into(),
                ],
            ),
            "y/web x/web tcp/1000,tcp/1999 accept
             y/web x/web tcp/999,tcp/2000 drop
             x/web y/web tcp/1000 drop",
        ),
        case(
            "cnp_equal_priorities_are_ordered_by_name",
            with(
                world(),
                [
                    cluster_policy("b", Admin).ingress([cluster_rule(Accept, [everyone()])]).into(),
                    cluster_policy("a", Admin)
                        .ingress([cluster_rule(Deny, [pods_peer("", "app=db")])])
                        .into(),
                ],
            ),
            "x/db x/web tcp/80 drop
             y/web x/web tcp/80 accept",
        ),
    ]
}

fn tiers() -> Vec<Case> {
    let everyone = || namespaces_peer("");
    let admin = |action| cluster_policy("admin", Admin).ingress([cluster_rule(action, [everyone()])]);
    let baseline = |action| cluster_policy("base", Baseline).ingress([cluster_rule(action, [everyone()])]);
    let closed = || network_policy("x/closed", "").ingress([]);
    let open = || network_policy("x/open", "").ingress([rule([], [])]);
    vec![
        case(
            "cnp_admin_accept_wins_over_network_policies",
            with(world(), [admin(Accept).into(), closed().into()]),
            "y/web x/web tcp/80 accept\nworld x/web tcp/80 drop",
        ),
        case(
            "cnp_admin_deny_wins_over_network_policies",
            with(world(), [admin(Deny).into(), open().into()]),
            "y/web x/web tcp/80 drop\nworld x/web tcp/80 accept",
        ),
        case(
            "cnp_admin_accept_wins_over_tenants",
            with(
                world(),
                [
                    admin(Accept).into(),
                    cluster_policy("out", Admin).egress([cluster_rule(Accept, [everyone()])]).into(),
                ],
            ),
            "b/web x/web tcp/80 accept",
        ),
        case(
            "cnp_both_directions_are_judged",
            with(world(), [admin(Accept).into()]),
            "b/web x/web tcp/80 drop",
        ),
        case(
            "cnp_pass_leaves_the_tier",
            with(
                world(),
                [
                    cluster_policy("a", Admin)
                        .priority(1)
                        .ingress([cluster_rule(Pass, [pods_peer("", "app=web")])])
                        .into(),
                    admin(Deny).into(),
                    closed().into(),
                ],
            ),
            "y/web x/web tcp/80 drop
             b/web y/web tcp/80 drop
             x/web y/web tcp/80 accept
             x/db y/web tcp/80 drop",
        ),
        case(
            "cnp_baseline_judges_pods_that_no_policy_isolates",
            with(world(), [baseline(Deny).into(), open().into()]),
            "y/web x/web tcp/80 accept
             x/web y/web tcp/80 drop
             world y/web tcp/80 accept",
        ),
        case(
            "cnp_baseline_accept_does_not_reach_isolated_pods",
            with(world(), [baseline(Accept).into(), closed().into()]),
            "y/web x/web tcp/80 drop\nx/web y/web tcp/80 accept",
        ),
        case(
            "cnp_baseline_pass_means_accept",
            with(
                world(),
                [
                    cluster_policy("a", Baseline)
                        .ingress([cluster_rule(Pass, [pods_peer("", "app=db")])])
                        .into(),
                    baseline(Deny).into(),
                ],
            ),
            "x/db x/web tcp/80 accept\ny/web x/web tcp/80 drop",
        ),
    ]
}

fn subjects() -> Vec<Case> {
    let deny = || cluster_rule(Deny, [namespaces_peer(""), networks_peer(&["0.0.0.0/0", "::/0"])]);
    vec![
        case(
            "cnp_subjects_are_selected_by_namespace_and_pod",
            with(world(), [cluster_policy("p", Admin).pods("team=a", "app=web").egress([deny()]).into()]),
            "x/web world tcp/80,tcp/80@6 drop
             x/db world tcp/80 accept
             y/web world tcp/80 accept",
        ),
        case(
            "cnp_pods_without_namespace_are_neither_subjects_nor_peers",
            with(
                world(),
                [cluster_policy("p", Admin)
                    .egress([deny()])
                    .ingress([cluster_rule(Deny, [namespaces_peer("")])])
                    .into()],
            ),
            "/plain world tcp/80 accept
             /plain x/web tcp/80 accept
             y/web x/web tcp/80 drop",
        ),
        case(
            "cnp_a_pod_as_its_own_peer_is_judged",
            with(
                world(),
                [cluster_policy("p", Admin).ingress([cluster_rule(Deny, [pods_peer("", "app=web")])]).into()],
            ),
            "x/web x/web tcp/80,tcp/80@6 drop
             x/db x/db tcp/80 accept",
        ),
        case(
            "cnp_host_network_pods_are_no_peers",
            with(
                world(),
                [
                    pod("y/host", 50, "app=web").on("n2").host_network().into(),
                    cluster_policy("p", Admin).ingress([cluster_rule(Deny, [namespaces_peer("")])]).into(),
                ],
            ),
            "n2 x/web tcp/80 accept",
        ),
        case(
            "cnp_flows_from_the_own_node_are_never_judged",
            with(
                world(),
                [cluster_policy("p", Admin).ingress([cluster_rule(Deny, [ClusterPeer::Unknown])]).into()],
            ),
            "n1 x/web tcp/80,icmp accept
             n2 x/web tcp/80 drop",
        ),
    ]
}
