//! A8: changes of peers reach the kernel, and none is lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use model::{BlockAllocation, BlockClaim, BlockLayout, KeyLayout, NodeRecord, Object as _};
use netlink::{PeerEvent, PeerMonitor};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use store::{Change, EtcdConfig, Store, StoreConfig};
use testkit::{Cluster, Plan, wait_until};
use types::{Mac, NodeUid};

use super::{direct_routes, peer_routes, records};
use crate::common::TIMEOUT;

/// More records than can be written while agents start, which takes a second or two.
const MAX_NODES: u16 = 8000;

/// Writes to the store as agents do. It must be created and used in a namespace that reaches the store.
struct Writer {
    runtime: tokio::runtime::Runtime,
    store: Store,
    layout: KeyLayout,
}

impl Writer {
    fn new(endpoints: Vec<String>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let config = EtcdConfig { endpoints, ..EtcdConfig::default() };
        let store = {
            let _entered = runtime.enter();
            Store::open(&StoreConfig::Etcd(config)).unwrap()
        };
        Self { runtime, store, layout: KeyLayout::new("/podwire", None) }
    }

    fn put(&self, record: &NodeRecord) {
        let put = |key, value| Change::Put { key, value, lease: None };
        let claim = BlockClaim { node: record.name.clone() };
        let claims = record.blocks.iter().map(|block| put(self.layout.default_block(block), claim.encode()));
        self.change(
            &claims.chain([put(self.layout.node(&record.name), record.encode())]).collect::<Vec<_>>(),
        );
    }

    fn delete(&self, record: &NodeRecord) {
        let claims = record.blocks.iter().map(|block| self.layout.default_block(block));
        let keys = claims.chain([self.layout.node(&record.name)]);
        self.change(&keys.map(Change::Delete).collect::<Vec<_>>());
    }

    fn change(&self, changes: &[Change]) {
        self.runtime.block_on(self.store.commit(&[], changes)).unwrap();
    }
}

/// A record without an agent, with blocks that no agent uses. `address` is the last part of its addresses.
fn fake_record(plan: &Plan, number: u16, address: u8) -> NodeRecord {
    let block = |net| BlockLayout::new(net, plan.margin).unwrap().block(100 + u64::from(number));
    let [high, low] = number.to_be_bytes();
    NodeRecord {
        name: format!("x{number}").as_str().try_into().unwrap(),
        uid: NodeUid::from_random([low; 16]),
        addresses: vec![[10, 199, 1, address].into(), format!("fd99:1::{address:x}").parse().unwrap()],
        blocks: BlockAllocation::of_default(plan.pods.iter().map(|net| block(*net)).collect()),
        tunnel_mac: Mac::local([1, 1, 1, high, low]),
        macs: Vec::new(),
        version: "0.0.0".to_owned(),
        transport: None,
    }
}

/// Waits until the kernel has reported all routes of a record.
fn wait_for(monitor: &mut PeerMonitor, record: &NodeRecord, is_added: bool) {
    let end = Instant::now() + TIMEOUT;
    let mut pending = record.blocks.clone();
    while !pending.is_empty() {
        assert!(Instant::now() < end, "no event for {pending:?}");
        let wait = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        let _ = poll(&mut [PollFd::new(&*monitor, PollFlags::IN)], Some(&wait));
        for events in monitor.read().unwrap() {
            match events {
                PeerEvent::RouteSet(route) if is_added => {
                    let is_route_to = |block: &ipnet::IpNet| {
                        *block == route.dst && record.address_for(block) == route.gateway
                    };
                    pending.retain(|_, block| !is_route_to(block));
                }
                PeerEvent::RouteRemoved(route) if !is_added => pending.retain(|_, block| *block != route.dst),
                _ => {}
            }
        }
    }
}

#[test]
fn a8_new_changed_and_deleted_peers_are_applied() {
    let plan = Plan { nodes: 1, ..Plan::default() };
    let cluster = Cluster::up("soon", &plan).unwrap();
    let endpoints = cluster.etcd.endpoints();
    let apply = || {
        let (writer, mut monitor) = (Writer::new(endpoints), PeerMonitor::open().unwrap());
        for number in 0..25 {
            let (initial, moved) = (fake_record(&plan, number, 100), fake_record(&plan, number, 101));
            for (record, is_added) in [(&initial, true), (&moved, true), (&moved, false)] {
                if is_added {
                    writer.put(record);
                } else {
                    writer.delete(record);
                }
                wait_for(&mut monitor, record, is_added);
            }
        }
    };
    cluster.node("n1").unwrap().enter(apply).unwrap();
}

/// Agents list and watch repeatedly while nodes are continuously added, moved and removed. No event is repeated, so a lost one
/// would be visible at the end.
#[test]
fn a8_no_change_between_list_and_watch_is_lost() {
    let plan = Plan { nodes: 2, margin: 13, ..Plan::default() };
    let mut cluster = Cluster::hosts("between", &plan).unwrap();
    cluster.start_etcd().unwrap();
    let endpoints = cluster.etcd.endpoints();
    let node = (**cluster.node("n1").unwrap()).clone();
    let is_done = AtomicBool::new(false);
    let was_busy = std::thread::scope(|scope| {
        let write = || {
            let writer = Writer::new(endpoints);
            let mut numbers = 0..MAX_NODES;
            while !is_done.load(Ordering::Relaxed)
                && let Some(number) = numbers.next()
            {
                writer.put(&fake_record(&plan, number, 100));
                match number % 4 {
                    2 => writer.put(&fake_record(&plan, number - 2, 101)),
                    3 => writer.delete(&fake_record(&plan, number - 2, 100)),
                    _ => continue,
                }
            }
            numbers.next().is_some()
        };
        let writing = scope.spawn(move || node.enter(write).unwrap());
        for _ in 0..3 {
            cluster.start_agents().unwrap();
            cluster.agent_mut("n1").unwrap().restart().unwrap();
            cluster.kill_agent("n2").unwrap();
        }
        cluster.start_agents().unwrap();
        is_done.store(true, Ordering::Relaxed);
        writing.join().unwrap()
    });
    let listed = records(&cluster, "/podwire");
    assert!(was_busy && listed.len() > 20, "not enough changes were written: {}", listed.len());
    for name in ["n1", "n2"] {
        let (node, expected) = (cluster.node(name).unwrap(), direct_routes(&listed, name));
        let same = wait_until("the routes of all records", TIMEOUT, || Ok(peer_routes(node) == expected));
        let observed = peer_routes(node);
        let missing: Vec<_> = expected.iter().filter(|route| !observed.contains(route)).collect();
        let surplus: Vec<_> = observed.iter().filter(|route| !expected.contains(route)).collect();
        assert!(same.is_ok(), "{name}: {missing:?} missing, {surplus:?} surplus");
    }
}
