//! A8: changes of other nodes reach the kernel, and none is missed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use model::{BlockClaim, BlockLayout, KeyLayout, NodeRecord, Object as _};
use netlink::{PeerEvent, PeerMonitor};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use store::{Change, EtcdConfig, Store, StoreConfig};
use testkit::{Cluster, Plan, wait_until};
use types::{Mac, NodeUid};

use super::{direct_routes, peer_routes, records};
use crate::common::TIMEOUT;

/// More nodes than can be written while agents start: they take a second or two.
const MOST: u16 = 8000;

/// Somebody who writes to the store as agents do. To be made and used inside a namespace that reaches it.
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
            let _inside = runtime.enter();
            Store::open(&StoreConfig::Etcd(config)).unwrap()
        };
        Self { runtime, store, layout: KeyLayout::new("/podwire", None) }
    }

    fn put(&self, record: &NodeRecord) {
        let put = |key, value| Change::Put { key, value, lease: None };
        let claim = BlockClaim { node: record.name.clone() };
        let claims = record.blocks.iter().map(|block| put(self.layout.block(block), claim.encode()));
        self.change(
            &claims.chain([put(self.layout.node(&record.name), record.encode())]).collect::<Vec<_>>(),
        );
    }

    fn delete(&self, record: &NodeRecord) {
        let claims = record.blocks.iter().map(|block| self.layout.block(block));
        let keys = claims.chain([self.layout.node(&record.name)]);
        self.change(&keys.map(Change::Delete).collect::<Vec<_>>());
    }

    fn change(&self, changes: &[Change]) {
        self.runtime.block_on(self.store.commit(&[], changes)).unwrap();
    }
}

/// A node that is a record only, with blocks that no agent takes. `address` is the last part of its own.
fn stranger(plan: &Plan, number: u16, address: u8) -> NodeRecord {
    let block = |net| BlockLayout::new(net, plan.margin).unwrap().block(100 + u64::from(number));
    let [high, low] = number.to_be_bytes();
    NodeRecord {
        name: format!("x{number}").as_str().try_into().unwrap(),
        uid: NodeUid::from_random([low; 16]),
        addresses: vec![[10, 199, 1, address].into(), format!("fd99:1::{address:x}").parse().unwrap()],
        blocks: plan.pods.iter().map(|net| block(*net)).collect(),
        tunnel_mac: Mac::local([1, 1, 1, high, low]),
        version: "0.0.0".to_owned(),
        transport: None,
    }
}

/// Until the kernel has reported all of these routes.
fn wait_for(monitor: &mut PeerMonitor, record: &NodeRecord, is_wanted: bool) {
    let end = Instant::now() + TIMEOUT;
    let mut open = record.blocks.clone();
    while !open.is_empty() {
        assert!(Instant::now() < end, "no news of {open:?}");
        let wait = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        let _ = poll(&mut [PollFd::new(&*monitor, PollFlags::IN)], Some(&wait));
        for events in monitor.read().unwrap() {
            match events {
                PeerEvent::RouteSet(route) if is_wanted => {
                    let is_it =
                        |block: &ipnet::IpNet| *block == route.dst && record.address(block) == route.gateway;
                    open.retain(|block| !is_it(block));
                }
                PeerEvent::RouteGone(route) if !is_wanted => open.retain(|block| *block != route.dst),
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
            let (here, moved) = (stranger(&plan, number, 100), stranger(&plan, number, 101));
            for (record, is_wanted) in [(&here, true), (&moved, true), (&moved, false)] {
                if is_wanted {
                    writer.put(record);
                } else {
                    writer.delete(record);
                }
                wait_for(&mut monitor, record, is_wanted);
            }
        }
    };
    cluster.node("n1").unwrap().enter(apply).unwrap();
}

/// Agents list and begin to watch again and again, while nodes come, move and go all the time. Nothing happens twice: what
/// was missed once would be missing in the end.
#[test]
fn a8_nothing_between_list_and_watch_is_lost() {
    let plan = Plan { nodes: 2, margin: 13, ..Plan::default() };
    let mut cluster = Cluster::hosts("between", &plan).unwrap();
    cluster.start_etcd().unwrap();
    let endpoints = cluster.etcd.endpoints();
    let node = (**cluster.node("n1").unwrap()).clone();
    let over = AtomicBool::new(false);
    let was_busy = std::thread::scope(|scope| {
        let restless = || {
            let writer = Writer::new(endpoints);
            let mut numbers = 0..MOST;
            while !over.load(Ordering::Relaxed)
                && let Some(number) = numbers.next()
            {
                writer.put(&stranger(&plan, number, 100));
                match number % 4 {
                    2 => writer.put(&stranger(&plan, number - 2, 101)),
                    3 => writer.delete(&stranger(&plan, number - 2, 100)),
                    _ => continue,
                }
            }
            numbers.next().is_some()
        };
        let writing = scope.spawn(move || node.enter(restless).unwrap());
        for _ in 0..3 {
            cluster.start_agents().unwrap();
            cluster.agent_mut("n1").unwrap().restart().unwrap();
            cluster.kill_agent("n2").unwrap();
        }
        cluster.start_agents().unwrap();
        over.store(true, Ordering::Relaxed);
        writing.join().unwrap()
    });
    let listed = records(&cluster, "/podwire");
    assert!(was_busy && listed.len() > 20, "something happened all the time: {}", listed.len());
    for name in ["n1", "n2"] {
        let (node, wanted) = (cluster.node(name).unwrap(), direct_routes(&listed, name));
        let same = wait_until("the routes of all records", TIMEOUT, || Ok(peer_routes(node) == wanted));
        let found = peer_routes(node);
        let missing: Vec<_> = wanted.iter().filter(|route| !found.contains(route)).collect();
        let surplus: Vec<_> = found.iter().filter(|route| !wanted.contains(route)).collect();
        assert!(same.is_ok(), "{name}: {missing:?} missing, {surplus:?} too many");
    }
}
