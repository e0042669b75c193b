//! Whose link is whose: E9, E13, F5.

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
fn e9_an_interface_that_is_there_already_is_refused_and_left_alone() {
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
        // The runtime's DEL after the failed ADD, which is about a link that is not ours.
        host.del(&pod, &config);
        inside.expect_same(&pod).unwrap();
    }
}

#[test]
fn e9_a_second_add_of_the_same_attachment_is_refused_and_changes_nothing() {
    for mode in MODES {
        let host = Host::new("e9-again");
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

/// Three interfaces of one container, two of them in one network: each is checked, removed and made on its own.
#[test]
fn e9_interfaces_of_one_container_are_independent() {
    for mode in MODES {
        let host = Host::new("e9-three");
        let blue = host.config(&json!({"subnet": DUAL, "mode": mode, "ipMasq": true}));
        let red =
            with(&blue, &json!({"name": "red", "bridge": "pw1", "subnet": "10.99.0.0/24,fd00:99::/64"}));
        // The default route is the first interface's.
        let more = json!({"isDefaultGateway": false});
        let (blue_more, red_more) = (with(&blue, &more), with(&red, &more));
        let all = [("eth0", &blue), ("net1", &blue_more), ("net2", &red_more)];
        let pod = host.pod("a");
        let results = all.map(|at| (at, host.call_on(Verb::Add, (&pod, at.0), at.1).ok().unwrap()));
        let names: Vec<&str> = results.iter().map(|(_, result)| host_link(result)).collect();
        assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2], "{names:?}");
        let check = |index: usize| -> Outcome {
            let ((ifname, config), result) = &results[index];
            host.call_on(Verb::Check, (&pod, ifname), &with_previous(config, result))
        };
        for index in 0..3 {
            check(index).ok().unwrap();
        }
        for (removed, others) in [(1, [0, 2]), (0, [2, 2])] {
            let ((ifname, config), result) = &results[removed];
            host.call_on(Verb::Del, (&pod, ifname), config).ok().unwrap();
            assert!(inspect::link(&pod, ifname).is_err());
            assert!(inspect::link(&host.node, host_link(result)).is_err());
            for other in others {
                check(other).ok().unwrap();
            }
            assert_eq!(check(removed).error().unwrap().code, 105);
        }
        assert!(ping(&pod, "10.99.0.1".parse().unwrap(), 1).unwrap().all(), "{mode}");
    }
}

/// The first interface's default route stays, with and after the second interface, and each result tells what it set.
#[test]
fn e9_the_default_route_is_the_first_interfaces() {
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
        let told = |result: &Value| result["routes"].to_string().matches("/0\"").count();
        assert_eq!((told(&first), told(&second)), (2, 0), "{mode}: {second}");
        for (ifname, config, result) in [("eth0", &blue, &first), ("net1", &red, &second)] {
            host.call_on(Verb::Check, (&pod, ifname), &with_previous(config, result)).ok().unwrap();
        }
        host.call_on(Verb::Del, (&pod, "net1"), &red).ok().unwrap();
        assert_eq!(defaults(), before, "{mode}");
    }
}

fn addr_assign_type(pod_or_node: &testkit::Ns, link: &str) -> String {
    let file = format!("/sys/class/net/{link}/addr_assign_type");
    // Only `ip netns exec` shows the namespace's own /sys.
    pod_or_node.sh(&["ip", "netns", "exec", pod_or_node.name(), "cat", &file]).unwrap().trim().to_owned()
}

/// NET_ADDR_SET, which is what a udev policy looks at before it gives a link another MAC.
const SET: &str = "3";

#[test]
fn e13_macs_are_as_in_the_result_and_were_set_not_drawn() {
    for mode in MODES {
        let host = Host::new("e13");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let (pod, result) = host.attached("a", &config);
        let name = host_link(&result);
        for (index, ns, link) in [(0, &*host.node, "pw0"), (1, &*host.node, name), (2, &*pod, "eth0")] {
            let mac = inspect::link(ns, link).unwrap().mac;
            assert_eq!(result["interfaces"][index]["name"], link, "{mode}");
            assert_eq!(result["interfaces"][index]["mac"].as_str(), mac.as_deref(), "{mode} {link}");
            assert_eq!(addr_assign_type(ns, link), SET, "{mode} {link}");
        }
        assert_eq!(result["interfaces"][2]["sandbox"].as_str(), pod.netns_path().to_str());
        assert_eq!(result["interfaces"][0].get("sandbox"), None);
        assert_eq!(result["interfaces"][1].get("sandbox"), None);
    }
}

/// The MAC of a bridge that follows its ports would leave pods with a neighbour that is gone.
#[test]
fn e13_the_bridges_mac_stays_when_ports_come_and_go() {
    for made in ["by us", "by somebody else"] {
        let host = Host::new("e13-bridge");
        let config = host.config(&json!({"subnet": DUAL}));
        if made == "by somebody else" {
            host.node.sh(&words("ip link add pw0 type bridge")).unwrap();
        }
        let (first, result) = host.attached("a", &config);
        let mac = result["interfaces"][0]["mac"].as_str().unwrap().to_owned();
        for number in 0..4 {
            let (_, result) = host.attached(&format!("b{number}"), &config);
            assert_eq!(result["interfaces"][0]["mac"], mac.as_str(), "{made}");
        }
        host.del(&first, &config);
        assert_eq!(inspect::link(&host.node, "pw0").unwrap().mac.unwrap(), mac, "{made}");
    }
}

#[test]
fn f5_the_host_end_is_named_by_its_key_and_its_alias_tells_the_rest() {
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
fn f5_a_foreign_link_of_the_same_name_stays_and_ours_gets_another() {
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
        // Nothing was attached any more; the foreign links are still not ours.
        host.del(&pod, &config);
        before.expect_same(&host.node).unwrap();
    }
}

/// The state was lost and the links lived on: who they belong to, and which addresses are taken, is read from them.
#[test]
fn f5_the_alias_is_enough_when_the_state_is_lost() {
    for mode in MODES {
        let host = Host::new("f5-lost");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let (base, _) = host.attached("base", &config);
        let before = Snapshot::of(&host.node).unwrap();
        let (pod, result) = host.attached("a", &config);
        std::fs::remove_dir_all(host.node.run_dir()).unwrap();
        let (other, others) = host.attached("b", &config);
        assert!(
            ips(&others).iter().all(|ip| !ips(&result).contains(ip)),
            "{mode}: {others} is what {result} has"
        );
        assert_eq!(host.refused(&pod, &config).code, 102, "{mode}");
        assert!(ping(&base, v4(&result), 1).unwrap().all() && ping(&base, v6(&others), 1).unwrap().all());
        host.del(&pod, &config);
        host.del(&other, &config);
        before.expect_same(&host.node).unwrap();
    }
}

fn long_call(verb: Verb, pod: &Pod, container: &str, config: &Value) -> Call {
    Call { container: Some(container.to_owned()), ..Call::pod(verb, pod, config) }
}

#[test]
fn f5_very_long_ids_and_names_work_all_the_way() {
    for mode in MODES {
        let host = Host::new("f5-long");
        let (name, container) = ("n".repeat(300), "c".repeat(400));
        let config = host.config(&json!({"name": name, "subnet": DUAL, "mode": mode, "ipMasq": true}));
        let pod = host.pod("a");
        let call = |call: &Call| host.plugin.call(&host.node, call).unwrap();
        let result = call(&long_call(Verb::Add, &pod, &container, &config)).ok().unwrap();
        let alias = inspect::link(&host.node, host_link(&result)).unwrap().alias.unwrap();
        assert!(alias.len() <= 255, "{alias}");
        for ip in ips(&result) {
            assert!(alias.contains(&ip.to_string()), "{mode}: {ip} is not in {alias}");
        }
        call(&long_call(Verb::Check, &pod, &container, &with_previous(&config, &result))).ok().unwrap();
        // An id that differs only after what a file name could hold is another one.
        let other = format!("{container}d");
        let neighbour = host.pod("b");
        call(&long_call(Verb::Add, &neighbour, &other, &config)).ok().unwrap();
        host.plugin.gc(&host.node, &config, &[(container.as_str(), "eth0")]).unwrap().ok().unwrap();
        assert!(inspect::link(&neighbour, "eth0").is_err(), "{mode}: GC leaves only what is listed");
        call(&long_call(Verb::Check, &pod, &container, &with_previous(&config, &result))).ok().unwrap();
        call(&long_call(Verb::Del, &pod, &container, &config)).ok().unwrap();
        assert!(inspect::link(&host.node, host_link(&result)).is_err(), "{mode}");
    }
}
