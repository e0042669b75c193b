//! What one node must have in its kernel so that its pods reach those of the others.
//!
//! ```text
//!   Facts (this node) ─┐            ┌─ ways: by which way each block is reached, or why by none
//!   NodeRecords ───────┴─▶ plan ────┼─ routes, neighbours, forwarding entries
//!                                   ├─ sources: what the firewall accepts from each peer's tunnel
//!                                   └─ Changes: since they were taken, or against what the kernel has
//! ```
//!
//! One record among thousands costs what it holds itself: only nodes that compete with it are planned again.

mod ask;
mod changes;
mod claims;
mod facts;
mod plan;
mod problems;
#[cfg(test)]
mod props;
mod sources;
#[cfg(test)]
mod tests;
mod way;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use types::{Mac, NodeName};

pub use changes::{Changes, PeerFdb, PeerNeighbour, PeerRoute, Seen};
pub use facts::{Facts, Family, Transport, TransportError, Tunnels, Underlay};
pub use sources::{PeerSource, SourceChanges};
pub use way::{NoWay, Way};

use crate::object::NodeRecord;
use changes::Table;
use claims::{Claims, Shared};
use plan::{Ground, Peer, Plan, admit, blocks, plan};

/// The other nodes as this one sees them.
#[derive(Debug, Clone)]
pub struct Mesh {
    facts: Facts,
    /// Names are shared: each stands in many places.
    peers: BTreeMap<Arc<NodeName>, Peer>,
    claims: Claims,
    macs: Shared<Mac>,
    addresses: Shared<IpAddr>,
    /// What our own record says; where another says the same, ours counts.
    own_mac: Option<Mac>,
    routes: Table<PeerRoute>,
    neighbours: Table<PeerNeighbour>,
    fdb: Table<PeerFdb>,
    sources: Table<PeerSource>,
    /// How many nodes are reached through a tunnel of either family.
    tunnelled: BTreeMap<Family, usize>,
}

impl Mesh {
    pub fn new(facts: Facts) -> Self {
        Self {
            facts: tidy(facts),
            peers: BTreeMap::new(),
            claims: Claims::default(),
            macs: Shared::default(),
            addresses: Shared::default(),
            own_mac: None,
            routes: Table::default(),
            neighbours: Table::default(),
            fdb: Table::default(),
            sources: Table::default(),
            tunnelled: BTreeMap::new(),
        }
    }

    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    pub fn set_facts(&mut self, facts: Facts) {
        let facts = tidy(facts);
        if facts == self.facts {
            return;
        }
        let (old, new) = (Arc::new(self.facts.name.clone()), Arc::new(facts.name.clone()));
        if let Some(mac) = self.own_mac {
            self.macs.remove(mac, &old);
            self.macs.add(mac, &new);
        }
        // A node that has our name now is ourselves.
        self.forget(&new);
        let peers = std::mem::take(&mut self.peers);
        peers.iter().for_each(|(name, peer)| self.leave(name, &peer.record));
        self.facts = facts;
        peers.iter().for_each(|(name, peer)| self.enter(name, &peer.record));
        self.peers = peers;
        self.replan(self.peers.keys().cloned().collect());
    }

    /// These are all; others are forgotten. Our own record may be among them.
    pub fn set_peers(&mut self, records: impl IntoIterator<Item = NodeRecord>) {
        let records: BTreeMap<Arc<NodeName>, NodeRecord> =
            records.into_iter().map(|record| (Arc::new(record.name.clone()), record)).collect();
        let mut affected = BTreeSet::new();
        let gone: Vec<_> = self.peers.keys().filter(|name| !records.contains_key(*name)).cloned().collect();
        for name in &gone {
            affected.extend(self.forget(name));
        }
        for (name, record) in records {
            affected.extend(self.learn(name, record));
        }
        self.replan(affected);
    }

    pub fn set_peer(&mut self, record: NodeRecord) {
        let affected = self.learn(Arc::new(record.name.clone()), record);
        self.replan(affected);
    }

    pub fn remove_peer(&mut self, name: &NodeName) {
        let affected = self.forget(name);
        self.replan(affected);
    }

    /// From what was taken before to what is wanted now. Where applying it failed, `compare` finds out what is missing.
    pub fn take_changes(&mut self) -> Changes {
        let (set_neighbours, del_neighbours) = self.neighbours.take();
        let (set_fdb, del_fdb) = self.fdb.take();
        let (set_routes, del_routes) = self.routes.take();
        Changes { set_neighbours, set_fdb, set_routes, del_routes, del_neighbours, del_fdb }
    }

    /// From what the kernel has to what is wanted now; it counts as taken.
    pub fn compare(&mut self, seen: &Seen) -> Changes {
        let (set_neighbours, del_neighbours) = self.neighbours.compare(&seen.neighbours);
        let (set_fdb, del_fdb) = self.fdb.compare(&seen.fdb);
        let (set_routes, del_routes) = self.routes.compare(&seen.routes);
        Changes { set_neighbours, set_fdb, set_routes, del_routes, del_neighbours, del_fdb }
    }

    /// Which tunnel devices are needed, IPv4 and IPv6, whether or not they exist.
    pub fn tunnels_wanted(&self) -> (bool, bool) {
        let wanted = |family| self.tunnelled.get(&family).is_some_and(|count| *count > 0);
        (wanted(Family::V4), wanted(Family::V6))
    }

    /// Every block of every other node, and by which way it is reached.
    pub fn ways(&self) -> impl Iterator<Item = (&NodeName, IpNet, &Way)> {
        self.peers
            .iter()
            .flat_map(|(name, peer)| peer.plan.ways.iter().map(move |(block, way)| (&**name, *block, way)))
    }

    /// Takes a record in; who must be planned again.
    fn learn(&mut self, name: Arc<NodeName>, record: NodeRecord) -> BTreeSet<Arc<NodeName>> {
        if *name == self.facts.name {
            return self.learn_own(&name, record.tunnel_mac);
        }
        if self.peers.get(&name).is_some_and(|peer| peer.record == record) {
            return BTreeSet::new();
        }
        let mut affected = self.forget(&name);
        self.enter(&name, &record);
        affected.extend(self.rivals(&record));
        affected.insert(Arc::clone(&name));
        self.peers.insert(name, Peer { record, plan: Plan::default() });
        affected
    }

    fn learn_own(&mut self, own: &Arc<NodeName>, mac: Mac) -> BTreeSet<Arc<NodeName>> {
        if self.own_mac == Some(mac) {
            return BTreeSet::new();
        }
        let mut affected = BTreeSet::new();
        if let Some(old) = self.own_mac.replace(mac) {
            self.macs.remove(old, own);
            affected.extend(self.macs.holders(old).cloned());
        }
        affected.extend(self.macs.holders(mac).cloned());
        self.macs.add(mac, own);
        affected
    }

    /// Drops a node with all that it needed; who must be planned again.
    fn forget(&mut self, name: &NodeName) -> BTreeSet<Arc<NodeName>> {
        let Some((name, peer)) = self.peers.remove_entry(name) else { return BTreeSet::new() };
        self.withdraw(&peer.plan);
        self.leave(&name, &peer.record);
        self.rivals(&peer.record)
    }

    /// The other nodes whose plans depend on this one's record.
    fn rivals(&self, record: &NodeRecord) -> BTreeSet<Arc<NodeName>> {
        let same_mac = self.macs.holders(record.tunnel_mac);
        let blocks = blocks(record).into_iter();
        let same_block = blocks.flat_map(|block| self.claims.overlapping(block).map(|(_, name)| name));
        let addresses = record.addresses.iter().map(|address| IpNet::from(*address));
        let around = addresses.flat_map(|address| self.claims.overlapping(address).map(|(_, name)| name));
        // Two nodes with one address want the same sources: where one goes, the other's stay.
        let same_address = record.addresses.iter().flat_map(|address| self.addresses.holders(*address));
        let all = same_mac.chain(same_block).chain(around).chain(same_address);
        all.filter(|name| ***name != record.name).cloned().collect()
    }

    fn enter(&mut self, name: &Arc<NodeName>, record: &NodeRecord) {
        self.macs.add(record.tunnel_mac, name);
        for address in &record.addresses {
            self.addresses.add(*address, name);
        }
        for block in blocks(record) {
            if admit(&self.facts, record, block).is_ok() {
                self.claims.add(block, name);
            }
        }
    }

    fn leave(&mut self, name: &Arc<NodeName>, record: &NodeRecord) {
        self.macs.remove(record.tunnel_mac, name);
        for address in &record.addresses {
            self.addresses.remove(*address, name);
        }
        for block in blocks(record) {
            self.claims.remove(block, name);
        }
    }

    /// First everything of theirs goes, then it comes: what moves from one to another is never lost on the way.
    fn replan(&mut self, names: BTreeSet<Arc<NodeName>>) {
        let mut plans = Vec::with_capacity(names.len());
        for name in names {
            let Self { facts, claims, macs, addresses, peers, .. } = &mut *self;
            let Some(peer) = peers.get_mut(&name) else { continue };
            let old = std::mem::take(&mut peer.plan);
            let ground = Ground { facts, claims, macs, addresses };
            plans.push((name, plan(&ground, &peer.record)));
            self.withdraw(&old);
        }
        for (name, plan) in plans {
            self.establish(&plan);
            if let Some(peer) = self.peers.get_mut(&name) {
                peer.plan = plan;
            }
        }
    }

    fn establish(&mut self, plan: &Plan) {
        plan.routes.iter().for_each(|route| self.routes.want(*route));
        plan.neighbours.iter().for_each(|neighbour| self.neighbours.want(*neighbour));
        plan.fdb.iter().for_each(|entry| self.fdb.want(*entry));
        plan.sources.iter().for_each(|source| self.sources.want(*source));
        if let Some(family) = plan.tunnel {
            *self.tunnelled.entry(family).or_default() += 1;
        }
    }

    fn withdraw(&mut self, plan: &Plan) {
        plan.routes.iter().for_each(|route| self.routes.drop(route));
        plan.neighbours.iter().for_each(|neighbour| self.neighbours.drop(neighbour));
        plan.fdb.iter().for_each(|entry| self.fdb.drop(entry));
        plan.sources.iter().for_each(|source| self.sources.drop(source));
        if let Some(count) = plan.tunnel.and_then(|family| self.tunnelled.get_mut(&family)) {
            *count = count.saturating_sub(1);
        }
    }
}

fn tidy(facts: Facts) -> Facts {
    let whole = |list: &[IpNet]| list.iter().map(IpNet::trunc).collect();
    Facts { blocks: whole(&facts.blocks), subnets: whole(&facts.subnets), ..facts }
}
