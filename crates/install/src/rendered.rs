//! What a CNI config says of this node, and what is known only when the node has its share of the network.

use std::net::IpAddr;

use ipnet::IpNet;
use model::Cut;
use serde_json::{Map, Value, json};

use config::Network;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// This node's.
    pub blocks: Vec<IpNet>,
    /// What its bridge carries.
    pub gateways: Vec<IpAddr>,
    /// None: the bridge's own, else 1500.
    pub mtu: Option<u32>,
}

impl Rendered {
    /// The first address of each block is its gateway.
    pub fn new(blocks: Vec<IpNet>, mtu: Option<u32>) -> Self {
        Self { gateways: blocks.iter().filter_map(ipam::block_gateway).collect(), blocks, mtu }
    }

    /// One node that has all of the network.
    pub(super) fn whole(network: &Network) -> Self {
        Self::new(network.subnets.clone(), network.mtu)
    }

    /// What some node has.
    pub(super) fn stand_in(network: &Network, margin: u8) -> Self {
        let first = |subnet: &IpNet| Cut::new(*subnet, margin).map_or(*subnet, |cut| cut.block(0));
        Self::new(network.subnets.iter().map(first).collect(), network.mtu)
    }

    /// What a request of the network gets where it lacks it.
    pub(super) fn request_defaults(&self, network: &Network) -> Map<String, Value> {
        let mut map = network.request_defaults();
        map.insert("subnet".to_owned(), json!(joined(&self.blocks)));
        if let Some(mtu) = self.mtu {
            map.insert("mtu".to_owned(), json!(mtu));
        }
        map
    }
}

pub(super) fn joined<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}
