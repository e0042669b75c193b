//! NetworkPolicy: special pods, ports and named ports.

use super::network_policy::world;
use super::{Case, case};
use crate::build::{block, network_policy, pod, pods, pods_in, rule, with};

pub(super) fn cases() -> Vec<Case> {
    [special_pods(), ports(), named_ports()].concat()
}

fn special_pods() -> Vec<Case> {
    let deny = || network_policy("x/p", "").ingress([]).egress([]);
    vec![
        case(
            "np_a_pod_always_reaches_itself",
            with(world(), [deny().into()]),
            "x/web x/web tcp/80,icmp,tcp/80@6 accept
             x/web x/db tcp/80 drop",
        ),
        case(
            "np_a_pod_reaches_its_own_node_and_is_reached_by_it",
            with(world(), [deny().into()]),
            "x/web n1 tcp/80,tcp/80@6 accept
             n1 x/web tcp/80 accept
             10.83.1.1 x/web tcp/80 accept
             x/web n2 tcp/80 drop
             n2 x/web tcp/80 drop",
        ),
        case(
            "np_host_network_pods_match_no_selector_and_are_their_node",
            with(
                world(),
                [
                    pod("x/host", 50, "app=web").on("n2").host_network().into(),
                    network_policy("x/p", "app=db").ingress([rule([pods("app=web")], [])]).into(),
                ],
            ),
            "n2 x/db tcp/80 drop
             x/web x/db tcp/80 accept",
        ),
        case(
            "np_host_network_pods_are_never_subjects",
            with(
                world(),
                [
                    pod("x/host", 50, "app=host").host_network().into(),
                    network_policy("x/p", "app=host").ingress([]).egress([]).into(),
                ],
            ),
            "n1 x/web tcp/80 accept
             x/web n1 tcp/80 accept
             n1 world tcp/80 accept",
        ),
        case(
            "np_host_network_pods_are_in_the_blocks_of_their_node",
            with(
                world(),
                [
                    pod("x/host", 50, "app=web").on("n2").host_network().into(),
                    network_policy("x/p", "app=db")
                        .ingress([rule([block("192.168.0.2/32", &[])], ["tcp/80"])])
                        .into(),
                ],
            ),
            "n2 x/db tcp/80 accept
             n2 x/db tcp/81 drop
             n3 x/db tcp/80 drop",
        ),
        case(
            "np_completed_pods_are_ignored",
            with(
                world(),
                [
                    pod("x/done", 20, "app=job").completed().into(),
                    network_policy("x/p", "app=db").ingress([rule([pods("app=job")], [])]).into(),
                    network_policy("x/q", "app=job").ingress([]).into(),
                ],
            ),
            "y/web x/db tcp/80 drop
             world y/web tcp/80 accept",
        ),
        case(
            "np_an_address_has_the_rules_of_its_running_pod",
            with(
                world(),
                [
                    pod("x/old", 60, "app=web").completed().into(),
                    pod("x/new", 60, "app=db").into(),
                    network_policy("x/p", "app=web").ingress([]).into(),
                ],
            ),
            "world x/new tcp/80 accept
             world x/web tcp/80 drop",
        ),
        case(
            "np_pods_without_namespace_are_never_subjects_nor_selected",
            with(
                world(),
                [network_policy("x/p", "").ingress([rule([pods(""), pods_in("", "")], [])]).into()],
            ),
            "/plain x/web tcp/80 drop
             world /plain tcp/80 accept
             x/web /plain tcp/80 accept",
        ),
        case(
            "np_unknown_addresses_are_denied",
            with(
                world(),
                [network_policy("x/p", "").ingress([rule([block("10.83.0.0/16", &[])], [])]).into()],
            ),
            "10.83.3.99 x/web tcp/80 drop
             y/far x/web tcp/80 accept",
        ),
    ]
}

fn ports() -> Vec<Case> {
    let of = |ports: [&str; 2]| {
        with(world(), [network_policy("x/p", "app=db").ingress([rule([pods("app=web")], ports)]).into()])
    };
    vec![
        case(
            "np_rules_with_ports_exclude_icmp",
            of(["tcp/80", "udp"]),
            "x/web x/db tcp/80,udp/1,udp/65535 accept
             x/web x/db icmp,icmp@6,47,tcp/79,tcp/81 drop",
        ),
        case(
            "np_rules_without_ports_include_icmp_and_other_protocols",
            with(world(), [network_policy("x/p", "app=db").ingress([rule([pods("app=web")], [])]).into()]),
            "x/web x/db icmp,icmp@6,47,sctp/9 accept
             y/web x/db icmp drop",
        ),
        case(
            "np_sctp_is_not_tcp",
            of(["sctp/80", "sctp/81"]),
            "x/web x/db sctp/80 accept\nx/web x/db tcp/80,udp/80 drop",
        ),
        case(
            "np_tcp_is_not_sctp",
            of(["tcp/80", "tcp/81"]),
            "x/web x/db tcp/80 accept\nx/web x/db sctp/80 drop",
        ),
        case(
            "np_end_port_includes_both_ends",
            of(["tcp/8080-8085", "tcp/30000-32767"]),
            "x/web x/db tcp/8080,tcp/8085,tcp/30000,tcp/31000,tcp/32767 accept
             x/web x/db tcp/8079,tcp/8086,tcp/29999,tcp/32768,udp/30000 drop",
        ),
        case(
            "np_overlapping_ranges_are_united",
            of(["tcp/1000-2000", "tcp/1500-2500"]),
            "x/web x/db tcp/1000,tcp/1500,tcp/2000,tcp/2001,tcp/2500 accept
             x/web x/db tcp/999,tcp/2501 drop",
        ),
        case(
            "np_the_whole_protocol_includes_all_ports",
            of(["tcp", "udp/53"]),
            "x/web x/db tcp/0,tcp/1,tcp/65535,udp/53 accept
             x/web x/db udp/54,icmp drop",
        ),
    ]
}

fn named_ports() -> Vec<Case> {
    let servers = || {
        let changes = [
            pod("x/s1", 70, "app=server").ports("http=tcp/80,dns=udp/53,dns=tcp/53").into(),
            pod("x/s2", 71, "app=server").ports("http=tcp/8080").into(),
            pod("x/s3", 72, "app=server").ports("http=udp/80").into(),
        ];
        with(world(), changes)
    };
    vec![
        case(
            "np_named_ports_resolve_per_pod_on_ingress",
            with(servers(), [network_policy("x/p", "app=server").ingress([rule([], ["tcp/http"])]).into()]),
            "world x/s1 tcp/80 accept
             world x/s1 tcp/8080,udp/80 drop
             world x/s2 tcp/8080 accept
             world x/s2 tcp/80 drop
             world x/s3 tcp/80,udp/80 drop",
        ),
        case(
            "np_named_ports_resolve_at_the_destination_on_egress",
            with(
                servers(),
                [network_policy("x/p", "app=web").egress([rule([], ["tcp/http", "udp/dns"])]).into()],
            ),
            "x/web x/s1 tcp/80,udp/53 accept
             x/web x/s1 tcp/8080,tcp/53 drop
             x/web x/s2 tcp/8080 accept
             x/web x/s2 tcp/80 drop
             x/web x/s3 udp/80 drop
             x/web world tcp/80 drop",
        ),
        case(
            "np_an_unresolvable_name_matches_nothing",
            with(
                servers(),
                [network_policy("x/p", "app=server").ingress([rule([], ["tcp/metrics"])]).into()],
            ),
            "world x/s1 tcp/80,tcp/53,icmp drop",
        ),
        case(
            "np_named_and_numbered_ports_are_united",
            with(
                servers(),
                [network_policy("x/p", "app=server").ingress([rule([], ["tcp/http", "tcp/9000"])]).into()],
            ),
            "world x/s1 tcp/80,tcp/9000 accept
             world x/s2 tcp/8080,tcp/9000 accept
             world x/s3 tcp/9000 accept
             world x/s3 tcp/80 drop",
        ),
    ]
}
