//! An etcd with three members, and compacted watches.

use std::time::Duration;

use rustix::process::Signal;
use testkit::{LabStore, Plan, TransportMode};

use super::{
    PREFIX, StoreClient, await_no_problem, await_ok_routes, await_routes, fake_node_at, fake_node_blocks,
    join_fake_node, put, up_with,
};
use crate::common::{Streams, TIMEOUT, expect_reach};

/// Attempts are repeated.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);

#[test]
fn the_watch_continues_after_the_etcd_leader_is_killed() {
    let plan = Plan { nodes: 2, store: LabStore::Etcd { members: 3 }, ..Plan::default() };
    let mut cluster = up_with("leader", &plan, &["n1", "n2"]);
    let streams = Streams::between(&cluster, &[("p1", "p2"), ("p2", "p1")]);
    for number in 1..=2 {
        let leader = cluster.etcd.leader().unwrap();
        cluster.etcd.members[leader].kill().unwrap();
        let change = join_fake_node(number);
        let store_client = StoreClient { host: cluster.node("n1").unwrap(), ..StoreClient::of(&cluster) };
        testkit::wait_until("a store that writes", TIMEOUT, || {
            // Without a leader, the store does not answer.
            let commit =
                async |store: ::store::Store| store.with_deadline(ATTEMPT_TIMEOUT).commit(&[], &change).await;
            Ok(store_client.with(commit).is_ok())
        })
        .unwrap();
        await_routes(&cluster, &["n1", "n2"], &fake_node_blocks(number));
        cluster.start_etcd().unwrap();
    }
    for node in ["n1", "n2"] {
        await_ok_routes(cluster.agent(node).unwrap(), 6);
        await_no_problem(cluster.agent(node).unwrap());
    }
    streams.expect_no_loss();
}

/// An agent does not read until etcd has more events than fit into the connection (4 MiB) and into its queue of the watch. Then
/// the events are compacted.
#[test]
fn a_compacted_watch_lists_the_store_again() {
    let plan = Plan { nodes: 2, transport: TransportMode::Direct, ..Plan::default() };
    let cluster = up_with("compacted", &plan, &["n1", "n2"]);
    let store_client = StoreClient::of(&cluster);
    for number in 1..=3 {
        store_client.commit(&join_fake_node(number));
    }
    await_ok_routes(cluster.agent("n2").unwrap(), 8);
    let streams = Streams::between(&cluster, &[("p1", "p2"), ("p2", "p1")]);
    cluster.agent("n2").unwrap().signal(Signal::STOP).unwrap();
    let filler = vec![b'x'; 1 << 20];
    let key = format!("{PREFIX}/nodes/filler");
    store_client.with(async |store| {
        for size in (0..8).map(|_| filler.len()).chain((0..400).map(|_| 100)) {
            store.commit(&[], &[put(&key, &filler[..size])]).await.unwrap();
        }
    });
    // One node is removed, one moves, one joins, and the filler is no node.
    let (moved, moved_value) = fake_node_at(2, 150);
    store_client.delete(&format!("{PREFIX}/nodes/fake1"));
    store_client.put(&moved, &moved_value);
    store_client.commit(&join_fake_node(4));
    store_client.delete(&key);
    let revision = store_client.with(async |store| store.list(&format!("{PREFIX}/")).await.unwrap().revision);
    let etcd = &cluster.etcd.members[0];
    let ctl = ["env", "ETCDCTL_API=3", "etcdctl", "--endpoints", etcd.endpoint(), "compact"];
    etcd.node().sh(&[&ctl[..], &[&revision.to_string()]].concat()).unwrap();
    cluster.agent("n2").unwrap().signal(Signal::CONT).unwrap();

    let agent = cluster.agent("n2").unwrap();
    await_routes(&cluster, &["n1", "n2"], &fake_node_blocks(4));
    await_ok_routes(agent, 8);
    let routes = agent.get(api::ROUTES).unwrap().to_string();
    assert!(routes.contains("10.199.1.150") && !routes.contains("10.42.101.0/24"), "{routes}");
    let log = agent.log().unwrap();
    assert!(log.contains("watch was compacted"), "etcd did not compact the watch:\n{log}");
    expect_reach(&cluster, TIMEOUT);
    streams.expect_no_loss();
}
