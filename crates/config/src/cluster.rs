//! Configuration of the cluster: block size and transport between nodes.

use std::fmt;

pub use model::Transport;
use types::{IfName, NameError};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterConfig {
    /// The difference in bits between the prefix lengths of a block and of its subnet.
    pub margin: u8,
    pub transport: Transport,
    pub vni: u32,
    pub vxlan_port: u16,
    /// Name prefix of the tunnel devices; see [`ClusterConfig::tunnel4`].
    pub tunnel: String,
    pub tunnel_checksum: TunnelChecksum,
    /// Whether other nodes check the MAC of direct packets from this node's pods.
    pub path_check: PathCheck,
    /// Whether accept rules may be inserted into forward chains of other firewalls.
    pub accept_forward: bool,
}

/// Transmit checksum offload of the tunnel devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunnelChecksum {
    /// The kernel's default, unless a probe shows that peers receive invalid checksums.
    Auto,
    On,
    Off,
}

/// Whether this node publishes the MACs of its links. Then other nodes accept packets of its pods only from these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathCheck {
    /// Unless the underlay link is a bond or team.
    Auto,
    Off,
}

impl ClusterConfig {
    /// The device for tunnels between IPv4 addresses of nodes.
    pub fn tunnel4(&self) -> Result<IfName, NameError> {
        IfName::try_from(format!("{}4", self.tunnel))
    }

    /// The device for tunnels between IPv6 addresses of nodes.
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

impl fmt::Display for PathCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Off => "off",
        })
    }
}

pub(super) fn path_check(text: &str) -> Result<PathCheck, String> {
    match text {
        "auto" => Ok(PathCheck::Auto),
        "off" => Ok(PathCheck::Off),
        _ => Err("must be auto or off".to_owned()),
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

/// A digit is appended. The result must be a valid interface name.
pub(super) fn tunnel(text: &str) -> Result<String, String> {
    match IfName::try_from(format!("{text}4")) {
        Ok(_) if !text.is_empty() => Ok(text.to_owned()),
        Ok(_) | Err(_) => {
            Err("must be the prefix of an interface name: 1 to 14 bytes without '/', ':', '%' or white space"
                .to_owned())
        }
    }
}
