//! The link and the addresses below: what comes back is as before, what changes is followed.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use netlink::{NetNs, PeerEvent, PeerMonitor};
use testkit::{Cluster, Ns, Plan, inspect};

use super::{TUNNEL, ip, peer_routes, routes_to, set_sysctl};
use crate::common::{SOON, Streams, await_that, expect_reach, up};

/// Much longer than another address takes to be published, and much shorter than one that is gone.
const AWAY: Duration = Duration::from_millis(500);

/// What happens to routes, neighbours and tunnel entries of a node while something happens elsewhere.
struct Quiet(PeerMonitor);

impl Quiet {
    fn on(ns: &Ns) -> Self {
        Self(PeerMonitor::open_in(&NetNs::open(ns.path()).unwrap()).unwrap())
    }

    #[track_caller]
    fn expect(mut self) {
        let told = |events: &PeerEvent| {
            matches!(
                events,
                PeerEvent::RouteSet(_)
                    | PeerEvent::RouteGone(_)
                    | PeerEvent::RouteTaken(_)
                    | PeerEvent::NeighbourGone { .. }
                    | PeerEvent::FdbGone(_)
                    | PeerEvent::LinkGone { .. }
                    | PeerEvent::Missed
            )
        };
        let events: Vec<PeerEvent> = self.0.read().unwrap().into_iter().filter(told).collect();
        assert!(events.is_empty(), "{events:?}");
    }
}

/// As whoever configured the node does when its link comes up: IPv6 addresses and default routes went with it.
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
fn a_link_that_flaps_gets_its_routes_back_and_no_other_node_notices() {
    let cluster = up("flap", &Plan { subnets: 2, ..Plan::default() });
    let [n1, n2, n3] = ["n1", "n2", "n3"].map(|name| cluster.node(name).unwrap());
    for node in ["n3", "n2"] {
        let ns = cluster.node(node).unwrap();
        let before = peer_routes(ns);
        let others: Vec<&Ns> = if node == "n3" { vec![n1, n2] } else { vec![n1, n3] };
        let quiet: Vec<Quiet> = others.into_iter().map(Quiet::on).collect();
        let pairs = if node == "n3" { [("p1", "p2"), ("p1", "p3")] } else { [("p1", "p3"), ("p1", "p2")] };
        let untouched = Streams::between(&cluster, &pairs[..1]);
        let touched = Streams::between(&cluster, &pairs[1..]);
        ip(ns, "link set dev eth0 down");
        // The kernel drops all routes over it; the agent looks, and finds that no address is left of one family.
        await_that("routes over the link to be gone", SOON, || {
            peer_routes(ns).iter().all(|route| !route.contains("dev eth0"))
        });
        ip(ns, "link set dev eth0 up");
        configure_again(&cluster, node);
        await_that("routes to be back", SOON, || peer_routes(ns) == before);
        expect_reach(&cluster, SOON);
        untouched.expect_whole();
        touched.expect_back();
        quiet.into_iter().for_each(Quiet::expect);
    }
}

#[test]
fn an_address_that_is_away_for_a_moment_is_still_published() {
    let cluster = up("renewed", &Plan { subnets: 2, ..Plan::default() });
    let [n1, n2, n3] = ["n1", "n2", "n3"].map(|name| cluster.node(name).unwrap());
    let (before, routes) = (published(&cluster, "n3"), peer_routes(n3));
    let (quiet, streams) =
        ([n1, n2].map(|node| Quiet::on(node)), Streams::between(&cluster, &[("p1", "p3"), ("p2", "p3")]));
    let away = Instant::now();
    ip(n3, "addr del fd99:1::3/64 dev eth0");
    // The node itself goes another way at once. The others are not told, though the store is there to be told.
    await_that("n3 to see it", SOON, || peer_routes(n3) != routes);
    await_that("some time", SOON, || {
        assert_eq!(published(&cluster, "n3"), before);
        away.elapsed() > AWAY
    });
    ip(n3, "addr add fd99:1::3/64 dev eth0 nodad");
    ip(n3, "route replace default via fd99:1::fe dev eth0");
    await_that("n3 to go the old way", SOON, || peer_routes(n3) == routes);
    expect_reach(&cluster, SOON);
    quiet.into_iter().for_each(Quiet::expect);
    streams.expect_back();
}

/// What the store has of a node.
fn published(cluster: &Cluster, node: &str) -> Vec<IpAddr> {
    let nodes: Vec<api::NodeView> =
        serde_json::from_value(cluster.agent("n1").unwrap().get(api::NODES).unwrap()["nodes"].take())
            .unwrap();
    nodes.into_iter().find(|view| view.name == node).unwrap().addresses
}

/// Until the agent has looked at everything once more: it takes away what nobody needs.
fn await_look(node: &Ns) {
    ip(node, "route add 10.42.250.0/24 via 10.199.1.254 proto 113 metric 77");
    await_that("the agent to look", SOON, || {
        !peer_routes(node).iter().any(|route| route.contains("10.42.250"))
    });
}

#[test]
fn another_address_is_published_and_followed_and_a_second_one_moves_nothing() {
    let cluster = up("readdress", &Plan { subnets: 2, ..Plan::default() });
    let [n1, n2, n3] = ["n1", "n2", "n3"].map(|name| cluster.node(name).unwrap());
    let before = published(&cluster, "n3");
    let tunnel = inspect::link(n3, TUNNEL).unwrap().index;

    // A second address of each family, also one that sorts first.
    let streams = Streams::between(&cluster, &[("p1", "p3"), ("p2", "p3")]);
    let quiet = [n1, n2].map(|node| Quiet::on(node));
    set_sysctl(n3, "ipv4/conf/eth0/promote_secondaries", "1");
    for address in ["10.199.1.33/24", "10.199.0.99/32", "fd99:1::33/64", "fd99:0::99/128"] {
        let nodad = if address.contains(':') { " nodad" } else { "" };
        ip(n3, &format!("addr add {address} dev eth0{nodad}"));
    }
    await_look(n3);
    assert_eq!(published(&cluster, "n3"), before);
    assert_eq!(inspect::link(n3, TUNNEL).unwrap().index, tunnel);
    quiet.into_iter().for_each(Quiet::expect);
    streams.expect_whole();

    // The first ones go: what others send follows to the second, and so does the tunnel's own end.
    let streams = Streams::between(&cluster, &[("p1", "p3"), ("p2", "p3")]);
    let untouched = Streams::between(&cluster, &[("p1", "p2")]);
    for address in ["10.199.0.99/32", "fd99:0::99/128", "10.199.1.3/24", "fd99:1::3/64"] {
        ip(n3, &format!("addr del {address} dev eth0"));
    }
    let now: Vec<IpAddr> = ["10.199.1.33", "fd99:1::33"].map(|text| text.parse().unwrap()).to_vec();
    await_that("the other address to be published", SOON, || published(&cluster, "n3") == now);
    await_that("n1 to send there", SOON, || {
        let routes = routes_to(n1, &cluster, "p3");
        routes.len() == 2
            && routes.iter().all(|route| now.iter().any(|at| route.contains(&format!("via {at} "))))
    });
    await_that("n2's tunnel to send there", SOON, || {
        n2.sh(&["bridge", "fdb", "show", "dev", TUNNEL]).unwrap().contains("dst 10.199.1.33 ")
    });
    let local = || {
        n3.json(&["ip", "-d", "-j", "link", "show", "dev", TUNNEL]).unwrap()[0]["linkinfo"]
        ["info_data"]["local"]
        .clone()
    };
    await_that("the tunnel to begin there", SOON, || local() == "10.199.1.33");
    expect_reach(&cluster, SOON);
    untouched.expect_whole();
    streams.expect_back();
}
