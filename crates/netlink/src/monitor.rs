//! Kernel events for the reconciler. One socket receives events of its own namespace and of the pods. The kernel assigns an
//! ID to a pod's namespace when a link between both namespaces is created (`IFLA_LINK_NETNSID`), and sends events of
//! namespaces that have an ID. Namespaces without a link into this one are not observed.

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

/// The namespace of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventNamespace {
    /// The namespace of the socket.
    Own,
    /// Another namespace that has, or had, a link into the socket's namespace: a pod.
    Pod,
}

/// A change. Removals are reported in all observed namespaces, for all processes. Additions are reported for links, and for
/// addresses and routes in the socket's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEvent {
    /// A link was added, changed or removed.
    Link {
        index: u32,
        name: Option<String>,
        up: bool,
        group: u32,
        removed: bool,
        namespace: EventNamespace,
    },
    /// A link was removed from its bridge.
    PortLeft {
        index: u32,
        namespace: EventNamespace,
    },
    AddressRemoved {
        link: u32,
        addr: IpNet,
        namespace: EventNamespace,
    },
    /// In the socket's namespace. The kernel reports the protocol since Linux 5.18.
    AddressAdded {
        addr: IpNet,
        protocol: Option<u8>,
    },
    /// A unicast or unreachable route in the main table of the socket's namespace.
    RouteAdded {
        dst: IpNet,
        protocol: u8,
    },
    /// A unicast or unreachable route. The kernel does not report IPv4 routes that it drops because their link is removed, goes
    /// down, or loses its last IPv4 address. List the routes after `Link` and `AddressRemoved`.
    RouteRemoved {
        dst: IpNet,
        link: Option<u32>,
        protocol: u8,
        namespace: EventNamespace,
    },
    /// A neighbour with a protocol number. Entries that the kernel learns have none and are not reported.
    NeighbourRemoved {
        link: u32,
        addr: IpAddr,
        protocol: u8,
        namespace: EventNamespace,
    },
    /// Global forwarding was disabled in the namespace, for one family.
    ForwardingOff {
        namespace: EventNamespace,
    },
    /// The receive buffer overran. Full reconciliation is needed.
    Lost,
}

/// A socket that reports changes. It needs `CAP_NET_ADMIN` and, for events of pods, `CAP_NET_BROADCAST`.
pub struct Monitor {
    listener: Listener,
}

impl Monitor {
    /// Monitors the namespace of the calling thread.
    pub fn open() -> Result<Self, Error> {
        let socket = Socket::open(NetlinkProtocol::Route)?;
        socket.grow_event_buffer()?;
        socket.listen_to_other_namespaces()?;
        socket.listen(&GROUPS)?;
        Ok(Self { listener: Listener::new(socket) })
    }

    /// Reads all pending events without waiting. An overrun is not an error: the result is then only `LinkEvent::Lost`, because
    /// the caller has to reconcile everything.
    pub fn read(&mut self) -> Result<Vec<LinkEvent>, Error> {
        let mut events = Vec::new();
        let events_read =
            self.listener.read(|reply, namespace| events.extend(parse_event(reply, namespace)))?;
        Ok(match events_read {
            EventsRead::All => events,
            EventsRead::Overrun => vec![LinkEvent::Lost],
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

fn parse_event(reply: &Reply<'_>, namespace: EventNamespace) -> Option<LinkEvent> {
    let Content::Data(body) = reply.content else { return None };
    let family = i32::from(*body.first()?);
    match reply.kind {
        libc::RTM_NEWLINK | libc::RTM_DELLINK => parse_link(body, reply.kind, namespace),
        libc::RTM_DELADDR => {
            Address::parse(body).map(|a| LinkEvent::AddressRemoved { link: a.link, addr: a.addr, namespace })
        }
        libc::RTM_NEWADDR if namespace == EventNamespace::Own => {
            Address::parse(body).map(|a| LinkEvent::AddressAdded { addr: a.addr, protocol: a.protocol })
        }
        libc::RTM_NEWROUTE if namespace == EventNamespace::Own => Route::parse_any(body)
            .filter(|r| r.table == Some(u32::from(libc::RT_TABLE_MAIN)))
            .map(|r| LinkEvent::RouteAdded { dst: r.dst, protocol: r.protocol }),
        libc::RTM_DELROUTE => Route::parse_any(body).map(|r| LinkEvent::RouteRemoved {
            dst: r.dst,
            link: r.link,
            protocol: r.protocol,
            namespace,
        }),
        RTM_NEWNETCONF => is_forwarding_off(body).then_some(LinkEvent::ForwardingOff { namespace }),
        // FDB entries of bridges use the same messages.
        libc::RTM_DELNEIGH if family != libc::AF_BRIDGE => {
            let Neighbour { link, addr, protocol, .. } = Neighbour::parse(body)?;
            // A permanent entry is reported with state "failed" when it is removed, so only the protocol identifies it.
            (protocol != 0).then_some(LinkEvent::NeighbourRemoved { link, addr, protocol, namespace })
        }
        _ => None,
    }
}

/// `struct netconfmsg`, padded: the family, then the changed setting of one link or (-1) of all links.
fn is_forwarding_off(body: &[u8]) -> bool {
    let value = |kind| attribute(body.get(4..).unwrap_or_default(), kind).and_then(read_u32);
    value(NETCONFA_IFINDEX) == Some(u32::MAX) && value(NETCONFA_FORWARDING) == Some(0)
}

fn parse_link(body: &[u8], kind: u16, namespace: EventNamespace) -> Option<LinkEvent> {
    let removed = kind == libc::RTM_DELLINK;
    let link = Link::parse(body)?;
    match i32::from(*body.first()?) {
        libc::AF_UNSPEC => {
            let name = Some(link.name).filter(|name| !name.is_empty());
            let (index, up, group) = (link.index, link.up, link.group);
            Some(LinkEvent::Link { index, name, up, group, removed, namespace })
        }
        libc::AF_BRIDGE if removed => Some(LinkEvent::PortLeft { index: link.index, namespace }),
        _ => None,
    }
}
