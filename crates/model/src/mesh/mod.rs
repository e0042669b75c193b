//! Computes the kernel objects that a node needs so that its pods reach the pods of other nodes.
//!
//! ```text
//!   LocalNode ─────────┐            ┌─ paths: how each block is reached, or why it is unreachable
//!   NodeRecords ───────┼─▶ plan ────┼─ routes, neighbours, FDB entries
//!   claims of blocks ──┘            ├─ sources: the inner addresses that the firewall accepts from each peer's tunnel
//!                                   └─ PeerChanges: since the last call, or relative to the kernel
//! ```
//!
//! An update of one record among thousands is cheap: only nodes with the same MAC or address are planned again. A claim affects
//! only the records that name its block. Records and claims may arrive in any order.

mod changes;
mod claims;
mod local_node;
mod path;
mod plan;
mod problems;
#[cfg(test)]
mod props;
mod queries;
mod repairs;
mod sources;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use types::{Family, Mac, NodeName, PeerSource};

pub use changes::{ObservedPeers, PeerChanges, PeerFdb, PeerNeighbour, PeerRoute};
pub use local_node::{LocalNode, Transport, TransportError, Tunnels, Underlay};
pub use path::{NoPath, PeerPath};
pub use repairs::Repaired;
pub use sources::SourceChanges;

use crate::admission::StoredNode;
use crate::object::NodeRecord;
use changes::PlannedObjects;
use claims::{Holder, Holders};
use plan::{PeerPlan, PlanInputs, PlannedPeer, plan};

/// The other nodes, from the view of the local node.
#[derive(Debug, Clone)]
pub struct Mesh {
    local_node: LocalNode,
    /// Names are shared, because each one is stored several times.
    peers: BTreeMap<Arc<NodeName>, PlannedPeer>,
    /// The owner of each block according to its claim.
    owners: BTreeMap<IpNet, NodeName>,
    /// The records that name a block, with or without a claim.
    named: Holders<IpNet>,
    macs: Holders<Mac>,
    addresses: Holders<IpAddr>,
    /// The MAC of this node's record. It has priority over the same MAC in other records.
    own_mac: Option<Mac>,
    routes: PlannedObjects<PeerRoute>,
    neighbours: PlannedObjects<PeerNeighbour>,
    fdb: PlannedObjects<PeerFdb>,
    sources: PlannedObjects<PeerSource>,
    /// The number of nodes that are reached through a tunnel, by outer family.
    tunnelled: BTreeMap<Family, usize>,
}

impl Mesh {
    pub fn new(local_node: LocalNode) -> Self {
        let local_node = truncate_networks(local_node);
        Self {
            local_node,
            peers: BTreeMap::new(),
            owners: BTreeMap::new(),
            named: Holders::default(),
            macs: Holders::default(),
            addresses: Holders::default(),
            own_mac: None,
            routes: PlannedObjects::default(),
            neighbours: PlannedObjects::default(),
            fdb: PlannedObjects::default(),
            sources: PlannedObjects::default(),
            tunnelled: BTreeMap::new(),
        }
    }

    pub fn local_node(&self) -> &LocalNode {
        &self.local_node
    }

    pub fn set_local_node(&mut self, local_node: LocalNode) {
        let local_node = truncate_networks(local_node);
        if local_node == self.local_node {
            return;
        }
        let (old, new) = (Arc::new(self.local_node.name.clone()), Arc::new(local_node.name.clone()));
        if let Some(mac) = self.own_mac {
            self.macs.remove(mac, own(&old));
            self.macs.add(mac, own(&new));
        }
        // A peer with the new name is the local node.
        self.remove_record(&new);
        self.local_node = local_node;
        self.replan(self.peers.keys().cloned().collect());
    }

    /// Replaces all records and claims. This node's record may be among them.
    pub fn set_all(
        &mut self,
        nodes: impl IntoIterator<Item = StoredNode>,
        owners: BTreeMap<IpNet, NodeName>,
    ) {
        let nodes: BTreeMap<Arc<NodeName>, StoredNode> =
            nodes.into_iter().map(|node| (Arc::new(node.record.name.clone()), node)).collect();
        let mut affected = BTreeSet::new();
        let before = std::mem::replace(&mut self.owners, owners);
        let is_changed = |block: &&IpNet| before.get(*block) != self.owners.get(*block);
        for block in before.keys().chain(self.owners.keys()).filter(is_changed) {
            affected.extend(self.named.holders(*block).cloned());
        }
        let removed: Vec<_> = self.peers.keys().filter(|name| !nodes.contains_key(*name)).cloned().collect();
        for name in &removed {
            affected.extend(self.remove_record(name));
        }
        for (name, node) in nodes {
            affected.extend(self.add_record(name, node));
        }
        self.replan(affected);
    }

    pub fn set_peer(&mut self, node: StoredNode) {
        let affected = self.add_record(Arc::new(node.record.name.clone()), node);
        self.replan(affected);
    }

    /// Sets the owner of a block according to its claim. `None` if the claim was removed.
    pub fn set_claim(&mut self, block: IpNet, owner: Option<NodeName>) {
        if self.owners.get(&block) == owner.as_ref() {
            return;
        }
        match owner {
            Some(owner) => self.owners.insert(block, owner),
            None => self.owners.remove(&block),
        };
        self.replan(self.named.holders(block).cloned().collect());
    }

    pub fn remove_peer(&mut self, name: &NodeName) {
        let affected = self.remove_record(name);
        self.replan(affected);
    }

    /// The changes since the last call. If applying them fails, `compare` finds the missing ones.
    pub fn take_changes(&mut self) -> PeerChanges {
        let (set_neighbours, del_neighbours) = self.neighbours.take();
        let (set_fdb, del_fdb) = self.fdb.take();
        let (set_routes, del_routes) = self.routes.take();
        PeerChanges { set_neighbours, set_fdb, set_routes, del_routes, del_neighbours, del_fdb }
    }

    /// The changes from the observed to the wanted state. They count as taken.
    pub fn compare(&mut self, observed: &ObservedPeers) -> PeerChanges {
        let (set_neighbours, del_neighbours) = self.neighbours.compare(&observed.neighbours);
        let (set_fdb, del_fdb) = self.fdb.compare(&observed.fdb);
        let (set_routes, del_routes) = self.routes.compare(&observed.routes);
        PeerChanges { set_neighbours, set_fdb, set_routes, del_routes, del_neighbours, del_fdb }
    }

    /// Whether IPv4 and IPv6 tunnel devices are needed. They may not exist yet.
    pub fn tunnels_wanted(&self) -> (bool, bool) {
        let wanted = |family| self.tunnelled.get(&family).is_some_and(|count| *count > 0);
        (wanted(Family::V4), wanted(Family::V6))
    }

    /// Every block of every other node, and how it is reached.
    pub fn paths(&self) -> impl Iterator<Item = (&NodeName, IpNet, &PeerPath)> {
        self.peers
            .iter()
            .flat_map(|(name, peer)| peer.plan.paths.iter().map(move |(block, path)| (&**name, *block, path)))
    }

    /// Adds or replaces a record. Returns the nodes that must be planned again.
    fn add_record(&mut self, name: Arc<NodeName>, node: StoredNode) -> BTreeSet<Arc<NodeName>> {
        if *name == self.local_node.name {
            return self.set_own_mac(&name, node.record.tunnel_mac);
        }
        if self.peers.get(&name).is_some_and(|peer| peer.node == node) {
            return BTreeSet::new();
        }
        let mut affected = self.remove_record(&name);
        self.index(&name, &node);
        affected.extend(self.dependents(&node.record));
        affected.insert(Arc::clone(&name));
        self.peers.insert(name, PlannedPeer { node, plan: PeerPlan::default() });
        affected
    }

    fn set_own_mac(&mut self, name: &Arc<NodeName>, mac: Mac) -> BTreeSet<Arc<NodeName>> {
        if self.own_mac == Some(mac) {
            return BTreeSet::new();
        }
        let mut affected = BTreeSet::new();
        if let Some(old) = self.own_mac.replace(mac) {
            self.macs.remove(old, own(name));
            affected.extend(self.macs.holders(old).cloned());
        }
        affected.extend(self.macs.holders(mac).cloned());
        self.macs.add(mac, own(name));
        affected
    }

    /// Removes a record and its plan. Returns the nodes that must be planned again.
    fn remove_record(&mut self, name: &NodeName) -> BTreeSet<Arc<NodeName>> {
        let Some((name, peer)) = self.peers.remove_entry(name) else { return BTreeSet::new() };
        self.remove_plan(&peer.plan);
        self.unindex(&name, &peer.node);
        self.dependents(&peer.node.record)
    }

    /// The other nodes with plans that depend on this record.
    fn dependents(&self, record: &NodeRecord) -> BTreeSet<Arc<NodeName>> {
        let same_mac = self.macs.holders(record.tunnel_mac);
        // Two nodes with the same address have the same sources: if one is removed, the other's must stay.
        let same_address = record.named_addresses().flat_map(|address| self.addresses.holders(address));
        same_mac.chain(same_address).filter(|name| ***name != record.name).cloned().collect()
    }

    fn index(&mut self, name: &Arc<NodeName>, node: &StoredNode) {
        let holder = Holder { created: node.created, name };
        self.macs.add(node.record.tunnel_mac, holder);
        node.record.named_addresses().for_each(|address| self.addresses.add(address, holder));
        node.record.named_blocks().into_iter().for_each(|block| self.named.add(block, holder));
    }

    fn unindex(&mut self, name: &Arc<NodeName>, node: &StoredNode) {
        let holder = Holder { created: node.created, name };
        self.macs.remove(node.record.tunnel_mac, holder);
        node.record.named_addresses().for_each(|address| self.addresses.remove(address, holder));
        node.record.named_blocks().into_iter().for_each(|block| self.named.remove(block, holder));
    }

    /// Removes all old plans before it adds the new ones, so that an object that moves between nodes is not lost.
    fn replan(&mut self, names: BTreeSet<Arc<NodeName>>) {
        let mut plans = Vec::with_capacity(names.len());
        for name in names {
            let Self { local_node, owners, macs, peers, .. } = &mut *self;
            let Some(peer) = peers.get_mut(&name) else { continue };
            let old = std::mem::take(&mut peer.plan);
            let inputs = PlanInputs { local_node, owners, macs };
            plans.push((name, plan(&inputs, &peer.node.record)));
            self.remove_plan(&old);
        }
        for (name, plan) in plans {
            self.add_plan(&plan);
            if let Some(peer) = self.peers.get_mut(&name) {
                peer.plan = plan;
            }
        }
    }

    fn add_plan(&mut self, plan: &PeerPlan) {
        plan.routes.iter().for_each(|route| self.routes.want(*route));
        plan.neighbours.iter().for_each(|neighbour| self.neighbours.want(*neighbour));
        plan.fdb.iter().for_each(|entry| self.fdb.want(*entry));
        plan.sources.iter().for_each(|source| self.sources.want(*source));
        if let Some(family) = plan.tunnel {
            *self.tunnelled.entry(family).or_default() += 1;
        }
    }

    fn remove_plan(&mut self, plan: &PeerPlan) {
        plan.routes.iter().for_each(|route| self.routes.unwant(route));
        plan.neighbours.iter().for_each(|neighbour| self.neighbours.unwant(neighbour));
        plan.fdb.iter().for_each(|entry| self.fdb.unwant(entry));
        plan.sources.iter().for_each(|source| self.sources.unwant(source));
        if let Some(count) = plan.tunnel.and_then(|family| self.tunnelled.get_mut(&family)) {
            *count = count.saturating_sub(1);
        }
    }
}

/// This node's record has priority: the kernel drops packets with its own source MAC.
fn own(name: &Arc<NodeName>) -> Holder<'_> {
    Holder { created: 0, name }
}

fn truncate_networks(local_node: LocalNode) -> LocalNode {
    LocalNode { blocks: local_node.blocks.iter().map(IpNet::trunc).collect(), ..local_node }
}
