//! Policies of this node's pods. One thread computes them and applies them to the firewall.
//!
//! ```text
//! membership: objects ──────────────┐                       ┌─► elements of the firewall's table of policies
//! store: pods of other nodes ───────┤                       │
//! ADD, DEL (engine): pods ──────────┼─► PolicyEngine (pure) ┼─► groups of host ends
//! records of pods, nftables, timer ─┤                       ├─► conditions, metrics
//! denied packets (firewall), queries ┘                       └─► denied flows, answers
//! ```
//!
//! The table exists only while objects restrict flows. A node without such objects works as if there were no policies.

mod denied;
mod denied_flows;
mod enforced;
mod flows;
mod handle;
mod kernel;
mod marker;
pub(crate) mod objects;
mod others;
mod packet;
mod placement;
mod pods;
mod profiles;
mod remote;
mod thread;
mod unused;

#[cfg(test)]
pub(crate) use denied_flows::DeniedFlows;
pub(crate) use denied_flows::{DeniedFollower, DeniedSnapshot};
pub(crate) use handle::{EnforcementState, Policies, PolicyAskError};
pub(crate) use pods::{LocalPod, pod_uid};
pub(crate) use thread::{PolicyParts, PolicyStartError, start};
