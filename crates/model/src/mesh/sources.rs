//! The source addresses that each peer may use, in the tunnel and directly. The firewall drops all others.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use types::{Mac, PeerSource};

use super::Mesh;
use super::changes::Keyed;
use super::local_node::LocalNode;
use super::path::is_usable;
use crate::admission::MAX_ADDRESSES;
use crate::object::NodeRecord;

/// Add before routes change, and remove afterwards, so that no traffic of a peer is dropped meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceChanges {
    pub add: Vec<PeerSource>,
    pub remove: Vec<PeerSource>,
}

impl Keyed for PeerSource {
    type Key = Self;
    fn key(&self) -> Self::Key {
        *self
    }
    fn removes(&self, other: &Self) -> bool {
        self == other
    }
}

impl Mesh {
    /// The changes since the last call.
    pub fn take_source_changes(&mut self) -> SourceChanges {
        let (add, remove) = self.sources.take();
        SourceChanges { add, remove }
    }

    /// All accepted sources.
    pub fn sources(&self) -> impl Iterator<Item = PeerSource> {
        self.peers.values().flat_map(|peer| peer.plan.sources.iter().copied())
    }
}

/// The outer addresses of a peer. Excludes this node's address and pod addresses: with these, a local process or a pod could
/// send as that peer.
pub(super) fn senders(local_node: &LocalNode, record: &NodeRecord) -> BTreeSet<IpAddr> {
    let is_sender =
        |address: &IpAddr| is_usable(local_node, *address) && !local_node.is_own_address(*address);
    record.named_addresses().filter(is_sender).collect()
}

/// All combinations of an outer address with the node's routable blocks and with its addresses. Processes on the node use
/// these addresses to connect to pods.
pub(super) fn sources(senders: &BTreeSet<IpAddr>, blocks: &[IpNet]) -> Vec<PeerSource> {
    let own = senders.iter().map(|address| IpNet::from(*address));
    let inner: BTreeSet<IpNet> = blocks.iter().copied().chain(own).collect();
    let of = |outer: &IpAddr| {
        inner.iter().map(|inner| PeerSource::Tunnel { outer: *outer, inner: *inner }).collect()
    };
    senders.iter().flat_map::<Vec<PeerSource>, _>(of).collect()
}

/// All combinations of a MAC with the node's routable blocks. Which transport another node uses is not known here, so both are accepted.
/// Without published MACs, for example of an earlier version, blocks are not checked.
pub(super) fn link_sources(record: &NodeRecord, blocks: &[IpNet]) -> Vec<PeerSource> {
    if record.macs.is_empty() {
        return Vec::new();
    }
    let links = record.macs.iter().take(MAX_ADDRESSES).copied();
    let macs: BTreeSet<Mac> = links.chain([record.tunnel_mac]).collect();
    let of = |block: &IpNet| {
        let block = *block;
        macs.iter()
            .map(move |mac| PeerSource::Link { mac: *mac, block })
            .chain([PeerSource::Checked { block }])
            .collect()
    };
    blocks.iter().flat_map::<Vec<PeerSource>, _>(of).collect()
}
