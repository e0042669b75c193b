//! Events of the peer monitor, and changes that it ignores.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink::{
    AddAddress, AddNeighbour, AddVxlan, Fdb, LinkRef, Mode, Op, PeerEvent, PeerMonitor, Route, SetLink,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use types::{PEER_PROTOCOL, ROUTE_PROTOCOL};

use crate::testbed::{Testbed, command, mac, name, pair};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Reads until the expected event arrives.
fn wait_for(
    monitor: &mut PeerMonitor,
    what: &str,
    is_expected: impl Fn(&PeerEvent) -> bool,
) -> Vec<PeerEvent> {
    let mut received = Vec::new();
    while !received.iter().any(&is_expected) {
        let timeout = Timespec { tv_sec: 10, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(monitor, PollFlags::IN)], Some(&timeout)).unwrap();
        assert_eq!(ready, 1, "{what} was not reported, but {received:?}");
        received.extend(monitor.read().unwrap());
    }
    received
}

/// Per family: an address, a gateway, a block behind it, the default destination.
const FAMILIES: [(&str, &str, &str, &str); 2] = [
    ("192.0.2.1/24", "192.0.2.2", "10.2.5.0/24", "0.0.0.0/0"),
    ("2001:db8::1/64", "2001:db8::2", "fd00:2:0:5::/64", "::/0"),
];

fn address(link: u32, addr: &str) -> Op<'static> {
    let mode = Mode::Exclusive;
    Op::AddAddress(AddAddress {
        link,
        addr: net(addr),
        nodad: true,
        broadcast: None,
        no_subnet_route: false,
        mode,
    })
}

#[test]
fn added_changed_and_removed_peer_routes_are_reported() {
    for (addr, gateway, block, _) in FAMILIES {
        let mut w = Testbed::new();
        let (link, _) = w.veth("eth0", "eth0");
        w.host_socket.run(&address(link, addr)).unwrap();
        let mut monitor = PeerMonitor::open_in(&w.host).unwrap();
        let route = Route {
            gateway: Some(ip(gateway)),
            link: Some(link),
            protocol: PEER_PROTOCOL,
            ..Route::to(net(block))
        };
        w.host_socket.run(&Op::AddRoute { route, mode: Mode::Exclusive }).unwrap();
        let is_route = |reported: &Route| {
            (reported.dst, reported.gateway, reported.link) == (route.dst, route.gateway, route.link)
        };
        wait_for(
            &mut monitor,
            "a new route",
            |event| matches!(event, PeerEvent::RouteSet(reported) if is_route(reported)),
        );
        // The operator's route replaces the managed one, which is then restored and deleted.
        command(&w.host, &format!("ip route replace {block} via {gateway} proto static"));
        wait_for(&mut monitor, "a replaced route", |event| *event == PeerEvent::RouteReplaced(net(block)));
        w.host_socket.run(&Op::AddRoute { route, mode: Mode::Replace }).unwrap();
        wait_for(
            &mut monitor,
            "the restored route",
            |event| matches!(event, PeerEvent::RouteSet(reported) if is_route(reported)),
        );
        command(&w.host, &format!("ip route del {block}"));
        wait_for(
            &mut monitor,
            "a deleted route",
            |event| matches!(event, PeerEvent::RouteRemoved(reported) if is_route(reported)),
        );
    }
}

#[test]
fn addresses_and_default_routes_are_reported() {
    for (addr, gateway, _, all) in FAMILIES {
        let mut w = Testbed::new();
        let (link, _) = w.veth("eth0", "eth0");
        let mut monitor = PeerMonitor::open_in(&w.host).unwrap();
        w.host_socket.run(&address(link, addr)).unwrap();
        let is_added = |reported: &netlink::Address| (reported.link, reported.addr) == (link, net(addr));
        wait_for(
            &mut monitor,
            "an address",
            |event| matches!(event, PeerEvent::AddressSet(reported) if is_added(reported)),
        );
        monitor.read().unwrap();
        command(&w.host, &format!("ip route add {all} via {gateway} metric 5"));
        wait_for(&mut monitor, "a default route", |event| *event == PeerEvent::DefaultRoute);
        command(&w.host, &format!("ip route del {all} via {gateway} metric 5"));
        wait_for(&mut monitor, "the removed default route", |event| *event == PeerEvent::DefaultRoute);
        command(&w.host, &format!("ip addr del {addr} dev eth0"));
        wait_for(
            &mut monitor,
            "a removed address",
            |event| matches!(event, PeerEvent::AddressRemoved(reported) if is_added(reported)),
        );
    }
}

#[test]
fn changes_of_the_tunnel_and_its_entries_are_reported() {
    for (gateway, dst, local) in
        [("10.2.5.0", "203.0.113.5", "192.0.2.1"), ("fe80::5", "2001:db8:9::5", "2001:db8::1")]
    {
        let mut w = Testbed::new();
        let mut monitor = PeerMonitor::open_in(&w.host).unwrap();
        let pwvx = name("pwvx");
        let add = AddVxlan {
            name: &pwvx,
            mac: mac(9),
            mtu: 1400,
            vni: 7,
            port: 4789,
            local: ip(local),
            link: None,
        };
        let link = w.host_socket.create_vxlan(&add, None).unwrap();
        wait_for(
            &mut monitor,
            "the tunnel",
            |event| matches!(event, PeerEvent::Link(reported) if reported.index == link && reported.up && reported.vxlan.is_some()),
        );
        let (addr, entry) = (ip(gateway), Fdb { link, mac: mac(30), dst: ip(dst) });
        let neighbour = AddNeighbour { link, addr, mac: mac(30), protocol: PEER_PROTOCOL };
        w.host_socket.run_every(&[Op::AddNeighbour(neighbour), Op::AddFdb(entry)]).unwrap();
        let set = |mac| PeerEvent::NeighbourSet { link, addr, mac: Some(mac) };
        let reported = wait_for(&mut monitor, "an entry", |event| *event == PeerEvent::FdbSet(entry));
        assert!(reported.contains(&set(mac(30))), "{reported:?}");

        command(&w.host, &format!("ip neigh replace {gateway} lladdr {} dev pwvx nud permanent", mac(31)));
        wait_for(&mut monitor, "the changed MAC", |event| *event == set(mac(31)));
        command(&w.host, &format!("ip neigh del {gateway} dev pwvx"));
        wait_for(&mut monitor, "a removed neighbour", |event| {
            *event == PeerEvent::NeighbourRemoved { link, addr }
        });
        command(&w.host, &format!("bridge fdb del {} dev pwvx dst {dst} self", mac(30)));
        wait_for(&mut monitor, "a removed entry", |event| *event == PeerEvent::FdbRemoved(entry));

        command(&w.host, "ip link set pwvx mtu 1300");
        wait_for(
            &mut monitor,
            "the changed MTU",
            |event| matches!(event, PeerEvent::Link(reported) if reported.mtu == 1300),
        );
        command(&w.host, "ip link set pwvx down");
        wait_for(
            &mut monitor,
            "the tunnel going down",
            |event| matches!(event, PeerEvent::Link(reported) if reported.index == link && !reported.up),
        );
        w.host_socket.run(&Op::DelLink(link)).unwrap();
        let gone = PeerEvent::LinkRemoved { index: link, name: "pwvx".to_owned() };
        wait_for(&mut monitor, "the removed tunnel", |event| *event == gone);
    }
}

/// Pods cause such changes: their routes and neighbours, learned neighbours, and changes inside their namespaces.
#[test]
fn changes_unrelated_to_peers_are_not_reported() {
    let mut w = Testbed::new();
    let (link, inside) = w.veth("eth0", "eth0");
    for (addr, ..) in FAMILIES {
        w.host_socket.run(&address(link, addr)).unwrap();
    }
    w.host_socket
        .run(&Op::SetLink(SetLink { alias: Some("x"), ..SetLink::of(LinkRef::Index(link)) }))
        .unwrap();
    let bridge = w.bridge("br0");
    let mut monitor = PeerMonitor::open_in(&w.host).unwrap();
    monitor.read().unwrap();
    for (_, gateway, block, _) in FAMILIES {
        let route = Route { gateway: Some(ip(gateway)), link: Some(link), ..Route::to(net(block)) };
        let addr = ip(gateway);
        let neighbour = AddNeighbour { link, addr, mac: mac(40), protocol: ROUTE_PROTOCOL };
        w.host_socket
            .run_every(&[
                Op::AddNeighbour(neighbour),
                Op::AddRoute { route, mode: Mode::Exclusive },
                Op::DelRoute(route),
                Op::DelNeighbour { link, addr },
            ])
            .unwrap();
        command(&w.host, &format!("ip neigh add {gateway} lladdr {} dev eth0 nud stale", mac(41)));
        command(&w.host, &format!("ip neigh del {gateway} dev eth0"));
    }
    command(&w.host, &format!("bridge fdb add {} dev br0 self", mac(42)));
    w.pod_socket.run(&address(inside, "10.2.0.5/32")).unwrap();
    command(&w.pod, "ip route add 10.9.0.0/16 dev eth0 proto 113");
    // Marks the end: all earlier events were received when this one arrives.
    command(&w.host, "ip link set br0 alias end");
    let reported = wait_for(
        &mut monitor,
        "the end marker",
        |event| matches!(event, PeerEvent::Link(reported) if reported.index == bridge && reported.alias.as_deref() == Some("end")),
    );
    let is_link = |event: &&PeerEvent| matches!(event, PeerEvent::Link(_));
    let unexpected: Vec<_> = reported.iter().filter(|event| !is_link(event)).collect();
    // The kernel may report IPv6 addresses of the setup after the monitor was opened.
    let is_late = |event: &&&PeerEvent| matches!(event, PeerEvent::AddressSet(reported) if reported.addr.addr().is_ipv6());
    assert_eq!(unexpected.iter().filter(|event| !is_late(event)).count(), 0, "{unexpected:?}");
}

#[test]
fn an_overrun_is_reported_once_and_monitoring_continues() {
    let mut w = Testbed::new();
    let mut monitor = PeerMonitor::open_in(&w.host).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&monitor, 4096).unwrap();
    for n in 0..20 {
        let (host, peer) = (name(&format!("pw{n}")), name(&format!("eth{n}")));
        w.host_socket.run(&Op::AddVeth(pair(&w.pod, &host, &peer))).unwrap();
    }
    assert_eq!(monitor.read().unwrap(), [PeerEvent::Lost]);
    // The kernel reports carrier changes later from a work queue. They must not overrun the buffer again.
    rustix::net::sockopt::set_socket_recv_buffer_size(&monitor, 1 << 20).unwrap();
    monitor.read().unwrap();
    command(&w.host, "ip link set pw3 mtu 1300");
    wait_for(
        &mut monitor,
        "a change",
        |event| matches!(event, PeerEvent::Link(reported) if reported.mtu == 1300),
    );
}
