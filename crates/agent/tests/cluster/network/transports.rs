//! Both transports and all families of the underlay: who reaches whom, from pods and from nodes.

use std::net::{IpAddr, SocketAddr};

use netlink::{Ethtool, NetNs};
use testkit::{Cluster, Extra, Families, Plan, Transport, Way, inspect, ping, udp_connects, udp_echo};

use super::{TUNNEL, mtu_of, problems, transfer, way};
use crate::common::{SOON, Streams, await_that, expect_reach, pod, up};

#[test]
fn the_transport_is_chosen_by_config() {
    let cluster = up("vxlan", &Plan { nodes: 2, transport: Transport::Vxlan, ..Plan::default() });
    assert_eq!((way(&cluster, "p1", "p2"), way(&cluster, "p2", "p1")), (Way::Vxlan, Way::Vxlan));
    let streams = Streams::between(&cluster, &[("p1", "p2")]);
    expect_reach(&cluster, SOON);
    streams.expect_whole();
    drop(cluster);

    // Direct needs no tunnel, leaves pods the whole MTU, and says who cannot be reached without one.
    let plan = Plan { subnets: 2, transport: Transport::Direct, ..Plan::default() };
    let cluster = Cluster::up("direct", &plan).unwrap();
    cluster.pods_everywhere(1).unwrap();
    await_that("p1 and p3 to reach each other", SOON, || {
        let matrix = cluster.reach(SOON / 10).unwrap();
        matrix.cell("p1", "p3").unwrap().is_ok() && matrix.cell("p3", "p1").unwrap().is_ok()
    });
    assert_eq!((way(&cluster, "p1", "p3"), way(&cluster, "p1", "p2")), (Way::Direct, Way::None));
    for node in ["n1", "n2", "n3"] {
        assert!(inspect::link(cluster.node(node).unwrap(), TUNNEL).is_err());
    }
    assert_eq!(mtu_of(&pod(&cluster, "p1").pod, "eth0"), 1500);
    await_that("n1 to tell of n2", SOON, || {
        problems(cluster.agent("n1").unwrap())
            .iter()
            .any(|what| what.contains("10.199.2.2 is not on-link; use transport auto or vxlan"))
    });
}

/// Nodes that send directly have no tunnel, until one of them sends by it.
#[test]
fn nodes_get_another_transport_one_by_one_and_the_network_stays() {
    let plan = Plan { nodes: 3, transport: Transport::Direct, ..Plan::default() };
    let mut cluster = up("change", &plan);
    for (node, transport) in [("n3", "vxlan"), ("n2", "vxlan"), ("n1", "auto"), ("n3", "direct")] {
        let streams = Streams::between(&cluster, &[("p1", "p2"), ("p2", "p3"), ("p3", "p1")]);
        cluster.kill_agent(node).unwrap();
        cluster.agent_mut(node).unwrap().set_flag("--network-transport", transport).unwrap();
        cluster.start_agent(node).unwrap();
        expect_reach(&cluster, SOON);
        // The others need a moment to hear of it.
        let lost = streams.expect_lost_at_most(SOON);
        println!("{node} {transport}: {lost:?} lost");
    }
    let ways = [way(&cluster, "p2", "p1"), way(&cluster, "p1", "p2"), way(&cluster, "p3", "p2")];
    assert_eq!(ways, [Way::Vxlan, Way::Direct, Way::Direct]);
}

/// The kernel has only one device for the tunnel's numbers: the old one must make room.
#[test]
fn a_tunnel_gets_another_name() {
    let all = Extra { flags: vec!["--network-tunnel".to_owned(), "near".to_owned()], ..Extra::default() };
    let mut cluster = up("name", &Plan { nodes: 2, subnets: 2, all, ..Plan::default() });
    cluster.kill_agent("n1").unwrap();
    // Also one that an agent was killed over before it was marked.
    cluster.node("n1").unwrap().sh(&["ip", "link", "set", "near4", "alias", ""]).unwrap();
    cluster.agent_mut("n1").unwrap().set_flag("--network-tunnel", "far").unwrap();
    cluster.start_agent("n1").unwrap();
    expect_reach(&cluster, SOON);
    let links = inspect::links(cluster.node("n1").unwrap()).unwrap();
    let tunnels: Vec<&str> =
        links.iter().filter(|link| link.kind() == Some("vxlan")).map(|link| link.name.as_str()).collect();
    assert_eq!(tunnels, ["far4"]);
}

#[test]
fn pods_of_both_families_cross_an_underlay_of_one() {
    for (label, underlay) in [("only4", Families::V4), ("only6", Families::V6)] {
        let plan = Plan { subnets: 2, underlay, ..Plan::default() };
        let cluster = up(label, &plan);
        let matrix = cluster.reach(SOON).unwrap();
        assert!(matrix.cells.iter().all(|cell| cell.v4.is_some() && cell.v6.is_some()));
        let streams = Streams::between(&cluster, &[("p1", "p2"), ("p1", "p3")]);
        let (tunnel, room) = if underlay == Families::V4 { ("pwvx4", 50) } else { ("pwvx6", 70) };
        for node in ["n1", "n2", "n3"] {
            let vxlans: Vec<String> = inspect::links(cluster.node(node).unwrap())
                .unwrap()
                .into_iter()
                .filter(|link| link.kind() == Some("vxlan"))
                .map(|link| link.name)
                .collect();
            assert_eq!(vxlans, [tunnel], "{node}");
        }
        for wired in cluster.pods() {
            assert_eq!(mtu_of(&wired.pod, "eth0"), 1500 - room, "{}", wired.name);
        }
        for to in &pod(&cluster, "p2").addresses {
            transfer(&pod(&cluster, "p1"), (&pod(&cluster, "p2"), *to));
        }
        streams.expect_whole();
    }
}

#[test]
fn nodes_reach_pods_of_other_nodes_from_their_gateway_and_pods_reach_nodes() {
    let cluster = up("hosts", &Plan { subnets: 2, ..Plan::default() });
    let n1 = cluster.node("n1").unwrap();
    for (name, way_there) in [("p2", Way::Vxlan), ("p3", Way::Direct)] {
        assert_eq!(way(&cluster, "p1", name), way_there);
        let wired = pod(&cluster, name);
        for (index, address) in wired.addresses.iter().enumerate() {
            let echo = udp_echo(&wired.pod, SocketAddr::new(*address, 0)).unwrap();
            let seen = udp_connects(n1, echo.address(), SOON).unwrap().map(|seen| seen.ip());
            assert_eq!(seen, Some(gateway(&cluster, index)), "n1 to {address}");
        }
    }
    for node in ["n1", "n2", "n3"] {
        for address in cluster.addresses(node).unwrap() {
            let report = ping(&pod(&cluster, "p1").pod, address, 1).unwrap();
            assert!(report.all(), "p1 to {node} at {address}");
        }
    }
}

/// Of n1's pods: the address of its bridge.
fn gateway(cluster: &Cluster, family: usize) -> IpAddr {
    let own = pod(cluster, "p1").addresses[family];
    let on_bridge = inspect::addresses(cluster.node("n1").unwrap(), "podwire0").unwrap();
    on_bridge.iter().find(|address| address.net.contains(&own)).unwrap().net.addr()
}

#[test]
fn the_tunnels_checksum_offload_is_what_the_config_says() {
    let each = [("n1", "off"), ("n2", "on")].map(|(node, value)| {
        let flags = vec!["--network-tunnel-checksum".to_owned(), value.to_owned()];
        (node.to_owned(), Extra { flags, ..Extra::default() })
    });
    let plan = Plan { nodes: 2, subnets: 2, each: each.into(), ..Plan::default() };
    let cluster = up("offload", &plan);
    let offloads = |node: &str| {
        let ns = cluster.node(node).unwrap();
        let mut ethtool = Ethtool::open_in(&NetNs::open(ns.path()).unwrap()).unwrap();
        ethtool.tx_checksum(inspect::link(ns, TUNNEL).unwrap().index).unwrap()
    };
    assert_eq!([offloads("n1"), offloads("n2")], [false, true]);
    for (from, to) in [("p1", "p2"), ("p2", "p1")] {
        for address in &pod(&cluster, to).addresses {
            transfer(&pod(&cluster, from), (&pod(&cluster, to), *address));
        }
    }
    // A device that is made anew is treated alike.
    let n1 = cluster.node("n1").unwrap();
    super::ip(n1, "link del dev pwvx4");
    await_that("another tunnel", SOON, || inspect::link(n1, TUNNEL).is_ok_and(|link| link.is_up()));
    expect_reach(&cluster, SOON);
    assert!(!offloads("n1"));
}
