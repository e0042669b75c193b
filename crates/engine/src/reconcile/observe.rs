//! What the kernel has of ours, in one picture.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;
use netlink::{Link, RouteFilter, RtSocket};
use types::{Mac, ROUTE_PROTOCOL};

use crate::alias::Alias;
use crate::{Error, sysctl};

/// Host side only: pods are looked into one by one.
#[derive(Debug, Default)]
pub(super) struct ObservedHost {
    pub(super) links: HashMap<String, Link>,
    /// Indices of our host ends that ignore ARP although they have not NOARP.
    pub(super) without_arp: HashSet<u32>,
    /// Destination and link of the routes that are marked as ours.
    pub(super) routes: HashSet<(IpNet, u32)>,
    /// Permanent neighbours.
    pub(super) neighbours: HashSet<(IpAddr, u32, Mac)>,
}

impl ObservedHost {
    pub(super) fn of(host: &mut RtSocket) -> Result<Self, Error> {
        let links: HashMap<_, _> = host.links()?.into_iter().map(|link| (link.name.clone(), link)).collect();
        // Few or none: only those of earlier versions have not NOARP.
        let earlier = links.values().filter(|link| link.arp && Alias::of(link).is_some());
        let without_arp =
            earlier.filter(|link| sysctl::ignores_arp(&link.name)).map(|link| link.index).collect();
        let ours = RouteFilter { protocol: Some(ROUTE_PROTOCOL), ..RouteFilter::default() };
        let routes = host.routes(ours)?.into_iter().filter_map(|r| Some((r.dst.trunc(), r.link?))).collect();
        let permanent = host.neighbours(None)?.into_iter().filter(|n| n.permanent);
        let neighbours = permanent.filter_map(|n| Some((n.addr, n.link, n.mac?))).collect();
        Ok(Self { links, without_arp, routes, neighbours })
    }

    /// The host end whose alias names this record.
    pub(super) fn link_of(&self, network: &str, stem: &str) -> Option<&Link> {
        self.links.values().find(|link| {
            link.kind.as_deref() == Some("veth")
                && Alias::of(link).is_some_and(|alias| alias.is_of_record(network, stem))
        })
    }
}
