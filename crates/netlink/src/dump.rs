//! Lists of everything of one kind, for CHECK, sweeps and tests.

use crate::encode::{self, INGRESS_QDISC};
use crate::error::Error;
use crate::exchange::Dump;
use crate::header::{AddressHeader, LinkHeader, NeighbourHeader, RouteHeader, TcHeader};
use crate::kernel::{AF_BRIDGE, AF_INET, AF_INET6};
use crate::lookup::{oversize, skip_stats};
use crate::op::{Fdb, Route, RouteKind};
use crate::rtsocket::RtSocket;
use crate::view::{self, Address, Link, Neighbour, Qdisc};
use crate::wire::{Body, Head, NLM_F_DUMP, NLM_F_REQUEST};

/// How often a dump that changed under our eyes is begun again.
const TRIES: u32 = 10;
/// Where a list that is not whole is good enough: each try holds the kernel's lock over all links.
const FEW_TRIES: u32 = 3;

/// What is listed: in words, and as message type.
struct DumpKind(&'static str, u16);

const LINKS: DumpKind = DumpKind("list links", libc::RTM_GETLINK);

fn ask_links(body: &mut Body<'_>) {
    body.header(&LinkHeader::default());
    skip_stats(body);
}

/// Of the last try of a dump.
enum Consistency {
    Whole,
    Interrupted,
}

/// Which routes to list; `None` takes all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RouteFilter {
    pub table: Option<u32>,
    pub link: Option<u32>,
    pub protocol: Option<u8>,
}

impl RouteFilter {
    fn matches(&self, route: &Route) -> bool {
        self.table.is_none_or(|t| route.table == Some(t))
            && self.link.is_none_or(|l| route.link == Some(l))
            && self.protocol.is_none_or(|p| route.protocol == p)
    }
}

impl RtSocket {
    pub fn links(&mut self) -> Result<Vec<Link>, Error> {
        self.dump(LINKS, ask_links, Link::parse)
    }

    /// As [`RtSocket::links`]. On a node whose links change all the time, where no list is whole, the last one: a link may be
    /// missing from it.
    pub fn links_if_busy(&mut self) -> Result<Vec<Link>, Error> {
        Ok(self.dump_tries((FEW_TRIES, LINKS), ask_links, Link::parse)?.0)
    }

    /// The addresses of one link, or of all; none for a link that is not there.
    pub fn addresses(&mut self, link: Option<u32>) -> Result<Vec<Address>, Error> {
        let ask = |body: &mut Body<'_>| {
            body.header(&AddressHeader { index: link.unwrap_or(0), ..AddressHeader::default() });
        };
        let wanted = |message: &[u8]| Address::parse(message).filter(|a| link.is_none_or(|l| a.link == l));
        none_if_missing(self.dump(DumpKind("list addresses", libc::RTM_GETADDR), ask, wanted))
    }

    /// Unicast routes of both families. One with several next hops has neither gateway nor link.
    pub fn routes(&mut self, filter: RouteFilter) -> Result<Vec<Route>, Error> {
        self.routes_where(filter, |_| true)
    }

    /// The same, of which only some are kept: a node may have the whole Internet's routes.
    pub fn routes_where(
        &mut self,
        filter: RouteFilter,
        is_wanted: impl Fn(&Route) -> bool,
    ) -> Result<Vec<Route>, Error> {
        self.routes_of(filter, |route| route.kind == RouteKind::Unicast && is_wanted(route))
    }

    /// Routes of both families that say that a destination is unreachable.
    pub fn unreachable_routes(&mut self, filter: RouteFilter) -> Result<Vec<Route>, Error> {
        self.routes_of(filter, |route| route.kind == RouteKind::Unreachable)
    }

    fn routes_of(
        &mut self,
        filter: RouteFilter,
        is_wanted: impl Fn(&Route) -> bool,
    ) -> Result<Vec<Route>, Error> {
        let mut routes = Vec::new();
        for family in [AF_INET, AF_INET6] {
            let ask = |body: &mut Body<'_>| {
                let protocol = filter.protocol.unwrap_or(0);
                body.header(&RouteHeader { family, protocol, ..RouteHeader::default() });
                if let Some(table) = filter.table {
                    body.u32(libc::RTA_TABLE, table);
                }
                if let Some(link) = filter.link {
                    body.u32(libc::RTA_OIF, link);
                }
            };
            // Where a family is missing, the kernel answers with the routes of the others.
            let is_v4 = family == AF_INET;
            let ours = |r: &Route| r.dst.addr().is_ipv4() == is_v4 && filter.matches(r) && is_wanted(r);
            let wanted = |message: &[u8]| Route::parse_any(message).filter(ours);
            routes.extend(none_if_missing(self.dump(
                DumpKind("list routes", libc::RTM_GETROUTE),
                ask,
                wanted,
            ))?);
        }
        Ok(routes)
    }

    pub fn neighbours(&mut self, link: Option<u32>) -> Result<Vec<Neighbour>, Error> {
        let ask = |body: &mut Body<'_>| {
            body.header(&NeighbourHeader::default());
            if let Some(link) = link {
                body.u32(libc::NDA_IFINDEX, link);
            }
        };
        let wanted = |message: &[u8]| Neighbour::parse(message).filter(|n| link.is_none_or(|l| n.link == l));
        none_if_missing(self.dump(DumpKind("list neighbours", libc::RTM_GETNEIGH), ask, wanted))
    }

    /// The forwarding entries of a tunnel device.
    pub fn fdb(&mut self, link: u32) -> Result<Vec<Fdb>, Error> {
        let ask = |body: &mut Body<'_>| {
            body.header(&NeighbourHeader { family: AF_BRIDGE, ..NeighbourHeader::default() });
            body.u32(libc::NDA_IFINDEX, link);
        };
        let wanted = |message: &[u8]| Fdb::parse(message).filter(|entry| entry.link == link);
        none_if_missing(self.dump(DumpKind("list forwarding entries", libc::RTM_GETNEIGH), ask, wanted))
    }

    pub fn qdiscs(&mut self, link: Option<u32>) -> Result<Vec<Qdisc>, Error> {
        let ask = |body: &mut Body<'_>| body.header(&TcHeader::default());
        let wanted = |message: &[u8]| Qdisc::parse(message).filter(|q| link.is_none_or(|l| q.link == l));
        self.dump(DumpKind("list qdiscs", libc::RTM_GETQDISC), ask, wanted)
    }

    /// The links to which what `from` receives is redirected.
    pub fn redirects(&mut self, from: u32) -> Result<Vec<u32>, Error> {
        let ask = |body: &mut Body<'_>| body.header(&encode::tc_header(from, INGRESS_QDISC));
        none_if_missing(self.dump(DumpKind("list filters", libc::RTM_GETTFILTER), ask, view::redirect_target))
    }

    /// Everything of one kind. A dump is no snapshot: the kernel marks one that changed meanwhile, and it begins again.
    fn dump<T>(
        &mut self,
        DumpKind(operation, kind): DumpKind,
        ask: impl Fn(&mut Body<'_>),
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        match self.dump_tries((TRIES, DumpKind(operation, kind)), ask, parse)? {
            (all, Consistency::Whole) => Ok(all),
            (_, Consistency::Interrupted) => {
                Err(Error::Interrupted { operation: operation.to_owned(), tries: TRIES })
            }
        }
    }

    fn dump_tries<T>(
        &mut self,
        (tries, DumpKind(operation, kind)): (u32, DumpKind),
        ask: impl Fn(&mut Body<'_>),
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<(Vec<T>, Consistency), Error> {
        let mut all = Vec::new();
        for _ in 0..tries {
            let sequences = self.socket.take_sequences(1);
            let head = Head { kind, flags: NLM_F_REQUEST | NLM_F_DUMP, sequence: sequences.start };
            self.batch.clear();
            self.batch.message(head, |body| ask(body)).map_err(oversize(operation))?;
            all.clear();
            let read = self.socket.dump(&self.batch, sequences, |message| all.extend(parse(message)));
            match read.map_err(|e| e.during(operation))? {
                Dump::Whole => return Ok((all, Consistency::Whole)),
                Dump::Interrupted => {}
                Dump::Refused(refusal) => return Err(refusal.during(operation)),
            }
        }
        Ok((all, Consistency::Interrupted))
    }
}

/// A table or a link that is not there has no entries; the kernel calls it an error.
fn none_if_missing<T>(listed: Result<Vec<T>, Error>) -> Result<Vec<T>, Error> {
    match listed {
        Err(error) if error.is_missing() => Ok(Vec::new()),
        other => other,
    }
}
