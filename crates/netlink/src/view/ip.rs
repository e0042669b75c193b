use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressFlags, AddressHeader};
use netlink_packet_route::neighbour::{NeighbourFlags, NeighbourHeader, NeighbourState};
use netlink_packet_route::route::{RouteFlags, RouteHeader, RouteScope as WireScope, RouteType};
use types::Mac;

use super::after;
use super::link::read_mac;
use crate::kernel::{IFA_PROTO, NDA_PROTOCOL, RTAX_ADVMSS, RTAX_MTU};
use crate::op::{Fdb, Route, RouteKind, RouteScope};
use crate::wire::{attributes, read_u32};

fn read_ip(family: AddressFamily, value: &[u8]) -> Option<IpAddr> {
    match family {
        AddressFamily::Inet => Some(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?).into()),
        AddressFamily::Inet6 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?).into()),
        _ => None,
    }
}

/// `struct rtvia`: a gateway of another family than the route's.
fn read_via(value: &[u8]) -> Option<IpAddr> {
    let (family, addr) = value.split_first_chunk()?;
    read_ip(u8::try_from(u16::from_ne_bytes(*family)).ok()?.into(), addr)
}

fn any(family: AddressFamily) -> Option<IpAddr> {
    match family {
        AddressFamily::Inet => Some(Ipv4Addr::UNSPECIFIED.into()),
        AddressFamily::Inet6 => Some(Ipv6Addr::UNSPECIFIED.into()),
        _ => None,
    }
}

/// An address of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    pub link: u32,
    pub addr: IpNet,
    pub broadcast: Option<Ipv4Addr>,
    pub nodad: bool,
    /// Not usable yet: duplicate address detection is under way.
    pub tentative: bool,
    /// Duplicate address detection found another owner.
    pub duplicate: bool,
    /// Who added it; none where nobody said so, and before Linux 5.18.
    pub protocol: Option<u8>,
}

impl Address {
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let header = AddressHeader::parse(message).ok()?;
        let (mut local, mut peer, mut broadcast) = (None, None, None);
        let mut flags = u32::from(header.flags.bits());
        let mut protocol = None;
        for (kind, value) in attributes(after::<8>(message)) {
            match kind {
                libc::IFA_LOCAL => local = read_ip(header.family, value),
                libc::IFA_ADDRESS => peer = read_ip(header.family, value),
                libc::IFA_BROADCAST => broadcast = <[u8; 4]>::try_from(value).ok().map(Ipv4Addr::from),
                libc::IFA_FLAGS => flags = read_u32(value)?,
                IFA_PROTO => protocol = value.first().copied().filter(|number| *number != 0),
                _ => {}
            }
        }
        let flags = AddressFlags::from_bits_retain(flags);
        Some(Self {
            link: header.index,
            // IPv6 has no IFA_LOCAL unless there is a peer.
            addr: IpNet::new(local.or(peer)?, header.prefix_len).ok()?,
            broadcast,
            nodad: flags.contains(AddressFlags::Nodad),
            tentative: flags.contains(AddressFlags::Tentative),
            duplicate: flags.contains(AddressFlags::Dadfailed),
            protocol,
        })
    }
}

/// An entry of the neighbour tables (ARP, ND).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    pub link: u32,
    pub addr: IpAddr,
    pub mac: Option<Mac>,
    pub permanent: bool,
    pub protocol: u8,
}

impl Neighbour {
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let header = NeighbourHeader::parse(message).ok()?;
        if header.flags.contains(NeighbourFlags::Proxy) {
            return None;
        }
        let (mut addr, mut mac, mut protocol) = (None, None, 0);
        for (kind, value) in attributes(after::<12>(message)) {
            match kind {
                libc::NDA_DST => addr = read_ip(header.family, value),
                libc::NDA_LLADDR => mac = read_mac(value),
                NDA_PROTOCOL => protocol = *value.first()?,
                _ => {}
            }
        }
        let permanent = header.state == NeighbourState::Permanent;
        Some(Self { link: header.ifindex, addr: addr?, mac, permanent, protocol })
    }
}

impl Fdb {
    /// Of a tunnel device. A bridge's entries lead to ports, not to addresses: they are `None`.
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let header = NeighbourHeader::parse(message).ok()?;
        let (mut dst, mut mac) = (None, None);
        for (kind, value) in attributes(after::<12>(message)) {
            match kind {
                libc::NDA_DST if value.len() == 4 => dst = read_ip(AddressFamily::Inet, value),
                libc::NDA_DST => dst = read_ip(AddressFamily::Inet6, value),
                libc::NDA_LLADDR => mac = read_mac(value),
                _ => {}
            }
        }
        if header.family != AddressFamily::Bridge {
            return None;
        }
        Some(Self { link: header.ifindex, mac: mac?, dst: dst? })
    }
}

impl Route {
    /// Unicast routes that somebody configured; the kernel's own copies and local addresses are `None`.
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        Self::parse_any(message).filter(|route| route.kind == RouteKind::Unicast)
    }

    /// Also routes that say that a destination is unreachable.
    pub(crate) fn parse_any(message: &[u8]) -> Option<Self> {
        let header = RouteHeader::parse(message).ok()?;
        let kind = match header.kind {
            RouteType::Unicast => RouteKind::Unicast,
            RouteType::Unreachable => RouteKind::Unreachable,
            _ => return None,
        };
        if header.flags.contains(RouteFlags::Cloned) {
            return None;
        }
        let anywhere = IpNet::new(any(header.address_family)?, header.destination_prefix_length).ok()?;
        let mut route = Self {
            onlink: header.flags.contains(RouteFlags::Onlink),
            scope: match header.scope {
                WireScope::Link => RouteScope::Link,
                WireScope::Host | WireScope::NoWhere => RouteScope::Host,
                _ => RouteScope::Universe,
            },
            table: Some(u32::from(header.table)),
            protocol: header.protocol.into(),
            kind,
            ..Self::to(anywhere)
        };
        for (kind, value) in attributes(after::<12>(message)) {
            match kind {
                libc::RTA_DST => {
                    let dst = read_ip(header.address_family, value)?;
                    route.dst = IpNet::new(dst, header.destination_prefix_length).ok()?;
                }
                libc::RTA_GATEWAY => route.gateway = read_ip(header.address_family, value),
                libc::RTA_VIA => route.gateway = read_via(value),
                libc::RTA_OIF => route.link = read_u32(value),
                libc::RTA_PREFSRC => route.src = read_ip(header.address_family, value),
                libc::RTA_PRIORITY => route.priority = read_u32(value),
                libc::RTA_TABLE => route.table = read_u32(value),
                libc::RTA_METRICS => route.read_metrics(value),
                _ => {}
            }
        }
        Some(route)
    }

    fn read_metrics(&mut self, metrics: &[u8]) {
        for (kind, value) in attributes(metrics) {
            match kind {
                RTAX_MTU => self.mtu = read_u32(value),
                RTAX_ADVMSS => self.advmss = read_u32(value),
                _ => {}
            }
        }
    }
}

/// Which way the kernel would send to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteLookup {
    pub link: u32,
    pub gateway: Option<IpAddr>,
    pub src: Option<IpAddr>,
    /// The address is this machine's own.
    pub local: bool,
}

impl RouteLookup {
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let header = RouteHeader::parse(message).ok()?;
        let (mut link, mut gateway, mut src) = (None, None, None);
        for (kind, value) in attributes(after::<12>(message)) {
            match kind {
                libc::RTA_OIF => link = read_u32(value),
                libc::RTA_GATEWAY => gateway = read_ip(header.address_family, value),
                libc::RTA_VIA => gateway = read_via(value),
                libc::RTA_PREFSRC => src = read_ip(header.address_family, value),
                _ => {}
            }
        }
        Some(Self { link: link?, gateway, src, local: header.kind == RouteType::Local })
    }
}

/// An entry of the routing tables, of whatever type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteMatch {
    pub dst: IpNet,
    pub link: Option<u32>,
    pub protocol: u8,
    /// The address is this machine's own.
    pub local: bool,
    /// One link and no gateway.
    pub direct: bool,
}

impl RouteMatch {
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let header = RouteHeader::parse(message).ok()?;
        let (mut dst, mut link, mut has_gateway) = (any(header.address_family)?, None, false);
        for (kind, value) in attributes(after::<12>(message)) {
            match kind {
                libc::RTA_DST => dst = read_ip(header.address_family, value)?,
                libc::RTA_OIF => link = read_u32(value),
                libc::RTA_GATEWAY | libc::RTA_VIA => has_gateway = true,
                _ => {}
            }
        }
        Some(Self {
            dst: IpNet::new(dst, header.destination_prefix_length).ok()?,
            link,
            protocol: header.protocol.into(),
            local: header.kind == RouteType::Local,
            direct: link.is_some() && !has_gateway,
        })
    }
}
