//! An agent that is killed while it joins.

use std::time::Duration;

use ::store::Change;
use testkit::{Plan, Random, soak};

use super::{Desk, PREFIX, blocks_of, up_with};
use crate::common::{Streams, TIMEOUT, await_that, expect_reach};

/// From the start to a moment well after the join, on a machine that has time.
const JOINING: u64 = 150;

#[test]
fn an_agent_killed_while_it_joins_leaves_no_claim_behind() {
    let plan = Plan { nodes: 3, ..Plan::default() };
    let mut cluster = up_with("joining", &plan, &["n1", "n2"]);
    let streams = Streams::between(&cluster, &[("p1", "p2"), ("p2", "p1")]);
    let others = Desk::of(&cluster).blocks();
    let mut random = Random::new("kills while joining");
    let state = cluster.node("n3").unwrap().dir().join("lib");
    for _ in 0..if soak() { 300 } else { 20 } {
        cluster.agent_mut("n3").unwrap().launch().unwrap();
        std::thread::sleep(Duration::from_millis(random.below(JOINING)));
        cluster.kill_agent("n3").unwrap();
        // Whatever it did is whole: this looks at every claim.
        let desk = Desk::of(&cluster);
        let found = desk.blocks().remove("n3").unwrap_or_default();
        assert!(found.len() <= 2, "{found:?}");
        if found.len() == 2 {
            // Removed for good, it begins from the beginning.
            let keys = found.iter().map(|block| desk.layout.block(block));
            let keys = keys.chain(["nodes", "alive"].map(|kind| format!("{PREFIX}/{kind}/n3")));
            desk.commit(&keys.map(Change::Delete).collect::<Vec<_>>());
            std::fs::remove_dir_all(&state).unwrap();
        }
    }
    cluster.start_agent("n3").unwrap();
    let desk = Desk::of(&cluster);
    await_that("the record of n3", TIMEOUT, || desk.has(&format!("{PREFIX}/nodes/n3")));
    let all = desk.blocks();
    let own = &all["n3"];
    assert_eq!((own.len(), own.iter().filter(|block| block.addr().is_ipv4()).count()), (2, 1), "{own:?}");
    assert_eq!(blocks_of(cluster.agent("n3").unwrap()), *own);
    assert!(others.iter().all(|(node, blocks)| all[node] == *blocks), "{all:?} instead of {others:?}");
    cluster.pod("n3", "p3").unwrap();
    expect_reach(&cluster, TIMEOUT);
    streams.expect_whole();
}
