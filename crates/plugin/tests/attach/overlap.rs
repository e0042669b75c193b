//! Subnets that overlap addresses or routes of other programs on the node: B10.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};
use testkit::{Outcome, Pod, Snapshot};

use crate::common::{Host, MODES, ips, v4, with};

const SUBNETS: &str = "10.83.0.0/24,fd00:88::/64";

/// Commands that add and remove an address or route of another program, and its name in errors. All overlap the first
/// addresses for pods.
const CASES: [(&str, &str, &str); 4] = [
    ("ip address add 10.83.0.2/32 dev other", "ip address del 10.83.0.2/32 dev other", "10.83.0.2"),
    (
        "ip address add fd00:88::2/128 dev other nodad",
        "ip address del fd00:88::2/128 dev other",
        "fd00:88::2",
    ),
    ("ip route add 10.83.0.0/28 dev other", "ip route del 10.83.0.0/28 dev other", "10.83.0.0/28"),
    ("ip route add fd00:88::/124 dev other", "ip route del fd00:88::/124 dev other", "fd00:88::/124"),
];

fn host(label: &str) -> Host {
    let host = Host::new(label);
    sh(&host, "ip link set lo up; ip link add other type bridge; ip link set other up");
    host
}

fn sh(host: &Host, line: &str) {
    host.node.sh(&["sh", "-c", line]).unwrap();
}

fn expect_error(outcome: &Outcome, code: u32, texts: &[&str]) {
    let error = outcome.error().unwrap();
    let text = format!("{} {}", error.msg, error.details);
    assert!(error.code == code && texts.iter().all(|part| text.contains(part)), "{texts:?}: {error:?}");
}

#[test]
fn b10_a_requested_address_that_the_node_uses_is_refused() {
    for mode in MODES {
        for (add, remove, word) in CASES {
            let host = host("b10add");
            let requested = json!({"ips": ["10.83.0.2", "fd00:88::2"]});
            let config = host.config(&json!({"mode": mode, "subnet": SUBNETS, "runtimeConfig": requested}));
            sh(&host, add);
            let (pod, before) = (host.pod("a"), Snapshot::of(&host.node).unwrap());
            let refused = host.plugin.add(&pod, &config).unwrap();
            expect_error(&refused, 101, &[word, "link other", "another subnet"]);
            before.expect_same(&host.node).unwrap();
            host.del(&pod, &config);
            sh(&host, remove);
            assert_eq!(ips(&host.add(&pod, &config)).len(), 2, "{mode}: after {remove}");
        }
    }
}

#[test]
fn b10_automatic_allocation_skips_addresses_that_the_node_uses() {
    for mode in MODES {
        for (add, _, used) in CASES {
            let host = host("b10skip");
            let config = host.config(&json!({"mode": mode, "subnet": SUBNETS}));
            sh(&host, add);
            let (pod, result) = host.attached("a", &config);
            // The node uses one address or the first 16.
            let is_used = |ip: &&IpAddr| {
                let last = match ip {
                    IpAddr::V4(v4) => u16::from(v4.octets()[3]),
                    IpAddr::V6(v6) => v6.segments()[7],
                };
                let is_range = used.contains('/');
                ip.is_ipv6() == used.contains(':') && (last == 2 || is_range && last < 16)
            };
            let assigned = ips(&result);
            assert_eq!(
                (assigned.len(), assigned.iter().find(is_used)),
                (2, None),
                "{mode}: {add}: {assigned:?}"
            );
            let claims =
                || std::fs::read_dir(host.node.run_dir().join("networks/blue/addresses")).unwrap().count();
            assert_eq!(claims(), 2, "{mode}: {add}: skipped addresses are claimed");
            host.del(&pod, &config);
            assert_eq!(claims(), 0);
        }
    }
}

#[test]
fn b10_a_subnet_inside_a_connected_network_is_an_overlap() {
    for mode in MODES {
        for (add, connected) in [
            ("ip address add 10.83.200.1/16 dev other", "10.83.0.0/16"),
            ("ip address add fd00::9/16 dev other nodad", "fd00::/16"),
        ] {
            let host = host("b10wide");
            let config = host.config(&json!({"mode": mode, "subnet": SUBNETS}));
            sh(&host, add);
            let (pod, before) = (host.pod("a"), Snapshot::of(&host.node).unwrap());
            let status = host.plugin.status(&host.node, &config).unwrap();
            expect_error(&status, 50, &["SubnetOverlap", connected, "link other"]);
            let refused = host.plugin.add(&pod, &config).unwrap();
            expect_error(&refused, 101, &[connected, "link other"]);
            before.expect_same(&host.node).unwrap();
        }
    }
}

/// The subnet is the part of `network` that this node owns. Routes to other nodes go through a gateway.
#[test]
fn b10_an_on_link_route_to_the_cluster_network_is_an_overlap() {
    for mode in MODES {
        let keys = json!({"mode": mode, "subnet": "10.83.1.0/24", "network": "10.83.0.0/16"});
        for (route, is_overlap) in [("via 192.0.2.2", false), ("dev other", true)] {
            let host = host("b10cluster");
            sh(&host, "ip address add 192.0.2.1/24 dev other");
            sh(&host, &format!("ip route add 10.83.0.0/16 {route}"));
            let answer = host.plugin.add(&host.pod("a"), &host.config(&keys)).unwrap();
            match is_overlap {
                true => expect_error(&answer, 101, &["10.83.0.0/16", "link other"]),
                false => assert!(answer.ok().is_ok(), "{mode} {route}"),
            }
        }
    }
}

/// Two configs have the same subnet and different run directories. Name and bridge are the same or differ.
#[test]
fn b10_addresses_of_another_run_directory_are_not_assigned() {
    for (mode, name, bridge) in [
        ("bridge", "blue", "pw0"),
        ("bridge", "red", "pw0"),
        ("bridge", "red", "pw1"),
        ("routed", "blue", "pw0"),
        ("routed", "red", "pw1"),
    ] {
        let host = host("b10twice");
        let first = host.config(&json!({"mode": mode, "subnet": SUBNETS}));
        let other_dir = host.node.run_dir().join("other");
        let second = with(&first, &json!({"runDir": other_dir, "name": name, "bridge": bridge}));
        let mut assigned = BTreeSet::new();
        for (pod, config) in [("a", &first), ("b", &second), ("c", &first), ("d", &second)] {
            assigned.extend(ips(&host.attached(pod, config).1));
        }
        assert_eq!(assigned.len(), 8, "{mode} {name} {bridge}: {assigned:?}");
        let (e, result) = host.attached("e", &first);
        let in_use = v4(&result).to_string();
        let requesting = with(&second, &json!({"runtimeConfig": {"ips": [in_use]}}));
        let refused = host.plugin.add(&host.pod("f"), &requesting).unwrap();
        expect_error(&refused, 101, &[&in_use, "runDir"]);
        host.check(&e, &first, &result).unwrap();
    }
}

/// If two ADDs select the same address, one of them retries. CHECK detects if that ADD removed firewall elements of the other pod.
#[test]
fn b10_parallel_adds_in_two_run_directories_get_unique_addresses() {
    const PODS: usize = 8;
    for (mode, name, bridge) in [
        ("bridge", "blue", "pw0"),
        ("bridge", "red", "pw1"),
        ("routed", "blue", "pw0"),
        ("routed", "red", "pw1"),
    ] {
        let host = host("b10same");
        let first = host.config(&json!({"mode": mode, "subnet": SUBNETS}));
        let other_dir = host.node.run_dir().join("other");
        let second = with(&first, &json!({"runDir": other_dir, "name": name, "bridge": bridge}));
        let both = [("a", &first), ("b", &second)];
        let pods: Vec<(Pod, &Value)> = (0..PODS)
            .flat_map(|number| both.map(|(label, config)| (host.pod(&format!("{label}{number}")), config)))
            .collect();
        let results: Vec<Value> = std::thread::scope(|scope| {
            let adds: Vec<_> =
                pods.iter().map(|(pod, config)| scope.spawn(|| host.add(pod, config))).collect();
            adds.into_iter().map(|add| add.join().unwrap()).collect()
        });
        let assigned: BTreeSet<IpAddr> = results.iter().flat_map(ips).collect();
        assert_eq!(assigned.len(), 2 * pods.len(), "{mode} {name} {bridge}: {assigned:?}");
        for ((pod, config), result) in pods.iter().zip(&results) {
            host.check(pod, config, result).unwrap();
        }
    }
}

#[test]
fn b10_wider_routes_and_networks_without_gateway_are_no_overlap() {
    for mode in MODES {
        let host = host("b10less");
        sh(&host, "ip address add 192.0.2.1/24 dev other; ip route add 10.0.0.0/8 via 192.0.2.2");
        sh(&host, "ip route add fd00::/16 dev other; ip route add default via 192.0.2.2");
        sh(&host, "ip -6 route add default dev other");
        let config = host.config(&json!({"mode": mode, "subnet": SUBNETS}));
        host.plugin.status(&host.node, &config).unwrap().ok().unwrap();
        host.attached("a", &config);
    }
    // Pods on a bridge in the node's own network.
    let host = host("b10flat");
    sh(&host, "ip address add 10.83.0.254/24 dev other");
    let config = host.config(&json!({"isGateway": false, "subnet": "10.83.0.0/24"}));
    host.plugin.status(&host.node, &config).unwrap().ok().unwrap();
    host.attached("a", &config);
}

#[test]
fn b10_status_reports_an_overlap_with_50_or_with_pods_51() {
    for mode in MODES {
        let host = host("b10status");
        let config = host.config(&json!({"mode": mode, "subnet": SUBNETS}));
        for (add, remove, word) in CASES {
            sh(&host, add);
            let status = host.plugin.status(&host.node, &config).unwrap();
            expect_error(&status, 50, &["SubnetOverlap", word, "link other"]);
            sh(&host, remove);
            host.plugin.status(&host.node, &config).unwrap().ok().unwrap();
        }
        host.attached("a", &config);
        for (add, remove, word) in [CASES[2], CASES[3]] {
            sh(&host, add);
            let status = host.plugin.status(&host.node, &config).unwrap();
            expect_error(&status, 51, &["SubnetOverlap", word, "link other"]);
            sh(&host, remove);
        }
        host.plugin.status(&host.node, &config).unwrap().ok().unwrap();
    }
}
