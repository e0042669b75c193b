//! Tenants, shares and groups decide about flows between nodes, over both transports and in both families.

use std::time::Instant;

use serde_json::json;
use testkit::TransportMode;

use super::{Tenants, document};

fn expect_verdicts(label: &str, transport: TransportMode) -> Tenants {
    let scene = Tenants::new(label, transport);
    let rule = json!({ "direction": "in", "priority": 10, "peer": { "group": "web" }, "protocol": "tcp",
        "port": 5432, "action": "deny" });
    let front = json!({ "subnets": ["10.99.0.0/16", "fd00:99::/64"] });
    scene.apply(&[
        document("Network", ("blue", "front"), &front),
        document("Group", ("blue", "web"), &json!({ "network": "front" })),
        document("Group", ("blue", "db"), &json!({ "network": "front", "policies": ["from-web"] })),
        document("Policy", ("blue", "from-web"), &json!({ "rules": [rule] })),
    ]);
    let (web, db) = (scene.pod("n1", "a", ("blue", "web")), scene.pod("n2", "b", ("blue", "db")));
    let (red, default) = (scene.pod("n2", "c", ("red", "")), scene.pod("n1", "d", ("", "")));
    scene.expect((&web, &db), 80, true);
    scene.expect((&web, &db), 5432, false);
    scene.expect((&db, &web), 5432, true);
    for (from, to) in [(&web, &red), (&red, &web), (&default, &red), (&red, &default)] {
        scene.expect((from, to), 80, false);
    }
    let share = document("Share", ("blue", "dns"), &json!({ "with": ["red"], "ports": ["tcp/53"] }));
    scene.apply(&[share]);
    scene.expect((&red, &web), 53, true);
    scene.expect((&red, &web), 54, false);
    scene.expect((&web, &red), 53, false);
    scene.remove(&[("Share", "blue", "dns")]);
    scene.expect((&red, &web), 53, false);
    scene
}

#[test]
fn d_pods_of_different_nodes_are_judged_by_their_groups_when_the_transport_is_direct() {
    expect_verdicts("policy-direct", TransportMode::Direct);
}

/// It also prints how long it takes until a new pod is known on the other node. `nft get` takes some milliseconds of it.
#[test]
fn d_pods_of_different_nodes_are_judged_by_their_groups_when_the_transport_is_vxlan() {
    let scene = expect_verdicts("policy-vxlan", TransportMode::Vxlan);
    let mut took: Vec<_> = (0..20)
        .map(|number| {
            let pod = scene.pod("n1", &format!("new{number}"), ("blue", ""));
            let added = Instant::now();
            scene.await_known("n2", &pod, true);
            added.elapsed()
        })
        .collect();
    took.sort();
    println!("from ADD to the other node's kernel: median {:?}, longest of 20 {:?}", took[10], took[19]);
    let pod = scene.pod("n1", "gone", ("blue", ""));
    scene.await_known("n2", &pod, true);
    scene.del(&pod);
    scene.await_known("n2", &pod, false);
}
