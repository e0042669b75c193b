//! Pods with namespaces that are destroyed without a DEL.

use std::fs::File;

use serde_json::{Value, json};
use testkit::{DEADLINE, Pod, inspect, wait_until};

use crate::common::{Host, MODES, host_link, ips, nets, v4, with};
use crate::scene::{Scene, files, ports_and_limits};

/// The IPv4 subnet has 14 host addresses. The first one is the gateway.
const SMALL: &str = "10.88.0.0/28,fd00:88::/64";
const CAPACITY: usize = 13;

#[test]
fn c5_del_succeeds_after_the_namespace_was_destroyed() {
    for mode in MODES {
        let scene = Scene::new("gone", &json!({"mode": mode}));
        let config = with(&scene.config, &ports_and_limits());
        for round in 0..4 {
            let (pod, result) = scene.host.attached(&format!("p{round}"), &config);
            pod.destroy().unwrap();
            // In every second round the kernel may not have removed the links yet.
            if round % 2 == 0 {
                wait_for_no_link(&scene.host, &result);
            }
            scene.host.del(&pod, &config);
            scene.expect_as_before(&format!("{mode}, round {round}"));
        }
        scene.expect_unaffected(mode);
    }
}

fn wait_for_no_link(host: &Host, result: &Value) {
    let name = host_link(result);
    wait_until("the host end to be removed", DEADLINE, || {
        Ok(!inspect::links(&host.node)?.iter().any(|link| link.name == name))
    })
    .unwrap();
}

/// A node with an exhausted range.
fn full_range(label: &str, mode: &str) -> (Host, Value, Vec<(Pod, Value)>) {
    let host = Host::new(label);
    let config = host.config(&json!({"mode": mode, "subnet": SMALL, "ipMasq": true}));
    let pods = (0..CAPACITY).map(|number| host.attached(&format!("p{number}"), &config)).collect();
    (host, config, pods)
}

/// Pain 1: containers that were destroyed without a DEL must not exhaust the range.
#[test]
fn c3_an_exhausted_range_collects_destroyed_pods() {
    for mode in MODES {
        let (host, config, mut pods) = full_range("destroyed", mode);
        let (running, running_result) = pods.pop().unwrap();
        pods.iter().for_each(|(pod, _)| pod.destroy().unwrap());
        pods.iter().for_each(|(_, result)| wait_for_no_link(&host, result));
        let (new, result) = host.attached("new", &config);
        assert!(
            !ips(&result).iter().any(|ip| ips(&running_result).contains(ip)),
            "{mode}: the address of a running pod was assigned"
        );
        host.check(&new, &config, &result).unwrap();
        host.check(&running, &config, &running_result).unwrap();
        // All destroyed pods were removed completely.
        assert_eq!(files(&host).len(), 2 * 3, "{mode}: {:?}", files(&host));
        let destroyed: Vec<String> =
            pods.iter().flat_map(|(_, result)| ips(result)).map(|ip| ip.to_string()).collect();
        let firewall = host.node.sh(&["nft", "list", "ruleset"]).unwrap();
        let reused: Vec<String> = ips(&result).iter().map(ToString::to_string).collect();
        for ip in destroyed.iter().filter(|ip| !reused.contains(ip)) {
            let is_present = firewall.split(|c: char| c.is_whitespace() || c == ',').any(|word| word == ip);
            assert!(!is_present, "{mode}: {ip} is still in the firewall");
        }
    }
}

/// A runtime sends no ADD while STATUS fails, so addresses of destroyed pods must count as free.
#[test]
fn e17_status_and_requests_ignore_destroyed_pods() {
    let (host, config, pods) = full_range("status", "bridge");
    let status = || host.plugin.status(&host.node, &config).unwrap();
    assert_eq!(status().error().unwrap().code, 50);
    let requesting = |result: &Value| with(&config, &json!({"runtimeConfig": {"ips": nets(result)}}));
    let pod = host.pod("same");
    assert_eq!(host.refused(&pod, &requesting(&pods[0].1)).code, 101);

    for (pod, result) in &pods[..2] {
        pod.destroy().unwrap();
        wait_for_no_link(&host, result);
    }
    let result = host.add(&pod, &requesting(&pods[0].1));
    assert_eq!(nets(&result), nets(&pods[0].1));
    assert_eq!(v4(&host.add(&host.pod("next"), &config)), v4(&pods[1].1));
    assert_eq!(status().error().unwrap().code, 50);
    pods[2].0.destroy().unwrap();
    wait_for_no_link(&host, &pods[2].1);
    status().ok().unwrap();
}

/// Pain 2: a pod is not collected while its namespace exists, even if its path or link was removed.
#[test]
fn c3_an_exhausted_range_does_not_collect_running_pods() {
    let (host, config, pods) = full_range("running", "bridge");
    // The namespace is still open after its path was removed, as after `ip netns del`.
    let holder = File::open(pods[0].0.netns_path()).unwrap();
    pods[0].0.destroy().unwrap();
    // The operator deleted the link of the second pod.
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
    // A DEL releases one address.
    host.del(&pods[1].0, &config);
    let result = host.add(&late, &config);
    assert_eq!(ips(&result)[0], ips(&pods[1].1)[0]);
}

/// Another namespace may have the same path later. Podwire compares the namespace cookie.
#[test]
fn f4_a_pod_without_link_is_collected_if_its_namespace_was_replaced() {
    for mode in MODES {
        let (host, config, pods) = full_range("f4", mode);
        let (pod, result) = &pods[0];
        host.node.sh(&["ip", "link", "del", host_link(result)]).unwrap();
        let late = host.pod("late");
        assert_eq!(host.refused(&late, &config).code, 100, "{mode}: the namespace exists");
        pod.destroy().unwrap();
        host.node.sh(&["ip", "netns", "add", pod.name()]).unwrap();
        let late_result = host.add(&late, &config);
        assert_eq!(v4(&late_result), v4(result), "{mode}: the path has another namespace");
        host.node.sh(&["ip", "netns", "del", pod.name()]).unwrap();
    }
}
