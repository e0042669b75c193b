//! What the kernel has of an attachment right now. It only looks; whatever cannot be looked at is told as unknown.

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

fn is(there: bool, object: impl Into<String>) -> KernelCheck {
    let state = if there { KernelState::Ok } else { KernelState::Missing };
    KernelCheck { object: object.into(), state }
}

fn unknown(object: &str, error: &dyn std::error::Error) -> KernelCheck {
    KernelCheck { object: format!("{object}: {error}"), state: KernelState::Unknown }
}

pub(super) fn look(attachment: &Attachment) -> Vec<KernelCheck> {
    let mut findings = on_node(attachment).unwrap_or_else(|error| vec![unknown("the node's side", &error)]);
    findings.extend(inside(attachment).unwrap_or_else(|error| vec![unknown("the pod's side", &error)]));
    findings
}

fn on_node(attachment: &Attachment) -> Result<Vec<KernelCheck>, netlink::Error> {
    let mut host = RtSocket::open()?;
    let mut found = host.links_by_name(&[&attachment.bridge, &attachment.host_link])?;
    let (end, bridge) = (found.pop().flatten(), found.pop().flatten());
    let mut findings = vec![link_is_up("bridge", attachment.bridge.as_str(), bridge.as_ref())];
    if let Some(bridge) = &bridge {
        let carried = host.addresses(Some(bridge.index))?;
        for gateway in attachment.addresses.iter().filter_map(|a| a.gateway) {
            let there = carried.iter().any(|a| a.addr.addr() == gateway);
            findings.push(is(there, format!("gateway {gateway} on {}", bridge.name)));
        }
    }
    findings.push(link_is_up("node link", attachment.host_link.as_str(), end.as_ref()));
    let Some(end) = end else { return Ok(findings) };
    findings.push(is(alias::is_of(&end, &attachment.key), format!("our mark on {}", end.name)));
    match attachment.mode {
        AttachMode::Bridge => {
            let is_port = end.master.is_some() && end.master == bridge.map(|bridge| bridge.index);
            findings.push(is(is_port, format!("{} is a port of {}", end.name, attachment.bridge)));
        }
        AttachMode::Routed => findings.extend(host_routes(&mut host, attachment, &end)?),
    }
    Ok(findings)
}

fn host_routes(
    host: &mut RtSocket,
    attachment: &Attachment,
    end: &Link,
) -> Result<Vec<KernelCheck>, netlink::Error> {
    let routes = host.routes(RouteFilter { link: Some(end.index), ..RouteFilter::default() })?;
    let neighbours = host.neighbours(Some(end.index))?;
    let findings = attachment.ips().flat_map(|ip| {
        let route = routes.iter().any(|route| route.dst == IpNet::from(ip));
        let neighbour =
            neighbours.iter().any(|n| n.addr == ip && n.mac == Some(attachment.pod_mac) && n.permanent);
        [
            is(route, format!("route to {ip} through {}", end.name)),
            is(neighbour, format!("neighbour {ip} on {}", end.name)),
        ]
    });
    Ok(findings.collect())
}

fn inside(attachment: &Attachment) -> Result<Vec<KernelCheck>, netlink::Error> {
    let place = format!("namespace {}", attachment.netns);
    let netns = match NetNs::open(Path::new(&attachment.netns)) {
        Ok(netns) => netns,
        Err(error) if error.is_gone() => return Ok(vec![is(false, place)]),
        Err(error) => return Ok(vec![unknown(&place, &error)]),
    };
    let mut pod = RtSocket::open_in(&netns)?;
    let cookie = pod.netns_cookie()?;
    if attachment.netns_cookie.is_some_and(|recorded| recorded != cookie) {
        return Ok(vec![is(false, format!("{place}: another one is there now"))]);
    }
    let mut findings = vec![is(true, place)];
    let ifname = &attachment.key.ifname;
    let link = pod.link(ifname)?;
    findings.push(link_is_up("interface", ifname.as_str(), link.as_ref()));
    let Some(link) = link else { return Ok(findings) };
    findings
        .push(is(link.mac == Some(attachment.pod_mac), format!("MAC {} on {ifname}", attachment.pod_mac)));
    let addresses = pod.addresses(Some(link.index))?;
    for wanted in &attachment.addresses {
        let there = addresses.iter().any(|a| a.addr == wanted.address);
        findings.push(is(there, format!("address {} on {ifname}", wanted.address)));
    }
    let routes = pod.routes(RouteFilter::default())?;
    for wanted in &attachment.wiring.routes {
        let there = routes.iter().any(|route| route.dst.trunc() == wanted.dst.trunc());
        findings.push(is(there, format!("route to {} in the pod", wanted.dst)));
    }
    Ok(findings)
}

fn link_is_up(what: &str, name: &str, link: Option<&Link>) -> KernelCheck {
    match link {
        None => is(false, format!("{what} {name}")),
        Some(link) if !link.up => is(false, format!("{what} {name} is down")),
        Some(link) => is(true, format!("{what} {name} is up, MTU {}", link.mtu)),
    }
}
