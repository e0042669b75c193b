//! The pod's wire: a veth made in one send with its far end already inside the pod's namespace, then everything inside
//! it in one more. Which of them is a bridge port and which has host routes is the attach mode's.

use std::net::IpAddr;

use cni::PodRoute;
use ipnet::IpNet;
use netlink::{
    AddAddress, AddNeighbour, LinkRef, Mode, NetNs, Op, Route, RouteScope, RtSocket, SetLink, Veth,
};
use types::{AttachMode, ROUTE_PROTOCOL};

use crate::Error;
use crate::bridge::{self, Bridge, Gateway, Placed};
use crate::state::{Addressing, Attachment, SysctlLog};
use crate::sysctl::{self, HostSettings, LinkOwner};

/// Everything that is needed to wire one pod, looked up beforehand.
pub(crate) struct Wire<'a> {
    pub(crate) attachment: &'a Attachment,
    pub(crate) bridge: &'a Bridge,
    pub(crate) netns: &'a NetNs,
    pub(crate) log: &'a SysctlLog,
    pub(crate) settings: &'a HostSettings<'a>,
}

/// Whether others on the bridge may remember one of the pod's addresses at the MAC of an earlier owner. In mode `routed`
/// nobody asks for a pod's MAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Neighbours {
    KnowNothing,
    MayRemember,
}

/// Makes the pair and puts the gateways on the bridge, in one send.
pub(crate) fn make_pair(
    host: &mut RtSocket,
    wire: &Wire<'_>,
    gateways: &[IpNet],
) -> Result<Vec<Placed>, Error> {
    let (attachment, bridge) = (wire.attachment, wire.bridge);
    let is_port = attachment.mode == AttachMode::Bridge;
    let alias = attachment.alias();
    let gateways: Vec<Gateway> = gateways
        .iter()
        .map(|address| Gateway { bridge: bridge.index, address: *address, mode: attachment.mode })
        .collect();
    let of_gateways: Vec<Vec<Op<'_>>> = gateways.iter().map(Gateway::ops).collect();
    let mut ops = of_gateways.concat();
    let of_pair = ops.len();
    ops.push(Op::AddVeth(Veth {
        host: &attachment.host_link,
        host_mac: attachment.host_mac,
        mtu: attachment.mtu,
        master: is_port.then_some(bridge.index),
        peer: &attachment.key.ifname,
        peer_mac: attachment.pod_mac,
        peer_ns: wire.netns.fd(),
        up: false,
    }));
    // By name, in the same send: nobody can be killed between the link and the mark that says whose it is.
    ops.push(Op::SetLink(SetLink {
        alias: Some(&alias),
        no_link_local: wire.settings.has_ipv6(attachment.mtu),
        hairpin: is_port.then_some(attachment.wiring.hairpin),
        ..SetLink::of(LinkRef::Name(&attachment.host_link))
    }));
    ops.push(Op::SetLink(SetLink { up: Some(true), ..SetLink::of(LinkRef::Name(&attachment.host_link)) }));
    let mut answers = host.run_all(&ops)?;
    for answer in answers.split_off(of_pair) {
        answer?;
    }
    let (mut placed, mut answers) = (Vec::new(), answers.into_iter());
    for (gateway, ops) in gateways.iter().zip(&of_gateways) {
        let own = answers.by_ref().take(ops.len()).collect();
        placed.push(bridge::added(host, (bridge, wire.log), gateway, own)?);
    }
    protect_host_end(attachment, wire.settings)?;
    Ok(placed)
}

/// The host end of a pod whose addresses came after its interface: as [`make_pair`] would have made it.
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

/// A port needs no IPv6: its bridge has it.
fn protect_host_end(attachment: &Attachment, settings: &HostSettings<'_>) -> Result<(), Error> {
    let has_ipv6 = attachment.mode == AttachMode::Routed && attachment.ips().any(|ip| ip.is_ipv6());
    sysctl::protect_host_end(&attachment.host_link, has_ipv6, settings)
}

/// The pod's end, set up.
pub(crate) struct Inside {
    /// The other end's index.
    pub(crate) host_index: u32,
    /// The routes that are this attachment's. Where another interface of the pod has the same route, that one stays: the
    /// first one wins, as in the reference.
    pub(crate) routes: Vec<PodRoute>,
}

/// Configures the pod's end from inside its namespace and brings it up.
pub(crate) fn set_up_inside(
    host: &RtSocket,
    pod: &mut RtSocket,
    wire: &Wire<'_>,
    neighbours: Neighbours,
) -> Result<Inside, Error> {
    let attachment = wire.attachment;
    let ifname = &attachment.key.ifname;
    let has_ipv6 = attachment.ips().any(|ip| ip.is_ipv6());
    wire.netns.run(|| {
        // A pod without addresses of Podwire may get them from a router on its wire.
        if attachment.addressing != Addressing::None {
            sysctl::protect_pod_link(ifname, has_ipv6)?;
        }
        match neighbours {
            Neighbours::MayRemember => sysctl::announce_addresses(ifname),
            Neighbours::KnowNothing => Ok(()),
        }
    })??;
    let vanished = || Error::NotAvailable(format!("interface {ifname} vanished while it was set up"));
    let index = pod.index_of(ifname)?.ok_or_else(vanished)?;
    let host_index = host.index_of(&attachment.host_link)?.ok_or_else(vanished)?;
    let steps = inside_steps(attachment, index);
    let ops: Vec<Op<'static>> = steps.iter().map(|(op, _)| *op).collect();
    let mut routes = Vec::with_capacity(attachment.wiring.routes.len());
    let mut others = Vec::new();
    for ((_, step), answer) in steps.iter().zip(pod.run_all(&ops)?) {
        match (step, answer) {
            (PodOperation::Needed, answer) => answer?,
            (PodOperation::Gateway(gateway), Err(e)) if e.is_exists() => others.push(*gateway),
            (PodOperation::Gateway(_), answer) => answer?,
            (PodOperation::Route(route), Ok(())) => routes.push((*route).clone()),
            (PodOperation::Route(_), Err(e)) if e.is_exists() => {}
            // Through a gateway that another interface of the pod has: that one was first.
            (PodOperation::Route(route), Err(_))
                if gateway_of(attachment, route).is_some_and(|gw| others.contains(&gw)) => {}
            (PodOperation::Route(_), Err(e)) => return Err(e.into()),
        }
    }
    Ok(Inside { host_index, routes })
}

/// Neighbours that may remember an address at another MAC are told the new one. The kernel does so when a MAC is set, also
/// to what it is, and takes about a millisecond for it. By itself it would when the link comes up, which may be too early:
/// once the kernel has noticed that the other end had no carrier, the bridge drops what comes before it notices again.
pub(crate) fn announce(
    pod: &mut RtSocket,
    attachment: &Attachment,
    neighbours: Neighbours,
) -> Result<(), Error> {
    match neighbours {
        Neighbours::MayRemember => Ok(pod.run(&Op::SetLink(SetLink {
            mac: Some(attachment.pod_mac),
            ..SetLink::of(LinkRef::Name(&attachment.key.ifname))
        }))?),
        Neighbours::KnowNothing => Ok(()),
    }
}

/// What one operation inside the pod is for.
enum PodOperation<'a> {
    Needed,
    /// The route to a gateway, which another interface of the pod may have.
    Gateway(IpAddr),
    /// One of the pod's routes, likewise.
    Route(&'a PodRoute),
}

pub(crate) fn inside_ops(attachment: &Attachment, link: u32) -> Vec<Op<'static>> {
    inside_steps(attachment, link).into_iter().map(|(op, _)| op).collect()
}

/// The routes of an attachment inside its pod, those to its gateways first.
pub(crate) fn routes_inside(attachment: &Attachment, link: u32) -> impl Iterator<Item = Route> {
    inside_ops(attachment, link).into_iter().filter_map(|op| match op {
        Op::AddRoute { route, .. } => Some(route),
        _ => None,
    })
}

/// Addresses, then up, then what needs a link that is up.
fn inside_steps(attachment: &Attachment, link: u32) -> Vec<(Op<'static>, PodOperation<'_>)> {
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
        steps.push((Op::AddAddress(address), PodOperation::Needed));
    }
    let up = SetLink { up: Some(true), ..SetLink::of(LinkRef::Index(link)) };
    steps.push((Op::SetLink(up), PodOperation::Needed));
    if attachment.mode == AttachMode::Routed {
        steps.extend(gateway_inside(attachment, link));
    }
    let routes = kernel_routes(attachment, link).zip(&attachment.wiring.routes);
    steps.extend(
        routes.map(|(route, of)| (Op::AddRoute { route, mode: Mode::Exclusive }, PodOperation::Route(of))),
    );
    steps
}

/// In mode `routed` the gateway is on no subnet of the pod's: it gets a route and a fixed neighbour, so that no ARP or ND
/// happens and none can be faked.
fn gateway_inside(
    attachment: &Attachment,
    link: u32,
) -> impl Iterator<Item = (Op<'static>, PodOperation<'_>)> {
    let mac = attachment.host_mac;
    attachment.addresses.iter().filter_map(|a| a.gateway).flat_map(move |gateway| {
        let route = Route { link: Some(link), scope: RouteScope::Link, ..Route::to(IpNet::from(gateway)) };
        let neighbour = AddNeighbour { link, addr: gateway, mac, protocol: ROUTE_PROTOCOL };
        [
            (Op::AddRoute { route, mode: Mode::Exclusive }, PodOperation::Gateway(gateway)),
            (Op::AddNeighbour(neighbour), PodOperation::Needed),
        ]
    })
}

/// The pod's routes as the kernel takes them: through their own gateway, or the network's.
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
            // The gateway need not be inside the pod's own prefix (it never is in mode `routed`).
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

/// A route's own gateway, or the network's. One that says that its destination is on the link has none.
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

/// Mode `routed`, host side: a route per address, which the kernel refuses if somebody has it, and a fixed neighbour.
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
pub(crate) fn let_loopback_in(
    attachment: &Attachment,
    bridge: &Bridge,
    log: &SysctlLog,
) -> Result<(), Error> {
    if attachment.ports.is_empty() || !attachment.ips().any(|ip| ip.is_ipv4()) {
        return Ok(());
    }
    match attachment.mode {
        AttachMode::Bridge => sysctl::allow_loopback_source(&attachment.bridge, bridge.owner(log)),
        AttachMode::Routed => sysctl::allow_loopback_source(&attachment.host_link, LinkOwner::Us),
    }
}

pub(crate) fn host_route(ip: IpAddr, link: u32) -> Route {
    Route { link: Some(link), scope: RouteScope::Link, ..Route::to(IpNet::from(ip)) }
}
