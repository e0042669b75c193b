//! Many peers: records of nodes that are not there, written by hand.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use model::{BlockClaim, BlockLayout, KeyLayout, NodeRecord, Object as _};
use netlink::{NetNs, PeerEvent, PeerMonitor};
use store::{Change, CommitOutcome, EtcdConfig, Store, StoreConfig};
use testkit::{Cluster, Plan};
use types::{Mac, NodeName, NodeUid};

use super::peer_routes;
use crate::common::{SOON, Streams, TIMEOUT, await_that, up};

const COUNT: u16 = 300;
const MARGIN: u8 = 10;
/// What one transaction may change is limited in etcd.
const AT_ONCE: usize = 100;

fn pods() -> Vec<IpNet> {
    vec!["10.40.0.0/14".parse().unwrap(), "fd42::/64".parse().unwrap()]
}

/// A node that nobody made. Every second one is on n1's link, the others are behind the router.
fn made_up(number: u16) -> NodeRecord {
    let (subnet, [high, low]) = (1 + number % 2, number.to_be_bytes());
    let host = 20 + u8::try_from(number / 2).unwrap();
    let block = |net| BlockLayout::new(net, MARGIN).unwrap().block(100 + u64::from(number));
    NodeRecord {
        name: NodeName::try_from(format!("made-up-{number}")).unwrap(),
        uid: NodeUid::from_random([low; 16]),
        addresses: vec![
            Ipv4Addr::new(10, 199, u8::try_from(subnet).unwrap(), host).into(),
            Ipv6Addr::new(0xfd99, subnet, 0, 0, 0, 0, 1, number).into(),
        ],
        blocks: pods().into_iter().map(block).collect(),
        tunnel_mac: Mac::local([9, 9, 9, high, low]),
        version: "0.0.0".to_owned(),
        transport: None,
    }
}

/// Writes to the cluster's store, as its nodes do.
fn commit(cluster: &Cluster, changes: &[Change]) {
    let config = EtcdConfig { endpoints: cluster.etcd.endpoints(), ..EtcdConfig::default() };
    let write = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = Store::open(&StoreConfig::Etcd(config)).unwrap();
            for some in changes.chunks(AT_ONCE) {
                assert!(matches!(store.commit(&[], some).await.unwrap(), CommitOutcome::Done { .. }));
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
    let claims = record.blocks.iter().map(|block| put(layout.block(block), claim.encode()));
    claims.chain([put(layout.node(&record.name), record.encode())]).collect()
}

/// The blocks that routes lead to.
fn destinations(cluster: &Cluster) -> BTreeSet<IpNet> {
    let routes = peer_routes(cluster.node("n1").unwrap());
    routes.iter().map(|route| route.split(' ').next().unwrap().parse().unwrap()).collect()
}

#[test]
fn many_peers_come_and_go_and_a_change_of_one_touches_no_other() {
    let cluster = up("many", &Plan { nodes: 2, subnets: 2, pods: pods(), margin: MARGIN, ..Plan::default() });
    let n1 = cluster.node("n1").unwrap();
    let own = destinations(&cluster);
    let streams = Streams::between(&cluster, &[("p1", "p2")]);
    let records: Vec<NodeRecord> = (0..COUNT).map(made_up).collect();
    commit(&cluster, &records.iter().flat_map(put).collect::<Vec<_>>());
    let all: BTreeSet<IpNet> =
        records.iter().flat_map(|record| record.blocks.clone()).chain(own.iter().copied()).collect();
    await_that("all routes", TIMEOUT, || destinations(&cluster) == all);

    // One moves: its two routes are set, and nothing else is heard of.
    let mut monitor = PeerMonitor::open_in(&NetNs::open(n1.path()).unwrap()).unwrap();
    let mut moved = made_up(1);
    moved.addresses = made_up(COUNT + 1).addresses;
    commit(&cluster, &put(&moved));
    await_that("the move", SOON, || {
        let gateway = format!("dst {} ", moved.addresses[0]);
        n1.sh(&["bridge", "fdb", "show", "dev", "pwvx4"]).unwrap().contains(&gateway)
    });
    // One that is deleted: its routes go, and nothing else.
    let gone = made_up(2);
    commit(&cluster, &[Change::Delete(KeyLayout::new("/podwire", None).node(&gone.name))]);
    let rest: BTreeSet<IpNet> = all.iter().copied().filter(|net| !gone.blocks.contains(net)).collect();
    await_that("its routes to be gone", SOON, || destinations(&cluster) == rest);
    let touched: BTreeSet<IpNet> = monitor.read().unwrap().iter().filter_map(destination).collect();
    let expected: BTreeSet<IpNet> = moved.blocks.iter().chain(&gone.blocks).copied().collect();
    assert!(
        touched.is_subset(&expected) && gone.blocks.iter().all(|net| touched.contains(net)),
        "{touched:?}"
    );

    let keys =
        records.iter().map(|record| Change::Delete(KeyLayout::new("/podwire", None).node(&record.name)));
    commit(&cluster, &keys.collect::<Vec<_>>());
    await_that("all routes to be gone", TIMEOUT, || destinations(&cluster) == own);
    await_that("all tunnel entries to be gone but n2's", SOON, || {
        n1.sh(&["bridge", "fdb", "show", "dev", "pwvx4"]).unwrap().lines().count() == 1
    });
    streams.expect_whole();
}

fn destination(events: &PeerEvent) -> Option<IpNet> {
    match events {
        PeerEvent::RouteSet(route) | PeerEvent::RouteGone(route) => Some(route.dst),
        PeerEvent::RouteTaken(net) => Some(*net),
        // Then nobody knows: every net there is.
        PeerEvent::Missed => Some(IpNet::default()),
        _ => None,
    }
}
