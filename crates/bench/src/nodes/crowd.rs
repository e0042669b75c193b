//! Nodes that nobody runs: only their records and claims are there, written as an agent would write them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ipnet::IpNet;
use model::{BlockClaim, BlockLayout, KeyLayout, NodeRecord, Object as _};
use store::{Change, CommitOutcome, EtcdConfig, Store, StoreConfig};
use testkit::{Cluster, Ns};
use tokio::runtime::Runtime;
use types::{Mac, NodeName, NodeUid};

use super::{MARGIN, subnets};

/// The blocks before are for real agents.
const FIRST_BLOCK: usize = 64;
/// Nodes in one commit: a record and two claims each, at most 128 changes.
const AT_ONCE: usize = 40;
/// Where our keys are, as agents have it by default.
const PREFIX: &str = "/podwire";
/// A shared machine may be slow; an agent would wait as well, and try again.
const DEADLINE: Duration = Duration::from_secs(30);

/// Where a node is, as seen by the real ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeLocation {
    OnLink,
    /// Behind the router: only a tunnel leads there.
    Beyond,
}

/// Writes to the store from inside the underlay.
pub(super) struct CrowdRecords<'a> {
    ns: &'a Ns,
    runtime: Runtime,
    store: Store,
    layout: KeyLayout,
}

/// When something was committed: between these two moments.
#[derive(Debug, Clone, Copy)]
pub(super) struct Committed {
    pub(super) asked: Instant,
    pub(super) answered: Instant,
}

impl<'a> CrowdRecords<'a> {
    pub(super) fn of(cluster: &'a Cluster) -> Result<Self> {
        let runtime = runtime()?;
        let store = open(cluster, &runtime)?;
        Ok(Self { ns: cluster.underlay(), runtime, store, layout: KeyLayout::new(PREFIX, None) })
    }

    /// Many nodes come, many with each commit.
    pub(super) fn come(&self, records: &[NodeRecord]) -> Result<()> {
        records.chunks(AT_ONCE).try_for_each(|some| self.commit(&self.puts(some)).map(drop))
    }

    pub(super) fn go(&self, records: &[NodeRecord]) -> Result<()> {
        records.chunks(AT_ONCE).try_for_each(|some| self.commit(&self.deletes(some)).map(drop))
    }

    pub(super) fn comes(&self, record: &NodeRecord) -> Result<Committed> {
        self.commit(&self.puts(std::slice::from_ref(record)))
    }

    pub(super) fn goes(&self, record: &NodeRecord) -> Result<Committed> {
        self.commit(&self.deletes(std::slice::from_ref(record)))
    }

    fn puts(&self, records: &[NodeRecord]) -> Vec<Change> {
        let put = |key, value| Change::Put { key, value, lease: None };
        let mut changes = Vec::new();
        for record in records {
            changes.push(put(self.layout.node(&record.name), record.encode()));
            let claim = BlockClaim { node: record.name.clone() };
            changes.extend(record.blocks.iter().map(|block| put(self.layout.block(block), claim.encode())));
        }
        changes
    }

    fn deletes(&self, records: &[NodeRecord]) -> Vec<Change> {
        let keys = records.iter().flat_map(|record| {
            let claims = record.blocks.iter().map(|block| self.layout.block(block));
            [self.layout.node(&record.name)].into_iter().chain(claims)
        });
        keys.map(Change::Delete).collect()
    }

    fn commit(&self, changes: &[Change]) -> Result<Committed> {
        let asked = Instant::now();
        let outcome = self.ns.enter(|| self.runtime.block_on(self.store.commit(&[], changes)))??;
        ensure!(
            matches!(outcome, CommitOutcome::Done { .. }),
            "the store refused a commit without conditions"
        );
        Ok(Committed { asked, answered: Instant::now() })
    }
}

/// On the calling thread alone: what it connects, it connects in the thread's namespace.
pub(super) fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot make a runtime")
}

/// A connection of its own to the cluster's etcd.
pub(super) fn open(cluster: &Cluster, runtime: &Runtime) -> Result<Store> {
    let _inside = runtime.enter();
    let endpoints = cluster.etcd.endpoints();
    let store = Store::open(&StoreConfig::Etcd(EtcdConfig { endpoints, ..EtcdConfig::default() }))?;
    Ok(store.with_deadline(DEADLINE))
}

/// The nodes with these numbers.
pub(super) fn records(numbers: std::ops::Range<usize>, place: NodeLocation) -> Result<Vec<NodeRecord>> {
    numbers.map(|number| record(number, place)).collect()
}

/// The node with this number, with a block of each family.
pub(super) fn record(number: usize, place: NodeLocation) -> Result<NodeRecord> {
    let blocks =
        subnets().into_iter().map(|subnet| Ok(BlockLayout::new(subnet, MARGIN)?.block(block(number))));
    let digits = u32::try_from(number)?.to_be_bytes();
    let mut uid = [0xb; 16];
    uid[..4].copy_from_slice(&digits);
    let [a, b, c, d] = digits;
    Ok(NodeRecord {
        name: NodeName::try_from(format!("sim-{number}").as_str())?,
        uid: NodeUid::from_random(uid),
        addresses: addresses(number, place)?,
        blocks: blocks.collect::<Result<Vec<IpNet>>>()?,
        tunnel_mac: Mac::local([0xb, a, b, c, d]),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        transport: None,
    })
}

fn block(number: usize) -> u64 {
    (FIRST_BLOCK + number) as u64
}

/// On-link is what `hosts` gives every real node beside its place on the underlay.
pub(super) fn addresses(number: usize, place: NodeLocation) -> Result<Vec<IpAddr>> {
    let low = u16::try_from(number + 256)?;
    let [high, last] = low.to_be_bytes();
    let (second, net) = match place {
        NodeLocation::OnLink => (200, 1),
        NodeLocation::Beyond => (201, 9),
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
    fn everybody_has_names_addresses_and_blocks_of_his_own() {
        let all = records(0..6000, NodeLocation::OnLink).unwrap();
        let names: BTreeSet<_> = all.iter().map(|record| record.name.to_string()).collect();
        let addresses: BTreeSet<_> = all.iter().flat_map(|record| record.addresses.clone()).collect();
        let blocks: BTreeSet<_> = all.iter().flat_map(|record| record.blocks.clone()).collect();
        let macs: BTreeSet<_> = all.iter().map(|record| record.tunnel_mac).collect();
        assert_eq!([names.len(), addresses.len(), blocks.len(), macs.len()], [6000, 12_000, 12_000, 6000]);
    }
}
