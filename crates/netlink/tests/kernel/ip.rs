//! Addresses, routes and neighbours of both families, compared with the output of `ip -j`.

use std::net::IpAddr;

use crate::testbed::{Testbed, command, eventually, mac};
use ipnet::IpNet;
use netlink::{AddAddress, AddNeighbour, Error, LinkRef, Mode, Op, Route, RouteFilter, RouteScope, SetLink};
use types::ROUTE_PROTOCOL;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn address(link: u32, text: &str, mode: Mode) -> Op<'static> {
    Op::AddAddress(AddAddress {
        link,
        addr: net(text),
        nodad: true,
        broadcast: None,
        no_subnet_route: false,
        mode,
    })
}

fn add(route: Route) -> Op<'static> {
    Op::AddRoute { route, mode: Mode::Exclusive }
}

const FAMILIES: [(&str, &str, &str); 2] =
    [("10.1.2.3/24", "10.1.2.1", "10.9.0.0/16"), ("fd00:1::3/64", "fd00:1::1", "fd00:9::/48")];

#[test]
fn addresses_keep_host_bits_and_are_usable_immediately() {
    let mut w = Testbed::new();
    let (_, link) = w.veth("pwabc", "eth0");
    let mut four = AddAddress {
        link,
        addr: net("10.1.2.3/24"),
        nodad: true,
        broadcast: Some("10.1.2.255".parse().unwrap()),
        no_subnet_route: false,
        mode: Mode::Exclusive,
    };
    w.pod_socket.run_every(&[Op::AddAddress(four), address(link, "fd00:1::3/64", Mode::Exclusive)]).unwrap();
    let listed = w.pod_socket.addresses(Some(link)).unwrap();
    let find = |text: &str| *listed.iter().find(|a| a.addr == net(text)).unwrap();
    assert_eq!(find("10.1.2.3/24").broadcast, four.broadcast);
    let six = find("fd00:1::3/64");
    assert!(six.nodad && !six.tentative && !six.duplicate);
    command(&w.pod, "ip addr add 10.1.3.3/24 dev eth0");
    for address in w.pod_socket.addresses(Some(link)).unwrap() {
        let is_managed = ["10.1.2.3/24", "fd00:1::3/64"].map(net).contains(&address.addr);
        assert_eq!(address.protocol == Some(ROUTE_PROTOCOL), is_managed, "{address:?}");
    }
    command(&w.pod, "ip addr del 10.1.3.3/24 dev eth0");

    let shown = &command(&w.pod, "ip -j addr show dev eth0")[0]["addr_info"];
    let of = |ip: &str| shown.as_array().unwrap().iter().find(|a| a["local"] == ip).unwrap();
    assert_eq!(of("10.1.2.3")["broadcast"], "10.1.2.255");
    assert_eq!(of("10.1.2.3")["scope"], "global");
    assert_eq!(of("10.1.2.3").get("nodad"), None);
    assert_eq!(of("fd00:1::3")["prefixlen"], 64);
    assert_eq!(of("fd00:1::3")["nodad"], true);

    four.mode = Mode::Replace;
    w.pod_socket.run(&Op::AddAddress(four)).unwrap();
    assert_eq!(w.pod_socket.addresses(Some(link)).unwrap().len(), listed.len());
    assert_eq!(w.pod_socket.addresses(Some(4711)).unwrap(), []);
}

#[test]
fn adding_an_existing_address_and_removing_a_missing_one_fail() {
    for (addr, _, _) in FAMILIES {
        let mut w = Testbed::new();
        let (_, link) = w.veth("pwabc", "eth0");
        w.pod_socket.run(&address(link, addr, Mode::Exclusive)).unwrap();
        let error = w.pod_socket.run(&address(link, addr, Mode::Exclusive)).unwrap_err();
        assert!(error.is_exists(), "{error}");
        assert!(error.to_string().contains(&format!("add address {addr} to link {link}")), "{error}");
        w.pod_socket.run(&address(link, addr, Mode::Replace)).unwrap();
        let remove = Op::DelAddress { link, addr: net(addr) };
        w.pod_socket.run(&remove).unwrap();
        assert!(!w.pod_socket.addresses(Some(link)).unwrap().iter().any(|a| a.addr == net(addr)));
        assert!(w.pod_socket.run(&remove).unwrap_err().is_missing());
    }
}

#[test]
fn listed_routes_equal_the_added_routes() {
    for (addr, gateway, far) in FAMILIES {
        let mut w = Testbed::new();
        let (_, link) = w.veth("pwabc", "eth0");
        w.pod_socket.run(&address(link, addr, Mode::Exclusive)).unwrap();
        let route = Route {
            gateway: Some(ip(gateway)),
            link: Some(link),
            src: Some(net(addr).addr()),
            mtu: Some(1400),
            advmss: Some(1300),
            priority: Some(77),
            table: Some(1000),
            ..Route::to(net(far))
        };
        w.pod_socket.run(&add(route)).unwrap();
        let filter = RouteFilter { table: Some(1000), link: Some(link), protocol: Some(ROUTE_PROTOCOL) };
        assert_eq!(w.pod_socket.routes(filter).unwrap(), [route]);
        assert_eq!(w.pod_socket.routes(RouteFilter { table: Some(1001), ..filter }).unwrap(), []);
        assert_eq!(w.pod_socket.routes(RouteFilter { link: Some(link + 50), ..filter }).unwrap(), []);
        assert_eq!(w.pod_socket.routes(RouteFilter { protocol: Some(99), ..filter }).unwrap(), []);

        let family = if net(far).addr().is_ipv4() { "-4" } else { "-6" };
        let shown = &command(&w.pod, &format!("ip {family} -j route show table 1000"))[0];
        assert_eq!(shown["gateway"], gateway);
        assert_eq!(shown["metric"], 77);
        assert_eq!(shown["protocol"], "112");
        assert_eq!(shown["metrics"][0]["mtu"], 1400);
        assert_eq!(shown["prefsrc"], net(addr).addr().to_string());

        assert!(w.pod_socket.run(&add(route)).unwrap_err().is_exists());
        let smaller = Route { mtu: Some(1350), ..route };
        w.pod_socket.run(&Op::AddRoute { route: smaller, mode: Mode::Replace }).unwrap();
        assert_eq!(w.pod_socket.routes(filter).unwrap(), [smaller]);

        let other_protocol = Route { protocol: 99, ..route };
        assert!(
            w.pod_socket.run(&Op::DelRoute(other_protocol)).unwrap_err().is_missing(),
            "the protocol must match"
        );
        w.pod_socket.run(&Op::DelRoute(route)).unwrap();
        assert_eq!(w.pod_socket.routes(filter).unwrap(), []);
        assert!(w.pod_socket.run(&Op::DelRoute(route)).unwrap_err().is_missing());
    }
}

#[test]
fn the_default_route_is_used_by_lookups() {
    for (addr, gateway, far) in FAMILIES {
        let mut w = Testbed::new();
        let (_, link) = w.veth("pwabc", "eth0");
        let target = net(far).addr();
        assert!(w.pod_socket.route_to(target).unwrap_err().is_unreachable());
        let any = if target.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
        let default = Route { gateway: Some(ip(gateway)), link: Some(link), ..Route::to(net(any)) };
        w.pod_socket.run_every(&[address(link, addr, Mode::Exclusive), add(default)]).unwrap();
        let found = w.pod_socket.route_to(target).unwrap();
        assert_eq!((found.link, found.gateway, found.local), (link, Some(ip(gateway)), false));
        assert_eq!(found.src, Some(net(addr).addr()));
        // The kernel lists an IPv6 address immediately, but adds its local route later from a work queue.
        eventually("the local route", || w.pod_socket.route_to(net(addr).addr()).unwrap().local);
        let managed = w
            .pod_socket
            .routes(RouteFilter { protocol: Some(ROUTE_PROTOCOL), ..RouteFilter::default() })
            .unwrap();
        assert_eq!(managed.len(), 1);
        assert_eq!((managed[0].dst, managed[0].table), (net(any), Some(254)));
    }
}

#[test]
fn host_routes_are_exclusive_and_a_gateway_can_be_onlink() {
    for (addr, gateway, far) in FAMILIES {
        let mut w = Testbed::new();
        let (host, pod) = w.veth("pwabc", "eth0");
        let single = IpNet::from(net(addr).addr());
        let direct = Route { link: Some(host), scope: RouteScope::Link, ..Route::to(single) };
        w.host_socket.run(&add(direct)).unwrap();
        let error = w.host_socket.run(&add(direct)).unwrap_err();
        assert!(error.is_exists());
        assert!(error.to_string().contains(&format!("add route {single} on link {host}")), "{error}");
        assert_eq!(w.host_socket.route_to(single.addr()).unwrap().link, host);

        w.pod_socket.run(&address(pod, &single.to_string(), Mode::Exclusive)).unwrap();
        let via = Route { gateway: Some(ip(gateway)), link: Some(pod), ..Route::to(net(far)) };
        assert!(w.pod_socket.run(&add(via)).is_err(), "{gateway} is in no subnet of the pod");
        w.pod_socket.run(&add(Route { onlink: true, ..via })).unwrap();
        assert_eq!(w.pod_socket.route_to(net(far).addr()).unwrap().gateway, Some(ip(gateway)));
    }
}

#[test]
fn a_v4_route_accepts_a_v6_gateway_and_ignores_host_bits() {
    let mut w = Testbed::new();
    let (_, link) = w.veth("pwabc", "eth0");
    let route = Route { gateway: Some(ip("fe80::1")), link: Some(link), ..Route::to(net("10.9.8.7/16")) };
    w.pod_socket.run(&add(route)).unwrap();
    let listed = w.pod_socket.routes(RouteFilter { link: Some(link), ..RouteFilter::default() }).unwrap();
    let found = listed.iter().find(|r| r.protocol == ROUTE_PROTOCOL).unwrap();
    assert_eq!((found.dst, found.gateway), (net("10.9.0.0/16"), Some(ip("fe80::1"))));
}

#[test]
fn five_thousand_routes_are_added_in_one_call_with_one_result_each() {
    let mut w = Testbed::new();
    let (link, _) = w.veth("pwabc", "eth0");
    let route = |i: u32| {
        let bits = i << 8;
        let dst = if i.is_multiple_of(2) {
            IpNet::new(std::net::Ipv4Addr::from(0x0a00_0000 | bits).into(), 24)
        } else {
            IpNet::new(std::net::Ipv6Addr::from((0xfd00 << 112) | u128::from(bits) << 64).into(), 64)
        };
        Route { link: Some(link), scope: RouteScope::Link, ..Route::to(dst.unwrap()) }
    };
    // Every thousandth route exists already and must be the one that fails.
    let existing: Vec<_> = (0..5000).step_by(1000).map(|i| add(route(i))).collect();
    w.host_socket.run_every(&existing).unwrap();
    let all: Vec<_> = (0..5000).map(|i| add(route(i))).collect();
    let results = w.host_socket.run_all(&all).unwrap();
    assert_eq!(results.len(), 5000);
    for (i, result) in results.iter().enumerate() {
        assert_eq!(result.as_ref().is_err_and(Error::is_exists), i % 1000 == 0, "{i}: {result:?}");
    }
    let managed = RouteFilter { protocol: Some(ROUTE_PROTOCOL), ..RouteFilter::default() };
    assert_eq!(w.host_socket.routes(managed).unwrap().len(), 5000);
    let removals: Vec<_> = (0..5000).map(|i| Op::DelRoute(route(i))).collect();
    w.host_socket.run_every(&removals).unwrap();
    assert_eq!(w.host_socket.routes(managed).unwrap(), []);
}

#[test]
fn neighbours_are_permanent_and_replaced() {
    for (addr, gateway, _) in FAMILIES {
        let mut w = Testbed::new();
        let (_, link) = w.veth("pwabc", "eth0");
        w.pod_socket.run(&address(link, addr, Mode::Exclusive)).unwrap();
        let neighbour = |tail| {
            Op::AddNeighbour(AddNeighbour {
                link,
                addr: ip(gateway),
                mac: mac(tail),
                protocol: ROUTE_PROTOCOL,
            })
        };
        w.pod_socket.run_every(&[neighbour(50), neighbour(51)]).unwrap();
        let listed = w.pod_socket.neighbours(Some(link)).unwrap();
        let found = listed.iter().find(|n| n.addr == ip(gateway)).unwrap();
        assert_eq!((found.mac, found.permanent, found.protocol), (Some(mac(51)), true, ROUTE_PROTOCOL));
        let shown = command(&w.pod, &format!("ip -j neigh show to {gateway} dev eth0"));
        assert_eq!(shown[0]["lladdr"], mac(51).to_string());
        assert_eq!(shown[0]["state"][0], "PERMANENT");
        let remove = Op::DelNeighbour { link, addr: ip(gateway) };
        w.pod_socket.run(&remove).unwrap();
        assert!(!w.pod_socket.neighbours(None).unwrap().iter().any(|n| n.addr == ip(gateway) && n.permanent));
    }
}

#[test]
fn a_pod_configured_in_two_sends_answers_ping() {
    let mut w = Testbed::new();
    let (host, pod) = w.veth("pwabc", "eth0");
    let mut inside = vec![Op::SetLink(SetLink { up: Some(true), ..SetLink::of(LinkRef::Index(pod)) })];
    let mut outside = Vec::new();
    for (addr, gateway, _) in FAMILIES {
        let single = IpNet::from(net(addr).addr());
        let gw = IpNet::from(ip(gateway));
        inside.push(address(pod, &single.to_string(), Mode::Exclusive));
        inside.push(add(Route { link: Some(pod), scope: RouteScope::Link, ..Route::to(gw) }));
        inside.push(neighbour(pod, ip(gateway), 2));
        outside.push(address(host, &gw.to_string(), Mode::Exclusive));
        outside.push(add(Route { link: Some(host), scope: RouteScope::Link, ..Route::to(single) }));
        outside.push(neighbour(host, single.addr(), 3));
    }
    w.host_socket.run_every(&outside).unwrap();
    w.pod_socket.run_every(&inside).unwrap();
    for (_, gateway, _) in FAMILIES {
        let ping =
            |target: &str| std::process::Command::new("ping").args(["-c3", "-i0.2", "-W2", target]).output();
        let out = w.pod.run(|| ping(gateway)).unwrap().unwrap();
        assert!(out.status.success(), "{gateway}: {}", String::from_utf8_lossy(&out.stdout));
    }
}

fn neighbour(link: u32, addr: IpAddr, tail: u8) -> Op<'static> {
    Op::AddNeighbour(AddNeighbour { link, addr, mac: mac(tail), protocol: ROUTE_PROTOCOL })
}
