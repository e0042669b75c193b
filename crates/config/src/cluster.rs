//! How a network is spread over nodes, and how its packets cross between them.

use std::fmt;

pub use model::Transport;
use types::{IfName, NameError};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterConfig {
    /// How many bits a block's prefix is longer than its subnet's.
    pub margin: u8,
    pub transport: Transport,
    pub vni: u32,
    pub vxlan_port: u16,
    /// The stem of the tunnel devices' names; see [`ClusterConfig::tunnel4`].
    pub tunnel: String,
    pub tunnel_checksum: TunnelChecksum,
    /// May accept rules be put into others' forward chains?
    pub accept_forward: bool,
}

/// Whether the kernel leaves checksums of what goes into the tunnel to the hardware.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunnelChecksum {
    /// As the kernel has it, unless a trial shows that other nodes get wrong ones.
    Auto,
    On,
    Off,
}

impl ClusterConfig {
    /// The device of tunnels between IPv4 addresses of nodes.
    pub fn tunnel4(&self) -> Result<IfName, NameError> {
        IfName::try_from(format!("{}4", self.tunnel))
    }

    /// The device of tunnels between IPv6 addresses of nodes.
    pub fn tunnel6(&self) -> Result<IfName, NameError> {
        IfName::try_from(format!("{}6", self.tunnel))
    }
}

impl fmt::Display for TunnelChecksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

pub(super) fn transport(text: &str) -> Result<Transport, String> {
    text.parse().map_err(|_| "must be auto, direct or vxlan".to_owned())
}

pub(super) fn tunnel_checksum(text: &str) -> Result<TunnelChecksum, String> {
    match text {
        "auto" => Ok(TunnelChecksum::Auto),
        "on" => Ok(TunnelChecksum::On),
        "off" => Ok(TunnelChecksum::Off),
        _ => Err("must be auto, on or off".to_owned()),
    }
}

/// A digit follows it, and both together are a link's name.
pub(super) fn tunnel(text: &str) -> Result<String, String> {
    match IfName::try_from(format!("{text}4")) {
        Ok(_) if !text.is_empty() => Ok(text.to_owned()),
        Ok(_) | Err(_) => {
            Err("must be the beginning of a link's name: 1 to 14 bytes without '/', ':', '%' or white space"
                .to_owned())
        }
    }
}
