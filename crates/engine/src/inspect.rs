//! The conditions of a node that need no agent to be found. Changes nothing.

use std::path::Path;

use netlink::{Link, RtSocket};
use types::Finding;

use crate::Error;
use crate::condition::run_dir_space;
use crate::reconcile::pod_finding;
use crate::state::{Attachment, Phase, State};

/// Of the node itself, and of all pods that are recorded.
pub fn inspect(run_dir: &Path) -> Result<Vec<Finding>, Error> {
    let mut found: Vec<Finding> = run_dir_space(run_dir).into_iter().collect();
    if !nft::is_installed() {
        found.push(nft::missing_program());
    }
    let attachments = attachments(run_dir)?;
    if !attachments.is_empty() {
        let links: Vec<Link> = RtSocket::open()?.links()?;
        for attachment in &attachments {
            found.extend(pod_finding(attachment, &links)?);
        }
    }
    Ok(found)
}

fn attachments(run_dir: &Path) -> Result<Vec<Attachment>, Error> {
    let mut all = Vec::new();
    let Some(state) = State::open_existing(run_dir)? else { return Ok(all) };
    for network in state.networks()? {
        let ready = network.list()?.into_iter().filter(|listed| listed.phase == Phase::Ready);
        all.extend(ready.filter_map(|listed| listed.attachment));
    }
    Ok(all)
}
