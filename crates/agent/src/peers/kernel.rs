//! Lists and changes the kernel's routes, neighbours and forwarding entries of peers. Changes are sent in batches, and each has its own
//! reply, so that one that fails does not prevent the others.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use model::{ObservedPeers, PeerChanges, PeerFdb, PeerNeighbour, PeerRoute};
use netlink::{AddNeighbour, Family, Fdb, Mode, Op, Route, RouteFilter, RtSocket};
use types::{PEER_PROTOCOL, TABLE_MAIN};

use super::underlay::UnderlayCandidates;

/// The first metric of managed routes. Another program's route to the same destination has another metric and is never replaced.
const METRIC: u32 = 113_000;
/// Linux keeps the next hops of IPv4 routes in lists by link, source, protocol and metric, but not by gateway. With one metric for
/// all routes, thousands of routes over one link are one list that each new route walks: 5,000 took 3 s instead of 0.4 s. So the
/// metric also depends on the destination.
const METRICS: u32 = 4096;

/// Changes that the kernel refused.
#[derive(Debug, Default)]
pub(crate) struct RefusedChanges {
    pub(crate) changes: PeerChanges,
    /// The kernel's error per object.
    pub(crate) reasons: BTreeMap<String, String>,
}

pub(crate) struct PeerKernel {
    pub(crate) socket: RtSocket,
}

impl PeerKernel {
    pub(crate) fn open() -> Result<Self, netlink::Error> {
        Ok(Self { socket: RtSocket::open()? })
    }

    /// The node's links and addresses. Links are requested one by one: those of pods have no addresses, and a listing of thousands of
    /// them takes long while pods are added and removed.
    pub(crate) fn underlay_candidates(
        &mut self,
        interface: Option<&types::IfName>,
    ) -> Result<UnderlayCandidates, netlink::Error> {
        let addresses = self.socket.addresses(None)?;
        let mut defaults = Vec::new();
        for family in [Family::V4, Family::V6] {
            defaults.extend(self.socket.default_route(family)?);
        }
        let mut indexes: Vec<u32> = addresses.iter().map(|address| address.link).collect();
        indexes.extend(defaults.iter().filter_map(|route| route.link));
        if let Some(name) = interface {
            indexes.extend(self.socket.index_of(name)?);
        }
        indexes.sort_unstable();
        indexes.dedup();
        let mut links = Vec::new();
        for index in indexes {
            links.extend(self.socket.link_at(index)?);
        }
        Ok(UnderlayCandidates { links, addresses, defaults })
    }

    /// The managed objects, and routes with unexpected attributes. Routes to other networks belong to another agent.
    pub(crate) fn observed(
        &mut self,
        tunnels: &[u32],
        subnets: &[IpNet],
    ) -> Result<(ObservedPeers, Vec<Route>), netlink::Error> {
        let filter = RouteFilter { table: Some(TABLE_MAIN), link: None, protocol: Some(PEER_PROTOCOL) };
        let is_expected = |route: &Route| route.priority == Some(metric(&route.dst));
        let mut found = self.socket.routes(filter)?;
        found.retain(|route| is_in(subnets, &route.dst));
        let (managed, unexpected): (Vec<Route>, Vec<Route>) = found.into_iter().partition(is_expected);
        let routes = managed.iter().map(peer_route).collect();
        let (mut neighbours, mut fdb) = (Vec::new(), Vec::new());
        for &link in tunnels {
            for neighbour in self.socket.neighbours(Some(link))? {
                if let Some(mac) = neighbour.mac.filter(|_| neighbour.permanent) {
                    neighbours.push(PeerNeighbour { link, addr: neighbour.addr, mac });
                }
            }
            let entries = self.socket.fdb(link)?;
            fdb.extend(entries.into_iter().map(|Fdb { link, mac, dst }| PeerFdb { link, mac, dst }));
        }
        Ok((ObservedPeers { routes, neighbours, fdb }, unexpected))
    }

    /// Removes listed routes. They may have been removed already.
    pub(crate) fn remove(&mut self, routes: &[Route]) -> Result<(), netlink::Error> {
        let ops: Vec<Op<'_>> = routes.iter().map(|route| Op::DelRoute(*route)).collect();
        let removed = |result: Result<(), netlink::Error>| {
            result.or_else(|e| if e.is_missing() { Ok(()) } else { Err(e) })
        };
        self.socket.run_all(&ops)?.into_iter().try_for_each(removed)
    }

    /// Applies all changes. Returns those that the kernel refused.
    pub(crate) fn apply(&mut self, changes: &PeerChanges) -> Result<RefusedChanges, netlink::Error> {
        let ops = ops(changes);
        let (mut is_refused, mut reasons) = (Vec::new(), BTreeMap::new());
        for (op, result) in ops.iter().zip(self.socket.run_all(&ops)?) {
            // Removing an object that does not exist is no failure.
            let error = result.err().filter(|error| !(error.is_missing() && is_removal(op)));
            is_refused.push(error.is_some());
            reasons.extend(error.map(|error| (object(op), error.to_string())));
        }
        Ok(RefusedChanges { changes: changes.select(is_refused), reasons })
    }
}

/// Whether the destination is inside one of the subnets.
pub(crate) fn is_in(subnets: &[IpNet], dst: &IpNet) -> bool {
    subnets.iter().any(|subnet| subnet.contains(dst))
}

/// In the order of the fields of [`PeerChanges`]: the entries of a tunnel are added before the routes that use them, and removed after
/// them.
fn ops(changes: &PeerChanges) -> Vec<Op<'static>> {
    let mut ops = Vec::new();
    ops.extend(changes.set_neighbours.iter().map(|n| {
        Op::AddNeighbour(AddNeighbour { link: n.link, addr: n.addr, mac: n.mac, protocol: PEER_PROTOCOL })
    }));
    ops.extend(changes.set_fdb.iter().map(|fdb| Op::AddFdb(entry(fdb))));
    ops.extend(changes.set_routes.iter().map(|r| Op::AddRoute { route: route(r), mode: Mode::Replace }));
    ops.extend(changes.del_routes.iter().map(|r| Op::DelRoute(route(r))));
    ops.extend(changes.del_neighbours.iter().map(|n| Op::DelNeighbour { link: n.link, addr: n.addr }));
    ops.extend(changes.del_fdb.iter().map(|fdb| Op::DelFdb(entry(fdb))));
    ops
}

fn is_removal(op: &Op<'_>) -> bool {
    matches!(op, Op::DelRoute(_) | Op::DelNeighbour { .. } | Op::DelFdb(_))
}

/// Identifies the condition of a refused change.
fn object(op: &Op<'_>) -> String {
    match op {
        Op::AddRoute { route, .. } | Op::DelRoute(route) => format!("route {}", route.dst),
        Op::AddNeighbour(AddNeighbour { addr, .. }) | Op::DelNeighbour { addr, .. } => {
            format!("neighbour {addr}")
        }
        Op::AddFdb(fdb) | Op::DelFdb(fdb) => format!("forwarding entry {}", fdb.mac),
        other => format!("{other:?}"),
    }
}

fn entry(fdb: &PeerFdb) -> Fdb {
    Fdb { link: fdb.link, mac: fdb.mac, dst: fdb.dst }
}

fn route(peer: &PeerRoute) -> Route {
    Route {
        gateway: Some(peer.gateway),
        link: Some(peer.link),
        onlink: peer.onlink,
        src: peer.src,
        priority: Some(metric(&peer.dst)),
        protocol: PEER_PROTOCOL,
        ..Route::to(peer.dst)
    }
}

fn metric(dst: &IpNet) -> u32 {
    let bits = match dst.network() {
        IpAddr::V4(ip) => u128::from(u32::from(ip)) << 96,
        IpAddr::V6(ip) => u128::from(ip),
    };
    // A hash of the network bits. The upper half of an IPv6 prefix is mixed into the lower one.
    let number = bits.checked_shr(128 - u32::from(dst.prefix_len())).unwrap_or(0);
    let mixed = (number ^ (number >> 64)) as u64;
    METRIC + (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as u32 % METRICS
}

/// A route with several next hops gets the unspecified gateway and link 0. No desired route has these, so it is replaced or removed.
pub(crate) fn peer_route(route: &Route) -> PeerRoute {
    let unspecified: IpAddr = if route.dst.addr().is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    PeerRoute {
        dst: route.dst,
        gateway: route.gateway.unwrap_or(unspecified),
        link: route.link.unwrap_or(0),
        onlink: route.onlink,
        src: route.src,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_added_after_its_tunnel_entries_and_removed_before_them() {
        let (mac, addr, link) = (types::Mac::local([1; 5]), IpAddr::from([10, 2, 0, 0]), 7);
        let (neighbour, fdb) = (PeerNeighbour { link, addr, mac }, PeerFdb { link, mac, dst: addr });
        let dst = "10.2.0.0/24".parse().unwrap();
        let route = PeerRoute { dst, gateway: addr, link, onlink: true, src: None };
        let changes = PeerChanges {
            set_neighbours: vec![neighbour],
            set_fdb: vec![fdb],
            set_routes: vec![route],
            del_routes: vec![route],
            del_neighbours: vec![neighbour],
            del_fdb: vec![fdb],
        };
        let ops = ops(&changes);
        assert!(
            matches!(
                ops[..],
                [
                    Op::AddNeighbour(_),
                    Op::AddFdb(_),
                    Op::AddRoute { .. },
                    Op::DelRoute(_),
                    Op::DelNeighbour { .. },
                    Op::DelFdb(_)
                ]
            ),
            "{ops:?}"
        );
    }

    #[test]
    fn metrics_are_spread_and_depend_on_the_destination_alone() {
        let v4 = model::BlockLayout::new("10.0.0.0/8".parse().unwrap(), 16).unwrap();
        let v6 = model::BlockLayout::new("fd00:42::/48".parse().unwrap(), 16).unwrap();
        for block_layout in [v4, v6] {
            let mut lists: BTreeMap<u32, u32> = BTreeMap::new();
            for n in 0..5000 {
                *lists.entry(metric(&block_layout.block(n))).or_default() += 1;
            }
            assert!(lists.keys().all(|metric| (METRIC..METRIC + METRICS).contains(metric)));
            assert!(lists.values().max() < Some(&12), "{lists:?}");
        }
        assert_eq!(metric(&"10.2.3.0/24".parse().unwrap()), metric(&"10.2.3.7/24".parse().unwrap()));
        // A prefix length of 0 must not overflow the shift.
        metric(&"0.0.0.0/0".parse().unwrap());
    }
}
