//! What the monitor hears: of its own namespace, of the pods', and of nobody else's; and what it says when it is deaf.

use std::net::IpAddr;
use std::os::fd::AsRawFd as _;

use ipnet::IpNet;
use netlink::{
    AddAddress, AddNeighbour, LinkEvent, LinkRef, Mode, Monitor, NetNs, Op, Route, RtSocket, SetLink, Where,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use types::{IfName, ROUTE_PROTOCOL};

use crate::world::{World, json, mac, name, pair};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Per family: an address, a neighbour that is also the gateway, and what is behind it.
const FAMILIES: [(&str, &str, &str); 2] =
    [("10.1.2.3/24", "10.1.2.1", "10.9.0.0/16"), ("fd00:1::3/64", "fd00:1::1", "fd00:9::/48")];

fn monitor(ns: &NetNs) -> Monitor {
    ns.run(Monitor::open).unwrap().unwrap()
}

/// Reads until something wanted is among the news: the kernel tells some of it from workers of its own.
fn until(monitor: &mut Monitor, wanted: &LinkEvent) -> Vec<LinkEvent> {
    let mut observed = Vec::new();
    while !observed.contains(wanted) {
        let soon = Timespec { tv_sec: 10, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(monitor, PollFlags::IN)], Some(&soon)).unwrap();
        assert_eq!(ready, 1, "{wanted:?} was not told, but {observed:?}");
        observed.extend(monitor.read().unwrap());
    }
    observed
}

fn make_addressed(socket: &mut RtSocket, link: u32) {
    for (addr, gateway, dst) in FAMILIES {
        let route = Route { gateway: Some(ip(gateway)), protocol: ROUTE_PROTOCOL, ..Route::to(net(dst)) };
        let (addr, mode) = (net(addr), Mode::Exclusive);
        let neighbour = AddNeighbour { link, addr: ip(gateway), mac: mac(1), protocol: ROUTE_PROTOCOL };
        socket
            .run_every(&[
                Op::AddAddress(AddAddress {
                    link,
                    addr,
                    nodad: true,
                    broadcast: None,
                    no_subnet_route: false,
                    mode,
                }),
                Op::AddRoute { route, mode },
                Op::AddNeighbour(neighbour),
            ])
            .unwrap();
    }
}

/// Takes away, one by one, what `make_addressed` made, and sees that each is told.
fn lose_all(monitor: &mut Monitor, ns: &NetNs, dev: &str, place: Where) {
    let link = link_index(ns, dev);
    let protocol = ROUTE_PROTOCOL;
    for (addr, gateway, dst) in FAMILIES {
        json(ns, &format!("ip neigh del {gateway} dev {dev}"));
        until(monitor, &LinkEvent::NeighbourGone { link, addr: ip(gateway), protocol, place });
        json(ns, &format!("ip route del {dst}"));
        until(monitor, &LinkEvent::RouteGone { dst: net(dst), link: Some(link), protocol, place });
        json(ns, &format!("ip addr del {addr} dev {dev}"));
        until(monitor, &LinkEvent::AddressGone { link, addr: net(addr), place });
    }
}

fn link_index(ns: &NetNs, dev: &str) -> u32 {
    RtSocket::open_in(ns).unwrap().link(&name(dev)).unwrap().unwrap().index
}

#[test]
fn what_is_taken_from_the_node_is_told() {
    let mut w = World::new();
    let (link, _) = w.veth("pwabc", "eth0");
    make_addressed(&mut w.h, link);
    let mut observed = monitor(&w.host);
    lose_all(&mut observed, &w.host, "pwabc", Where::Here);
}

#[test]
fn what_is_taken_from_a_pod_is_told_by_the_same_socket() {
    let mut w = World::new();
    let mut before = monitor(&w.host);
    let (_, link) = w.veth("pwabc", "eth0");
    // An agent that starts again finds pods that it did not make: no news of the link came to this one.
    let mut after = monitor(&w.host);
    make_addressed(&mut w.p, link);
    lose_all(&mut before, &w.pod, "eth0", Where::Elsewhere);
    make_addressed(&mut w.p, link);
    after.read().unwrap();
    lose_all(&mut after, &w.pod, "eth0", Where::Elsewhere);
}

#[test]
fn a_link_that_a_pod_got_by_a_move_makes_it_heard_too() {
    let mut w = World::new();
    let mut observed = monitor(&w.host);
    json(&w.host, "ip link add pwabc type veth peer name eth0");
    let path = format!("/proc/{}/fd/{}", std::process::id(), w.pod.fd().as_raw_fd());
    json(&w.host, &format!("ip link set eth0 netns {path}"));
    let link = link_index(&w.pod, "eth0");
    json(&w.pod, "ip link set eth0 up");
    make_addressed(&mut w.p, link);
    lose_all(&mut observed, &w.pod, "eth0", Where::Elsewhere);
}

#[test]
fn namespaces_without_a_link_into_ours_are_not_heard() {
    let mut w = World::new();
    let stranger = NetNs::create().unwrap();
    let mut observed = monitor(&w.host);
    json(&stranger, "ip link add foreign0 type veth peer name foreign1");
    json(&stranger, "ip link set foreign0 up");
    json(&stranger, "ip link set foreign1 up");
    make_addressed(&mut RtSocket::open_in(&stranger).unwrap(), link_index(&stranger, "foreign0"));
    json(&stranger, "ip link del foreign0");
    let bridge = w.bridge("br0");
    let reported = observed.read().unwrap();
    assert!(!reported.is_empty());
    for events in reported {
        assert!(
            matches!(events, LinkEvent::Link { index, place: Where::Here, .. } if index == bridge),
            "{events:?}"
        );
    }
}

#[test]
fn links_are_told_as_they_come_change_and_go_and_ports_as_they_leave() {
    let mut w = World::new();
    let bridge = w.bridge("br0");
    let (index, _) = w.veth("pwabc", "eth0");
    let port = SetLink { master: Some(bridge), ..SetLink::of(LinkRef::Index(index)) };
    w.h.run(&Op::SetLink(port)).unwrap();
    let mut observed = monitor(&w.host);
    let (place, name) = (Where::Here, Some("pwabc".to_owned()));

    w.h.run(&Op::SetLink(SetLink { master: Some(0), ..port })).unwrap();
    let reported = until(&mut observed, &LinkEvent::PortLeft { index, place });
    assert!(
        !reported.iter().any(|events| matches!(events, LinkEvent::Link { gone: true, .. })),
        "{reported:?}"
    );
    w.h.run(&Op::SetLink(SetLink { up: Some(false), master: None, ..port })).unwrap();
    until(&mut observed, &LinkEvent::Link { index, name: name.clone(), up: false, gone: false, place });
    w.h.run(&Op::SetLink(SetLink { up: Some(true), master: None, ..port })).unwrap();
    until(&mut observed, &LinkEvent::Link { index, name: name.clone(), up: true, gone: false, place });
    w.h.run(&Op::DelLink(index)).unwrap();
    until(&mut observed, &LinkEvent::Link { index, name, up: false, gone: true, place });
}

/// The kernel drops IPv4 routes without a word when their link goes down; the link itself is what one must look at.
#[test]
fn a_link_that_goes_down_is_told_whatever_is_said_of_its_routes() {
    let mut w = World::new();
    let (index, _) = w.veth("pwabc", "eth0");
    make_addressed(&mut w.h, index);
    let mut observed = monitor(&w.host);
    json(&w.host, "ip link set pwabc down");
    let (place, protocol) = (Where::Here, ROUTE_PROTOCOL);
    let mut reported = until(
        &mut observed,
        &LinkEvent::RouteGone { dst: net("fd00:9::/48"), link: Some(index), protocol, place },
    );
    reported.extend(observed.read().unwrap());
    assert!(reported.contains(&LinkEvent::Link {
        index,
        name: Some("pwabc".to_owned()),
        up: false,
        gone: false,
        place
    }));
    for (_, gateway, dst) in FAMILIES {
        assert!(reported.contains(&LinkEvent::NeighbourGone {
            link: index,
            addr: ip(gateway),
            protocol,
            place
        }));
        let left = w.h.routes(netlink::RouteFilter::default()).unwrap();
        assert!(left.iter().all(|route| route.dst != net(dst)), "{left:?}");
    }
}

#[test]
fn neighbours_that_the_kernel_learnt_are_no_news() {
    let mut w = World::new();
    let (link, _) = w.veth("pwabc", "eth0");
    make_addressed(&mut w.h, link);
    json(&w.host, "ip neigh add 10.1.2.9 lladdr 02:00:00:00:00:09 dev pwabc nud stale");
    let mut observed = monitor(&w.host);
    json(&w.host, "ip neigh del 10.1.2.9 dev pwabc");
    json(&w.host, "ip addr del 10.1.2.3/24 dev pwabc");
    let reported =
        until(&mut observed, &LinkEvent::AddressGone { link, addr: net("10.1.2.3/24"), place: Where::Here });
    let learnt = |events: &&LinkEvent| matches!(events, LinkEvent::NeighbourGone { addr, .. } if *addr == ip("10.1.2.9"));
    assert_eq!(reported.iter().find(learnt), None);
}

fn burst(w: &mut World, count: u8) -> Vec<IfName> {
    let names = |n| (name(&format!("pw{n}")), name(&format!("eth{n}")));
    (0..count)
        .map(names)
        .map(|(host, peer)| {
            w.h.run(&Op::AddVeth(pair(&w.pod, &host, &peer))).unwrap();
            host
        })
        .collect()
}

#[test]
fn a_burst_fits_and_nothing_of_it_is_lost() {
    let mut w = World::new();
    let mut observed = monitor(&w.host);
    let made = burst(&mut w, 200);
    let reported = observed.read().unwrap();
    for host in made {
        let is_it = |events: &LinkEvent| matches!(events, LinkEvent::Link { name: Some(name), .. } if *name == host.to_string());
        assert!(reported.iter().any(is_it), "{host} is missing");
    }
    // The kernel's workers may add something later, such as a carrier.
    assert!(!reported.contains(&LinkEvent::Lost) && !observed.read().unwrap().contains(&LinkEvent::Lost));
}

#[test]
fn an_overrun_is_told_once_and_afterwards_there_is_news_again() {
    let mut w = World::new();
    let mut observed = monitor(&w.host);
    rustix::net::sockopt::set_socket_recv_buffer_size(&observed, 4096).unwrap();
    burst(&mut w, 20);
    assert_eq!(observed.read().unwrap(), [LinkEvent::Lost]);
    let index = link_index(&w.host, "pw3");
    let down = SetLink { up: Some(false), ..SetLink::of(LinkRef::Index(index)) };
    observed.read().unwrap();
    w.h.run(&Op::SetLink(down)).unwrap();
    let name = Some("pw3".to_owned());
    until(&mut observed, &LinkEvent::Link { index, name, up: false, gone: false, place: Where::Here });
}

#[test]
fn without_the_right_to_hear_of_pods_the_error_says_so() {
    let w = World::new();
    let refused = w
        .host
        .run(|| {
            let mut sets = rustix::thread::capabilities(None).unwrap();
            let before = sets;
            sets.effective.remove(rustix::thread::CapabilitySet::NET_BROADCAST);
            rustix::thread::set_capabilities(None, sets).unwrap();
            let refused = Monitor::open().map(|_| ());
            rustix::thread::set_capabilities(None, before).unwrap();
            refused
        })
        .unwrap()
        .unwrap_err();
    assert!(refused.is_permission(), "{refused}");
}

#[test]
fn forwarding_that_is_switched_off_is_told() {
    let w = World::new();
    for family in ["ipv4", "ipv6"] {
        let path = format!("/proc/sys/net/{family}/conf/all/forwarding");
        let switch = |to: &'static str| w.host.run(|| std::fs::write(&path, to)).unwrap().unwrap();
        switch("1");
        let mut observed = monitor(&w.host);
        switch("0");
        until(&mut observed, &LinkEvent::ForwardingOff { place: Where::Here });
    }
}
