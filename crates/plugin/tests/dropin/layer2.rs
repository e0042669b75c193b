//! B11: a config without `ipam` is layer 2 only, as in the reference.

use serde_json::{Value, json};
use testkit::{Plugin, Snapshot, inspect, ping};

use crate::common::{Host, host_link, words};

fn config(host: &Host, more: &Value) -> Value {
    crate::common::with(&host.config(&json!({"cniVersion": "1.0.0"})), more)
}

/// Gives the pod addresses, as the workload of such a network does.
fn address(pod: &testkit::Pod, n: u8) {
    for net in [format!("10.56.0.{n}/24"), format!("fd56::{n}/64")] {
        pod.sh(&words(&format!("ip addr add {net} dev eth0 nodad"))).unwrap();
    }
}

fn reaches(pod: &testkit::Pod, n: u8) -> bool {
    [format!("10.56.0.{n}"), format!("fd56::{n}")]
        .iter()
        .all(|ip| ping(pod, ip.parse().unwrap(), 1).unwrap().all())
}

#[test]
fn b11_pods_without_addresses_share_a_wire_and_only_their_macs_are_checked() {
    let host = Host::new("b11-l2");
    let config = config(&host, &json!({"isGateway": true, "ipMasq": true}));
    let (first, _) = host.attached("first", &config);
    host.del(&first, &config);
    let before = Snapshot::of(&host.node).unwrap();
    let (a, result) = host.attached("a", &config);
    let (b, _) = host.attached("b", &config);
    assert!(result.get("ips").is_none_or(|ips| ips == &json!([])), "{result}");
    assert_eq!(result["interfaces"].as_array().unwrap().len(), 3);
    for (pod, n) in [(&a, 1), (&b, 2)] {
        assert!(inspect::link(pod, "eth0").unwrap().is_up());
        address(pod, n);
    }
    assert!(reaches(&a, 2));
    let rules = host.node.sh(&["nft", "list", "ruleset"]).unwrap();
    assert!(!rules.contains("chain net-"), "no masquerade: {rules}");
    assert_eq!(host.node.sh(&words("sysctl -n net.ipv4.ip_forward")).unwrap().trim(), "0");
    host.check(&a, &config, &result).unwrap();
    // Another MAC than its own.
    a.sh(&words("ip link set eth0 address 02:00:00:00:00:99")).unwrap();
    assert!(!reaches(&a, 2));
    assert!(host.check(&a, &config, &result).unwrap_err().msg.contains("mac"));
    let own = result["interfaces"][2]["mac"].as_str().unwrap();
    a.sh(&["ip", "link", "set", "eth0", "address", own]).unwrap();
    a.sh(&words("ip addr flush dev eth0 scope global")).unwrap();
    address(&a, 1);
    assert!(reaches(&a, 2));
    // Recovered from the links.
    std::fs::remove_dir_all(host.node.run_dir()).unwrap();
    let (c, _) = host.attached("c", &config);
    address(&c, 3);
    assert!(reaches(&a, 2) && reaches(&c, 2));
    host.check(&a, &config, &result).unwrap();
    host.node.sh(&["nft", "flush", "ruleset"]).unwrap();
    let error = host.check(&a, &config, &result).unwrap_err();
    assert!(error.msg.contains(&format!("mac_ports {{ {} }}", host_link(&result))), "{error:?}");
    // GC collects the one that is not listed, DEL the others.
    let gc = crate::common::with(&config, &json!({"cniVersion": "1.1.0"}));
    host.plugin.gc(&host.node, &gc, &[(a.id(), "eth0"), (b.id(), "eth0")]).unwrap().ok().unwrap();
    assert!(inspect::link(&c, "eth0").is_err());
    for pod in [&a, &b] {
        host.del(pod, &config);
        assert!(inspect::link(pod, "eth0").is_err());
    }
    host.attached("last", &config);
    host.del(&host.pod("none"), &config);
    let left = before.difference(&Snapshot::of(&host.node).unwrap());
    assert!(left.new.iter().all(|line| !line.contains("10.56")), "{left}");
}

#[test]
fn b11_the_reference_accepts_the_same_config() {
    let host = Host::new("b11-twin");
    let config = json!({"cniVersion": "1.0.0", "name": "blue", "type": "bridge", "bridge": "ref0"});
    let pod = host.pod("a");
    let theirs = Plugin::reference("bridge").unwrap().add(&pod, &config).unwrap().ok().unwrap();
    let (_other, result) = host.attached("b", &self::config(&host, &json!({})));
    let names = |result: &Value| {
        let mut names: Vec<String> = result.as_object().unwrap().keys().cloned().collect();
        names.retain(|name| name != "dns");
        names
    };
    assert_eq!(names(&theirs), names(&result), "{theirs} {result}");
}

#[test]
fn b11_layer_2_only_is_for_mode_bridge() {
    let host = Host::new("b11-routed");
    let pod = host.pod("a");
    let error = host.refused(&pod, &host.config(&json!({"mode": "routed"})));
    assert!(error.code == 7 && error.msg.contains("layer 2 only"), "{error:?}");
    let dhcp = json!({"mode": "routed", "ipam": {"type": "dhcp"}});
    let error = host.refused(&pod, &host.config(&dhcp));
    assert!(error.code == 7 && error.msg.contains("\"mode\": \"bridge\""), "{error:?}");
}
