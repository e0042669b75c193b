//! Questions with one answer, for the way of a pod.

use std::net::IpAddr;
use std::ops::ControlFlow;
use std::os::fd::AsFd as _;

use rustix::io::Errno;
use types::{Family, IfName};

use crate::encode::{family_of, put_ip};
use crate::error::Error;
use crate::header::{LinkHeader, RouteHeader};
use crate::kernel::RTM_F_FIB_MATCH;
use crate::op::{LinkRef, Route};
use crate::rtsocket::RtSocket;
use crate::socket::Content;
use crate::view::{Link, RouteLookup, RouteMatch, snooping_of};
use crate::wire::{Body, Head, NLM_F_REQUEST, Oversize};

/// Links per send: an answer takes some 2 KiB, and all must fit the receive buffer at once.
const LINKS: usize = 32;

pub(crate) fn oversize(operation: &str) -> impl Fn(Oversize) -> Error {
    move |e| Error::Invalid { operation: operation.to_owned(), reason: e.to_string() }
}

fn ask_link(body: &mut Body<'_>, link: LinkRef<'_>) {
    let mut header = LinkHeader::default();
    if let LinkRef::Index(index) = link {
        header.index = index;
    }
    body.header(&header);
    skip_stats(body);
    if let LinkRef::Name(name) = link {
        body.str(libc::IFLA_IFNAME, name.as_str());
    }
}

/// Statistics are most of an answer, and dear on machines with many cores.
pub(crate) fn skip_stats(body: &mut Body<'_>) {
    body.u32(libc::IFLA_EXT_MASK, libc::RTEXT_FILTER_SKIP_STATS as u32);
}

impl RtSocket {
    /// The index of a link of the socket's namespace. Unlike [`RtSocket::link`] it does not wait for the kernel's lock over
    /// all links, for which everybody queues.
    pub fn index_of(&self, name: &IfName) -> Result<Option<u32>, Error> {
        match rustix::net::netdevice::name_to_index(self.socket.as_fd(), name.as_str()) {
            Ok(index) => Ok(Some(index)),
            Err(Errno::NODEV) => Ok(None),
            Err(errno) => Err(Error::Socket { operation: format!("look for link {name}"), errno }),
        }
    }

    pub fn link(&mut self, name: &IfName) -> Result<Option<Link>, Error> {
        Ok(self.links_of(&[LinkRef::Name(name)])?.pop().flatten())
    }

    pub fn link_at(&mut self, index: u32) -> Result<Option<Link>, Error> {
        Ok(self.links_of(&[LinkRef::Index(index)])?.pop().flatten())
    }

    /// Several links in one send; `None` where there is no link of that name.
    pub fn links_by_name(&mut self, names: &[&IfName]) -> Result<Vec<Option<Link>>, Error> {
        let refs: Vec<_> = names.iter().map(|name| LinkRef::Name(name)).collect();
        self.links_of(&refs)
    }

    /// Whether a bridge listens for who wants which multicast; `None` where it is no bridge. Only rounds ask for it.
    pub fn snoops_multicast(&mut self, bridge: u32) -> Result<Option<bool>, Error> {
        let mut found = Vec::new();
        self.read_links(&[LinkRef::Index(bridge)], &mut found, snooping_of)?;
        Ok(found.pop().flatten())
    }

    fn links_of(&mut self, refs: &[LinkRef<'_>]) -> Result<Vec<Option<Link>>, Error> {
        let mut found = Vec::with_capacity(refs.len());
        for chunk in refs.chunks(LINKS) {
            self.read_links(chunk, &mut found, Link::parse)?;
        }
        Ok(found)
    }

    fn read_links<T>(
        &mut self,
        refs: &[LinkRef<'_>],
        found: &mut Vec<Option<T>>,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<(), Error> {
        let start = found.len();
        let sequences = self.socket.take_sequences(refs.len());
        self.batch.clear();
        for (link, sequence) in refs.iter().zip(sequences.clone()) {
            let head = Head { kind: libc::RTM_GETLINK, flags: NLM_F_REQUEST, sequence };
            self.batch.message(head, |body| ask_link(body, *link)).map_err(oversize("read links"))?;
            found.push(None);
        }
        let words = |i: usize| format!("read link {}", refs[i]);
        let mut failure = None;
        let answered = self.socket.exchange(&self.batch, sequences, |i, reply| {
            match reply.content {
                Content::Data(message) => found[start + i] = parse(message),
                Content::Refused(refusal) if refusal.errno != Errno::NODEV && failure.is_none() => {
                    failure = Some(refusal.during(words(i)));
                }
                Content::Refused(_) | Content::Ack | Content::Done => {}
            }
            if i + 1 == refs.len() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        answered.map_err(|e| e.during(words(0)))?;
        failure.map_or(Ok(()), Err)
    }

    /// Which way the kernel would send to `dst`. No route is an error (`Error::is_unreachable`).
    pub fn route_to(&mut self, dst: IpAddr) -> Result<RouteLookup, Error> {
        let found = self.look_up(dst, 0, RouteLookup::parse)?;
        found.ok_or_else(|| Error::Malformed { operation: look_up_words(dst), what: "it names no link" })
    }

    /// The default route that the kernel takes, with its metric. By lookups and not by a list, because a list cannot be
    /// asked for by destination: a node with the whole Internet's routes would send them all. Each asks for the route
    /// behind an unassigned address. Where all of these have routes of their own, the default route is not found. Where one
    /// of them has no route at all, there is no default route, as in a new pod.
    pub fn default_route(&mut self, family: Family) -> Result<Option<Route>, Error> {
        for address in unassigned(family) {
            match self.look_up(address, RTM_F_FIB_MATCH, Route::parse) {
                Ok(Some(route)) if route.dst.prefix_len() == 0 => return Ok(Some(route)),
                Ok(_) => {}
                Err(error) if error.errno() == Some(Errno::NETUNREACH) || error.is_unsupported() => break,
                Err(error) if is_without_route(&error) => {}
                Err(error) => return Err(error.during(format_args!("look for the {family} default route"))),
            }
        }
        Ok(None)
    }

    /// The entry of the routing tables that the kernel uses for an address; None if the address is unreachable.
    pub fn matched_route(&mut self, dst: IpAddr) -> Result<Option<RouteMatch>, Error> {
        match self.look_up(dst, RTM_F_FIB_MATCH, RouteMatch::parse) {
            Err(error) if is_without_route(&error) => Ok(None),
            other => other,
        }
    }

    fn look_up<T>(
        &mut self,
        dst: IpAddr,
        flags: u32,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let words = || look_up_words(dst);
        let sequences = self.socket.take_sequences(1);
        let head = Head { kind: libc::RTM_GETROUTE, flags: NLM_F_REQUEST, sequence: sequences.start };
        self.batch.clear();
        let written = self.batch.message(head, |body| {
            let dst_len = if dst.is_ipv4() { 32 } else { 128 };
            body.header(&RouteHeader { family: family_of(dst), dst_len, flags, ..RouteHeader::default() });
            put_ip(body, libc::RTA_DST, dst);
        });
        written.map_err(oversize("look up a route"))?;
        let mut found = Ok(None);
        let answered = self.socket.exchange(&self.batch, sequences, |_, reply| {
            match reply.content {
                Content::Refused(refusal) => found = Err(refusal.during(words())),
                Content::Data(message) => found = Ok(parse(message)),
                Content::Ack | Content::Done => {}
            }
            ControlFlow::Break(())
        });
        answered.map_err(|e| e.during(words()))?;
        found
    }
}

/// An unreachable or prohibited destination is answered with its own error.
fn is_without_route(error: &Error) -> bool {
    let is_refused = matches!(error.errno(), Some(Errno::ACCESS | Errno::INVAL));
    is_refused || error.is_unreachable() || error.is_missing()
}

fn look_up_words(dst: IpAddr) -> String {
    format!("look up the route to {dst}")
}

/// Of networks for documentation and benchmarks, and of unassigned ranges.
fn unassigned(family: Family) -> [IpAddr; 4] {
    match family {
        Family::V4 => {
            [[192, 0, 2, 200], [198, 51, 100, 200], [203, 0, 113, 200], [198, 19, 255, 200]].map(IpAddr::from)
        }
        Family::V6 => [
            [0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 0xc8],
            [0x3fff, 0xfff, 0, 0, 0, 0, 0, 0xc8],
            [0x2001, 2, 0, 0xffff, 0, 0, 0, 0xc8],
            [0x3ffe, 0xffff, 0, 0, 0, 0, 0, 0xc8],
        ]
        .map(IpAddr::from),
    }
}
