//! What one node must have in its kernel so that its pods reach those of the others.
//!
//! ```text
//!   Facts (this node) ─┐            ┌─ ways: by which way each block is reached, or why by none
//!   NodeRecords ───────┼─▶ plan ────┼─ routes, neighbours, forwarding entries
//!   claims of blocks ──┘            ├─ sources: what the firewall accepts from each peer's tunnel
//!                                   └─ Changes: since they were taken, or against what the kernel has
//! ```
//!
//! One record among thousands costs what it holds itself: only nodes that compete with it are planned again. A claim costs the
//! records that name its block. Records and claims may come in any order.

mod ask;
mod changes;
mod claims;
mod local_node;
mod path;
mod plan;
mod problems;
#[cfg(test)]
mod props;
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
use crate::block_layout::BlockLayout;
use crate::object::NodeRecord;
use changes::PlannedObjects;
use claims::{Holder, Holders};
use plan::{Ground, PeerPlan, PlannedPeer, plan};

/// The other nodes as this one sees them.
#[derive(Debug, Clone)]
pub struct Mesh {
    local_node: LocalNode,
    /// How the network is divided into blocks, as the facts say.
    block_layouts: Vec<BlockLayout>,
    /// Names are shared: each stands in many places.
    peers: BTreeMap<Arc<NodeName>, PlannedPeer>,
    /// The owner of each block, as its claim says.
    owners: BTreeMap<IpNet, NodeName>,
    /// The records that name a block, with or without its claim.
    named: Holders<IpNet>,
    macs: Holders<Mac>,
    addresses: Holders<IpAddr>,
    /// What our own record says; where another says the same, ours counts.
    own_mac: Option<Mac>,
    routes: PlannedObjects<PeerRoute>,
    neighbours: PlannedObjects<PeerNeighbour>,
    fdb: PlannedObjects<PeerFdb>,
    sources: PlannedObjects<PeerSource>,
    /// How many nodes are reached through a tunnel of either family.
    tunnelled: BTreeMap<Family, usize>,
}

impl Mesh {
    pub fn new(local_node: LocalNode) -> Self {
        let local_node = tidy(local_node);
        Self {
            block_layouts: division(&local_node),
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
        let local_node = tidy(local_node);
        if local_node == self.local_node {
            return;
        }
        let (old, new) = (Arc::new(self.local_node.name.clone()), Arc::new(local_node.name.clone()));
        if let Some(mac) = self.own_mac {
            self.macs.remove(mac, own(&old));
            self.macs.add(mac, own(&new));
        }
        // A node that has our name now is ourselves.
        self.forget(&new);
        self.block_layouts = division(&local_node);
        self.local_node = local_node;
        self.replan(self.peers.keys().cloned().collect());
    }

    /// These are all records and claims; others are forgotten. Our own record may be among them.
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
        let gone: Vec<_> = self.peers.keys().filter(|name| !nodes.contains_key(*name)).cloned().collect();
        for name in &gone {
            affected.extend(self.forget(name));
        }
        for (name, node) in nodes {
            affected.extend(self.learn(name, node));
        }
        self.replan(affected);
    }

    pub fn set_peer(&mut self, node: StoredNode) {
        let affected = self.learn(Arc::new(node.record.name.clone()), node);
        self.replan(affected);
    }

    /// The claim of a block names this node now, or there is none.
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
        let affected = self.forget(name);
        self.replan(affected);
    }

    /// From what was taken before to what is wanted now. Where applying it failed, `compare` finds out what is missing.
    pub fn take_changes(&mut self) -> PeerChanges {
        let (set_neighbours, del_neighbours) = self.neighbours.take();
        let (set_fdb, del_fdb) = self.fdb.take();
        let (set_routes, del_routes) = self.routes.take();
        PeerChanges { set_neighbours, set_fdb, set_routes, del_routes, del_neighbours, del_fdb }
    }

    /// From what the kernel has to what is wanted now; it counts as taken.
    pub fn compare(&mut self, observed: &ObservedPeers) -> PeerChanges {
        let (set_neighbours, del_neighbours) = self.neighbours.compare(&observed.neighbours);
        let (set_fdb, del_fdb) = self.fdb.compare(&observed.fdb);
        let (set_routes, del_routes) = self.routes.compare(&observed.routes);
        PeerChanges { set_neighbours, set_fdb, set_routes, del_routes, del_neighbours, del_fdb }
    }

    /// Which tunnel devices are needed, IPv4 and IPv6, whether or not they exist.
    pub fn tunnels_wanted(&self) -> (bool, bool) {
        let wanted = |family| self.tunnelled.get(&family).is_some_and(|count| *count > 0);
        (wanted(Family::V4), wanted(Family::V6))
    }

    /// Every block of every other node, and by which way it is reached.
    pub fn paths(&self) -> impl Iterator<Item = (&NodeName, IpNet, &PeerPath)> {
        self.peers
            .iter()
            .flat_map(|(name, peer)| peer.plan.paths.iter().map(move |(block, path)| (&**name, *block, path)))
    }

    /// Takes a record in; who must be planned again.
    fn learn(&mut self, name: Arc<NodeName>, node: StoredNode) -> BTreeSet<Arc<NodeName>> {
        if *name == self.local_node.name {
            return self.learn_own(&name, node.record.tunnel_mac);
        }
        if self.peers.get(&name).is_some_and(|peer| peer.node == node) {
            return BTreeSet::new();
        }
        let mut affected = self.forget(&name);
        self.enter(&name, &node);
        affected.extend(self.rivals(&node.record));
        affected.insert(Arc::clone(&name));
        self.peers.insert(name, PlannedPeer { node, plan: PeerPlan::default() });
        affected
    }

    fn learn_own(&mut self, name: &Arc<NodeName>, mac: Mac) -> BTreeSet<Arc<NodeName>> {
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

    /// Drops a node with all that it needed; who must be planned again.
    fn forget(&mut self, name: &NodeName) -> BTreeSet<Arc<NodeName>> {
        let Some((name, peer)) = self.peers.remove_entry(name) else { return BTreeSet::new() };
        self.withdraw(&peer.plan);
        self.leave(&name, &peer.node);
        self.rivals(&peer.node.record)
    }

    /// The other nodes whose plans depend on this one's record.
    fn rivals(&self, record: &NodeRecord) -> BTreeSet<Arc<NodeName>> {
        let same_mac = self.macs.holders(record.tunnel_mac);
        // Two nodes with one address want the same sources: where one goes, the other's stay.
        let same_address = record.named_addresses().flat_map(|address| self.addresses.holders(address));
        same_mac.chain(same_address).filter(|name| ***name != record.name).cloned().collect()
    }

    fn enter(&mut self, name: &Arc<NodeName>, node: &StoredNode) {
        let holder = Holder { created: node.created, name };
        self.macs.add(node.record.tunnel_mac, holder);
        node.record.named_addresses().for_each(|address| self.addresses.add(address, holder));
        node.record.named_blocks().into_iter().for_each(|block| self.named.add(block, holder));
    }

    fn leave(&mut self, name: &Arc<NodeName>, node: &StoredNode) {
        let holder = Holder { created: node.created, name };
        self.macs.remove(node.record.tunnel_mac, holder);
        node.record.named_addresses().for_each(|address| self.addresses.remove(address, holder));
        node.record.named_blocks().into_iter().for_each(|block| self.named.remove(block, holder));
    }

    /// First everything of theirs goes, then it comes: what moves from one to another is never lost on the way.
    fn replan(&mut self, names: BTreeSet<Arc<NodeName>>) {
        let mut plans = Vec::with_capacity(names.len());
        for name in names {
            let Self { local_node, block_layouts, owners, macs, peers, .. } = &mut *self;
            let Some(peer) = peers.get_mut(&name) else { continue };
            let old = std::mem::take(&mut peer.plan);
            let ground = Ground { local_node, block_layouts, owners, macs };
            plans.push((name, plan(&ground, &peer.node.record)));
            self.withdraw(&old);
        }
        for (name, plan) in plans {
            self.establish(&plan);
            if let Some(peer) = self.peers.get_mut(&name) {
                peer.plan = plan;
            }
        }
    }

    fn establish(&mut self, plan: &PeerPlan) {
        plan.routes.iter().for_each(|route| self.routes.want(*route));
        plan.neighbours.iter().for_each(|neighbour| self.neighbours.want(*neighbour));
        plan.fdb.iter().for_each(|entry| self.fdb.want(*entry));
        plan.sources.iter().for_each(|source| self.sources.want(*source));
        if let Some(family) = plan.tunnel {
            *self.tunnelled.entry(family).or_default() += 1;
        }
    }

    fn withdraw(&mut self, plan: &PeerPlan) {
        plan.routes.iter().for_each(|route| self.routes.drop(route));
        plan.neighbours.iter().for_each(|neighbour| self.neighbours.drop(neighbour));
        plan.fdb.iter().for_each(|entry| self.fdb.drop(entry));
        plan.sources.iter().for_each(|source| self.sources.drop(source));
        if let Some(count) = plan.tunnel.and_then(|family| self.tunnelled.get_mut(&family)) {
            *count = count.saturating_sub(1);
        }
    }
}

/// Our own record comes before all others: the kernel drops packets that seem to come from itself.
fn own(name: &Arc<NodeName>) -> Holder<'_> {
    Holder { created: 0, name }
}

/// A subnet that cannot be divided has no blocks for other nodes.
fn division(local_node: &LocalNode) -> Vec<BlockLayout> {
    local_node.subnets.iter().filter_map(|subnet| BlockLayout::new(*subnet, local_node.margin).ok()).collect()
}

fn tidy(local_node: LocalNode) -> LocalNode {
    let whole = |list: &[IpNet]| list.iter().map(IpNet::trunc).collect();
    LocalNode { blocks: whole(&local_node.blocks), subnets: whole(&local_node.subnets), ..local_node }
}
