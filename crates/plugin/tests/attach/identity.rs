//! Names, MACs and aliases of links, and several interfaces of one pod: E9, E13, F5.

use serde_json::{Value, json};
use testkit::{Call, Outcome, Pod, Snapshot, Verb, inspect, ping};
use types::AttachmentKey;

use crate::common::{DUAL, Host, MODES, host_link, ips, nets, v4, v6, with, with_previous, words};

fn key(network: &str, container: &str, ifname: &str) -> AttachmentKey {
    AttachmentKey {
        network: network.try_into().unwrap(),
        container: container.try_into().unwrap(),
        ifname: ifname.try_into().unwrap(),
    }
}

#[test]
fn e9_an_existing_interface_is_refused_and_not_changed() {
    for mode in MODES {
        let host = Host::new("e9");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let pod = host.pod("a");
        pod.sh(&words("ip link add eth0 type veth peer name other")).unwrap();
        pod.sh(&words("ip addr add 192.0.2.1/24 dev eth0")).unwrap();
        let (node, inside) = (Snapshot::of(&host.node).unwrap(), Snapshot::of(&pod).unwrap());
        let error = host.refused(&pod, &config);
        assert!(error.code == 102 && error.msg.contains("eth0"), "{mode}: {error:?}");
        node.expect_same(&host.node).unwrap();
        inside.expect_same(&pod).unwrap();
        // The runtime sends a DEL after the failed ADD. It must not remove the unmanaged link.
        host.del(&pod, &config);
        inside.expect_same(&pod).unwrap();
    }
}

#[test]
fn e9_a_second_add_of_the_same_attachment_is_refused() {
    for mode in MODES {
        let host = Host::new("e9-second");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode, "ipMasq": true}));
        let (pod, result) = host.attached("a", &config);
        let (node, inside) = (Snapshot::of(&host.node).unwrap(), Snapshot::of(&pod).unwrap());
        let error = host.refused(&pod, &config);
        assert!(error.code == 102 && error.msg.contains(pod.id()), "{mode}: {error:?}");
        node.expect_same(&host.node).unwrap();
        inside.expect_same(&pod).unwrap();
        host.check(&pod, &config, &result).unwrap();
    }
}

/// Three interfaces of one container, two of them in the same network.
#[test]
fn e9_interfaces_of_one_container_are_independent() {
    for mode in MODES {
        let host = Host::new("e9-three");
        let blue = host.config(&json!({"subnet": DUAL, "mode": mode, "ipMasq": true}));
        let red =
            with(&blue, &json!({"name": "red", "bridge": "pw1", "subnet": "10.99.0.0/24,fd00:99::/64"}));
        // Only the first interface has a default route.
        let no_default = json!({"isDefaultGateway": false});
        let (second_blue, second_red) = (with(&blue, &no_default), with(&red, &no_default));
        let interfaces = [("eth0", &blue), ("net1", &second_blue), ("net2", &second_red)];
        let pod = host.pod("a");
        let results = interfaces.map(|interface| {
            let (ifname, config) = interface;
            (interface, host.call_on(Verb::Add, (&pod, ifname), config).ok().unwrap())
        });
        let names: Vec<&str> = results.iter().map(|(_, result)| host_link(result)).collect();
        assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2], "{names:?}");
        let check = |index: usize| -> Outcome {
            let ((ifname, config), result) = &results[index];
            host.call_on(Verb::Check, (&pod, ifname), &with_previous(config, result))
        };
        for index in 0..3 {
            check(index).ok().unwrap();
        }
        for (removed, remaining) in [(1, [0, 2]), (0, [2, 2])] {
            let ((ifname, config), result) = &results[removed];
            host.call_on(Verb::Del, (&pod, ifname), config).ok().unwrap();
            assert!(inspect::link(&pod, ifname).is_err());
            assert!(inspect::link(&host.node, host_link(result)).is_err());
            for index in remaining {
                check(index).ok().unwrap();
            }
            assert_eq!(check(removed).error().unwrap().code, 105);
        }
        assert!(ping(&pod, "10.99.0.1".parse().unwrap(), 1).unwrap().all(), "{mode}");
    }
}

/// Adding and removing a second interface does not change the default route. Each result has only routes that were added.
#[test]
fn e9_the_first_interface_keeps_the_default_route() {
    for mode in MODES {
        let host = Host::new("e9-default");
        let blue = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let red =
            with(&blue, &json!({"name": "red", "bridge": "pw1", "subnet": "10.99.0.0/24,fd00:99::/64"}));
        let pod = host.pod("a");
        let defaults = || {
            let show = |family| pod.sh(&["ip", family, "route", "show", "default"]).unwrap();
            [show("-4"), show("-6")].concat()
        };
        let first = host.call_on(Verb::Add, (&pod, "eth0"), &blue).ok().unwrap();
        let before = defaults();
        assert_eq!(before.lines().count(), 2, "{before}");
        let second = host.call_on(Verb::Add, (&pod, "net1"), &red).ok().unwrap();
        assert_eq!(defaults(), before, "{mode}");
        let default_routes = |result: &Value| result["routes"].to_string().matches("/0\"").count();
        assert_eq!((default_routes(&first), default_routes(&second)), (2, 0), "{mode}: {second}");
        for (ifname, config, result) in [("eth0", &blue, &first), ("net1", &red, &second)] {
            host.call_on(Verb::Check, (&pod, ifname), &with_previous(config, result)).ok().unwrap();
        }
        host.call_on(Verb::Del, (&pod, "net1"), &red).ok().unwrap();
        assert_eq!(defaults(), before, "{mode}");
    }
}

fn addr_assign_type(ns: &testkit::Ns, link: &str) -> String {
    let file = format!("/sys/class/net/{link}/addr_assign_type");
    // `ip netns exec` mounts the namespace's own /sys.
    ns.sh(&["ip", "netns", "exec", ns.name(), "cat", &file]).unwrap().trim().to_owned()
}

/// NET_ADDR_SET: udev does not replace the MAC of such a link.
const NET_ADDR_SET: &str = "3";

#[test]
fn e13_macs_match_the_result_and_are_set_explicitly() {
    for mode in MODES {
        let host = Host::new("e13");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let (pod, result) = host.attached("a", &config);
        let name = host_link(&result);
        for (index, ns, link) in [(0, &*host.node, "pw0"), (1, &*host.node, name), (2, &*pod, "eth0")] {
            let mac = inspect::link(ns, link).unwrap().mac;
            assert_eq!(result["interfaces"][index]["name"], link, "{mode}");
            assert_eq!(result["interfaces"][index]["mac"].as_str(), mac.as_deref(), "{mode} {link}");
            assert_eq!(addr_assign_type(ns, link), NET_ADDR_SET, "{mode} {link}");
        }
        assert_eq!(result["interfaces"][2]["sandbox"].as_str(), pod.netns_path().to_str());
        assert_eq!(result["interfaces"][0].get("sandbox"), None);
        assert_eq!(result["interfaces"][1].get("sandbox"), None);
    }
}

/// If the bridge's MAC followed its ports, pods would have stale neighbour entries.
#[test]
fn e13_the_bridges_mac_does_not_change_with_its_ports() {
    for bridge in ["managed", "unmanaged"] {
        let host = Host::new("e13-bridge");
        let config = host.config(&json!({"subnet": DUAL}));
        if bridge == "unmanaged" {
            host.node.sh(&words("ip link add pw0 type bridge")).unwrap();
        }
        let (first, result) = host.attached("a", &config);
        let mac = result["interfaces"][0]["mac"].as_str().unwrap().to_owned();
        for number in 0..4 {
            let (_, result) = host.attached(&format!("b{number}"), &config);
            assert_eq!(result["interfaces"][0]["mac"], mac.as_str(), "{bridge}");
        }
        host.del(&first, &config);
        assert_eq!(inspect::link(&host.node, "pw0").unwrap().mac.unwrap(), mac, "{bridge}");
    }
}

#[test]
fn f5_host_links_are_named_by_key_and_have_an_alias() {
    for mode in MODES {
        let host = Host::new("f5");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let (pod, result) = host.attached("a", &config);
        let name = host_link(&result);
        assert_eq!(name, key("blue", pod.id(), "eth0").host_link(0).as_str());
        let letters = name.strip_prefix("pw").unwrap();
        assert!(
            letters.len() == 13 && letters.bytes().all(|b| matches!(b, b'a'..=b'z' | b'2'..=b'7')),
            "{name}"
        );
        let alias = inspect::link(&host.node, name).unwrap().alias.unwrap();
        let id = pod.id();
        assert_eq!(
            alias,
            format!("podwire:blue/{id}/eth0 {} in=default/default-net", nets(&result).join(" "))
        );
    }
}

#[test]
fn f5_the_host_link_gets_another_name_if_its_name_is_taken() {
    for mode in MODES {
        let host = Host::new("f5-clash");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let (base, _) = host.attached("base", &config);
        let pod = host.pod("a");
        let names = [0, 1].map(|salt| key("blue", pod.id(), "eth0").host_link(salt).as_str().to_owned());
        for (name, alias) in [(&names[0], ""), (&names[1], "podwire:blue/another/eth0 10.88.0.77/24")] {
            host.node.sh(&["ip", "link", "add", name, "type", "ifb"]).unwrap();
            host.node.sh(&["ip", "link", "set", name, "alias", alias]).unwrap();
        }
        let before = Snapshot::of(&host.node).unwrap();
        let result = host.add(&pod, &config);
        assert_eq!(host_link(&result), key("blue", pod.id(), "eth0").host_link(2).as_str(), "{mode}");
        host.check(&pod, &config, &result).unwrap();
        assert!(ping(&base, v4(&result), 1).unwrap().all() && ping(&base, v6(&result), 1).unwrap().all());
        host.del(&pod, &config);
        before.expect_same(&host.node).unwrap();
        // A second DEL does not remove the unmanaged links either.
        host.del(&pod, &config);
        before.expect_same(&host.node).unwrap();
    }
}

/// Without records, attachments and claims are recovered from the aliases of the links.
#[test]
fn f5_attachments_are_recovered_from_link_aliases() {
    for mode in MODES {
        let host = Host::new("f5-lost");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let (base, _) = host.attached("base", &config);
        let before = Snapshot::of(&host.node).unwrap();
        let (pod, result) = host.attached("a", &config);
        std::fs::remove_dir_all(host.node.run_dir()).unwrap();
        let (other, other_result) = host.attached("b", &config);
        assert!(
            ips(&other_result).iter().all(|ip| !ips(&result).contains(ip)),
            "{mode}: {other_result} and {result} have the same address"
        );
        assert_eq!(host.refused(&pod, &config).code, 102, "{mode}");
        assert!(
            ping(&base, v4(&result), 1).unwrap().all() && ping(&base, v6(&other_result), 1).unwrap().all()
        );
        host.del(&pod, &config);
        host.del(&other, &config);
        before.expect_same(&host.node).unwrap();
    }
}

fn call_of(verb: Verb, pod: &Pod, container: &str, config: &Value) -> Call {
    Call { container: Some(container.to_owned()), ..Call::pod(verb, pod, config) }
}

#[test]
fn f5_very_long_ids_and_names_work() {
    for mode in MODES {
        let host = Host::new("f5-long");
        let (name, container) = ("n".repeat(300), "c".repeat(400));
        let config = host.config(&json!({"name": name, "subnet": DUAL, "mode": mode, "ipMasq": true}));
        let pod = host.pod("a");
        let call = |call: &Call| host.plugin.call(&host.node, call).unwrap();
        let result = call(&call_of(Verb::Add, &pod, &container, &config)).ok().unwrap();
        let alias = inspect::link(&host.node, host_link(&result)).unwrap().alias.unwrap();
        assert!(alias.len() <= 255, "{alias}");
        for ip in ips(&result) {
            assert!(alias.contains(&ip.to_string()), "{mode}: {ip} is not in {alias}");
        }
        call(&call_of(Verb::Check, &pod, &container, &with_previous(&config, &result))).ok().unwrap();
        // This id differs only after the maximum length of a file name.
        let other = format!("{container}d");
        let neighbour = host.pod("b");
        call(&call_of(Verb::Add, &neighbour, &other, &config)).ok().unwrap();
        host.plugin.gc(&host.node, &config, &[(container.as_str(), "eth0")]).unwrap().ok().unwrap();
        assert!(
            inspect::link(&neighbour, "eth0").is_err(),
            "{mode}: GC did not remove an attachment that is not listed"
        );
        call(&call_of(Verb::Check, &pod, &container, &with_previous(&config, &result))).ok().unwrap();
        call(&call_of(Verb::Del, &pod, &container, &config)).ok().unwrap();
        assert!(inspect::link(&host.node, host_link(&result)).is_err(), "{mode}");
    }
}
