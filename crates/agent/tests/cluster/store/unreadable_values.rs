//! Values that cannot be decoded: of a newer version, or corrupt.

use api::{BlocksView, NodeView};
use testkit::Plan;

use super::{
    PREFIX, StoreClient, await_no_problem, await_ok_routes, await_problem, await_saved_peers, blocks_of,
    fake_node, fake_node_blocks, up_with,
};
use crate::common::{Streams, TIMEOUT, await_that, expect_reach};

#[test]
fn unreadable_values_are_reported_and_never_overwritten() {
    let plan = Plan { nodes: 3, ..Plan::default() };
    let mut cluster = up_with("contents", &plan, &["n1", "n2", "n3"]);
    let streams = Streams::between(&cluster, &[("p1", "p2"), ("p2", "p3"), ("p3", "p1")]);
    let node = |name: &str| format!("{PREFIX}/nodes/{name}");
    let newer = br#"{"schema":3,"node":{"name":"n3","where":"everywhere"}}"#;
    let unreadable: [(String, &[u8]); 4] = [
        (node("n3"), newer),
        (node("newer"), br#"{"schema":7,"node":{}}"#),
        (node("garbage"), b"\xff\xfe not JSON"),
        // A record of another node, which is not accepted under this name.
        (node("liar"), &fake_node(9).1),
    ];
    let store_client = StoreClient::of(&cluster);
    let readable = store_client.all().remove(&node("n3")).unwrap();
    unreadable.iter().for_each(|(key, value)| store_client.put(key, value));
    for name in ["n1", "n2"] {
        let agent = cluster.agent(name).unwrap();
        for word in ["nodes/n3", "nodes/newer", "nodes/garbage", "nodes/liar"] {
            await_problem(agent, &[word, "not used"]);
        }
        await_problem(agent, &["nodes/newer", "schema version 7 of a node is newer", "update podwire"]);
    }
    // `podwire nodes` shows these nodes and their problems, too.
    let n1 = cluster.agent("n1").unwrap();
    let nodes: Vec<NodeView> = serde_json::from_value(n1.get(api::NODES).unwrap()["nodes"].take()).unwrap();
    let problem_of = |name: &str| nodes.iter().find(|node| node.name == name).unwrap().message.as_deref();
    assert_eq!((nodes.len(), problem_of("n1"), problem_of("n2")), (6, None, None));
    for (name, word) in
        [("n3", "newer"), ("newer", "newer"), ("garbage", "nodes/garbage"), ("liar", "the record of")]
    {
        assert!(problem_of(name).unwrap().contains(word), "{name}: {:?}", problem_of(name));
    }
    assert!(nodes.iter().find(|node| node.name == "n3").unwrap().alive_since.is_some());
    let blocks: BlocksView = serde_json::from_value(n1.get(api::BLOCKS).unwrap()).unwrap();
    let of_n3: Vec<&str> = blocks.blocks.iter().filter_map(|view| view.message.as_deref()).collect();
    assert_eq!(of_n3, ["the record of n3 cannot be used: see `podwire nodes`"; 2]);
    // Restarts: agents list instead of receiving events. The last known state of n3 and its pods stays in force.
    let before = blocks_of(cluster.agent("n3").unwrap());
    await_saved_peers(&cluster, "n1", 2);
    await_saved_peers(&cluster, "n2", 2);
    for name in ["n1", "n2", "n3"] {
        cluster.kill_agent(name).unwrap();
        cluster.start_agent(name).unwrap();
    }
    await_problem(cluster.agent("n3").unwrap(), &["nodes/n3", "newer", "nothing was changed"]);
    await_problem(cluster.agent("n1").unwrap(), &["nodes/n3", "not used"]);
    await_ok_routes(cluster.agent("n1").unwrap(), 4);
    assert_eq!(blocks_of(cluster.agent("n3").unwrap()), before);
    cluster.pod("n3", "late").unwrap();
    expect_reach(&cluster, TIMEOUT);
    let store_client = StoreClient::of(&cluster);
    let all = store_client.with(async |store| store.list(&format!("{PREFIX}/nodes/")).await.unwrap());
    for (key, value) in &unreadable {
        let entry = all.entries.iter().find(|entry| entry.key == *key).unwrap();
        assert_eq!(entry.value, *value, "{key}");
    }
    assert!(!super::has_routes_to(cluster.node("n1").unwrap(), &fake_node_blocks(9)));
    // After the operator repaired the values, all conditions end.
    unreadable[1..].iter().for_each(|(key, _)| store_client.delete(key));
    store_client.put(&node("n3"), readable.as_bytes());
    for name in ["n1", "n2", "n3"] {
        await_no_problem(cluster.agent(name).unwrap());
        await_ok_routes(cluster.agent(name).unwrap(), 4);
    }
    assert_eq!(store_client.blocks()["n3"], before);
    streams.expect_no_loss();
}

#[test]
fn deleted_or_corrupt_keys_of_a_running_node_are_restored() {
    let cluster = up_with("repaired", &Plan { nodes: 2, ..Plan::default() }, &["n1", "n2"]);
    let (alive, record) = (format!("{PREFIX}/alive/n2"), format!("{PREFIX}/nodes/n2"));
    let store_client = StoreClient::of(&cluster);
    await_that("n2 to be alive", TIMEOUT, || store_client.all().contains_key(&alive));
    let readable = store_client.all().remove(&record).unwrap();
    store_client.put(&record, b"\xff\xfe not JSON");
    await_that("the record to be repaired", TIMEOUT, || store_client.all().get(&record) == Some(&readable));
    // Only the key is deleted. Its lease still exists.
    store_client.delete(&alive);
    await_that("n2 to be alive again", TIMEOUT, || store_client.all().contains_key(&alive));
    await_no_problem(cluster.agent("n1").unwrap());
    await_no_problem(cluster.agent("n2").unwrap());
    assert_eq!(store_client.all().get(&record), Some(&readable));
}
