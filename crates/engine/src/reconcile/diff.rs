//! Drift of an attachment on the host side. Pure.

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
    LinkMissing,
    LinkDown,
    /// The host end answers and learns from ARP. Earlier versions created it so.
    Arp,
    NoAlias,
    NotAPort,
    Hairpin,
    /// The group of the host end differs from that of the pod's policies.
    Group,
    NoRoute(IpAddr),
    NoNeighbour(IpAddr),
}

impl HostDrift {
    pub(super) fn kind(&self) -> RepairKind {
        match self {
            Self::LinkMissing
            | Self::LinkDown
            | Self::Arp
            | Self::NoAlias
            | Self::NotAPort
            | Self::Hairpin
            | Self::Group => RepairKind::Link,
            Self::NoRoute(_) => RepairKind::Route,
            Self::NoNeighbour(_) => RepairKind::Neighbour,
        }
    }
}

impl fmt::Display for HostDrift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LinkMissing => f.write_str("its link was missing"),
            Self::LinkDown => f.write_str("its host end was down"),
            Self::Arp => f.write_str("its host end answered ARP"),
            Self::NoAlias => f.write_str("the alias of its host end differed from the record"),
            Self::NotAPort => f.write_str("its host end was not a port of the bridge"),
            Self::Hairpin => f.write_str("the hairpin mode of its port differed"),
            Self::Group => f.write_str("the group of its host end did not match its policies"),
            Self::NoRoute(ip) => write!(f, "the host route to {ip} was missing"),
            Self::NoNeighbour(ip) => write!(f, "the neighbour {ip} was missing"),
        }
    }
}

/// A record that was recovered from a link without its config contains the link's name instead of the bridge's.
pub(super) fn has_bridge_name(attachment: &Attachment) -> bool {
    attachment.bridge != attachment.host_link
}

/// Whether an alias has the key, the addressing, and the placement if that fits. A lost record is recovered from these. An alias
/// with more words is accepted.
fn is_recorded(alias: &Alias<'_>, attachment: &Attachment) -> bool {
    let recorded = attachment.alias();
    Alias::parse(&recorded).is_some_and(|recorded| {
        alias.is_of(&attachment.key)
            && (recorded.placement.is_none() || alias.placement == recorded.placement)
            && alias.addressing == recorded.addressing
    })
}

pub(super) fn faults(attachment: &Attachment, observed: &ObservedHost) -> Vec<HostDrift> {
    let Some(link) = observed.links.get(attachment.host_link.as_str()) else {
        return vec![HostDrift::LinkMissing];
    };
    let mut faults = Vec::new();
    if !link.up {
        faults.push(HostDrift::LinkDown);
    }
    if link.arp && !observed.without_arp.contains(&link.index) {
        faults.push(HostDrift::Arp);
    }
    if !Alias::of(link).is_some_and(|alias| is_recorded(&alias, attachment)) {
        faults.push(HostDrift::NoAlias);
    }
    match attachment.mode {
        AttachMode::Bridge if !has_bridge_name(attachment) => {}
        AttachMode::Bridge => {
            let bridge = observed.links.get(attachment.bridge.as_str()).map(|bridge| bridge.index);
            if bridge.is_none() || link.master != bridge {
                faults.push(HostDrift::NotAPort);
            } else if link.hairpin.is_some_and(|hairpin| hairpin != attachment.wiring.hairpin) {
                faults.push(HostDrift::Hairpin);
            }
        }
        AttachMode::Routed => {
            for ip in attachment.ips() {
                if !observed.routes.contains(&(IpNet::from(ip), link.index)) {
                    faults.push(HostDrift::NoRoute(ip));
                }
                if !observed.neighbours.contains(&(ip, link.index, attachment.pod_mac)) {
                    faults.push(HostDrift::NoNeighbour(ip));
                }
            }
        }
    }
    faults
}
