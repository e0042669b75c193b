//! What the monitor of other nodes' routes tells, and what it keeps to itself.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink::{
    AddAddress, AddNeighbour, AddVxlan, Fdb, LinkRef, Mode, Op, PeerEvent, PeerMonitor, Route, SetLink,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use types::{PEER_PROTOCOL, ROUTE_PROTOCOL};

use crate::world::{World, json, mac, name, pair};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Reads until something wanted is among the news.
fn until(monitor: &mut PeerMonitor, what: &str, wanted: impl Fn(&PeerEvent) -> bool) -> Vec<PeerEvent> {
    let mut observed = Vec::new();
    while !observed.iter().any(&wanted) {
        let soon = Timespec { tv_sec: 10, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(monitor, PollFlags::IN)], Some(&soon)).unwrap();
        assert_eq!(ready, 1, "{what} was not told, but {observed:?}");
        observed.extend(monitor.read().unwrap());
    }
    observed
}

/// Per family: an address, a gateway, a block behind it, all networks.
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
fn routes_to_peers_are_told_when_they_come_change_and_go() {
    for (addr, gateway, block, _) in FAMILIES {
        let mut w = World::new();
        let (link, _) = w.veth("eth0", "eth0");
        w.h.run(&address(link, addr)).unwrap();
        let mut observed = PeerMonitor::open_in(&w.host).unwrap();
        let route = Route {
            gateway: Some(ip(gateway)),
            link: Some(link),
            protocol: PEER_PROTOCOL,
            ..Route::to(net(block))
        };
        w.h.run(&Op::AddRoute { route, mode: Mode::Exclusive }).unwrap();
        let is_it = |reported: &Route| {
            (reported.dst, reported.gateway, reported.link) == (route.dst, route.gateway, route.link)
        };
        until(
            &mut observed,
            "a new route",
            |events| matches!(events, PeerEvent::RouteSet(reported) if is_it(reported)),
        );
        // Somebody's own route takes its place, then ours comes back, then it is deleted.
        json(&w.host, &format!("ip route replace {block} via {gateway} proto static"));
        until(&mut observed, "a replaced route", |events| *events == PeerEvent::RouteTaken(net(block)));
        w.h.run(&Op::AddRoute { route, mode: Mode::Replace }).unwrap();
        until(
            &mut observed,
            "the route again",
            |events| matches!(events, PeerEvent::RouteSet(reported) if is_it(reported)),
        );
        json(&w.host, &format!("ip route del {block}"));
        until(
            &mut observed,
            "a deleted route",
            |events| matches!(events, PeerEvent::RouteGone(reported) if is_it(reported)),
        );
    }
}

#[test]
fn addresses_and_default_routes_are_told() {
    for (addr, gateway, _, all) in FAMILIES {
        let mut w = World::new();
        let (link, _) = w.veth("eth0", "eth0");
        let mut observed = PeerMonitor::open_in(&w.host).unwrap();
        w.h.run(&address(link, addr)).unwrap();
        let of = |reported: &netlink::Address| (reported.link, reported.addr) == (link, net(addr));
        until(
            &mut observed,
            "an address",
            |events| matches!(events, PeerEvent::AddressSet(reported) if of(reported)),
        );
        observed.read().unwrap();
        json(&w.host, &format!("ip route add {all} via {gateway} metric 5"));
        until(&mut observed, "a default route", |events| *events == PeerEvent::DefaultRoute);
        json(&w.host, &format!("ip route del {all} via {gateway} metric 5"));
        until(&mut observed, "its end", |events| *events == PeerEvent::DefaultRoute);
        json(&w.host, &format!("ip addr del {addr} dev eth0"));
        until(
            &mut observed,
            "an address that goes",
            |events| matches!(events, PeerEvent::AddressGone(reported) if of(reported)),
        );
    }
}

#[test]
fn the_tunnel_and_what_is_behind_it_are_told() {
    for (gateway, dst, local) in
        [("10.2.5.0", "203.0.113.5", "192.0.2.1"), ("fe80::5", "2001:db8:9::5", "2001:db8::1")]
    {
        let mut w = World::new();
        let mut observed = PeerMonitor::open_in(&w.host).unwrap();
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
        let link = w.h.make_vxlan(&add, None).unwrap();
        until(
            &mut observed,
            "the tunnel",
            |events| matches!(events, PeerEvent::Link(reported) if reported.index == link && reported.up && reported.vxlan.is_some()),
        );
        let (addr, entry) = (ip(gateway), Fdb { link, mac: mac(30), dst: ip(dst) });
        let neighbour = AddNeighbour { link, addr, mac: mac(30), protocol: PEER_PROTOCOL };
        w.h.run_every(&[Op::AddNeighbour(neighbour), Op::AddFdb(entry)]).unwrap();
        let set = |mac| PeerEvent::NeighbourSet { link, addr, mac: Some(mac) };
        let reported = until(&mut observed, "an entry", |events| *events == PeerEvent::FdbSet(entry));
        assert!(reported.contains(&set(mac(30))), "{reported:?}");

        json(&w.host, &format!("ip neigh replace {gateway} lladdr {} dev pwvx nud permanent", mac(31)));
        until(&mut observed, "another MAC", |events| *events == set(mac(31)));
        json(&w.host, &format!("ip neigh del {gateway} dev pwvx"));
        until(&mut observed, "a lost neighbour", |events| *events == PeerEvent::NeighbourGone { link, addr });
        json(&w.host, &format!("bridge fdb del {} dev pwvx dst {dst} self", mac(30)));
        until(&mut observed, "a lost entry", |events| *events == PeerEvent::FdbGone(entry));

        json(&w.host, "ip link set pwvx mtu 1300");
        until(
            &mut observed,
            "another MTU",
            |events| matches!(events, PeerEvent::Link(reported) if reported.mtu == 1300),
        );
        json(&w.host, "ip link set pwvx down");
        until(
            &mut observed,
            "down",
            |events| matches!(events, PeerEvent::Link(reported) if reported.index == link && !reported.up),
        );
        w.h.run(&Op::DelLink(link)).unwrap();
        let gone = PeerEvent::LinkGone { index: link, name: "pwvx".to_owned() };
        until(&mut observed, "the end of the tunnel", |events| *events == gone);
    }
}

/// The life of pods: their own routes and neighbours, those that the kernel learns, and everything inside them.
#[test]
fn what_does_not_lead_to_peers_is_not_told() {
    let mut w = World::new();
    let (link, inside) = w.veth("eth0", "eth0");
    for (addr, ..) in FAMILIES {
        w.h.run(&address(link, addr)).unwrap();
    }
    w.h.run(&Op::SetLink(SetLink { alias: Some("x"), ..SetLink::of(LinkRef::Index(link)) })).unwrap();
    let bridge = w.bridge("br0");
    let mut observed = PeerMonitor::open_in(&w.host).unwrap();
    observed.read().unwrap();
    for (_, gateway, block, _) in FAMILIES {
        let route = Route { gateway: Some(ip(gateway)), link: Some(link), ..Route::to(net(block)) };
        let addr = ip(gateway);
        let neighbour = AddNeighbour { link, addr, mac: mac(40), protocol: ROUTE_PROTOCOL };
        w.h.run_every(&[
            Op::AddNeighbour(neighbour),
            Op::AddRoute { route, mode: Mode::Exclusive },
            Op::DelRoute(route),
            Op::DelNeighbour { link, addr },
        ])
        .unwrap();
        json(&w.host, &format!("ip neigh add {gateway} lladdr {} dev eth0 nud stale", mac(41)));
        json(&w.host, &format!("ip neigh del {gateway} dev eth0"));
    }
    json(&w.host, &format!("bridge fdb add {} dev br0 self", mac(42)));
    w.p.run(&address(inside, "10.2.0.5/32")).unwrap();
    json(&w.pod, "ip route add 10.9.0.0/16 dev eth0 proto 113");
    // The last thing, by which one knows that everything before was heard.
    json(&w.host, "ip link set br0 alias end");
    let reported = until(
        &mut observed,
        "the end",
        |events| matches!(events, PeerEvent::Link(reported) if reported.index == bridge && reported.alias.as_deref() == Some("end")),
    );
    let links = |events: &&PeerEvent| matches!(events, PeerEvent::Link(_));
    let others: Vec<_> = reported.iter().filter(|events| !links(events)).collect();
    let late = |events: &&&PeerEvent| matches!(events, PeerEvent::AddressSet(reported) if reported.addr.addr().is_ipv6());
    assert_eq!(others.iter().filter(|events| !late(events)).count(), 0, "{others:?}");
}

#[test]
fn an_overrun_is_told_once_and_afterwards_there_is_news_again() {
    let mut w = World::new();
    let mut observed = PeerMonitor::open_in(&w.host).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&observed, 4096).unwrap();
    for n in 0..20 {
        let (host, peer) = (name(&format!("pw{n}")), name(&format!("eth{n}")));
        w.h.run(&Op::AddVeth(pair(&w.pod, &host, &peer))).unwrap();
    }
    assert_eq!(observed.read().unwrap(), [PeerEvent::Missed]);
    // The kernel reports carriers later, from its own worker: these events may not overrun the buffer again.
    rustix::net::sockopt::set_socket_recv_buffer_size(&observed, 1 << 20).unwrap();
    observed.read().unwrap();
    json(&w.host, "ip link set pw3 mtu 1300");
    until(
        &mut observed,
        "a change",
        |events| matches!(events, PeerEvent::Link(reported) if reported.mtu == 1300),
    );
}
