//! Our network configuration: what the JSON of a CNI config means for the engine, with every default filled in.
//!
//! Pure. The plugin (and the agent) parse a request with `cni`, turn its config into a [`NetConf`] here, and hand that
//! to the engine. Whatever gets through is right: names are names, ranges are ranges, and what we do not do is refused.
//!
//! ```text
//! cni::Config ──► Place    where state and log are: all that DEL and GC need
//!             └─► NetConf  bridge, mode, addresses, routes, capabilities: what ADD, CHECK and STATUS need
//! ```

#![forbid(unsafe_code)]

mod addresses;
mod place;
mod refuse;
mod routes;
mod wiring;

pub use addresses::{Addresses, foreign_ipam, is_dhcp, is_without_addresses};
pub use place::{DEFAULT_LOG_FILE, DEFAULT_RUN_DIR, Log, Place, default_socket};
pub use routes::default_route;
pub use wiring::{DEFAULT_BRIDGE, NetConf};

#[cfg(test)]
mod tests;

use cni::{Code, Error};

/// The config says something that cannot be (code 7).
fn invalid(key: &str, reason: impl std::fmt::Display) -> Error {
    Error::new(Code::InvalidConfig, format!("{key}: {reason}"))
}

/// Refuses a list that is longer than any network needs.
fn at_most(most: usize, key: &str, given: usize) -> Result<(), Error> {
    if given <= most {
        return Ok(());
    }
    Err(invalid(key, format_args!("{given} entries are more than the {most} that are allowed")))
}
