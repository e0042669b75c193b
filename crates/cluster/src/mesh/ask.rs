//! What is wanted, asked one by one: whoever hears that something changed can tell whether it matters.

use std::net::IpAddr;

use ipnet::IpNet;
use types::Mac;

use super::Mesh;
use super::changes::PeerRoute;
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
        self.peers.values().map(|peer| &peer.record)
    }
}
