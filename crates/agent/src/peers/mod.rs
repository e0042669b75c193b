//! Peers in this kernel: routes, neighbours, tunnels and the firewall's table of peers follow the records. One thread does this, so
//! that kernel work delays neither the lease nor the watch of the store.
//!
//! ```text
//! membership ── records ──► inputs ──► KnownPeers (mesh: desired routes) ──► Routes ──► kernel
//! ```

pub(crate) mod checksum_probe;
pub(crate) mod inputs;
pub(crate) mod kernel;
pub(crate) mod known;
pub(crate) mod routes;
pub(crate) mod tunnel;
pub(crate) mod underlay;

pub(crate) use inputs::{PeerInputs, PeerQuery, PeerQueue, PeerReportReceivers};
pub(crate) use known::KnownPeers;
pub(crate) use routes::{PeerRoutesParts, start};
