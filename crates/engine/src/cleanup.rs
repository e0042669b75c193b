//! Uninstall: everything of ours leaves the kernel and the disk, and what cannot be given back is said.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use netlink::{Address, Link, Op, RtSocket};
use types::ROUTE_PROTOCOL;

use crate::bridge::BRIDGE_ALIAS;
use crate::detach::delete_link;
use crate::state::State;
use crate::{Caller, Error, gc};

/// What cleanup did, and what it left for a person to decide.
#[derive(Debug, Default)]
pub struct Report {
    pub done: Vec<String>,
    pub left: Vec<String>,
}

/// Removes what Podwire made in this network namespace, and its state. Nothing that is not marked as ours is touched.
pub fn cleanup(run_dir: &Path) -> Result<Report, Error> {
    let mut report = Report::default();
    let state = State::open_existing(run_dir)?;
    if let Some(state) = &state {
        remove_attachments(state, &mut report)?;
    }
    let mut host = RtSocket::open()?;
    remove_links(&mut host, &mut report)?;
    remove_gateways(&mut host, &mut report)?;
    if nft::Firewall::open()?.cleanup()? {
        report.done.push("nftables tables podwire removed".to_owned());
    }
    if let Some(state) = state {
        restore_sysctls(&state, &mut report)?;
    }
    remove_folder(run_dir, &mut report)?;
    Ok(report)
}

/// With what an agent left in it: lock, socket, tombstones. One of an earlier boot goes too, and one in which nothing was
/// attached yet; a folder that nobody of ours ever locked is not ours.
fn remove_folder(run_dir: &Path, report: &mut Report) -> Result<(), Error> {
    let is_there = |name: &str| run_dir.join(name).symlink_metadata().is_ok_and(|meta| meta.is_file());
    if !["podwire.lock", "agent.lock"].into_iter().any(is_there) {
        return Ok(());
    }
    let socket = netconf::default_socket(run_dir);
    if socket.symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket())
        && let Err(error) = fs::remove_file(&socket)
    {
        report.left.push(format!("{} stays: {error}", socket.display()));
    }
    State::open(run_dir)?.remove()?;
    let rest: Vec<String> = fs::read_dir(run_dir)
        .map(|entries| {
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        })
        .unwrap_or_default();
    if rest.is_empty() {
        report.done.push(format!("state folder {} removed", run_dir.display()));
    } else {
        report.done.push(format!("state in {} removed", run_dir.display()));
        let rest = rest.join(", ");
        report.left.push(format!("folder {} stays: it holds what is not ours ({rest})", run_dir.display()));
    }
    Ok(())
}

fn remove_attachments(state: &State, report: &mut Report) -> Result<(), Error> {
    for network in state.networks()? {
        let all = network.list()?;
        let count = all.len();
        let how = gc::Undoing { name: None, caller: &Caller::STANDALONE };
        let errors = gc::undo_all(all, &how, |listed| Ok(network.find_stem(&listed.stem)?));
        report.left.extend(errors.iter().map(|error| format!("attachment not removed: {error}")));
        if count > errors.len() {
            report.done.push(format!("{} attachments of {} removed", count - errors.len(), network.name()));
        }
    }
    Ok(())
}

/// Links whose record is gone, then the bridges that we made and nobody else uses.
fn remove_links(host: &mut RtSocket, report: &mut Report) -> Result<(), Error> {
    let marked = |link: &Link, mark: &str| link.alias.as_deref().is_some_and(|alias| alias.starts_with(mark));
    for link in host.links()?.into_iter().filter(|link| marked(link, "podwire:")) {
        delete_link(host, link.index)?;
        report.done.push(format!("link {} removed", link.name));
    }
    let links = host.links()?;
    for bridge in links.iter().filter(|link| link.alias.as_deref() == Some(BRIDGE_ALIAS)) {
        match links.iter().find(|port| port.master == Some(bridge.index)) {
            Some(port) => {
                report.left.push(format!("bridge {} stays: {} is a port of it", bridge.name, port.name));
            }
            None => {
                delete_link(host, bridge.index)?;
                report.done.push(format!("bridge {} removed", bridge.name));
            }
        }
    }
    Ok(())
}

/// The gateways that we put on bridges of others; those on ours went with them. Only bridges: where this node is itself a
/// pod, an address with our mark on another link is its own. Kernels before 5.18 keep no mark: there they stay.
fn remove_gateways(host: &mut RtSocket, report: &mut Report) -> Result<(), Error> {
    let is_bridge = |link: &Link| link.kind.as_deref() == Some("bridge");
    for bridge in host.links()?.into_iter().filter(is_bridge) {
        let all = host.addresses(Some(bridge.index))?;
        let (ours, others): (Vec<Address>, Vec<Address>) =
            all.into_iter().partition(|a| a.protocol == Some(ROUTE_PROTOCOL));
        for gateway in ours.iter().map(|address| address.addr) {
            // The kernel removes the later addresses of a subnet together with its first.
            if let Some(other) = others.iter().find(|other| other.addr.trunc() == gateway.trunc()) {
                let (name, other) = (&bridge.name, other.addr);
                report.left.push(format!("address {gateway} of bridge {name} stays: {other} may hang on it"));
                continue;
            }
            host.run(&Op::DelAddress { link: bridge.index, addr: gateway })?;
            report.done.push(format!("address {gateway} of bridge {} removed", bridge.name));
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
