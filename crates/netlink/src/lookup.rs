//! Queries with a single answer, for ADD and DEL.

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

/// Links per send. An answer has about 2 KiB, and all answers must fit into the receive buffer.
const LINKS_PER_SEND: usize = 32;

pub(crate) fn oversize(operation: &str) -> impl Fn(Oversize) -> Error {
    move |e| Error::Invalid { operation: operation.to_owned(), reason: e.to_string() }
}

fn encode_link(body: &mut Body<'_>, link: LinkRef<'_>) {
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

/// Statistics are the largest part of an answer, and expensive on hosts with many cores.
pub(crate) fn skip_stats(body: &mut Body<'_>) {
    body.u32(libc::IFLA_EXT_MASK, libc::RTEXT_FILTER_SKIP_STATS as u32);
}

impl RtSocket {
    /// The index of a link in the socket's namespace. Unlike [`RtSocket::link`] it does not need the rtnl lock, which is
    /// contended.
    pub fn index_of(&self, name: &IfName) -> Result<Option<u32>, Error> {
        match rustix::net::netdevice::name_to_index(self.socket.as_fd(), name.as_str()) {
            Ok(index) => Ok(Some(index)),
            Err(Errno::NODEV) => Ok(None),
            Err(errno) => Err(Error::Socket { operation: format!("find link {name}"), errno }),
        }
    }

    pub fn link(&mut self, name: &IfName) -> Result<Option<Link>, Error> {
        Ok(self.links_of(&[LinkRef::Name(name)])?.pop().flatten())
    }

    pub fn link_at(&mut self, index: u32) -> Result<Option<Link>, Error> {
        Ok(self.links_of(&[LinkRef::Index(index)])?.pop().flatten())
    }

    /// Reads several links in one send. `None` for a name without a link.
    pub fn links_by_name(&mut self, names: &[&IfName]) -> Result<Vec<Option<Link>>, Error> {
        let refs: Vec<_> = names.iter().map(|name| LinkRef::Name(name)).collect();
        self.links_of(&refs)
    }

    /// Whether multicast snooping is enabled on a bridge. `None` if the link is not a bridge. Only reconciliation needs it.
    pub fn snoops_multicast(&mut self, bridge: u32) -> Result<Option<bool>, Error> {
        let mut results = Vec::new();
        self.read_links(&[LinkRef::Index(bridge)], &mut results, snooping_of)?;
        Ok(results.pop().flatten())
    }

    fn links_of(&mut self, refs: &[LinkRef<'_>]) -> Result<Vec<Option<Link>>, Error> {
        let mut links = Vec::with_capacity(refs.len());
        for chunk in refs.chunks(LINKS_PER_SEND) {
            self.read_links(chunk, &mut links, Link::parse)?;
        }
        Ok(links)
    }

    fn read_links<T>(
        &mut self,
        refs: &[LinkRef<'_>],
        results: &mut Vec<Option<T>>,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<(), Error> {
        let start = results.len();
        let sequences = self.socket.take_sequences(refs.len());
        self.batch.clear();
        for (link, sequence) in refs.iter().zip(sequences.clone()) {
            let head = Head { kind: libc::RTM_GETLINK, flags: NLM_F_REQUEST, sequence };
            self.batch.message(head, |body| encode_link(body, *link)).map_err(oversize("read links"))?;
            results.push(None);
        }
        let operation = |i: usize| format!("read link {}", refs[i]);
        let mut failure = None;
        let answered = self.socket.exchange(&self.batch, sequences, |i, reply| {
            match reply.content {
                Content::Data(message) => results[start + i] = parse(message),
                Content::Refused(refusal) if refusal.errno != Errno::NODEV && failure.is_none() => {
                    failure = Some(refusal.during(operation(i)));
                }
                Content::Refused(_) | Content::Ack | Content::Done => {}
            }
            if i + 1 == refs.len() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        answered.map_err(|e| e.during(operation(0)))?;
        failure.map_or(Ok(()), Err)
    }

    /// The route that the kernel uses for `dst`. Without a route the result is an error (`Error::is_unreachable`).
    pub fn route_to(&mut self, dst: IpAddr) -> Result<RouteLookup, Error> {
        let route = self.look_up(dst, 0, RouteLookup::parse)?;
        route.ok_or_else(|| Error::Malformed { operation: look_up_operation(dst), what: "it names no link" })
    }

    /// The default route that the kernel uses, with its metric. Uses lookups, because a dump cannot be filtered by destination
    /// and a node may have a full routing table. Each lookup asks for the FIB entry of an unassigned address. If all these
    /// addresses have more specific routes, the default route is not found. If one of them has no route, there is no default
    /// route, as in a new pod.
    pub fn default_route(&mut self, family: Family) -> Result<Option<Route>, Error> {
        for address in unassigned_addresses(family) {
            match self.look_up(address, RTM_F_FIB_MATCH, Route::parse) {
                Ok(Some(route)) if route.dst.prefix_len() == 0 => return Ok(Some(route)),
                Ok(_) => {}
                Err(error) if error.errno() == Some(Errno::NETUNREACH) || error.is_unsupported() => break,
                Err(error) if is_without_route(&error) => {}
                Err(error) => return Err(error.during(format_args!("find the {family} default route"))),
            }
        }
        Ok(None)
    }

    /// The FIB entry that the kernel uses for an address. None if the address is unreachable.
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
        let operation = || look_up_operation(dst);
        let sequences = self.socket.take_sequences(1);
        let head = Head { kind: libc::RTM_GETROUTE, flags: NLM_F_REQUEST, sequence: sequences.start };
        self.batch.clear();
        let written = self.batch.message(head, |body| {
            let dst_len = if dst.is_ipv4() { 32 } else { 128 };
            body.header(&RouteHeader { family: family_of(dst), dst_len, flags, ..RouteHeader::default() });
            put_ip(body, libc::RTA_DST, dst);
        });
        written.map_err(oversize("look up a route"))?;
        let mut result = Ok(None);
        let answered = self.socket.exchange(&self.batch, sequences, |_, reply| {
            match reply.content {
                Content::Refused(refusal) => result = Err(refusal.during(operation())),
                Content::Data(message) => result = Ok(parse(message)),
                Content::Ack | Content::Done => {}
            }
            ControlFlow::Break(())
        });
        answered.map_err(|e| e.during(operation()))?;
        result
    }
}

/// For unreachable and prohibit routes the kernel answers with a specific error.
fn is_without_route(error: &Error) -> bool {
    let is_refused = matches!(error.errno(), Some(Errno::ACCESS | Errno::INVAL));
    is_refused || error.is_unreachable() || error.is_missing()
}

fn look_up_operation(dst: IpAddr) -> String {
    format!("look up the route to {dst}")
}

/// Addresses from documentation, benchmark and unassigned ranges.
fn unassigned_addresses(family: Family) -> [IpAddr; 4] {
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
