//! Policies of this node's pods. One thread computes them and applies them to the firewall.
//!
//! ```text
//! membership: objects ──────────────┐                       ┌─► elements of the firewall's table of policies
//! store: pods of other nodes ───────┤                       │
//! ADD, DEL (engine): pods ──────────┼─► PolicyEngine (pure) ┼─► groups of host ends
//! records of pods, nftables, timer ─┘                       └─► conditions, metrics
//! ```
//!
//! The table exists only while objects restrict flows. A node without such objects works as if there were no policies.

mod enforced;
mod flows;
mod handle;
mod kernel;
pub(crate) mod objects;
mod placement;
mod pods;
mod profiles;
mod remote;
mod thread;

pub(crate) use handle::Policies;
pub(crate) use pods::LocalPod;
pub(crate) use thread::{PolicyParts, PolicyStartError, start};
