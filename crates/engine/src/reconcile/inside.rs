//! One attachment seen from inside its pod: the addresses, routes and neighbours that we gave it.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use netlink::{Mode, NetNs, Op, Route, RouteFilter, RtSocket};
use types::{AttachMode, TABLE_MAIN};

use super::RepairKind;
use super::pod::is_expired;
use crate::state::Attachment;
use crate::{Error, wire};

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
            Self::NoAddress(address) => write!(f, "address {address} was gone in the pod"),
            Self::NoRoute(route) => write!(f, "route {route} was gone in the pod"),
            Self::NoNeighbour(ip) => write!(f, "the gateway's neighbour entry {ip} was gone in the pod"),
        }
    }
}

/// A socket inside the pod, if the namespace is the one that was recorded. A record that was made anew from the link does
/// not know it.
pub(super) fn open(attachment: &Attachment) -> Result<Option<RtSocket>, Error> {
    if attachment.netns_cookie.is_none() {
        return Ok(None);
    }
    // Gone, or another one: what to do then is decided by the link, which goes with its namespace.
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
    let has = |wanted: IpNet| addresses.iter().any(|a| a.addr == wanted);
    faults.extend(
        attachment.addresses.iter().filter(|a| !has(a.address)).map(|a| PodDrift::NoAddress(a.address)),
    );
    // Also through another interface of the pod: then that one was first, and keeps it.
    let routes = pod.routes(RouteFilter::default())?;
    let leads = |wanted: &Route| routes.iter().any(|route| is_same(route, wanted));
    faults.extend(
        wire::routes_inside(attachment, link.index).filter(|r| !leads(r)).map(|r| PodDrift::NoRoute(r.dst)),
    );
    if attachment.mode == AttachMode::Routed {
        let neighbours = pod.neighbours(Some(link.index))?;
        for gateway in attachment.addresses.iter().filter_map(|a| a.gateway) {
            let known = |n: &netlink::Neighbour| {
                n.addr == gateway && n.mac == Some(attachment.host_mac) && n.permanent
            };
            if !neighbours.iter().any(known) {
                faults.push(PodDrift::NoNeighbour(gateway));
            }
        }
    }
    Ok(faults)
}

/// Routes of one destination in one table exclude each other: the pod's first interface has it.
fn is_same(a: &Route, b: &Route) -> bool {
    let place = |route: &Route| (route.dst.trunc(), route.table.unwrap_or(TABLE_MAIN));
    place(a) == place(b)
}

/// Adds the routes of this attachment that `gone`, a removed interface of the same pod, had instead. All others are left as
/// they are.
pub(crate) fn mend_routes(attachment: &Attachment, gone: &Attachment) -> Result<(), Error> {
    let Some(mut pod) = open(attachment)? else { return Ok(()) };
    let Some(link) = pod.link(&attachment.key.ifname)?.filter(|link| link.up) else { return Ok(()) };
    let present = pod.routes(RouteFilter::default())?;
    let taken: Vec<Route> = wire::routes_inside(gone, link.index).collect();
    let has = |routes: &[Route], wanted: &Route| routes.iter().any(|route| is_same(route, wanted));
    let lost = wire::routes_inside(attachment, link.index).filter(|r| has(&taken, r) && !has(&present, r));
    add_missing(
        &mut pod,
        &lost.map(|route| Op::AddRoute { route, mode: Mode::Exclusive }).collect::<Vec<_>>(),
    )
}

/// Everything that belongs inside once more; what is there is left alone.
pub(super) fn mend(attachment: &Attachment) -> Result<(), Error> {
    let Some(mut pod) = open(attachment)? else { return Ok(()) };
    let Some(link) = pod.link(&attachment.key.ifname)? else { return Ok(()) };
    if is_expired(attachment, &link) {
        return Ok(());
    }
    add_missing(&mut pod, &wire::inside_ops(attachment, link.index))
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
