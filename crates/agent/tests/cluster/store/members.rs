//! etcd of three members, and watches that lose their place.

use std::time::Duration;

use rustix::process::Signal;
use testkit::{LabStore, Plan, TransportMode};

use super::{
    Desk, PREFIX, await_good_routes, await_no_problem, await_routes, ghost_at, ghost_blocks, ghost_joins,
    put, up_with,
};
use crate::common::{Streams, TIMEOUT, expect_reach};

/// Of one attempt; attempts are repeated.
const QUICK: Duration = Duration::from_secs(2);

#[test]
fn etcd_leader_of_three_killed_and_the_watch_goes_on() {
    let plan = Plan { nodes: 2, store: LabStore::Etcd { members: 3 }, ..Plan::default() };
    let mut cluster = up_with("leader", &plan, &["n1", "n2"]);
    let streams = Streams::between(&cluster, &[("p1", "p2"), ("p2", "p1")]);
    for number in 1..=2 {
        let leader = cluster.etcd.leader().unwrap();
        cluster.etcd.members[leader].kill().unwrap();
        let change = ghost_joins(number);
        let desk = Desk { host: cluster.node("n1").unwrap(), ..Desk::of(&cluster) };
        testkit::wait_until("a store that writes", TIMEOUT, || {
            // Whoever asks before there is another leader gets no answer.
            let commit = async |store: ::store::Store| store.with_deadline(QUICK).commit(&[], &change).await;
            Ok(desk.with(commit).is_ok())
        })
        .unwrap();
        await_routes(&cluster, &["n1", "n2"], &ghost_blocks(number));
        cluster.start_etcd().unwrap();
    }
    for node in ["n1", "n2"] {
        await_good_routes(cluster.agent(node).unwrap(), 6);
        await_no_problem(cluster.agent(node).unwrap());
    }
    streams.expect_whole();
}

/// An agent that does not read for so long that etcd cannot keep what it should hear: more than fits into the connection
/// (4 MiB) and into etcd's queue of the watch, then compacted.
#[test]
fn etcd_compacted_under_a_watch_everything_is_listed_again() {
    let plan = Plan { nodes: 2, transport: TransportMode::Direct, ..Plan::default() };
    let cluster = up_with("compacted", &plan, &["n1", "n2"]);
    let desk = Desk::of(&cluster);
    for number in 1..=3 {
        desk.commit(&ghost_joins(number));
    }
    await_good_routes(cluster.agent("n2").unwrap(), 8);
    let streams = Streams::between(&cluster, &[("p1", "p2"), ("p2", "p1")]);
    cluster.agent("n2").unwrap().signal(Signal::STOP).unwrap();
    let filler = vec![b'x'; 1 << 20];
    let key = format!("{PREFIX}/nodes/filler");
    desk.with(async |store| {
        for size in (0..8).map(|_| filler.len()).chain((0..400).map(|_| 100)) {
            store.commit(&[], &[put(&key, &filler[..size])]).await.unwrap();
        }
    });
    // One goes, one moves, one comes, and the filler is no node.
    let (moved, moved_value) = ghost_at(2, 150);
    desk.delete(&format!("{PREFIX}/nodes/ghost1"));
    desk.put(&moved, &moved_value);
    desk.commit(&ghost_joins(4));
    desk.delete(&key);
    let now = desk.with(async |store| store.list(&format!("{PREFIX}/")).await.unwrap().revision);
    let etcd = &cluster.etcd.members[0];
    let ctl = ["env", "ETCDCTL_API=3", "etcdctl", "--endpoints", etcd.endpoint(), "compact"];
    etcd.node().sh(&[&ctl[..], &[&now.to_string()]].concat()).unwrap();
    cluster.agent("n2").unwrap().signal(Signal::CONT).unwrap();

    let agent = cluster.agent("n2").unwrap();
    await_routes(&cluster, &["n1", "n2"], &ghost_blocks(4));
    await_good_routes(agent, 8);
    let routes = agent.get(api::ROUTES).unwrap().to_string();
    assert!(routes.contains("10.199.1.150") && !routes.contains("10.42.101.0/24"), "{routes}");
    let log = agent.log().unwrap();
    assert!(log.contains("everything is listed again"), "etcd did not compact under the watch:\n{log}");
    expect_reach(&cluster, TIMEOUT);
    streams.expect_whole();
}
