//! Uninstall: everything of ours leaves the kernel and the disk, and what cannot be given back is said.

use std::fs;
use std::path::{Path, PathBuf};

use netlink::{Link, RtSocket};

use crate::bridge::BRIDGE_ALIAS;
use crate::detach::delete_link;
use crate::state::State;
use crate::{Error, gc};

/// What cleanup did, and what it left for a person to decide.
#[derive(Debug, Default)]
pub struct Report {
    pub done: Vec<String>,
    pub left: Vec<String>,
}

/// Removes what Podwire made in this network namespace, and its state. Nothing that is not marked as ours is touched.
pub fn cleanup(state_dir: &Path) -> Result<Report, Error> {
    let mut report = Report::default();
    let state = State::open_existing(state_dir)?;
    if let Some(state) = &state {
        remove_attachments(state, &mut report)?;
    }
    remove_links(&mut report)?;
    if nft::Firewall::open()?.cleanup()? {
        report.done.push("nftables tables podwire removed".to_owned());
    }
    if let Some(state) = state {
        restore_sysctls(&state, &mut report)?;
        state.remove()?;
        report.done.push(format!("state folder {} removed", state_dir.display()));
    }
    Ok(report)
}

fn remove_attachments(state: &State, report: &mut Report) -> Result<(), Error> {
    for network in state.networks()? {
        let stems: Vec<String> = network.list()?.into_iter().map(|listed| listed.stem).collect();
        let count = stems.len();
        let errors = gc::undo_all(&network, None, stems);
        report.left.extend(errors.iter().map(|error| format!("attachment not removed: {error}")));
        if count > errors.len() {
            report.done.push(format!("{} attachments of {} removed", count - errors.len(), network.name()));
        }
    }
    Ok(())
}

/// Links whose record is gone, then the bridges that we made and nobody else uses.
fn remove_links(report: &mut Report) -> Result<(), Error> {
    let mut host = RtSocket::open()?;
    let marked = |link: &Link, mark: &str| link.alias.as_deref().is_some_and(|alias| alias.starts_with(mark));
    for link in host.links()?.into_iter().filter(|link| marked(link, "podwire:")) {
        delete_link(&mut host, link.index)?;
        report.done.push(format!("link {} removed", link.name));
    }
    let links = host.links()?;
    for bridge in links.iter().filter(|link| link.alias.as_deref() == Some(BRIDGE_ALIAS)) {
        match links.iter().find(|port| port.master == Some(bridge.index)) {
            Some(port) => {
                report.left.push(format!("bridge {} stays: {} is a port of it", bridge.name, port.name));
            }
            None => {
                delete_link(&mut host, bridge.index)?;
                report.done.push(format!("bridge {} removed", bridge.name));
            }
        }
    }
    Ok(())
}

/// A sysctl that somebody else changed after us is theirs now (F7).
fn restore_sysctls(state: &State, report: &mut Report) -> Result<(), Error> {
    for (path, changed) in state.sysctls().read()? {
        let Ok(now) = fs::read_to_string(&path) else { continue };
        let now = now.trim();
        if now == changed.ours {
            fs::write(&path, &changed.before).map_err(|source| Error::Sysctl {
                path: PathBuf::from(&path),
                value: changed.before.clone(),
                source,
            })?;
            report.done.push(format!("{path} back to {}", changed.before));
        } else if now != changed.before {
            report.left.push(format!(
                "{path} is {now}: it was {} before Podwire set {}, and somebody changed it since",
                changed.before, changed.ours
            ));
        }
    }
    Ok(())
}
