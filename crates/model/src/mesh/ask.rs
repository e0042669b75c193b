//! What is wanted, asked one by one: whoever hears that something changed can tell whether it matters.

use std::net::IpAddr;

use ipnet::IpNet;
use types::{Mac, NodeName};

use super::Mesh;
use super::changes::PeerRoute;
use crate::admission::{MAX_BLOCKS, StoredNode, check_address, check_block};
use crate::object::NodeRecord;

impl Mesh {
    /// Exactly this one?
    pub fn wants_route(&self, route: &PeerRoute) -> bool {
        self.routes.wanted(&route.dst) == Some(route)
    }

    /// Any to this place?
    pub fn wants_route_to(&self, dst: &IpNet) -> bool {
        self.routes.wanted(dst).is_some()
    }

    pub fn wants_neighbour(&self, link: u32, addr: IpAddr) -> bool {
        self.neighbours.wanted(&(link, addr)).is_some()
    }

    pub fn wants_fdb(&self, link: u32, mac: Mac) -> bool {
        self.fdb.wanted(&(link, mac)).is_some()
    }

    /// The other nodes, by name.
    pub fn peers(&self) -> impl Iterator<Item = &NodeRecord> {
        self.stored().map(|node| &node.record)
    }

    /// The same with the revisions at which their records were created.
    pub fn stored(&self) -> impl Iterator<Item = &StoredNode> {
        self.peers.values().map(|peer| &peer.node)
    }

    /// The node that a block's claim names.
    pub fn owner(&self, block: &IpNet) -> Option<&NodeName> {
        self.owners.get(block)
    }

    /// All claims of blocks: the block, and the node that it names.
    pub fn claims(&self) -> impl Iterator<Item = (&IpNet, &NodeName)> {
        self.owners.iter()
    }

    /// The record of another node.
    pub fn peer(&self, name: &NodeName) -> Option<&NodeRecord> {
        self.peers.get(name).map(|peer| &peer.node.record)
    }

    /// The other nodes with the parts of their records that are used, in the order in which the records were created.
    pub fn admitted(&self) -> Vec<NodeRecord> {
        let mut nodes: Vec<&StoredNode> = self.stored().collect();
        nodes.sort_by_key(|node| (node.created, &node.record.name));
        nodes.into_iter().map(|node| self.admitted_part(&node.record)).collect()
    }

    fn admitted_part(&self, record: &NodeRecord) -> NodeRecord {
        let is_its = |block: &&IpNet| {
            let block = block.trunc();
            check_block(&self.block_layouts, self.owner(&block), &record.name, &block).is_ok()
        };
        let is_usable = |address: &IpAddr| check_address(&self.local_node.subnets, *address).is_ok();
        NodeRecord {
            blocks: record.blocks.iter().take(MAX_BLOCKS).filter(is_its).copied().collect(),
            addresses: record.named_addresses().filter(is_usable).collect(),
            ..record.clone()
        }
    }
}
