//! Without etcd, the last known policies and pods stay in force.

use testkit::{DEADLINE, TransportMode};

use super::{Tenants, tenant};
use crate::common::await_that;

/// How many lines of the node's saved pods are those of pods.
fn saved_pods(scene: &Tenants, node: &str) -> usize {
    let file = scene.cluster.node(node).unwrap().dir().join("lib/podwire/pods.json");
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().filter(|line| line.contains("\"address\"")).count()
}

#[test]
fn d_policies_stay_in_force_without_etcd_also_after_a_boot() {
    let mut scene = Tenants::new("policy-outage", TransportMode::Auto);
    let (blue, red) = (scene.pod("n1", "a", ("blue", "")), scene.pod("n1", "b", ("red", "")));
    let before = [scene.pod("n2", "c", ("blue", "")), scene.pod("n2", "d", ("red", ""))];
    scene.expect((&blue, &before[0]), 80, true);
    await_that("the pods to be saved", DEADLINE, || saved_pods(&scene, "n2") == 4);
    scene.cluster.etcd.members[0].stop().unwrap();
    // The store learns about these later.
    let late = scene.pod("n1", "late", ("blue", ""));
    scene.del(&red);
    scene.cluster.kill_agent("n1").unwrap();
    scene.cluster.start_agent("n1").unwrap();
    scene.cluster.kill_node("n2").unwrap();
    scene.cluster.start_node("n2").unwrap();
    scene.await_table("n2");
    // The other node still has the pods of before the boot. So their addresses are assigned last, and a new pod is unknown.
    let new = scene.pod("n2", "new", ("blue", ""));
    let reused = before.iter().flat_map(|pod| &pod.addresses).any(|address| new.addresses.contains(address));
    assert!(!reused, "{:?}", new.addresses);
    scene.expect((&new, &blue), 80, false);
    // Pods that ask for these addresses show which policies are in force.
    let [other, other_tenant] = [("e", "blue", &before[0]), ("f", "red", &before[1])]
        .map(|(name, tenant, before)| scene.pod_at(("n2", name), (tenant, ""), &before.addresses));
    scene.expect((&blue, &other), 80, true);
    scene.expect((&other, &blue), 80, true);
    scene.expect((&other_tenant, &blue), 80, false);
    scene.await_known("n2", &red, true);
    scene.await_known("n2", &late, false);
    scene.expect((&other, &late), 80, false);
    let (status, answer) = scene.change("n2", &[tenant("green")], &[]);
    assert_eq!(status, 503, "{answer}");
    assert!(answer.to_string().contains("etcd at http"), "{answer}");

    // The agents of both nodes write what changed meanwhile.
    scene.cluster.start_etcd().unwrap();
    scene.await_known("n2", &late, true);
    scene.await_known("n2", &red, false);
    scene.expect((&late, &other), 80, true);
    scene.expect((&new, &blue), 80, true);
    scene.expect((&other_tenant, &late), 80, false);
}

#[test]
fn d_policies_stay_in_force_after_etcd_lost_its_data() {
    let mut scene = Tenants::new("policy-wiped", TransportMode::Auto);
    let (blue, red) = (scene.pod("n1", "a", ("blue", "")), scene.pod("n2", "b", ("red", "")));
    let other = scene.pod("n2", "c", ("blue", ""));
    scene.expect((&blue, &other), 80, true);
    let etcd = &mut scene.cluster.etcd.members[0];
    etcd.stop().unwrap();
    std::fs::remove_dir_all(etcd.node().dir().join("data")).unwrap();
    scene.cluster.start_etcd().unwrap();
    await_that("the tenants to be in the store", DEADLINE, || {
        let (status, objects) = scene.change("n1", &[tenant("blue")], &[]);
        status == 200 && objects["steps"][0]["action"] == "keep"
    });
    for node in ["n1", "n2"] {
        scene.await_known(node, &red, true);
        scene.await_known(node, &blue, true);
    }
    scene.expect((&blue, &other), 80, true);
    scene.expect((&blue, &red), 80, false);
    scene.expect((&red, &blue), 80, false);
}
