//! Checks the kernel objects of an attachment, without changes. Objects that cannot be checked are reported as unknown.

use std::path::Path;

use api::{KernelCheck, KernelState};
use engine::alias;
use engine::state::Attachment;
use ipnet::IpNet;
use netlink::{Link, NetNs, RouteFilter, RtSocket};
use types::AttachMode;

use crate::print;

pub(super) fn word(state: KernelState) -> String {
    match state {
        KernelState::Ok => print::good("ok"),
        KernelState::Missing => print::bad("MISSING"),
        KernelState::Unknown => print::degraded("unknown"),
    }
}

fn check(is_present: bool, object: impl Into<String>) -> KernelCheck {
    let state = if is_present { KernelState::Ok } else { KernelState::Missing };
    KernelCheck { object: object.into(), state }
}

fn unknown(object: &str, error: &dyn std::error::Error) -> KernelCheck {
    KernelCheck { object: format!("{object}: {error}"), state: KernelState::Unknown }
}

pub(super) fn inspect(attachment: &Attachment) -> Vec<KernelCheck> {
    let mut checks =
        node_checks(attachment).unwrap_or_else(|error| vec![unknown("objects of the node", &error)]);
    checks.extend(pod_checks(attachment).unwrap_or_else(|error| vec![unknown("objects of the pod", &error)]));
    checks
}

fn node_checks(attachment: &Attachment) -> Result<Vec<KernelCheck>, netlink::Error> {
    let mut host = RtSocket::open()?;
    let mut links = host.links_by_name(&[&attachment.bridge, &attachment.host_link])?;
    let (end, bridge) = (links.pop().flatten(), links.pop().flatten());
    let mut checks = vec![link_is_up("bridge", attachment.bridge.as_str(), bridge.as_ref())];
    if let Some(bridge) = &bridge {
        let addresses = host.addresses(Some(bridge.index))?;
        for gateway in attachment.addresses.iter().filter_map(|a| a.gateway) {
            let is_present = addresses.iter().any(|a| a.addr.addr() == gateway);
            checks.push(check(is_present, format!("gateway {gateway} on {}", bridge.name)));
        }
    }
    checks.push(link_is_up("node link", attachment.host_link.as_str(), end.as_ref()));
    let Some(end) = end else { return Ok(checks) };
    checks.push(check(alias::is_of(&end, &attachment.key), format!("Podwire alias on {}", end.name)));
    match attachment.mode {
        AttachMode::Bridge => {
            let is_port = end.master.is_some() && end.master == bridge.map(|bridge| bridge.index);
            checks.push(check(is_port, format!("{} is a port of {}", end.name, attachment.bridge)));
        }
        AttachMode::Routed => checks.extend(host_routes(&mut host, attachment, &end)?),
    }
    Ok(checks)
}

fn host_routes(
    host: &mut RtSocket,
    attachment: &Attachment,
    end: &Link,
) -> Result<Vec<KernelCheck>, netlink::Error> {
    let routes = host.routes(RouteFilter { link: Some(end.index), ..RouteFilter::default() })?;
    let neighbours = host.neighbours(Some(end.index))?;
    let checks = attachment.ips().flat_map(|ip| {
        let route = routes.iter().any(|route| route.dst == IpNet::from(ip));
        let neighbour =
            neighbours.iter().any(|n| n.addr == ip && n.mac == Some(attachment.pod_mac) && n.permanent);
        [
            check(route, format!("route to {ip} via {}", end.name)),
            check(neighbour, format!("neighbour {ip} on {}", end.name)),
        ]
    });
    Ok(checks.collect())
}

fn pod_checks(attachment: &Attachment) -> Result<Vec<KernelCheck>, netlink::Error> {
    let object = format!("namespace {}", attachment.netns);
    let netns = match NetNs::open(Path::new(&attachment.netns)) {
        Ok(netns) => netns,
        Err(error) if error.is_gone() => return Ok(vec![check(false, object)]),
        Err(error) => return Ok(vec![unknown(&object, &error)]),
    };
    let mut pod = RtSocket::open_in(&netns)?;
    let cookie = pod.netns_cookie()?;
    if attachment.netns_cookie.is_some_and(|recorded| recorded != cookie) {
        return Ok(vec![check(false, format!("{object}: replaced by another namespace"))]);
    }
    let mut checks = vec![check(true, object)];
    let ifname = &attachment.key.ifname;
    let link = pod.link(ifname)?;
    checks.push(link_is_up("interface", ifname.as_str(), link.as_ref()));
    let Some(link) = link else { return Ok(checks) };
    checks
        .push(check(link.mac == Some(attachment.pod_mac), format!("MAC {} on {ifname}", attachment.pod_mac)));
    let addresses = pod.addresses(Some(link.index))?;
    for wanted in &attachment.addresses {
        let is_present = addresses.iter().any(|a| a.addr == wanted.address);
        checks.push(check(is_present, format!("address {} on {ifname}", wanted.address)));
    }
    let routes = pod.routes(RouteFilter::default())?;
    for wanted in &attachment.wiring.routes {
        let is_present = routes.iter().any(|route| route.dst.trunc() == wanted.dst.trunc());
        checks.push(check(is_present, format!("route to {} in the pod", wanted.dst)));
    }
    Ok(checks)
}

fn link_is_up(kind: &str, name: &str, link: Option<&Link>) -> KernelCheck {
    match link {
        None => check(false, format!("{kind} {name}")),
        Some(link) if !link.up => check(false, format!("{kind} {name} is down")),
        Some(link) => check(true, format!("{kind} {name} is up, MTU {}", link.mtu)),
    }
}
