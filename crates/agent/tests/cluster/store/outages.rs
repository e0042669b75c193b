//! Outages of etcd: stopped, killed, frozen and unreachable.

use std::time::{Duration, Instant, SystemTime};

use api::{AgentState, BlocksView, ConditionCode, NodesView};
use rustix::process::Signal;
use serde_json::json;
use testkit::{Cluster, Plan, is_soak};
use types::Code;

use super::{
    StoreClient, await_no_problem, await_ok_routes, await_problem, await_routes, await_saved_peers,
    blocks_of, fake_node_blocks, join_fake_node, mixed, problems, up_with,
};
use crate::common::{Streams, TIMEOUT, await_that, expect_reach};

/// Less than the deadline of a heartbeat, so that no failed call can be the reason of the condition.
const REFUSAL: Duration = Duration::from_secs(2);
const ETCD_UNREACHABLE: ConditionCode = ConditionCode::Known(Code::StoreUnreachable);

#[test]
fn pods_are_served_while_etcd_is_stopped() {
    let mut cluster = up_with("stopped", &mixed(), &["n1", "n2"]);
    let streams = Streams::between(&cluster, &[("p1", "p2"), ("p2", "p1")]);
    cluster.etcd.members[0].stop().unwrap();
    for node in ["n1", "n2"] {
        let condition = await_problem(cluster.agent(node).unwrap(), &["/podwire/", "since 20"]);
        assert!(condition.ends_with('Z'), "{condition}");
        assert!(cluster.agent(node).unwrap().is_ready());
    }
    // Each node allocates addresses of its own block.
    cluster.pod("n1", "late1").unwrap();
    cluster.pod("n2", "late2").unwrap();
    expect_reach(&cluster, TIMEOUT);
    cluster.remove_pod("late1").unwrap();
    // An agent that starts now uses its saved state.
    let before = blocks_of(cluster.agent("n2").unwrap());
    cluster.kill_agent("n2").unwrap();
    cluster.start_agent("n2").unwrap();
    assert_eq!(blocks_of(cluster.agent("n2").unwrap()), before);
    cluster.pod("n2", "later2").unwrap();
    cluster.remove_pod("late2").unwrap();
    expect_reach(&cluster, TIMEOUT);

    cluster.start_etcd().unwrap();
    for node in ["n1", "n2"] {
        await_no_problem(cluster.agent(node).unwrap());
    }
    // All nodes learn of a node that joins now.
    cluster.start_agent("n3").unwrap();
    cluster.pod("n3", "p3").unwrap();
    let blocks = blocks_of(cluster.agent("n3").unwrap());
    await_routes(&cluster, &["n1", "n2"], &blocks);
    expect_reach(&cluster, TIMEOUT);
    streams.expect_no_loss();
}

#[test]
fn a_node_that_boots_without_etcd_knows_its_peers() {
    let mut cluster = up_with("booted", &mixed(), &["n1", "n2", "n3"]);
    // The test does not cover a crash before the first save.
    await_saved_peers(&cluster, "n2", 2);
    let before = blocks_of(cluster.agent("n2").unwrap());
    let streams = Streams::between(&cluster, &[("p1", "p3"), ("p3", "p1")]);
    cluster.etcd.members[0].kill().unwrap();
    cluster.kill_node("n2").unwrap();
    // Ready means that pods are served, from the saved block.
    cluster.start_node("n2").unwrap();
    assert_eq!(blocks_of(cluster.agent("n2").unwrap()), before);
    expect_reach(&cluster, TIMEOUT);
    await_ok_routes(cluster.agent("n2").unwrap(), 4);
    await_problem(
        cluster.agent("n2").unwrap(),
        &["etcd at http://10.199.0.1:2379 cannot be reached", "is it running"],
    );
    cluster.start_etcd().unwrap();
    for node in ["n1", "n2", "n3"] {
        await_no_problem(cluster.agent(node).unwrap());
    }
    assert_eq!(StoreClient::of(&cluster).blocks()["n2"], before);
    streams.expect_no_loss();
}

fn nodes_of(cluster: &Cluster, node: &str) -> NodesView {
    serde_json::from_value(cluster.agent(node).unwrap().get(api::NODES).unwrap()).unwrap()
}

fn claims_of(cluster: &Cluster, node: &str) -> BlocksView {
    serde_json::from_value(cluster.agent(node).unwrap().get(api::BLOCKS).unwrap()).unwrap()
}

/// Waits until the agent has the condition, with its start time.
fn await_unreachable(cluster: &Cluster, node: &str) {
    await_that("StoreUnreachable", TIMEOUT, || {
        let status = cluster.agent(node).unwrap().get(api::STATUS).unwrap();
        let status: api::Status = serde_json::from_value(status).unwrap();
        let mut matching = status.conditions.iter().filter(|condition| condition.code == ETCD_UNREACHABLE);
        matching.any(|condition| condition.object == "store" && condition.since.is_some())
    });
}

/// Calls retry for seconds before they fail. A host that refuses connections is reported before that.
#[test]
fn a4_a_killed_etcd_is_reported_before_a_frozen_one() {
    let plan = Plan { nodes: 1, ..Plan::default() };
    let mut cluster = up_with("killed", &plan, &["n1"]);
    let etcd = |cluster: &Cluster, signal| cluster.etcd.members[0].signal(signal).unwrap();
    etcd(&cluster, Signal::STOP);
    std::thread::sleep(REFUSAL);
    let conditions = problems(cluster.agent("n1").unwrap());
    etcd(&cluster, Signal::CONT);
    assert_eq!(conditions, [""; 0]);
    cluster.etcd.members[0].kill().unwrap();
    let killed = Instant::now();
    await_unreachable(&cluster, "n1");
    assert!(killed.elapsed() < REFUSAL, "{:?}", killed.elapsed());
    cluster.start_etcd().unwrap();
    await_no_problem(cluster.agent("n1").unwrap());
}

/// The states of the agents of n1, n2 and n3.
fn agents(view: &NodesView) -> Vec<AgentState> {
    view.nodes.iter().map(|node| node.agent).collect()
}

#[test]
fn a4_without_etcd_nodes_and_blocks_show_the_last_known_state() {
    let mut cluster = up_with("stale", &mixed(), &["n1", "n2", "n3"]);
    await_saved_peers(&cluster, "n2", 2);
    // Without its agent, n3 is offline. That is the last known state.
    cluster.agent_mut("n3").unwrap().stop().unwrap();
    let last_known = [AgentState::Alive, AgentState::Alive, AgentState::Away];
    await_that("n3 to be offline", TIMEOUT, || agents(&nodes_of(&cluster, "n1")) == last_known);
    let (fresh, claimed) = (nodes_of(&cluster, "n1"), claims_of(&cluster, "n1"));
    assert!(!fresh.freshness.stale && !claimed.freshness.stale, "{fresh:#?}");
    cluster.etcd.members[0].kill().unwrap();
    await_unreachable(&cluster, "n1");
    let is_aged = |age: u64| (2..600).contains(&age);
    await_that("the answer to get older", TIMEOUT, || {
        nodes_of(&cluster, "n1").freshness.age_seconds.is_some_and(is_aged)
    });
    let stale = nodes_of(&cluster, "n1");
    let reason = stale.freshness.reason.as_ref().unwrap();
    assert!(stale.freshness.stale && reason.starts_with("etcd is not reachable: "), "{reason}");
    assert!(stale.freshness.as_of.unwrap().0 + 2 >= fresh.freshness.as_of.unwrap().0, "{stale:#?}");
    assert_eq!(stale.nodes, fresh.nodes, "all nodes must have their last known state");
    let blocks = claims_of(&cluster, "n1");
    assert!(blocks.freshness.stale);
    assert_eq!((&blocks.blocks, &blocks.subnets), (&claimed.blocks, &claimed.subnets));

    // An agent that starts now has only the state on its disk, which does not include running agents.
    cluster.kill_agent("n2").unwrap();
    cluster.start_agent("n2").unwrap();
    await_unreachable(&cluster, "n2");
    let saved = nodes_of(&cluster, "n2");
    assert!(saved.freshness.stale && saved.freshness.age_seconds >= Some(2), "{saved:#?}");
    assert_eq!(agents(&saved), [AgentState::Unknown, AgentState::Alive, AgentState::Unknown]);
    let names = |view: &NodesView| -> Vec<_> {
        view.nodes
            .iter()
            .map(|node| (node.name.clone(), node.addresses.clone(), node.blocks.clone()))
            .collect()
    };
    assert_eq!(names(&saved), names(&fresh));
    assert_eq!(claims_of(&cluster, "n2").subnets, blocks.subnets);

    cluster.start_etcd().unwrap();
    await_no_problem(cluster.agent("n2").unwrap());
    await_that("fresh answers", TIMEOUT, || {
        let view = nodes_of(&cluster, "n2");
        !view.freshness.stale && view.freshness.reason.is_none() && agents(&view) == last_known
    });
}

/// The time of the copy is that of its last confirmation, not that of the last change of a node.
#[test]
fn a4_a_restarted_agent_knows_the_age_of_its_copy() {
    let mut cluster = up_with("aged", &Plan { nodes: 2, ..Plan::default() }, &["n1", "n2"]);
    await_saved_peers(&cluster, "n1", 1);
    let file = cluster.node("n1").unwrap().dir().join("lib/podwire/peers.json");
    let set_time = |time: SystemTime| {
        std::fs::File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
    };
    let hour = Duration::from_secs(3600);
    set_time(SystemTime::now() - hour);
    cluster.agent_mut("n1").unwrap().stop().unwrap();
    cluster.etcd.members[0].stop().unwrap();
    cluster.start_agent("n1").unwrap();
    await_unreachable(&cluster, "n1");
    let freshness = nodes_of(&cluster, "n1").freshness;
    assert!(freshness.stale && freshness.age_seconds.is_some_and(|age| age < 1800), "{freshness:?}");
    // A time in the future is ignored.
    cluster.kill_agent("n1").unwrap();
    set_time(SystemTime::now() + hour);
    cluster.start_agent("n1").unwrap();
    await_unreachable(&cluster, "n1");
    let freshness = nodes_of(&cluster, "n1").freshness;
    assert!(freshness.stale && freshness.age_seconds.is_none() && freshness.as_of.is_none(), "{freshness:?}");
}

/// Packets to etcd are dropped: connections fail only by timeouts.
#[test]
fn pods_are_served_while_packets_to_etcd_are_dropped() {
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
    // An agent that starts now gets no answer at all.
    cluster.kill_agent("n2").unwrap();
    cluster.start_agent("n2").unwrap();
    let answer = cluster.agent("n1").unwrap().client().get(api::NODES, TIMEOUT).unwrap();
    let view: NodesView = serde_json::from_slice(&answer.body).unwrap();
    let reason = view.freshness.reason.as_ref().unwrap();
    assert!(answer.status == 200 && view.freshness.stale, "{view:#?}");
    assert!(reason.starts_with("etcd is not reachable: ") && reason.contains("etcd at"), "{reason}");
    await_problem(cluster.agent("n2").unwrap(), &["etcd at"]);
    for node in ["n1", "n2"] {
        cluster.pod(node, &format!("late-{node}")).unwrap();
    }
    expect_reach(&cluster, TIMEOUT);
    etcd(&cluster, "nft delete table inet hole");
    await_no_problem(cluster.agent("n2").unwrap());
    StoreClient::of(&cluster).commit(&join_fake_node(1));
    await_routes(&cluster, &["n1", "n2"], &fake_node_blocks(1));
    streams.expect_no_loss();
}

/// A process that is stopped for longer than its lease behaves like one whose clock jumps. A jump of the system clock itself
/// cannot be tested here and would have no effect: it is only used for times in output. Deadlines and delays use `tokio::time`
/// (CLOCK_MONOTONIC), and leases use etcd's monotonic clock.
#[test]
fn an_agent_stopped_longer_than_its_lease_loses_only_its_alive_key() {
    let plan = Plan { nodes: 2, ..mixed() };
    let cluster = up_with("asleep", &plan, &["n1", "n2"]);
    let store_client = StoreClient::of(&cluster);
    let alive = format!("{}/alive/n2", super::PREFIX);
    await_that("alive/n2", TIMEOUT, || store_client.has(&alive));
    let (before, blocks) = (store_client.blocks(), blocks_of(cluster.agent("n2").unwrap()));
    let streams = Streams::between(&cluster, &[("p1", "p2"), ("p2", "p1")]);
    cluster.agent("n2").unwrap().signal(Signal::STOP).unwrap();
    if !is_soak() {
        // Revoking the lease has the same effect as its expiry.
        store_client.revoke_lease_of(&alive);
    }
    await_that("the end of the lease", TIMEOUT, || !store_client.has(&alive));
    await_routes(&cluster, &["n1"], &blocks);
    await_problem(cluster.agent("n1").unwrap(), &["the lease of its agent ended", "podwire node rm n2"]);
    let nodes = cluster.agent("n1").unwrap().get(api::NODES).unwrap();
    let named =
        |name: &str| nodes["nodes"].as_array().unwrap().iter().find(|node| node["name"] == name).unwrap();
    assert_eq!((&named("n2")["agent"], &named("n1")["agent"]), (&json!("away"), &json!("alive")));
    assert!(named("n2")["aliveSince"].is_null() && named("n1")["aliveSince"].is_string(), "{nodes:#}");
    cluster.agent("n2").unwrap().signal(Signal::CONT).unwrap();
    await_that("alive/n2 to be restored", TIMEOUT, || store_client.has(&alive));
    cluster.pod("n2", "late").unwrap();
    expect_reach(&cluster, TIMEOUT);
    await_no_problem(cluster.agent("n1").unwrap());
    assert_eq!(store_client.blocks(), before);
    streams.expect_no_loss();
}
