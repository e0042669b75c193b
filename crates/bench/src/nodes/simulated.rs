//! Simulated nodes: only their records and claims exist, written as an agent would write them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ipnet::IpNet;
use model::{BlockAllocation, BlockClaim, BlockLayout, KeyLayout, NodeRecord, Object as _};
use store::{Change, CommitOutcome, EtcdConfig, Store, StoreConfig};
use testkit::{Cluster, Ns};
use tokio::runtime::Runtime;
use types::{Mac, NodeName, NodeUid};

use super::{MARGIN, subnets};

/// First block of simulated nodes; real agents claim the blocks before it.
const FIRST_BLOCK: usize = 64;
/// Nodes per commit. Each has a record and two claims, and a commit has at most 128 changes.
const NODES_PER_COMMIT: usize = 40;
/// The agents' default key prefix.
const PREFIX: &str = "/podwire";
/// Timeout of store requests on a slow host.
const DEADLINE: Duration = Duration::from_secs(30);

/// Location of a node relative to the real nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeLocation {
    OnLink,
    /// Reachable only through a tunnel.
    BehindRouter,
}

/// Writes to the store from the underlay's namespace, which reaches etcd.
pub(super) struct SimulatedNodes<'a> {
    ns: &'a Ns,
    runtime: Runtime,
    store: Store,
    layout: KeyLayout,
}

/// The times before and after a commit.
#[derive(Debug, Clone, Copy)]
pub(super) struct CommitTimes {
    pub(super) start: Instant,
    pub(super) end: Instant,
}

impl<'a> SimulatedNodes<'a> {
    pub(super) fn of(cluster: &'a Cluster) -> Result<Self> {
        let runtime = runtime()?;
        let store = open(cluster, &runtime)?;
        Ok(Self { ns: cluster.underlay(), runtime, store, layout: KeyLayout::new(PREFIX, None) })
    }

    /// Adds nodes, several per commit.
    pub(super) fn add_nodes(&self, records: &[NodeRecord]) -> Result<()> {
        records.chunks(NODES_PER_COMMIT).try_for_each(|chunk| self.commit(&self.puts(chunk)).map(drop))
    }

    pub(super) fn remove_nodes(&self, records: &[NodeRecord]) -> Result<()> {
        records.chunks(NODES_PER_COMMIT).try_for_each(|chunk| self.commit(&self.deletes(chunk)).map(drop))
    }

    pub(super) fn put_node(&self, record: &NodeRecord) -> Result<CommitTimes> {
        self.commit(&self.puts(std::slice::from_ref(record)))
    }

    pub(super) fn remove_node(&self, record: &NodeRecord) -> Result<CommitTimes> {
        self.commit(&self.deletes(std::slice::from_ref(record)))
    }

    fn puts(&self, records: &[NodeRecord]) -> Vec<Change> {
        let put = |key, value| Change::Put { key, value, lease: None };
        let mut changes = Vec::new();
        for record in records {
            changes.push(put(self.layout.node(&record.name), record.encode()));
            let claim = BlockClaim { node: record.name.clone() };
            changes.extend(
                record.blocks.iter().map(|block| put(self.layout.default_block(block), claim.encode())),
            );
        }
        changes
    }

    fn deletes(&self, records: &[NodeRecord]) -> Vec<Change> {
        let keys = records.iter().flat_map(|record| {
            let claims = record.blocks.iter().map(|block| self.layout.default_block(block));
            [self.layout.node(&record.name)].into_iter().chain(claims)
        });
        keys.map(Change::Delete).collect()
    }

    fn commit(&self, changes: &[Change]) -> Result<CommitTimes> {
        let start = Instant::now();
        let outcome = self.ns.enter(|| self.runtime.block_on(self.store.commit(&[], changes)))??;
        ensure!(matches!(outcome, CommitOutcome::Done { .. }), "the store rejected an unconditional commit");
        Ok(CommitTimes { start, end: Instant::now() })
    }
}

/// A single-threaded runtime, so that connections are opened in the calling thread's namespace.
pub(super) fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot create a runtime")
}

/// Opens a new connection to the cluster's etcd.
pub(super) fn open(cluster: &Cluster, runtime: &Runtime) -> Result<Store> {
    let _inside = runtime.enter();
    let endpoints = cluster.etcd.endpoints();
    let store = Store::open(&StoreConfig::Etcd(EtcdConfig { endpoints, ..EtcdConfig::default() }))?;
    Ok(store.with_deadline(DEADLINE))
}

/// The nodes with these numbers.
pub(super) fn records(numbers: std::ops::Range<usize>, location: NodeLocation) -> Result<Vec<NodeRecord>> {
    numbers.map(|number| record(number, location)).collect()
}

/// The node with this number, with a block of each family.
pub(super) fn record(number: usize, location: NodeLocation) -> Result<NodeRecord> {
    let blocks =
        subnets().into_iter().map(|subnet| Ok(BlockLayout::new(subnet, MARGIN)?.block(block(number))));
    let digits = u32::try_from(number)?.to_be_bytes();
    let mut uid = [0xb; 16];
    uid[..4].copy_from_slice(&digits);
    let [a, b, c, d] = digits;
    Ok(NodeRecord {
        name: NodeName::try_from(format!("sim-{number}").as_str())?,
        uid: NodeUid::from_random(uid),
        addresses: addresses(number, location)?,
        blocks: BlockAllocation::of_default(blocks.collect::<Result<Vec<IpNet>>>()?),
        tunnel_mac: Mac::local([0xb, a, b, c, d]),
        macs: Vec::new(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        transport: None,
    })
}

fn block(number: usize) -> u64 {
    (FIRST_BLOCK + number) as u64
}

/// On-link addresses are in the subnet that `hosts` adds to every real node.
pub(super) fn addresses(number: usize, location: NodeLocation) -> Result<Vec<IpAddr>> {
    let low = u16::try_from(number + 256)?;
    let [high, last] = low.to_be_bytes();
    let (second, net) = match location {
        NodeLocation::OnLink => (200, 1),
        NodeLocation::BehindRouter => (201, 9),
    };
    let v4 = Ipv4Addr::new(10, second, high, last);
    let v6 = Ipv6Addr::new(0xfd99, net, 0, 0, 0, 0, 1, low);
    Ok(vec![v4.into(), v6.into()])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_addresses_and_blocks_are_unique() {
        let all = records(0..6000, NodeLocation::OnLink).unwrap();
        let names: BTreeSet<_> = all.iter().map(|record| record.name.to_string()).collect();
        let addresses: BTreeSet<_> = all.iter().flat_map(|record| record.addresses.clone()).collect();
        let blocks: BTreeSet<_> = all.iter().flat_map(|record| record.blocks.iter().copied()).collect();
        let macs: BTreeSet<_> = all.iter().map(|record| record.tunnel_mac).collect();
        assert_eq!([names.len(), addresses.len(), blocks.len(), macs.len()], [6000, 12_000, 12_000, 6000]);
    }
}
