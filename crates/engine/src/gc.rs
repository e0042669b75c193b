//! GC, and removal of dead attachments if a range is exhausted.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cni::Gc;
use netconf::LocalPaths;
use netlink::{Link, NetNs, RtSocket};
use types::{AttachmentKey, NetworkName};

use crate::alias::Alias;
use crate::delegate::Delegate;
use crate::detach;
use crate::state::{
    Attachment, HeldAttachment, ListedRecord, NetworkState, NodeState, OrphanCheck, RecordPhase,
};
use crate::{Caller, Error, alias, firewall, recover};

/// Removing a link waits for a grace period of the kernel. Several threads can wait at the same time.
const WORKERS: usize = 16;

/// Removes all attachments of this network that are not listed, and never a listed one. Errors do not stop it.
pub(crate) fn collect(gc: &Gc, paths: &LocalPaths, caller: &Caller<'_>) -> Result<usize, Error> {
    let network_name = &gc.config.name;
    let valid: Vec<AttachmentKey> = gc
        .valid
        .iter()
        .map(|(container, ifname)| AttachmentKey {
            network: network_name.clone(),
            container: container.clone(),
            ifname: ifname.clone(),
        })
        .collect();
    let mut errors = Vec::new();
    let mut collected = 0;
    let collector = Collector { caller, delegate: Delegate::of_config(&gc.config, caller.delegates) };
    match recover::existing(&gc.config, paths, caller) {
        Ok(Some(network)) => match collector.collect_in(&network, &valid) {
            Ok((count, failed)) => {
                collected = count;
                errors.extend(failed);
            }
            Err(error) => errors.push(error),
        },
        Ok(None) => {}
        Err(error) => errors.push(error),
    }
    errors.extend(sweep_links(gc, paths, &valid));
    errors.extend(prune(network_name, paths, caller).err());
    errors.extend(collector.delegate.and_then(|d| d.map_or(Ok(()), |delegate| delegate.gc())).err());
    Error::collect(errors).map(|()| collected)
}

/// Removes firewall chains of networks without pods, starting with this network.
fn prune(network: &NetworkName, paths: &LocalPaths, caller: &Caller<'_>) -> Result<(), Error> {
    let own = AttachmentKey::network_dir(network);
    let networks =
        NodeState::open_existing(&paths.run_dir)?.map_or(Ok(Vec::new()), |state| state.networks())?;
    let names: Vec<String> = networks.iter().map(NetworkState::name).chain([own.clone()]).collect();
    firewall::prune(nft::IdleChains::Remove(&own), &names, caller.kernel_cache)
}

/// State of one GC.
struct Collector<'a> {
    caller: &'a Caller<'a>,
    /// The IPAM plugin of the network, if it has one. An error if it cannot be called.
    delegate: Result<Option<Delegate<'a>>, Error>,
}

impl Collector<'_> {
    /// Returns the number of removed attachments, and the errors.
    fn collect_in(
        &self,
        network: &NetworkState,
        valid: &[AttachmentKey],
    ) -> Result<(usize, Vec<Error>), Error> {
        let stems: BTreeSet<String> = valid.iter().map(AttachmentKey::file_stem).collect();
        let stale: Vec<ListedRecord> =
            network.list()?.into_iter().filter(|l| !stems.contains(&l.stem)).collect();
        let tried = AtomicUsize::new(0);
        // If another process works on an attachment, its request is newer than this GC. The attachment is skipped.
        let find = |listed: &ListedRecord| {
            let held = network.find_idle(&listed.stem)?;
            let is_same = |held: &HeldAttachment| {
                held.phase() == listed.phase && held.attachment() == listed.attachment.as_ref()
            };
            let held = held.filter(is_same);
            tried.fetch_add(usize::from(held.is_some()), Ordering::Relaxed);
            Ok(held)
        };
        let mut errors = undo_all(stale, find, |held| self.undo(held));
        let count = tried.into_inner().saturating_sub(errors.len());
        errors.extend(network.repair_if_marked().err().map(Error::from));
        Ok((count, errors))
    }

    /// The IPAM plugin gets a DEL for the addresses, because not every plugin supports GC.
    fn undo(&self, held: HeldAttachment) -> Result<(), Error> {
        let key = held.key();
        let Ok(delegate) = &self.delegate else {
            return detach::undo_without_plugin(held, key.as_ref(), self.caller);
        };
        let attachment = held.attachment();
        let netns = attachment.map(|attachment| attachment.netns.as_str());
        let delegated_key = key.as_ref().filter(|_| attachment.is_none_or(|attachment| attachment.delegated));
        let delegate =
            delegate.as_ref().zip(delegated_key).map(|(plugin, key)| plugin.for_attachment(key, netns));
        detach::undo_with(held, key.as_ref(), self.caller, delegate.as_ref())
    }
}

/// Removes these attachments, several at the same time.
pub(crate) fn undo_all(
    stale: Vec<ListedRecord>,
    find: impl Fn(&ListedRecord) -> Result<Option<HeldAttachment>, Error> + Sync,
    undo: impl Fn(HeldAttachment) -> Result<(), Error> + Sync,
) -> Vec<Error> {
    let (queue, errors) = (Mutex::new(stale), Mutex::new(Vec::new()));
    let next = || queue.lock().ok().and_then(|mut queue| queue.pop());
    let work = || {
        while let Some(listed) = next() {
            let undone = find(&listed).and_then(|held| held.map_or(Ok(()), &undo));
            if let (Err(error), Ok(mut errors)) = (undone, errors.lock()) {
                errors.push(error);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..WORKERS.min(queue.lock().map_or(0, |q| q.len())) {
            scope.spawn(work);
        }
    });
    errors.into_inner().unwrap_or_default()
}

/// Removes an attachment with the key from its record.
pub(crate) fn undo_held(held: HeldAttachment, caller: &Caller<'_>) -> Result<(), Error> {
    let key = held.key();
    detach::undo(held, key.as_ref(), caller)
}

/// Removes managed links of this network that are neither listed nor recorded. An ADD writes the record before it creates the
/// link. Records are read after the links, so an ADD in progress is not removed.
fn sweep_links(gc: &Gc, paths: &LocalPaths, valid: &[AttachmentKey]) -> Vec<Error> {
    let name = AttachmentKey::network_dir(&gc.config.name);
    let valid: BTreeSet<String> = valid.iter().map(AttachmentKey::file_stem).collect();
    let sweep = || -> Result<Vec<Error>, Error> {
        let mut host = RtSocket::open()?;
        let links = host.links()?;
        let network =
            NodeState::open_existing(&paths.run_dir)?.and_then(|s| s.existing_network(&gc.config.name));
        let mut errors = Vec::new();
        for link in links {
            let stem = Alias::of(&link).filter(|alias| alias.network == name).map(|alias| alias.stem());
            let Some(stem) = stem.filter(|stem| !valid.contains(stem)) else { continue };
            match network.as_ref().map_or(Ok(false), |network| network.has_record(&stem)) {
                Ok(true) => {}
                Ok(false) => {
                    errors.extend(detach::remove_orphan_link(&mut host, &link, network.as_ref()).err());
                }
                Err(error) => errors.push(error.into()),
            }
        }
        if let Some(network) = network.filter(|network| network.has_orphans().unwrap_or(true)) {
            errors.extend(free_orphans(&network, &host.links()?).err());
        }
        Ok(errors)
    };
    sweep().unwrap_or_else(|error| vec![error])
}

/// Removes dead attachments: pending ones, and those without namespace and link. An attachment with a link is never removed,
/// because its address is still in a namespace. Returns the number of removed ones.
pub(crate) fn collect_dead(
    network: &NetworkState,
    host: &mut RtSocket,
    caller: &Caller<'_>,
) -> Result<usize, Error> {
    let links = host.links()?;
    let (mut collected, mut errors) = (free_orphans(network, &links)?, Vec::new());
    for listed in network.list()? {
        // Addresses of a delegated IPAM plugin are in no range of this network, and need that plugin's DEL.
        let Some(attachment) = listed.attachment.as_ref().filter(|attachment| !attachment.delegated) else {
            continue;
        };
        // If the check fails, the pod may be alive.
        if listed.phase == RecordPhase::Ready && is_alive(attachment, host).unwrap_or(true) {
            continue;
        }
        // Another process may be working on it, or may have changed it after the listing.
        let Ok(Some(held)) = network.find_idle(&listed.stem) else { continue };
        if held.phase() == listed.phase && held.attachment() == Some(attachment) {
            match undo_held(held, caller) {
                Ok(()) => collected += 1,
                Err(error) => errors.push(error),
            }
        }
    }
    // If some were removed, an error of another one does not matter: there is a free address.
    if collected > 0 { Ok(collected) } else { Error::collect(errors).map(|()| 0) }
}

/// Frees claims without a record if no managed link has their address. Returns the number of freed claims.
pub(crate) fn free_orphans<'a>(
    network: &NetworkState,
    links: impl IntoIterator<Item = &'a Link>,
) -> Result<usize, Error> {
    let alive: BTreeSet<IpAddr> = links.into_iter().flat_map(alias::ips_of).collect();
    let is_alive = |address: IpAddr| alive.contains(&address);
    Ok(network.free_orphans(&OrphanCheck {
        is_alive: &is_alive,
        remove_objects: &firewall::remove_addresses_without_record,
    })?)
}

/// The two ends of a veth pair exist together: if the host end exists, the pod end does too.
fn is_alive(attachment: &Attachment, host: &mut RtSocket) -> Result<bool, Error> {
    if host.link(&attachment.host_link)?.is_some() {
        return Ok(true);
    }
    let is_same = |netns: &NetNs| netns.cookie().is_ok_and(|cookie| attachment.netns_cookie == Some(cookie));
    match NetNs::open(Path::new(&attachment.netns)) {
        Ok(netns) => Ok(is_same(&netns)),
        Err(e) if e.is_gone() => Ok(false),
        // A namespace that cannot be opened may be in use.
        Err(_) => Ok(true),
    }
}
