//! The aliases of Podwire's links. They mark a link as managed. The alias of a host end contains what is needed to recover a
//! lost record: `podwire:NETWORK/CONTAINER/IFNAME ipam=dhcp 10.83.0.2/24 mac=02:00:00:00:00:01 in=TENANT/NETWORK/GROUP`.
//! Everything after the key is optional.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink::Link;
use types::{AttachmentKey, Mac, NetworkName, Placement};

use crate::state::{Addressing, Attachment};

/// Marks a bridge that Podwire created. A bridge that existed before has no such mark, and cleanup does not remove it.
pub(crate) const BRIDGE_ALIAS: &str = "podwire bridge";
/// Prefix of the network of a tunnel device.
const TUNNEL: &str = "podwire tunnel ";
/// Prefix of the key of an attachment: see [`AttachmentKey::alias`].
const HOST_END: &str = "podwire:";
/// Prefix of the pod's MAC.
const MAC: &str = "mac=";
/// Prefix of the placement: `in=TENANT/NETWORK`, or `in=TENANT/NETWORK/GROUP`.
const PLACEMENT: &str = "in=";
/// The kernel refuses a longer alias.
const MAX_LENGTH: usize = 255;
const MAX_ADDRESS_LENGTH: usize = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128".len();

/// The kind of a managed link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkMark<'a> {
    /// The host end of an attachment, or the link that shapes it.
    HostEnd(Alias<'a>),
    Bridge,
    /// The network, as named by [`AttachmentKey::network_dir`].
    Tunnel(&'a str),
}

impl<'a> LinkMark<'a> {
    /// None if Podwire does not manage the link.
    pub fn of(link: &'a Link) -> Option<Self> {
        let text = link.alias.as_deref()?;
        match text.strip_prefix(TUNNEL) {
            Some(network) => Some(Self::Tunnel(network)),
            None if text == BRIDGE_ALIAS => Some(Self::Bridge),
            None => Alias::parse(text).map(Self::HostEnd),
        }
    }
}

/// The alias of a tunnel device.
pub fn of_tunnel(network: &NetworkName) -> String {
    format!("{TUNNEL}{}", AttachmentKey::network_dir(network))
}

/// The content of a host end's alias.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alias<'a> {
    /// As named by [`AttachmentKey::network_dir`].
    pub network: &'a str,
    /// The container ID, or its digest if it is long.
    pub id: &'a str,
    pub ifname: &'a str,
    pub addressing: Addressing,
    pub addresses: Vec<IpNet>,
    /// Whether an address may be missing because it did not fit.
    pub may_lack_addresses: bool,
    /// The pod's MAC, if it differs from the one that is derived from the key.
    pub mac: Option<Mac>,
    /// None unless there is exactly one. Aliases of earlier versions have none.
    pub placement: Option<Placement>,
}

impl<'a> Alias<'a> {
    pub fn of(link: &'a Link) -> Option<Self> {
        Self::parse(link.alias.as_deref()?)
    }

    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let mut words = text.strip_prefix(HOST_END)?.split(' ');
        let (network, key) = words.next()?.split_once('/')?;
        let (id, ifname) = key.split_once('/')?;
        let words: Vec<&str> = words.collect();
        Some(Self {
            network,
            id,
            ifname,
            addressing: addressing_in(&words),
            addresses: words.iter().filter_map(|word| word.parse().ok()).collect(),
            may_lack_addresses: may_lack_addresses(text),
            mac: words.iter().find_map(|word| word.strip_prefix(MAC)?.parse().ok()),
            placement: placement_in(&words),
        })
    }

    pub fn is_of(&self, key: &AttachmentKey) -> bool {
        self.is_of_record(&AttachmentKey::network_dir(&key.network), &key.file_stem())
    }

    /// Compares with the names of the network's directory and of the record.
    pub(crate) fn is_of_record(&self, network: &str, stem: &str) -> bool {
        self.network == network && self.stem() == stem
    }

    /// The file stem of the record. A container ID that is too long for the alias is shortened in the same way there.
    pub fn stem(&self) -> String {
        format!("{}@{}", self.id, self.ifname)
    }

    pub fn ips(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().map(IpNet::addr)
    }
}

/// The pod addresses in the alias of a host end. Empty for other links.
pub(crate) fn ips_of(link: &Link) -> Vec<IpAddr> {
    Alias::of(link).iter().flat_map(Alias::ips).collect()
}

/// Whether the link is the host end or the shaper link of the attachment.
pub fn is_of(link: &Link, key: &AttachmentKey) -> bool {
    Alias::of(link).is_some_and(|alias| alias.is_of(key))
}

impl Attachment {
    /// The alias of the host end: key, addressing, addresses, the MAC if one was requested, and the placement. A word that does
    /// not fit is omitted, not truncated.
    pub fn alias(&self) -> String {
        // Addressing is first: without it, a recovered record would get the wrong anti-spoofing filter.
        let addressing = addressing_word(self.addressing).map(str::to_owned);
        let addresses = self.addresses.iter().map(|address| address.address.to_string());
        let mac = (self.pod_mac != self.key.pod_mac()).then(|| format!("{MAC}{}", self.pod_mac));
        let placement = self.placement.as_ref().map(placement_word);
        let words = addressing.into_iter().chain(addresses).chain(mac).chain(placement);
        words.fold(self.key.alias(), |alias, word| match alias.len() + 1 + word.len() <= MAX_LENGTH {
            true => format!("{alias} {word}"),
            false => alias,
        })
    }
}

/// None for assigned addresses, as in aliases of earlier versions.
fn addressing_word(addressing: Addressing) -> Option<&'static str> {
    match addressing {
        Addressing::Assigned => None,
        Addressing::Dhcp => Some("ipam=dhcp"),
        Addressing::None => Some("ipam=none"),
    }
}

fn addressing_in(words: &[&str]) -> Addressing {
    let is_present =
        |addressing: &Addressing| addressing_word(*addressing).is_some_and(|word| words.contains(&word));
    [Addressing::Dhcp, Addressing::None].into_iter().find(is_present).unwrap_or_default()
}

fn may_lack_addresses(text: &str) -> bool {
    let is_later = |word: &&str| word.starts_with(MAC) || word.starts_with(PLACEMENT);
    let length: usize = text.split(' ').take_while(|word| !is_later(word)).map(|word| word.len() + 1).sum();
    length + MAX_ADDRESS_LENGTH > MAX_LENGTH
}

fn placement_word(placement: &Placement) -> String {
    let Placement { tenant, network, group } = placement;
    let group = group.as_ref().map_or_else(String::new, |group| format!("/{group}"));
    format!("{PLACEMENT}{tenant}/{network}{group}")
}

fn placement_in(words: &[&str]) -> Option<Placement> {
    let mut placements = words.iter().filter_map(|word| word.strip_prefix(PLACEMENT));
    let (word, None) = (placements.next()?, placements.next()) else { return None };
    let parts: Vec<&str> = word.split('/').collect();
    match parts.as_slice() {
        [tenant, network] => Placement::parse(Some(tenant), Some(network), None).ok(),
        [tenant, network, group] => Placement::parse(Some(tenant), Some(network), Some(group)).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
