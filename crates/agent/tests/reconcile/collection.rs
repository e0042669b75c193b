//! Pods that were removed without a DEL: their addresses, and no other ones, are freed.

use std::fs;

use serde_json::json;
use testkit::{Snapshot, inspect, wait_until};

use crate::common::{Host, addresses_of, host_link, ips, v4, v6};
use crate::scene::{BY_EVENTS, Scene, TIMEOUT, in_both_modes, run};

fn host(label: &str, mode: &str) -> Host {
    Host::with_flags(label, &["--network-mode", mode, BY_EVENTS[0], BY_EVENTS[1]])
}

#[test]
fn f4_pain1_a_pod_removed_without_del_is_collected() {
    in_both_modes(|mode| {
        let host = host("vanished", mode);
        let running = host.attached("running");
        let (before, state_entries) = (Snapshot::of(&host.node).unwrap(), host.state_entries());
        let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
        let more = json!({"runtimeConfig": {"portMappings": ports}});
        let pod = host.pod("removed");
        let removed = host.add_with(&pod, &more);
        assert_ne!(host.state_entries(), state_entries);
        pod.destroy().unwrap();
        wait_until("the collection", TIMEOUT, || Ok(host.state_entries() == state_entries)).unwrap();
        before.wait_for_same(&host.node, TIMEOUT).unwrap();
        // Its port is free immediately, and its addresses can be requested.
        let next = host.pod("next");
        let requested: Vec<String> = ips(&removed).iter().map(ToString::to_string).collect();
        let config = json!({"runtimeConfig": {"portMappings": ports, "ips": requested}});
        let result = host.add_with(&next, &config);
        assert_eq!((v4(&result), v6(&result)), (v4(&removed), v6(&removed)), "{mode}");
        host.expect_connectivity((&next, &result), (&running.0, &running.1));
    });
}

/// The path was removed, but a process still uses the namespace: its address must not be given to another pod.
#[test]
fn pain2_a_pod_with_an_existing_link_is_never_collected() {
    in_both_modes(|mode| {
        let scene = Scene::new("alive", mode);
        let (pod, result) = &scene.a;
        let state_entries = scene.host.state_entries();
        let open = fs::File::open(pod.netns_path()).unwrap();
        pod.destroy().unwrap();
        let rounds = || scene.host.agent.get("/v1/status").unwrap()["reconcile"]["rounds"].as_u64().unwrap();
        let before = rounds();
        // An event that causes a round.
        scene.run("ip addr add 192.0.2.9/32 dev lo");
        scene.run("ip addr del 192.0.2.9/32 dev lo");
        wait_until("a round", TIMEOUT, || Ok(rounds() > before)).unwrap();
        assert_eq!(scene.host.state_entries(), state_entries, "{mode}");
        assert!(inspect::link(scene.node(), host_link(result)).is_ok(), "{mode}");
        assert!(
            testkit::ping(scene.node(), v4(result), 1).unwrap().all(),
            "{mode}: the pod must still answer"
        );
        drop(open);
        wait_until("the collection", TIMEOUT, || Ok(scene.host.state_entries().len() < state_entries.len()))
            .unwrap();
        scene.host.expect_connectivity((&scene.b.0, &scene.b.1), (&scene.b.0, &scene.b.1));
    });
}

/// The path refers to another namespace: the runtime created a new sandbox there, with its own interfaces.
#[test]
fn f4_a_path_to_another_namespace_is_not_attached() {
    in_both_modes(|mode| {
        let host = host("cookie", mode);
        let state_entries = host.state_entries();
        let pod = host.pod("a");
        host.add(&pod);
        pod.destroy().unwrap();
        let other = host.pod("a");
        run(&other, "ip link add eth0 type bridge");
        run(&other, "ip addr add 198.51.100.7/32 dev eth0");
        let before = Snapshot::of(&other).unwrap();
        wait_until("the collection", TIMEOUT, || Ok(host.state_entries() == state_entries)).unwrap();
        before.expect_same(&other).unwrap();
        assert_eq!(addresses_of(&other, "eth0"), ["198.51.100.7".parse().unwrap()].into(), "{mode}");
    });
}
