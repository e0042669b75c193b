//! Observes Podwire's objects of the host, without locks.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;
use netlink::{Link, RouteFilter, RtSocket};
use types::{Mac, ROUTE_PROTOCOL};

use crate::alias::Alias;
use crate::{Error, sysctl};

/// The host side only. Pods are inspected one by one.
#[derive(Debug, Default)]
pub(super) struct ObservedHost {
    pub(super) links: HashMap<String, Link>,
    /// Indexes of host ends without NOARP that ignore ARP because of sysctls.
    pub(super) without_arp: HashSet<u32>,
    /// Destination and link of routes with Podwire's protocol.
    pub(super) routes: HashSet<(IpNet, u32)>,
    /// Permanent neighbours.
    pub(super) neighbours: HashSet<(IpAddr, u32, Mac)>,
}

impl ObservedHost {
    pub(super) fn of(host: &mut RtSocket) -> Result<Self, Error> {
        let links: HashMap<_, _> = host.links()?.into_iter().map(|link| (link.name.clone(), link)).collect();
        // Few or none: only links of earlier versions lack NOARP.
        let earlier = links.values().filter(|link| link.arp && Alias::of(link).is_some());
        let without_arp =
            earlier.filter(|link| sysctl::ignores_arp(&link.name)).map(|link| link.index).collect();
        let managed = RouteFilter { protocol: Some(ROUTE_PROTOCOL), ..RouteFilter::default() };
        let routes =
            host.routes(managed)?.into_iter().filter_map(|r| Some((r.dst.trunc(), r.link?))).collect();
        let permanent = host.neighbours(None)?.into_iter().filter(|n| n.permanent);
        let neighbours = permanent.filter_map(|n| Some((n.addr, n.link, n.mac?))).collect();
        Ok(Self { links, without_arp, routes, neighbours })
    }

    /// The host end with the alias of this record.
    pub(super) fn link_of(&self, network: &str, stem: &str) -> Option<&Link> {
        self.links.values().find(|link| {
            link.kind.as_deref() == Some("veth")
                && Alias::of(link).is_some_and(|alias| alias.is_of_record(network, stem))
        })
    }
}
