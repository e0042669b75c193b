//! Pods that go without a DEL.

use std::fs::File;

use serde_json::{Value, json};
use testkit::{DEADLINE, Pod, inspect, wait_until};

use crate::common::{Host, MODES, host_link, ips, nets, v4, with};
use crate::scene::{Scene, files, wishes};

/// 13 pods: the first address is the gateway's.
const SMALL: &str = "10.88.0.0/28,fd00:88::/64";
const ROOM: usize = 13;

#[test]
fn c5_del_after_the_namespace_was_removed_under_a_running_pod() {
    for mode in MODES {
        let scene = Scene::new("gone", &json!({"mode": mode}));
        let config = with(&scene.config, &wishes());
        for round in 0..4 {
            let (pod, result) = scene.host.attached(&format!("p{round}"), &config);
            pod.destroy().unwrap();
            // With and without waiting until the kernel has removed the links.
            if round % 2 == 0 {
                wait_for_no_link(&scene.host, &result);
            }
            scene.host.del(&pod, &config);
            scene.expect_as_before(&format!("{mode}, round {round}"));
        }
        scene.expect_neighbour(mode);
    }
}

fn wait_for_no_link(host: &Host, result: &Value) {
    let name = host_link(result);
    wait_until("the host end to go", DEADLINE, || {
        Ok(!inspect::links(&host.node)?.iter().any(|link| link.name == name))
    })
    .unwrap();
}

fn full(label: &str, mode: &str) -> (Host, Value, Vec<(Pod, Value)>) {
    let host = Host::new(label);
    let config = host.config(&json!({"mode": mode, "subnet": SMALL, "ipMasq": true}));
    let pods = (0..ROOM).map(|number| host.attached(&format!("p{number}"), &config)).collect();
    (host, config, pods)
}

/// Pain 1: containers that vanished without a DEL must not fill the range for ever.
#[test]
fn c3_a_full_range_collects_pods_that_vanished() {
    for mode in MODES {
        let (host, config, mut pods) = full("vanished", mode);
        let (alive, its_result) = pods.pop().unwrap();
        pods.iter().for_each(|(pod, _)| pod.destroy().unwrap());
        pods.iter().for_each(|(_, result)| wait_for_no_link(&host, result));
        let (new, result) = host.attached("new", &config);
        assert!(
            !ips(&result).iter().any(|ip| ips(&its_result).contains(ip)),
            "{mode}: a living pod's address"
        );
        host.check(&new, &config, &result).unwrap();
        host.check(&alive, &config, &its_result).unwrap();
        // All of the dead are gone, with all they had.
        assert_eq!(files(&host).len(), 2 * 3, "{mode}: {:?}", files(&host));
        let dead: Vec<String> =
            pods.iter().flat_map(|(_, result)| ips(result)).map(|ip| ip.to_string()).collect();
        let firewall = host.node.sh(&["nft", "list", "ruleset"]).unwrap();
        let fresh: Vec<String> = ips(&result).iter().map(ToString::to_string).collect();
        for ip in dead.iter().filter(|ip| !fresh.contains(ip)) {
            let is_named = firewall.split(|c: char| c.is_whitespace() || c == ',').any(|word| word == ip);
            assert!(!is_named, "{mode}: {ip} is still in the firewall");
        }
    }
}

/// A runtime that is told "not available" sends no ADD: a range that is full of the dead must not count as full.
#[test]
fn e17_status_and_requested_addresses_do_not_suffer_from_pods_that_vanished() {
    let (host, config, pods) = full("status", "bridge");
    let status = || host.plugin.status(&host.node, &config).unwrap();
    assert_eq!(status().error().unwrap().code, 50);
    let asking_for = |result: &Value| with(&config, &json!({"runtimeConfig": {"ips": nets(result)}}));
    let heir = host.pod("heir");
    assert_eq!(host.refused(&heir, &asking_for(&pods[0].1)).code, 101);

    for (pod, result) in &pods[..2] {
        pod.destroy().unwrap();
        wait_for_no_link(&host, result);
    }
    let result = host.add(&heir, &asking_for(&pods[0].1));
    assert_eq!(nets(&result), nets(&pods[0].1));
    assert_eq!(v4(&host.add(&host.pod("next"), &config)), v4(&pods[1].1));
    assert_eq!(status().error().unwrap().code, 50);
    pods[2].0.destroy().unwrap();
    wait_for_no_link(&host, &pods[2].1);
    status().ok().unwrap();
}

/// Pain 2: a pod whose namespace lives is never collected, whatever else is gone.
#[test]
fn c3_a_full_range_never_takes_from_the_living() {
    let (host, config, pods) = full("living", "bridge");
    // One whose path is gone while somebody still is in the namespace, as after `ip netns del`.
    let holder = File::open(pods[0].0.netns_path()).unwrap();
    pods[0].0.destroy().unwrap();
    // One whose link somebody removed by hand.
    host.node.sh(&["ip", "link", "del", host_link(&pods[1].1)]).unwrap();

    let before = files(&host);
    let late = host.pod("late");
    let error = host.refused(&late, &config);
    drop(holder);
    assert_eq!(error.code, 100, "{error:?}");
    assert!(error.msg.contains("13 of 13 in use"), "{error:?}");
    assert_eq!(files(&host), before);
    for (pod, result) in &pods[2..] {
        host.check(pod, &config, result).unwrap();
    }
    // One DEL makes room for one.
    host.del(&pods[1].0, &config);
    let result = host.add(&late, &config);
    assert_eq!(ips(&result)[0], ips(&pods[1].1)[0]);
}

/// A path may lead to another namespace later: the cookie tells.
#[test]
fn f4_a_pod_without_link_is_collected_if_its_namespace_is_another_one_and_only_then() {
    for mode in MODES {
        let (host, config, pods) = full("f4", mode);
        let (pod, result) = &pods[0];
        host.node.sh(&["ip", "link", "del", host_link(result)]).unwrap();
        let late = host.pod("late");
        assert_eq!(host.refused(&late, &config).code, 100, "{mode}: the namespace lives");
        pod.destroy().unwrap();
        host.node.sh(&["ip", "netns", "add", pod.name()]).unwrap();
        let given = host.add(&late, &config);
        assert_eq!(v4(&given), v4(result), "{mode}: at its path is another namespace now");
        host.node.sh(&["ip", "netns", "del", pod.name()]).unwrap();
    }
}
