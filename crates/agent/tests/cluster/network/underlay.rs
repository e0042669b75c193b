//! Changes of the underlay's link and addresses: temporary ones have no lasting effect, permanent ones are followed.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use netlink::{NetNs, PeerEvent, PeerMonitor};
use testkit::{Cluster, Ns, Plan, inspect};

use super::{TUNNEL, ip, peer_routes, routes_to, set_sysctl};
use crate::common::{Streams, TIMEOUT, await_that, expect_reach, up};

/// Much longer than the publication of another address takes, and much shorter than the delay for a removed one.
const ADDRESS_GAP: Duration = Duration::from_millis(500);

/// Expects no changes of routes, neighbours and tunnel entries of a node.
struct NoChanges(PeerMonitor);

impl NoChanges {
    fn on(ns: &Ns) -> Self {
        Self(PeerMonitor::open_in(&NetNs::open(ns.path()).unwrap()).unwrap())
    }

    #[track_caller]
    fn expect(mut self) {
        let is_change = |events: &PeerEvent| {
            matches!(
                events,
                PeerEvent::RouteSet(_)
                    | PeerEvent::RouteRemoved(_)
                    | PeerEvent::RouteReplaced(_)
                    | PeerEvent::NeighbourRemoved { .. }
                    | PeerEvent::FdbRemoved(_)
                    | PeerEvent::LinkRemoved { .. }
                    | PeerEvent::Lost
            )
        };
        let events: Vec<PeerEvent> = self.0.read().unwrap().into_iter().filter(is_change).collect();
        assert!(events.is_empty(), "{events:?}");
    }
}

/// Restores IPv6 addresses and default routes, which the kernel removed with the link, as the host's network manager does.
fn configure_again(cluster: &Cluster, node: &str) {
    let (ns, subnet) = (cluster.node(node).unwrap(), cluster.subnet(node).unwrap());
    for address in cluster.addresses(node).unwrap().iter().filter(|address| address.is_ipv6()) {
        ip(ns, &format!("addr add {address}/64 dev eth0 nodad"));
    }
    ip(ns, &format!("addr add fe80::{subnet}:99/64 dev eth0 nodad"));
    ip(ns, &format!("route add default via 10.199.{subnet}.254 dev eth0"));
    ip(ns, &format!("route add default via fd99:{subnet}::fe dev eth0"));
}

#[test]
fn routes_are_restored_after_a_link_flap_without_effect_on_peers() {
    let cluster = up("flap", &Plan { subnets: 2, ..Plan::default() });
    let [n1, n2, n3] = ["n1", "n2", "n3"].map(|name| cluster.node(name).unwrap());
    for node in ["n3", "n2"] {
        let ns = cluster.node(node).unwrap();
        let before = peer_routes(ns);
        let peers: Vec<&Ns> = if node == "n3" { vec![n1, n2] } else { vec![n1, n3] };
        let unchanged: Vec<NoChanges> = peers.into_iter().map(NoChanges::on).collect();
        let pairs = if node == "n3" { [("p1", "p2"), ("p1", "p3")] } else { [("p1", "p3"), ("p1", "p2")] };
        let unaffected = Streams::between(&cluster, &pairs[..1]);
        let interrupted = Streams::between(&cluster, &pairs[1..]);
        ip(ns, "link set dev eth0 down");
        // The kernel removes all routes over the link, and the agent finds no address of one family.
        await_that("the removal of routes over the link", TIMEOUT, || {
            peer_routes(ns).iter().all(|route| !route.contains("dev eth0"))
        });
        ip(ns, "link set dev eth0 up");
        configure_again(&cluster, node);
        await_that("the routes to be restored", TIMEOUT, || peer_routes(ns) == before);
        expect_reach(&cluster, TIMEOUT);
        unaffected.expect_no_loss();
        interrupted.expect_recovery();
        unchanged.into_iter().for_each(NoChanges::expect);
    }
}

#[test]
fn a_briefly_removed_address_stays_published() {
    let cluster = up("renewed", &Plan { subnets: 2, ..Plan::default() });
    let [n1, n2, n3] = ["n1", "n2", "n3"].map(|name| cluster.node(name).unwrap());
    let (before, routes) = (published(&cluster, "n3"), peer_routes(n3));
    let (unchanged, streams) =
        ([n1, n2].map(|node| NoChanges::on(node)), Streams::between(&cluster, &[("p1", "p3"), ("p2", "p3")]));
    let removed_at = Instant::now();
    ip(n3, "addr del fd99:1::3/64 dev eth0");
    // The node uses another path immediately. The store, though reachable, is not changed.
    await_that("n3 to change its routes", TIMEOUT, || peer_routes(n3) != routes);
    await_that("some time", TIMEOUT, || {
        assert_eq!(published(&cluster, "n3"), before);
        removed_at.elapsed() > ADDRESS_GAP
    });
    ip(n3, "addr add fd99:1::3/64 dev eth0 nodad");
    ip(n3, "route replace default via fd99:1::fe dev eth0");
    await_that("n3 to restore its routes", TIMEOUT, || peer_routes(n3) == routes);
    expect_reach(&cluster, TIMEOUT);
    unchanged.into_iter().for_each(NoChanges::expect);
    streams.expect_recovery();
}

/// The addresses of a node in the store.
fn published(cluster: &Cluster, node: &str) -> Vec<IpAddr> {
    let nodes: Vec<api::NodeView> =
        serde_json::from_value(cluster.agent("n1").unwrap().get(api::NODES).unwrap()["nodes"].take())
            .unwrap();
    nodes.into_iter().find(|view| view.name == node).unwrap().addresses
}

/// Waits for a full check of the agent, which removes a stale route.
fn await_full_check(node: &Ns) {
    ip(node, "route add 10.42.250.0/24 via 10.199.1.254 proto 113 metric 77");
    await_that("the removal of the stale route", TIMEOUT, || {
        !peer_routes(node).iter().any(|route| route.contains("10.42.250"))
    });
}

#[test]
fn only_a_changed_address_is_published_and_followed_by_peers() {
    let cluster = up("readdress", &Plan { subnets: 2, ..Plan::default() });
    let [n1, n2, n3] = ["n1", "n2", "n3"].map(|name| cluster.node(name).unwrap());
    let before = published(&cluster, "n3");
    let tunnel = inspect::link(n3, TUNNEL).unwrap().index;

    // A second address of each family, including one that sorts first.
    let streams = Streams::between(&cluster, &[("p1", "p3"), ("p2", "p3")]);
    let unchanged = [n1, n2].map(|node| NoChanges::on(node));
    set_sysctl(n3, "ipv4/conf/eth0/promote_secondaries", "1");
    for address in ["10.199.1.33/24", "10.199.0.99/32", "fd99:1::33/64", "fd99:0::99/128"] {
        let nodad = if address.contains(':') { " nodad" } else { "" };
        ip(n3, &format!("addr add {address} dev eth0{nodad}"));
    }
    await_full_check(n3);
    assert_eq!(published(&cluster, "n3"), before);
    assert_eq!(inspect::link(n3, TUNNEL).unwrap().index, tunnel);
    unchanged.into_iter().for_each(NoChanges::expect);
    streams.expect_no_loss();

    // The first addresses are removed: peers use the second ones, and so does the local end of the tunnel.
    let streams = Streams::between(&cluster, &[("p1", "p3"), ("p2", "p3")]);
    let unaffected = Streams::between(&cluster, &[("p1", "p2")]);
    for address in ["10.199.0.99/32", "fd99:0::99/128", "10.199.1.3/24", "fd99:1::3/64"] {
        ip(n3, &format!("addr del {address} dev eth0"));
    }
    let new: Vec<IpAddr> = ["10.199.1.33", "fd99:1::33"].map(|text| text.parse().unwrap()).to_vec();
    await_that("the new addresses to be published", TIMEOUT, || published(&cluster, "n3") == new);
    await_that("n1 to use the new addresses", TIMEOUT, || {
        let routes = routes_to(n1, &cluster, "p3");
        routes.len() == 2
            && routes.iter().all(|route| new.iter().any(|address| route.contains(&format!("via {address} "))))
    });
    await_that("n2's tunnel to use the new address", TIMEOUT, || {
        n2.sh(&["bridge", "fdb", "show", "dev", TUNNEL]).unwrap().contains("dst 10.199.1.33 ")
    });
    let local = || {
        n3.json(&["ip", "-d", "-j", "link", "show", "dev", TUNNEL]).unwrap()[0]["linkinfo"]
        ["info_data"]["local"]
        .clone()
    };
    await_that("the tunnel to have the new local address", TIMEOUT, || local() == "10.199.1.33");
    expect_reach(&cluster, TIMEOUT);
    unaffected.expect_no_loss();
    streams.expect_recovery();
}
