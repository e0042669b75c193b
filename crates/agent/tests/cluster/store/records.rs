//! Records that are wrong or stale: the claims decide who owns a block, and what one record says closes no route of another.

use api::NodeView;
use ipnet::IpNet;
use model::{BlockClaim, NodeRecord, Object as _};
use store::Change;
use testkit::{Agent, Cluster, Plan};

use super::{
    Desk, await_good_routes, await_no_problem, await_problem, await_saved_peers, blocks_of, claim, mixed,
    node_key,
};
use super::{leads_to, up_with};
use crate::common::{Streams, TIMEOUT, await_that, expect_reach, pod};

/// What an agent shows as not used of a node's record.
fn refused(agent: &Agent, name: &str) -> Vec<String> {
    let nodes: Vec<NodeView> =
        serde_json::from_value(agent.get(api::NODES).unwrap()["nodes"].take()).unwrap();
    nodes.into_iter().find(|node| node.name == name).map(|node| node.refused).unwrap_or_default()
}

/// A record that sorts first and claims nothing: with the blocks, MAC and addresses of n2, which is behind the tunnel, and of
/// n3, which is on-link.
fn hostile(cluster: &Cluster, desk: &Desk<'_>) -> [NodeRecord; 2] {
    let record = |name: &str| NodeRecord::decode(desk.all()[&node_key(name)].as_bytes()).unwrap();
    let [n2, n3] = ["n2", "n3"].map(record);
    let pods = ["p2", "p3"].map(|name| pod(cluster, name).addresses.clone()).concat();
    let mut blocks = [n2.blocks.clone(), n3.blocks].concat();
    blocks.extend(pods.into_iter().map(IpNet::from));
    blocks.extend(["10.42.0.0/16", "fd42::/64", "10.9.0.0/24"].map(|net| net.parse::<IpNet>().unwrap()));
    blocks.extend(super::ghost_blocks(3));
    let addresses = ["::ffff:10.199.1.77", "10.199.1.77", "fd99:1::77"].map(|ip| ip.parse().unwrap());
    let thief = NodeRecord {
        name: "aaa".try_into().unwrap(),
        addresses: addresses.to_vec(),
        blocks,
        tunnel_mac: n2.tunnel_mac,
        version: "0".to_owned(),
        ..n3
    };
    // An address inside a block closed the route to it.
    let inside = [&n2.blocks[0], &n2.blocks[1]].map(|block| block.hosts().nth(9).unwrap()).to_vec();
    let inside = NodeRecord { name: "aab".try_into().unwrap(), addresses: inside, blocks: Vec::new(), ..n2 };
    [thief, inside]
}

#[test]
fn a5_a_record_without_claims_takes_nothing_from_other_nodes() {
    let mut cluster = up_with("hostile", &mixed(), &["n1", "n2", "n3"]);
    let streams = Streams::between(&cluster, &[("p1", "p2"), ("p1", "p3"), ("p2", "p3"), ("p3", "p2")]);
    let desk = Desk::of(&cluster);
    let records = hostile(&cluster, &desk);
    records.iter().for_each(|record| desk.put(&node_key(record.name.as_str()), &record.encode()));
    for name in ["n1", "n3"] {
        let agent = cluster.agent(name).unwrap();
        await_problem(agent, &["of node aaa are not routed: claimed by node n2"]);
        await_problem(
            agent,
            &["of node aaa are not routed: the network is divided into aligned blocks of prefix length 24"],
        );
        await_problem(agent, &["block 10.9.0.0/24 of node aaa is not routed: outside of the pod network"]);
        await_problem(agent, &["of node aaa are not routed: not claimed in the store"]);
        await_problem(
            agent,
            &["address ::ffff:10.199.1.77 of node aaa is not used: IPv4 address in IPv6 form"],
        );
        await_problem(agent, &["of node aab is not used: inside the pod network"]);
        await_problem(agent, &["the same tunnel MAC"]);
    }
    let shown = refused(cluster.agent("n1").unwrap(), "aaa").join("\n");
    for word in ["claimed by node n2", "claimed by node n3", "IPv4 address in IPv6 form", "its tunnel MAC"] {
        assert!(shown.contains(word), "{shown}");
    }
    assert_eq!(refused(cluster.agent("n1").unwrap(), "n2"), [""; 0]);
    let routes = |cluster: &Cluster| super::super::network::peer_routes(cluster.node("n1").unwrap());
    let before = routes(&cluster);
    assert_eq!(before.len(), 4, "{before:?}");

    // A claim admits the valid part of the record at once, in both families.
    let own = super::ghost_blocks(3);
    desk.commit(&own.iter().map(|block| claim(block, "aaa")).collect::<Vec<_>>());
    await_that("the claimed blocks to be routed", TIMEOUT, || leads_to(cluster.node("n1").unwrap(), &own));
    desk.commit(&own.iter().map(|block| Change::Delete(desk.layout.block(block))).collect::<Vec<_>>());
    await_that("the routes of before", TIMEOUT, || routes(&cluster) == before);
    streams.expect_whole();

    // The same after a restart: from a list, and without a store from what was admitted.
    await_saved_peers(&cluster, "n1", 4);
    cluster.kill_agent("n1").unwrap();
    cluster.start_agent("n1").unwrap();
    await_problem(cluster.agent("n1").unwrap(), &["of node aaa are not routed: claimed by node n2"]);
    assert_eq!(routes(&cluster), before);
    await_saved_peers(&cluster, "n1", 4);
    cluster.etcd.members[0].kill().unwrap();
    cluster.kill_node("n1").unwrap();
    cluster.start_node("n1").unwrap();
    await_that("the routes of before, without a store", TIMEOUT, || routes(&cluster) == before);
    cluster.start_etcd().unwrap();

    let desk = Desk::of(&cluster);
    records.iter().for_each(|record| desk.delete(&node_key(record.name.as_str())));
    for name in ["n1", "n2", "n3"] {
        await_no_problem(cluster.agent(name).unwrap());
        await_good_routes(cluster.agent(name).unwrap(), 4);
    }
    expect_reach(&cluster, TIMEOUT);
}

#[test]
fn a5_a_claim_that_is_deleted_or_taken_is_restored_by_its_node() {
    let cluster = up_with("claims", &Plan { nodes: 2, ..Plan::default() }, &["n1", "n2"]);
    let desk = Desk::of(&cluster);
    let blocks = blocks_of(cluster.agent("n2").unwrap());
    let keys: Vec<String> = blocks.iter().map(|block| desk.layout.block(block)).collect();
    let owner = |key: &str| desk.all().get(key).map(|value| super::claimant(value));
    for key in &keys {
        desk.delete(key);
        await_that("the claim to be written again", TIMEOUT, || owner(key).as_deref() == Some("n2"));
        desk.put(key, b"not JSON");
        let readable =
            || desk.all().get(key).is_some_and(|value| BlockClaim::decode(value.as_bytes()).is_ok());
        await_that("the claim to be readable again", TIMEOUT, readable);
    }
    await_good_routes(cluster.agent("n1").unwrap(), 2);
    expect_reach(&cluster, TIMEOUT);
    // One that goes to another node is lost, and another block takes its place.
    desk.commit(&[claim(&blocks[0], "other")]);
    await_problem(cluster.agent("n2").unwrap(), &[&format!("block {} was this node's", blocks[0])]);
    await_that("another block", TIMEOUT, || {
        let now = blocks_of(cluster.agent("n2").unwrap());
        now.len() == 2 && !now.contains(&blocks[0])
    });
}

/// A record of our own name that another program wrote: no node may be unable to join because of it.
#[test]
fn a5_a_damaged_own_record_with_many_blocks_keeps_no_node_out() {
    let mut cluster = up_with("bloated", &Plan { nodes: 2, ..Plan::default() }, &["n1", "n2"]);
    cluster.kill_agent("n2").unwrap();
    let desk = Desk::of(&cluster);
    let record = NodeRecord::decode(desk.all()[&node_key("n2")].as_bytes()).unwrap();
    let all = (0..256).map(|n| format!("10.42.{n}.0/24").parse().unwrap());
    let blocks: Vec<IpNet> = record.blocks.iter().copied().chain(record.blocks.clone()).chain(all).collect();
    desk.put(&node_key("n2"), &NodeRecord { blocks, ..record.clone() }.encode());
    cluster.start_agent("n2").unwrap();
    assert!(blocks_of(cluster.agent("n2").unwrap()).starts_with(&record.blocks));
    expect_reach(&cluster, TIMEOUT);
}
