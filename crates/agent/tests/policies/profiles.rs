//! Profiles of groups: bandwidth limits that are applied at ADD and follow all changes on running pods.

use serde_json::{Value, json};
use testkit::{DEADLINE, wait_until};

use crate::common::{host_link, ips};
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

/// The DSCPs, of these candidates, of echo requests that arrive in a pod, for IPv4 and IPv6. The sender sets DSCP 10 itself.
fn received(from: &PlacedPod, to: &PlacedPod) -> [Vec<u8>; 2] {
    const CANDIDATES: [u8; 4] = [0, 10, 34, 46];
    let counter = |family: &str, value: u8| {
        let request = if family == "ip" { "icmp type echo-request" } else { "icmpv6 type echo-request" };
        format!("{request} {family} dscp {value} counter;")
    };
    let families = ["ip", "ip6"];
    let rules: String =
        families.iter().flat_map(|family| CANDIDATES.map(|value| counter(family, value))).collect();
    let table = "table inet count { }; delete table inet count; table inet count";
    to.pod
        .sh(&[
            "nft",
            &format!("{table} {{ chain c {{ type filter hook prerouting priority 0; {rules} }}; }}"),
        ])
        .unwrap();
    for ip in ips(&to.result) {
        from.pod.sh(&["ping", "-n", "-c", "1", "-W", "5", "-Q", "40", &ip.to_string()]).unwrap();
    }
    let listed = to.pod.sh(&["nft", "list", "table", "inet", "count"]).unwrap();
    let mut counters = listed
        .lines()
        .filter(|line| line.contains("counter packets"))
        .map(|line| !line.contains("packets 0 "));
    families.map(|_| CANDIDATES.iter().filter(|_| counters.next().unwrap()).copied().collect())
}

#[test]
fn packets_of_pods_get_the_dscp_of_their_profile() {
    let scene = Scene::new("profile-dscp", &[]);
    let dscp = |value: u8| profile(&json!({ "dscp": value }));
    let tables = || scene.node().sh(&["nft", "list", "tables"]).unwrap().contains("podwire-dscp-");
    let other = scene.pod("b", "", "");
    assert!(!tables());
    scene.apply(&[dscp(46), group(Some("slow"))]);
    let pod = scene.pod("a", "", "web");
    let wait_for = |expected: u8| {
        let reached =
            wait_until("the DSCP", DEADLINE, || Ok(received(&pod, &other) == [[expected], [expected]]));
        assert!(reached.is_ok(), "{:?} instead of {expected}", received(&pod, &other));
    };
    // The first pod does not wait for the table. The pod's own value is replaced.
    wait_for(46);
    assert_eq!(received(&other, &pod), [[10], [10]]);
    scene.host.check(&pod.pod, &pod.result);
    // In force when ADD returned, because the table exists.
    let second = scene.pod("second", "", "web");
    assert_eq!(received(&second, &other), [[46], [46]]);
    scene.apply(&[dscp(34)]);
    wait_for(34);
    // Other programs.
    for change in [
        "flush ruleset",
        "delete table inet podwire-dscp-podwire",
        "flush map inet podwire-dscp-podwire links",
    ] {
        scene.nft(change);
        wait_for(34);
    }
    scene.apply(&[group(None)]);
    wait_for(10);
    wait_until("the table to be removed", DEADLINE, || Ok(!tables())).unwrap();
    // A DEL and an ADD while the table exists.
    scene.apply(&[group(Some("slow"))]);
    wait_for(34);
    scene.host.del(&pod.pod);
    let links = || scene.node().sh(&["nft", "list", "map", "inet", "podwire-dscp-podwire", "links"]).unwrap();
    wait_until("the element to be removed", DEADLINE, || Ok(!links().contains(pod.link()))).unwrap();
}

/// Without a timer, so that only the change itself can correct a pod that was added with the earlier profile.
#[test]
fn pods_that_are_added_during_a_change_get_the_new_profile() {
    let scene = Scene::new("profile-race", &["--reconcile-seconds", "3600"]);
    let of = |n: u64| profile(&json!({ "ingress": { "rate": n * 8_000_000 }, "dscp": n }));
    scene.apply(&[of(40), group(Some("slow"))]);
    for n in 41..47 {
        let pod = std::thread::scope(|scope| {
            let adding = scope.spawn(|| scene.pod(&format!("p{n}"), "", "web"));
            scene.apply(&[of(n)]);
            adding.join().unwrap()
        });
        wait_for(&scene, &pod, (Some(n * 1_000_000), None));
        let element = format!(r#""{}" : goto dscp-{n}"#, pod.link());
        // The table may not exist yet.
        let list = ["nft", "list", "map", "inet", "podwire-dscp-podwire", "links"];
        let links = || scene.node().sh(&list).unwrap_or_default();
        let reached = wait_until("the DSCP", DEADLINE, || Ok(links().contains(&element)));
        assert!(reached.is_ok(), "{element}: {}", links());
    }
}
