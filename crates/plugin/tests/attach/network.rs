//! Bridge, gateway addresses and address assignment: C1, C2, C4, C5.

use serde_json::{Value, json};
use testkit::inspect::{self, Family};
use testkit::{Call, Node, Pod, Snapshot, Verb, ping};

use crate::common::{DUAL, Host, MODES, ips, nets, v4, v6, words};

fn addresses_of(node: &Node, dev: &str) -> Vec<String> {
    let all = inspect::addresses(node, dev).unwrap();
    all.iter().filter(|a| a.scope == "global").map(|a| a.net.to_string()).collect()
}

fn default_gateway(pod: &Pod, family: Family) -> Option<String> {
    let routes = inspect::routes(pod, family).unwrap();
    routes.iter().find(|r| r.dst == "default")?.gateway.map(|gw| gw.to_string())
}

fn unreachable_routes(node: &Node) -> Vec<String> {
    let routes = [Family::V4, Family::V6].map(|family| inspect::routes(node, family).unwrap());
    let unreachable = |r: &inspect::ListedRoute| r.kind.as_deref() == Some("unreachable");
    routes.into_iter().flatten().filter(unreachable).map(|r| r.dst).collect()
}

/// A config with six keys, without `ipam`, in version 0.3.1.
#[test]
fn c1_a_minimal_config_works() {
    let host = Host::new("c1");
    let config = json!({
        "cniVersion": "0.3.1", "name": "humanz-cni", "type": "humanz-cni-plugin", "bridge": "humanz-cni0",
        "network": "100.100.0.0/16", "subnet": "100.100.0.0/24",
        "runDir": host.node.run_dir(), "logFile": host.node.log_file(),
    });
    let (pod, result) = host.attached("a", &config);
    assert_eq!(result["cniVersion"], "0.3.1");
    assert_eq!(result["ips"][0]["address"], "100.100.0.2/24");
    assert_eq!(result["ips"][0]["version"], "4");
    assert_eq!(result["ips"][0]["gateway"], "100.100.0.1");
    assert_eq!(addresses_of(&host.node, "humanz-cni0"), ["100.100.0.1/24"]);
    assert_eq!(default_gateway(&pod, Family::V4).unwrap(), "100.100.0.1");
    assert!(ping(&pod, "100.100.0.1".parse().unwrap(), 1).unwrap().all());
    host.del(&pod, &config);
}

#[test]
fn c1_a_network_that_is_not_a_cidr_is_an_id() {
    let host = Host::new("c1-label");
    let config = host.config(&json!({"network": "front", "subnet": "10.88.0.0/24"}));
    let (pod, result) = host.attached("a", &config);
    assert_eq!(nets(&result), ["10.88.0.2/24"]);
    host.del(&pod, &config);
}

struct Subnet {
    subnet: &'static str,
    bridge: &'static [&'static str],
    first: &'static [&'static str],
    /// Empty if the subnet has only one address for pods.
    second: &'static [&'static str],
}

const SUBNETS: &[Subnet] = &[
    Subnet {
        subnet: "10.88.0.0/24",
        bridge: &["10.88.0.1/24"],
        first: &["10.88.0.2/24"],
        second: &["10.88.0.3/24"],
    },
    Subnet { subnet: "10.88.0.0/30", bridge: &["10.88.0.1/30"], first: &["10.88.0.2/30"], second: &[] },
    Subnet {
        subnet: "fd00:88::/64",
        bridge: &["fd00:88::1/64"],
        first: &["fd00:88::2/64"],
        second: &["fd00:88::3/64"],
    },
    Subnet {
        subnet: DUAL,
        bridge: &["10.88.0.1/24", "fd00:88::1/64"],
        first: &["10.88.0.2/24", "fd00:88::2/64"],
        second: &["10.88.0.3/24", "fd00:88::3/64"],
    },
];

#[test]
fn c2_the_bridge_gets_the_first_address_and_pods_the_next() {
    for mode in MODES {
        for Subnet { subnet, bridge, first, second } in SUBNETS {
            let host = Host::new("c2");
            let config = host.config(&json!({"subnet": subnet, "mode": mode}));
            let (a, result) = host.attached("a", &config);
            assert_eq!(addresses_of(&host.node, "pw0"), *bridge, "{mode} {subnet}");
            assert_eq!(ips(&result), strip(first), "{mode} {subnet}");
            if mode == "bridge" {
                assert_eq!(nets(&result), *first, "{subnet}");
            }
            let b = host.pod("b");
            if second.is_empty() {
                let error = host.refused(&b, &config);
                assert_eq!(error.code, 100, "{error:?}");
                assert!(error.msg.contains("1 of 1 in use"), "{}", error.msg);
            } else {
                assert_eq!(ips(&host.add(&b, &config)), strip(second), "{mode} {subnet}");
            }
            for ip in strip(second).into_iter().chain(strip(bridge)) {
                assert!(ping(&a, ip, 1).unwrap().all(), "{mode}: {ip}");
            }
        }
    }
}

fn strip(nets: &[&str]) -> Vec<std::net::IpAddr> {
    nets.iter().map(|net| net.split('/').next().unwrap().parse().unwrap()).collect()
}

#[test]
fn c2_subnets_too_small_for_gateway_and_pod_are_refused() {
    let host = Host::new("c2-small");
    let before = Snapshot::of(&host.node).unwrap();
    for subnet in ["10.88.0.0/31", "10.88.0.0/32", "fd00:88::/127", "fd00:88::/128"] {
        let config = host.config(&json!({"subnet": subnet}));
        let error = host.refused(&host.pod(&subnet.replace([':', '/', '.'], "-")), &config);
        assert_eq!(error.code, 7, "{subnet}: {error:?}");
        assert!(error.msg.contains(subnet), "{subnet}: {}", error.msg);
    }
    before.expect_same(&host.node).unwrap();
}

fn existing_bridge(host: &Host) {
    for line in
        ["ip link add pw0 type bridge", "ip link set pw0 mtu 1400", "ip addr add 192.0.2.9/24 dev pw0"]
    {
        host.node.sh(&words(line)).unwrap();
    }
}

#[test]
fn c4_an_existing_bridge_is_reused_and_completed() {
    for mode in MODES {
        let host = Host::new("c4");
        existing_bridge(&host);
        let index = inspect::link(&host.node, "pw0").unwrap().index;
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let (pod, result) = host.attached("a", &config);
        let bridge = inspect::link(&host.node, "pw0").unwrap();
        assert_eq!(bridge.index, index, "{mode}: the bridge was replaced");
        assert!(bridge.is_up());
        // The config has no MTU, so the bridge keeps its MTU and the pod gets the same.
        assert_eq!(bridge.mtu, 1400);
        assert_eq!(inspect::link(&pod, "eth0").unwrap().mtu, 1400);
        let mut addresses = addresses_of(&host.node, "pw0");
        addresses.sort();
        assert_eq!(addresses, ["10.88.0.1/24", "192.0.2.9/24", "fd00:88::1/64"], "{mode}");
        assert_eq!(result["interfaces"][0]["mac"].as_str(), bridge.mac.as_deref());
    }
}

#[test]
fn c4_the_next_add_repairs_drift_of_the_bridge() {
    let drifts: [&[&str]; 4] = [
        &["ip addr flush dev pw0"],
        &["ip link set pw0 down"],
        &["ip link set pw0 mtu 1300"],
        &["ip link set pw0 down", "ip addr flush dev pw0", "ip link set pw0 mtu 1300"],
    ];
    for mode in MODES {
        let host = Host::new("c4-drift");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode, "mtu": 1450}));
        let (first, _) = host.attached("a", &config);
        for (number, drift) in drifts.iter().enumerate() {
            for line in *drift {
                host.node.sh(&words(line)).unwrap();
            }
            let (pod, result) = host.attached(&format!("b{number}"), &config);
            let bridge = inspect::link(&host.node, "pw0").unwrap();
            assert!(bridge.is_up() && bridge.mtu == 1450, "{mode} {drift:?}: {bridge:?}");
            assert_eq!(
                addresses_of(&host.node, "pw0"),
                ["10.88.0.1/24", "fd00:88::1/64"],
                "{mode} {drift:?}"
            );
            assert!(ping(&pod, "10.88.0.1".parse().unwrap(), 1).unwrap().all(), "{mode} {drift:?}");
            assert!(ping(&first, v4(&result), 1).unwrap().all(), "{mode} {drift:?}");
            assert!(ping(&first, v6(&result), 1).unwrap().all(), "{mode} {drift:?}");
        }
    }
}

#[test]
fn c4_an_overlapping_address_is_refused_or_replaced_with_force_address() {
    let cases = [
        ("10.88.0.0/24", "10.88.0.9/24", "10.88.0.1/24"),
        ("fd00:88::/64", "fd00:88::9/48", "fd00:88::1/64"),
        ("10.88.5.0/24", "10.88.0.9/16", "10.88.5.1/24"),
    ];
    for mode in MODES {
        for (subnet, unmanaged, gateway) in cases {
            let host = Host::new("c4-overlap");
            host.node.sh(&words("ip link add pw0 type bridge")).unwrap();
            host.node.sh(&["ip", "addr", "add", unmanaged, "dev", "pw0"]).unwrap();
            let config = host.config(&json!({"subnet": subnet, "mode": mode, "spoofCheck": false}));
            let pod = host.pod("a");
            let error = host.refused(&pod, &config);
            assert_eq!(error.code, 7, "{error:?}");
            assert_eq!(unreachable_routes(&host.node), [""; 0], "{mode}, {unmanaged}");
            assert!(error.msg.contains(unmanaged) && error.msg.contains("forceAddress"), "{}", error.msg);
            assert_eq!(addresses_of(&host.node, "pw0"), [unmanaged], "{mode}");
            assert_eq!(
                inspect::links(&host.node).unwrap().len(),
                2,
                "{mode}: expected only lo and the bridge"
            );
            let mut forced = config.clone();
            forced["forceAddress"] = Value::Bool(true);
            host.add(&pod, &forced);
            assert_eq!(addresses_of(&host.node, "pw0"), [gateway], "{mode}");
        }
    }
}

/// Earlier versions added gateway addresses for which the kernel created routes to the subnets.
#[test]
fn a6_the_first_routed_pod_after_an_upgrade_removes_the_kernels_routes() {
    for with_bridge_pod in [false, true] {
        let host = Host::new("a6-upgrade");
        let config = |mode| host.config(&json!({"subnet": DUAL, "mode": mode}));
        host.attached("a", &config("routed"));
        for gateway in addresses_of(&host.node, "pw0") {
            host.node.sh(&["ip", "addr", "del", &gateway, "dev", "pw0"]).unwrap();
            host.node.sh(&["ip", "addr", "add", &gateway, "dev", "pw0", "nodad"]).unwrap();
        }
        if with_bridge_pod {
            host.attached("b", &config("bridge"));
        }
        let unreachable = unreachable_routes(&host.node);
        for subnet in &unreachable {
            let metric = "2147483647";
            host.node.sh(&["ip", "route", "del", "unreachable", subnet, "metric", metric]).unwrap();
        }
        host.attached("c", &config("routed"));
        assert_eq!(unreachable_routes(&host.node), unreachable);
        let routes_of = |family| inspect::routes(&host.node, family).unwrap();
        let over_bridge =
            |r: &&inspect::ListedRoute| r.dev.as_deref() == Some("pw0") && unreachable.contains(&r.dst);
        let routes: Vec<inspect::ListedRoute> = [routes_of(Family::V4), routes_of(Family::V6)].concat();
        let count = routes.iter().filter(over_bridge).count();
        assert_eq!(count, if with_bridge_pod { 2 } else { 0 }, "{routes:?}");
    }
}

#[test]
fn c4_a_link_of_another_type_with_the_bridges_name_is_refused() {
    let host = Host::new("c4-kind");
    host.node.sh(&words("ip link add pw0 type veth peer name other")).unwrap();
    let before = Snapshot::of(&host.node).unwrap();
    let error = host.refused(&host.pod("a"), &host.config(&json!({"subnet": DUAL})));
    assert_eq!(error.code, 7, "{error:?}");
    assert!(error.msg.contains("pw0") && error.msg.contains("veth"), "{}", error.msg);
    before.expect_same(&host.node).unwrap();
}

/// The first pods of a node are added in parallel. Each one needs a complete bridge.
#[test]
fn c4_parallel_first_adds_create_one_bridge() {
    for mode in MODES {
        let host = Host::new("c4-once");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let pods: Vec<Pod> = (0..8).map(|n| host.pod(&format!("p{n}"))).collect();
        let calls: Vec<_> = pods
            .iter()
            .map(|pod| host.plugin.spawn(&host.node, &Call::pod(Verb::Add, pod, &config)).unwrap())
            .collect();
        for (running, pod) in calls.into_iter().zip(&pods) {
            running.wait(testkit::DEADLINE).unwrap().ok().unwrap();
            assert_eq!(inspect::link(pod, "eth0").unwrap().mtu, 1500, "{mode}");
            assert!(ping(pod, "10.88.0.1".parse().unwrap(), 1).unwrap().all(), "{mode}");
        }
        let links = inspect::links(&host.node).unwrap();
        let bridges: Vec<_> = links.iter().filter(|link| link.kind() == Some("bridge")).collect();
        assert_eq!(bridges.len(), 1, "{mode}: {bridges:?}");
        assert_eq!(bridges[0].alias.as_deref(), Some("podwire bridge"), "{mode}");
        let sysctls = std::fs::read_to_string(host.node.run_dir().join("sysctls")).unwrap_or_default();
        assert!(!sysctls.contains("/pw0/"), "{mode}: the bridge was treated as unmanaged: {sysctls}");
    }
}

#[test]
fn c5_del_removes_the_link_and_frees_only_its_own_address() {
    for mode in MODES {
        let host = Host::new("c5");
        // The range has three addresses, so the next pod gets the released one.
        let config = host.config(&json!({"subnet": "10.88.0.0/29", "mode": mode, "ipam": {
            "subnet": "10.88.0.0/29", "rangeEnd": "10.88.0.4"}}));
        let (a, ra) = host.attached("a", &config);
        let (b, rb) = host.attached("b", &config);
        let before = Snapshot::of(&host.node).unwrap();
        let (c, rc) = host.attached("c", &config);
        host.del(&c, &config);
        before.expect_same(&host.node).unwrap();
        assert_eq!(inspect::links(&c).unwrap().len(), 1, "the pod has links other than lo");
        let (d, rd) = host.attached("d", &config);
        assert_eq!(ips(&rd), ips(&rc), "the only free address");
        // A second DEL does not free the address, which now belongs to another pod.
        host.del(&c, &config);
        assert_eq!(host.refused(&host.pod("e"), &config).code, 100);
        for (pod, result) in [(&a, &ra), (&b, &rb), (&d, &rd)] {
            host.check(pod, &config, result).unwrap();
        }
    }
}
