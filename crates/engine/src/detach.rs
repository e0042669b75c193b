//! DEL removes everything that the record names, in reverse order. Every step is tried, even if an earlier one failed. DEL
//! needs no namespace, no config and no pod. Objects that do not exist any more are no error.

use std::net::IpAddr;

use cni::AttachmentRequest;
use netconf::LocalPaths;
use netlink::{Link, LinkRef, Op, RtSocket, SetLink};
use types::{AttachmentKey, IfName};

use crate::alias::Alias;
use crate::delegate::{self, Delegate};
use crate::state::{Addressing, Attachment, HeldAttachment, NetworkState, Wiring};
use crate::{
    Caller, Error, Wait, Warn, alias, dscp, firewall, gc, kernel_cache, recover, shaping, sibling_routes,
};

/// Returns the removed attachment, for the log.
pub(crate) fn detach(
    call: &AttachmentRequest,
    paths: &LocalPaths,
    caller: &Caller<'_>,
) -> Result<Option<Attachment>, Error> {
    let delegate = Delegate::of_config(&call.config, caller.delegates);
    Detachment { key: call.key(), call, paths, caller }.run(delegate)
}

/// One DEL.
struct Detachment<'a> {
    key: AttachmentKey,
    call: &'a AttachmentRequest,
    paths: &'a LocalPaths,
    caller: &'a Caller<'a>,
}

impl Detachment<'_> {
    fn find(&self) -> Result<Option<HeldAttachment>, Error> {
        let Some(network) = recover::existing(&self.call.config, self.paths, self.caller)? else {
            return Ok(None);
        };
        // Another process with an ADD or DEL of this pod may be waiting for the IPAM plugin.
        let held = match netconf::external_ipam(&self.call.config) {
            Some(_) => network.find_within(&self.key.file_stem(), delegate::MAX_HOLD_TIME)?,
            None => network.find(&self.key)?,
        };
        if held.is_none() {
            // An earlier DEL may have been killed after it removed the record.
            network.repair_if_marked()?;
        }
        Ok(held)
    }

    /// If the record cannot be locked, an ADD may be about to commit. Then the IPAM plugin is not called.
    fn run(&self, delegate: Result<Option<Delegate<'_>>, Error>) -> Result<Option<Attachment>, Error> {
        let held = match self.find()? {
            Some(held) => Some(held),
            None => self.remove_orphans()?,
        };
        let Some(held) = held else {
            // The plugin may have a lease for an attachment without a record.
            return delegate?.map_or(Ok(()), |delegate| delegate.del()).map(|()| None);
        };
        let (removed, network) = (held.attachment().cloned(), held.network().clone());
        match delegate {
            Ok(delegate) => undo_with(held, Some(&self.key), self.caller, delegate.as_ref())?,
            Err(error) => {
                let undone = undo_without_plugin(held, Some(&self.key), self.caller);
                return Error::collect([error].into_iter().chain(undone.err()).collect()).map(|()| removed);
            }
        }
        if removed.as_ref().is_some_and(|a| a.masquerade_outside.is_some()) && network.is_empty()? {
            // The pod is removed even if this fails. GC retries and reports the error.
            let networks: Vec<String> = network.siblings()?.iter().map(NetworkState::name).collect();
            let _ = firewall::prune(nft::IdleChains::KeepFew, &networks, self.caller.kernel_cache);
        }
        Ok(removed)
    }

    /// Called if there is no record: it never existed, or was lost. Removes links and firewall elements of the attachment. If
    /// another process created the link after the first search, the record is found now and returned.
    fn remove_orphans(&self) -> Result<Option<HeldAttachment>, Error> {
        let key = &self.key;
        let mut host = RtSocket::open()?;
        let links = links_of(&mut host, &[key.host_link(0), key.shaper_link()], key)?;
        let held = if links.is_empty() { None } else { self.find()? };
        if held.is_some() {
            return Ok(held);
        }
        let network = recover::existing(&self.call.config, self.paths, self.caller)?;
        links.iter().try_for_each(|link| remove_orphan_link(&mut host, link, network.as_ref()))?;
        if let Some(policies) = self.caller.policies {
            policies.remove_pod(key);
        }
        // A lost record leaves its address claims.
        if let Some(network) = network.filter(|_| !links.is_empty()) {
            gc::free_orphans(&network, &host.links()?)?;
        }
        Ok(None)
    }
}

/// Like [`undo`], for addresses that a delegated IPAM plugin may have assigned. The plugin releases them after all kernel
/// objects of the pod were removed, unless it sends through the pod's interface. If the plugin fails, the record stays
/// pending.
pub(crate) fn undo_with(
    mut held: HeldAttachment,
    key: Option<&AttachmentKey>,
    caller: &Caller<'_>,
    delegate: Option<&Delegate<'_>>,
) -> Result<(), Error> {
    warn_about_other_plugin(&held, delegate, caller.warn);
    let Some(delegate) = delegate else { return undo(held, key, caller) };
    if has_own_addresses(&held) {
        undo(held, key, caller)?;
        return delegate.del();
    }
    if delegate.needs_interface() {
        // While the firewall has the addresses, no other pod may get them. The next DEL retries.
        withdraw_addresses(&mut held, caller)?;
        let released = delegate.del();
        let undone = undo_keeping_record(&mut held, key, caller);
        Error::collect(released.err().into_iter().chain(undone.err()).collect())?;
    } else {
        undo_keeping_record(&mut held, key, caller)?;
        delegate.del()?;
    }
    Ok(held.release(&[])?)
}

/// The config may name another IPAM plugin than the one that assigned the addresses. The former plugin cannot be called
/// because its config is lost. The pod is removed anyway: a runtime would retry a failed DEL forever.
fn warn_about_other_plugin(held: &HeldAttachment, delegate: Option<&Delegate<'_>>, warn: Warn<'_>) {
    let Some(attachment) = held.attachment().filter(|attachment| attachment.delegated) else { return };
    let Some(plugin) = attachment.ipam_plugin.as_deref() else { return };
    if delegate.is_some_and(|delegate| delegate.plugin() == plugin) {
        return;
    }
    let ips: Vec<String> = attachment.ips().map(|ip| ip.to_string()).collect();
    let addresses = if ips.is_empty() { "addresses".to_owned() } else { ips.join(", ") };
    warn(&format!(
        "{} has {addresses} from IPAM plugin {plugin}, which the config no longer names: release them in that plugin",
        attachment.key
    ));
}

/// Like [`undo`], if no IPAM plugin can be called. If a plugin may have assigned the addresses, the record stays pending.
pub(crate) fn undo_without_plugin(
    mut held: HeldAttachment,
    key: Option<&AttachmentKey>,
    caller: &Caller<'_>,
) -> Result<(), Error> {
    if has_own_addresses(&held) {
        undo(held, key, caller)
    } else {
        undo_keeping_record(&mut held, key, caller)
    }
}

/// False if an IPAM plugin assigned the addresses, or if the record cannot be read.
fn has_own_addresses(held: &HeldAttachment) -> bool {
    held.attachment().is_some_and(|attachment| !attachment.delegated)
}

/// Removes an attachment from the kernel and keeps its record as pending. A later DEL, GC or ADD has the config that names the
/// IPAM plugin, and calls it. The addresses are removed from the record: if this process is killed after the plugin's DEL,
/// they may already belong to another pod.
pub(crate) fn undo_keeping_record(
    held: &mut HeldAttachment,
    key: Option<&AttachmentKey>,
    caller: &Caller<'_>,
) -> Result<(), Error> {
    remove_from_kernel(held, key, caller)?;
    match held.attachment().filter(|attachment| !attachment.needs_only_ipam_del()).cloned() {
        Some(attachment) => {
            Ok(held.rewrite(Attachment { addresses: Vec::new(), wiring: Wiring::default(), ..attachment })?)
        }
        None => Ok(()),
    }
}

/// Removes the addresses from firewall and record before they are released, because another pod may get them at once. The
/// anti-spoofing filter of the interface stays.
fn withdraw_addresses(held: &mut HeldAttachment, caller: &Caller<'_>) -> Result<(), Error> {
    held.reopen()?;
    let Some(attachment) = held.attachment().filter(|a| !a.addresses.is_empty()).cloned() else {
        return Ok(());
    };
    firewall::remove_addresses(&attachment, caller.kernel_cache)?;
    flush_now(&attachment.ips().collect::<Vec<_>>());
    Ok(held.rewrite(Attachment { addresses: Vec::new(), ..attachment })?)
}

/// Removes an attachment and its record. If the kernel refuses a step, the record stays for the next DEL or GC. The key is
/// used only if the record cannot be read.
pub(crate) fn undo(
    mut held: HeldAttachment,
    key: Option<&AttachmentKey>,
    caller: &Caller<'_>,
) -> Result<(), Error> {
    let without_conntrack = remove_from_kernel(&mut held, key, caller)?;
    Ok(held.release(&without_conntrack)?)
}

/// Removes an attachment from the kernel. Returns the addresses without conntrack entries in the kernel.
fn remove_from_kernel(
    held: &mut HeldAttachment,
    key: Option<&AttachmentKey>,
    caller: &Caller<'_>,
) -> Result<Vec<IpAddr>, Error> {
    let mut errors = Vec::new();
    // Makes the record pending. If this process is killed, the next one continues.
    errors.extend(held.reopen().err().map(Error::from));
    let mut without_conntrack = Vec::new();
    match held.attachment() {
        Some(attachment) => {
            let flushed = remove_objects(attachment, caller, &mut errors);
            without_conntrack.extend(flushed);
        }
        None => match remove_objects_unreadable(held, key) {
            Ok(flushed) => without_conntrack.extend(flushed),
            Err(error) => errors.push(error),
        },
    }
    if let Some((policies, key)) = caller.policies.zip(held.attachment().map(|it| &it.key).or(key)) {
        policies.remove_pod(key);
    }
    Error::collect(errors)?;
    // The agent reconciles the pod's other interfaces.
    let removed = held.attachment().filter(|_| caller.kernel_cache.is_none());
    if let Some(Err(error)) = removed.map(|removed| sibling_routes::restore_routes(held.network(), removed)) {
        // This does not fail the DEL.
        (caller.warn)(&format!("cannot restore routes of the pod's other interfaces: {error}"));
    }
    Ok(without_conntrack)
}

/// Removes the kernel objects of an attachment. The link is removed first, so its filter is active as long as it exists.
/// Returns the addresses without conntrack entries in the kernel.
fn remove_objects(attachment: &Attachment, caller: &Caller<'_>, errors: &mut Vec<Error>) -> Vec<IpAddr> {
    let remove_rules = || {
        let addresses: Vec<_> = attachment.ips().collect();
        let removed = if is_complete(attachment) {
            firewall::remove_pod(attachment, caller.kernel_cache)
        } else {
            firewall::sweep(std::slice::from_ref(&attachment.host_link), &addresses)
        };
        (removed, flush(attachment, &addresses, caller.wait))
    };
    let (removed, without_conntrack) = match host_end(attachment, caller) {
        Ok(Some((mut host, index))) => {
            let (deleted, outcome) = match caller.wait {
                Wait::ForGracePeriod => host.delete_link(index, remove_rules),
                Wait::UntilLinkRemoved => {
                    kernel_cache::recycle_socket(caller.kernel_cache, host);
                    (netlink::delete_link_early(index), remove_rules())
                }
            };
            errors.extend(unless_missing(deleted).err());
            outcome
        }
        Ok(None) => remove_rules(),
        Err(error) => {
            errors.push(error);
            remove_rules()
        }
    };
    errors.extend(removed.err());
    errors.extend(dscp::remove_pod(attachment, caller).err());
    without_conntrack
}

/// Whether the record names all firewall elements of the pod. A record without a cookie was recovered from the link's alias.
/// [`withdraw_addresses`] removes addresses from the record that the link's filter still has.
fn is_complete(attachment: &Attachment) -> bool {
    let is_withdrawn = attachment.addressing == Addressing::Dhcp && attachment.addresses.is_empty();
    attachment.netns_cookie.is_some() && !is_withdrawn
}

/// Removes the conntrack entries of these addresses if that is cheap. Returns the addresses without conntrack entries. The others
/// are quarantined until they are allocated again (F3), also if the kernel refuses. The kernel scans its whole conntrack table for
/// a flush, so a long-running process flushes many addresses at once, except for host ports: their clients would use stale entries.
fn flush(attachment: &Attachment, addresses: &[IpAddr], wait: Wait) -> Vec<IpAddr> {
    match wait {
        Wait::UntilLinkRemoved if attachment.ports.is_empty() => Vec::new(),
        Wait::UntilLinkRemoved | Wait::ForGracePeriod => flush_now(addresses),
    }
}

fn flush_now(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let Ok(remaining) = nft::conntrack::flush(addresses) else { return Vec::new() };
    addresses.iter().copied().filter(|ip| !remaining.contains(ip)).collect()
}

/// The host end of the attachment, if it exists. Its shaper link is removed here.
fn host_end(attachment: &Attachment, caller: &Caller<'_>) -> Result<Option<(RtSocket, u32)>, Error> {
    let mut host = kernel_cache::socket(caller.kernel_cache)?;
    let name = &attachment.host_link;
    let cached =
        caller.kernel_cache.map(|r| r.take_host_end(&host, &attachment.key, name)).transpose()?.flatten();
    // A record without a cookie was recovered from the link's alias, which does not contain the bandwidth.
    if shaping::may_have_limits(attachment) || attachment.netns_cookie.is_none() {
        for shaper in links_of(&mut host, &[attachment.key.shaper_link()], &attachment.key)? {
            match caller.wait {
                Wait::ForGracePeriod => delete_link(&mut host, shaper.index)?,
                Wait::UntilLinkRemoved => unless_missing(netlink::delete_link_early(shaper.index))?,
            }
        }
    }
    let index = match cached {
        Some(index) => Some(index),
        None => {
            links_of(&mut host, std::slice::from_ref(name), &attachment.key)?.first().map(|link| link.index)
        }
    };
    Ok(index.map(|index| (host, index)))
}

/// Like [`remove_objects`], if the record cannot be read. The addresses come from the links' aliases and the claims. Addresses
/// of another attachment are skipped.
fn remove_objects_unreadable(
    held: &HeldAttachment,
    key: Option<&AttachmentKey>,
) -> Result<Vec<IpAddr>, Error> {
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

/// Removes links and their firewall elements. The filter of a pod stays until it cannot send any more. The links are removed
/// last: if this process is killed before that, the next one uses their aliases.
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

/// Removes a managed link without a record, and its firewall elements and conntrack entries.
pub(crate) fn remove_orphan_link(
    host: &mut RtSocket,
    link: &Link,
    network: Option<&NetworkState>,
) -> Result<(), Error> {
    // An address that was allocated again belongs to another attachment.
    let mut addresses = Vec::new();
    for address in alias::ips_of(link) {
        if !network.map_or(Ok(false), |network| network.is_owned(address))? {
            addresses.push(address);
        }
    }
    remove_links(host, std::slice::from_ref(link), None, &addresses)?;
    let without_conntrack = flush_now(&addresses);
    let with_conntrack: Vec<IpAddr> =
        addresses.into_iter().filter(|ip| !without_conntrack.contains(ip)).collect();
    Ok(network.map_or(Ok(()), |network| network.quarantine(&with_conntrack))?)
}

/// The links with these names and the alias of this key. Unmanaged links with the same name are not returned.
fn links_of(host: &mut RtSocket, names: &[IfName], key: &AttachmentKey) -> Result<Vec<Link>, Error> {
    let names: Vec<_> = names.iter().collect();
    Ok(host.links_by_name(&names)?.into_iter().flatten().filter(|link| alias::is_of(link, key)).collect())
}

/// Deletes a link. A link that does not exist any more, for example because its namespace was removed, is no error.
pub(crate) fn delete_link(host: &mut RtSocket, index: u32) -> Result<(), Error> {
    unless_missing(host.run(&Op::DelLink(index)))
}

fn unless_missing(deleted: Result<(), netlink::Error>) -> Result<(), Error> {
    match deleted {
        Err(e) if e.is_missing() => Ok(()),
        other => Ok(other?),
    }
}
