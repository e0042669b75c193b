//! Another host takes the name and blocks of a node, for example while the node is disconnected. The node must not allocate
//! their addresses.

use model::{AliveRecord, NodeRecord, Object as _};
use testkit::Plan;
use types::NodeUid;

use super::{PREFIX, StoreClient, await_no_problem, await_problem, blocks_of, up_with};
use crate::common::{Streams, TIMEOUT, await_that, expect_reach};

#[test]
fn a_node_allocates_no_addresses_of_lost_blocks() {
    let mut cluster = up_with("taken", &Plan { nodes: 2, ..Plan::default() }, &["n1", "n2"]);
    let streams = Streams::between(&cluster, &[("p1", "p2"), ("p2", "p1")]);
    let store_client = StoreClient::of(&cluster);
    let (node, alive) = (format!("{PREFIX}/nodes/n1"), format!("{PREFIX}/alive/n1"));
    let record = NodeRecord::decode(store_client.all()[&node].as_bytes()).unwrap();
    let uid = NodeUid::from_random([9; 16]);
    store_client.put(&alive, &AliveRecord { uid: uid.clone(), since: 1 }.encode());
    store_client.put(&node, &NodeRecord { uid, ..record.clone() }.encode());
    await_problem(cluster.agent("n1").unwrap(), &["the name n1 belongs to another host"]);
    await_that("the node to be not ready", TIMEOUT, || !cluster.agent("n1").unwrap().is_ready());
    let refused = format!("{:#}", cluster.pod("n1", "none").expect_err("an address of another host"));
    assert!(refused.contains("belongs to another host"), "{refused}");
    // The same after a restart of the agent.
    cluster.kill_agent("n1").unwrap();
    cluster.agent_mut("n1").unwrap().launch().unwrap();
    await_that("the agent to answer", TIMEOUT, || cluster.agent("n1").unwrap().get(api::STATUS).is_ok());
    await_problem(cluster.agent("n1").unwrap(), &["the name n1 belongs to another host"]);
    assert!(!cluster.agent("n1").unwrap().is_ready() && blocks_of(cluster.agent("n1").unwrap()).is_empty());

    // The other host releases the name.
    StoreClient::of(&cluster).delete(&alive);
    cluster.agent_mut("n1").unwrap().wait_ready().unwrap();
    await_no_problem(cluster.agent("n1").unwrap());
    assert_eq!(blocks_of(cluster.agent("n1").unwrap()), record.blocks.to_vec());
    cluster.pod("n1", "late").unwrap();
    expect_reach(&cluster, TIMEOUT);
    streams.expect_no_loss();
}
