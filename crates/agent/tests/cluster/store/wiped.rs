//! The store forgets everything: nodes write down again what they have, and nothing moves, also not what belongs to a node
//! whose agent is down just then.

use std::collections::BTreeMap;

use ipnet::IpNet;
use testkit::{Cluster, Plan};

use super::{Desk, PREFIX, await_good_routes, ghost_joins, ghost_leaves, mixed, up_with};
use crate::common::{Streams, TIMEOUT, await_that, expect_reach, up};

const PAIRS: [(&str, &str); 4] = [("p1", "p2"), ("p2", "p3"), ("p3", "p1"), ("p1", "p3")];

/// Waits until the store has these nodes and no others, each with what it had.
#[track_caller]
fn await_registered(cluster: &Cluster, before: &BTreeMap<String, Vec<IpNet>>, nodes: &[&str]) {
    let desk = Desk::of(cluster);
    let keys: Vec<String> = nodes.iter().map(|node| format!("{PREFIX}/nodes/{node}")).collect();
    await_that(&format!("{nodes:?} in the store"), TIMEOUT, || keys.iter().all(|key| desk.has(key)));
    let found = desk.blocks();
    assert_eq!(found.keys().collect::<Vec<_>>(), nodes);
    assert!(nodes.iter().all(|node| found[*node] == before[*node]), "{found:?} instead of {before:?}");
}

#[test]
fn etcd_keys_deleted_nodes_register_again_and_nothing_moves() {
    let mut cluster = up("deleted", &Plan::default());
    let before = Desk::of(&cluster).blocks();
    let streams = Streams::between(&cluster, &PAIRS);
    cluster.kill_agent("n3").unwrap();
    // The second time the others have not forgotten whom they wait for.
    for _ in 0..2 {
        let etcd = &cluster.etcd.members[0];
        let ctl = ["env", "ETCDCTL_API=3", "etcdctl", "--endpoints", etcd.endpoint()];
        etcd.node().sh(&[&ctl[..], &["del", "--prefix", &format!("{PREFIX}/")]].concat()).unwrap();
        await_registered(&cluster, &before, &["n1", "n2"]);
        for node in ["n1", "n2"] {
            await_good_routes(cluster.agent(node).unwrap(), 4);
        }
    }
    // A watch that breaks while they wait: the list that follows knows n3 no more than the last one.
    cluster.etcd.members[0].kill().unwrap();
    cluster.start_etcd().unwrap();
    let desk = Desk::of(&cluster);
    desk.commit(&ghost_joins(1));
    for node in ["n1", "n2"] {
        await_good_routes(cluster.agent(node).unwrap(), 6);
    }
    desk.commit(&ghost_leaves(1));
    cluster.start_agent("n3").unwrap();
    await_registered(&cluster, &before, &["n1", "n2", "n3"]);
    for node in ["n1", "n2", "n3"] {
        await_good_routes(cluster.agent(node).unwrap(), 4);
    }
    expect_reach(&cluster, TIMEOUT);
    streams.expect_whole();
}

#[test]
fn etcd_data_removed_nodes_register_again_and_nothing_moves() {
    let mut cluster = up_with("emptied", &mixed(), &["n1", "n2", "n3"]);
    let before = Desk::of(&cluster).blocks();
    let streams = Streams::between(&cluster, &PAIRS);
    cluster.kill_agent("n3").unwrap();
    let etcd = &mut cluster.etcd.members[0];
    etcd.stop().unwrap();
    std::fs::remove_dir_all(etcd.node().dir().join("data")).unwrap();
    cluster.start_etcd().unwrap();
    await_registered(&cluster, &before, &["n1", "n2"]);
    for node in ["n1", "n2"] {
        await_good_routes(cluster.agent(node).unwrap(), 4);
    }
    cluster.start_agent("n3").unwrap();
    await_registered(&cluster, &before, &["n1", "n2", "n3"]);
    await_good_routes(cluster.agent("n3").unwrap(), 4);
    expect_reach(&cluster, TIMEOUT);
    streams.expect_whole();
}
