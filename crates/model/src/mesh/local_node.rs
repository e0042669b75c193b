//! The state of the local node.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use types::{Family, NodeName};

use crate::block_layout::BlockLayout;

/// How packets are sent to other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Direct to nodes on the same link, otherwise through the tunnel.
    #[default]
    Auto,
    Direct,
    Vxlan,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("transport {0:?} is unknown: it must be auto, direct or vxlan")]
pub struct TransportError(String);

impl FromStr for Transport {
    type Err = TransportError;
    fn from_str(text: &str) -> Result<Self, TransportError> {
        match text {
            "auto" => Ok(Self::Auto),
            "direct" => Ok(Self::Direct),
            "vxlan" => Ok(Self::Vxlan),
            other => Err(TransportError(other.to_owned())),
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Direct => "direct",
            Self::Vxlan => "vxlan",
        })
    }
}

/// The underlay of one family, over which other nodes are reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Underlay {
    pub link: u32,
    /// This node's address, as published.
    pub address: IpAddr,
    /// Networks that are reachable on the link without a gateway.
    pub on_link: Vec<IpNet>,
}

/// The existing tunnel devices, by the family of their outer packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tunnels {
    pub v4: Option<u32>,
    pub v6: Option<u32>,
}

impl Tunnels {
    pub(super) fn of(self, outer: Family) -> Option<u32> {
        match outer {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }
}

/// This node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalNode {
    pub name: NodeName,
    /// Its blocks of all networks.
    pub blocks: Vec<IpNet>,
    /// How the subnets of all networks are divided into blocks. They do not overlap.
    pub block_layouts: Vec<BlockLayout>,
    pub transport: Transport,
    /// At most one per family.
    pub underlays: Vec<Underlay>,
    pub tunnels: Tunnels,
    /// Source addresses for packets from the node to pods: the gateway address of each family.
    pub sources: Vec<IpAddr>,
}

impl LocalNode {
    /// The subnets of all networks.
    pub fn subnets(&self) -> Vec<IpNet> {
        self.block_layouts.iter().map(BlockLayout::subnet).collect()
    }

    pub(super) fn underlay(&self, family: Family) -> Option<&Underlay> {
        self.underlays.iter().find(|underlay| Family::of(underlay.address) == family)
    }

    pub(super) fn source(&self, family: Family) -> Option<IpAddr> {
        self.sources.iter().copied().find(|source| Family::of(*source) == family)
    }

    pub(super) fn is_own_address(&self, address: IpAddr) -> bool {
        self.underlays.iter().any(|underlay| underlay.address == address)
    }
}
