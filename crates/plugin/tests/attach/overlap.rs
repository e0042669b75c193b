//! Subnets that another program of the node uses too: B10.

use serde_json::json;
use testkit::{Outcome, Snapshot};

use crate::common::{Host, MODES, ips};

const SUBNETS: &str = "10.83.0.0/24,fd00:88::/64";

/// A link of another program that has or routes the first addresses that pods would get, and how to take it away again.
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

fn expect_error(outcome: &Outcome, code: u32, words: &[&str]) {
    let error = outcome.error().unwrap();
    let text = format!("{} {}", error.msg, error.details);
    assert!(error.code == code && words.iter().all(|word| text.contains(word)), "{words:?}: {error:?}");
}

#[test]
fn b10_an_address_that_the_node_has_or_routes_elsewhere_is_refused_and_nothing_is_left() {
    for mode in MODES {
        for (add, remove, word) in CASES {
            let host = host("b10add");
            let config = host.config(&json!({"mode": mode, "subnet": SUBNETS}));
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
fn b10_routes_to_more_than_the_subnet_and_a_bridge_without_gateway_are_no_reason_to_refuse() {
    for mode in MODES {
        let host = host("b10less");
        sh(&host, "ip address add 10.1.2.3/8 dev other; ip route add fd00::/16 dev other");
        sh(&host, "ip route add default via 10.1.2.4; ip -6 route add default dev other");
        let config = host.config(&json!({"mode": mode, "subnet": SUBNETS}));
        host.plugin.status(&host.node, &config).unwrap().ok().unwrap();
        host.attached("a", &config);
    }
    // Pods on a bridge of the node's own network.
    let host = host("b10flat");
    sh(&host, "ip address add 10.83.0.254/24 dev other");
    let config = host.config(&json!({"isGateway": false, "subnet": "10.83.0.0/24"}));
    host.plugin.status(&host.node, &config).unwrap().ok().unwrap();
    host.attached("a", &config);
}

#[test]
fn b10_status_is_50_without_pods_and_51_with_pods_while_a_subnet_overlaps() {
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
