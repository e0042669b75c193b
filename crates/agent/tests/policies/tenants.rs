//! Pods of different tenants cannot communicate, unless a share allows it.

use serde_json::json;
use testkit::ping;

use crate::common::{ips, v4};
use crate::scene::{Scene, document, tenant};

#[test]
fn d_pods_of_different_tenants_cannot_communicate() {
    let scene = Scene::new("tenants", &[]);
    let default = scene.pod("a", "", "");
    assert!(!scene.has_table(), "a node without objects has no table of policies");
    assert_eq!(default.group(&scene), "default");
    scene.apply(&[tenant("blue"), tenant("red")]);
    scene.wait_for_table(true);
    let (blue, other, red) =
        (scene.pod("b", "blue", ""), scene.pod("c", "blue", ""), scene.pod("d", "red", ""));
    scene.expect((&blue, &other), 80, true);
    for (from, to) in [(&blue, &red), (&red, &blue), (&blue, &default), (&default, &blue)] {
        scene.expect((from, to), 80, false);
    }
    // A pod always reaches itself, and the node its pods.
    scene.expect((&blue, &blue), 80, true);
    for ip in ips(&blue.result) {
        assert!(ping(scene.node(), ip, 1).unwrap().all(), "the node does not reach {ip}");
    }
    assert_eq!(blue.group(&scene), other.group(&scene), "pods with the same policies share a profile");
    assert_ne!(blue.group(&scene), red.group(&scene));
}

#[test]
fn d_enforcement_begins_and_ends_with_the_objects_and_affects_no_other_pod() {
    let scene = Scene::new("tenants-begin", &[]);
    let (one, other) = (scene.pod("a", "", ""), scene.pod("b", "", ""));
    let address = v4(&other.result);
    let pings = |count| ping(&one.pod, address, count).unwrap();
    for _ in 0..3 {
        scene.apply(&[tenant("blue")]);
        scene.wait_for_table(true);
        assert!(pings(2).all());
        assert_ne!(one.group(&scene), "default", "running pods get a group");
        scene.expect((&one, &other), 80, true);
        scene.remove(&[("Tenant", "", "blue")]);
        scene.wait_for_table(false);
        assert!(pings(2).all());
        scene.expect((&one, &other), 80, true);
    }
}

#[test]
fn d_a_share_opens_one_direction_and_port() {
    let scene = Scene::new("share", &[]);
    scene.apply(&[tenant("blue"), tenant("red")]);
    scene.wait_for_table(true);
    let (blue, red) = (scene.pod("a", "blue", ""), scene.pod("b", "red", ""));
    scene.expect((&red, &blue), 53, false);
    let spec = json!({ "with": ["red"], "ports": ["tcp/53"] });
    scene.apply(&[document("Share", ("blue", "dns"), &spec)]);
    scene.expect((&red, &blue), 53, true);
    scene.expect((&red, &blue), 54, false);
    scene.expect((&blue, &red), 53, false);
    scene.remove(&[("Share", "blue", "dns")]);
    scene.expect((&red, &blue), 53, false);
}
