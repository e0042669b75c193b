//! What a node knows of itself.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use types::{Family, NodeName};

/// How packets get to other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Direct to nodes that are on the same link, through the tunnel to others.
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

/// Where other nodes are reached from, in one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Underlay {
    pub link: u32,
    /// Ours, as published.
    pub address: IpAddr,
    /// What is on that link without a gateway.
    pub on_link: Vec<IpNet>,
}

/// The tunnel devices that exist, by the family of their outer packets.
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
    pub blocks: Vec<IpNet>,
    /// Of the network: no block lies elsewhere.
    pub subnets: Vec<IpNet>,
    /// How many bits a block's prefix is longer than its subnet's.
    pub margin: u8,
    pub transport: Transport,
    /// At most one of each family.
    pub underlays: Vec<Underlay>,
    pub tunnels: Tunnels,
    /// From where the node itself sends to pods: our gateway address of each family.
    pub sources: Vec<IpAddr>,
}

impl LocalNode {
    pub(super) fn underlay(&self, family: Family) -> Option<&Underlay> {
        self.underlays.iter().find(|underlay| Family::of(underlay.address) == family)
    }

    pub(super) fn source(&self, family: Family) -> Option<IpAddr> {
        self.sources.iter().copied().find(|source| Family::of(*source) == family)
    }

    pub(super) fn is_ours(&self, address: IpAddr) -> bool {
        self.underlays.iter().any(|underlay| underlay.address == address)
    }
}
