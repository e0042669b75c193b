use api::{Freshness, Timestamp};

use super::*;

fn page(routes: &[RouteView]) -> String {
    let freshness =
        Freshness { as_of: Some(Timestamp(1_794_777_184)), age_seconds: Some(2), stale: false, reason: None };
    super::page(&RoutesView { freshness, routes: routes.to_vec() }, print::table)
}

#[test]
fn a12_stale_routes_are_marked_with_their_age_and_the_reason() {
    let page = |age_seconds, routes| {
        let reason = Some("etcd is not reachable: connection refused".to_owned());
        let freshness = Freshness { as_of: None, age_seconds, stale: true, reason };
        super::page(&RoutesView { freshness, routes }, print::table)
    };
    let wanted = "\
of unknown age; etcd is not reachable: connection refused

no routes: no other node with a block is known";
    assert_eq!(page(None, Vec::new()), wanted);
    let old = page(Some(90), vec![route("10.42.1.0/24", "b", RouteTransport::Direct)]);
    assert!(
        old.starts_with("as of 90s ago; etcd is not reachable: connection refused\n\n1 route to 1 node"),
        "{old}"
    );
}

fn route(block: &str, node: &str, transport: RouteTransport) -> RouteView {
    let (gateway, link) = match transport {
        RouteTransport::Direct => (Some("192.0.2.9".parse().unwrap()), Some("eth0".to_owned())),
        RouteTransport::Vxlan => (Some("10.42.1.0".parse().unwrap()), Some("pwvx4".to_owned())),
        RouteTransport::None | RouteTransport::Unknown => (None, None),
    };
    let (block, node) = (block.parse().unwrap(), Some(node.to_owned()).filter(|node| !node.is_empty()));
    RouteView { block, node, transport, gateway, link, state: RouteState::Ok, message: None }
}

#[test]
fn routes_that_match_the_kernel_are_counted_by_transport() {
    let routes = [
        route("10.42.1.0/24", "b", RouteTransport::Direct),
        route("10.42.2.0/24", "b", RouteTransport::Direct),
        route("10.42.3.0/24", "c", RouteTransport::Vxlan),
    ];
    let wanted = "\
3 routes to 2 nodes: 2 direct, 1 vxlan; all as expected

BLOCK         NODE  TRANSPORT  VIA                 STATE
10.42.1.0/24  b     direct     192.0.2.9 on eth0   ok
10.42.2.0/24  b     direct     192.0.2.9 on eth0   ok
10.42.3.0/24  c     vxlan      10.42.1.0 on pwvx4  ok";
    assert_eq!(page(&routes), wanted);
    assert_eq!(title(&routes[..1]), "1 route to 1 node: 1 direct; all as expected");
    assert_eq!(page(&[]), "no routes: no other node has a block");
}

#[test]
fn routes_with_problems_are_listed_first() {
    let mut routes = [
        route("10.42.1.0/24", "b", RouteTransport::Direct),
        route("10.42.2.0/24", "c", RouteTransport::None),
        route("10.42.3.0/24", "d", RouteTransport::Vxlan),
        route("10.42.4.0/24", "", RouteTransport::None),
    ];
    routes[1].state = RouteState::Missing;
    routes[1].message =
        Some("it overlaps block 10.42.2.0/23 of this node, so it is not added here".to_owned());
    routes[2].state = RouteState::Different;
    routes[2].message = Some("goes to 192.0.2.7".to_owned());
    routes[3].state = RouteState::Stale;
    routes[3].gateway = Some("192.0.2.8".parse().unwrap());
    routes[3].message = Some("no node has this block".to_owned());
    let wanted = "\
3 routes to 3 nodes: 1 direct, 1 vxlan, 1 without a path; 1 missing, 1
different, 1 stale

BLOCK         NODE  TRANSPORT  VIA                 STATE
10.42.2.0/24  c     none       -                   missing: it overlaps block
                                                   10.42.2.0/23 of this node, so
                                                   it is not added here
10.42.3.0/24  d     vxlan      10.42.1.0 on pwvx4  different: goes to 192.0.2.7
10.42.4.0/24  -     -          192.0.2.8           stale: no node has this block
10.42.1.0/24  b     direct     192.0.2.9 on eth0   ok";
    assert_eq!(page(&routes), wanted);
    assert_eq!(title(&routes[3..]), "no other node has a block; 1 stale");
}

#[test]
fn long_names_and_addresses_fit() {
    let mut one =
        route("fd42:0:0:1234::/72", "ip-10-0-0-12.eu-central-1.compute.internal", RouteTransport::Direct);
    one.gateway = Some("fe80::88:ceff:fed8:a6e0".parse().unwrap());
    one.link = Some("enp0s31f6np1".to_owned());
    one.state = RouteState::Different;
    one.message = Some("goes to 2001:db8:1234:5678:9abc:def0:1234:5678".to_owned());
    let page = page(&[one.clone(), one]);
    assert!(page.lines().all(|line| line.chars().count() <= print::width()), "{page}");
}
