//! Agents that are killed during the join.

use std::time::Duration;

use ::store::Change;
use testkit::{Plan, Random, is_soak};

use super::{PREFIX, StoreClient, blocks_of, up_with};
use crate::common::{Streams, TIMEOUT, await_that, expect_reach};

/// Milliseconds from the start until well after the join on an idle host.
const JOINING: u64 = 150;

#[test]
fn an_agent_killed_while_joining_leaves_no_claim() {
    let plan = Plan { nodes: 3, ..Plan::default() };
    let mut cluster = up_with("joining", &plan, &["n1", "n2"]);
    let streams = Streams::between(&cluster, &[("p1", "p2"), ("p2", "p1")]);
    let before = StoreClient::of(&cluster).blocks();
    let mut random = Random::new("kills while joining");
    let state = cluster.node("n3").unwrap().dir().join("lib");
    for _ in 0..if is_soak() { 300 } else { 20 } {
        cluster.agent_mut("n3").unwrap().launch().unwrap();
        std::thread::sleep(Duration::from_millis(random.below(JOINING)));
        cluster.kill_agent("n3").unwrap();
        // The join is atomic. This checks all claims.
        let store_client = StoreClient::of(&cluster);
        let blocks = store_client.blocks().remove("n3").unwrap_or_default();
        assert!(blocks.len() <= 2, "{blocks:?}");
        if blocks.len() == 2 {
            // The node is removed permanently, so that it joins from scratch.
            let keys = blocks.iter().map(|block| store_client.layout.default_block(block));
            let keys = keys.chain(["nodes", "alive"].map(|kind| format!("{PREFIX}/{kind}/n3")));
            store_client.commit(&keys.map(Change::Delete).collect::<Vec<_>>());
            std::fs::remove_dir_all(&state).unwrap();
        }
    }
    cluster.start_agent("n3").unwrap();
    let store_client = StoreClient::of(&cluster);
    await_that("the record of n3", TIMEOUT, || store_client.has(&format!("{PREFIX}/nodes/n3")));
    let all = store_client.blocks();
    let own = &all["n3"];
    assert_eq!((own.len(), own.iter().filter(|block| block.addr().is_ipv4()).count()), (2, 1), "{own:?}");
    assert_eq!(blocks_of(cluster.agent("n3").unwrap()), *own);
    assert!(before.iter().all(|(node, blocks)| all[node] == *blocks), "{all:?} instead of {before:?}");
    cluster.pod("n3", "p3").unwrap();
    expect_reach(&cluster, TIMEOUT);
    streams.expect_no_loss();
}
