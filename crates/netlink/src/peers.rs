//! What changes of all that leads to other nodes, told by the kernel: the routes to their blocks, the entries behind the
//! tunnel, the links and addresses below. Of its own namespace only, so a pod's life inside wakes nobody here.
//!
//! Our own changes come back too. News carry what there is now, so that the reader can compare it with what it wants.

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

/// A change; "ours" is what has `PEER_PROTOCOL`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerEvent {
    /// A route of ours is new or was changed.
    RouteSet(Route),
    /// A route of ours was removed. Nothing is told of IPv4 routes that the kernel drops because their link goes down or
    /// away, or loses its last IPv4 address: look at routes after `Link`, `LinkGone` and `AddressGone`.
    RouteGone(Route),
    /// Somebody's route took the place of another to the same destination, maybe of ours: of that one nothing is told.
    RouteTaken(IpNet),
    /// A default route is new, was changed or is gone.
    DefaultRoute,
    /// A link is new or was changed.
    Link(Link),
    LinkGone {
        index: u32,
        name: String,
    },
    AddressSet(Address),
    AddressGone(Address),
    /// A neighbour of ours is new or was changed.
    NeighbourSet {
        link: u32,
        addr: IpAddr,
        mac: Option<Mac>,
    },
    NeighbourGone {
        link: u32,
        addr: IpAddr,
    },
    /// Of any tunnel device: entries carry no protocol.
    FdbSet(Fdb),
    FdbGone(Fdb),
    /// There was more than the socket could keep: look at everything.
    Missed,
}

/// A socket that tells of what leads to other nodes. It needs `CAP_NET_ADMIN`.
pub struct PeerMonitor {
    listener: Listener,
}

impl PeerMonitor {
    /// For the namespace of the calling thread.
    pub fn open() -> Result<Self, Error> {
        let socket = Socket::open(NetlinkProtocol::Route)?;
        socket.grow_event_buffer()?;
        socket.listen(&GROUPS)?;
        Ok(Self { listener: Listener::new(socket) })
    }

    pub fn open_in(netns: &NetNs) -> Result<Self, Error> {
        netns.run(Self::open)?
    }

    /// Everything that is there to read now, without waiting. After an overrun it is `Missed` alone: whoever looks at
    /// everything need not know the rest.
    pub fn read(&mut self) -> Result<Vec<PeerEvent>, Error> {
        let mut events = Vec::new();
        let observed = self.listener.read(|reply, _| read_events(reply, &mut events))?;
        Ok(match observed {
            EventsRead::All => events,
            EventsRead::NotAll => vec![PeerEvent::Missed],
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

fn read_events(reply: &Reply<'_>, events: &mut Vec<PeerEvent>) {
    let Content::Data(body) = reply.content else { return };
    let family = i32::from(body.first().copied().unwrap_or_default());
    match reply.kind {
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE => read_route(reply, body, events),
        libc::RTM_NEWADDR => events.extend(Address::parse(body).map(PeerEvent::AddressSet)),
        libc::RTM_DELADDR => events.extend(Address::parse(body).map(PeerEvent::AddressGone)),
        // A bridge tells of its ports in the same messages.
        libc::RTM_NEWLINK if family == libc::AF_UNSPEC => {
            events.extend(Link::parse(body).map(PeerEvent::Link));
        }
        libc::RTM_DELLINK if family == libc::AF_UNSPEC => {
            events.extend(
                Link::parse(body).map(|link| PeerEvent::LinkGone { index: link.index, name: link.name }),
            );
        }
        libc::RTM_NEWNEIGH if family == libc::AF_BRIDGE => {
            events.extend(Fdb::parse(body).map(PeerEvent::FdbSet));
        }
        libc::RTM_DELNEIGH if family == libc::AF_BRIDGE => {
            events.extend(Fdb::parse(body).map(PeerEvent::FdbGone));
        }
        libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH => events.extend(read_neighbour(reply.kind, body)),
        _ => {}
    }
}

fn read_route(reply: &Reply<'_>, body: &[u8], events: &mut Vec<PeerEvent>) {
    let Some(route) = Route::parse(body) else { return };
    if route.dst.prefix_len() == 0 {
        events.push(PeerEvent::DefaultRoute);
    }
    let is_ours = route.protocol == PEER_PROTOCOL;
    if reply.kind == libc::RTM_DELROUTE {
        events.extend(is_ours.then_some(PeerEvent::RouteGone(route)));
    } else if is_ours {
        events.push(PeerEvent::RouteSet(route));
    } else if reply.flags & NLM_F_REPLACE != 0 {
        events.push(PeerEvent::RouteTaken(route.dst));
    }
}

fn read_neighbour(kind: u16, body: &[u8]) -> Option<PeerEvent> {
    let Neighbour { link, addr, mac, protocol, .. } = Neighbour::parse(body)?;
    if protocol != PEER_PROTOCOL {
        return None;
    }
    Some(if kind == libc::RTM_NEWNEIGH {
        PeerEvent::NeighbourSet { link, addr, mac }
    } else {
        PeerEvent::NeighbourGone { link, addr }
    })
}
