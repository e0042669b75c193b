//! The store loses its data: nodes register again with the same blocks, and nothing changes. This includes nodes without a
//! running agent.

use std::collections::BTreeMap;

use ipnet::IpNet;
use testkit::{Cluster, Plan};

use super::{PREFIX, StoreClient, await_ok_routes, join_fake_node, mixed, remove_fake_node, up_with};
use crate::common::{Streams, TIMEOUT, await_that, expect_reach, up};

const PAIRS: [(&str, &str); 4] = [("p1", "p2"), ("p2", "p3"), ("p3", "p1"), ("p1", "p3")];

/// Waits until the store has exactly these nodes, each with its initial blocks.
#[track_caller]
fn await_registered(cluster: &Cluster, before: &BTreeMap<String, Vec<IpNet>>, nodes: &[&str]) {
    let store_client = StoreClient::of(cluster);
    let keys: Vec<String> = nodes.iter().map(|node| format!("{PREFIX}/nodes/{node}")).collect();
    await_that(&format!("{nodes:?} in the store"), TIMEOUT, || keys.iter().all(|key| store_client.has(key)));
    let blocks = store_client.blocks();
    assert_eq!(blocks.keys().collect::<Vec<_>>(), nodes);
    assert!(nodes.iter().all(|node| blocks[*node] == before[*node]), "{blocks:?} instead of {before:?}");
}

#[test]
fn nodes_keep_their_blocks_after_all_keys_were_deleted() {
    let mut cluster = up("deleted", &Plan::default());
    let before = StoreClient::of(&cluster).blocks();
    let streams = Streams::between(&cluster, &PAIRS);
    cluster.kill_agent("n3").unwrap();
    // The second deletion checks that the agents still keep the routes to n3 until it registers again.
    for _ in 0..2 {
        let etcd = &cluster.etcd.members[0];
        let ctl = ["env", "ETCDCTL_API=3", "etcdctl", "--endpoints", etcd.endpoint()];
        etcd.node().sh(&[&ctl[..], &["del", "--prefix", &format!("{PREFIX}/")]].concat()).unwrap();
        await_registered(&cluster, &before, &["n1", "n2"]);
        for node in ["n1", "n2"] {
            await_ok_routes(cluster.agent(node).unwrap(), 4);
        }
    }
    // The watch breaks before n3 registers. The next listing does not contain n3 either.
    cluster.etcd.members[0].kill().unwrap();
    cluster.start_etcd().unwrap();
    let store_client = StoreClient::of(&cluster);
    store_client.commit(&join_fake_node(1));
    for node in ["n1", "n2"] {
        await_ok_routes(cluster.agent(node).unwrap(), 6);
    }
    store_client.commit(&remove_fake_node(1));
    cluster.start_agent("n3").unwrap();
    await_registered(&cluster, &before, &["n1", "n2", "n3"]);
    for node in ["n1", "n2", "n3"] {
        await_ok_routes(cluster.agent(node).unwrap(), 4);
    }
    expect_reach(&cluster, TIMEOUT);
    streams.expect_no_loss();
}

#[test]
fn nodes_keep_their_blocks_after_etcd_lost_its_data() {
    let mut cluster = up_with("emptied", &mixed(), &["n1", "n2", "n3"]);
    let before = StoreClient::of(&cluster).blocks();
    let streams = Streams::between(&cluster, &PAIRS);
    cluster.kill_agent("n3").unwrap();
    let etcd = &mut cluster.etcd.members[0];
    etcd.stop().unwrap();
    std::fs::remove_dir_all(etcd.node().dir().join("data")).unwrap();
    cluster.start_etcd().unwrap();
    await_registered(&cluster, &before, &["n1", "n2"]);
    for node in ["n1", "n2"] {
        await_ok_routes(cluster.agent(node).unwrap(), 4);
    }
    cluster.start_agent("n3").unwrap();
    await_registered(&cluster, &before, &["n1", "n2", "n3"]);
    await_ok_routes(cluster.agent("n3").unwrap(), 4);
    expect_reach(&cluster, TIMEOUT);
    streams.expect_no_loss();
}
