use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressFlags, AddressHeader, AddressHeaderFlags, AddressScope};
use netlink_packet_route::neighbour::{NeighbourFlags, NeighbourHeader, NeighbourState};
use netlink_packet_route::route::{RouteFlags, RouteHeader, RouteScope as WireScope, RouteType};
use types::ROUTE_PROTOCOL;

use crate::kernel::{IFA_PROTO, NDA_PROTOCOL, RTAX_ADVMSS, RTAX_MTU};
use crate::op::{AddAddress, AddNeighbour, Fdb, Route, RouteKind, RouteScope};
use crate::wire::Body;

pub(crate) fn family_of(addr: IpAddr) -> AddressFamily {
    match addr {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

pub(crate) fn put_ip(body: &mut Body<'_>, kind: u16, addr: IpAddr) {
    match addr {
        IpAddr::V4(v4) => body.bytes(kind, &v4.octets()),
        IpAddr::V6(v6) => body.bytes(kind, &v6.octets()),
    }
}

fn address_header(link: u32, addr: IpNet) -> AddressHeader {
    let scope = if addr.addr().is_loopback() { AddressScope::Host } else { AddressScope::Universe };
    AddressHeader {
        family: family_of(addr.addr()),
        prefix_len: addr.prefix_len(),
        flags: AddressHeaderFlags::empty(),
        scope,
        index: link,
    }
}

pub(super) fn add_address(body: &mut Body<'_>, add: &AddAddress) {
    body.header(&address_header(add.link, add.addr));
    let mut flags = AddressFlags::empty();
    flags.set(AddressFlags::Nodad, add.nodad && add.addr.addr().is_ipv6());
    flags.set(AddressFlags::Noprefixroute, add.no_subnet_route);
    // The header has only one byte for flags.
    body.u32(libc::IFA_FLAGS, flags.bits());
    put_ip(body, libc::IFA_LOCAL, add.addr.addr());
    put_ip(body, libc::IFA_ADDRESS, add.addr.addr());
    if let Some(broadcast) = add.broadcast {
        put_ip(body, libc::IFA_BROADCAST, broadcast.into());
    }
    // Whose address it is. Kernels before 5.18 have no place for it and ignore it.
    body.u8(IFA_PROTO, ROUTE_PROTOCOL);
}

pub(super) fn del_address(body: &mut Body<'_>, link: u32, addr: IpNet) {
    body.header(&address_header(link, addr));
    put_ip(body, libc::IFA_LOCAL, addr.addr());
    put_ip(body, libc::IFA_ADDRESS, addr.addr());
}

fn route_header(route: &Route) -> RouteHeader {
    let table = route.table.unwrap_or(u32::from(libc::RT_TABLE_MAIN));
    RouteHeader {
        address_family: family_of(route.dst.addr()),
        destination_prefix_length: route.dst.prefix_len(),
        // The header has one byte for it; RTA_TABLE, which always follows, has the whole number.
        table: u8::try_from(table).unwrap_or(libc::RT_TABLE_UNSPEC),
        protocol: route.protocol.into(),
        kind: match route.kind {
            RouteKind::Unicast => RouteType::Unicast,
            RouteKind::Unreachable => RouteType::Unreachable,
        },
        ..RouteHeader::default()
    }
}

/// Destination and next hop, which adding and deleting have in common.
fn route_target(body: &mut Body<'_>, route: &Route) {
    if route.dst.prefix_len() != 0 {
        put_ip(body, libc::RTA_DST, route.dst.network());
    }
    match (route.dst, route.gateway) {
        (IpNet::V4(_), Some(IpAddr::V6(gateway))) => {
            // struct rtvia: the family of the gateway, which here is another than the route's, and its address.
            let mut via = [0; 18];
            via[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            via[2..].copy_from_slice(&gateway.octets());
            body.bytes(libc::RTA_VIA, &via);
        }
        (_, Some(gateway)) => put_ip(body, libc::RTA_GATEWAY, gateway),
        (_, None) => {}
    }
    if let Some(link) = route.link {
        body.u32(libc::RTA_OIF, link);
    }
    if let Some(priority) = route.priority {
        body.u32(libc::RTA_PRIORITY, priority);
    }
    body.u32(libc::RTA_TABLE, route.table.unwrap_or(u32::from(libc::RT_TABLE_MAIN)));
}

pub(super) fn add_route(body: &mut Body<'_>, route: &Route) {
    let mut header = route_header(route);
    header.scope = match route.scope {
        RouteScope::Universe => WireScope::Universe,
        RouteScope::Link => WireScope::Link,
        RouteScope::Host => WireScope::Host,
    };
    header.flags.set(RouteFlags::Onlink, route.onlink);
    body.header(&header);
    route_target(body, route);
    if let Some(src) = route.src {
        put_ip(body, libc::RTA_PREFSRC, src);
    }
    if route.mtu.is_some() || route.advmss.is_some() {
        body.nest(libc::RTA_METRICS, |metrics| {
            for (kind, value) in [(RTAX_MTU, route.mtu), (RTAX_ADVMSS, route.advmss)] {
                if let Some(value) = value {
                    metrics.u32(kind, value);
                }
            }
        });
    }
}

pub(super) fn del_route(body: &mut Body<'_>, route: &Route) {
    // Scope nowhere matches every scope.
    body.header(&RouteHeader { scope: WireScope::NoWhere, ..route_header(route) });
    route_target(body, route);
}

fn neighbour_header(link: u32, addr: IpAddr, state: NeighbourState) -> NeighbourHeader {
    NeighbourHeader { family: family_of(addr), ifindex: link, state, ..NeighbourHeader::default() }
}

pub(super) fn add_neighbour(body: &mut Body<'_>, add: &AddNeighbour) {
    body.header(&neighbour_header(add.link, add.addr, NeighbourState::Permanent));
    put_ip(body, libc::NDA_DST, add.addr);
    body.bytes(libc::NDA_LLADDR, &add.mac.octets());
    body.u8(NDA_PROTOCOL, add.protocol);
}

pub(super) fn del_neighbour(body: &mut Body<'_>, link: u32, addr: IpAddr) {
    body.header(&neighbour_header(link, addr, NeighbourState::None));
    put_ip(body, libc::NDA_DST, addr);
}

/// An entry of the device itself: without `Own` the kernel would look for a bridge above it.
pub(super) fn fdb(body: &mut Body<'_>, entry: &Fdb) {
    body.header(&NeighbourHeader {
        family: AddressFamily::Bridge,
        ifindex: entry.link,
        state: NeighbourState::Permanent,
        flags: NeighbourFlags::Own,
        ..NeighbourHeader::default()
    });
    body.bytes(libc::NDA_LLADDR, &entry.mac.octets());
    put_ip(body, libc::NDA_DST, entry.dst);
}
