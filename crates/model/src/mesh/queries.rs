//! Queries of the desired state, which decide whether a kernel event matters.

use std::net::IpAddr;

use ipnet::IpNet;
use types::{Mac, NodeName};

use super::Mesh;
use super::changes::PeerRoute;
use crate::admission::{MAX_BLOCKS, StoredNode, check_address, check_block};
use crate::object::NodeRecord;

impl Mesh {
    /// Whether exactly this route is wanted.
    pub fn wants_route(&self, route: &PeerRoute) -> bool {
        self.routes.wanted(&route.dst) == Some(route)
    }

    /// Whether any route to this destination is wanted.
    pub fn wants_route_to(&self, dst: &IpNet) -> bool {
        self.routes.wanted(dst).is_some()
    }

    pub fn wants_neighbour(&self, link: u32, addr: IpAddr) -> bool {
        self.neighbours.wanted(&(link, addr)).is_some()
    }

    pub fn wants_fdb(&self, link: u32, mac: Mac) -> bool {
        self.fdb.wanted(&(link, mac)).is_some()
    }

    /// The records of the other nodes, by name.
    pub fn peers(&self) -> impl Iterator<Item = &NodeRecord> {
        self.stored().map(|node| &node.record)
    }

    /// Like `peers`, with the revisions at which the records were created.
    pub fn stored(&self) -> impl Iterator<Item = &StoredNode> {
        self.peers.values().map(|peer| &peer.node)
    }

    /// The owner of a block according to its claim.
    pub fn owner(&self, block: &IpNet) -> Option<&NodeName> {
        self.owners.get(block)
    }

    /// All claims: the block, and its owner.
    pub fn claims(&self) -> impl Iterator<Item = (&IpNet, &NodeName)> {
        self.owners.iter()
    }

    /// The record of another node.
    pub fn peer(&self, name: &NodeName) -> Option<&NodeRecord> {
        self.peers.get(name).map(|peer| &peer.node.record)
    }

    /// The records of the other nodes, reduced to the parts that are used, in the order of creation.
    pub fn admitted(&self) -> Vec<NodeRecord> {
        let mut nodes: Vec<&StoredNode> = self.stored().collect();
        nodes.sort_by_key(|node| (node.created, &node.record.name));
        nodes.into_iter().map(|node| self.admitted_part(&node.record)).collect()
    }

    fn admitted_part(&self, record: &NodeRecord) -> NodeRecord {
        let is_owned = |block: &&IpNet| {
            let block = block.trunc();
            check_block(&self.local_node.block_layouts, self.owner(&block), &record.name, &block).is_ok()
        };
        let is_usable = |address: &IpAddr| check_address(&self.local_node.block_layouts, *address).is_ok();
        let owned = record.blocks.entries().take(MAX_BLOCKS).filter(|(_, block)| is_owned(block));
        NodeRecord {
            blocks: owned.map(|(network, block)| (network.clone(), *block)).collect(),
            addresses: record.named_addresses().filter(is_usable).collect(),
            ..record.clone()
        }
    }
}
