//! Profiles of groups: bandwidth limits that are applied at ADD and follow all changes on running pods.

use serde_json::{Value, json};
use testkit::{DEADLINE, wait_until};

use crate::common::host_link;
use crate::scene::{PlacedPod, Scene, document, placement};

/// Rates in bytes per second: to the pod, and from the pod.
type Rates = (Option<u64>, Option<u64>);

const SLOW: Rates = (Some(1_000_000), Some(2_000_000));

fn group(profile: Option<&str>) -> Value {
    document("Group", ("", "web"), &json!({ "network": "default-net", "profile": profile }))
}

fn profile(spec: &Value) -> Value {
    document("Profile", ("", "slow"), spec)
}

fn slow() -> Value {
    profile(&json!({ "ingress": { "rate": "8M" }, "egress": { "rate": "16M" } }))
}

fn rate(scene: &Scene, link: &str) -> Option<u64> {
    let shown = scene.node().run(&["tc", "-j", "qdisc", "show", "dev", link, "root"], b"").unwrap();
    let qdiscs: Value = serde_json::from_str(&shown.stdout).unwrap_or_default();
    qdiscs.as_array()?.iter().find(|it| it["kind"] == "tbf")?["options"]["rate"].as_u64()
}

/// The link to which packets from the pod are redirected.
fn shaper(scene: &Scene, link: &str) -> Option<String> {
    let shown = scene.node().run(&["tc", "-j", "filter", "show", "dev", link, "ingress"], b"").unwrap();
    let filters: Value = serde_json::from_str(&shown.stdout).unwrap_or_default();
    let target = filters.as_array()?.iter().find_map(|it| it["options"]["actions"][0]["to_dev"].as_str())?;
    Some(target.to_owned())
}

fn rates(scene: &Scene, link: &str) -> Rates {
    (rate(scene, link), shaper(scene, link).and_then(|shaper| rate(scene, &shaper)))
}

#[track_caller]
fn wait_for(scene: &Scene, pod: &PlacedPod, expected: Rates) {
    let reached = wait_until("the limits", DEADLINE, || Ok(rates(scene, pod.link()) == expected));
    assert!(reached.is_ok(), "{:?} instead of {expected:?}", rates(scene, pod.link()));
}

fn ifb_links(scene: &Scene) -> String {
    scene.node().sh(&["ip", "-br", "link", "show", "type", "ifb"]).unwrap()
}

#[test]
fn limits_of_a_profile_follow_all_changes_on_running_pods() {
    let mut scene = Scene::new("profile-limits", &["--reconcile-seconds", "1"]);
    scene.apply(&[slow(), group(Some("slow"))]);
    let (pod, other) = (scene.pod("a", "", "web"), scene.pod("b", "", ""));
    // In force when ADD returned.
    assert_eq!(rates(&scene, pod.link()), SLOW);
    assert_eq!(rates(&scene, other.link()), (None, None));
    scene.host.check(&pod.pod, &pod.result);

    // The profile changes. The shaper is changed in place.
    let before = shaper(&scene, pod.link());
    scene.apply(&[profile(&json!({ "ingress": { "rate": "24M" }, "egress": { "rate": "32M" } }))]);
    wait_for(&scene, &pod, (Some(3_000_000), Some(4_000_000)));
    assert_eq!(shaper(&scene, pod.link()), before);
    scene.apply(&[profile(&json!({ "egress": { "rate": "32M" } }))]);
    wait_for(&scene, &pod, (None, Some(4_000_000)));

    // The group changes, also while no agent runs.
    scene.apply(&[group(None)]);
    wait_for(&scene, &pod, (None, None));
    assert_eq!(ifb_links(&scene), "");
    scene.apply(&[slow(), group(Some("slow"))]);
    wait_for(&scene, &pod, SLOW);
    scene.host.agent.kill().unwrap();
    let shaper = shaper(&scene, pod.link()).unwrap();
    scene.node().sh(&["tc", "qdisc", "del", "dev", pod.link(), "root"]).unwrap();
    scene
        .node()
        .sh(&[
            "tc", "qdisc", "replace", "dev", &shaper, "root", "tbf", "rate", "8mbit", "burst", "20kb",
            "latency", "25ms",
        ])
        .unwrap();
    assert_eq!(rates(&scene, pod.link()), (None, Some(1_000_000)));
    scene.host.agent.launch().unwrap();
    scene.host.agent.wait_ready().unwrap();
    wait_for(&scene, &pod, SLOW);
    scene.host.check(&pod.pod, &pod.result);
    assert_eq!(rates(&scene, other.link()), (None, None));

    scene.host.del(&pod.pod);
    assert_eq!(ifb_links(&scene), "");
}

#[test]
fn limits_of_the_runtime_precede_the_profile_in_their_direction() {
    let scene = Scene::new("profile-runtime", &[]);
    scene.apply(&[slow(), group(Some("slow"))]);
    let pod = scene.host.pod("a");
    let mut config = placement("", "web");
    config["runtimeConfig"] =
        json!({ "bandwidth": { "ingressRate": 80_000_000, "ingressBurst": 8_000_000 } });
    let result = scene.host.add_with(&pod, &config);
    let pod = PlacedPod { pod, result };
    assert_eq!(rates(&scene, pod.link()), (Some(10_000_000), Some(2_000_000)));
    scene.apply(&[group(None)]);
    wait_for(&scene, &pod, (Some(10_000_000), None));
    assert_eq!(host_link(&pod.result), pod.link());
}
