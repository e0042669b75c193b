//! GC, and what a full range asks for: attachments that nobody has any more are collected.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;

use cni::Gc;
use netconf::Place;
use netlink::{Link, NetNs, RtSocket};
use types::{AttachmentKey, NetworkName};

use crate::delegate::Delegate;
use crate::detach;
use crate::state::{Attachment, Held, Network, Phase};
use crate::{Error, relearn};

/// A link's removal waits for a grace period of the kernel, and several can wait at once.
const WORKERS: usize = 16;

/// Frees everything of this network that is not listed, never a listed one, and goes on past errors.
pub(crate) fn collect(gc: &Gc, place: &Place) -> Result<usize, Error> {
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
    let stems: BTreeSet<String> = valid.iter().map(AttachmentKey::file_stem).collect();
    let mut errors = Vec::new();
    let mut collected = 0;
    let network = relearn::existing(&gc.config, place)?;
    if let Some(network) = &network {
        let stale: Vec<String> =
            network.list()?.into_iter().map(|l| l.stem).filter(|stem| !stems.contains(stem)).collect();
        collected = stale.len();
        errors.extend(undo_all(network, Some(network_name), stale));
        errors.extend(network.settle().err().map(Error::from));
    }
    let aliases: BTreeSet<String> = valid.iter().map(AttachmentKey::alias).collect();
    errors.extend(sweep_links(network_name, network.as_ref(), &aliases).err());
    if let Some(plugin) = netconf::foreign_ipam(&gc.config) {
        errors.extend(Delegate::find(plugin, &gc.path, &gc.config).and_then(|delegate| delegate.gc()).err());
    }
    Error::collect(errors).map(|()| collected)
}

/// Takes these attachments apart, several at once. The name helps with records that cannot be read.
pub(crate) fn undo_all(network: &Network, name: Option<&NetworkName>, stale: Vec<String>) -> Vec<Error> {
    let (queue, errors) = (Mutex::new(stale), Mutex::new(Vec::new()));
    let next = || queue.lock().ok().and_then(|mut queue| queue.pop());
    let work = || {
        while let Some(stem) = next() {
            let undone = network.find_stem(&stem).map_err(Error::from).and_then(|held| match held {
                Some(held) => undo_stem(held, name),
                None => Ok(()),
            });
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

/// A record that cannot be read is known by its file's name, which holds the id unless it was too long.
fn undo_stem(held: Held, network: Option<&NetworkName>) -> Result<(), Error> {
    let key = held.attachment().map(|a| a.key.clone()).or_else(|| key_of_stem(held.stem(), network?));
    match key {
        Some(key) => detach::undo(held, &key),
        None => Ok(held.release(&[])?),
    }
}

fn key_of_stem(stem: &str, network: &NetworkName) -> Option<AttachmentKey> {
    let (container, ifname) = stem.split_once('@')?;
    let (container, ifname) = (container.try_into().ok()?, ifname.try_into().ok()?);
    Some(AttachmentKey { network: network.clone(), container, ifname })
}

/// Links of this network that carry our mark and that neither the list nor a record knows.
fn sweep_links(name: &NetworkName, network: Option<&Network>, valid: &BTreeSet<String>) -> Result<(), Error> {
    let mark = AttachmentKey::alias_prefix(name);
    let mut host = RtSocket::open()?;
    let is_stale = |link: &Link| {
        let key = link.alias.as_deref().and_then(|alias| alias.split(' ').next());
        key.is_some_and(|key| key.starts_with(&mark) && !valid.contains(key))
    };
    for link in host.links()?.into_iter().filter(is_stale) {
        detach::remove_stray(&mut host, &link, network)?;
    }
    Ok(())
}

/// Collects what is certainly dead: cut off in the middle, or without namespace and link. Never an attachment whose link
/// still lives, because then its address is still in somebody's namespace. Returns how many.
pub(crate) fn collect_dead(network: &Network, host: &mut RtSocket) -> Result<usize, Error> {
    let (mut collected, mut errors) = (0, Vec::new());
    for listed in network.list()? {
        let Some(attachment) = &listed.attachment else { continue };
        if listed.phase == Phase::Ready && is_alive(attachment, host)? {
            continue;
        }
        // Somebody may be working on it right now, or have done so since the listing.
        let Some(held) = network.find_idle(&listed.stem)? else { continue };
        if held.phase() == listed.phase && held.attachment() == Some(attachment) {
            match detach::undo(held, &attachment.key) {
                Ok(()) => collected += 1,
                Err(error) => errors.push(error),
            }
        }
    }
    // One that cannot be undone is no reason to refuse what others made room for.
    if collected > 0 { Ok(collected) } else { Error::collect(errors).map(|()| 0) }
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
