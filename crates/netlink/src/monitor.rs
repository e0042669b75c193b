//! What changes in the kernel, told by itself: for a loop that keeps the network as it should be. One socket hears of
//! its own namespace and of the pods': the kernel numbers a pod's namespace when a link between the two is made
//! (`IFLA_LINK_NETNSID`), and tells of namespaces that have a number. Namespaces without a link into ours are not heard.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use ipnet::IpNet;

use crate::error::Error;
use crate::kernel::{NETCONFA_FORWARDING, NETCONFA_IFINDEX, RTM_NEWNETCONF};
use crate::listener::{EventsRead, Listener};
use crate::op::Route;
use crate::socket::{Content, NetlinkProtocol, Reply, Socket};
use crate::view::{Address, Link, Neighbour};
use crate::wire::{attribute, read_u32};

const GROUPS: [u32; 8] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_NEIGH,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV6_ROUTE,
    libc::RTNLGRP_IPV4_NETCONF,
    libc::RTNLGRP_IPV6_NETCONF,
];

/// Where something changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Where {
    /// In the namespace of the socket.
    Here,
    /// In another one that has, or had, a link into it: a pod's.
    Elsewhere,
}

/// A change. Removals are reported in all namespaces, whichever process made them. Additions are reported of links, and of
/// addresses and routes in the namespace of the socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEvent {
    /// A link is new, was changed, or is gone.
    Link {
        index: u32,
        name: Option<String>,
        up: bool,
        gone: bool,
        place: Where,
    },
    /// A link is no port of its bridge any more.
    PortLeft {
        index: u32,
        place: Where,
    },
    AddressGone {
        link: u32,
        addr: IpNet,
        place: Where,
    },
    /// In the namespace of the socket. The kernel reports the protocol since Linux 5.18.
    AddressAdded {
        addr: IpNet,
        protocol: Option<u8>,
    },
    /// A unicast or unreachable route of the main table, in the namespace of the socket.
    RouteAdded {
        dst: IpNet,
        protocol: u8,
    },
    /// A unicast or unreachable route. The kernel does not report IPv4 routes that it drops because their link goes down
    /// or away, or loses its last IPv4 address: list routes after `Link` and `AddressGone`.
    RouteGone {
        dst: IpNet,
        link: Option<u32>,
        protocol: u8,
        place: Where,
    },
    /// A neighbour that somebody entered under a protocol's number. The kernel learns others, and forgets them all day.
    NeighbourGone {
        link: u32,
        addr: IpAddr,
        protocol: u8,
        place: Where,
    },
    /// The namespace as a whole forwards no more, in one family.
    ForwardingOff {
        place: Where,
    },
    /// There was more than the socket could keep: look at everything.
    Lost,
}

/// A socket that tells what changes. It needs `CAP_NET_ADMIN` and, to hear of the pods, `CAP_NET_BROADCAST`.
pub struct Monitor {
    listener: Listener,
}

impl Monitor {
    /// For the namespace of the calling thread.
    pub fn open() -> Result<Self, Error> {
        let socket = Socket::open(NetlinkProtocol::Route)?;
        socket.grow_event_buffer()?;
        socket.listen_to_other_namespaces()?;
        socket.listen(&GROUPS)?;
        Ok(Self { listener: Listener::new(socket) })
    }

    /// Everything that is there to read now, without waiting. An overrun is no error but `LinkEvent::Lost`, and then that is
    /// all: whoever looks at everything need not know the rest.
    pub fn read(&mut self) -> Result<Vec<LinkEvent>, Error> {
        let mut events = Vec::new();
        let observed = self.listener.read(|reply, place| events.extend(read_events(reply, place)))?;
        Ok(match observed {
            EventsRead::All => events,
            EventsRead::NotAll => vec![LinkEvent::Lost],
        })
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor").field("listener", &self.listener).finish()
    }
}

fn read_events(reply: &Reply<'_>, place: Where) -> Option<LinkEvent> {
    let Content::Data(body) = reply.content else { return None };
    let family = i32::from(*body.first()?);
    match reply.kind {
        libc::RTM_NEWLINK | libc::RTM_DELLINK => read_link(body, reply.kind, place),
        libc::RTM_DELADDR => {
            Address::parse(body).map(|a| LinkEvent::AddressGone { link: a.link, addr: a.addr, place })
        }
        libc::RTM_NEWADDR if place == Where::Here => {
            Address::parse(body).map(|a| LinkEvent::AddressAdded { addr: a.addr, protocol: a.protocol })
        }
        libc::RTM_NEWROUTE if place == Where::Here => Route::parse_any(body)
            .filter(|r| r.table == Some(u32::from(libc::RT_TABLE_MAIN)))
            .map(|r| LinkEvent::RouteAdded { dst: r.dst, protocol: r.protocol }),
        libc::RTM_DELROUTE => Route::parse_any(body).map(|r| LinkEvent::RouteGone {
            dst: r.dst,
            link: r.link,
            protocol: r.protocol,
            place,
        }),
        RTM_NEWNETCONF => is_forwarding_off(body).then_some(LinkEvent::ForwardingOff { place }),
        // A bridge keeps the MACs behind its ports in a table that speaks the same messages.
        libc::RTM_DELNEIGH if family != libc::AF_BRIDGE => {
            let Neighbour { link, addr, protocol, .. } = Neighbour::parse(body)?;
            // It was permanent once, but a neighbour that goes is always told as failed.
            (protocol != 0).then_some(LinkEvent::NeighbourGone { link, addr, protocol, place })
        }
        _ => None,
    }
}

/// `struct netconfmsg`, padded: the family, then what was changed, of one link or (-1) of all.
fn is_forwarding_off(body: &[u8]) -> bool {
    let value = |kind| attribute(body.get(4..).unwrap_or_default(), kind).and_then(read_u32);
    value(NETCONFA_IFINDEX) == Some(u32::MAX) && value(NETCONFA_FORWARDING) == Some(0)
}

fn read_link(body: &[u8], kind: u16, place: Where) -> Option<LinkEvent> {
    let gone = kind == libc::RTM_DELLINK;
    let link = Link::parse(body)?;
    match i32::from(*body.first()?) {
        libc::AF_UNSPEC => {
            let name = Some(link.name).filter(|name| !name.is_empty());
            Some(LinkEvent::Link { index: link.index, name, up: link.up, gone, place })
        }
        libc::AF_BRIDGE if gone => Some(LinkEvent::PortLeft { index: link.index, place }),
        _ => None,
    }
}
