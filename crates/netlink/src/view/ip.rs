use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use types::Mac;

use super::link::read_mac;
use crate::header::{AddressHeader, Header as _, NeighbourHeader, RouteHeader};
use crate::kernel::{
    AF_BRIDGE, AF_INET, AF_INET6, IFA_PROTO, NDA_PROTOCOL, RTAX_ADVMSS, RTAX_MTU, RTNH_F_ONLINK,
};
use crate::op::{Fdb, Route, RouteKind, RouteScope};
use crate::wire::{attributes, read_u32};

fn read_ip(family: u8, value: &[u8]) -> Option<IpAddr> {
    match family {
        AF_INET => Some(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?).into()),
        AF_INET6 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?).into()),
        _ => None,
    }
}

/// `struct rtvia`: a gateway of another family than the route's.
fn read_via(value: &[u8]) -> Option<IpAddr> {
    let (family, addr) = value.split_first_chunk()?;
    read_ip(u8::try_from(u16::from_ne_bytes(*family)).ok()?, addr)
}

fn unspecified(family: u8) -> Option<IpAddr> {
    match family {
        AF_INET => Some(Ipv4Addr::UNSPECIFIED.into()),
        AF_INET6 => Some(Ipv6Addr::UNSPECIFIED.into()),
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
    /// Duplicate address detection is not complete, so the address is not usable yet.
    pub tentative: bool,
    /// Duplicate address detection found another host with this address.
    pub duplicate: bool,
    /// The program that added the address. None if it set no protocol, and before Linux 5.18.
    pub protocol: Option<u8>,
}

impl Address {
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let header = AddressHeader::parse(message)?;
        let (mut local, mut peer, mut broadcast) = (None, None, None);
        let mut flags = u32::from(header.flags);
        let mut protocol = None;
        for (kind, value) in attributes(AddressHeader::attributes(message)) {
            match kind {
                libc::IFA_LOCAL => local = read_ip(header.family, value),
                libc::IFA_ADDRESS => peer = read_ip(header.family, value),
                libc::IFA_BROADCAST => broadcast = <[u8; 4]>::try_from(value).ok().map(Ipv4Addr::from),
                libc::IFA_FLAGS => flags = read_u32(value)?,
                IFA_PROTO => protocol = value.first().copied().filter(|number| *number != 0),
                _ => {}
            }
        }
        Some(Self {
            link: header.index,
            // IPv6 has no IFA_LOCAL unless there is a peer.
            addr: IpNet::new(local.or(peer)?, header.prefix_len).ok()?,
            broadcast,
            nodad: flags & libc::IFA_F_NODAD != 0,
            tentative: flags & libc::IFA_F_TENTATIVE != 0,
            duplicate: flags & libc::IFA_F_DADFAILED != 0,
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
        let header = NeighbourHeader::parse(message)?;
        if header.flags & libc::NTF_PROXY != 0 {
            return None;
        }
        let (mut addr, mut mac, mut protocol) = (None, None, 0);
        for (kind, value) in attributes(NeighbourHeader::attributes(message)) {
            match kind {
                libc::NDA_DST => addr = read_ip(header.family, value),
                libc::NDA_LLADDR => mac = read_mac(value),
                NDA_PROTOCOL => protocol = *value.first()?,
                _ => {}
            }
        }
        let permanent = header.state == libc::NUD_PERMANENT;
        Some(Self { link: header.link, addr: addr?, mac, permanent, protocol })
    }
}

impl Fdb {
    /// Parses an entry of a tunnel device. Entries of a bridge refer to ports instead of addresses and are `None`.
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let header = NeighbourHeader::parse(message)?;
        let (mut dst, mut mac) = (None, None);
        for (kind, value) in attributes(NeighbourHeader::attributes(message)) {
            match kind {
                libc::NDA_DST if value.len() == 4 => dst = read_ip(AF_INET, value),
                libc::NDA_DST => dst = read_ip(AF_INET6, value),
                libc::NDA_LLADDR => mac = read_mac(value),
                _ => {}
            }
        }
        if header.family != AF_BRIDGE {
            return None;
        }
        Some(Self { link: header.link, mac: mac?, dst: dst? })
    }
}

impl Route {
    /// Parses a configured unicast route. Cached routes and local addresses are `None`.
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        Self::parse_any(message).filter(|route| route.kind == RouteKind::Unicast)
    }

    /// Parses unicast and unreachable routes.
    pub(crate) fn parse_any(message: &[u8]) -> Option<Self> {
        let header = RouteHeader::parse(message)?;
        let kind = match header.kind {
            libc::RTN_UNICAST => RouteKind::Unicast,
            libc::RTN_UNREACHABLE => RouteKind::Unreachable,
            _ => return None,
        };
        if header.flags & libc::RTM_F_CLONED != 0 {
            return None;
        }
        let default_dst = IpNet::new(unspecified(header.family)?, header.dst_len).ok()?;
        let mut route = Self {
            onlink: header.flags & RTNH_F_ONLINK != 0,
            scope: match header.scope {
                libc::RT_SCOPE_LINK => RouteScope::Link,
                libc::RT_SCOPE_HOST | libc::RT_SCOPE_NOWHERE => RouteScope::Host,
                _ => RouteScope::Universe,
            },
            table: Some(u32::from(header.table)),
            protocol: header.protocol,
            kind,
            ..Self::to(default_dst)
        };
        for (kind, value) in attributes(RouteHeader::attributes(message)) {
            match kind {
                libc::RTA_DST => {
                    let dst = read_ip(header.family, value)?;
                    route.dst = IpNet::new(dst, header.dst_len).ok()?;
                }
                libc::RTA_GATEWAY => route.gateway = read_ip(header.family, value),
                libc::RTA_VIA => route.gateway = read_via(value),
                libc::RTA_OIF => route.link = read_u32(value),
                libc::RTA_PREFSRC => route.src = read_ip(header.family, value),
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

/// The result of a route lookup for an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteLookup {
    pub link: u32,
    pub gateway: Option<IpAddr>,
    pub src: Option<IpAddr>,
    /// The address belongs to this host.
    pub local: bool,
}

impl RouteLookup {
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let header = RouteHeader::parse(message)?;
        let (mut link, mut gateway, mut src) = (None, None, None);
        for (kind, value) in attributes(RouteHeader::attributes(message)) {
            match kind {
                libc::RTA_OIF => link = read_u32(value),
                libc::RTA_GATEWAY => gateway = read_ip(header.family, value),
                libc::RTA_VIA => gateway = read_via(value),
                libc::RTA_PREFSRC => src = read_ip(header.family, value),
                _ => {}
            }
        }
        Some(Self { link: link?, gateway, src, local: header.kind == libc::RTN_LOCAL })
    }
}

/// A FIB entry of any type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteMatch {
    pub dst: IpNet,
    pub link: Option<u32>,
    pub protocol: u8,
    /// The address belongs to this host.
    pub local: bool,
    /// One link and no gateway.
    pub direct: bool,
}

impl RouteMatch {
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let header = RouteHeader::parse(message)?;
        let (mut dst, mut link, mut has_gateway) = (unspecified(header.family)?, None, false);
        for (kind, value) in attributes(RouteHeader::attributes(message)) {
            match kind {
                libc::RTA_DST => dst = read_ip(header.family, value)?,
                libc::RTA_OIF => link = read_u32(value),
                libc::RTA_GATEWAY | libc::RTA_VIA => has_gateway = true,
                _ => {}
            }
        }
        Some(Self {
            dst: IpNet::new(dst, header.dst_len).ok()?,
            link,
            protocol: header.protocol,
            local: header.kind == libc::RTN_LOCAL,
            direct: link.is_some() && !has_gateway,
        })
    }
}
