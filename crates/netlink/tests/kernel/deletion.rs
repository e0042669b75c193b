//! Deletion of links: when the call returns, which objects are removed by then, and which errors it reports.

use std::sync::Barrier;

use netlink::{
    AddNeighbour, LinkRef, Mode, NetNs, Op, Route, RouteFilter, RtSocket, SetLink, delete_link_early,
    pending_deletions,
};
use types::{IfName, ROUTE_PROTOCOL};

use crate::testbed::{Testbed, command, eventually, mac, name, pair};

/// Creates routed pods as ADD does, with host routes and neighbours of both families, and returns names and indices.
fn routed(w: &mut Testbed, count: u16) -> Vec<(IfName, u32)> {
    (0..count)
        .map(|n| {
            let (host, peer) = (name(&format!("pw{n}")), name(&format!("eth{n}")));
            w.host_socket.run(&Op::AddVeth(pair(&w.pod, &host, &peer))).unwrap();
            let set = SetLink { up: Some(true), ..SetLink::of(LinkRef::Name(&peer)) };
            w.pod_socket.run(&Op::SetLink(set)).unwrap();
            let link = w.host_socket.link(&host).unwrap().unwrap().index;
            for addr in addresses(n) {
                let route = Route { link: Some(link), ..Route::to(addr.into()) };
                w.host_socket
                    .run_every(&[
                        Op::AddRoute { route, mode: Mode::Exclusive },
                        Op::AddNeighbour(AddNeighbour { link, addr, mac: mac(3), protocol: ROUTE_PROTOCOL }),
                    ])
                    .unwrap();
            }
            (host, link)
        })
        .collect()
}

fn addresses(n: u16) -> [std::net::IpAddr; 2] {
    [format!("10.77.{}.{}", n >> 8, n & 255), format!("fd77::{n:x}")].map(|text| text.parse().unwrap())
}

/// Deletes all links with this number of parallel callers.
fn delete_all(host: &NetNs, links: &[(IfName, u32)], delete: impl Fn(u32) + Sync, callers: usize) {
    let start = Barrier::new(callers + 1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = links
            .chunks(links.len() / callers)
            .map(|chunk| {
                let (start, delete) = (&start, &delete);
                scope.spawn(move || {
                    host.run(|| {
                        start.wait();
                        chunk.iter().for_each(|(_, index)| delete(*index));
                    })
                    .unwrap();
                })
            })
            .collect();
        start.wait();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn an_early_deletion_returns_after_removal_and_before_the_grace_period() {
    let mut w = Testbed::new();
    let mut waiting = 0;
    for (host, index) in routed(&mut w, 8) {
        w.host.run(|| delete_link_early(index)).unwrap().unwrap();
        waiting += usize::from(pending_deletions() > 0);
        assert!(
            w.host_socket.link_at(index).unwrap().is_none() && w.host_socket.link(&host).unwrap().is_none()
        );
        let routes = w.host_socket.routes(RouteFilter::default()).unwrap();
        assert!(routes.iter().all(|route| route.link != Some(index)), "{routes:?}");
        // The name can be used again immediately.
        w.host_socket.run(&Op::AddIfb { name: &host, mtu: 1500 }).unwrap();
    }
    assert!(waiting > 0, "every caller waited for the grace period");
    assert!(w.pod_socket.links().unwrap().iter().all(|link| !link.name.starts_with("eth")));
    eventually("the end of all deletions", || pending_deletions() == 0);
}

#[test]
fn early_deletion_of_a_bridge_port_waits_for_its_removal() {
    let mut w = Testbed::new();
    let bridge = w.bridge("br0");
    let (index, _) = w.veth("pwabc", "eth0");
    let port = SetLink { master: Some(bridge), ..SetLink::of(LinkRef::Index(index)) };
    w.host_socket.run(&Op::SetLink(port)).unwrap();
    w.host.run(|| delete_link_early(index)).unwrap().unwrap();
    assert!(w.host_socket.link_at(index).unwrap().is_none());
    w.host.run(|| delete_link_early(bridge)).unwrap().unwrap();
    assert!(w.host_socket.link_at(bridge).unwrap().is_none());
}

#[test]
fn an_early_deletion_reports_the_kernels_error() {
    let w = Testbed::new();
    let missing = w.host.run(|| delete_link_early(4711)).unwrap().unwrap_err();
    assert!(missing.is_missing(), "{missing}");
    assert!(missing.to_string().starts_with("cannot delete link 4711: "), "{missing}");
    let lo = w.host.run(|| delete_link_early(1)).unwrap().unwrap_err();
    assert!(lo.is_unsupported(), "{lo}");
}

#[test]
fn parallel_deletions_remove_all_links() {
    let mut w = Testbed::new();
    let links = routed(&mut w, 64);
    let mut other = Testbed::new();
    let other_links = routed(&mut other, 64);
    std::thread::scope(|scope| {
        scope.spawn(|| delete_all(&w.host, &links, |index| delete_link_early(index).unwrap(), 16));
        scope.spawn(|| delete_all(&other.host, &other_links, delete_link_fully, 8));
    });
    assert!(w.host_socket.links().unwrap().iter().all(|link| !link.name.starts_with("pw")));
    assert!(other.host_socket.links().unwrap().iter().all(|link| !link.name.starts_with("pw")));
}

fn delete_link_fully(index: u32) {
    RtSocket::open().unwrap().delete_link(index, || ()).0.unwrap();
}

#[test]
fn a_socket_is_usable_after_deletions() {
    let mut w = Testbed::new();
    command(&w.host, "ip link add pair0 type veth peer name pair1");
    // Both ends are in this namespace, so the kernel notifies for both.
    let index = w.host_socket.link(&name("pair0")).unwrap().unwrap().index;
    let (deleted, result) = w.host_socket.delete_link(index, || "ran");
    deleted.unwrap();
    assert_eq!(result, "ran");
    let ifb = name("ifb9");
    w.host_socket.run(&Op::AddIfb { name: &ifb, mtu: 1500 }).unwrap();
    assert!(w.host_socket.link(&ifb).unwrap().is_some());
    assert!(w.host_socket.delete_link(index, || ()).0.unwrap_err().is_missing());
}
