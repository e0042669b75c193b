//! Results of the probes for forwarded, blocked and rewritten packets. Needs root.

#![expect(clippy::unwrap_used, reason = "a test stops at the first error, also in helper functions")]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use testkit::{
    CableEnd, DEADLINE, Lab, Node, PingStream, Snapshot, inspect, ping, tcp_connects, tcp_echo, udp_connects,
    udp_echo,
};

const SHORT: Duration = Duration::from_millis(600);
const LONG: Duration = DEADLINE;

/// client 192.0.2.1 ── 192.0.2.254 router 198.51.100.254 ── server 198.51.100.1, and the same with IPv6.
struct Topology {
    _lab: Lab,
    client: Node,
    router: Node,
    server: Node,
}

fn topology(label: &str) -> Topology {
    let lab = Lab::new(label).unwrap();
    let (client, router, server) =
        (lab.node("client").unwrap(), lab.node("router").unwrap(), lab.node("server").unwrap());
    let near = CableEnd { ns: &client, dev: "up0", addresses: &["192.0.2.1/24", "2001:db8:1::1/64"] };
    let west = CableEnd { ns: &router, dev: "west", addresses: &["192.0.2.254/24", "2001:db8:1::fe/64"] };
    let east = CableEnd { ns: &router, dev: "east", addresses: &["198.51.100.254/24", "2001:db8:2::fe/64"] };
    let far = CableEnd { ns: &server, dev: "up0", addresses: &["198.51.100.1/24", "2001:db8:2::1/64"] };
    lab.wire(&near, &west).unwrap();
    lab.wire(&east, &far).unwrap();
    for (ns, v4, v6) in
        [(&client, "192.0.2.254", "2001:db8:1::fe"), (&server, "198.51.100.254", "2001:db8:2::fe")]
    {
        ns.sh(&["ip", "route", "add", "default", "via", v4]).unwrap();
        ns.sh(&["ip", "-6", "route", "add", "default", "via", v6]).unwrap();
    }
    router.sh(&["sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]).unwrap();
    Topology { _lab: lab, client, router, server }
}

fn servers() -> [SocketAddr; 2] {
    ["198.51.100.1:7".parse().unwrap(), "[2001:db8:2::1]:7".parse().unwrap()]
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn the_server_reports_the_routers_address_only_with_masquerade() {
    let topology = topology("masq");
    let own = [ip("192.0.2.1"), ip("2001:db8:1::1")];
    let routers = [ip("198.51.100.254"), ip("2001:db8:2::fe")];
    let _servers = servers()
        .map(|at| (tcp_echo(&topology.server, at).unwrap(), udp_echo(&topology.server, at).unwrap()));
    let reported = || {
        servers().map(|at| {
            let tcp = tcp_connects(&topology.client, at, LONG).unwrap().expect("tcp is blocked").ip();
            let udp = udp_connects(&topology.client, at, LONG).unwrap().expect("udp is blocked").ip();
            assert_eq!(tcp, udp);
            tcp
        })
    };
    assert_eq!(reported(), own);
    let rules = b"table inet nat { chain post { type nat hook postrouting priority 100; oifname east masquerade; }; }";
    assert!(topology.router.run(&["nft", "-f", "-"], rules).unwrap().success());
    assert_eq!(reported(), routers);
}

#[test]
fn a_failed_connection_returns_none() {
    let topology = topology("none");
    for at in servers() {
        assert_eq!(tcp_connects(&topology.client, at, LONG).unwrap(), None, "refused");
        assert_eq!(udp_connects(&topology.client, at, LONG).unwrap(), None, "refused");
    }
    let _servers = servers()
        .map(|at| (tcp_echo(&topology.server, at).unwrap(), udp_echo(&topology.server, at).unwrap()));
    let drop_all = b"table inet f { chain f { type filter hook forward priority 0; policy drop; }; }";
    assert!(topology.router.run(&["nft", "-f", "-"], drop_all).unwrap().success());
    for at in servers() {
        assert_eq!(tcp_connects(&topology.client, at, SHORT).unwrap(), None, "dropped");
        assert_eq!(udp_connects(&topology.client, at, SHORT).unwrap(), None, "dropped");
        assert!(!ping(&topology.client, at.ip(), 1).unwrap().any());
    }
    for how in ["icmpx type admin-prohibited", "tcp reset", "icmpx type port-unreachable"] {
        let reject = format!(
            "flush ruleset; table inet f {{ chain f {{ type filter hook forward priority 0; meta l4proto tcp reject with {how}; }}; }}"
        );
        assert!(topology.router.run(&["nft", "-f", "-"], reject.as_bytes()).unwrap().success(), "{how}");
        for at in servers() {
            assert_eq!(tcp_connects(&topology.client, at, LONG).unwrap(), None, "{how}");
            assert!(udp_connects(&topology.client, at, LONG).unwrap().is_some());
        }
    }
    topology.client.sh(&["ip", "link", "del", "up0"]).unwrap();
    for at in servers() {
        assert_eq!(tcp_connects(&topology.client, at, LONG).unwrap(), None, "no route");
        assert_eq!(udp_connects(&topology.client, at, LONG).unwrap(), None, "no route");
        assert_eq!(ping(&topology.client, at.ip(), 1).unwrap().received, 0);
    }
}

#[test]
fn drop_stops_an_echo_server_with_a_connected_client() {
    let lab = Lab::new("echo").unwrap();
    let node = lab.node("n1").unwrap();
    let any: SocketAddr = "[::]:0".parse().unwrap();
    let (tcp, udp) = (tcp_echo(&node, any).unwrap(), udp_echo(&node, any).unwrap());
    let at = |port| SocketAddr::new(ip("127.0.0.1"), port);
    let (tcp_at, udp_at) = (at(tcp.address().port()), at(udp.address().port()));
    assert_eq!(tcp_connects(&node, tcp_at, LONG).unwrap().unwrap().ip(), ip("127.0.0.1"));
    assert_eq!(udp_connects(&node, udp_at, LONG).unwrap().unwrap().ip(), ip("127.0.0.1"));
    let held = node.enter(|| std::net::TcpStream::connect(tcp_at)).unwrap().unwrap();
    drop((tcp, udp));
    drop(held);
    assert_eq!(tcp_connects(&node, tcp_at, LONG).unwrap(), None);
    assert_eq!(udp_connects(&node, udp_at, LONG).unwrap(), None);
}

#[test]
fn a_snapshot_detects_every_kind_of_leftover() {
    let topology = topology("snapshot");
    let node = &topology.router;
    let before = Snapshot::of(node).unwrap();
    assert!(ping(node, ip("192.0.2.1"), 1).unwrap().all(), "the neighbour does not reply");
    before.expect_same(node).unwrap();
    let nft = "add table inet left; add set inet left s { type ipv4_addr; elements = { 10.0.0.1 }; }";
    let kinds: [(&str, Vec<&str>, Vec<&str>); 8] = [
        ("link", vec!["ip", "link", "add", "d0", "type", "bridge"], vec!["ip", "link", "del", "d0"]),
        (
            "address",
            vec!["ip", "addr", "add", "10.9.9.9/32", "dev", "lo"],
            vec!["ip", "addr", "del", "10.9.9.9/32", "dev", "lo"],
        ),
        (
            "route -4",
            vec!["ip", "route", "add", "10.7.0.0/16", "dev", "west", "proto", "112"],
            vec!["ip", "route", "del", "10.7.0.0/16"],
        ),
        (
            "route -6",
            vec!["ip", "-6", "route", "add", "fd07::/64", "dev", "west"],
            vec!["ip", "-6", "route", "del", "fd07::/64"],
        ),
        (
            "rule -6",
            vec!["ip", "-6", "rule", "add", "from", "fd07::/64", "table", "7"],
            vec!["ip", "-6", "rule", "del", "from", "fd07::/64"],
        ),
        (
            "neighbour",
            vec![
                "ip",
                "neigh",
                "add",
                "192.0.2.7",
                "lladdr",
                "02:00:00:00:00:07",
                "dev",
                "west",
                "nud",
                "permanent",
            ],
            vec!["ip", "neigh", "del", "192.0.2.7", "dev", "west"],
        ),
        (
            "qdisc",
            vec!["tc", "qdisc", "add", "dev", "west", "root", "pfifo"],
            vec!["tc", "qdisc", "del", "dev", "west", "root"],
        ),
        ("nft element", vec!["nft", nft], vec!["nft", "delete", "table", "inet", "left"]),
    ];
    for (kind, create, remove) in kinds {
        node.sh(&create).unwrap();
        let difference = before.difference(&Snapshot::of(node).unwrap()).to_string();
        assert!(difference.contains(&format!("+ {kind}")), "{kind}: {difference}");
        node.sh(&remove).unwrap();
        before.expect_same(node).unwrap();
    }
    node.sh(&["ip", "link", "set", "west", "alias", "mine"]).unwrap();
    assert_eq!(inspect::link(node, "west").unwrap().alias.as_deref(), Some("mine"));
    assert!(before.expect_same(node).unwrap_err().to_string().contains("alias mine"));
}

#[test]
fn inspection_reads_routes_and_neighbours_of_both_families() {
    let topology = topology("inspect");
    let node = &topology.client;
    let v6 = inspect::routes(node, inspect::Family::V6).unwrap();
    let default = v6.iter().find(|route| route.dst == "default").unwrap();
    assert_eq!((default.gateway, default.dev.as_deref()), (Some(ip("2001:db8:1::fe")), Some("up0")));
    node.sh(&[
        "ip",
        "route",
        "add",
        "10.9.0.0/16",
        "via",
        "inet6",
        "2001:db8:1::fe",
        "dev",
        "up0",
        "mtu",
        "1400",
    ])
    .unwrap();
    let v4 = inspect::routes(node, inspect::Family::V4).unwrap();
    let route = v4.iter().find(|route| route.dst == "10.9.0.0/16").unwrap();
    assert_eq!(route.via.as_ref().unwrap().host, ip("2001:db8:1::fe"));
    assert_eq!(route.metrics[0]["mtu"], 1400);
    for address in ["192.0.2.9", "2001:db8:1::9"] {
        node.sh(&[
            "ip",
            "neigh",
            "add",
            address,
            "lladdr",
            "02:00:00:00:00:09",
            "dev",
            "up0",
            "nud",
            "permanent",
        ])
        .unwrap();
        let all = inspect::neighbours(node).unwrap();
        let neighbour = all.iter().find(|n| n.dst == ip(address)).unwrap();
        assert_eq!(
            (neighbour.mac.as_deref(), neighbour.state.as_slice()),
            (Some("02:00:00:00:00:09"), &["PERMANENT".to_owned()][..])
        );
    }
    assert_eq!(inspect::nft_json(node).unwrap(), [] as [serde_json::Value; 0]);
    let link = inspect::link(node, "up0").unwrap();
    assert!(link.is_up() && link.kind() == Some("veth") && link.mac.is_some() && link.master.is_none());
    assert!(inspect::link(node, "nope").is_err());
}

#[test]
fn a_ping_stream_reports_lost_packets() {
    let topology = topology("stream");
    for to in servers().map(|at| at.ip()) {
        assert!(ping(&topology.client, to, 1).unwrap().all());
        let (undisturbed, interrupted) = (
            PingStream::start(&topology.client, to).unwrap(),
            PingStream::start(&topology.client, to).unwrap(),
        );
        std::thread::sleep(SHORT);
        let report = undisturbed.end().unwrap();
        assert!(report.lost.is_empty() && report.sent > 5, "{to}: {report:?}");
        // The router drops the packets of the other stream for a while.
        topology
            .router
            .sh(&[
                "nft",
                "add table inet t; add chain inet t c { type filter hook forward priority 0; policy drop; }",
            ])
            .unwrap();
        std::thread::sleep(SHORT);
        topology.router.sh(&["nft", "delete", "table", "inet", "t"]).unwrap();
        std::thread::sleep(SHORT);
        let report = interrupted.end().unwrap();
        let (lost, sent) = (report.lost.len(), report.sent as usize);
        assert!(lost > 5 && lost < sent - 5, "{to}: {report:?}");
    }
}
