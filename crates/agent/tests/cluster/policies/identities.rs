//! Records of pods in the store.

use std::net::IpAddr;

use model::{IdentityHash, KeyLayout, Object as _, PodRecord};
use testkit::{DEADLINE, TransportMode};
use types::NodeName;

use super::{PREFIX, PlacedPod, Tenants};
use crate::common::await_that;
use crate::store::StoreClient;

fn node(name: &str) -> NodeName {
    name.try_into().unwrap()
}

fn key(on: &str, address: IpAddr) -> String {
    KeyLayout::new(PREFIX, None).pod(&node(on), address)
}

/// The identity of a pod in the store.
fn identity(store: &StoreClient<'_>, pod: &PlacedPod) -> IdentityHash {
    let all = store.all();
    let value =
        all.get(&key(pod.node, pod.addresses[0])).unwrap_or_else(|| panic!("not published: {all:#?}"));
    PodRecord::decode(value.as_bytes()).unwrap().identity
}

fn pods_of(store: &StoreClient<'_>, name: &str) -> usize {
    let directory = KeyLayout::new(PREFIX, None).node_pods(&node(name));
    store.all().keys().filter(|key| key.starts_with(&directory)).count()
}

#[test]
fn d_only_the_owner_of_a_block_can_publish_its_pods() {
    let mut scene = Tenants::new("policy-records", TransportMode::Auto);
    let (blue, red) = (scene.pod("n1", "a", ("blue", "")), scene.pod("n2", "b", ("red", "")));
    scene.await_known("n1", &red, true);
    scene.await_known("n2", &blue, true);
    scene.expect((&red, &blue), 80, false);
    let store = StoreClient::of(&scene.cluster);
    let red_identity = identity(&store, &red);
    // A wrong record says that the pod is one of tenant red: at another node, at a node that does not exist, and at its own.
    let forged = PodRecord { identity: red_identity.clone(), uid: "x".to_owned(), name: "x".to_owned() };
    for owner in ["n2", "n3"] {
        blue.addresses.iter().for_each(|address| store.put(&key(owner, *address), &forged.encode()));
    }
    let blue_identity = identity(&store, &blue);
    blue.addresses.iter().for_each(|address| store.put(&key("n1", *address), &forged.encode()));
    await_that("the record to be repaired", DEADLINE, || identity(&store, &blue) == blue_identity);
    await_that("records without a pod to be removed", DEADLINE, || pods_of(&store, "n2") == 2);
    scene.expect((&red, &blue), 80, false);
    // A removed identity is written again.
    let identity_key = KeyLayout::new(PREFIX, None).identity(&blue_identity);
    store.delete(&identity_key);
    await_that("the identity", DEADLINE, || store.all().contains_key(&identity_key));
    scene.await_known("n2", &blue, true);

    // Pods of a node that is removed are not known any more.
    drop(store);
    scene.cluster.kill_agent("n2").unwrap();
    let alive = format!("{PREFIX}/alive/n2");
    StoreClient::of(&scene.cluster).delete(&alive);
    let agent = scene.cluster.agent("n1").unwrap();
    let socket = agent.socket().display().to_string();
    let removed = agent.podwire(&["node", "rm", "n2", "--socket", &socket]).unwrap();
    assert!(removed.success(), "{removed:?}");
    scene.await_known("n1", &red, false);
    assert_eq!(pods_of(&StoreClient::of(&scene.cluster), "n2"), 0);
    // It returns with its agent.
    scene.cluster.start_agent("n2").unwrap();
    scene.await_known("n1", &red, true);
}
