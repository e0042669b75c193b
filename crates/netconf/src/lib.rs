//! Network settings: the meaning of a CNI config for the engine, with every default filled in, and the networks of the agent.
//!
//! Pure. The engine turns the config of a request that `cni` has parsed into a [`NetConf`] here. All names, ranges and routes
//! of a `NetConf` are valid, and a config that asks for an unsupported feature is refused.
//!
//! ```text
//! cni::Config ──────────────► Place    where state and log are: all that DEL and GC need
//!             └─┬───────────► NetConf  bridge, mode, addresses, routes, capabilities: what ADD, CHECK and STATUS need
//! NodeNetworks ─┘                      (the agent's part of a request; None without an agent)
//!
//! NetworkSettings + blocks ─► Network ─► NodeAllocation (per network) ─► NodeNetworks
//! ```

#![forbid(unsafe_code)]

mod addresses;
mod network;
mod network_key;
mod place;
mod refuse;
mod routes;
mod wiring;

pub use addresses::{Addresses, external_ipam, is_dhcp};
pub use network::{Network, NetworkSettings, NodeAllocation, NodeNetworks, comma_separated};
pub use place::{DEFAULT_LOG_FILE, DEFAULT_RUN_DIR, LocalPaths, Log, default_socket};
pub use routes::default_route;
pub use wiring::{DEFAULT_BRIDGE, NetConf};

#[cfg(test)]
mod tests;

use cni::{Error, ErrorCode};

/// The config says something that cannot be (code 7).
fn invalid(key: &str, reason: impl std::fmt::Display) -> Error {
    Error::new(ErrorCode::InvalidConfig, format!("{key}: {reason}"))
}

/// Refuses a list that is longer than any network needs.
fn at_most(most: usize, key: &str, given: usize) -> Result<(), Error> {
    if given <= most {
        return Ok(());
    }
    Err(invalid(key, format_args!("{given} entries are more than the {most} that are allowed")))
}
