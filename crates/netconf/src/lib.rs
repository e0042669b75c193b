//! Network settings: converts a parsed CNI config into a [`NetConf`] with all defaults, and describes the agent's networks.
//!
//! Pure. Called by the engine with a config that `cni` has parsed. All names, ranges and routes of a `NetConf` are valid.
//! Configs that use unsupported features are refused.
//!
//! ```text
//! cni::NetworkConfig ───────► LocalPaths  run directory, log and agent socket: all that DEL and GC need
//!             └─┬───────────► NetConf     bridge, mode, addresses, routes, capabilities: for ADD, CHECK and STATUS
//! NodeNetworks ─┘                         (the agent's settings for a request; None without an agent)
//!
//! NetworkSettings + blocks ─► Network ─► NodeAllocation (per network) ─► NodeNetworks
//! ```

#![forbid(unsafe_code)]

mod addresses;
mod conf;
mod local_paths;
mod network;
mod network_key;
mod pools;
mod routes;
mod unsupported;

pub use addresses::{Addresses, external_ipam, is_dhcp};
pub use conf::{BridgeMtu, DEFAULT_BRIDGE, NetConf, unnamed_network};
pub use local_paths::{DEFAULT_LOG_FILE, DEFAULT_RUN_DIR, LocalPaths, Log, default_socket};
pub use network::{Network, NetworkSettings, NodeAllocation, NodeNetwork, NodeNetworks, comma_separated};
pub use pools::GroupPools;
pub use routes::default_route;

#[cfg(test)]
mod tests;

use cni::{Error, ErrorCode};

/// CNI error 7 for a key of the config.
fn invalid(key: &str, reason: impl std::fmt::Display) -> Error {
    Error::new(ErrorCode::InvalidConfig, format!("{key}: {reason}"))
}

/// Refuses a list with more than `max` entries.
fn at_most(max: usize, key: &str, given: usize) -> Result<(), Error> {
    if given <= max {
        return Ok(());
    }
    Err(invalid(key, format_args!("{given} entries exceed the limit of {max}")))
}
