//! Name and blocks of a node go to another machine, while it was cut off for instance: it must not hand out their addresses.

use model::{AliveRecord, NodeRecord, Object as _};
use testkit::Plan;
use types::NodeUid;

use super::{Desk, PREFIX, await_no_problem, await_problem, blocks_of, up_with};
use crate::common::{Streams, TIMEOUT, await_that, expect_reach};

#[test]
fn a_node_whose_blocks_went_to_another_machine_gives_no_addresses_of_them() {
    let mut cluster = up_with("taken", &Plan { nodes: 2, ..Plan::default() }, &["n1", "n2"]);
    let streams = Streams::between(&cluster, &[("p1", "p2"), ("p2", "p1")]);
    let desk = Desk::of(&cluster);
    let (node, alive) = (format!("{PREFIX}/nodes/n1"), format!("{PREFIX}/alive/n1"));
    let record = NodeRecord::decode(desk.all()[&node].as_bytes()).unwrap();
    let uid = NodeUid::from_random([9; 16]);
    desk.put(&alive, &AliveRecord { uid: uid.clone(), since: 1 }.encode());
    desk.put(&node, &NodeRecord { uid, ..record.clone() }.encode());
    await_problem(cluster.agent("n1").unwrap(), &["the name n1 belongs to another machine"]);
    await_that("the node to be not ready", TIMEOUT, || !cluster.agent("n1").unwrap().is_ready());
    let refused = format!("{:#}", cluster.pod("n1", "none").expect_err("an address of another machine"));
    assert!(refused.contains("belongs to another machine"), "{refused}");
    // Also not after its agent began anew.
    cluster.kill_agent("n1").unwrap();
    cluster.agent_mut("n1").unwrap().launch().unwrap();
    await_that("the agent to answer", TIMEOUT, || cluster.agent("n1").unwrap().get(api::STATUS).is_ok());
    await_problem(cluster.agent("n1").unwrap(), &["the name n1 belongs to another machine"]);
    assert!(!cluster.agent("n1").unwrap().is_ready() && blocks_of(cluster.agent("n1").unwrap()).is_empty());

    // The other one goes.
    Desk::of(&cluster).delete(&alive);
    cluster.agent_mut("n1").unwrap().wait_ready().unwrap();
    await_no_problem(cluster.agent("n1").unwrap());
    assert_eq!(blocks_of(cluster.agent("n1").unwrap()), record.blocks);
    cluster.pod("n1", "late").unwrap();
    expect_reach(&cluster, TIMEOUT);
    streams.expect_whole();
}
