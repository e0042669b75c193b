//! GC, and what a full range asks for: attachments that nobody has any more are collected.

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
use crate::state::{Attachment, Freeing, HeldAttachment, ListedRecord, NetworkState, NodeState, RecordPhase};
use crate::{Caller, Error, alias, firewall, relearn};

/// A link's removal waits for a grace period of the kernel, and several can wait at once.
const WORKERS: usize = 16;

/// Frees everything of this network that is not listed, never a listed one, and goes on past errors.
pub(crate) fn collect(gc: &Gc, place: &LocalPaths, caller: &Caller<'_>) -> Result<usize, Error> {
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
    match relearn::existing(&gc.config, place, caller) {
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
    errors.extend(sweep_links(gc, place, &valid));
    errors.extend(prune(network_name, place, caller).err());
    errors.extend(collector.delegate.and_then(|found| found.map_or(Ok(()), |delegate| delegate.gc())).err());
    Error::collect(errors).map(|()| collected)
}

/// Removes the firewall's chains of networks without pods, that of this network first.
fn prune(network: &NetworkName, place: &LocalPaths, caller: &Caller<'_>) -> Result<(), Error> {
    let own = AttachmentKey::network_dir(network);
    let networks =
        NodeState::open_existing(&place.run_dir)?.map_or(Ok(Vec::new()), |state| state.networks())?;
    let names: Vec<String> = networks.iter().map(NetworkState::name).chain([own.clone()]).collect();
    firewall::prune(nft::Idle::Remove(&own), &names, caller.kernel_cache)
}

/// One GC.
struct Collector<'a> {
    caller: &'a Caller<'a>,
    /// The IPAM plugin of the network, if it has one. An error: it cannot be called.
    delegate: Result<Option<Delegate<'a>>, Error>,
}

impl Collector<'_> {
    /// Returns how many were taken apart, and why others could not be.
    fn collect_in(
        &self,
        network: &NetworkState,
        valid: &[AttachmentKey],
    ) -> Result<(usize, Vec<Error>), Error> {
        let stems: BTreeSet<String> = valid.iter().map(AttachmentKey::file_stem).collect();
        let stale: Vec<ListedRecord> =
            network.list()?.into_iter().filter(|l| !stems.contains(&l.stem)).collect();
        let taken = AtomicUsize::new(0);
        // An attachment that another process works on was asked for later than this GC: it stays.
        let find = |listed: &ListedRecord| {
            let held = network.find_idle(&listed.stem)?;
            let is_same = |held: &HeldAttachment| {
                held.phase() == listed.phase && held.attachment() == listed.attachment.as_ref()
            };
            let held = held.filter(is_same);
            taken.fetch_add(usize::from(held.is_some()), Ordering::Relaxed);
            Ok(held)
        };
        let mut errors = undo_all(stale, find, |held| self.undo(held));
        let count = taken.into_inner().saturating_sub(errors.len());
        errors.extend(network.settle().err().map(Error::from));
        Ok((count, errors))
    }

    /// The IPAM plugin gets the addresses back, as with a DEL. Not every plugin knows GC.
    fn undo(&self, held: HeldAttachment) -> Result<(), Error> {
        let key = held.key();
        let Ok(delegate) = &self.delegate else {
            return detach::undo_without_plugin(held, key.as_ref(), self.caller);
        };
        let attachment = held.attachment();
        let netns = attachment.map(|attachment| attachment.netns.as_str());
        let of = key.as_ref().filter(|_| attachment.is_none_or(|attachment| attachment.delegated));
        let delegate = delegate.as_ref().zip(of).map(|(plugin, key)| plugin.about(key, netns));
        detach::undo_with(held, key.as_ref(), self.caller, delegate.as_ref())
    }
}

/// Takes these attachments apart, several at once.
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

/// Takes an attachment apart whose key only the record knows.
pub(crate) fn undo_held(held: HeldAttachment, caller: &Caller<'_>) -> Result<(), Error> {
    let key = held.key();
    detach::undo(held, key.as_ref(), caller)
}

/// Removes links of this network that carry our mark and that neither the list nor a record knows. A link's record is
/// there before the link: it is looked for after the link was seen, so that an ADD under way is not mistaken.
fn sweep_links(gc: &Gc, place: &LocalPaths, valid: &[AttachmentKey]) -> Vec<Error> {
    let name = AttachmentKey::network_dir(&gc.config.name);
    let valid: BTreeSet<String> = valid.iter().map(AttachmentKey::file_stem).collect();
    let sweep = || -> Result<Vec<Error>, Error> {
        let mut host = RtSocket::open()?;
        let links = host.links()?;
        let network =
            NodeState::open_existing(&place.run_dir)?.and_then(|s| s.existing_network(&gc.config.name));
        let mut errors = Vec::new();
        for link in links {
            let stem = Alias::of(&link).filter(|alias| alias.network == name).map(|alias| alias.stem());
            let Some(stem) = stem.filter(|stem| !valid.contains(stem)) else { continue };
            match network.as_ref().map_or(Ok(false), |network| network.knows(&stem)) {
                Ok(true) => {}
                Ok(false) => errors.extend(detach::remove_stray(&mut host, &link, network.as_ref()).err()),
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

/// Collects what is certainly dead: cut off in the middle, or without namespace and link. Never an attachment whose link
/// still lives, because then its address is still in somebody's namespace. Returns how many.
pub(crate) fn collect_dead(
    network: &NetworkState,
    host: &mut RtSocket,
    caller: &Caller<'_>,
) -> Result<usize, Error> {
    let links = host.links()?;
    let (mut collected, mut errors) = (free_orphans(network, &links)?, Vec::new());
    for listed in network.list()? {
        // Addresses of another IPAM plugin are in no range of this network, and need that plugin's DEL.
        let Some(attachment) = listed.attachment.as_ref().filter(|attachment| !attachment.delegated) else {
            continue;
        };
        // What cannot be looked at may be alive.
        if listed.phase == RecordPhase::Ready && is_alive(attachment, host).unwrap_or(true) {
            continue;
        }
        // Somebody may be working on it right now, or have done so since the listing.
        let Ok(Some(held)) = network.find_idle(&listed.stem) else { continue };
        if held.phase() == listed.phase && held.attachment() == Some(attachment) {
            match undo_held(held, caller) {
                Ok(()) => collected += 1,
                Err(error) => errors.push(error),
            }
        }
    }
    // One that cannot be undone is no reason to refuse what others made room for.
    if collected > 0 { Ok(collected) } else { Error::collect(errors).map(|()| 0) }
}

/// Frees claims that have no record and whose address no managed link has. Returns how many.
pub(crate) fn free_orphans<'a>(
    network: &NetworkState,
    links: impl IntoIterator<Item = &'a Link>,
) -> Result<usize, Error> {
    let alive: BTreeSet<IpAddr> = links.into_iter().flat_map(alias::ips_of).collect();
    let is_alive = |address: IpAddr| alive.contains(&address);
    Ok(network.free_orphans(&Freeing { is_alive: &is_alive, forget: &firewall::forget_addresses })?)
}

/// The two ends of a pair live and die together: a host end that is there means that the pod's is there too.
fn is_alive(attachment: &Attachment, host: &mut RtSocket) -> Result<bool, Error> {
    if host.link(&attachment.host_link)?.is_some() {
        return Ok(true);
    }
    let same = |netns: &NetNs| netns.cookie().is_ok_and(|cookie| attachment.netns_cookie == Some(cookie));
    match NetNs::open(Path::new(&attachment.netns)) {
        Ok(netns) => Ok(same(&netns)),
        Err(e) if e.is_gone() => Ok(false),
        // What we cannot see we do not touch.
        Err(_) => Ok(true),
    }
}
