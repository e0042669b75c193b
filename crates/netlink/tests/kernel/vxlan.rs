//! Tunnel devices and FDB entries of both outer families, compared with the output of `ip -j` and `bridge -j`.

use std::net::IpAddr;
use std::time::Instant;

use crate::testbed::{Testbed, command, mac, name};
use ipnet::IpNet;
use netlink::{
    AddAddress, AddNeighbour, AddVxlan, Error, Family, Fdb, LinkRef, Mode, Op, Route, RouteFilter,
    RouteScope, RtSocket, SetLink,
};
use types::{IfName, PEER_PROTOCOL};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// Per outer family: the local address, the remote address, and the prefix length of their network.
const OUTER: [(&str, &str, &str); 2] =
    [("192.0.2.1", "192.0.2.2", "/24"), ("2001:db8::1", "2001:db8::2", "/64")];

fn tunnel<'a>(name: &'a IfName, local: &str, tail: u8) -> AddVxlan<'a> {
    AddVxlan { name, mac: mac(tail), mtu: 1400, vni: 77, port: 4789, local: ip(local), link: None }
}

fn address(link: u32, addr: IpNet) -> Op<'static> {
    Op::AddAddress(AddAddress {
        link,
        addr,
        nodad: true,
        broadcast: None,
        no_subnet_route: false,
        mode: Mode::Exclusive,
    })
}

#[test]
fn a_created_tunnel_has_the_requested_settings() {
    for (local, other, _) in OUTER {
        let mut w = Testbed::new();
        let (lower, _) = w.veth("eth0", "eth0");
        let pwvx = name("pwvx4");
        let add = AddVxlan { link: Some(lower), ..tunnel(&pwvx, local, 20) };
        let index = w.host_socket.create_vxlan(&add, Some("podwire:tunnel")).unwrap();

        let link = w.host_socket.link_at(index).unwrap().unwrap();
        assert_eq!((link.name.as_str(), link.mac, link.mtu, link.up), ("pwvx4", Some(mac(20)), 1400, true));
        assert_eq!((link.kind.as_deref(), link.alias.as_deref()), (Some("vxlan"), Some("podwire:tunnel")));
        let vxlan = link.vxlan.unwrap();
        assert_eq!((vxlan.vni, vxlan.port, vxlan.local), (77, 4789, Some(ip(local))));
        assert_eq!((vxlan.learning, vxlan.group, vxlan.link), (false, None, Some(lower)));
        assert_eq!(w.host_socket.link_at(lower).unwrap().unwrap().vxlan, None);

        let shown = &command(&w.host, "ip -j -d link show dev pwvx4")[0];
        let data = &shown["linkinfo"]["info_data"];
        assert_eq!(
            (&data["id"], &data["port"], &data["learning"]),
            (&77.into(), &4789.into(), &false.into())
        );
        assert_eq!(data[if ip(local).is_ipv4() { "local" } else { "local6" }], local);
        assert_eq!((&data["udp_zero_csum6_tx"], &data["udp_zero_csum6_rx"]), (&false.into(), &false.into()));
        assert_eq!((&data["group"], &data["group6"]), (&serde_json::Value::Null, &serde_json::Value::Null));
        assert_eq!(shown["inet6_addr_gen_mode"], "none");
        assert_eq!(w.host_socket.addresses(Some(index)).unwrap(), []);

        // The same name fails, and so do the same VNI and port under another name.
        let error = w.host_socket.create_vxlan(&add, Some("other")).unwrap_err();
        assert!(error.is_exists() && error.to_string().contains("create vxlan pwvx4 from"), "{error}");
        let twin = name("twin");
        assert!(w.host_socket.create_vxlan(&AddVxlan { name: &twin, ..add }, None).unwrap_err().is_exists());
        assert_eq!(w.host_socket.link_at(index).unwrap().unwrap(), link);
        let bad = AddVxlan { name: &twin, vni: 1 << 24, local: ip(other), ..add };
        assert_eq!(
            w.host_socket.create_vxlan(&bad, None).unwrap_err().errno(),
            Some(rustix::io::Errno::RANGE)
        );
        assert_eq!(w.host_socket.link(&twin).unwrap(), None);
    }
}

#[test]
fn a_partly_created_tunnel_is_removed() {
    let mut w = Testbed::new();
    let pwvx = name("pwvx4");
    let error =
        w.host_socket.create_vxlan(&tunnel(&pwvx, "192.0.2.1", 20), Some(&"x".repeat(300))).unwrap_err();
    assert!(error.to_string().contains("set up vxlan pwvx4"), "{error}");
    assert_eq!(w.host_socket.link(&pwvx).unwrap(), None);
}

#[test]
fn both_families_can_have_a_tunnel_with_the_same_vni_and_port() {
    let mut w = Testbed::new();
    let (four, six) = (name("pwvx4"), name("pwvx6"));
    w.host_socket.create_vxlan(&tunnel(&four, OUTER[0].0, 20), None).unwrap();
    w.host_socket.create_vxlan(&tunnel(&six, OUTER[1].0, 20), None).unwrap();
}

#[test]
fn an_fdb_entry_replaces_the_one_of_the_same_mac() {
    for (local, other, _) in OUTER {
        let mut w = Testbed::new();
        let pwvx = name("pwvx4");
        let link = w.host_socket.create_vxlan(&tunnel(&pwvx, local, 20), None).unwrap();
        assert_eq!(w.host_socket.fdb(link).unwrap(), []);
        let entry = Fdb { link, mac: mac(30), dst: ip(other) };
        let moved = Fdb { dst: ip(local), ..entry };
        w.host_socket.run_every(&[Op::AddFdb(moved), Op::AddFdb(moved), Op::AddFdb(entry)]).unwrap();
        assert_eq!(w.host_socket.fdb(link).unwrap(), [entry]);
        let second = Fdb { mac: mac(31), ..entry };
        w.host_socket.run(&Op::AddFdb(second)).unwrap();
        let shown = command(&w.host, "bridge -j fdb show dev pwvx4");
        let shown_entry = |entry: &Fdb| {
            let all = shown.as_array().unwrap();
            all.iter().find(|one| one["mac"] == entry.mac.to_string()).unwrap().clone()
        };
        assert_eq!(
            (&shown_entry(&entry)["dst"], &shown_entry(&entry)["state"]),
            (&other.into(), &"permanent".into())
        );
        assert_eq!(shown_entry(&second)["dst"], other);

        // The kernel acknowledges the removal of an entry with another destination, and does nothing.
        w.host_socket.run(&Op::DelFdb(moved)).unwrap();
        assert!(w.host_socket.fdb(link).unwrap().contains(&entry));
        w.host_socket.run(&Op::DelFdb(entry)).unwrap();
        let error = w.host_socket.run(&Op::DelFdb(entry)).unwrap_err();
        assert!(error.is_missing(), "{error}");
        let operation = format!("delete forwarding entry {} to {other} on link {link}", mac(30));
        assert!(error.to_string().contains(&operation), "{error}");
        assert_eq!(w.host_socket.fdb(link).unwrap(), [second]);
        assert!(w.host_socket.run(&Op::AddFdb(Fdb { link: 4711, ..entry })).unwrap_err().is_missing());
        assert_eq!(w.host_socket.fdb(4711).unwrap(), []);
        let wrong = OUTER.iter().find(|(l, ..)| *l != local).unwrap().0;
        let refused = w.host_socket.run(&Op::AddFdb(Fdb { dst: ip(wrong), ..entry }));
        assert!(refused.is_err(), "a tunnel has one outer family");
    }
}

#[test]
fn fdb_entries_of_other_devices_are_not_listed() {
    let mut w = Testbed::new();
    let (one, two) = (name("pwvx4"), name("other"));
    let first = w.host_socket.create_vxlan(&tunnel(&one, "192.0.2.1", 20), None).unwrap();
    let second =
        w.host_socket.create_vxlan(&AddVxlan { vni: 78, ..tunnel(&two, "192.0.2.1", 21) }, None).unwrap();
    let entry = |link| Fdb { link, mac: mac(30), dst: ip("192.0.2.2") };
    w.host_socket.run_every(&[Op::AddFdb(entry(first)), Op::AddFdb(entry(second))]).unwrap();
    w.bridge("br0");
    assert_eq!(w.host_socket.fdb(first).unwrap(), [entry(first)]);
    assert_eq!(w.host_socket.fdb(second).unwrap(), [entry(second)]);
}

/// Configures one node: a tunnel over `lower`, and the routes and entries to the block of the other node.
fn configure(
    socket: &mut RtSocket,
    lower: u32,
    (local, remote, len): (&str, &str, &str),
    (own, far): (u8, u8),
) {
    let pwvx = name("pwvx");
    socket.run(&address(lower, net(&format!("{local}{len}")))).unwrap();
    let link = socket.create_vxlan(&tunnel(&pwvx, local, own), None).unwrap();
    let lo = socket.link(&name("lo")).unwrap().unwrap().index;
    let mut ops = vec![Op::SetLink(SetLink { up: Some(true), ..SetLink::of(LinkRef::Index(lo)) })];
    ops.push(Op::AddFdb(Fdb { link, mac: mac(far), dst: ip(remote) }));
    let link_local = format!("fe80::ff:fe00:{far:x}");
    for (own_addr, dst, gateway) in [
        (format!("10.2.{own}.1/32"), format!("10.2.{far}.0/24"), format!("10.2.{far}.0")),
        (format!("fd00:2:0:{own}::1/128"), format!("fd00:2:0:{far}::/64"), link_local),
    ] {
        let (gateway, own_addr) = (ip(&gateway), net(&own_addr));
        let route = Route {
            gateway: Some(gateway),
            link: Some(link),
            onlink: gateway.is_ipv4(),
            protocol: PEER_PROTOCOL,
            src: Some(own_addr.addr()),
            ..Route::to(net(&dst))
        };
        ops.push(address(lo, own_addr));
        ops.push(Op::AddNeighbour(AddNeighbour {
            link,
            addr: gateway,
            mac: mac(far),
            protocol: PEER_PROTOCOL,
        }));
        ops.push(Op::AddRoute { route, mode: Mode::Replace });
    }
    socket.run_every(&ops).unwrap();
}

#[test]
fn both_families_are_reachable_over_either_tunnel() {
    for (near, far, len) in OUTER {
        let mut w = Testbed::new();
        let (host, pod) = w.veth("eth0", "eth0");
        configure(&mut w.host_socket, host, (near, far, len), (21, 22));
        configure(&mut w.pod_socket, pod, (far, near, len), (22, 21));
        // The host end of a veth does not answer ARP.
        for (socket, link, addr, at) in
            [(&mut w.host_socket, host, far, 3), (&mut w.pod_socket, pod, near, 2)]
        {
            let neighbour = AddNeighbour { link, addr: ip(addr), mac: mac(at), protocol: PEER_PROTOCOL };
            socket.run(&Op::AddNeighbour(neighbour)).unwrap();
        }
        for target in ["10.2.22.1", "fd00:2:0:22::1"] {
            let ping = || std::process::Command::new("ping").args(["-c3", "-i0.2", "-W2", target]).output();
            let out = w.host.run(ping).unwrap().unwrap();
            assert!(out.status.success(), "{target}: {}", String::from_utf8_lossy(&out.stdout));
        }
        let of_peers = RouteFilter { protocol: Some(PEER_PROTOCOL), ..RouteFilter::default() };
        let routes = w.host_socket.routes(of_peers).unwrap();
        assert_eq!(routes.len(), 2);
        assert!(routes.iter().all(|route| route.onlink == route.dst.addr().is_ipv4()), "{routes:?}");
        for (dst, src) in [("10.2.22.0/24", "10.2.21.1"), ("fd00:2:0:22::/64", "fd00:2:0:21::1")] {
            let found = routes.iter().find(|route| route.dst == net(dst)).unwrap();
            assert_eq!(found.src, Some(ip(src)));
        }
    }
}

#[test]
fn a_route_is_replaced_between_tunnel_and_link() {
    let mut w = Testbed::new();
    let (host, pod) = w.veth("eth0", "eth0");
    for (near, far, len) in OUTER {
        w.host_socket.run(&address(host, net(&format!("{near}{len}")))).unwrap();
        w.pod_socket.run(&address(pod, net(&format!("{far}{len}")))).unwrap();
    }
    let pwvx = name("pwvx");
    let link = w.host_socket.create_vxlan(&tunnel(&pwvx, OUTER[0].0, 21), None).unwrap();
    let of_peers = RouteFilter { protocol: Some(PEER_PROTOCOL), ..RouteFilter::default() };
    for (dst, tunnelled, direct) in
        [("10.2.22.0/24", "10.2.22.0", OUTER[0].1), ("fd00:2:0:22::/64", "fe80::ff:fe00:16", OUTER[1].1)]
    {
        let tunnelled_route = Route {
            gateway: Some(ip(tunnelled)),
            link: Some(link),
            onlink: ip(tunnelled).is_ipv4(),
            protocol: PEER_PROTOCOL,
            ..Route::to(net(dst))
        };
        let on_link = Route { gateway: Some(ip(direct)), link: Some(host), onlink: false, ..tunnelled_route };
        for route in [on_link, tunnelled_route, on_link, tunnelled_route] {
            w.host_socket.run(&Op::AddRoute { route, mode: Mode::Replace }).unwrap();
            let found: Vec<_> =
                w.host_socket.routes(of_peers).unwrap().into_iter().map(|r| (r.gateway, r.link)).collect();
            assert_eq!(found, [(route.gateway, route.link)]);
        }
        assert!(
            w.host_socket.run(&Op::DelRoute(on_link)).unwrap_err().is_missing(),
            "another route is installed"
        );
        w.host_socket.run(&Op::DelRoute(tunnelled_route)).unwrap();
    }
}

/// Unmanaged routes to the same destination differ by protocol, gateway, link or metric.
#[test]
fn only_the_exact_route_is_removed() {
    for (near, far, len) in OUTER {
        let mut w = Testbed::new();
        let (link, _) = w.veth("eth0", "eth0");
        w.host_socket.run(&address(link, net(&format!("{near}{len}")))).unwrap();
        let dst = if ip(far).is_ipv4() { "10.2.22.0/24" } else { "fd00:2:0:22::/64" };
        command(&w.host, &format!("ip route add {dst} via {far} metric 7"));
        command(&w.host, &format!("ip route add {dst} via {far} metric 8 proto 112"));
        let managed = Route {
            gateway: Some(ip(far)),
            link: Some(link),
            protocol: PEER_PROTOCOL,
            ..Route::to(net(dst))
        };
        assert!(w.host_socket.run(&Op::DelRoute(managed)).unwrap_err().is_missing());
        w.host_socket.run(&Op::AddRoute { route: managed, mode: Mode::Exclusive }).unwrap();
        w.host_socket.run(&Op::DelRoute(managed)).unwrap();
        let routes = w.host_socket.routes(RouteFilter::default()).unwrap();
        assert_eq!(routes.iter().filter(|route| route.dst == net(dst)).count(), 2);
    }
}

#[test]
fn the_default_route_is_found_despite_other_routes() {
    for (near, far, len) in OUTER {
        let mut w = Testbed::new();
        let (link, _) = w.veth("eth0", "eth0");
        let (other, _) = w.veth("eth1", "eth1");
        let family = if ip(near).is_ipv4() { Family::V4 } else { Family::V6 };
        assert_eq!(w.host_socket.default_route(family).unwrap(), None);
        w.host_socket.run(&address(link, net(&format!("{near}{len}")))).unwrap();
        let flag = if family == Family::V4 { "-4" } else { "-6" };
        command(&w.host, &format!("ip {flag} route add unreachable default metric 4000"));
        assert_eq!(w.host_socket.default_route(family).unwrap(), None);
        command(&w.host, &format!("ip {flag} route add default dev eth1 metric 300"));
        command(&w.host, &format!("ip {flag} route add default via {far} metric 200"));
        // `default_route` looks up several unassigned addresses. The first one has a more specific route here.
        let covered = if family == Family::V4 { "192.0.0.0/16" } else { "2001:db8::/32" };
        command(&w.host, &format!("ip {flag} route add {covered} dev eth1"));
        let found = w.host_socket.default_route(family).unwrap().unwrap();
        assert_eq!((found.gateway, found.link, found.priority), (Some(ip(far)), Some(link), Some(200)));
        // A blackhole route for one of these addresses does not hide the default route.
        command(&w.host, &format!("ip {flag} route del {covered} dev eth1"));
        for kind in ["blackhole", "unreachable", "prohibit"] {
            command(&w.host, &format!("ip {flag} route add {kind} {covered}"));
            assert_eq!(
                w.host_socket.default_route(family).unwrap().map(|route| route.link),
                Some(Some(link)),
                "{kind}"
            );
            command(&w.host, &format!("ip {flag} route del {kind} {covered}"));
        }
        command(&w.host, &format!("ip {flag} route del default via {far} metric 200"));
        let found = w.host_socket.default_route(family).unwrap().unwrap();
        assert_eq!((found.gateway, found.link, found.priority), (None, Some(other), Some(300)));
    }
}

/// `--nocapture` prints the times.
#[test]
fn five_thousand_peers_are_added_and_listed_by_protocol() {
    let mut w = Testbed::new();
    let pwvx = name("pwvx");
    // In a namespace without addresses the kernel accepts no gateway, because it has no local table.
    command(&w.host, "ip link set lo up");
    let link = w.host_socket.create_vxlan(&tunnel(&pwvx, "192.0.2.1", 21), None).unwrap();
    let route = |i: u32| {
        let dst = IpNet::new(std::net::Ipv4Addr::from(0x0a00_0000 | i << 8).into(), 24).unwrap();
        let route = Route {
            gateway: Some(dst.network()),
            link: Some(link),
            onlink: true,
            protocol: PEER_PROTOCOL,
            ..Route::to(dst)
        };
        Op::AddRoute { route, mode: Mode::Replace }
    };
    let timed = |what: &str, w: &mut Testbed, ops: &[Op<'_>]| {
        let start = Instant::now();
        w.host_socket.run_every(ops).unwrap();
        println!("{} {what}: {:?}", ops.len(), start.elapsed());
    };
    let routes: Vec<_> = (0..5000).map(route).collect();
    timed("routes", &mut w, &routes);
    let entries: Vec<_> = (0..5000u32)
        .map(|i| {
            let [_, _, high, low] = i.to_be_bytes();
            let mac = types::Mac::local([9, 9, 9, high, low]);
            Op::AddFdb(Fdb { link, mac, dst: IpAddr::from([203, 0, high, low]) })
        })
        .collect();
    timed("forwarding entries", &mut w, &entries);
    // The kernel checks all gateways of a link for each added gateway. These routes have none and are fast.
    let unmanaged: Vec<_> = (10_000..60_000)
        .map(|i| {
            let dst = IpNet::new(std::net::Ipv4Addr::from(0x0a00_0000 | i << 8).into(), 24).unwrap();
            let route = Route { link: Some(link), scope: RouteScope::Link, protocol: 99, ..Route::to(dst) };
            Op::AddRoute { route, mode: Mode::Exclusive }
        })
        .collect();
    timed("unmanaged routes", &mut w, &unmanaged);
    let start = Instant::now();
    let of_peers = RouteFilter { protocol: Some(PEER_PROTOCOL), ..RouteFilter::default() };
    assert_eq!(w.host_socket.routes(of_peers).unwrap().len(), 5000);
    let filtered = start.elapsed();
    let start = Instant::now();
    assert_eq!(w.host_socket.fdb(link).unwrap().len(), 5000);
    println!("5000 of 55000 routes listed: {filtered:?}; 5000 forwarding entries: {:?}", start.elapsed());
    let start = Instant::now();
    assert_eq!(w.host_socket.routes(RouteFilter::default()).unwrap().len(), 55_000);
    println!("all listed: {:?}", start.elapsed());
    let deleted: Vec<Result<(), Error>> = w.host_socket.run_all(&[Op::DelLink(link)]).unwrap();
    assert!(deleted[0].is_ok());
}
