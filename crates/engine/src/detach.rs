//! DEL: everything the record knows is taken apart, in reverse, and every step is tried whatever the others say. It needs
//! no namespace, no config and no pod: what is gone already is fine.

use cni::Call;
use netconf::Place;
use netlink::{Op, RtSocket};
use types::AttachmentKey;

use crate::attach::key_of;
use crate::delegate::Delegate;
use crate::state::{Attachment, Held, State};
use crate::{Error, firewall};

/// Returns what was there, for the log.
pub(crate) fn detach(call: &Call, place: &Place) -> Result<Option<Attachment>, Error> {
    let key = key_of(call);
    let mut errors = Vec::new();
    let mut was = None;
    match find(&key, place) {
        Ok(Some(held)) => {
            was = held.attachment().cloned();
            errors.extend(undo(held, &key).err());
        }
        // No record: the state was lost, or there never was one. What the kernel still has of it goes all the same.
        Ok(None) => errors.extend(remove_link(&key).err()),
        Err(error) => errors.push(error),
    }
    if let Some(plugin) = netconf::foreign_ipam(&call.config) {
        let given_back = Delegate::find(plugin, &call.path, &call.config).and_then(|delegate| delegate.del());
        errors.extend(given_back.err());
    }
    Error::collect(errors).map(|()| was)
}

fn find(key: &AttachmentKey, place: &Place) -> Result<Option<Held>, Error> {
    let Some(state) = State::open_existing(&place.state_dir)? else { return Ok(None) };
    let Some(network) = state.existing_network(&key.network) else { return Ok(None) };
    Ok(network.find(key)?)
}

/// Takes an attachment apart and forgets it. If the kernel refuses a step the record stays, for the next DEL or GC.
pub(crate) fn undo(mut held: Held, key: &AttachmentKey) -> Result<(), Error> {
    let mut errors = Vec::new();
    // From here on it counts as being undone: if we are killed, the next process goes on.
    errors.extend(held.reopen().err().map(Error::from));
    match held.attachment() {
        Some(attachment) => errors.extend(unwire(attachment)),
        // The record cannot be read. The name of the link follows from the key alone.
        None => errors.extend(remove_link(key).err()),
    }
    if errors.is_empty() {
        errors.extend(held.release().err().map(Error::from));
    }
    Error::collect(errors)
}

/// The kernel's part. The link goes first: while it lives, it stays guarded.
fn unwire(attachment: &Attachment) -> Vec<Error> {
    let mut errors = Vec::new();
    errors.extend(remove_links_of(attachment).err());
    errors.extend(firewall::expel(attachment).err());
    // A new pod with this address must not inherit its flows (F3).
    let addresses: Vec<_> = attachment.ips().collect();
    errors.extend(nft::conntrack::flush(&addresses).err().map(Error::from));
    errors
}

fn remove_links_of(attachment: &Attachment) -> Result<(), Error> {
    let mut host = RtSocket::open()?;
    let mut names = vec![attachment.host_link.clone()];
    if attachment.bandwidth.is_some_and(|b| b.egress_rate > 0) {
        names.push(attachment.key.shaper_link());
    }
    remove_ours(&mut host, &names, &attachment.key)
}

/// Removes the host end of a key that has no (readable) record.
fn remove_link(key: &AttachmentKey) -> Result<(), Error> {
    let mut host = RtSocket::open()?;
    remove_ours(&mut host, &[key.host_link(0), key.shaper_link()], key)
}

/// Removes the links of these names that carry our mark and this key; a foreign link of the same name stays.
fn remove_ours(host: &mut RtSocket, names: &[types::IfName], key: &AttachmentKey) -> Result<(), Error> {
    let names: Vec<_> = names.iter().collect();
    for link in host.links_by_name(&names)?.into_iter().flatten() {
        if link.alias.as_deref().is_some_and(|alias| is_alias_of(alias, key)) {
            delete_link(host, link.index)?;
        }
    }
    Ok(())
}

/// Deleting a link that goes at the same moment (its namespace was removed) is no failure.
pub(crate) fn delete_link(host: &mut RtSocket, index: u32) -> Result<(), Error> {
    match host.run(&Op::DelLink(index)) {
        Err(e) if e.is_missing() => Ok(()),
        other => Ok(other?),
    }
}

/// Is this the alias of a link of that key? Addresses may follow it.
pub(crate) fn is_alias_of(alias: &str, key: &AttachmentKey) -> bool {
    alias.split(' ').next() == Some(key.alias().as_str())
}
