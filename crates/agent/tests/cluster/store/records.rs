//! Wrong or stale records: the claims decide who owns a block, and a record cannot remove the routes of another node.

use api::NodeView;
use ipnet::IpNet;
use model::{BlockAllocation, BlockClaim, NodeRecord, Object as _};
use store::Change;
use testkit::{Agent, Cluster, Plan};

use super::{
    StoreClient, await_no_problem, await_ok_routes, await_problem, await_saved_peers, blocks_of, claim,
    mixed, node_key,
};
use super::{has_routes_to, up_with};
use crate::common::{Streams, TIMEOUT, await_that, expect_reach, pod};

/// The parts of a node's record that an agent reports as not used.
fn refused(agent: &Agent, name: &str) -> Vec<String> {
    let nodes: Vec<NodeView> =
        serde_json::from_value(agent.get(api::NODES).unwrap()["nodes"].take()).unwrap();
    nodes.into_iter().find(|node| node.name == name).map(|node| node.refused).unwrap_or_default()
}

/// Records that sort first and have no claims. The first one has the blocks, MAC and addresses of n2, which is behind the
/// tunnel, and of n3, which is on-link.
fn hostile(cluster: &Cluster, store_client: &StoreClient<'_>) -> [NodeRecord; 2] {
    let record = |name: &str| NodeRecord::decode(store_client.all()[&node_key(name)].as_bytes()).unwrap();
    let [n2, n3] = ["n2", "n3"].map(record);
    let pods = ["p2", "p3"].map(|name| pod(cluster, name).addresses.clone()).concat();
    let mut blocks = [n2.blocks.to_vec(), n3.blocks.to_vec()].concat();
    blocks.extend(pods.into_iter().map(IpNet::from));
    blocks.extend(["10.42.0.0/16", "fd42::/64", "10.9.0.0/24"].map(|net| net.parse::<IpNet>().unwrap()));
    blocks.extend(super::fake_node_blocks(3));
    let addresses = ["::ffff:10.199.1.77", "10.199.1.77", "fd99:1::77"].map(|ip| ip.parse().unwrap());
    let impostor = NodeRecord {
        name: "aaa".try_into().unwrap(),
        addresses: addresses.to_vec(),
        blocks: BlockAllocation::of_default(blocks),
        tunnel_mac: n2.tunnel_mac,
        macs: Vec::new(),
        version: "0".to_owned(),
        ..n3
    };
    // An address inside a block must not affect the route to that block.
    let inside = n2.blocks.iter().take(2).map(|block| block.hosts().nth(9).unwrap()).collect();
    let inside = NodeRecord {
        name: "aab".try_into().unwrap(),
        addresses: inside,
        blocks: BlockAllocation::default(),
        ..n2
    };
    [impostor, inside]
}

#[test]
fn a5_a_record_without_claims_takes_nothing_from_other_nodes() {
    let mut cluster = up_with("hostile", &mixed(), &["n1", "n2", "n3"]);
    let streams = Streams::between(&cluster, &[("p1", "p2"), ("p1", "p3"), ("p2", "p3"), ("p3", "p2")]);
    let store_client = StoreClient::of(&cluster);
    let records = hostile(&cluster, &store_client);
    records.iter().for_each(|record| store_client.put(&node_key(record.name.as_str()), &record.encode()));
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
    let reported = refused(cluster.agent("n1").unwrap(), "aaa").join("\n");
    for word in ["claimed by node n2", "claimed by node n3", "IPv4 address in IPv6 form", "its tunnel MAC"] {
        assert!(reported.contains(word), "{reported}");
    }
    assert_eq!(refused(cluster.agent("n1").unwrap(), "n2"), [""; 0]);
    let routes = |cluster: &Cluster| super::super::network::peer_routes(cluster.node("n1").unwrap());
    let before = routes(&cluster);
    assert_eq!(before.len(), 4, "{before:?}");

    // A claim makes the valid part of the record usable immediately, in both families.
    let claimed = super::fake_node_blocks(3);
    store_client.commit(&claimed.iter().map(|block| claim(block, "aaa")).collect::<Vec<_>>());
    await_that("the claimed blocks to be routed", TIMEOUT, || {
        has_routes_to(cluster.node("n1").unwrap(), &claimed)
    });
    store_client.commit(
        &claimed
            .iter()
            .map(|block| Change::Delete(store_client.layout.default_block(block)))
            .collect::<Vec<_>>(),
    );
    await_that("the initial routes", TIMEOUT, || routes(&cluster) == before);
    streams.expect_no_loss();

    // The same after a restart with a listing, and after one without the store with the saved records.
    await_saved_peers(&cluster, "n1", 4);
    cluster.kill_agent("n1").unwrap();
    cluster.start_agent("n1").unwrap();
    await_problem(cluster.agent("n1").unwrap(), &["of node aaa are not routed: claimed by node n2"]);
    assert_eq!(routes(&cluster), before);
    await_saved_peers(&cluster, "n1", 4);
    cluster.etcd.members[0].kill().unwrap();
    cluster.kill_node("n1").unwrap();
    cluster.start_node("n1").unwrap();
    await_that("the initial routes without a store", TIMEOUT, || routes(&cluster) == before);
    cluster.start_etcd().unwrap();

    let store_client = StoreClient::of(&cluster);
    records.iter().for_each(|record| store_client.delete(&node_key(record.name.as_str())));
    for name in ["n1", "n2", "n3"] {
        await_no_problem(cluster.agent(name).unwrap());
        await_ok_routes(cluster.agent(name).unwrap(), 4);
    }
    expect_reach(&cluster, TIMEOUT);
}

#[test]
fn a5_a_deleted_or_changed_claim_is_restored_by_its_node() {
    let cluster = up_with("claims", &Plan { nodes: 2, ..Plan::default() }, &["n1", "n2"]);
    let store_client = StoreClient::of(&cluster);
    let blocks = blocks_of(cluster.agent("n2").unwrap());
    let keys: Vec<String> = blocks.iter().map(|block| store_client.layout.default_block(block)).collect();
    let owner = |key: &str| store_client.all().get(key).map(|value| super::claim_owner(value));
    for key in &keys {
        store_client.delete(key);
        await_that("the claim to be written again", TIMEOUT, || owner(key).as_deref() == Some("n2"));
        store_client.put(key, b"not JSON");
        let readable =
            || store_client.all().get(key).is_some_and(|value| BlockClaim::decode(value.as_bytes()).is_ok());
        await_that("the claim to be readable again", TIMEOUT, readable);
    }
    await_ok_routes(cluster.agent("n1").unwrap(), 2);
    expect_reach(&cluster, TIMEOUT);
    // A block that is claimed by another node is lost, and the node claims another one.
    store_client.commit(&[claim(&blocks[0], "other")]);
    await_problem(
        cluster.agent("n2").unwrap(),
        &[&format!("block {} of this node now belongs to other", blocks[0])],
    );
    await_that("another block", TIMEOUT, || {
        let now = blocks_of(cluster.agent("n2").unwrap());
        now.len() == 2 && !now.contains(&blocks[0])
    });
}

/// A record with this node's name that another program wrote must not prevent the node from joining.
#[test]
fn a5_an_own_record_with_too_many_blocks_does_not_prevent_the_join() {
    let mut cluster = up_with("bloated", &Plan { nodes: 2, ..Plan::default() }, &["n1", "n2"]);
    cluster.kill_agent("n2").unwrap();
    let store_client = StoreClient::of(&cluster);
    let record = NodeRecord::decode(store_client.all()[&node_key("n2")].as_bytes()).unwrap();
    let all = (0..256).map(|n| format!("10.42.{n}.0/24").parse().unwrap());
    let blocks: Vec<IpNet> = record.blocks.iter().copied().chain(record.blocks.to_vec()).chain(all).collect();
    store_client.put(
        &node_key("n2"),
        &NodeRecord { blocks: BlockAllocation::of_default(blocks), ..record.clone() }.encode(),
    );
    cluster.start_agent("n2").unwrap();
    assert!(blocks_of(cluster.agent("n2").unwrap()).starts_with(&record.blocks.to_vec()));
    expect_reach(&cluster, TIMEOUT);
}
