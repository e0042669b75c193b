//! What is wrong with an attachment, seen from the host. Pure.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use types::AttachMode;

use super::RepairKind;
use super::observe::ObservedHost;
use crate::alias::Alias;
use crate::state::Attachment;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HostDrift {
    LinkGone,
    LinkDown,
    /// It answers and learns by ARP, as those of earlier versions do.
    Arp,
    NoAlias,
    NotAPort,
    Hairpin,
    NoRoute(IpAddr),
    NoNeighbour(IpAddr),
}

impl HostDrift {
    pub(super) fn kind(&self) -> RepairKind {
        match self {
            Self::LinkGone | Self::LinkDown | Self::Arp | Self::NoAlias | Self::NotAPort | Self::Hairpin => {
                RepairKind::Link
            }
            Self::NoRoute(_) => RepairKind::Route,
            Self::NoNeighbour(_) => RepairKind::Neighbour,
        }
    }
}

impl fmt::Display for HostDrift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LinkGone => f.write_str("its link was gone"),
            Self::LinkDown => f.write_str("its host end was down"),
            Self::Arp => f.write_str("its host end answered ARP"),
            Self::NoAlias => f.write_str("the alias of its host end was not as recorded"),
            Self::NotAPort => f.write_str("its host end was no port of the bridge"),
            Self::Hairpin => f.write_str("its port's hairpin mode was another"),
            Self::NoRoute(ip) => write!(f, "the host route to {ip} was gone"),
            Self::NoNeighbour(ip) => write!(f, "the neighbour {ip} was gone"),
        }
    }
}

/// A record that was made anew from the link of a network that is not configured here does not tell its bridge.
pub(super) fn knows_bridge(attachment: &Attachment) -> bool {
    attachment.bridge != attachment.host_link
}

/// Whether an alias has the key, the kind of addressing, and the placement if that fits: a record that is lost is recovered from it. An alias that
/// has more is as good.
fn is_recorded(alias: &Alias<'_>, attachment: &Attachment) -> bool {
    let recorded = attachment.alias();
    Alias::parse(&recorded).is_some_and(|recorded| {
        alias.is_of(&attachment.key)
            && (recorded.placement.is_none() || alias.placement == recorded.placement)
            && alias.addressing == recorded.addressing
    })
}

pub(super) fn faults(attachment: &Attachment, seen: &ObservedHost) -> Vec<HostDrift> {
    let Some(link) = seen.links.get(attachment.host_link.as_str()) else { return vec![HostDrift::LinkGone] };
    let mut faults = Vec::new();
    if !link.up {
        faults.push(HostDrift::LinkDown);
    }
    if link.arp && !seen.without_arp.contains(&link.index) {
        faults.push(HostDrift::Arp);
    }
    if !Alias::of(link).is_some_and(|alias| is_recorded(&alias, attachment)) {
        faults.push(HostDrift::NoAlias);
    }
    match attachment.mode {
        AttachMode::Bridge if !knows_bridge(attachment) => {}
        AttachMode::Bridge => {
            let bridge = seen.links.get(attachment.bridge.as_str()).map(|bridge| bridge.index);
            if bridge.is_none() || link.master != bridge {
                faults.push(HostDrift::NotAPort);
            } else if link.hairpin.is_some_and(|hairpin| hairpin != attachment.wiring.hairpin) {
                faults.push(HostDrift::Hairpin);
            }
        }
        AttachMode::Routed => {
            for ip in attachment.ips() {
                if !seen.routes.contains(&(IpNet::from(ip), link.index)) {
                    faults.push(HostDrift::NoRoute(ip));
                }
                if !seen.neighbours.contains(&(ip, link.index, attachment.pod_mac)) {
                    faults.push(HostDrift::NoNeighbour(ip));
                }
            }
        }
    }
    faults
}
