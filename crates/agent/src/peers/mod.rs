//! The other nodes in this kernel: routes, neighbours, tunnels and the firewall's table of peers, as the records say. All of
//! it is done on one thread of its own, so that kernel work delays neither the lease nor the watch of the store.
//!
//! ```text
//! membership ── records ──► inputs ──► Known (mesh: what they mean) ──► Routes ──► kernel
//! ```

pub(crate) mod inputs;
pub(crate) mod kernel;
pub(crate) mod known;
pub(crate) mod routes;
pub(crate) mod trial;
pub(crate) mod tunnel;
pub(crate) mod underlay;

pub(crate) use inputs::{PeerInputs, PeerQueue, PeerReportReceivers, Question};
pub(crate) use known::KnownPeers;
pub(crate) use routes::{PeerRoutesParts, start};
