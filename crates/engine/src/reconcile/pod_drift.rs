//! Drift of an attachment inside its pod: addresses, routes and neighbours that Podwire added.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use netlink::{Mode, NetNs, Op, Route, RouteFilter, RtSocket};
use types::{AttachMode, TABLE_MAIN};

use super::RepairKind;
use super::pod::is_expired;
use crate::state::Attachment;
use crate::{Error, veth};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PodDrift {
    LinkDown,
    NoAddress(IpNet),
    NoRoute(IpNet),
    NoNeighbour(IpAddr),
}

impl PodDrift {
    pub(super) fn kind(&self) -> RepairKind {
        match self {
            Self::LinkDown => RepairKind::Link,
            Self::NoAddress(_) => RepairKind::Address,
            Self::NoRoute(_) => RepairKind::Route,
            Self::NoNeighbour(_) => RepairKind::Neighbour,
        }
    }
}

impl fmt::Display for PodDrift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LinkDown => f.write_str("the pod's link was down"),
            Self::NoAddress(address) => write!(f, "address {address} was missing in the pod"),
            Self::NoRoute(route) => write!(f, "route {route} was missing in the pod"),
            Self::NoNeighbour(ip) => write!(f, "the gateway's neighbour entry {ip} was missing in the pod"),
        }
    }
}

/// Opens a socket inside the pod if the namespace is the recorded one. A record that was recovered from the link has no
/// namespace.
pub(super) fn open(attachment: &Attachment) -> Result<Option<RtSocket>, Error> {
    if attachment.netns_cookie.is_none() {
        return Ok(None);
    }
    // If the namespace does not exist or is another one, the host link decides: it is removed with its namespace.
    let Ok(netns) = NetNs::open(Path::new(&attachment.netns)) else { return Ok(None) };
    let pod = RtSocket::open_in(&netns)?;
    Ok((attachment.netns_cookie == Some(pod.netns_cookie()?)).then_some(pod))
}

pub(super) fn faults(attachment: &Attachment) -> Result<Vec<PodDrift>, Error> {
    let Some(mut pod) = open(attachment)? else { return Ok(Vec::new()) };
    let Some(link) = pod.link(&attachment.key.ifname)? else { return Ok(Vec::new()) };
    if is_expired(attachment, &link) {
        return Ok(Vec::new());
    }
    let mut faults = Vec::new();
    if !link.up {
        faults.push(PodDrift::LinkDown);
    }
    let addresses = pod.addresses(Some(link.index))?;
    let has_address = |address: IpNet| addresses.iter().any(|a| a.addr == address);
    faults.extend(
        attachment
            .addresses
            .iter()
            .filter(|a| !has_address(a.address))
            .map(|a| PodDrift::NoAddress(a.address)),
    );
    // A route over another interface of the pod counts too: that interface was first.
    let routes = pod.routes(RouteFilter::default())?;
    let exists = |expected: &Route| routes.iter().any(|route| is_same(route, expected));
    faults.extend(
        veth::pod_end_routes(attachment, link.index).filter(|r| !exists(r)).map(|r| PodDrift::NoRoute(r.dst)),
    );
    if attachment.mode == AttachMode::Routed {
        let neighbours = pod.neighbours(Some(link.index))?;
        for gateway in attachment.addresses.iter().filter_map(|a| a.gateway) {
            let is_gateway = |n: &netlink::Neighbour| {
                n.addr == gateway && n.mac == Some(attachment.host_mac) && n.permanent
            };
            if !neighbours.iter().any(is_gateway) {
                faults.push(PodDrift::NoNeighbour(gateway));
            }
        }
    }
    Ok(faults)
}

/// Two routes with the same destination and table exclude each other. The pod's first interface has the route.
fn is_same(a: &Route, b: &Route) -> bool {
    let key = |route: &Route| (route.dst.trunc(), route.table.unwrap_or(TABLE_MAIN));
    key(a) == key(b)
}

/// Adds the routes of this attachment that `removed`, a removed interface of the same pod, had instead. Other routes are not
/// changed.
pub(crate) fn repair_routes(attachment: &Attachment, removed: &Attachment) -> Result<(), Error> {
    let Some(mut pod) = open(attachment)? else { return Ok(()) };
    let Some(link) = pod.link(&attachment.key.ifname)?.filter(|link| link.up) else { return Ok(()) };
    let existing = pod.routes(RouteFilter::default())?;
    let lost: Vec<Route> = veth::pod_end_routes(removed, link.index).collect();
    let has = |routes: &[Route], expected: &Route| routes.iter().any(|route| is_same(route, expected));
    let missing =
        veth::pod_end_routes(attachment, link.index).filter(|r| has(&lost, r) && !has(&existing, r));
    add_missing(
        &mut pod,
        &missing.map(|route| Op::AddRoute { route, mode: Mode::Exclusive }).collect::<Vec<_>>(),
    )
}

/// Adds all objects of the pod end again. Existing objects are not changed. `pod` is a socket in the pod's namespace.
pub(super) fn repair(attachment: &Attachment, pod: &mut RtSocket) -> Result<(), Error> {
    let Some(link) = pod.link(&attachment.key.ifname)? else { return Ok(()) };
    if is_expired(attachment, &link) {
        return Ok(());
    }
    add_missing(pod, &veth::pod_end_ops(attachment, link.index))
}

fn add_missing(pod: &mut RtSocket, ops: &[Op<'static>]) -> Result<(), Error> {
    for answer in pod.run_all(ops)? {
        match answer {
            Err(e) if e.is_exists() => {}
            other => other?,
        }
    }
    Ok(())
}
