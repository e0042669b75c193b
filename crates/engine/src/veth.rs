//! The veth pair of a pod. One netlink send creates it with its peer inside the pod's namespace. One more send configures the
//! pod end. The attach mode decides whether the host end is a bridge port or has host routes.

use std::net::IpAddr;

use cni::PodRoute;
use ipnet::IpNet;
use netlink::{
    AddAddress, AddNeighbour, LinkRef, Mode, NetNs, Op, Route, RouteScope, RtSocket, SetLink, Veth,
};
use types::{AttachMode, ROUTE_PROTOCOL};

use crate::Error;
use crate::bridge::{self, Bridge, Gateway, PlacedGateway};
use crate::policy::LinkGroup;
use crate::state::{Addressing, Attachment, SysctlLog};
use crate::sysctl::{self, HostSettings, LinkOwner};

/// Inputs for the veth pair of one pod.
pub(crate) struct VethSetup<'a> {
    pub(crate) attachment: &'a Attachment,
    pub(crate) bridge: &'a Bridge,
    pub(crate) netns: &'a NetNs,
    pub(crate) log: &'a SysctlLog,
    pub(crate) settings: &'a HostSettings<'a>,
}

/// Whether neighbours on the bridge may have one of the pod's addresses cached with the MAC of an earlier pod. In mode
/// `routed` no neighbour resolves a pod's MAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NeighbourCaches {
    Clean,
    MayBeStale,
}

/// Creates the pair and adds the gateways to the bridge, in one send.
pub(crate) fn create_pair(
    host: &mut RtSocket,
    setup: &VethSetup<'_>,
    gateways: &[IpNet],
    group: LinkGroup,
) -> Result<Vec<PlacedGateway>, Error> {
    let (attachment, bridge) = (setup.attachment, setup.bridge);
    let is_port = attachment.mode == AttachMode::Bridge;
    let alias = attachment.alias();
    let gateways: Vec<Gateway> = gateways
        .iter()
        .map(|address| Gateway { bridge: bridge.index, address: *address, mode: attachment.mode })
        .collect();
    let gateway_ops: Vec<Vec<Op<'_>>> = gateways.iter().map(Gateway::ops).collect();
    let mut ops = gateway_ops.concat();
    let pair_start = ops.len();
    ops.push(Op::AddVeth(Veth {
        host: &attachment.host_link,
        host_mac: attachment.host_mac,
        mtu: attachment.mtu,
        master: is_port.then_some(bridge.index),
        group: group.0,
        peer: &attachment.key.ifname,
        peer_mac: attachment.pod_mac,
        peer_ns: setup.netns.fd(),
        up: false,
    }));
    // By name and in the same send: a killed process cannot leave a link without its alias.
    ops.push(Op::SetLink(SetLink {
        alias: Some(&alias),
        no_link_local: setup.settings.has_ipv6(attachment.mtu),
        hairpin: is_port.then_some(attachment.wiring.hairpin),
        ..SetLink::of(LinkRef::Name(&attachment.host_link))
    }));
    ops.push(Op::SetLink(SetLink { up: Some(true), ..SetLink::of(LinkRef::Name(&attachment.host_link)) }));
    let mut answers = host.run_all(&ops)?;
    for answer in answers.split_off(pair_start) {
        answer?;
    }
    let (mut placed, mut answers) = (Vec::new(), answers.into_iter());
    for (gateway, ops) in gateways.iter().zip(&gateway_ops) {
        let replies = answers.by_ref().take(ops.len()).collect();
        placed.push(bridge::check_replies(host, (bridge, setup.log), gateway, replies)?);
    }
    protect_host_end(attachment, setup.settings)?;
    Ok(placed)
}

/// Completes the host end of a pod that got its addresses after its interface. The result is the same as [`create_pair`]'s.
pub(crate) fn mark_host_end(
    host: &mut RtSocket,
    attachment: &Attachment,
    settings: &HostSettings<'_>,
) -> Result<(), Error> {
    let alias = attachment.alias();
    let link = SetLink::of(LinkRef::Name(&attachment.host_link));
    host.run(&Op::SetLink(SetLink { alias: Some(&alias), ..link }))?;
    protect_host_end(attachment, settings)
}

/// A bridge port needs no IPv6 because the bridge has it.
fn protect_host_end(attachment: &Attachment, settings: &HostSettings<'_>) -> Result<(), Error> {
    let has_ipv6 = attachment.mode == AttachMode::Routed && attachment.ips().any(|ip| ip.is_ipv6());
    sysctl::protect_host_end(&attachment.host_link, has_ipv6, settings)
}

/// The configured pod end.
pub(crate) struct PodEnd {
    /// The link index of the host end.
    pub(crate) host_index: u32,
    /// The routes that belong to this attachment. A route that another interface of the pod has is not included: the first
    /// interface wins, as with the reference plugin.
    pub(crate) routes: Vec<PodRoute>,
}

/// Configures the pod end inside its namespace and sets it up.
pub(crate) fn configure_pod_end(
    host: &RtSocket,
    pod: &mut RtSocket,
    setup: &VethSetup<'_>,
    neighbours: NeighbourCaches,
) -> Result<PodEnd, Error> {
    let attachment = setup.attachment;
    let ifname = &attachment.key.ifname;
    let has_ipv6 = attachment.ips().any(|ip| ip.is_ipv6());
    setup.netns.run(|| {
        // A pod without addresses from Podwire may get them from a router on its link.
        if attachment.addressing != Addressing::None {
            sysctl::protect_pod_link(ifname, has_ipv6)?;
        }
        match neighbours {
            NeighbourCaches::MayBeStale => sysctl::announce_addresses(ifname),
            NeighbourCaches::Clean => Ok(()),
        }
    })??;
    let vanished = || Error::NotAvailable(format!("interface {ifname} was removed while it was configured"));
    let index = pod.index_of(ifname)?.ok_or_else(vanished)?;
    let host_index = host.index_of(&attachment.host_link)?.ok_or_else(vanished)?;
    let steps = pod_end_steps(attachment, index);
    let ops: Vec<Op<'static>> = steps.iter().map(|(op, _)| *op).collect();
    let mut routes = Vec::with_capacity(attachment.wiring.routes.len());
    let mut shared_gateways = Vec::new();
    for ((_, step), answer) in steps.iter().zip(pod.run_all(&ops)?) {
        match (step, answer) {
            (PodOperation::Required, answer) => answer?,
            (PodOperation::Gateway(gateway), Err(e)) if e.is_exists() => shared_gateways.push(*gateway),
            (PodOperation::Gateway(_), answer) => answer?,
            (PodOperation::Route(route), Ok(())) => routes.push((*route).clone()),
            (PodOperation::Route(_), Err(e)) if e.is_exists() => {}
            // Another interface of the pod has the route to this gateway, and the first interface wins.
            (PodOperation::Route(route), Err(_))
                if gateway_of(attachment, route).is_some_and(|gw| shared_gateways.contains(&gw)) => {}
            (PodOperation::Route(_), Err(e)) => return Err(e.into()),
        }
    }
    Ok(PodEnd { host_index, routes })
}

/// Announces the pod's MAC to neighbours with possibly stale caches. The kernel sends the announcement when a MAC is set, also
/// if it does not change, and takes about a millisecond for it. The announcement that the kernel sends when the link comes
/// up may be too early: if the kernel noticed that the host end had no carrier, the bridge still drops packets.
pub(crate) fn announce(
    pod: &mut RtSocket,
    attachment: &Attachment,
    neighbours: NeighbourCaches,
) -> Result<(), Error> {
    match neighbours {
        NeighbourCaches::MayBeStale => Ok(pod.run(&Op::SetLink(SetLink {
            mac: Some(attachment.pod_mac),
            ..SetLink::of(LinkRef::Name(&attachment.key.ifname))
        }))?),
        NeighbourCaches::Clean => Ok(()),
    }
}

/// The purpose of one operation inside the pod.
enum PodOperation<'a> {
    Required,
    /// The route to a gateway. Another interface of the pod may have it.
    Gateway(IpAddr),
    /// One of the pod's routes. Another interface of the pod may have it.
    Route(&'a PodRoute),
}

pub(crate) fn pod_end_ops(attachment: &Attachment, link: u32) -> Vec<Op<'static>> {
    pod_end_steps(attachment, link).into_iter().map(|(op, _)| op).collect()
}

/// The routes of an attachment inside its pod, starting with those to its gateways.
pub(crate) fn pod_end_routes(attachment: &Attachment, link: u32) -> impl Iterator<Item = Route> {
    pod_end_ops(attachment, link).into_iter().filter_map(|op| match op {
        Op::AddRoute { route, .. } => Some(route),
        _ => None,
    })
}

/// First addresses, then link up, then routes and neighbours, which need a link that is up.
fn pod_end_steps(attachment: &Attachment, link: u32) -> Vec<(Op<'static>, PodOperation<'_>)> {
    let mut steps: Vec<(Op<'static>, PodOperation<'_>)> = Vec::new();
    for pod in &attachment.addresses {
        let broadcast = match pod.address {
            IpNet::V4(v4) if v4.prefix_len() < 31 => Some(v4.broadcast()),
            IpNet::V4(_) | IpNet::V6(_) => None,
        };
        let address = AddAddress {
            link,
            addr: pod.address,
            nodad: true,
            broadcast,
            no_subnet_route: false,
            mode: Mode::Exclusive,
        };
        steps.push((Op::AddAddress(address), PodOperation::Required));
    }
    let up = SetLink { up: Some(true), ..SetLink::of(LinkRef::Index(link)) };
    steps.push((Op::SetLink(up), PodOperation::Required));
    if attachment.mode == AttachMode::Routed {
        steps.extend(gateway_steps(attachment, link));
    }
    let routes = kernel_routes(attachment, link).zip(&attachment.wiring.routes);
    steps.extend(routes.map(|(route, configured)| {
        (Op::AddRoute { route, mode: Mode::Exclusive }, PodOperation::Route(configured))
    }));
    steps
}

/// In mode `routed` the gateway is in no subnet of the pod. It gets a route and a permanent neighbour, so no ARP or ND is
/// needed and none can be spoofed.
fn gateway_steps(
    attachment: &Attachment,
    link: u32,
) -> impl Iterator<Item = (Op<'static>, PodOperation<'_>)> {
    let mac = attachment.host_mac;
    attachment.addresses.iter().filter_map(|a| a.gateway).flat_map(move |gateway| {
        let route = Route { link: Some(link), scope: RouteScope::Link, ..Route::to(IpNet::from(gateway)) };
        let neighbour = AddNeighbour { link, addr: gateway, mac, protocol: ROUTE_PROTOCOL };
        [
            (Op::AddRoute { route, mode: Mode::Exclusive }, PodOperation::Gateway(gateway)),
            (Op::AddNeighbour(neighbour), PodOperation::Required),
        ]
    })
}

/// The pod's routes in the kernel's form. A route without a gateway uses the network's.
fn kernel_routes(attachment: &Attachment, link: u32) -> impl Iterator<Item = Route> {
    attachment.wiring.routes.iter().map(move |route| {
        let gateway = gateway_of(attachment, route);
        let scope = match route.scope {
            Some(253) => RouteScope::Link,
            Some(254) => RouteScope::Host,
            Some(_) | None if gateway.is_none() => RouteScope::Link,
            Some(_) | None => RouteScope::Universe,
        };
        Route {
            gateway,
            link: Some(link),
            // The gateway may be outside the pod's prefix. In mode `routed` it always is.
            onlink: gateway.is_some_and(|gw| !attachment.addresses.iter().any(|a| a.address.contains(&gw))),
            scope,
            mtu: route.mtu,
            advmss: route.advmss,
            priority: route.priority,
            table: route.table,
            ..Route::to(route.dst)
        }
    })
}

/// The gateway of a route, or the network's. A route with scope link or host has only its own.
pub(crate) fn gateway_of(attachment: &Attachment, route: &PodRoute) -> Option<IpAddr> {
    const SCOPE_LINK: u32 = 253;
    match route.scope {
        Some(scope) if scope >= SCOPE_LINK => route.gw,
        Some(_) | None => route.gw.or_else(|| gateway_for(attachment, route.dst.addr())),
    }
}

pub(crate) fn gateway_for(attachment: &Attachment, like: IpAddr) -> Option<IpAddr> {
    attachment.addresses.iter().filter_map(|a| a.gateway).find(|gw| gw.is_ipv4() == like.is_ipv4())
}

/// Adds the host's routes of mode `routed`: per address one route and a permanent neighbour. The kernel refuses existing routes.
pub(crate) fn route_to_pod(host: &mut RtSocket, attachment: &Attachment, link: u32) -> Result<(), Error> {
    let mut ops = Vec::new();
    for ip in attachment.ips() {
        ops.push(Op::AddRoute { route: host_route(ip, link), mode: Mode::Exclusive });
        ops.push(neighbour_op(attachment, link, ip));
    }
    for answer in host.run_all(&ops)? {
        answer?;
    }
    Ok(())
}

/// The host's permanent neighbour for one of the pod's addresses.
pub(crate) fn neighbour_op(attachment: &Attachment, link: u32, ip: IpAddr) -> Op<'static> {
    let mac = attachment.pod_mac;
    Op::AddNeighbour(AddNeighbour { link, addr: ip, mac, protocol: ROUTE_PROTOCOL })
}

/// Connections from 127.0.0.1 to a hostPort leave through the bridge or the host end.
pub(crate) fn allow_loopback_clients(
    attachment: &Attachment,
    bridge: &Bridge,
    log: &SysctlLog,
) -> Result<(), Error> {
    if attachment.ports.is_empty() || !attachment.ips().any(|ip| ip.is_ipv4()) {
        return Ok(());
    }
    match attachment.mode {
        AttachMode::Bridge => sysctl::allow_loopback_source(&attachment.bridge, bridge.owner(log)),
        AttachMode::Routed => sysctl::allow_loopback_source(&attachment.host_link, LinkOwner::Podwire),
    }
}

pub(crate) fn host_route(ip: IpAddr, link: u32) -> Route {
    Route { link: Some(link), scope: RouteScope::Link, ..Route::to(IpNet::from(ip)) }
}
