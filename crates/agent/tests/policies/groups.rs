//! Rules of groups, and placements of pods.

use std::net::SocketAddr;

use serde_json::{Value, json};
use testkit::{DEADLINE, wait_until};

use crate::common::{ips, v4};
use crate::scene::{Connection, Scene, document, network, placement, tenant};

fn deny_web_to_db() -> [Value; 5] {
    let rule = json!({ "direction": "in", "priority": 10, "peer": { "group": "web" }, "protocol": "tcp",
        "port": 5432, "action": "deny" });
    [
        tenant("blue"),
        network("blue", "front"),
        document("Group", ("blue", "web"), &json!({ "network": "front" })),
        document("Group", ("blue", "db"), &json!({ "network": "front", "policies": ["from-web"] })),
        document("Policy", ("blue", "from-web"), &json!({ "rules": [rule] })),
    ]
}

#[test]
fn d_rules_of_a_group_are_enforced_and_follow_their_policy() {
    let scene = Scene::new("groups", &[]);
    let objects = deny_web_to_db();
    scene.apply(&objects);
    scene.wait_for_table(true);
    let (web, db, other) =
        (scene.pod("a", "blue", "web"), scene.pod("b", "blue", "db"), scene.pod("c", "blue", ""));
    scene.expect((&web, &db), 5432, false);
    scene.expect((&web, &db), 5433, true);
    scene.expect((&other, &db), 5432, true);
    scene.expect((&db, &web), 5432, true);
    // The policy changes while the pods run.
    scene.apply(&[document("Policy", ("blue", "from-web"), &json!({ "rules": [] }))]);
    scene.expect((&web, &db), 5432, true);
    scene.apply(&objects);
    scene.expect((&web, &db), 5432, false);
}

/// The second pass finds flows that the first one did not.
#[test]
fn d_a_forbidden_connection_stops_until_it_is_allowed_again() {
    let scene = Scene::new("policy-flows", &[]);
    let objects = deny_web_to_db();
    scene.apply(&objects[..3]);
    scene.apply(&[document("Group", ("blue", "db"), &json!({ "network": "front" }))]);
    scene.wait_for_table(true);
    let (web, db) = (scene.pod("a", "blue", "web"), scene.pod("b", "blue", "db"));
    for ip in ips(&db.result) {
        let mut connection = Connection::open((&web, &db), SocketAddr::new(ip, 5432));
        let mut is_alive = || connection.is_alive();
        assert!(is_alive(), "{ip}");
        scene.apply(&objects);
        let stopped = wait_until("the flow to stop", DEADLINE, || Ok(!is_alive() && !is_alive()));
        assert!(stopped.is_ok(), "{ip}");
        scene.apply(&[document("Policy", ("blue", "from-web"), &json!({ "rules": [] }))]);
        let continued = wait_until("the flow to continue", DEADLINE, || Ok(is_alive()));
        assert!(continued.is_ok(), "{ip}");
    }
}

#[test]
fn b10_unknown_names_are_refused_with_the_names_that_exist() {
    let scene = Scene::new("placement", &[]);
    scene.apply(&deny_web_to_db());
    let pod = scene.host.pod("refused");
    for (tenant, group, expected) in [
        ("blu", "", "tenant blu does not exist; the tenants are: blue, default"),
        ("blue", "wep", "group wep of tenant blue does not exist; the groups of tenant blue are: db, web"),
        ("", "web", "group web of tenant default does not exist; there are no groups of tenant default"),
    ] {
        let config = scene.host.config(&placement(tenant, group));
        let error = scene.host.plugin.add(&pod, &config).unwrap().error().unwrap();
        assert!(error.msg.contains(expected), "{error:?}");
    }
    // Nothing was changed: the next pods get the first address of the network of their group, and of the default network.
    let pod = scene.pod("a", "blue", "web");
    assert_eq!(v4(&pod.result).to_string(), "10.99.0.2");
    let pod = scene.pod("b", "blue", "");
    assert_eq!(v4(&pod.result).to_string(), "10.83.0.2");
}

#[test]
fn d_mode_bridge_refuses_placements_that_need_policies() {
    let scene = Scene::new("policy-bridge", &["--network-mode", "bridge"]);
    scene.apply(&deny_web_to_db());
    let default = scene.pod("a", "", "");
    assert_eq!(default.group(&scene), "default");
    let pod = scene.host.pod("b");
    let config = scene.host.config(&placement("blue", ""));
    let error = scene.host.plugin.add(&pod, &config).unwrap().error().unwrap();
    assert!(error.msg.contains("not enforced in mode bridge"), "{error:?}");
    assert!(!scene.has_table());
    let status = scene.host.agent.get("/v1/status").unwrap();
    assert!(status["conditions"].to_string().contains("PolicyNotEnforced"), "{status}");
}
