//! DEL: everything the record knows is taken apart, in reverse, and every step is tried whatever the others say. It needs
//! no namespace, no config and no pod: what is gone already is fine.

use std::net::IpAddr;

use cni::AttachmentRequest;
use netconf::LocalPaths;
use netlink::{Link, LinkRef, Op, RtSocket, SetLink};
use types::{AttachmentKey, IfName};

use crate::alias::Alias;
use crate::delegate::{self, Delegate};
use crate::state::{Addressing, Attachment, HeldAttachment, NetworkState, Wiring};
use crate::{Caller, Error, Wait, Warn, alias, firewall, gc, kernel_cache, relearn, remaining};

/// Returns what was there, for the log.
pub(crate) fn detach(
    call: &AttachmentRequest,
    place: &LocalPaths,
    caller: &Caller<'_>,
) -> Result<Option<Attachment>, Error> {
    let delegate = Delegate::of_config(&call.config, caller.delegates);
    Detachment { key: call.key(), call, place, caller }.take_apart(delegate)
}

/// One DEL.
struct Detachment<'a> {
    key: AttachmentKey,
    call: &'a AttachmentRequest,
    place: &'a LocalPaths,
    caller: &'a Caller<'a>,
}

impl Detachment<'_> {
    fn find(&self) -> Result<Option<HeldAttachment>, Error> {
        let Some(network) = relearn::existing(&self.call.config, self.place, self.caller)? else {
            return Ok(None);
        };
        // The ADD or DEL of another process may be waiting for the IPAM plugin.
        let found = match netconf::external_ipam(&self.call.config) {
            Some(_) => network.find_within(&self.key.file_stem(), delegate::LONGEST)?,
            None => network.find(&self.key)?,
        };
        if found.is_none() {
            // Perhaps an earlier DEL was killed after it had removed the record.
            network.settle()?;
        }
        Ok(found)
    }

    /// A record that cannot be held may be of an ADD that is about to commit: then the IPAM plugin is not called.
    fn take_apart(&self, delegate: Result<Option<Delegate<'_>>, Error>) -> Result<Option<Attachment>, Error> {
        let found = match self.find()? {
            Some(held) => Some(held),
            None => self.remove_strays()?,
        };
        let Some(held) = found else {
            // The plugin may have a lease without a record.
            return delegate?.map_or(Ok(()), |delegate| delegate.del()).map(|()| None);
        };
        let (was, network) = (held.attachment().cloned(), held.network().clone());
        match delegate {
            Ok(delegate) => undo_with(held, Some(&self.key), self.caller, delegate.as_ref())?,
            Err(error) => {
                let undone = undo_without_plugin(held, Some(&self.key), self.caller);
                return Error::collect([error].into_iter().chain(undone.err()).collect()).map(|()| was);
            }
        }
        if was.as_ref().is_some_and(|was| was.masquerade_outside.is_some()) && network.is_empty()? {
            // The pod is gone even if this fails; GC tries it again and reports the error.
            let networks: Vec<String> = network.siblings()?.iter().map(NetworkState::name).collect();
            let _ = firewall::prune(nft::Idle::KeepFew, &networks, self.caller.kernel_cache);
        }
        Ok(was)
    }

    /// No record: there never was one, or it was lost. Links and firewall elements of the attachment are removed. If another
    /// process made the link after the first search for the record, the record is found now and returned.
    fn remove_strays(&self) -> Result<Option<HeldAttachment>, Error> {
        let key = &self.key;
        let mut host = RtSocket::open()?;
        let links = ours(&mut host, &[key.host_link(0), key.shaper_link()], key)?;
        let found = if links.is_empty() { None } else { self.find()? };
        if found.is_some() {
            return Ok(found);
        }
        let network = relearn::existing(&self.call.config, self.place, self.caller)?;
        links.iter().try_for_each(|link| remove_stray(&mut host, link, network.as_ref()))?;
        // The record was lost, and left its claims.
        if let Some(network) = network.filter(|_| !links.is_empty()) {
            gc::free_orphans(&network, &host.links()?)?;
        }
        Ok(None)
    }
}

/// As [`undo`], where the addresses may be another IPAM plugin's. The plugin gets them back when the kernel has nothing of the
/// pod any more, unless it sends through the pod's interface. If it fails, the record stays as pending.
pub(crate) fn undo_with(
    mut held: HeldAttachment,
    key: Option<&AttachmentKey>,
    caller: &Caller<'_>,
    delegate: Option<&Delegate<'_>>,
) -> Result<(), Error> {
    report_unreturned(&held, delegate, caller.warn);
    let Some(delegate) = delegate else { return undo(held, key, caller) };
    if has_own_addresses(&held) {
        undo(held, key, caller)?;
        return delegate.del();
    }
    if delegate.needs_interface() {
        // While the firewall has the addresses, no other pod may get them. The next DEL tries it again.
        withdraw(&mut held, caller)?;
        let given_back = delegate.del();
        let retired = retire(&mut held, key, caller);
        Error::collect(given_back.err().into_iter().chain(retired.err()).collect())?;
    } else {
        retire(&mut held, key, caller)?;
        delegate.del()?;
    }
    Ok(held.release(&[])?)
}

/// The config may name another IPAM plugin than the one that gave the addresses. That one cannot be called: its part of the
/// config is gone. The pod is removed all the same, because a runtime would repeat a failed DEL for ever.
fn report_unreturned(held: &HeldAttachment, delegate: Option<&Delegate<'_>>, warn: Warn<'_>) {
    let Some(attachment) = held.attachment().filter(|attachment| attachment.delegated) else { return };
    let Some(plugin) = attachment.ipam_plugin.as_deref() else { return };
    if delegate.is_some_and(|delegate| delegate.plugin() == plugin) {
        return;
    }
    let ips: Vec<String> = attachment.ips().map(|ip| ip.to_string()).collect();
    let what = if ips.is_empty() { "addresses".to_owned() } else { ips.join(", ") };
    warn(&format!(
        "{} has {what} from IPAM plugin {plugin}, which the config does not name any more: give it back there",
        attachment.key
    ));
}

/// As [`undo`], where no IPAM plugin can be called. If the addresses may be another plugin's, the record stays as pending.
pub(crate) fn undo_without_plugin(
    mut held: HeldAttachment,
    key: Option<&AttachmentKey>,
    caller: &Caller<'_>,
) -> Result<(), Error> {
    if has_own_addresses(&held) { undo(held, key, caller) } else { retire(&mut held, key, caller) }
}

/// False if another IPAM plugin gave the addresses, or if the record cannot be read.
fn has_own_addresses(held: &HeldAttachment) -> bool {
    held.attachment().is_some_and(|attachment| !attachment.delegated)
}

/// Removes an attachment from the kernel and keeps its record as pending. DEL, GC and the next ADD have the config that names
/// the IPAM plugin, and call it. The record then names no addresses: a process that is killed after the plugin's DEL leaves
/// a record whose addresses may be another pod's.
pub(crate) fn retire(
    held: &mut HeldAttachment,
    key: Option<&AttachmentKey>,
    caller: &Caller<'_>,
) -> Result<(), Error> {
    dismantle(held, key, caller)?;
    match held.attachment().filter(|attachment| !attachment.is_retired()).cloned() {
        Some(attachment) => {
            Ok(held.rewrite(Attachment { addresses: Vec::new(), wiring: Wiring::default(), ..attachment })?)
        }
        None => Ok(()),
    }
}

/// Forgets the addresses, in firewall and record, before they are given back: another pod may have them at once. The
/// interface stays guarded.
fn withdraw(held: &mut HeldAttachment, caller: &Caller<'_>) -> Result<(), Error> {
    held.reopen()?;
    let Some(attachment) = held.attachment().filter(|a| !a.addresses.is_empty()).cloned() else {
        return Ok(());
    };
    firewall::remove_addresses(&attachment, caller.kernel_cache)?;
    flush_now(&attachment.ips().collect::<Vec<_>>());
    Ok(held.rewrite(Attachment { addresses: Vec::new(), ..attachment })?)
}

/// Takes an attachment apart and forgets it. If the kernel refuses a step the record stays, for the next DEL or GC. The key
/// matters only where the record cannot be read.
pub(crate) fn undo(
    mut held: HeldAttachment,
    key: Option<&AttachmentKey>,
    caller: &Caller<'_>,
) -> Result<(), Error> {
    let clean = dismantle(&mut held, key, caller)?;
    Ok(held.release(&clean)?)
}

/// Removes an attachment from the kernel. Returns the addresses of which the kernel has no flows any more.
fn dismantle(
    held: &mut HeldAttachment,
    key: Option<&AttachmentKey>,
    caller: &Caller<'_>,
) -> Result<Vec<IpAddr>, Error> {
    let mut errors = Vec::new();
    // From here on it counts as being undone: if we are killed, the next process goes on.
    errors.extend(held.reopen().err().map(Error::from));
    let mut clean = Vec::new();
    match held.attachment() {
        Some(attachment) => {
            let flushed = unwire(attachment, caller, &mut errors);
            clean.extend(flushed);
        }
        None => match unwire_unreadable(held, key) {
            Ok(flushed) => clean.extend(flushed),
            Err(error) => errors.push(error),
        },
    }
    Error::collect(errors)?;
    // The agent reconciles the pod's other interfaces.
    let gone = held.attachment().filter(|_| caller.kernel_cache.is_none());
    if let Some(Err(error)) = gone.map(|gone| remaining::restore_routes(held.network(), gone)) {
        // The attachment is removed all the same.
        (caller.warn)(&format!("the routes of the pod's other interfaces were not restored: {error}"));
    }
    Ok(clean)
}

/// The kernel's part. The link goes first: while it lives, it stays guarded. Returns the addresses of which the kernel
/// remembers nothing any more.
fn unwire(attachment: &Attachment, caller: &Caller<'_>, errors: &mut Vec<Error>) -> Vec<IpAddr> {
    let rest = || {
        let addresses: Vec<_> = attachment.ips().collect();
        let expelled = if is_complete(attachment) {
            firewall::remove_pod(attachment, caller.kernel_cache)
        } else {
            firewall::sweep(std::slice::from_ref(&attachment.host_link), &addresses)
        };
        (expelled, flush(attachment, &addresses, caller.wait))
    };
    let (expelled, clean) = match host_end(attachment, caller) {
        Ok(Some((mut host, index))) => {
            let (deleted, rest) = match caller.wait {
                Wait::ForTheEnd => host.delete_link(index, rest),
                Wait::UntilGone => {
                    kernel_cache::spare_socket(caller.kernel_cache, host);
                    (netlink::delete_link_early(index), rest())
                }
            };
            errors.extend(unless_missing(deleted).err());
            rest
        }
        Ok(None) => rest(),
        Err(error) => {
            errors.push(error);
            rest()
        }
    };
    errors.extend(expelled.err());
    clean
}

/// Whether the record names everything that the firewall has. A record without a cookie was recovered from the link's alias,
/// and [`withdraw`] removes addresses from the record that the guard of the link still has.
fn is_complete(attachment: &Attachment) -> bool {
    let is_withdrawn = attachment.addressing == Addressing::Dhcp && attachment.addresses.is_empty();
    attachment.netns_cookie.is_some() && !is_withdrawn
}

/// Removes the flows of these addresses where that is cheap; returns the addresses that are clean. The others rest until
/// they are wanted again (F3), also where the kernel does not let us. The kernel goes through its whole table for it: a
/// process that stays does that for many at once, but for flows that lead a host port's clients to nowhere.
fn flush(attachment: &Attachment, addresses: &[IpAddr], wait: Wait) -> Vec<IpAddr> {
    match wait {
        Wait::UntilGone if attachment.ports.is_empty() => Vec::new(),
        Wait::UntilGone | Wait::ForTheEnd => flush_now(addresses),
    }
}

fn flush_now(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let Ok(left) = nft::conntrack::flush(addresses) else { return Vec::new() };
    addresses.iter().copied().filter(|ip| !left.contains(ip)).collect()
}

/// The link of the attachment, if it is still there; what shapes it is removed on the way.
fn host_end(attachment: &Attachment, caller: &Caller<'_>) -> Result<Option<(RtSocket, u32)>, Error> {
    let mut host = kernel_cache::socket(caller.kernel_cache)?;
    let name = &attachment.host_link;
    let known =
        caller.kernel_cache.map(|r| r.take_host_end(&host, &attachment.key, name)).transpose()?.flatten();
    // Without a cookie the record was made from what the link tells, and there may be more.
    if attachment.bandwidth.is_some() || attachment.netns_cookie.is_none() {
        for shaper in ours(&mut host, &[attachment.key.shaper_link()], &attachment.key)? {
            match caller.wait {
                Wait::ForTheEnd => delete_link(&mut host, shaper.index)?,
                Wait::UntilGone => unless_missing(netlink::delete_link_early(shaper.index))?,
            }
        }
    }
    let found = match known {
        Some(index) => Some(index),
        None => ours(&mut host, std::slice::from_ref(name), &attachment.key)?.first().map(|link| link.index),
    };
    Ok(found.map(|index| (host, index)))
}

/// The kernel's part where the record cannot be read. The links' aliases and the claims tell the addresses, and an address
/// that another attachment has is left alone. Returns the addresses of which the kernel remembers nothing any more.
fn unwire_unreadable(held: &HeldAttachment, key: Option<&AttachmentKey>) -> Result<Vec<IpAddr>, Error> {
    let mut host = RtSocket::open()?;
    let (network, stem) = (held.network().name(), held.stem());
    let is_own = |link: &Link| Alias::of(link).is_some_and(|alias| alias.is_of_record(&network, stem));
    let links: Vec<Link> = host.links()?.into_iter().filter(is_own).collect();
    let mut addresses = held.claimed()?;
    for address in links.iter().flat_map(alias::ips_of) {
        if !addresses.contains(&address) && !held.network().is_claimed_by_another(address, held)? {
            addresses.push(address);
        }
    }
    let derived = key.map(|key| key.host_link(0));
    remove_links(&mut host, &links, derived, &addresses)?;
    Ok(flush_now(&addresses))
}

/// Removes links together with what the firewall has of them. A pod stays guarded until it cannot send any more, and the
/// links go last: if this process is killed before, their aliases tell the next one what is left to do.
fn remove_links(
    host: &mut RtSocket,
    links: &[Link],
    derived: Option<IfName>,
    addresses: &[IpAddr],
) -> Result<(), Error> {
    for link in links {
        let down = SetLink { up: Some(false), ..SetLink::of(LinkRef::Index(link.index)) };
        unless_missing(host.run(&Op::SetLink(down)))?;
    }
    let named = links.iter().filter_map(|link| IfName::try_from(link.name.as_str()).ok());
    let names: Vec<IfName> = named.chain(derived).collect();
    firewall::sweep(&names, addresses)?;
    links.iter().try_for_each(|link| delete_link(host, link.index))
}

/// Removes a link of ours that no record knows, and what firewall and conntrack have of it.
pub(crate) fn remove_stray(
    host: &mut RtSocket,
    link: &Link,
    network: Option<&NetworkState>,
) -> Result<(), Error> {
    // One that was handed out again belongs to another attachment now.
    let mut addresses = Vec::new();
    for address in alias::ips_of(link) {
        if !network.map_or(Ok(false), |network| network.is_owned(address))? {
            addresses.push(address);
        }
    }
    remove_links(host, std::slice::from_ref(link), None, &addresses)?;
    let clean = flush_now(&addresses);
    let unclean: Vec<IpAddr> = addresses.into_iter().filter(|ip| !clean.contains(ip)).collect();
    Ok(network.map_or(Ok(()), |network| network.lay_to_rest(&unclean))?)
}

/// The links of these names that carry our mark and this key; a foreign link of the same name is not among them.
fn ours(host: &mut RtSocket, names: &[IfName], key: &AttachmentKey) -> Result<Vec<Link>, Error> {
    let names: Vec<_> = names.iter().collect();
    Ok(host.links_by_name(&names)?.into_iter().flatten().filter(|link| alias::is_of(link, key)).collect())
}

/// Deleting a link that goes at the same moment (its namespace was removed) is no failure.
pub(crate) fn delete_link(host: &mut RtSocket, index: u32) -> Result<(), Error> {
    unless_missing(host.run(&Op::DelLink(index)))
}

fn unless_missing(deleted: Result<(), netlink::Error>) -> Result<(), Error> {
    match deleted {
        Err(e) if e.is_missing() => Ok(()),
        other => Ok(other?),
    }
}
