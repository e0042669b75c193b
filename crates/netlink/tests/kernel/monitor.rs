//! Events of the monitor: of its own namespace, of pods, none of unrelated namespaces, and overruns.

use std::net::IpAddr;
use std::os::fd::AsRawFd as _;

use ipnet::IpNet;
use netlink::{
    AddAddress, AddNeighbour, EventNamespace, LinkEvent, LinkRef, Mode, Monitor, NetNs, Op, Route, RtSocket,
    SetLink,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use types::{IfName, ROUTE_PROTOCOL};

use crate::testbed::{Testbed, command, mac, name, pair};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Per family: an address, a neighbour that is also the gateway, and a network behind it.
const FAMILIES: [(&str, &str, &str); 2] =
    [("10.1.2.3/24", "10.1.2.1", "10.9.0.0/16"), ("fd00:1::3/64", "fd00:1::1", "fd00:9::/48")];

fn monitor(ns: &NetNs) -> Monitor {
    ns.run(Monitor::open).unwrap().unwrap()
}

/// Reads until the expected event arrives: the kernel sends some events from work queues.
fn until(monitor: &mut Monitor, expected: &LinkEvent) -> Vec<LinkEvent> {
    let mut received = Vec::new();
    while !received.contains(expected) {
        let timeout = Timespec { tv_sec: 10, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(monitor, PollFlags::IN)], Some(&timeout)).unwrap();
        assert_eq!(ready, 1, "{expected:?} was not reported, but {received:?}");
        received.extend(monitor.read().unwrap());
    }
    received
}

fn configure(socket: &mut RtSocket, link: u32) {
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

/// Removes the objects of `configure` one by one, and expects an event for each.
fn remove_all(monitor: &mut Monitor, ns: &NetNs, dev: &str, namespace: EventNamespace) {
    let link = link_index(ns, dev);
    let protocol = ROUTE_PROTOCOL;
    for (addr, gateway, dst) in FAMILIES {
        command(ns, &format!("ip neigh del {gateway} dev {dev}"));
        until(monitor, &LinkEvent::NeighbourRemoved { link, addr: ip(gateway), protocol, namespace });
        command(ns, &format!("ip route del {dst}"));
        until(monitor, &LinkEvent::RouteRemoved { dst: net(dst), link: Some(link), protocol, namespace });
        command(ns, &format!("ip addr del {addr} dev {dev}"));
        until(monitor, &LinkEvent::AddressRemoved { link, addr: net(addr), namespace });
    }
}

fn link_index(ns: &NetNs, dev: &str) -> u32 {
    RtSocket::open_in(ns).unwrap().link(&name(dev)).unwrap().unwrap().index
}

#[test]
fn removals_on_the_node_are_reported() {
    let mut w = Testbed::new();
    let (link, _) = w.veth("pwabc", "eth0");
    configure(&mut w.host_socket, link);
    let mut monitor = monitor(&w.host);
    remove_all(&mut monitor, &w.host, "pwabc", EventNamespace::Own);
}

#[test]
fn removals_in_a_pod_are_reported_by_the_same_socket() {
    let mut w = Testbed::new();
    let mut before = monitor(&w.host);
    let (_, link) = w.veth("pwabc", "eth0");
    // A restarted agent monitors existing pods: this monitor received no event about the link.
    let mut after = monitor(&w.host);
    configure(&mut w.pod_socket, link);
    remove_all(&mut before, &w.pod, "eth0", EventNamespace::Pod);
    configure(&mut w.pod_socket, link);
    after.read().unwrap();
    remove_all(&mut after, &w.pod, "eth0", EventNamespace::Pod);
}

#[test]
fn a_pod_with_a_moved_link_is_observed() {
    let mut w = Testbed::new();
    let mut monitor = monitor(&w.host);
    command(&w.host, "ip link add pwabc type veth peer name eth0");
    let path = format!("/proc/{}/fd/{}", std::process::id(), w.pod.fd().as_raw_fd());
    command(&w.host, &format!("ip link set eth0 netns {path}"));
    let link = link_index(&w.pod, "eth0");
    command(&w.pod, "ip link set eth0 up");
    configure(&mut w.pod_socket, link);
    remove_all(&mut monitor, &w.pod, "eth0", EventNamespace::Pod);
}

#[test]
fn namespaces_without_a_link_are_not_observed() {
    let mut w = Testbed::new();
    let unrelated = NetNs::create().unwrap();
    let mut monitor = monitor(&w.host);
    command(&unrelated, "ip link add other0 type veth peer name other1");
    command(&unrelated, "ip link set other0 up");
    command(&unrelated, "ip link set other1 up");
    configure(&mut RtSocket::open_in(&unrelated).unwrap(), link_index(&unrelated, "other0"));
    command(&unrelated, "ip link del other0");
    let bridge = w.bridge("br0");
    let reported = monitor.read().unwrap();
    assert!(!reported.is_empty());
    for event in reported {
        assert!(
            matches!(event, LinkEvent::Link { index, namespace: EventNamespace::Own, .. } if index == bridge),
            "{event:?}"
        );
    }
}

#[test]
fn link_changes_and_leaving_ports_are_reported() {
    let mut w = Testbed::new();
    let bridge = w.bridge("br0");
    let (index, _) = w.veth("pwabc", "eth0");
    let port = SetLink { master: Some(bridge), ..SetLink::of(LinkRef::Index(index)) };
    w.host_socket.run(&Op::SetLink(port)).unwrap();
    let mut monitor = monitor(&w.host);
    let (namespace, name) = (EventNamespace::Own, Some("pwabc".to_owned()));

    w.host_socket.run(&Op::SetLink(SetLink { master: Some(0), ..port })).unwrap();
    let reported = until(&mut monitor, &LinkEvent::PortLeft { index, namespace });
    assert!(
        !reported.iter().any(|event| matches!(event, LinkEvent::Link { removed: true, .. })),
        "{reported:?}"
    );
    w.host_socket.run(&Op::SetLink(SetLink { up: Some(false), master: None, ..port })).unwrap();
    until(
        &mut monitor,
        &LinkEvent::Link { index, name: name.clone(), up: false, group: 0, removed: false, namespace },
    );
    w.host_socket.run(&Op::SetLink(SetLink { up: Some(true), master: None, ..port })).unwrap();
    until(
        &mut monitor,
        &LinkEvent::Link { index, name: name.clone(), up: true, group: 0, removed: false, namespace },
    );
    w.host_socket.run(&Op::DelLink(index)).unwrap();
    until(&mut monitor, &LinkEvent::Link { index, name, up: false, group: 0, removed: true, namespace });
}

/// The kernel drops IPv4 routes without an event when their link goes down, so readers depend on the link event.
#[test]
fn a_link_that_goes_down_is_reported() {
    let mut w = Testbed::new();
    let (index, _) = w.veth("pwabc", "eth0");
    configure(&mut w.host_socket, index);
    let mut monitor = monitor(&w.host);
    command(&w.host, "ip link set pwabc down");
    let (namespace, protocol) = (EventNamespace::Own, ROUTE_PROTOCOL);
    let mut reported = until(
        &mut monitor,
        &LinkEvent::RouteRemoved { dst: net("fd00:9::/48"), link: Some(index), protocol, namespace },
    );
    reported.extend(monitor.read().unwrap());
    assert!(reported.contains(&LinkEvent::Link {
        index,
        name: Some("pwabc".to_owned()),
        up: false,
        group: 0,
        removed: false,
        namespace
    }));
    for (_, gateway, dst) in FAMILIES {
        assert!(reported.contains(&LinkEvent::NeighbourRemoved {
            link: index,
            addr: ip(gateway),
            protocol,
            namespace
        }));
        let routes = w.host_socket.routes(netlink::RouteFilter::default()).unwrap();
        assert!(routes.iter().all(|route| route.dst != net(dst)), "{routes:?}");
    }
}

#[test]
fn learned_neighbours_are_not_reported() {
    let mut w = Testbed::new();
    let (link, _) = w.veth("pwabc", "eth0");
    configure(&mut w.host_socket, link);
    command(&w.host, "ip neigh add 10.1.2.9 lladdr 02:00:00:00:00:09 dev pwabc nud stale");
    let mut monitor = monitor(&w.host);
    command(&w.host, "ip neigh del 10.1.2.9 dev pwabc");
    command(&w.host, "ip addr del 10.1.2.3/24 dev pwabc");
    let reported = until(
        &mut monitor,
        &LinkEvent::AddressRemoved { link, addr: net("10.1.2.3/24"), namespace: EventNamespace::Own },
    );
    let is_learned = |event: &&LinkEvent| matches!(event, LinkEvent::NeighbourRemoved { addr, .. } if *addr == ip("10.1.2.9"));
    assert_eq!(reported.iter().find(is_learned), None);
}

fn create_veths(w: &mut Testbed, count: u8) -> Vec<IfName> {
    let names = |n| (name(&format!("pw{n}")), name(&format!("eth{n}")));
    (0..count)
        .map(names)
        .map(|(host, peer)| {
            w.host_socket.run(&Op::AddVeth(pair(&w.pod, &host, &peer))).unwrap();
            host
        })
        .collect()
}

#[test]
fn a_burst_of_events_fits_into_the_buffer() {
    let mut w = Testbed::new();
    let mut monitor = monitor(&w.host);
    let created = create_veths(&mut w, 200);
    let reported = monitor.read().unwrap();
    for host in created {
        let is_host = |event: &LinkEvent| matches!(event, LinkEvent::Link { name: Some(name), .. } if *name == host.to_string());
        assert!(reported.iter().any(is_host), "{host} is missing");
    }
    // The kernel's work queues may send more events later, such as carrier changes.
    assert!(!reported.contains(&LinkEvent::Lost) && !monitor.read().unwrap().contains(&LinkEvent::Lost));
}

#[test]
fn an_overrun_is_reported_once_and_monitoring_continues() {
    let mut w = Testbed::new();
    let mut monitor = monitor(&w.host);
    rustix::net::sockopt::set_socket_recv_buffer_size(&monitor, 4096).unwrap();
    create_veths(&mut w, 20);
    assert_eq!(monitor.read().unwrap(), [LinkEvent::Lost]);
    let index = link_index(&w.host, "pw3");
    let down = SetLink { up: Some(false), ..SetLink::of(LinkRef::Index(index)) };
    monitor.read().unwrap();
    w.host_socket.run(&Op::SetLink(down)).unwrap();
    let name = Some("pw3".to_owned());
    until(
        &mut monitor,
        &LinkEvent::Link { index, name, up: false, group: 0, removed: false, namespace: EventNamespace::Own },
    );
}

#[test]
fn without_cap_net_broadcast_the_error_is_permission() {
    let w = Testbed::new();
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
fn disabled_forwarding_is_reported() {
    let w = Testbed::new();
    for family in ["ipv4", "ipv6"] {
        let path = format!("/proc/sys/net/{family}/conf/all/forwarding");
        let set = |to: &'static str| w.host.run(|| std::fs::write(&path, to)).unwrap().unwrap();
        set("1");
        let mut monitor = monitor(&w.host);
        set("0");
        until(&mut monitor, &LinkEvent::ForwardingOff { namespace: EventNamespace::Own });
    }
}
