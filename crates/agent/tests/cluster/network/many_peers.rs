//! Many peers: records of nodes without agents.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use model::{BlockAllocation, BlockClaim, BlockLayout, KeyLayout, NodeRecord, Object as _};
use netlink::{NetNs, PeerEvent, PeerMonitor};
use store::{Change, CommitOutcome, EtcdConfig, Store, StoreConfig};
use testkit::{Cluster, Plan};
use types::{Mac, NodeName, NodeUid};

use super::peer_routes;
use crate::common::{Streams, TIMEOUT, await_that, up};

const COUNT: u16 = 300;
const MARGIN: u8 = 10;
/// etcd limits the number of changes in a transaction.
const CHANGES_PER_COMMIT: usize = 100;

fn pods() -> Vec<IpNet> {
    vec!["10.40.0.0/14".parse().unwrap(), "fd42::/64".parse().unwrap()]
}

/// The record of a node without an agent. Every second node is on-link for n1, the other ones are behind the router.
fn fake_record(number: u16) -> NodeRecord {
    let (subnet, [high, low]) = (1 + number % 2, number.to_be_bytes());
    let host = 20 + u8::try_from(number / 2).unwrap();
    let block = |net| BlockLayout::new(net, MARGIN).unwrap().block(100 + u64::from(number));
    NodeRecord {
        name: NodeName::try_from(format!("fake-{number}")).unwrap(),
        uid: NodeUid::from_random([low; 16]),
        addresses: vec![
            Ipv4Addr::new(10, 199, u8::try_from(subnet).unwrap(), host).into(),
            Ipv6Addr::new(0xfd99, subnet, 0, 0, 0, 0, 1, number).into(),
        ],
        blocks: BlockAllocation::of_default(pods().into_iter().map(block).collect()),
        tunnel_mac: Mac::local([9, 9, 9, high, low]),
        macs: Vec::new(),
        version: "0.0.0".to_owned(),
        transport: None,
    }
}

/// Writes to the cluster's store.
fn commit(cluster: &Cluster, changes: &[Change]) {
    let config = EtcdConfig { endpoints: cluster.etcd.endpoints(), ..EtcdConfig::default() };
    let write = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = Store::open(&StoreConfig::Etcd(config)).unwrap();
            for chunk in changes.chunks(CHANGES_PER_COMMIT) {
                assert!(matches!(store.commit(&[], chunk).await.unwrap(), CommitOutcome::Done { .. }));
            }
        });
    };
    cluster.etcd.members[0].node().enter(write).unwrap();
}

/// A record and the claims of its blocks.
fn put(record: &NodeRecord) -> Vec<Change> {
    let layout = KeyLayout::new("/podwire", None);
    let put = |key, value| Change::Put { key, value, lease: None };
    let claim = BlockClaim { node: record.name.clone() };
    let claims = record.blocks.iter().map(|block| put(layout.default_block(block), claim.encode()));
    claims.chain([put(layout.node(&record.name), record.encode())]).collect()
}

/// The destinations of the routes to peers.
fn destinations(cluster: &Cluster) -> BTreeSet<IpNet> {
    let routes = peer_routes(cluster.node("n1").unwrap());
    routes.iter().map(|route| route.split(' ').next().unwrap().parse().unwrap()).collect()
}

#[test]
fn a_change_of_one_of_many_peers_changes_no_other_route() {
    let cluster = up("many", &Plan { nodes: 2, subnets: 2, pods: pods(), margin: MARGIN, ..Plan::default() });
    let n1 = cluster.node("n1").unwrap();
    let initial = destinations(&cluster);
    let streams = Streams::between(&cluster, &[("p1", "p2")]);
    let records: Vec<NodeRecord> = (0..COUNT).map(fake_record).collect();
    commit(&cluster, &records.iter().flat_map(put).collect::<Vec<_>>());
    let all: BTreeSet<IpNet> = records
        .iter()
        .flat_map(|record| record.blocks.iter().copied())
        .chain(initial.iter().copied())
        .collect();
    await_that("all routes", TIMEOUT, || destinations(&cluster) == all);

    // One node moves: only its two routes are set.
    let mut monitor = PeerMonitor::open_in(&NetNs::open(n1.path()).unwrap()).unwrap();
    let mut moved = fake_record(1);
    moved.addresses = fake_record(COUNT + 1).addresses;
    commit(&cluster, &put(&moved));
    await_that("the move", TIMEOUT, || {
        let gateway = format!("dst {} ", moved.addresses[0]);
        n1.sh(&["bridge", "fdb", "show", "dev", "pwvx4"]).unwrap().contains(&gateway)
    });
    // One node is deleted: only its routes are removed.
    let deleted = fake_record(2);
    commit(&cluster, &[Change::Delete(KeyLayout::new("/podwire", None).node(&deleted.name))]);
    let remaining: BTreeSet<IpNet> =
        all.iter().copied().filter(|net| !deleted.blocks.contains(net)).collect();
    await_that("the removal of its routes", TIMEOUT, || destinations(&cluster) == remaining);
    let changed: BTreeSet<IpNet> = monitor.read().unwrap().iter().filter_map(destination).collect();
    let expected: BTreeSet<IpNet> = moved.blocks.iter().chain(deleted.blocks.iter()).copied().collect();
    assert!(
        changed.is_subset(&expected) && deleted.blocks.iter().all(|net| changed.contains(net)),
        "{changed:?}"
    );

    let keys =
        records.iter().map(|record| Change::Delete(KeyLayout::new("/podwire", None).node(&record.name)));
    commit(&cluster, &keys.collect::<Vec<_>>());
    await_that("the removal of all routes", TIMEOUT, || destinations(&cluster) == initial);
    await_that("the removal of all tunnel entries but that of n2", TIMEOUT, || {
        n1.sh(&["bridge", "fdb", "show", "dev", "pwvx4"]).unwrap().lines().count() == 1
    });
    streams.expect_no_loss();
}

fn destination(events: &PeerEvent) -> Option<IpNet> {
    match events {
        PeerEvent::RouteSet(route) | PeerEvent::RouteRemoved(route) => Some(route.dst),
        PeerEvent::RouteReplaced(net) => Some(*net),
        // Events were lost, so any destination may have changed.
        PeerEvent::Lost => Some(IpNet::default()),
        _ => None,
    }
}
