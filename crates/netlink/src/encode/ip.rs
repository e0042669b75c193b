use std::net::IpAddr;

use ipnet::IpNet;
use types::ROUTE_PROTOCOL;

use crate::header::{AddressHeader, NeighbourHeader, RouteHeader};
use crate::kernel::{
    AF_BRIDGE, AF_INET, AF_INET6, IFA_PROTO, NDA_PROTOCOL, RTAX_ADVMSS, RTAX_MTU, RTNH_F_ONLINK,
};
use crate::op::{AddAddress, AddNeighbour, Fdb, Route, RouteKind, RouteScope};
use crate::wire::Body;

pub(crate) fn family_of(addr: IpAddr) -> u8 {
    match addr {
        IpAddr::V4(_) => AF_INET,
        IpAddr::V6(_) => AF_INET6,
    }
}

pub(crate) fn put_ip(body: &mut Body<'_>, kind: u16, addr: IpAddr) {
    match addr {
        IpAddr::V4(v4) => body.bytes(kind, &v4.octets()),
        IpAddr::V6(v6) => body.bytes(kind, &v6.octets()),
    }
}

fn address_header(link: u32, addr: IpNet) -> AddressHeader {
    let scope = if addr.addr().is_loopback() { libc::RT_SCOPE_HOST } else { libc::RT_SCOPE_UNIVERSE };
    AddressHeader {
        family: family_of(addr.addr()),
        prefix_len: addr.prefix_len(),
        flags: 0,
        scope,
        index: link,
    }
}

pub(super) fn add_address(body: &mut Body<'_>, add: &AddAddress) {
    body.header(&address_header(add.link, add.addr));
    let no_dad = if add.nodad && add.addr.addr().is_ipv6() { libc::IFA_F_NODAD } else { 0 };
    let no_route = if add.no_subnet_route { libc::IFA_F_NOPREFIXROUTE } else { 0 };
    // The header has only one byte for flags.
    body.u32(libc::IFA_FLAGS, no_dad | no_route);
    put_ip(body, libc::IFA_LOCAL, add.addr.addr());
    put_ip(body, libc::IFA_ADDRESS, add.addr.addr());
    if let Some(broadcast) = add.broadcast {
        put_ip(body, libc::IFA_BROADCAST, broadcast.into());
    }
    // Marks the address as Podwire's. Kernels before 5.18 ignore the attribute.
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
        family: family_of(route.dst.addr()),
        dst_len: route.dst.prefix_len(),
        // The header has one byte for the table. RTA_TABLE always follows and has the complete number.
        table: u8::try_from(table).unwrap_or(libc::RT_TABLE_UNSPEC),
        protocol: route.protocol,
        kind: match route.kind {
            RouteKind::Unicast => libc::RTN_UNICAST,
            RouteKind::Unreachable => libc::RTN_UNREACHABLE,
        },
        ..RouteHeader::default()
    }
}

/// Destination and next hop, which are common to adding and deleting.
fn route_target(body: &mut Body<'_>, route: &Route) {
    if route.dst.prefix_len() != 0 {
        put_ip(body, libc::RTA_DST, route.dst.network());
    }
    match (route.dst, route.gateway) {
        (IpNet::V4(_), Some(IpAddr::V6(gateway))) => {
            // struct rtvia: family and address of a gateway of another family than the route's.
            let mut via = [0; 18];
            via[..2].copy_from_slice(&u16::from(AF_INET6).to_ne_bytes());
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
        RouteScope::Universe => libc::RT_SCOPE_UNIVERSE,
        RouteScope::Link => libc::RT_SCOPE_LINK,
        RouteScope::Host => libc::RT_SCOPE_HOST,
    };
    header.flags = if route.onlink { RTNH_F_ONLINK } else { 0 };
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
    // RT_SCOPE_NOWHERE matches every scope.
    body.header(&RouteHeader { scope: libc::RT_SCOPE_NOWHERE, ..route_header(route) });
    route_target(body, route);
}

fn neighbour_header(link: u32, addr: IpAddr, state: u16) -> NeighbourHeader {
    NeighbourHeader { family: family_of(addr), link, state, ..NeighbourHeader::default() }
}

pub(super) fn add_neighbour(body: &mut Body<'_>, add: &AddNeighbour) {
    body.header(&neighbour_header(add.link, add.addr, libc::NUD_PERMANENT));
    put_ip(body, libc::NDA_DST, add.addr);
    body.bytes(libc::NDA_LLADDR, &add.mac.octets());
    body.u8(NDA_PROTOCOL, add.protocol);
}

pub(super) fn del_neighbour(body: &mut Body<'_>, link: u32, addr: IpAddr) {
    body.header(&neighbour_header(link, addr, libc::NUD_NONE));
    put_ip(body, libc::NDA_DST, addr);
}

/// An entry of the device itself. Without `NTF_SELF` the kernel adds it to the bridge of the device.
pub(super) fn fdb(body: &mut Body<'_>, entry: &Fdb) {
    body.header(&NeighbourHeader {
        family: AF_BRIDGE,
        link: entry.link,
        state: libc::NUD_PERMANENT,
        flags: libc::NTF_SELF,
    });
    body.bytes(libc::NDA_LLADDR, &entry.mac.octets());
    put_ip(body, libc::NDA_DST, entry.dst);
}
