//! Kernel events about the paths to other nodes: routes to their blocks, neighbour and FDB entries of the tunnel, and the
//! links and addresses of the underlay. Covers the socket's namespace only, so changes inside pods cause no events.
//!
//! Changes by Podwire are reported, too. Events carry the new state, so that the reader can compare it with the desired state.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use ipnet::IpNet;
use netlink_packet_core::NLM_F_REPLACE;
use types::{Mac, PEER_PROTOCOL};

use crate::error::Error;
use crate::listener::{EventsRead, Listener};
use crate::netns::NetNs;
use crate::op::{Fdb, Route};
use crate::socket::{Content, NetlinkProtocol, Reply, Socket};
use crate::view::{Address, Link, Neighbour};

const GROUPS: [u32; 6] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_NEIGH,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV6_ROUTE,
];

/// A change. "Managed" objects have `PEER_PROTOCOL`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerEvent {
    /// A managed route was added or changed.
    RouteSet(Route),
    /// A managed route was removed. The kernel does not report IPv4 routes that it drops because their link is removed, goes
    /// down, or loses its last IPv4 address. List the routes after `Link`, `LinkRemoved` and `AddressRemoved`.
    RouteRemoved(Route),
    /// An unmanaged route replaced another route to the same destination. The kernel does not report the replaced route,
    /// which may be a managed one.
    RouteReplaced(IpNet),
    /// A default route was added, changed or removed.
    DefaultRoute,
    /// A link was added or changed.
    Link(Link),
    LinkRemoved {
        index: u32,
        name: String,
    },
    AddressSet(Address),
    AddressRemoved(Address),
    /// A managed neighbour was added or changed.
    NeighbourSet {
        link: u32,
        addr: IpAddr,
        mac: Option<Mac>,
    },
    NeighbourRemoved {
        link: u32,
        addr: IpAddr,
    },
    /// An FDB entry of any tunnel device: entries have no protocol.
    FdbSet(Fdb),
    FdbRemoved(Fdb),
    /// The receive buffer overran. Full reconciliation is needed.
    Lost,
}

/// A socket that reports changes of the paths to other nodes. It needs `CAP_NET_ADMIN`.
pub struct PeerMonitor {
    listener: Listener,
}

impl PeerMonitor {
    /// Monitors the namespace of the calling thread.
    pub fn open() -> Result<Self, Error> {
        let socket = Socket::open(NetlinkProtocol::Route)?;
        socket.grow_event_buffer()?;
        socket.listen(&GROUPS)?;
        Ok(Self { listener: Listener::new(socket) })
    }

    pub fn open_in(netns: &NetNs) -> Result<Self, Error> {
        netns.run(Self::open)?
    }

    /// Reads all pending events without waiting. After an overrun the result is only `Lost`, because the caller has to
    /// reconcile everything.
    pub fn read(&mut self) -> Result<Vec<PeerEvent>, Error> {
        let mut events = Vec::new();
        let events_read = self.listener.read(|reply, _| parse_events(reply, &mut events))?;
        Ok(match events_read {
            EventsRead::All => events,
            EventsRead::Overrun => vec![PeerEvent::Lost],
        })
    }
}

impl AsFd for PeerMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl fmt::Debug for PeerMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerMonitor").field("listener", &self.listener).finish()
    }
}

fn parse_events(reply: &Reply<'_>, events: &mut Vec<PeerEvent>) {
    let Content::Data(body) = reply.content else { return };
    let family = i32::from(body.first().copied().unwrap_or_default());
    match reply.kind {
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE => parse_route(reply, body, events),
        libc::RTM_NEWADDR => events.extend(Address::parse(body).map(PeerEvent::AddressSet)),
        libc::RTM_DELADDR => events.extend(Address::parse(body).map(PeerEvent::AddressRemoved)),
        // Bridges report their ports in the same messages.
        libc::RTM_NEWLINK if family == libc::AF_UNSPEC => {
            events.extend(Link::parse(body).map(PeerEvent::Link));
        }
        libc::RTM_DELLINK if family == libc::AF_UNSPEC => {
            events.extend(
                Link::parse(body).map(|link| PeerEvent::LinkRemoved { index: link.index, name: link.name }),
            );
        }
        libc::RTM_NEWNEIGH if family == libc::AF_BRIDGE => {
            events.extend(Fdb::parse(body).map(PeerEvent::FdbSet));
        }
        libc::RTM_DELNEIGH if family == libc::AF_BRIDGE => {
            events.extend(Fdb::parse(body).map(PeerEvent::FdbRemoved));
        }
        libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH => events.extend(parse_neighbour(reply.kind, body)),
        _ => {}
    }
}

fn parse_route(reply: &Reply<'_>, body: &[u8], events: &mut Vec<PeerEvent>) {
    let Some(route) = Route::parse(body) else { return };
    if route.dst.prefix_len() == 0 {
        events.push(PeerEvent::DefaultRoute);
    }
    let is_managed = route.protocol == PEER_PROTOCOL;
    if reply.kind == libc::RTM_DELROUTE {
        events.extend(is_managed.then_some(PeerEvent::RouteRemoved(route)));
    } else if is_managed {
        events.push(PeerEvent::RouteSet(route));
    } else if reply.flags & NLM_F_REPLACE != 0 {
        events.push(PeerEvent::RouteReplaced(route.dst));
    }
}

fn parse_neighbour(kind: u16, body: &[u8]) -> Option<PeerEvent> {
    let Neighbour { link, addr, mac, protocol, .. } = Neighbour::parse(body)?;
    if protocol != PEER_PROTOCOL {
        return None;
    }
    Some(if kind == libc::RTM_NEWNEIGH {
        PeerEvent::NeighbourSet { link, addr, mac }
    } else {
        PeerEvent::NeighbourRemoved { link, addr }
    })
}
