//! Questions with one answer, for the way of a pod.

use std::net::IpAddr;

use netlink_packet_core::NLM_F_REQUEST;
use netlink_packet_route::link::LinkHeader;
use netlink_packet_route::route::RouteHeader;
use rustix::io::Errno;
use types::IfName;

use crate::encode::{encode, family_of, put_ip};
use crate::error::Error;
use crate::op::{LinkRef, Op, Veth};
use crate::rtsocket::RtSocket;
use crate::socket::Content;
use crate::view::{Link, RouteLookup};
use crate::wire::{Body, Head, Oversize};

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

/// What became of a veth that was to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VethOutcome {
    /// The host end; its `peer` is the index of the other end in the other namespace.
    Created(Link),
    /// Nothing was made, because this link has the host end's name.
    HostNameTaken(Link),
}

impl RtSocket {
    /// Makes a veth and reads its indices in the same send. `Error::is_exists` means that the peer's name is taken.
    pub fn add_veth(&mut self, veth: &Veth<'_>) -> Result<VethOutcome, Error> {
        let op = Op::AddVeth(*veth);
        let first = self.socket.take_sequences(2);
        self.batch.clear();
        encode(&mut self.batch, &op, first)?;
        let head = Head { kind: libc::RTM_GETLINK, flags: NLM_F_REQUEST, sequence: first + 1 };
        let written = self.batch.message(head, |body| ask_link(body, LinkRef::Name(veth.host)));
        written.map_err(oversize("create a veth"))?;
        self.socket.send(self.batch.as_bytes()).map_err(|e| e.during(op))?;

        let (mut made, mut link) = (None, None);
        while made.is_none() || link.is_none() {
            for reply in self.socket.receive().map_err(|e| e.during(op))? {
                match (reply.sequence.wrapping_sub(first), reply.content) {
                    (0, Content::Refused(refusal)) => made = Some(Err(refusal)),
                    (0, _) => made = Some(Ok(())),
                    (1, Content::Data(message)) => link = Some(Link::parse(message)),
                    (1, _) => link = Some(None),
                    _ => {}
                }
            }
        }
        match (made, link.flatten()) {
            (Some(Err(refusal)), Some(link)) if refusal.errno == Errno::EXIST => {
                Ok(VethOutcome::HostNameTaken(link))
            }
            (Some(Err(refusal)), _) => Err(refusal.during(op)),
            (_, Some(link)) => Ok(VethOutcome::Created(link)),
            (_, None) => {
                Err(Error::Malformed { operation: op.to_string(), what: "the new link is not there" })
            }
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

    fn links_of(&mut self, refs: &[LinkRef<'_>]) -> Result<Vec<Option<Link>>, Error> {
        let mut found = Vec::with_capacity(refs.len());
        for chunk in refs.chunks(LINKS) {
            self.read_links(chunk, &mut found)?;
        }
        Ok(found)
    }

    fn read_links(&mut self, refs: &[LinkRef<'_>], found: &mut Vec<Option<Link>>) -> Result<(), Error> {
        let start = found.len();
        let first = self.socket.take_sequences(LINKS as u32);
        self.batch.clear();
        for (link, sequence) in refs.iter().zip(first..) {
            let head = Head { kind: libc::RTM_GETLINK, flags: NLM_F_REQUEST, sequence };
            self.batch.message(head, |body| ask_link(body, *link)).map_err(oversize("read links"))?;
            found.push(None);
        }
        let words = |i: usize| format!("read link {}", refs[i]);
        self.socket.send(self.batch.as_bytes()).map_err(|e| e.during(words(0)))?;
        let mut open = (1u64 << refs.len()) - 1;
        let mut failure = None;
        while open != 0 {
            for reply in self.socket.receive().map_err(|e| e.during(words(0)))? {
                let i = reply.sequence.wrapping_sub(first) as usize;
                if i >= refs.len() || open & (1 << i) == 0 {
                    continue;
                }
                open &= !(1 << i);
                match reply.content {
                    Content::Data(message) => found[start + i] = Link::parse(message),
                    Content::Refused(refusal) if refusal.errno != Errno::NODEV => {
                        failure = failure.or(Some(refusal.during(words(i))));
                    }
                    Content::Refused(_) | Content::Ack | Content::Done => {}
                }
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Which way the kernel would send to `dst`. No route is an error (`Error::is_unreachable`).
    pub fn route_to(&mut self, dst: IpAddr) -> Result<RouteLookup, Error> {
        let words = || format!("look up the route to {dst}");
        let sequence = self.socket.take_sequences(1);
        let head = Head { kind: libc::RTM_GETROUTE, flags: NLM_F_REQUEST, sequence };
        self.batch.clear();
        let written = self.batch.message(head, |body| {
            let destination_prefix_length = if dst.is_ipv4() { 32 } else { 128 };
            let address_family = family_of(dst);
            body.header(&RouteHeader { address_family, destination_prefix_length, ..RouteHeader::default() });
            put_ip(body, libc::RTA_DST, dst);
        });
        written.map_err(oversize("look up a route"))?;
        self.socket.send(self.batch.as_bytes()).map_err(|e| e.during(words()))?;
        loop {
            for reply in self.socket.receive().map_err(|e| e.during(words()))? {
                match reply.content {
                    _ if reply.sequence != sequence => {}
                    Content::Refused(refusal) => return Err(refusal.during(words())),
                    Content::Data(message) => {
                        let malformed = || Error::Malformed { operation: words(), what: "it names no link" };
                        return RouteLookup::parse(message).ok_or_else(malformed);
                    }
                    Content::Ack | Content::Done => {}
                }
            }
        }
    }
}
