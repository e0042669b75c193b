//! Pods that vanished without a DEL: their addresses come back, and only theirs.

use std::fs;

use serde_json::json;
use testkit::{Snapshot, inspect, wait_until};

use crate::common::{Host, addresses_of, host_link, ips, v4, v6};
use crate::scene::{BY_EVENTS, SOON, Scene, in_both_modes, run};

fn host(label: &str, mode: &str) -> Host {
    Host::with_flags(label, &["--network-mode", mode, BY_EVENTS[0], BY_EVENTS[1]])
}

#[test]
fn f4_pain1_a_pod_that_vanished_is_collected_and_leaves_nothing() {
    in_both_modes(|mode| {
        let host = host("vanished", mode);
        let stays = host.attached("stays");
        let (before, held) = (Snapshot::of(&host.node).unwrap(), host.held());
        let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
        let more = json!({"runtimeConfig": {"portMappings": ports}});
        let pod = host.pod("goes");
        let gone = host.add_with(&pod, &more);
        assert_ne!(host.held(), held);
        pod.destroy().unwrap();
        wait_until("the collection", SOON, || Ok(host.held() == held)).unwrap();
        before.wait_for_same(&host.node, SOON).unwrap();
        // Its port is free at once, and its addresses can be asked for by name.
        let next = host.pod("next");
        let wanted: Vec<String> = ips(&gone).iter().map(ToString::to_string).collect();
        let config = json!({"runtimeConfig": {"portMappings": ports, "ips": wanted}});
        let result = host.add_with(&next, &config);
        assert_eq!((v4(&result), v6(&result)), (v4(&gone), v6(&gone)), "{mode}");
        host.expect_talk((&next, &result), (&stays.0, &stays.1));
    });
}

/// The path is gone and a process still lives in the namespace: its address is not given to anybody.
#[test]
fn pain2_a_pod_whose_link_lives_is_never_collected() {
    in_both_modes(|mode| {
        let scene = Scene::new("alive", mode);
        let (pod, result) = &scene.a;
        let held = scene.host.held();
        let open = fs::File::open(pod.netns_path()).unwrap();
        pod.destroy().unwrap();
        let rounds = || scene.host.agent.get("/v1/status").unwrap()["reconcile"]["rounds"].as_u64().unwrap();
        let before = rounds();
        // Something that makes the agent look.
        scene.run("ip addr add 192.0.2.9/32 dev lo");
        scene.run("ip addr del 192.0.2.9/32 dev lo");
        wait_until("a round", SOON, || Ok(rounds() > before)).unwrap();
        assert_eq!(scene.host.held(), held, "{mode}");
        assert!(inspect::link(scene.node(), host_link(result)).is_ok(), "{mode}");
        assert!(testkit::ping(scene.node(), v4(result), 1).unwrap().all(), "{mode}: it still answers");
        drop(open);
        wait_until("the collection", SOON, || Ok(scene.host.held().len() < held.len())).unwrap();
        scene.host.expect_talk((&scene.b.0, &scene.b.1), (&scene.b.0, &scene.b.1));
    });
}

/// The path leads to another namespace by now: the runtime made a new sandbox there, with things of its own.
#[test]
fn f4_a_path_that_leads_to_another_namespace_is_not_wired() {
    in_both_modes(|mode| {
        let host = host("cookie", mode);
        let held = host.held();
        let pod = host.pod("a");
        host.add(&pod);
        pod.destroy().unwrap();
        let other = host.pod("a");
        run(&other, "ip link add eth0 type bridge");
        run(&other, "ip addr add 198.51.100.7/32 dev eth0");
        let before = Snapshot::of(&other).unwrap();
        wait_until("the collection", SOON, || Ok(host.held() == held)).unwrap();
        before.expect_same(&other).unwrap();
        assert_eq!(addresses_of(&other, "eth0"), ["198.51.100.7".parse().unwrap()].into(), "{mode}");
    });
}
