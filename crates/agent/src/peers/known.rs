//! The state of the peers thread: known nodes, and when they are compared with the kernel next.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use model::{LocalNode, Mesh, NodeRecord, StoredNode, Tunnels, difference, listed};
use tracing::{info, warn};
use types::{Code, Finding, NodeName};

use super::inputs::{ClaimedBlock, StoreListing};
use super::routes::{ChecksumProbes, PeerReportState, PeerTableState};
use super::tunnel::Tunnel;
use super::underlay::Position;

/// How long nodes that are missing from a wiped store are kept. Pods run without an agent, and an agent may be stopped during an
/// update. A node that never returns cannot be distinguished from such a node.
const AWAIT_TIMEOUT: Duration = Duration::from_secs(3600);

/// A new node claims its blocks one by one. After this time, it has joined with the blocks that it has.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);
/// The most changes of one listing that are logged one by one.
const MAX_LOGGED: usize = 20;

/// The peers, and the position of this node.
pub(crate) struct KnownPeers {
    pub(crate) mesh: Mesh,
    /// Every node has a block of each of them.
    default_subnets: Vec<IpNet>,
    pub(crate) position: Position,
    pub(crate) tunnels: Tunnels,
    /// Whether saved blocks of this node do not fit the configured subnets and margin.
    is_other_layout: bool,
    /// Whether lost addresses of the position may be from the saved record.
    has_saved_addresses: bool,
    /// Whether the store has listed all nodes. Only then objects of other nodes are removed.
    pub(crate) is_complete: bool,
    /// Whether leftovers of an earlier agent were removed. Objects that are removed later were added by another process: drift.
    pub(crate) has_removed_leftovers: bool,
    /// When all objects are compared with the kernel next.
    pub(crate) compare_at: Instant,
    /// When the peers are reported to membership, which writes them to disk.
    pub(crate) save_at: Option<Instant>,
    /// Nodes that a wiped store does not know yet, and until when they are kept.
    pub(crate) awaited: BTreeMap<NodeName, Instant>,
    /// Since when a published address is missing.
    pub(crate) missing_since: Option<Instant>,
    /// The desired tunnel devices of the last comparison, IPv6 and IPv4.
    pub(crate) applied_tunnels: [Option<Tunnel>; 2],
    /// Failures of tunnel devices.
    pub(crate) tunnel_findings: Vec<Finding>,
    /// Unmanaged links with the name of a tunnel.
    pub(crate) conflicting_links: Vec<u32>,
    /// Peers that were logged as joined.
    announced: BTreeSet<NodeName>,
    /// Peers that have blocks of some subnets only, and when this was observed first.
    joining: BTreeMap<NodeName, Instant>,
    pub(crate) peer_table: PeerTableState,
    pub(crate) report_state: PeerReportState,
    pub(crate) checksum_probes: ChecksumProbes,
}

impl KnownPeers {
    /// `default_subnets` are those of the default network, `remembered` the peers that were saved to disk.
    pub(crate) fn new(
        local_node: LocalNode,
        default_subnets: Vec<IpNet>,
        remembered: Vec<NodeRecord>,
    ) -> Self {
        let mut mesh = Mesh::new(local_node);
        // They were admitted when they were saved, in the order in which the store created their records.
        let owned = |record: &NodeRecord| {
            let name = record.name.clone();
            record.blocks.iter().map(move |block| (*block, name.clone())).collect::<Vec<_>>()
        };
        let owners = remembered.iter().rev().flat_map(owned).collect();
        let announced = remembered.iter().map(|record| record.name.clone()).collect();
        let nodes = (1..).zip(remembered).map(|(created, record)| StoredNode { record, created });
        mesh.set_all(nodes, owners);
        Self {
            mesh,
            default_subnets,
            position: Position::default(),
            tunnels: Tunnels::default(),
            is_other_layout: false,
            has_saved_addresses: false,
            is_complete: false,
            has_removed_leftovers: false,
            compare_at: Instant::now(),
            save_at: None,
            awaited: BTreeMap::new(),
            missing_since: None,
            applied_tunnels: [None, None],
            tunnel_findings: Vec::new(),
            conflicting_links: Vec::new(),
            announced,
            joining: BTreeMap::new(),
            peer_table: PeerTableState::default(),
            report_state: PeerReportState::default(),
            checksum_probes: ChecksumProbes::default(),
        }
    }

    pub(crate) fn with_other_layout(self, is_other_layout: bool) -> Self {
        Self { is_other_layout, ..self }
    }

    /// The addresses of this node's saved record. They are reported if they are missing, until the store has a record without them.
    pub(crate) fn with_saved_addresses(self, addresses: Vec<IpAddr>) -> Self {
        Self { has_saved_addresses: true, position: Position::saved(addresses), ..self }
    }

    /// The store has listed this node's new record: an address that it lacks is no longer missing.
    fn forget_saved_addresses(&mut self) {
        if std::mem::take(&mut self.has_saved_addresses) {
            self.position.lost.clear();
            self.compare_at = Instant::now();
        }
    }

    /// Replaces the known nodes by those of the store, with two exceptions: after the store was wiped, nodes that have not registered
    /// again are kept, and so are nodes with an unreadable record. Each node that joined, left or changed is logged; after many of
    /// them, their number.
    pub(crate) fn set_all(&mut self, store_listing: StoreListing) {
        let changes = self.replace_all(store_listing);
        changes.iter().take(MAX_LOGGED).for_each(PeerChange::log);
        if let Some(count) = changes.len().checked_sub(MAX_LOGGED).filter(|more| *more > 0) {
            info!(count, "more peers joined, left or changed");
        }
        self.drop_superseded();
    }

    /// Returns the changes for the log. Only the admitted parts of records are compared, because the disk has no others.
    pub(crate) fn replace_all(&mut self, store_listing: StoreListing) -> Vec<PeerChange> {
        let before: BTreeMap<NodeName, NodeRecord> =
            self.mesh.admitted().into_iter().map(|record| (record.name.clone(), record)).collect();
        let StoreListing { nodes, claims, unreadable, was_wiped } = store_listing;
        self.is_complete = true;
        self.forget_saved_addresses();
        let listed: BTreeSet<&NodeName> = nodes.iter().map(|node| &node.record.name).collect();
        let is_kept =
            |name: &NodeName| was_wiped || unreadable.contains(name) || self.awaited.contains_key(name);
        let absent = self.mesh.stored().filter(|node| !listed.contains(&node.record.name));
        let mut kept: Vec<StoredNode> = absent.filter(|node| is_kept(&node.record.name)).cloned().collect();
        if was_wiped {
            let names = kept.iter().map(|node| &node.record.name).filter(|name| !unreadable.contains(*name));
            self.await_return(names.cloned().collect());
            // Kept records have precedence over records that nodes write again: the wiped store counts revisions from the start.
            kept.iter_mut().for_each(|node| node.created = 0);
        }
        self.awaited.retain(|name, _| !listed.contains(name));
        let owners = self.owners(&kept, claims);
        self.mesh.set_all(kept.into_iter().chain(nodes), owners);
        let after = self.mesh.admitted();
        let mut changes: Vec<PeerChange> =
            after.iter().filter_map(|record| self.change(before.get(&record.name), record)).collect();
        let names: BTreeSet<&NodeName> = after.iter().map(|record| &record.name).collect();
        self.joining.retain(|name, _| names.contains(name));
        let gone = before.into_values().filter(|record| !names.contains(&record.name));
        changes.extend(gone.filter(|record| self.announced.remove(&record.name)).map(PeerChange::Left));
        changes
    }

    /// The owners of blocks according to the claims, with two exceptions. Awaited nodes keep their blocks, because the store lost their
    /// claims. An unreadable claim does not change the known owner.
    fn owners(&self, kept: &[StoredNode], claims: Vec<ClaimedBlock>) -> BTreeMap<IpNet, NodeName> {
        let mut owners = BTreeMap::new();
        for record in
            kept.iter().map(|node| &node.record).filter(|record| self.awaited.contains_key(&record.name))
        {
            let is_owned = |block: &&IpNet| self.mesh.owner(block) == Some(&record.name);
            owners.extend(record.blocks.iter().filter(is_owned).map(|block| (*block, record.name.clone())));
        }
        for ClaimedBlock { block, owner } in claims {
            if let Some(owner) = owner.or_else(|| self.mesh.owner(&block).cloned()) {
                owners.insert(block, owner);
            }
        }
        owners
    }

    /// Conditions of the peers. Saved records were admitted when they were saved. If parts of them are refused before the store
    /// has listed its nodes, the cause is this node's configuration, and the peers must not be removed.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let mut findings = self.mesh.findings();
        findings.retain(|finding| self.is_complete || finding.code != Code::PeerRecordRefused);
        findings
    }

    /// Whether this node has objects of another network configuration: its saved blocks do not fit the configured subnets and margin,
    /// and the store has not listed its nodes. Records of peers do not count, because any of them may have wrong blocks.
    pub(crate) fn has_other_layout(&self) -> bool {
        !self.is_complete && self.is_other_layout
    }

    /// Whether the node has a block of each subnet of the default network.
    fn is_member(&self, record: &NodeRecord) -> bool {
        let has_block = |subnet: &IpNet| record.blocks.iter().any(|block| subnet.contains(block));
        self.default_subnets.iter().all(has_block)
    }

    /// The change to log if `after` replaces `before`.
    fn change(&mut self, before: Option<&NodeRecord>, after: &NodeRecord) -> Option<PeerChange> {
        let name = &after.name;
        if self.announced.contains(name) {
            return difference(before?, after).map(|what| PeerChange::Changed(name.clone(), what));
        }
        if self.is_member(after) {
            return Some(self.mark_joined(after.clone()));
        }
        if !after.blocks.is_empty() {
            self.joining.entry(name.clone()).or_insert_with(Instant::now);
        }
        None
    }

    fn mark_joined(&mut self, record: NodeRecord) -> PeerChange {
        self.joining.remove(&record.name);
        self.announced.insert(record.name.clone());
        PeerChange::Joined(record)
    }

    /// Peers that count as joined although they still lack a block of some subnet after [`JOIN_TIMEOUT`].
    pub(crate) fn take_late_joins(&mut self, now: Instant) -> Vec<PeerChange> {
        let is_late = |since: &Instant| now.saturating_duration_since(*since) >= JOIN_TIMEOUT;
        let late = self.joining.iter().filter(|(_, since)| is_late(since));
        let records: Vec<NodeRecord> = late.filter_map(|(name, _)| self.mesh.peer(name)).cloned().collect();
        records.into_iter().map(|record| self.mark_joined(record)).collect()
    }

    fn await_return(&mut self, names: Vec<NodeName>) {
        let until = Instant::now() + AWAIT_TIMEOUT;
        for name in names {
            self.awaited.entry(name).or_insert(until);
        }
        if !self.awaited.is_empty() {
            let count = self.awaited.len();
            warn!(count, "the store lost its data; nodes that are missing from it are kept for an hour");
            self.compare_at = self.compare_at.min(until);
        }
    }

    /// Adds or replaces a node.
    pub(crate) fn set_peer(&mut self, node: StoredNode) {
        self.awaited.remove(&node.record.name);
        if node.record.name != self.mesh.local_node().name {
            let before = self.mesh.peer(&node.record.name).cloned();
            self.change(before.as_ref(), &node.record).iter().for_each(PeerChange::log);
        }
        self.mesh.set_peer(node);
    }

    /// Removes a node and logs that it left.
    pub(crate) fn remove_peer(&mut self, name: &NodeName) {
        self.joining.remove(name);
        if self.announced.remove(name) {
            self.mesh.peer(name).cloned().map(PeerChange::Left).iter().for_each(PeerChange::log);
        }
        self.mesh.remove_peer(name);
    }

    /// Sets the owner of a block. None: the block is free.
    pub(crate) fn set_claim(&mut self, block: IpNet, owner: Option<NodeName>) {
        self.mesh.set_claim(block, owner);
        self.drop_superseded();
    }

    /// Removes awaited nodes that lost a block to another node.
    fn drop_superseded(&mut self) {
        if self.awaited.is_empty() {
            return;
        }
        let has_lost_block = |record: &NodeRecord| {
            record
                .blocks
                .iter()
                .any(|block| self.mesh.owner(block).is_some_and(|owner| *owner != record.name))
        };
        let awaited = self.mesh.peers().filter(|record| self.awaited.contains_key(&record.name));
        let lost: Vec<NodeName> =
            awaited.filter(|record| has_lost_block(record)).map(|record| record.name.clone()).collect();
        for name in lost {
            self.awaited.remove(&name);
            self.remove_peer(&name);
        }
    }

    /// Removes awaited nodes that did not register again in time, and logs late joins. Called in each comparison.
    pub(crate) fn remove_expired(&mut self) {
        let now = Instant::now();
        self.take_late_joins(now).iter().for_each(PeerChange::log);
        let expired: Vec<NodeName> =
            self.awaited.iter().filter(|(_, until)| **until <= now).map(|(name, _)| name.clone()).collect();
        for name in expired {
            self.save_at.get_or_insert(now);
            self.awaited.remove(&name);
            self.remove_peer(&name);
        }
    }
}

/// A change of a peer for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PeerChange {
    Joined(NodeRecord),
    Changed(NodeName, String),
    Left(NodeRecord),
}

impl PeerChange {
    fn log(&self) {
        match self {
            Self::Joined(NodeRecord { name, addresses, blocks, .. }) => {
                info!(node = %name, addresses = listed(addresses), %blocks, "peer joined");
            }
            Self::Changed(name, what) => info!(node = %name, what, "peer changed"),
            Self::Left(NodeRecord { name, blocks, .. }) => {
                info!(node = %name, %blocks, "peer left");
            }
        }
    }
}
