//! Recovery times after faults. They have no targets, because on a shared host they depend on other load.
//!
//! ```text
//! node     one node with an agent, pods and an external host, in both attach modes
//! window   hostile frames of a pod, from the flush of the firewall until they are dropped again
//! nodes::outage   a changed peer, and calls while etcd is unreachable
//! ```

mod node;
mod window;

use anyhow::Result;

use crate::cases::with_progress;
use crate::firewall::Timed;
use crate::nodes::outage;
use crate::options::Scale;

#[derive(Default)]
pub(crate) struct Recovery {
    pub(crate) times: Timed,
    /// Figures other than times.
    pub(crate) remarks: Vec<String>,
}

pub(crate) fn run(scale: &Scale) -> Result<Recovery> {
    let mut recovery = Recovery::default();
    for mode in ["routed", "bridge"] {
        with_progress(&format!("recovery of one node, {mode}"), || node::run(mode, scale, &mut recovery))?;
    }
    let times = with_progress("recovery with other nodes", || outage::run(scale))?;
    recovery.times.extend(times.into_iter().map(|(what, times)| (format!("recovery: {what}"), times)));
    Ok(recovery)
}
