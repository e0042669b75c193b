//! ClusterNetworkPolicy: kinds of peers, protocols and ports.

use model::objects::ClusterAction::{Accept, Deny, Pass};
use model::objects::ClusterPeer;
use model::objects::ClusterTier::Admin;
use model::objects::NodeAccess;

use super::cluster::world;
use super::{Case, case};
use crate::build::{
    cluster_policy, cluster_ports, cluster_rule, namespaces_peer, network_policy, networks_peer, nodes_peer,
    pods, pods_peer, rule, tenant, with,
};

pub(super) fn cases() -> Vec<Case> {
    [peers(), unknown_peers(), protocols()].concat()
}

fn peers() -> Vec<Case> {
    let egress = |action, peer| {
        with(world(), [cluster_policy("p", Admin).egress([cluster_rule(action, [peer])]).into()])
    };
    vec![
        case(
            "cnp_nodes_are_selected_by_label",
            egress(Deny, nodes_peer("zone=west")),
            "x/web n2 tcp/80,tcp/80@6 drop
             x/web n3 tcp/80 accept
             x/web n1 tcp/80 accept",
        ),
        case(
            "cnp_the_own_node_is_judged_if_a_policy_names_it",
            egress(Deny, nodes_peer("")),
            "x/web n1 tcp/80,icmp drop
             x/web 10.83.1.1 tcp/80 drop
             /plain n1 tcp/80 accept",
        ),
        case(
            "cnp_the_own_node_is_denied_to_isolated_pods_except_one_port",
            with(
                world(),
                [
                    cluster_policy("p", Admin)
                        .egress([
                            cluster_ports(cluster_rule(Accept, [nodes_peer("")]), ["tcp/9100"]),
                            cluster_rule(Deny, [nodes_peer("")]),
                        ])
                        .into(),
                    network_policy("x/p", "").egress([]).into(),
                ],
            ),
            "x/web n1 tcp/9100,tcp/9100@6 accept
             x/web n1 tcp/22,udp/9100,icmp,tcp/22@6 drop
             x/web 10.83.1.1 tcp/22 drop",
        ),
        case(
            "cnp_networks_match_pods_nodes_and_the_world",
            egress(Deny, networks_peer(&["10.83.0.0/16", "203.0.113.0/24"])),
            "x/web y/web tcp/80 drop
             x/web y/web tcp/80@6 accept
             x/web world tcp/80 drop
             x/web world tcp/80@6 accept
             x/web n2 tcp/80 drop",
        ),
        case(
            "cnp_networks_accept_unknown_addresses",
            egress(Accept, networks_peer(&["10.83.9.0/24"])),
            "x/web 10.83.9.9 tcp/80 accept
             x/web 10.83.8.9 tcp/80 drop",
        ),
        case(
            "cnp_pass_on_pods_before_a_denied_network",
            with(
                world(),
                [cluster_policy("p", Admin)
                    .egress([
                        cluster_rule(Pass, [namespaces_peer("")]),
                        cluster_rule(Deny, [networks_peer(&["0.0.0.0/0"])]),
                    ])
                    .into()],
            ),
            "x/web y/web tcp/80 accept
             x/web world tcp/80 drop
             x/web /plain tcp/80 drop",
        ),
        case(
            "cnp_admin_accept_of_nodes_wins_over_the_tenant",
            with(
                world(),
                [
                    tenant("default", NodeAccess::Deny),
                    cluster_policy("p", Admin)
                        .egress([cluster_ports(cluster_rule(Accept, [nodes_peer("")]), ["tcp/6443"])])
                        .into(),
                ],
            ),
            "x/web n2 tcp/6443 accept
             x/web n2 tcp/80 drop
             /plain n2 tcp/6443 drop",
        ),
    ]
}

fn unknown_peers() -> Vec<Case> {
    let ingress = |action| {
        let rule = cluster_ports(cluster_rule(action, [ClusterPeer::Unknown]), ["tcp/80"]);
        with(world(), [cluster_policy("p", Admin).namespaces("team=a").ingress([rule]).into()])
    };
    vec![
        case(
            "cnp_accept_of_an_unknown_peer_matches_nothing",
            ingress(Accept),
            "b/web x/web tcp/80 drop\ny/web x/web tcp/80 accept",
        ),
        case(
            "cnp_deny_of_an_unknown_peer_denies_everything",
            ingress(Deny),
            "y/web x/web tcp/80,tcp/81,icmp drop
             world x/web tcp/80,tcp/80@6 drop
             x/web y/web tcp/80 accept",
        ),
        case(
            "cnp_pass_of_an_unknown_peer_denies_everything",
            ingress(Pass),
            "y/web x/web tcp/81 drop
             n2 x/web tcp/80 drop",
        ),
        case(
            "cnp_an_unknown_peer_denies_the_own_node",
            with(
                world(),
                [cluster_policy("p", Admin).egress([cluster_rule(Deny, [ClusterPeer::Unknown])]).into()],
            ),
            "x/web n1 tcp/22,icmp,tcp/22@6 drop
             n1 x/web tcp/80 accept",
        ),
        case(
            "cnp_an_unknown_peer_denies_only_what_earlier_rules_leave",
            with(
                world(),
                [cluster_policy("p", Admin)
                    .ingress([
                        cluster_rule(Accept, [pods_peer("", "app=db"), ClusterPeer::Unknown]),
                        cluster_rule(Deny, [ClusterPeer::Unknown]),
                    ])
                    .into()],
            ),
            "x/db x/web tcp/80 accept
             y/web x/web tcp/80 drop",
        ),
        case(
            "cnp_domain_names_match_nothing_and_other_rules_stay_in_force",
            with(
                world(),
                [cluster_policy("p", Admin)
                    .egress([
                        cluster_rule(Accept, [ClusterPeer::DomainNames]),
                        cluster_rule(Deny, [networks_peer(&["203.0.113.0/24"])]),
                    ])
                    .into()],
            ),
            "x/web world tcp/80 drop
             x/web 8.8.8.8 tcp/80 accept",
        ),
    ]
}

fn protocols() -> Vec<Case> {
    let deny = |ports: [&str; 2]| {
        let rule = cluster_ports(cluster_rule(Deny, [namespaces_peer("")]), ports);
        with(world(), [cluster_policy("p", Admin).ingress([rule]).into()])
    };
    vec![
        case(
            "cnp_rules_with_protocols_exclude_icmp",
            deny(["tcp/25", "udp"]),
            "y/web x/web tcp/25,udp/0,udp/7 drop
             y/web x/web icmp,tcp/26,sctp/25,47 accept",
        ),
        case(
            "cnp_ranges_of_ports",
            deny(["tcp/100-110", "tcp/105-200"]),
            "y/web x/web tcp/100,tcp/105,tcp/111,tcp/200 drop
             y/web x/web tcp/99,tcp/201 accept",
        ),
        case(
            "cnp_protocols_are_tcp_udp_and_sctp",
            deny(["udp/53", "sctp/100-110"]),
            "y/web x/web udp/53,sctp/100,sctp/110 drop
             y/web x/web tcp/53,tcp/100,udp/100,sctp/53,sctp/111 accept",
        ),
        case(
            "cnp_a_protocol_without_a_port_is_the_whole_protocol",
            deny(["sctp", "tcp"]),
            "y/web x/web sctp/1,sctp/65535,tcp/1,tcp/65535 drop
             y/web x/web udp/1,icmp,47 accept",
        ),
        case(
            "cnp_a_named_port_has_any_protocol",
            deny(["*/http", "*/none"]),
            "y/web x/web tcp/80,udp/8000 drop
             y/web x/web udp/80,tcp/8000 accept
             x/web y/web tcp/8080 drop",
        ),
        case(
            "cnp_a_named_port_on_egress_is_that_of_the_destination",
            with(
                world(),
                [cluster_policy("p", Admin)
                    .egress([cluster_ports(cluster_rule(Deny, [namespaces_peer("")]), ["*/http"])])
                    .into()],
            ),
            "x/db x/web tcp/80,udp/8000 drop
             x/db y/web tcp/8080 drop
             x/db y/web tcp/80 accept",
        ),
        case(
            "cnp_pass_for_one_port_inverts_specific_and_general",
            with(
                world(),
                [
                    cluster_policy("a", Admin)
                        .ingress([
                            cluster_ports(cluster_rule(Pass, [namespaces_peer("")]), ["tcp/80"]),
                            cluster_rule(Deny, [pods_peer("", "app=web")]),
                        ])
                        .into(),
                    network_policy("x/p", "").ingress([rule([pods("")], [])]).into(),
                ],
            ),
            "x/web x/db tcp/80 accept
             x/web x/db tcp/81 drop
             y/web x/db tcp/80 drop
             x/web y/web tcp/80 accept",
        ),
    ]
}
