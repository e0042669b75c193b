//! CHECK compares the record and the previous result with the kernel. It lists everything that is missing and changes
//! nothing.

use std::net::IpAddr;
use std::path::Path;

use cni::{AttachmentRequest, CniResult};
use ipnet::IpNet;
use netconf::{LocalPaths, NetConf};
use netlink::{Link, NetNs, RouteFilter, RtSocket};
use types::AttachMode;

use crate::attach::netns_path;
use crate::delegate::Delegate;
use crate::state::{Attachment, HeldAttachment, NodeState, RecordPhase};
use crate::veth::gateway_for;
use crate::{Caller, Error, alias, dscp, firewall, policy, shaping};

pub(crate) fn check(
    call: &AttachmentRequest,
    conf: &NetConf,
    paths: &LocalPaths,
    caller: &Caller<'_>,
) -> Result<(), Error> {
    if let Some(plugin) = netconf::external_ipam(&call.config) {
        Delegate::find(plugin, &call.config, caller.delegates)?.check()?;
    }
    let key = call.key();
    let unknown = || Error::Check { missing: format!("no record of attachment {key}: add it (ADD)") };
    let state = NodeState::open_existing(&paths.run_dir)?.ok_or_else(unknown)?;
    let network = state.existing_network(&key.network).ok_or_else(unknown)?;
    let held = network.find(&key)?.ok_or_else(unknown)?;
    let Some(attachment) = held.attachment().filter(|_| held.phase() == RecordPhase::Ready) else {
        return Err(Error::Check {
            missing: format!("attachment {key} is incomplete: delete it and add it again (DEL, ADD)"),
        });
    };
    let mut missing = Vec::new();
    let previous = call.config.prev_result.as_ref();
    missing.extend(previous.into_iter().flat_map(|result| missing_in_previous(attachment, result)));
    for address in attachment.ips().filter(|_| !attachment.delegated) {
        if !network.is_claimed_by(address, &held)? {
            missing.push(format!("the reservation of {address}"));
        }
    }
    missing.extend(missing_in_pod(call, attachment, previous)?);
    missing.extend(missing_on_host(&held, attachment, conf, caller)?);
    missing.extend(firewall::missing(attachment)?);
    missing.extend(dscp::missing(
        attachment,
        policy::profile(caller.policies, attachment.placement.as_ref()).as_ref(),
    )?);
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Error::Check { missing: format!("missing: {}", missing.join(", ")) })
    }
}

/// Addresses of the pod that are not in the previous result. Later plugins may add to the result, not remove from it.
fn missing_in_previous(attachment: &Attachment, previous: &CniResult) -> Vec<String> {
    let is_listed = |ip: &IpAddr| previous.ips.iter().any(|listed| listed.address.addr() == *ip);
    let missing = attachment.ips().filter(|ip| !is_listed(ip));
    missing.map(|ip| format!("{ip} in prevResult")).collect()
}

fn missing_in_pod(
    call: &AttachmentRequest,
    attachment: &Attachment,
    previous: Option<&CniResult>,
) -> Result<Vec<String>, Error> {
    let netns = NetNs::open(Path::new(netns_path(call)))?;
    let mut pod = RtSocket::open_in(&netns)?;
    let cookie = pod.netns_cookie()?;
    if attachment.netns_cookie.is_some_and(|recorded| recorded != cookie) {
        return Ok(vec![format!("the namespace (another one is at {})", netns_path(call))]);
    }
    let ifname = &attachment.key.ifname;
    let Some(link) = pod.link(ifname)? else { return Ok(vec![format!("interface {ifname}")]) };
    let mut missing = Vec::new();
    if !link.up {
        missing.push(format!("interface {ifname} is down"));
    }
    missing.extend(wrong_mac(&link, attachment, previous));
    let addresses = pod.addresses(Some(link.index))?;
    for expected in &attachment.addresses {
        if !addresses.iter().any(|a| a.addr == expected.address) {
            missing.push(format!("address {} on {ifname}", expected.address));
        }
    }
    missing.extend(missing_routes(&mut pod, attachment, previous)?);
    if attachment.mode == AttachMode::Routed {
        missing.extend(missing_gateway_neighbours(&mut pod, attachment, link.index)?);
    }
    Ok(missing)
}

/// In mode `routed` the pod has a permanent neighbour for the gateway, so its MAC cannot be spoofed.
fn missing_gateway_neighbours(
    pod: &mut RtSocket,
    attachment: &Attachment,
    link: u32,
) -> Result<Vec<String>, Error> {
    let neighbours = pod.neighbours(Some(link))?;
    let is_set = |gateway: &IpAddr| {
        neighbours.iter().any(|n| n.addr == *gateway && n.mac == Some(attachment.host_mac) && n.permanent)
    };
    let gateways = attachment.addresses.iter().filter_map(|a| a.gateway).filter(|gw| !is_set(gw));
    Ok(gateways.map(|gw| format!("neighbour {gw} on {}", attachment.key.ifname)).collect())
}

/// A later plugin (`tuning`) may have changed the MAC. Then the previous result contains the new one.
fn wrong_mac(link: &Link, attachment: &Attachment, previous: Option<&CniResult>) -> Option<String> {
    let ifname = attachment.key.ifname.as_str();
    let reported = previous.and_then(|result| {
        let is_pod_end =
            |i: &&cni::Interface| i.name == ifname && i.sandbox.as_deref().is_some_and(|s| !s.is_empty());
        result.interfaces.iter().find(is_pod_end)?.mac.clone()
    });
    let expected = reported.unwrap_or_else(|| attachment.pod_mac.to_string());
    let actual = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
    (!actual.eq_ignore_ascii_case(&expected)).then(|| format!("mac {expected} on {ifname} (it has {actual})"))
}

/// The routes of the previous result. A route without a gateway was added through the network's gateway.
fn missing_routes(
    pod: &mut RtSocket,
    attachment: &Attachment,
    previous: Option<&CniResult>,
) -> Result<Vec<String>, Error> {
    let expected = previous.map(|result| result.routes.as_slice()).unwrap_or_default();
    if expected.is_empty() {
        return Ok(Vec::new());
    }
    let routes = pod.routes(RouteFilter::default())?;
    let is_set = |route: &&cni::PodRoute| {
        let gateway = route.gw.or_else(|| gateway_for(attachment, route.dst.addr()));
        // Results before version 1.1.0 contain neither table nor priority.
        let matches = |reported: Option<u32>, actual: Option<u32>| {
            reported.is_none_or(|value| value == 0 || actual == Some(value))
        };
        routes.iter().any(|r| {
            r.dst.trunc() == route.dst.trunc()
                && (r.gateway.is_none() || r.gateway == gateway)
                && matches(route.table, r.table)
                && matches(route.priority, r.priority)
        })
    };
    Ok(expected.iter().filter(|r| !is_set(r)).map(|r| format!("route {} in the pod", r.dst)).collect())
}

fn missing_on_host(
    held: &HeldAttachment,
    attachment: &Attachment,
    conf: &NetConf,
    caller: &Caller<'_>,
) -> Result<Vec<String>, Error> {
    let mut host = RtSocket::open()?;
    let mut missing = Vec::new();
    let mut links = host.links_by_name(&[&attachment.bridge, &attachment.host_link])?;
    let (host_end, bridge) = (links.pop().flatten(), links.pop().flatten());
    match &bridge {
        Some(bridge) if bridge.up => missing.extend(missing_gateways(&mut host, bridge, attachment, conf)?),
        Some(_) => missing.push(format!("bridge {} is down", attachment.bridge)),
        None => missing.push(format!("bridge {}", attachment.bridge)),
    }
    let Some(host_end) = host_end else {
        missing.push(format!("host end {} of {}", attachment.host_link, held.stem()));
        return Ok(missing);
    };
    if !alias::is_of(&host_end, &attachment.key) {
        missing.push(format!("Podwire's alias on {}", attachment.host_link));
    }
    if !host_end.up {
        missing.push(format!("host end {} is down", attachment.host_link));
    }
    match attachment.mode {
        AttachMode::Bridge => missing.extend(port_faults(&host_end, bridge.as_ref(), conf)),
        AttachMode::Routed => missing.extend(missing_host_routes(&mut host, attachment, host_end.index)?),
    }
    let profile = policy::profile(caller.policies, attachment.placement.as_ref());
    missing.extend(shaping::missing(&mut host, attachment, &host_end, profile.as_ref())?);
    Ok(missing)
}

fn missing_gateways(
    host: &mut RtSocket,
    bridge: &Link,
    attachment: &Attachment,
    conf: &NetConf,
) -> Result<Vec<String>, Error> {
    if !conf.is_gateway {
        return Ok(Vec::new());
    }
    let addresses = host.addresses(Some(bridge.index))?;
    let is_set = |gateway: &IpAddr| addresses.iter().any(|a| a.addr.addr() == *gateway);
    let gateways = attachment.addresses.iter().filter_map(|a| a.gateway).filter(|gw| !is_set(gw));
    Ok(gateways.map(|gw| format!("gateway {gw} on {}", bridge.name)).collect())
}

fn port_faults(host_end: &Link, bridge: Option<&Link>, conf: &NetConf) -> Vec<String> {
    let mut faults = Vec::new();
    if host_end.master.is_none() || host_end.master != bridge.map(|b| b.index) {
        faults.push(format!("{} as a port of the bridge", host_end.name));
    } else if host_end.hairpin.is_some_and(|hairpin| hairpin != conf.hairpin) {
        faults.push(format!("hairpin mode of {}", host_end.name));
    }
    faults
}

fn missing_host_routes(
    host: &mut RtSocket,
    attachment: &Attachment,
    link: u32,
) -> Result<Vec<String>, Error> {
    let routes = host.routes(RouteFilter { link: Some(link), ..RouteFilter::default() })?;
    let neighbours = host.neighbours(Some(link))?;
    let mut missing = Vec::new();
    for ip in attachment.ips() {
        if !routes.iter().any(|r| r.dst == IpNet::from(ip)) {
            missing.push(format!("host route to {ip}"));
        }
        if !neighbours.iter().any(|n| n.addr == ip && n.mac == Some(attachment.pod_mac) && n.permanent) {
            missing.push(format!("neighbour {ip} on {}", attachment.host_link));
        }
    }
    Ok(missing)
}
