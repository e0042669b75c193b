//! How soon all is well after a fault. The times are printed, and decide nothing: on a shared machine they depend on what
//! else runs.
//!
//! ```text
//! node     one node with an agent, pods and a host outside, in both attach modes
//! window   hostile frames of a pod, from the flush of the firewall to the first that is dropped again
//! nodes::outage   a peer that changes, and calls while etcd does not answer
//! ```

mod node;
mod window;

use anyhow::Result;

use crate::cases::told;
use crate::firewall::Timed;
use crate::nodes::outage;
use crate::options::Scale;

#[derive(Default)]
pub(crate) struct Recovery {
    pub(crate) times: Timed,
    /// Figures that are not times.
    pub(crate) remarks: Vec<String>,
}

pub(crate) fn run(scale: &Scale) -> Result<Recovery> {
    let mut recovery = Recovery::default();
    for mode in ["routed", "bridge"] {
        told(&format!("recovery of one node, {mode}"), || node::run(mode, scale, &mut recovery))?;
    }
    let times = told("recovery beside other nodes", || outage::run(scale))?;
    recovery.times.extend(times.into_iter().map(|(what, times)| (format!("recovery: {what}"), times)));
    Ok(recovery)
}
