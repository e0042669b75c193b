//! Nodes that are cut off, removed, replaced, or called like another.

use std::net::IpAddr;
use std::time::Duration;

use api::{NodeView, Readiness};
use ipnet::IpNet;
use testkit::{Agent, Cluster, DEADLINE, Plan};

use super::{peer_routes, problems, routes_to};
use crate::common::{BRIEFLY, SOON, Streams, TIMEOUT, await_that, expect_reach, pod, up};

/// An agent that is gone counts as alive for 15 s, and a node that waits for its name asks every 3 s.
const LEASE: Duration = DEADLINE;

fn nodes(agent: &Agent) -> Vec<NodeView> {
    serde_json::from_value(agent.get(api::NODES).unwrap()["nodes"].take()).unwrap()
}

fn blocks(agent: &Agent, node: &str) -> Vec<IpNet> {
    nodes(agent).into_iter().find(|view| view.name == node).map(|view| view.blocks).unwrap_or_default()
}

/// `podwire node rm --force`, as the command asks for it.
#[track_caller]
fn remove(agent: &Agent, node: &str) {
    let path = format!("{}/{node}?force=true", api::NODES);
    let answer = agent.client().delete(&path, DEADLINE).unwrap();
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
}

#[test]
fn a_node_that_is_cut_off_works_on_and_hears_of_everything_when_it_is_back() {
    let plan = Plan { nodes: 4, subnets: 2, ..Plan::default() };
    let mut cluster = up("partition", &plan);
    cluster.pod("n3", "p5").unwrap();
    expect_reach(&cluster, SOON);
    let among_others = Streams::between(&cluster, &[("p1", "p2")]);
    let inside = Streams::between(&cluster, &[("p3", "p5")]);
    let before = peer_routes(cluster.node("n3").unwrap());
    cluster.cut("n3").unwrap();
    // Its agent begins anew, and finds no store.
    cluster.kill_agent("n3").unwrap();
    cluster.start_agent("n3").unwrap();
    // A node goes for good meanwhile, and n3 cannot know.
    let n4 = pod(&cluster, "p4").addresses.clone();
    cluster.kill_node("n4").unwrap();
    remove(cluster.agent("n1").unwrap(), "n4");
    await_that("n4 to be gone on n1", SOON, || !leads_to(&cluster, "n1", &n4));
    // Pods come and go as ever, also where the store is away; and nobody touches routes.
    for (node, name) in [("n3", "p6"), ("n1", "p7")] {
        cluster.pod(node, name).unwrap();
    }
    let together = [("p3", "p6"), ("p6", "p5"), ("p1", "p7"), ("p7", "p2")];
    await_that("pods on each side to reach each other", SOON, || {
        let matrix = cluster.reach(BRIEFLY).unwrap();
        assert!(!matrix.cell("p1", "p3").unwrap().is_ok(), "n3 is cut off");
        together.iter().all(|(from, to)| matrix.cell(from, to).unwrap().is_ok())
    });
    await_that("n3 to tell that the store is away", TIMEOUT, || {
        problems(cluster.agent("n3").unwrap())
            .iter()
            .any(|what| what.contains("etcd at http://10.199.0.1:2379"))
    });
    assert_eq!(peer_routes(cluster.node("n3").unwrap()), before);
    cluster.heal("n3").unwrap();
    expect_reach(&cluster, TIMEOUT);
    await_that("n4 to be gone on n3", TIMEOUT, || !leads_to(&cluster, "n3", &n4));
    among_others.expect_whole();
    inside.expect_whole();
}

/// Is there a route of ours to one of these?
fn leads_to(cluster: &Cluster, node: &str, addresses: &[IpAddr]) -> bool {
    peer_routes(cluster.node(node).unwrap()).iter().any(|line| {
        let net: IpNet = line.split(' ').next().unwrap().parse().unwrap();
        addresses.iter().any(|address| net.contains(address))
    })
}

#[test]
fn a_node_that_was_removed_while_an_agent_was_down_is_swept_and_its_blocks_are_free() {
    // Four blocks, and five nodes.
    let plan = Plan { nodes: 5, margin: 2, ..Plan::default() };
    let mut cluster = Cluster::hosts("removed", &plan).unwrap();
    cluster.start_etcd().unwrap();
    for node in ["n1", "n2", "n3", "n4"] {
        cluster.start_agent(node).unwrap();
        cluster.pod(node, &node.replace('n', "p")).unwrap();
    }
    expect_reach(&cluster, TIMEOUT);
    let gone = pod(&cluster, "p4").addresses.clone();
    let returned = blocks(cluster.agent("n1").unwrap(), "n4");
    // The fifth waits for a block.
    cluster.agent_mut("n5").unwrap().launch().unwrap();
    await_that("n5 to say why it waits", TIMEOUT, || {
        let why = readiness(cluster.agent("n5").unwrap());
        why.contains("all 4 blocks of") && why.contains("podwire node rm")
    });
    cluster.kill_agent("n5").unwrap();
    let streams = Streams::between(&cluster, &[("p1", "p2"), ("p2", "p3")]);
    cluster.kill_agent("n2").unwrap();
    cluster.kill_node("n4").unwrap();
    remove(cluster.agent("n1").unwrap(), "n4");
    await_that("n4 to be gone on n1 and n3", SOON, || {
        ["n1", "n3"].iter().all(|node| !routes_via(&cluster, node, "n4"))
    });
    assert!(routes_via(&cluster, "n2", "n4"), "nobody is there to take it away");
    cluster.start_agent("n2").unwrap();
    await_that("stale routes to be swept on n2", SOON, || !leads_to(&cluster, "n2", &gone));
    cluster.start_agent("n5").unwrap();
    assert_eq!(blocks(cluster.agent("n1").unwrap(), "n5"), returned);
    streams.expect_whole();
    cluster.pod("n5", "p5").unwrap();
    expect_reach(&cluster, TIMEOUT);
    assert_eq!(routes_to(cluster.node("n2").unwrap(), &cluster, "p5").len(), gone.len());
}

fn routes_via(cluster: &Cluster, node: &str, peer: &str) -> bool {
    let addresses = cluster.addresses(peer).unwrap();
    let routes = peer_routes(cluster.node(node).unwrap());
    routes.iter().any(|route| addresses.iter().any(|at| route.contains(&format!("via {at} "))))
}

/// Why an agent is not ready; nothing if it is, or does not answer.
fn readiness(agent: &Agent) -> String {
    let Ok(answer) = agent.client().get(api::READY, DEADLINE) else { return String::new() };
    let readiness: Option<Readiness> = serde_json::from_slice(&answer.body).ok();
    readiness.map(|readiness| format!("{readiness:?}")).unwrap_or_default()
}

/// An agent of its own on a host, under a name that may be another's.
fn another(cluster: &Cluster, host: &str, name: &str) -> Agent {
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
fn of_two_machines_that_come_at_once_with_one_name_one_gets_it_and_the_other_is_told() {
    let mut cluster = Cluster::hosts("twins", &Plan::default()).unwrap();
    cluster.start_etcd().unwrap();
    for round in 0..5 {
        let name = format!("twin{round}");
        let mut twins = ["n1", "n2"].map(|host| another(&cluster, host, &name));
        twins.iter_mut().for_each(|twin| twin.launch().unwrap());
        let is_told =
            |twin: &Agent| readiness(twin).contains(&format!("the name {name} belongs to another machine"));
        await_that("one to get in and the other to be told", TIMEOUT, || {
            let [a, b] = &twins;
            (a.is_ready() && is_told(b)) || (b.is_ready() && is_told(a))
        });
        twins.iter_mut().for_each(|twin| twin.kill().unwrap());
    }
}

#[test]
fn a_second_machine_of_a_name_is_refused_while_the_first_is_alive_and_takes_over_afterwards() {
    let mut cluster = Cluster::hosts("samename", &Plan::default()).unwrap();
    cluster.start_etcd().unwrap();
    for node in ["n1", "n2"] {
        cluster.start_agent(node).unwrap();
        cluster.pod(node, &node.replace('n', "p")).unwrap();
    }
    expect_reach(&cluster, TIMEOUT);
    let first = nodes(cluster.agent("n1").unwrap()).into_iter().find(|view| view.name == "n2").unwrap();
    let mut second = another(&cluster, "n3", "n2");
    let streams = Streams::between(&cluster, &[("p1", "p2")]);
    second.launch().unwrap();
    await_that("the second to be told who holds the name", TIMEOUT, || {
        let why = readiness(&second);
        why.contains("the name n2 belongs to another machine")
            && why.contains(first.uid.as_deref().unwrap())
            && first.addresses.iter().all(|address| why.contains(&address.to_string()))
    });
    assert!(!second.is_ready());
    let held = nodes(cluster.agent("n1").unwrap()).into_iter().find(|view| view.name == "n2").unwrap();
    assert_eq!((&held.uid, &held.blocks, &held.addresses), (&first.uid, &first.blocks, &first.addresses));
    streams.expect_whole();

    cluster.kill_node("n2").unwrap();
    await_that("the second to take over", LEASE, || second.is_ready());
    let taken = nodes(cluster.agent("n1").unwrap()).into_iter().find(|view| view.name == "n2").unwrap();
    assert_ne!(taken.uid, first.uid);
    assert_eq!((&taken.blocks, &taken.addresses), (&first.blocks, &cluster.addresses("n3").unwrap()));
    await_that("n1 to send to the second", SOON, || {
        let routes = peer_routes(cluster.node("n1").unwrap());
        routes.len() == 2 && routes_via(&cluster, "n1", "n3") && !routes_via(&cluster, "n1", "n2")
    });
}
