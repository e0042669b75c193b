//! Values that nobody here can read: from a newer version, or damaged.

use api::{BlocksView, NodeView};
use testkit::Plan;

use super::{
    Desk, PREFIX, await_good_routes, await_no_problem, await_problem, await_saved_peers, blocks_of, ghost,
    ghost_blocks, up_with,
};
use crate::common::{SOON, Streams, TIMEOUT, await_that, expect_reach};

#[test]
fn values_that_cannot_be_read_are_told_and_never_overwritten() {
    let plan = Plan { nodes: 3, ..Plan::default() };
    let mut cluster = up_with("contents", &plan, &["n1", "n2", "n3"]);
    let streams = Streams::between(&cluster, &[("p1", "p2"), ("p2", "p3"), ("p3", "p1")]);
    let node = |name: &str| format!("{PREFIX}/nodes/{name}");
    let newer = br#"{"schema":2,"node":{"name":"n3","where":"everywhere"}}"#;
    let bad: [(String, &[u8]); 4] = [
        (node("n3"), newer),
        (node("newer"), br#"{"schema":7,"node":{}}"#),
        (node("garbage"), b"\xff\xfe not JSON"),
        // The record of another: a node speaks for itself only.
        (node("liar"), &ghost(9).1),
    ];
    let desk = Desk::of(&cluster);
    let good = desk.all().remove(&node("n3")).unwrap();
    bad.iter().for_each(|(key, value)| desk.put(key, value));
    for name in ["n1", "n2"] {
        let agent = cluster.agent(name).unwrap();
        for word in ["nodes/n3", "nodes/newer", "nodes/garbage", "nodes/liar"] {
            await_problem(agent, &[word, "not used"]);
        }
        await_problem(agent, &["nodes/newer", "schema version 7 is newer", "update podwire"]);
    }
    // Whoever asks for the nodes sees them, too, and what is wrong with them.
    let n1 = cluster.agent("n1").unwrap();
    let shown: Vec<NodeView> = serde_json::from_value(n1.get(api::NODES).unwrap()["nodes"].take()).unwrap();
    let problem_of = |name: &str| shown.iter().find(|node| node.name == name).unwrap().message.as_deref();
    assert_eq!((shown.len(), problem_of("n1"), problem_of("n2")), (6, None, None));
    for (name, why) in
        [("n3", "newer"), ("newer", "newer"), ("garbage", "nodes/garbage"), ("liar", "the record of")]
    {
        assert!(problem_of(name).unwrap().contains(why), "{name}: {:?}", problem_of(name));
    }
    assert!(shown.iter().find(|node| node.name == "n3").unwrap().alive_since.is_some());
    let blocks: BlocksView = serde_json::from_value(n1.get(api::BLOCKS).unwrap()).unwrap();
    let of_n3: Vec<&str> = blocks.blocks.iter().filter_map(|view| view.message.as_deref()).collect();
    assert_eq!(of_n3, ["the record of n3 is of no use: see `podwire nodes`"; 2]);
    // All begin anew: by a list instead of news. What is known of n3 stays in force, as do its pods.
    let before = blocks_of(cluster.agent("n3").unwrap());
    await_saved_peers(&cluster, "n1", 2);
    await_saved_peers(&cluster, "n2", 2);
    for name in ["n1", "n2", "n3"] {
        cluster.kill_agent(name).unwrap();
        cluster.start_agent(name).unwrap();
    }
    await_problem(cluster.agent("n3").unwrap(), &["nodes/n3", "newer", "nothing was changed"]);
    await_problem(cluster.agent("n1").unwrap(), &["nodes/n3", "not used"]);
    await_good_routes(cluster.agent("n1").unwrap(), 4);
    assert_eq!(blocks_of(cluster.agent("n3").unwrap()), before);
    cluster.pod("n3", "late").unwrap();
    expect_reach(&cluster, SOON);
    let desk = Desk::of(&cluster);
    let all = desk.with(async |store| store.list(&format!("{PREFIX}/nodes/")).await.unwrap());
    for (key, value) in &bad {
        let found = all.entries.iter().find(|entry| entry.key == *key).unwrap();
        assert_eq!(found.value, *value, "{key}");
    }
    assert!(!super::leads_to(cluster.node("n1").unwrap(), &ghost_blocks(9)));
    // Somebody cleans up: nothing is left to tell.
    bad[1..].iter().for_each(|(key, _)| desk.delete(key));
    desk.put(&node("n3"), good.as_bytes());
    for name in ["n1", "n2", "n3"] {
        await_no_problem(cluster.agent(name).unwrap());
        await_good_routes(cluster.agent(name).unwrap(), 4);
    }
    assert_eq!(desk.blocks()["n3"], before);
    streams.expect_whole();
}

#[test]
fn what_is_deleted_or_damaged_of_a_node_that_lives_is_written_again() {
    let cluster = up_with("mended", &Plan { nodes: 2, ..Plan::default() }, &["n1", "n2"]);
    let (alive, record) = (format!("{PREFIX}/alive/n2"), format!("{PREFIX}/nodes/n2"));
    let desk = Desk::of(&cluster);
    await_that("n2 to be alive", TIMEOUT, || desk.all().contains_key(&alive));
    let good = desk.all().remove(&record).unwrap();
    desk.put(&record, b"\xff\xfe not JSON");
    await_that("the record to be mended", SOON, || desk.all().get(&record) == Some(&good));
    // The key alone: its lease lives on.
    desk.delete(&alive);
    await_that("n2 to be alive again", TIMEOUT, || desk.all().contains_key(&alive));
    await_no_problem(cluster.agent("n1").unwrap());
    await_no_problem(cluster.agent("n2").unwrap());
    assert_eq!(desk.all().get(&record), Some(&good));
}
