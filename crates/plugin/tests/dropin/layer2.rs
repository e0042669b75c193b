//! B11: a config without `ipam` is layer 2 only, as in the reference plugins.

use serde_json::{Value, json};
use testkit::frames::{self, MacBytes};
use testkit::{DEADLINE, PacketSocket, Snapshot, inspect, ping, wait_until};

use crate::common::{DUAL, Host, MODES, host_link, words};

fn config(host: &Host, more: &Value) -> Value {
    crate::common::with(&host.config(&json!({"cniVersion": "1.0.0"})), more)
}

/// Adds addresses inside the pod, as the workload of such a network does.
fn add_addresses(pod: &testkit::Pod, n: u8) {
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
fn b11_layer_2_pods_share_a_segment_with_mac_check() {
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
        add_addresses(pod, n);
    }
    assert!(reaches(&a, 2));
    let rules = host.node.sh(&["nft", "list", "ruleset"]).unwrap();
    assert!(!rules.contains("chain net-"), "unexpected masquerade: {rules}");
    assert_eq!(host.node.sh(&words("sysctl -n net.ipv4.ip_forward")).unwrap().trim(), "0");
    host.check(&a, &config, &result).unwrap();
    // Frames with another MAC are dropped.
    a.sh(&words("ip link set eth0 address 02:00:00:00:00:99")).unwrap();
    assert!(!reaches(&a, 2));
    assert!(host.check(&a, &config, &result).unwrap_err().msg.contains("mac"));
    let own = result["interfaces"][2]["mac"].as_str().unwrap();
    a.sh(&["ip", "link", "set", "eth0", "address", own]).unwrap();
    a.sh(&words("ip addr flush dev eth0 scope global")).unwrap();
    add_addresses(&a, 1);
    assert!(reaches(&a, 2));
    // The records are recovered from the links.
    std::fs::remove_dir_all(host.node.run_dir()).unwrap();
    let (c, _) = host.attached("c", &config);
    add_addresses(&c, 3);
    assert!(reaches(&a, 2) && reaches(&c, 2));
    host.check(&a, &config, &result).unwrap();
    host.node.sh(&["nft", "flush", "ruleset"]).unwrap();
    let error = host.check(&a, &config, &result).unwrap_err();
    assert!(error.msg.contains(&format!("mac_ports {{ {} }}", host_link(&result))), "{error:?}");
    // GC removes the attachment that is not listed.
    let gc = crate::common::with(&config, &json!({"cniVersion": "1.1.0"}));
    host.plugin.gc(&host.node, &gc, &[(a.id(), "eth0"), (b.id(), "eth0")]).unwrap().ok().unwrap();
    assert!(inspect::link(&c, "eth0").is_err());
    for pod in [&a, &b] {
        host.del(pod, &config);
        assert!(inspect::link(pod, "eth0").is_err());
    }
    // The next pod creates the tables again.
    let (last, _) = host.attached("last", &config);
    host.del(&last, &config);
    before.expect_same(&host.node).unwrap();
}

#[test]
fn b11_the_reference_plugin_accepts_the_same_layer_2_config() {
    let host = Host::new("b11-reference");
    let config = json!({"cniVersion": "1.0.0", "name": "blue", "type": "bridge", "bridge": "ref0"});
    let pod = host.pod("a");
    let reference = testkit::reference_plugin("bridge").unwrap().add(&pod, &config).unwrap().ok().unwrap();
    let (_other, result) = host.attached("b", &self::config(&host, &json!({})));
    let names = |result: &Value| {
        let mut names: Vec<String> = result.as_object().unwrap().keys().cloned().collect();
        names.retain(|name| name != "dns");
        names
    };
    assert_eq!(names(&reference), names(&result), "{reference} {result}");
}

#[test]
fn b11_layer_2_only_and_dhcp_need_mode_bridge() {
    let host = Host::new("b11-routed");
    let pod = host.pod("a");
    let error = host.refused(&pod, &host.config(&json!({"mode": "routed"})));
    assert!(error.code == 7 && error.msg.contains("layer 2 only"), "{error:?}");
    let dhcp = json!({"mode": "routed", "ipam": {"type": "dhcp"}});
    let error = host.refused(&pod, &host.config(&dhcp));
    assert!(error.code == 7 && error.msg.contains("\"mode\": \"bridge\""), "{error:?}");
}

/// Otherwise a pod without address check could answer for the gateway and for its neighbours.
#[test]
fn b11_layer_2_pods_are_refused_on_a_bridge_with_a_gateway() {
    for mode in MODES {
        let host = Host::new("b11-shared");
        let layer2 = host.config(&json!({"name": "wire"}));
        let addressed = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let (wire, _) = host.attached("wire", &layer2);
        let before = Snapshot::of(&host.node).unwrap();
        let pod = host.pod("a");
        let error = host.refused(&pod, &addressed);
        assert!(error.code == 7 && error.msg.contains("layer 2 only"), "{mode}: {error:?}");
        let difference = before.difference(&Snapshot::of(&host.node).unwrap());
        let has_address = |line: &String| line.contains("10.88.0.") || line.contains("fd00:88:");
        assert!(!difference.new.iter().any(has_address), "{mode}: {difference}");
        host.del(&wire, &layer2);
        let result = host.add(&pod, &addressed);
        let before = Snapshot::of(&host.node).unwrap();
        let error = host.refused(&wire, &layer2);
        assert!(error.code == 7 && error.msg.contains("gateway"), "{mode}: {error:?}");
        before.expect_same(&host.node).unwrap();
        assert!(inspect::link(&wire, "eth0").is_err(), "{mode}");
        host.check(&pod, &addressed, &result).unwrap();
        host.add(&wire, &crate::common::with(&layer2, &json!({"bridge": "wire0"})));
    }
}

/// Kernels before 5.18 do not distinguish a gateway from an address of the operator.
#[test]
fn b11_every_routed_address_of_a_managed_bridge_counts_as_a_gateway() {
    let host = Host::new("b11-proto");
    let config = host.config(&json!({"name": "wire"}));
    let (wire, _) = host.attached("wire", &config);
    host.del(&wire, &config);
    for address in ["10.9.0.1/24", "fd09::1/64"] {
        host.node.sh(&["ip", "addr", "add", address, "dev", "pw0", "nodad"]).unwrap();
        let error = host.refused(&wire, &config);
        assert!(error.code == 7 && error.msg.contains(address), "{error:?}");
        host.node.sh(&["ip", "addr", "del", address, "dev", "pw0"]).unwrap();
    }
    host.node.sh(&["ip", "addr", "add", "fe80::9/64", "dev", "pw0", "nodad"]).unwrap();
    host.add(&wire, &config);
}

/// A VLAN tag could hide an ARP message with a spoofed sender.
#[test]
fn b11_vlan_tags_of_layer_2_pods_are_dropped() {
    const FORWARDED: &str = "table bridge watch { chain tagged { type filter hook forward priority 0; \
                             ether type { 8021q, 8021ad } counter; }; }";
    for spoof_check in [true, false] {
        let host = Host::new("b11-vlan");
        let config = config(&host, &json!({"spoofCheck": spoof_check}));
        let (a, _) = host.attached("a", &config);
        let (b, _) = host.attached("b", &config);
        for (pod, n) in [(&a, 1), (&b, 2)] {
            add_addresses(pod, n);
        }
        host.node.sh(&["nft", FORWARDED]).unwrap();
        let mac = |pod: &testkit::Pod| -> MacBytes {
            frames::mac(&inspect::link(pod, "eth0").unwrap().mac.unwrap()).unwrap()
        };
        let raw = PacketSocket::open(&a, "eth0").unwrap();
        for tag in [[0x81, 0x00, 0, 7], [0x88, 0xa8, 0, 7]] {
            let sender = (mac(&a), "10.56.0.9".parse().unwrap());
            let mut frame = frames::arp((mac(&b), mac(&a)), 2, sender, "10.56.0.2".parse().unwrap());
            frame.splice(12..12, tag);
            raw.send(&frame).unwrap();
        }
        assert!(reaches(&a, 2));
        let counted = host.node.sh(&["nft", "list", "table", "bridge", "watch"]).unwrap();
        // A frame to a MAC that the bridge has not learned is counted once per port.
        assert_eq!(counted.contains("packets 0 "), spoof_check, "{counted}");
    }
}

#[test]
fn b11_layer_2_pods_accept_router_advertisements() {
    let host = Host::new("b11-slaac");
    let config = config(&host, &json!({}));
    let (a, _) = host.attached("a", &config);
    let (router, _) = host.attached("router", &config);
    let mac = frames::mac(&inspect::link(&router, "eth0").unwrap().mac.unwrap()).unwrap();
    let all_nodes = [0x33, 0x33, 0, 0, 0, 1];
    let between = ("fe80::57".parse().unwrap(), "ff02::1".parse().unwrap());
    let packet = frames::advertisement(between, "fd57::".parse().unwrap());
    let raw = PacketSocket::open(&router, "eth0").unwrap();
    wait_until("an address of the prefix", DEADLINE, || {
        raw.send(&frames::framed((all_nodes, mac), &packet))?;
        Ok(inspect::addresses(&a, "eth0")?.iter().any(|address| address.net.to_string().starts_with("fd57:")))
    })
    .unwrap();
}
