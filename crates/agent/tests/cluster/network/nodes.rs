//! Nodes that are disconnected, removed, replaced, or have the name of another node.

use std::net::IpAddr;
use std::time::Duration;

use api::{NodeView, Readiness};
use ipnet::IpNet;
use testkit::{Agent, Cluster, DEADLINE, Plan};

use super::{peer_routes, problems, routes_to};
use crate::common::{PROBE_TIME, Streams, TIMEOUT, await_that, expect_reach, pod, up};

/// The lease of a stopped agent lasts 15 s, and a node that waits for its name retries every 3 s.
const LEASE: Duration = DEADLINE;

fn nodes(agent: &Agent) -> Vec<NodeView> {
    serde_json::from_value(agent.get(api::NODES).unwrap()["nodes"].take()).unwrap()
}

fn blocks(agent: &Agent, node: &str) -> Vec<IpNet> {
    nodes(agent).into_iter().find(|view| view.name == node).map(|view| view.blocks).unwrap_or_default()
}

/// The request of `podwire node rm --force`.
#[track_caller]
fn remove(agent: &Agent, node: &str) {
    let path = format!("{}/{node}?force=true", api::NODES);
    let answer = agent.client().delete(&path, DEADLINE).unwrap();
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
}

#[test]
fn a_disconnected_node_keeps_working_and_catches_up_later() {
    let plan = Plan { nodes: 4, subnets: 2, ..Plan::default() };
    let mut cluster = up("partition", &plan);
    cluster.pod("n3", "p5").unwrap();
    expect_reach(&cluster, TIMEOUT);
    let connected = Streams::between(&cluster, &[("p1", "p2")]);
    let disconnected = Streams::between(&cluster, &[("p3", "p5")]);
    let before = peer_routes(cluster.node("n3").unwrap());
    cluster.cut("n3").unwrap();
    // Its agent restarts without a reachable store.
    cluster.kill_agent("n3").unwrap();
    cluster.start_agent("n3").unwrap();
    // Meanwhile a node is removed, which n3 cannot know.
    let n4 = pod(&cluster, "p4").addresses.clone();
    cluster.kill_node("n4").unwrap();
    remove(cluster.agent("n1").unwrap(), "n4");
    await_that("the removal of n4 on n1", TIMEOUT, || !has_routes_to(&cluster, "n1", &n4));
    // Pods are added on both sides, and no route changes.
    for (node, name) in [("n3", "p6"), ("n1", "p7")] {
        cluster.pod(node, name).unwrap();
    }
    let same_side = [("p3", "p6"), ("p6", "p5"), ("p1", "p7"), ("p7", "p2")];
    await_that("pods on each side to reach each other", TIMEOUT, || {
        let matrix = cluster.reach(PROBE_TIME).unwrap();
        assert!(!matrix.cell("p1", "p3").unwrap().is_ok(), "n3 is cut off");
        same_side.iter().all(|(from, to)| matrix.cell(from, to).unwrap().is_ok())
    });
    await_that("n3 to report the outage", TIMEOUT, || {
        problems(cluster.agent("n3").unwrap())
            .iter()
            .any(|what| what.contains("etcd at http://10.199.0.1:2379"))
    });
    assert_eq!(peer_routes(cluster.node("n3").unwrap()), before);
    cluster.heal("n3").unwrap();
    expect_reach(&cluster, TIMEOUT);
    await_that("the removal of n4 on n3", TIMEOUT, || !has_routes_to(&cluster, "n3", &n4));
    connected.expect_no_loss();
    disconnected.expect_no_loss();
}

/// Whether a managed route leads to one of these addresses.
fn has_routes_to(cluster: &Cluster, node: &str, addresses: &[IpAddr]) -> bool {
    peer_routes(cluster.node(node).unwrap()).iter().any(|line| {
        let net: IpNet = line.split(' ').next().unwrap().parse().unwrap();
        addresses.iter().any(|address| net.contains(address))
    })
}

#[test]
fn routes_of_a_removed_node_are_deleted_by_a_restarted_agent() {
    // Four blocks, and five nodes.
    let plan = Plan { nodes: 5, margin: 2, ..Plan::default() };
    let mut cluster = Cluster::hosts("removed", &plan).unwrap();
    cluster.start_etcd().unwrap();
    for node in ["n1", "n2", "n3", "n4"] {
        cluster.start_agent(node).unwrap();
        cluster.pod(node, &node.replace('n', "p")).unwrap();
    }
    expect_reach(&cluster, TIMEOUT);
    let removed = pod(&cluster, "p4").addresses.clone();
    let freed = blocks(cluster.agent("n1").unwrap(), "n4");
    // The fifth node waits for a block.
    cluster.agent_mut("n5").unwrap().launch().unwrap();
    await_that("n5 to report why it waits", TIMEOUT, || {
        let reason = readiness(cluster.agent("n5").unwrap());
        reason.contains("all 4 blocks of") && reason.contains("podwire node rm")
    });
    cluster.kill_agent("n5").unwrap();
    let streams = Streams::between(&cluster, &[("p1", "p2"), ("p2", "p3")]);
    cluster.kill_agent("n2").unwrap();
    cluster.kill_node("n4").unwrap();
    remove(cluster.agent("n1").unwrap(), "n4");
    await_that("the removal of n4 on n1 and n3", TIMEOUT, || {
        ["n1", "n3"].iter().all(|node| !routes_via(&cluster, node, "n4"))
    });
    assert!(routes_via(&cluster, "n2", "n4"), "a stopped agent cannot remove routes");
    cluster.start_agent("n2").unwrap();
    await_that("the removal of stale routes on n2", TIMEOUT, || !has_routes_to(&cluster, "n2", &removed));
    cluster.start_agent("n5").unwrap();
    assert_eq!(blocks(cluster.agent("n1").unwrap(), "n5"), freed);
    streams.expect_no_loss();
    cluster.pod("n5", "p5").unwrap();
    expect_reach(&cluster, TIMEOUT);
    assert_eq!(routes_to(cluster.node("n2").unwrap(), &cluster, "p5").len(), removed.len());
}

fn routes_via(cluster: &Cluster, node: &str, peer: &str) -> bool {
    let addresses = cluster.addresses(peer).unwrap();
    let routes = peer_routes(cluster.node(node).unwrap());
    routes.iter().any(|route| addresses.iter().any(|address| route.contains(&format!("via {address} "))))
}

/// The readiness of an agent as text. Empty if it does not answer.
fn readiness(agent: &Agent) -> String {
    let Ok(answer) = agent.client().get(api::READY, DEADLINE) else { return String::new() };
    let readiness: Option<Readiness> = serde_json::from_slice(&answer.body).ok();
    readiness.map(|readiness| format!("{readiness:?}")).unwrap_or_default()
}

/// Another agent on a host, with any node name.
fn agent_with_name(cluster: &Cluster, host: &str, name: &str) -> Agent {
    let endpoints = cluster.etcd.endpoints().join(",");
    let flags = [
        "--no-install",
        "--node",
        name,
        "--store",
        "etcd",
        "--etcd-endpoints",
        &endpoints,
        "--network-subnet",
        "10.42.0.0/16,fd42::/64",
        "--network-margin",
        "8",
    ];
    Agent::new(cluster.node(host).unwrap(), &flags).unwrap()
}

#[test]
fn of_two_hosts_that_join_with_one_name_one_succeeds() {
    let mut cluster = Cluster::hosts("twins", &Plan::default()).unwrap();
    cluster.start_etcd().unwrap();
    for round in 0..5 {
        let name = format!("twin{round}");
        let mut twins = ["n1", "n2"].map(|host| agent_with_name(&cluster, host, &name));
        twins.iter_mut().for_each(|twin| twin.launch().unwrap());
        let is_refused =
            |twin: &Agent| readiness(twin).contains(&format!("the name {name} belongs to another host"));
        await_that("one agent to join and the other one to be refused", TIMEOUT, || {
            let [a, b] = &twins;
            (a.is_ready() && is_refused(b)) || (b.is_ready() && is_refused(a))
        });
        twins.iter_mut().for_each(|twin| twin.kill().unwrap());
    }
}

#[test]
fn a_second_host_with_a_name_takes_over_after_the_first_ended() {
    let mut cluster = Cluster::hosts("samename", &Plan::default()).unwrap();
    cluster.start_etcd().unwrap();
    for node in ["n1", "n2"] {
        cluster.start_agent(node).unwrap();
        cluster.pod(node, &node.replace('n', "p")).unwrap();
    }
    expect_reach(&cluster, TIMEOUT);
    let first = nodes(cluster.agent("n1").unwrap()).into_iter().find(|view| view.name == "n2").unwrap();
    let mut second = agent_with_name(&cluster, "n3", "n2");
    let streams = Streams::between(&cluster, &[("p1", "p2")]);
    second.launch().unwrap();
    await_that("the second agent to report the holder of the name", TIMEOUT, || {
        let reason = readiness(&second);
        reason.contains("the name n2 belongs to another host")
            && reason.contains(first.uid.as_deref().unwrap())
            && first.addresses.iter().all(|address| reason.contains(&address.to_string()))
    });
    assert!(!second.is_ready());
    let current = nodes(cluster.agent("n1").unwrap()).into_iter().find(|view| view.name == "n2").unwrap();
    assert_eq!(
        (&current.uid, &current.blocks, &current.addresses),
        (&first.uid, &first.blocks, &first.addresses)
    );
    streams.expect_no_loss();

    cluster.kill_node("n2").unwrap();
    await_that("the second host to take over", LEASE, || second.is_ready());
    let current = nodes(cluster.agent("n1").unwrap()).into_iter().find(|view| view.name == "n2").unwrap();
    assert_ne!(current.uid, first.uid);
    assert_eq!((&current.blocks, &current.addresses), (&first.blocks, &cluster.addresses("n3").unwrap()));
    await_that("n1 to route to the second host", TIMEOUT, || {
        let routes = peer_routes(cluster.node("n1").unwrap());
        routes.len() == 2 && routes_via(&cluster, "n1", "n3") && !routes_via(&cluster, "n1", "n2")
    });
}
