//! etcd stopped, killed, frozen, out of reach.

use rustix::process::Signal;
use testkit::{Cluster, Plan, soak};

use super::{
    Desk, await_good_routes, await_no_problem, await_problem, await_routes, await_saved_peers, blocks_of,
    ghost_blocks, ghost_joins, mixed, problems, up_with,
};
use crate::common::{PATIENCE, SOON, Streams, await_that, expect_reach};

#[test]
fn etcd_stopped_and_started_pods_come_and_go_meanwhile() {
    let mut cluster = up_with("stopped", &mixed(), &["n1", "n2"]);
    let streams = Streams::between(&cluster, &[("p1", "p2"), ("p2", "p1")]);
    cluster.etcd.members[0].stop().unwrap();
    for node in ["n1", "n2"] {
        let told = await_problem(cluster.agent(node).unwrap(), &["/podwire/", "since 20"]);
        assert!(told.ends_with('Z'), "{told}");
        assert!(cluster.agent(node).unwrap().is_ready());
    }
    // Each node gives addresses of its own block.
    cluster.pod("n1", "late1").unwrap();
    cluster.pod("n2", "late2").unwrap();
    expect_reach(&cluster, SOON);
    cluster.remove_pod("late1").unwrap();
    // An agent that starts now has what it remembers.
    let before = blocks_of(cluster.agent("n2").unwrap());
    cluster.kill_agent("n2").unwrap();
    cluster.start_agent("n2").unwrap();
    assert_eq!(blocks_of(cluster.agent("n2").unwrap()), before);
    cluster.pod("n2", "later2").unwrap();
    cluster.remove_pod("late2").unwrap();
    expect_reach(&cluster, SOON);

    cluster.start_etcd().unwrap();
    for node in ["n1", "n2"] {
        await_no_problem(cluster.agent(node).unwrap());
    }
    // One that comes now is learned of by all.
    cluster.start_agent("n3").unwrap();
    cluster.pod("n3", "p3").unwrap();
    let blocks = blocks_of(cluster.agent("n3").unwrap());
    await_routes(&cluster, &["n1", "n2"], &blocks);
    expect_reach(&cluster, SOON);
    streams.expect_whole();
}

#[test]
fn etcd_killed_a_node_boots_and_knows_its_peers() {
    let mut cluster = up_with("booted", &mixed(), &["n1", "n2", "n3"]);
    // A crash in the first moments of a node's life is not what this is about.
    await_saved_peers(&cluster, "n2", 2);
    let before = blocks_of(cluster.agent("n2").unwrap());
    let streams = Streams::between(&cluster, &[("p1", "p3"), ("p3", "p1")]);
    cluster.etcd.members[0].kill().unwrap();
    cluster.kill_node("n2").unwrap();
    // Ready means that pods are served, from the block that it had.
    cluster.start_node("n2").unwrap();
    assert_eq!(blocks_of(cluster.agent("n2").unwrap()), before);
    expect_reach(&cluster, PATIENCE);
    await_good_routes(cluster.agent("n2").unwrap(), 4);
    await_problem(
        cluster.agent("n2").unwrap(),
        &["etcd at http://10.199.0.1:2379 cannot be reached", "is it running", "since 20"],
    );
    cluster.start_etcd().unwrap();
    for node in ["n1", "n2", "n3"] {
        await_no_problem(cluster.agent(node).unwrap());
    }
    assert_eq!(Desk::of(&cluster).blocks()["n2"], before);
    streams.expect_whole();
}

/// Packets to etcd vanish: nobody says no, and every wait has an end of its own.
#[test]
fn etcd_black_holed_calls_end_and_pods_are_served() {
    let plan = Plan { nodes: 2, ..Plan::default() };
    let mut cluster = up_with("blackhole", &plan, &["n1", "n2"]);
    let streams = Streams::between(&cluster, &[("p1", "p2"), ("p2", "p1")]);
    let etcd = |cluster: &Cluster, line: &str| {
        let line: Vec<&str> = line.split(' ').collect();
        cluster.etcd.members[0].node().sh(&line).unwrap();
    };
    etcd(&cluster, "nft add table inet hole");
    etcd(&cluster, "nft add chain inet hole in { type filter hook input priority 0 ; policy accept ; }");
    etcd(&cluster, "nft add rule inet hole in tcp dport 2379 drop");
    // One that starts now hears nothing at all.
    cluster.kill_agent("n2").unwrap();
    cluster.start_agent("n2").unwrap();
    let asked = cluster.agent("n1").unwrap().client().get(api::NODES, PATIENCE).unwrap();
    let text = String::from_utf8_lossy(&asked.body).into_owned();
    assert!(asked.status == 503 && text.contains("etcd at") && text.contains("5 s"), "{text}");
    await_problem(cluster.agent("n2").unwrap(), &["etcd at", "since 20"]);
    for node in ["n1", "n2"] {
        cluster.pod(node, &format!("late-{node}")).unwrap();
    }
    expect_reach(&cluster, SOON);
    etcd(&cluster, "nft delete table inet hole");
    await_no_problem(cluster.agent("n2").unwrap());
    Desk::of(&cluster).commit(&ghost_joins(1));
    await_routes(&cluster, &["n1", "n2"], &ghost_blocks(1));
    streams.expect_whole();
}

/// A process that sleeps longer than its lease is what a clock that jumps looks like from outside: time passed that it did
/// not see. The system's own clock cannot be set here. It would change nothing: nothing in `src/cluster` reads it but for
/// people (`Alive::since` and the time in the problem of a store that is away); deadlines, pauses and graces are
/// `tokio::time`, which is CLOCK_MONOTONIC, and leases run by etcd's clock, which is monotonic too.
#[test]
fn an_agent_that_sleeps_through_its_lease_loses_nothing_but_alive() {
    let plan = Plan { nodes: 2, ..mixed() };
    let cluster = up_with("asleep", &plan, &["n1", "n2"]);
    let desk = Desk::of(&cluster);
    let alive = format!("{}/alive/n2", super::PREFIX);
    await_that("alive/n2", PATIENCE, || desk.has(&alive));
    let (before, blocks) = (desk.blocks(), blocks_of(cluster.agent("n2").unwrap()));
    let streams = Streams::between(&cluster, &[("p1", "p2"), ("p2", "p1")]);
    cluster.agent("n2").unwrap().signal(Signal::STOP).unwrap();
    if !soak() {
        // The end of a lease, but sooner.
        desk.revoke_lease_of(&alive);
    }
    await_that("the end of the lease", PATIENCE, || !desk.has(&alive));
    await_routes(&cluster, &["n1"], &blocks);
    assert_eq!(problems(cluster.agent("n1").unwrap()), [""; 0]);
    let nodes = cluster.agent("n1").unwrap().get(api::NODES).unwrap();
    let named = |name: &str| nodes.as_array().unwrap().iter().find(|node| node["name"] == name).unwrap();
    assert!(named("n2")["aliveSince"].is_null() && named("n1")["aliveSince"].is_u64(), "{nodes:#}");
    cluster.agent("n2").unwrap().signal(Signal::CONT).unwrap();
    await_that("alive/n2 again", PATIENCE, || desk.has(&alive));
    cluster.pod("n2", "late").unwrap();
    expect_reach(&cluster, SOON);
    assert_eq!(desk.blocks(), before);
    streams.expect_whole();
}
