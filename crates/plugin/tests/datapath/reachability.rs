//! C8: pod ↔ pod and pod ↔ host without NAT, pod → outside with optional masquerade, and pods of two nodes with routes.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use testkit::{CableEnd, Lab, Node, Plugin, Pod, ping};

use crate::common::{DUAL, Host, MODES, config_on, ips, v4, v6, with, words};
use crate::probes::{NODE, OUT, ip, is_address_of, observed_source, outside};

const PODS: [&str; 2] = ["10.88.0.0/24", "fd00:88::/64"];

#[test]
fn c8_traffic_between_pods_and_host_is_not_translated() {
    for mode in MODES {
        for masquerade in [true, false] {
            let host = Host::new("c8");
            let _out = outside(&host, &PODS);
            let config = host.config(&json!({"subnet": DUAL, "mode": mode, "ipMasq": masquerade}));
            let ((a, ra), (b, rb)) = (host.attached("a", &config), host.attached("b", &config));
            let gateways = ["10.88.0.1", "fd00:88::1"].map(ip);
            for (family, (from, to)) in ips(&ra).into_iter().zip(ips(&rb)).enumerate() {
                assert_eq!(observed_source(&a, &b, to), from, "{mode}: pod to pod");
                assert_eq!(observed_source(&a, &a, from), from, "{mode}: pod to itself");
                for own in [gateways[family], ip(NODE[family])] {
                    assert_eq!(observed_source(&a, &host.node, own), from, "{mode}: pod to host {own}");
                }
                let source = observed_source(&host.node, &b, to);
                assert!(is_address_of(&host.node, source), "{mode}: host to pod has source {source}");
            }
        }
    }
}

#[test]
fn c8_traffic_to_the_outside_is_only_masqueraded_with_ip_masq() {
    for mode in MODES {
        for masquerade in [true, false] {
            let host = Host::new("c8-out");
            let out = outside(&host, &PODS);
            let config = host.config(&json!({"subnet": DUAL, "mode": mode, "ipMasq": masquerade}));
            let (a, result) = host.attached("a", &config);
            for (family, own) in ips(&result).into_iter().enumerate() {
                let expected = if masquerade { ip(NODE[family]) } else { own };
                assert_eq!(
                    observed_source(&a, &out, ip(OUT[family])),
                    expected,
                    "{mode}, ipMasq {masquerade}"
                );
                // Traffic from outside is not translated.
                assert_eq!(
                    observed_source(&out, &a, own),
                    ip(OUT[family]),
                    "{mode}: from outside to the pod"
                );
            }
        }
    }
}

#[test]
fn c8_traffic_between_networks_of_a_node_is_not_masqueraded() {
    for (blue_mode, red_mode) in [("bridge", "bridge"), ("routed", "routed"), ("bridge", "routed")] {
        let host = Host::new("c8-red");
        let blue = host.config(&json!({"subnet": DUAL, "mode": blue_mode, "ipMasq": true}));
        let more =
            json!({"name": "red", "bridge": "pw1", "subnet": "10.99.0.0/24,fd00:99::/64", "mode": red_mode});
        let red = with(&blue, &more);
        let ((a, ra), (r, rr)) = (host.attached("a", &blue), host.attached("r", &red));
        for (from, to) in ips(&ra).into_iter().zip(ips(&rr)) {
            assert_eq!(observed_source(&a, &r, to), from, "{blue_mode} to {red_mode}");
            assert_eq!(observed_source(&r, &a, from), to, "{red_mode} to {blue_mode}");
        }
    }
}

struct Member {
    node: Node,
    config: Value,
}

/// Two nodes with a part of the cluster's CIDR each, and with routes to the other node's part.
fn cluster(lab: &Lab, mode: &str) -> [Member; 2] {
    let nodes = ["n1", "n2"].map(|name| lab.node(name).unwrap());
    let ends = [["192.0.2.1/24", "2001:db8::1/64"], ["192.0.2.2/24", "2001:db8::2/64"]];
    let end = |index: usize| CableEnd { ns: &nodes[index], dev: "up0", addresses: &ends[index] };
    lab.wire(&end(0), &end(1)).unwrap();
    for (here, there) in [(0, 1), (1, 0)] {
        let number = there + 1;
        for line in [
            format!("ip route add 10.88.{number}.0/24 via 192.0.2.{number}"),
            format!("ip route add fd00:88:0:{number}::/64 via 2001:db8::{number}"),
        ] {
            nodes[here].sh(&words(&line)).unwrap();
        }
    }
    let mut number = 0;
    nodes.map(|node| {
        number += 1;
        let config = config_on(
            &node,
            &json!({
                "mode": mode, "ipMasq": true, "network": "10.88.0.0/16,fd00:88::/48",
                "subnet": format!("10.88.{number}.0/24,fd00:88:0:{number}::/64"),
            }),
        );
        Member { node, config }
    })
}

fn attach(plugin: &Plugin, member: &Member) -> (Pod, Vec<IpAddr>) {
    let pod = member.node.pod("a").unwrap();
    let result = plugin.add(&pod, &member.config).unwrap().ok().unwrap();
    (pod, ips(&result))
}

#[test]
fn c8_traffic_between_pods_of_two_nodes_is_not_translated() {
    for mode in MODES {
        let (lab, plugin) = (Lab::new("c8-nodes").unwrap(), Plugin::podwire().unwrap());
        let members = cluster(&lab, mode);
        let [(a, a_ips), (b, b_ips)] = [&members[0], &members[1]].map(|member| attach(&plugin, member));
        for (family, (from, to)) in a_ips.iter().zip(&b_ips).enumerate() {
            assert_eq!(observed_source(&a, &b, *to), *from, "{mode}: across nodes");
            assert_eq!(observed_source(&b, &a, *from), *to, "{mode}: opposite direction");
            // The address of the other node is outside the pod network.
            assert_eq!(observed_source(&a, &members[1].node, ip(OUT[family])), ip(NODE[family]), "{mode}");
            let source = observed_source(&members[1].node, &a, *from);
            assert!(is_address_of(&members[1].node, source), "{mode}: other node to pod has source {source}");
        }
    }
}

/// A pod must be reachable when its ADD returns. The kernel completes some operations later, under the same lock as changes of
/// links, so the test creates and deletes links at the same time.
#[test]
fn b11_the_first_packets_of_a_new_pod_arrive() {
    const PODS: usize = 25;
    for mode in MODES {
        let host = Host::new("b11-first");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let (first, _) = host.attached("first", &config);
        let busy = host.lab.node("busy").unwrap();
        let stop = AtomicBool::new(false);
        let lost = std::thread::scope(|scope| {
            for number in 0..2 {
                let (busy, stop) = (&busy, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let (a, b) = (format!("x{number}"), format!("y{number}"));
                        busy.sh(&["ip", "link", "add", &a, "type", "veth", "peer", "name", &b]).unwrap();
                        busy.sh(&["ip", "link", "del", &a]).unwrap();
                    }
                });
            }
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                (0..PODS)
                    .flat_map(|number| lost_first_packets(&host, &config, &first, number))
                    .collect::<Vec<_>>()
            }));
            stop.store(true, Ordering::Relaxed);
            outcome.unwrap()
        });
        assert_eq!(lost, Vec::<String>::new(), "{mode}");
    }
}

/// The first echo requests to and from a new pod that are not answered.
fn lost_first_packets(host: &Host, config: &Value, first: &Pod, number: usize) -> Vec<String> {
    let (pod, result) = host.attached(&format!("p{number}"), config);
    let mut lost = Vec::new();
    for (from, to) in
        [(first, v4(&result)), (first, v6(&result)), (&pod, ip("10.88.0.2")), (&pod, ip("fd00:88::2"))]
    {
        if !ping(from, to, 1).unwrap().all() {
            lost.push(format!("{} to {to}", from.name()));
        }
    }
    host.del(&pod, config);
    lost
}
