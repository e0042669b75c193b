//! Which inner sources each peer may send through the tunnel. The firewall accepts these and drops all others.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use types::PeerSource;

use super::Mesh;
use super::changes::Keyed;
use super::local_node::LocalNode;
use super::path::is_usable;
use crate::object::NodeRecord;

/// To be added before routes change and removed afterwards, so that no peer is refused while its routes change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceChanges {
    pub add: Vec<PeerSource>,
    pub remove: Vec<PeerSource>,
}

impl Keyed for PeerSource {
    type Key = (IpAddr, IpNet);
    fn key(&self) -> Self::Key {
        (self.outer, self.inner)
    }
    fn removes(&self, other: &Self) -> bool {
        self == other
    }
}

impl Mesh {
    /// The difference between the sources that were taken before and those that are wanted now.
    pub fn take_source_changes(&mut self) -> SourceChanges {
        let (add, remove) = self.sources.take();
        SourceChanges { add, remove }
    }

    /// All sources that are wanted.
    pub fn sources(&self) -> impl Iterator<Item = PeerSource> {
        self.peers.values().flat_map(|peer| peer.plan.sources.iter().copied())
    }
}

/// The addresses that a peer sends from. This node's own address and addresses of pods are never a peer's: with those, a
/// local process or a pod could send as that peer.
pub(super) fn senders(local_node: &LocalNode, record: &NodeRecord) -> BTreeSet<IpAddr> {
    let is_sender = |address: &IpAddr| is_usable(local_node, *address) && !local_node.is_ours(*address);
    record.named_addresses().filter(is_sender).collect()
}

/// Every sender with every block that is the node's without a doubt, and with the node's own addresses: a process on the
/// node that is bound to one of them talks to pods here.
pub(super) fn sources(senders: &BTreeSet<IpAddr>, blocks: &[IpNet]) -> Vec<PeerSource> {
    let own = senders.iter().map(|address| IpNet::from(*address));
    let inner: BTreeSet<IpNet> = blocks.iter().copied().chain(own).collect();
    let of = |outer: &IpAddr| inner.iter().map(|inner| PeerSource { outer: *outer, inner: *inner }).collect();
    senders.iter().flat_map::<Vec<PeerSource>, _>(of).collect()
}
