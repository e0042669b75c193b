//! Rules and groups that were changed by another program or while the agent was down.

use std::net::SocketAddr;

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{Agent, DEADLINE, wait_until};

use crate::scene::{Connection, PlacedPod, Scene, document, network, tenant};

/// A long interval, so that only events can cause a repair.
const BY_EVENTS: [&str; 2] = ["--reconcile-seconds", "3600"];

fn scene(label: &str) -> (Scene, PlacedPod, PlacedPod) {
    let scene = Scene::new(label, &BY_EVENTS);
    scene.apply(&[tenant("blue"), tenant("red")]);
    scene.wait_for_table(true);
    let (blue, red) = (scene.pod("a", "blue", ""), scene.pod("b", "red", ""));
    scene.expect((&blue, &red), 80, false);
    (scene, blue, red)
}

#[test]
fn d_a_flushed_table_is_complete_again() {
    let (scene, blue, red) = scene("policy-flush");
    let before = scene.table();
    let address = crate::common::v4(&blue.result);
    let changes: [(&str, &dyn Fn()); 7] = [
        ("flush ruleset", &|| scene.nft("flush ruleset")),
        ("delete table", &|| scene.nft("delete table inet podwire-policy")),
        ("flush table", &|| scene.flush_table()),
        ("flush a map", &|| scene.nft("flush map inet podwire-policy class4")),
        ("delete one element", &|| {
            scene.nft(&format!("delete element inet podwire-policy class4 {{ {address} }}"));
        }),
        ("add one element", &|| scene.nft("add element inet podwire-policy class4 { 10.83.9.9 : 5:5 }")),
        ("delete half of the table", &|| {
            scene.nft("flush chain inet podwire-policy ingress");
            for chain in ["ingress-specific", "forward-policy"] {
                scene.nft(&format!("flush chain inet podwire-policy {chain}"));
            }
            for map in ["in_default", "in_peer_classes", "class6"] {
                scene.nft(&format!("flush map inet podwire-policy {map}"));
            }
        }),
    ];
    for (what, change) in changes {
        change();
        let restored = wait_until(what, DEADLINE, || Ok(scene.table() == before));
        let now = scene.table();
        let differing = |one: &[String], other: &[String]| -> Vec<String> {
            one.iter().filter(|part| !other.contains(part)).cloned().collect()
        };
        let (missing, surplus) = (differing(&before, &now), differing(&now, &before));
        assert!(restored.is_ok(), "{what}: missing {missing:#?}, surplus {surplus:#?}");
        scene.expect((&blue, &red), 80, false);
    }
}

#[test]
fn d_a_changed_group_of_a_link_is_restored() {
    let (scene, blue, red) = scene("policy-group");
    let group = blue.group(&scene);
    for other in ["default", &red.group(&scene), "77"] {
        scene.node().sh(&["ip", "link", "set", "dev", blue.link(), "group", other]).unwrap();
        let restored = wait_until("the group", DEADLINE, || Ok(blue.group(&scene) == group));
        assert!(restored.is_ok(), "{other}: {}", blue.group(&scene));
    }
    // A link that is created again.
    scene.node().sh(&["ip", "link", "del", "dev", blue.link()]).unwrap();
    let exists = || scene.node().run(&["ip", "link", "show", "dev", blue.link()], b"").unwrap().success();
    wait_until("the link", DEADLINE, || Ok(exists() && blue.group(&scene) == group)).unwrap();
    scene.expect((&blue, &red), 80, false);
    scene.expect((&blue, &blue), 80, true);
}

/// The agent does not run while the connections begin.
#[test]
fn d_connections_that_began_without_the_table_or_with_another_group_are_stopped() {
    let (scene, blue, red) = scene("policy-window");
    let groups = [(&blue, red.group(&scene)), (&red, blue.group(&scene))];
    let changes: [(&str, &dyn Fn()); 2] = [
        ("no table", &|| scene.nft("delete table inet podwire-policy")),
        ("exchanged groups", &|| {
            for (pod, group) in &groups {
                scene.node().sh(&["ip", "link", "set", "dev", pod.link(), "group", group]).unwrap();
            }
        }),
    ];
    for (port, (what, change)) in (5001..).zip(changes) {
        for ip in crate::common::ips(&red.result) {
            scene.host.agent.signal(Signal::STOP).unwrap();
            change();
            let mut connection = Connection::open((&blue, &red), SocketAddr::new(ip, port));
            assert!(connection.is_alive(), "{what}: {ip}");
            scene.host.agent.signal(Signal::CONT).unwrap();
            let stopped = wait_until("the flow to stop", DEADLINE, || {
                Ok(!connection.is_alive() && !connection.is_alive())
            });
            assert!(stopped.is_ok(), "{what}: {ip}");
            scene.expect((&blue, &red), 80, false);
        }
    }
}

fn start(scene: &mut Scene) {
    scene.host.agent.launch().unwrap();
    scene.host.agent.wait_ready().unwrap();
}

#[test]
fn d_rules_stay_without_the_agent_and_numbers_after_its_restart() {
    let (mut scene, blue, red) = scene("policy-restart");
    let (table, groups) = (scene.table(), [blue.group(&scene), red.group(&scene)]);
    scene.host.agent.kill().unwrap();
    assert_eq!(scene.table(), table);
    scene.expect((&blue, &red), 80, false);
    for _ in 0..3 {
        start(&mut scene);
        assert_eq!([blue.group(&scene), red.group(&scene)], groups);
        assert_eq!(scene.table(), table);
        scene.expect((&blue, &red), 80, false);
        scene.host.agent.kill().unwrap();
    }
    // Changed while no agent ran.
    scene.nft("delete table inet podwire-policy");
    scene.node().sh(&["ip", "link", "set", "dev", blue.link(), "group", "default"]).unwrap();
    start(&mut scene);
    wait_until("the table", DEADLINE, || Ok(scene.table() == table)).unwrap();
    assert_eq!([blue.group(&scene), red.group(&scene)], groups);
}

#[test]
fn d_elements_of_removed_pods_are_removed() {
    let (scene, blue, red) = scene("policy-del");
    let before = scene.table();
    let other = scene.pod("c", "blue", "");
    let address = crate::common::v4(&other.result).to_string();
    assert!(scene.table().concat().contains(&address));
    scene.host.del(&other.pod);
    wait_until("the elements", DEADLINE, || Ok(scene.table() == before)).unwrap();
    scene.host.del(&blue.pod);
    scene.host.del(&red.pod);
    wait_until("the profiles", DEADLINE, || Ok(!scene.table().concat().contains("0x5057"))).unwrap();
}

/// The agent removes them in the background, also if a pod gets the profile again meanwhile.
#[test]
fn d_port_ranges_of_removed_pods_are_removed() {
    let scene = Scene::new("policy-ranges", &["--reconcile-seconds", "1"]);
    let rule = |first: u16| {
        json!({ "direction": "in", "priority": first, "peer": { "group": "web" }, "protocol": "tcp",
            "port": format!("{}-{}", first * 100, first * 100 + 49), "action": "deny" })
    };
    let rules: Vec<Value> = (10..60).map(rule).collect();
    scene.apply(&[
        tenant("blue"),
        network("blue", "front"),
        document("Group", ("blue", "web"), &json!({ "network": "front" })),
        document("Group", ("blue", "db"), &json!({ "network": "front", "policies": ["ranges"] })),
        document("Policy", ("blue", "ranges"), &json!({ "rules": rules })),
    ]);
    scene.wait_for_table(true);
    let web = scene.pod("a", "blue", "web");
    let has_ranges = || scene.table().iter().any(|part| part.contains("5000-5049"));
    for name in ["b", "c", "d"] {
        let db = scene.pod(name, "blue", "db");
        scene.expect((&web, &db), 5049, false);
        scene.expect((&web, &db), 5050, true);
        assert!(has_ranges());
        scene.host.del(&db.pod);
    }
    wait_until("the port ranges to be removed", DEADLINE, || Ok(!has_ranges())).unwrap();
    // The comparisons meanwhile found no drift.
    let repairs = scene.host.agent.get("/v1/status").unwrap()["recentRepairs"].to_string();
    assert!(!repairs.contains("podwire-policy"), "{repairs}");
}

/// The agent uses the objects that it saved.
#[test]
fn d_policies_are_enforced_while_the_store_cannot_be_used() {
    let (mut scene, blue, red) = scene("policy-store");
    let saved = wait_until("the objects to be saved", DEADLINE, || {
        let found = std::fs::read_to_string(state_dir(&scene).join("objects.json")).unwrap_or_default();
        Ok(found.contains("blue") && found.contains("red"))
    });
    assert!(saved.is_ok());
    let table = scene.table();
    scene.host.agent.kill().unwrap();
    scene.nft("delete table inet podwire-policy");
    let store = state_dir(&scene).join("store");
    std::fs::rename(&store, store.with_extension("away")).unwrap();
    std::fs::write(&store, "not a directory").unwrap();
    start(&mut scene);
    wait_until("the table", DEADLINE, || Ok(scene.table() == table)).unwrap();
    let other = scene.pod("c", "blue", "");
    scene.expect((&blue, &other), 80, true);
    scene.expect((&other, &red), 80, false);
    // Changes are refused with the reason.
    let (status, answer) = scene.change(&[tenant("green")], &[], false);
    let error = answer["error"].as_str().unwrap_or_default();
    assert!(status >= 400 && error.contains("store"), "{status}: {answer}");
}

/// The tenant may be removed while a pod of it starts, or the store loses its data.
#[test]
fn d_a_pod_of_a_tenant_that_does_not_exist_stays_separated() {
    let mut scene = Scene::new("policy-orphan", &BY_EVENTS);
    scene.apply(&[tenant("blue")]);
    scene.wait_for_table(true);
    let (blue, other, default) =
        (scene.pod("a", "blue", ""), scene.pod("b", "blue", ""), scene.pod("c", "", ""));
    scene.host.agent.kill().unwrap();
    scene.nft("delete table inet podwire-policy");
    std::fs::remove_dir_all(state_dir(&scene).join("store")).unwrap();
    std::fs::remove_file(state_dir(&scene).join("objects.json")).unwrap();
    start(&mut scene);
    scene.wait_for_table(true);
    let mut known = String::new();
    let read = wait_until("the objects", DEADLINE, || {
        known = scene.host.agent.get("/v1/objects")?.to_string();
        Ok(true)
    });
    assert!(read.is_ok() && !known.contains("blue"), "{known}");
    scene.expect((&blue, &default), 80, false);
    scene.expect((&default, &blue), 80, false);
    scene.expect((&blue, &other), 80, true);
    scene.host.del(&blue.pod);
    scene.expect((&default, &other), 80, false);
    scene.host.del(&other.pod);
    scene.wait_for_table(false);
}

#[test]
fn d_another_agent_of_the_node_does_not_remove_the_table() {
    let (scene, blue, red) = scene("policy-second");
    let before = scene.table();
    let flags =
        ["--no-install", "--network-name=other", "--network-bridge=other0", "--network-subnet=10.98.0.0/24"];
    let node = &scene.host.node;
    let mut second = Agent::in_dir(node, &node.dir().join("second"), &flags).unwrap();
    // It would repair the table.
    scene.host.agent.signal(Signal::STOP).unwrap();
    second.launch().unwrap();
    second.wait_ready().unwrap();
    assert_eq!(scene.table(), before);
    scene.host.agent.signal(Signal::CONT).unwrap();
    scene.expect((&blue, &red), 80, false);
}

/// The state of the agent's network.
fn state_dir(scene: &Scene) -> std::path::PathBuf {
    scene.host.agent.run_dir().parent().unwrap().join("lib/podwire")
}
