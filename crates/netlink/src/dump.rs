//! Lists all objects of one kind, for CHECK, sweeps and tests.

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

/// The number of attempts for a consistent dump. The kernel marks a dump that changed while it was read.
const TRIES: u32 = 10;
/// For lists that may be inconsistent. Each attempt holds the rtnl lock.
const FEW_TRIES: u32 = 3;

/// The operation for error messages, and the message type.
struct DumpKind(&'static str, u16);

const LINKS: DumpKind = DumpKind("list links", libc::RTM_GETLINK);

fn encode_links(body: &mut Body<'_>) {
    body.header(&LinkHeader::default());
    skip_stats(body);
}

/// Whether the last attempt of a dump was consistent.
enum Consistency {
    Consistent,
    Interrupted,
}

/// Selects routes to list. `None` matches all.
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
        self.dump(LINKS, encode_links, Link::parse)
    }

    /// Like [`RtSocket::links`]. If links change all the time, returns the last list, in which a link may be missing.
    pub fn links_best_effort(&mut self) -> Result<Vec<Link>, Error> {
        Ok(self.dump_tries((FEW_TRIES, LINKS), encode_links, Link::parse)?.0)
    }

    /// The addresses of one link, or of all links. Empty if the link does not exist.
    pub fn addresses(&mut self, link: Option<u32>) -> Result<Vec<Address>, Error> {
        let encode = |body: &mut Body<'_>| {
            body.header(&AddressHeader { index: link.unwrap_or(0), ..AddressHeader::default() });
        };
        let parse = |message: &[u8]| Address::parse(message).filter(|a| link.is_none_or(|l| a.link == l));
        none_if_missing(self.dump(DumpKind("list addresses", libc::RTM_GETADDR), encode, parse))
    }

    /// Unicast routes of both families. A multipath route has neither gateway nor link.
    pub fn routes(&mut self, filter: RouteFilter) -> Result<Vec<Route>, Error> {
        self.routes_where(filter, |_| true)
    }

    /// Like [`RtSocket::routes`], but keeps only wanted routes in memory: a node may have a full routing table.
    pub fn routes_where(
        &mut self,
        filter: RouteFilter,
        is_wanted: impl Fn(&Route) -> bool,
    ) -> Result<Vec<Route>, Error> {
        self.routes_of(filter, |route| route.kind == RouteKind::Unicast && is_wanted(route))
    }

    /// Unreachable routes of both families.
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
            let encode = |body: &mut Body<'_>| {
                let protocol = filter.protocol.unwrap_or(0);
                body.header(&RouteHeader { family, protocol, ..RouteHeader::default() });
                if let Some(table) = filter.table {
                    body.u32(libc::RTA_TABLE, table);
                }
                if let Some(link) = filter.link {
                    body.u32(libc::RTA_OIF, link);
                }
            };
            // If the kernel lacks a family, it returns the routes of the other one.
            let is_v4 = family == AF_INET;
            let matches = |r: &Route| r.dst.addr().is_ipv4() == is_v4 && filter.matches(r) && is_wanted(r);
            let parse = |message: &[u8]| Route::parse_any(message).filter(matches);
            routes.extend(none_if_missing(self.dump(
                DumpKind("list routes", libc::RTM_GETROUTE),
                encode,
                parse,
            ))?);
        }
        Ok(routes)
    }

    pub fn neighbours(&mut self, link: Option<u32>) -> Result<Vec<Neighbour>, Error> {
        let encode = |body: &mut Body<'_>| {
            body.header(&NeighbourHeader::default());
            if let Some(link) = link {
                body.u32(libc::NDA_IFINDEX, link);
            }
        };
        let parse = |message: &[u8]| Neighbour::parse(message).filter(|n| link.is_none_or(|l| n.link == l));
        none_if_missing(self.dump(DumpKind("list neighbours", libc::RTM_GETNEIGH), encode, parse))
    }

    /// The FDB entries of a tunnel device.
    pub fn fdb(&mut self, link: u32) -> Result<Vec<Fdb>, Error> {
        let encode = |body: &mut Body<'_>| {
            body.header(&NeighbourHeader { family: AF_BRIDGE, ..NeighbourHeader::default() });
            body.u32(libc::NDA_IFINDEX, link);
        };
        let parse = |message: &[u8]| Fdb::parse(message).filter(|entry| entry.link == link);
        none_if_missing(self.dump(DumpKind("list forwarding entries", libc::RTM_GETNEIGH), encode, parse))
    }

    pub fn qdiscs(&mut self, link: Option<u32>) -> Result<Vec<Qdisc>, Error> {
        let encode = |body: &mut Body<'_>| body.header(&TcHeader::default());
        let parse = |message: &[u8]| Qdisc::parse(message).filter(|q| link.is_none_or(|l| q.link == l));
        self.dump(DumpKind("list qdiscs", libc::RTM_GETQDISC), encode, parse)
    }

    /// The links to which ingress traffic of `from` is redirected.
    pub fn redirects(&mut self, from: u32) -> Result<Vec<u32>, Error> {
        let encode = |body: &mut Body<'_>| body.header(&encode::tc_header(from, INGRESS_QDISC));
        none_if_missing(self.dump(
            DumpKind("list filters", libc::RTM_GETTFILTER),
            encode,
            view::redirect_target,
        ))
    }

    /// Lists all objects of one kind. A dump is not a snapshot: if the kernel marks it as changed, it is repeated.
    fn dump<T>(
        &mut self,
        DumpKind(operation, kind): DumpKind,
        encode: impl Fn(&mut Body<'_>),
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        match self.dump_tries((TRIES, DumpKind(operation, kind)), encode, parse)? {
            (all, Consistency::Consistent) => Ok(all),
            (_, Consistency::Interrupted) => {
                Err(Error::Interrupted { operation: operation.to_owned(), tries: TRIES })
            }
        }
    }

    fn dump_tries<T>(
        &mut self,
        (tries, DumpKind(operation, kind)): (u32, DumpKind),
        encode: impl Fn(&mut Body<'_>),
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<(Vec<T>, Consistency), Error> {
        let mut all = Vec::new();
        for _ in 0..tries {
            let sequences = self.socket.take_sequences(1);
            let head = Head { kind, flags: NLM_F_REQUEST | NLM_F_DUMP, sequence: sequences.start };
            self.batch.clear();
            self.batch.message(head, |body| encode(body)).map_err(oversize(operation))?;
            all.clear();
            let read = self.socket.dump(&self.batch, sequences, |message| all.extend(parse(message)));
            match read.map_err(|e| e.during(operation))? {
                Dump::Whole => return Ok((all, Consistency::Consistent)),
                Dump::Interrupted => {}
                Dump::Refused(refusal) => return Err(refusal.during(operation)),
            }
        }
        Ok((all, Consistency::Interrupted))
    }
}

/// A missing table or link has no entries. The kernel reports it as an error.
fn none_if_missing<T>(listed: Result<Vec<T>, Error>) -> Result<Vec<T>, Error> {
    match listed {
        Err(error) if error.is_missing() => Ok(Vec::new()),
        other => other,
    }
}
