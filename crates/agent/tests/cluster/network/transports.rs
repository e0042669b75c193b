//! Reachability with both transports and all families of the underlay, from pods and from nodes.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use netlink::{Ethtool, NetNs};
use testkit::{
    Cluster, DEADLINE, Extra, Families, Plan, PodPath, TransportMode, inspect, ping, udp_connects, udp_echo,
};

use super::{TUNNEL, mtu_of, path, problems, transfer};
use crate::common::{PROBE_TIME, Streams, TIMEOUT, await_that, expect_reach, pod, up};

#[test]
fn the_configured_transport_is_used() {
    let cluster = up("vxlan", &Plan { nodes: 2, transport: TransportMode::Vxlan, ..Plan::default() });
    assert_eq!((path(&cluster, "p1", "p2"), path(&cluster, "p2", "p1")), (PodPath::Vxlan, PodPath::Vxlan));
    let streams = Streams::between(&cluster, &[("p1", "p2")]);
    expect_reach(&cluster, TIMEOUT);
    streams.expect_no_loss();
    drop(cluster);

    // Direct transport needs no tunnel and leaves pods the whole MTU. Peers that need a tunnel are reported.
    let plan = Plan { subnets: 2, transport: TransportMode::Direct, ..Plan::default() };
    let cluster = Cluster::up("direct", &plan).unwrap();
    cluster.pods_everywhere(1).unwrap();
    await_that("p1 and p3 to reach each other", TIMEOUT, || {
        let matrix = cluster.reach(PROBE_TIME).unwrap();
        matrix.cell("p1", "p3").unwrap().is_ok() && matrix.cell("p3", "p1").unwrap().is_ok()
    });
    assert_eq!((path(&cluster, "p1", "p3"), path(&cluster, "p1", "p2")), (PodPath::Direct, PodPath::None));
    for node in ["n1", "n2", "n3"] {
        assert!(inspect::link(cluster.node(node).unwrap(), TUNNEL).is_err());
    }
    assert_eq!(mtu_of(&pod(&cluster, "p1").pod, "eth0"), 1500);
    await_that("n1 to report n2", TIMEOUT, || {
        problems(cluster.agent("n1").unwrap())
            .iter()
            .any(|what| what.contains("10.199.2.2 is not on-link; use transport auto or vxlan"))
    });
}

/// Nodes with direct transport create a tunnel only when a peer sends through one.
#[test]
fn nodes_change_their_transport_one_by_one_without_an_outage() {
    let plan = Plan { nodes: 3, transport: TransportMode::Direct, ..Plan::default() };
    let mut cluster = up("change", &plan);
    for (node, transport) in [("n3", "vxlan"), ("n2", "vxlan"), ("n1", "auto"), ("n3", "direct")] {
        let streams = Streams::between(&cluster, &[("p1", "p2"), ("p2", "p3"), ("p3", "p1")]);
        cluster.kill_agent(node).unwrap();
        cluster.agent_mut(node).unwrap().set_flag("--network-transport", transport).unwrap();
        cluster.start_agent(node).unwrap();
        expect_reach(&cluster, TIMEOUT);
        streams.expect_recovery();
    }
    let paths = [path(&cluster, "p2", "p1"), path(&cluster, "p1", "p2"), path(&cluster, "p3", "p2")];
    assert_eq!(paths, [PodPath::Vxlan, PodPath::Direct, PodPath::Direct]);
    // Entries of the previous agent of n3 are removed without counting as repairs.
    let n3 = cluster.node("n3").unwrap();
    await_that("no neighbour on n3's tunnel", TIMEOUT, || {
        n3.sh(&["ip", "neigh", "show", "dev", TUNNEL, "nud", "permanent"]).unwrap().is_empty()
    });
    let log = cluster.agent("n3").unwrap().log().unwrap();
    assert!(!log.lines().any(|line| line.contains("repaired: ") && line.contains(" removed: ")), "{log}");
}

/// The kernel allows only one device with a VNI and port, so the old one has to be removed first.
#[test]
fn a_tunnel_can_be_renamed_by_config() {
    let all = Extra { flags: vec!["--network-tunnel".to_owned(), "near".to_owned()], ..Extra::default() };
    let mut cluster = up("name", &Plan { nodes: 2, subnets: 2, all, ..Plan::default() });
    cluster.kill_agent("n1").unwrap();
    // Also if the tunnel has no alias, because an agent was killed before it set it.
    cluster.node("n1").unwrap().sh(&["ip", "link", "set", "near4", "alias", ""]).unwrap();
    cluster.agent_mut("n1").unwrap().set_flag("--network-tunnel", "far").unwrap();
    cluster.start_agent("n1").unwrap();
    expect_reach(&cluster, TIMEOUT);
    let links = inspect::links(cluster.node("n1").unwrap()).unwrap();
    let tunnels: Vec<&str> =
        links.iter().filter(|link| link.kind() == Some("vxlan")).map(|link| link.name.as_str()).collect();
    assert_eq!(tunnels, ["far4"]);
}

#[test]
fn pods_of_both_families_cross_an_underlay_of_one_family() {
    for (label, underlay) in [("only4", Families::V4), ("only6", Families::V6)] {
        let plan = Plan { subnets: 2, underlay, ..Plan::default() };
        let cluster = up(label, &plan);
        let matrix = cluster.reach(TIMEOUT).unwrap();
        assert!(matrix.cells.iter().all(|cell| cell.v4.is_some() && cell.v6.is_some()));
        let streams = Streams::between(&cluster, &[("p1", "p2"), ("p1", "p3")]);
        let (tunnel, overhead) = if underlay == Families::V4 { ("pwvx4", 50) } else { ("pwvx6", 70) };
        for node in ["n1", "n2", "n3"] {
            let vxlans: Vec<String> = inspect::links(cluster.node(node).unwrap())
                .unwrap()
                .into_iter()
                .filter(|link| link.kind() == Some("vxlan"))
                .map(|link| link.name)
                .collect();
            assert_eq!(vxlans, [tunnel], "{node}");
        }
        for attached in cluster.pods() {
            assert_eq!(mtu_of(&attached.pod, "eth0"), 1500 - overhead, "{}", attached.name);
        }
        for to in &pod(&cluster, "p2").addresses {
            transfer(&pod(&cluster, "p1"), (&pod(&cluster, "p2"), *to));
        }
        streams.expect_no_loss();
    }
}

#[test]
fn nodes_and_pods_of_other_nodes_reach_each_other() {
    let cluster = up("hosts", &Plan { subnets: 2, ..Plan::default() });
    let n1 = cluster.node("n1").unwrap();
    for (name, expected) in [("p2", PodPath::Vxlan), ("p3", PodPath::Direct)] {
        assert_eq!(path(&cluster, "p1", name), expected);
        let attached = pod(&cluster, name);
        for (index, address) in attached.addresses.iter().enumerate() {
            let echo = udp_echo(&attached.pod, SocketAddr::new(*address, 0)).unwrap();
            let observed = udp_connects(n1, echo.address(), TIMEOUT).unwrap().map(|observed| observed.ip());
            assert_eq!(observed, Some(gateway_of(&cluster, "p1", index)), "n1 to {address}");
        }
    }
    for node in ["n1", "n2", "n3"] {
        for address in cluster.addresses(node).unwrap() {
            let report = ping(&pod(&cluster, "p1").pod, address, 1).unwrap();
            assert!(report.all(), "p1 to {node} at {address}");
        }
    }
}

/// The address of the bridge of a pod's node.
fn gateway_of(cluster: &Cluster, name: &str, family: usize) -> IpAddr {
    let pod = pod(cluster, name);
    let on_bridge = inspect::addresses(cluster.node(&pod.node).unwrap(), "podwire0").unwrap();
    on_bridge.iter().find(|address| address.net.contains(&pod.addresses[family])).unwrap().net.addr()
}

#[test]
fn the_tunnel_has_the_configured_checksum_offload() {
    let each = [("n1", "off"), ("n2", "on")].map(|(node, value)| {
        let flags = vec!["--network-tunnel-checksum".to_owned(), value.to_owned()];
        (node.to_owned(), Extra { flags, ..Extra::default() })
    });
    let plan = Plan { nodes: 2, subnets: 2, each: each.into(), ..Plan::default() };
    let cluster = up("offload", &plan);
    let offloads = |node: &str| offloads(&cluster, (node, TUNNEL));
    assert_eq!([offloads("n1"), offloads("n2")], [false, true]);
    for (from, to) in [("p1", "p2"), ("p2", "p1")] {
        for address in &pod(&cluster, to).addresses {
            transfer(&pod(&cluster, from), (&pod(&cluster, to), *address));
        }
    }
    // A recreated device gets the same setting.
    let n1 = cluster.node("n1").unwrap();
    super::ip(n1, "link del dev pwvx4");
    await_that("another tunnel", TIMEOUT, || inspect::link(n1, TUNNEL).is_ok_and(|link| link.is_up()));
    expect_reach(&cluster, TIMEOUT);
    assert!(!offloads("n1"));
}

fn offloads(cluster: &Cluster, (node, tunnel): (&str, &str)) -> bool {
    let ns = cluster.node(node).unwrap();
    let mut ethtool = Ethtool::open_in(&NetNs::open(ns.path()).unwrap()).unwrap();
    ethtool.tx_checksum(inspect::link(ns, tunnel).unwrap().index).unwrap()
}

/// Timeout of a test of checksum offload. With a node that does not answer yet it takes five seconds, and the next one starts five
/// seconds later.
const CHECKSUM_TEST_TIMEOUT: Duration = DEADLINE;

/// A NIC that computes wrong checksums for tunnelled packets, so that offloaded packets do not arrive. On the underlay such a
/// packet has only the sum of the pseudo header as checksum.
fn wrong_checksums(label: &str, underlay: Families) {
    let mut cluster = up(label, &Plan { nodes: 2, subnets: 2, underlay, ..Plan::default() });
    let (tunnel, family) = if underlay == Families::V6 { ("pwvx6", "ip6") } else { (TUNNEL, "ip") };
    let offloads = |cluster: &Cluster, node: &str| offloads(cluster, (node, tunnel));
    let logged_by = |cluster: &Cluster, node: &str, what: &str| {
        cluster.agent(node).unwrap().log().unwrap().matches(what).count()
    };
    let times_logged = |cluster: &Cluster, what: &str| logged_by(cluster, "n1", what);
    let (valid, invalid) =
        ("checksums of tunnelled packets are valid", "computes invalid checksums; switched off");
    let (answered_without_offload, already_off) =
        ("peer answers through the tunnel without checksum offload", "is off already; not changed");
    await_that("the checksum test of n2", CHECKSUM_TEST_TIMEOUT, || logged_by(&cluster, "n2", valid) == 1);
    let of_n1 =
        cluster.addresses("n1").unwrap().into_iter().find(|ip| ip.is_ipv4() == (family == "ip")).unwrap();
    // Each family: the position of the inner checksum, after the headers of UDP, VXLAN, Ethernet and IP.
    for (index, header) in [(0, 20), (1, 40)] {
        await_that("the checksum test of n1", CHECKSUM_TEST_TIMEOUT, || {
            times_logged(&cluster, valid) == index + 1
        });
        assert!(offloads(&cluster, "n1") && offloads(&cluster, "n2"));
        let (from, to) = (gateway_of(&cluster, "p1", index), gateway_of(&cluster, "p2", index));
        let (bits, sum) = (8 * (8 + 8 + 14 + header + 6), pseudo_header_sum(from, to));
        let hook = "type filter hook forward priority 0";
        let rule = format!("{family} saddr {of_n1} udp dport 4789 @th,{bits},16 {sum} drop");
        let table = format!("table inet nic {{ chain forward {{ {hook}; {rule}; }}; }}");
        cluster.underlay().sh(&["nft", &table]).unwrap();
        cluster.agent_mut("n1").unwrap().restart().unwrap();
        await_that("the checksum test of n1", CHECKSUM_TEST_TIMEOUT, || {
            times_logged(&cluster, invalid) == index + 1
        });
        await_that("checksums by the kernel", TIMEOUT, || !offloads(&cluster, "n1"));
        await_that("the second checksum test of n1", CHECKSUM_TEST_TIMEOUT, || {
            times_logged(&cluster, answered_without_offload) == index + 1
        });
        assert!(offloads(&cluster, "n2"), "n2 has another NIC");
        expect_reach(&cluster, TIMEOUT);
        // The setting is kept after a manual change, after a recreation of the tunnel and by the next agent.
        let switch = |link: u32| Ethtool::open().and_then(|mut ethtool| ethtool.set_tx_checksum(link, true));
        let n1 = cluster.node("n1").unwrap();
        let link = inspect::link(n1, tunnel).unwrap().index;
        n1.enter(|| switch(link)).unwrap().unwrap();
        await_that("checksums by the kernel again", TIMEOUT, || !offloads(&cluster, "n1"));
        super::ip(n1, &format!("link del dev {tunnel}"));
        await_that("another tunnel with checksums by the kernel", TIMEOUT, || {
            inspect::link(n1, tunnel).is_ok_and(|link| link.is_up()) && !offloads(&cluster, "n1")
        });
        cluster.agent_mut("n1").unwrap().restart().unwrap();
        await_that("the log of the next agent", CHECKSUM_TEST_TIMEOUT, || {
            times_logged(&cluster, already_off) == index + 1
        });
        assert!(!offloads(&cluster, "n1"));
        // The NIC is replaced, which includes a boot, so that the tunnel is new.
        cluster.underlay().sh(&["nft", "delete table inet nic"]).unwrap();
        cluster.kill_agent("n1").unwrap();
        super::ip(cluster.node("n1").unwrap(), &format!("link del dev {tunnel}"));
        cluster.start_agent("n1").unwrap();
        expect_reach(&cluster, TIMEOUT);
    }
    await_that("the checksum test of n1", CHECKSUM_TEST_TIMEOUT, || times_logged(&cluster, valid) == 3);
    assert!(offloads(&cluster, "n1"));
}

#[test]
fn pain9_wrong_offloaded_checksums_are_computed_by_the_kernel() {
    wrong_checksums("checksums", Families::Both);
}

#[test]
fn pain9_wrong_offloaded_checksums_over_ipv6_are_computed_by_the_kernel() {
    wrong_checksums("checksums6", Families::V6);
}

/// A missing answer does not mean that the NIC is at fault.
#[test]
fn checksum_offload_stays_enabled_if_a_peer_does_not_answer() {
    let debug = Extra { flags: ["--log-level", "debug"].map(str::to_owned).into(), ..Extra::default() };
    let each = [("n1".to_owned(), debug)].into();
    let mut cluster = up("silence", &Plan { nodes: 2, subnets: 2, each, ..Plan::default() });
    let rule = "table inet silent { chain input { type filter hook input priority 0; udp dport 9 drop; }; }";
    cluster.node("n2").unwrap().sh(&["nft", rule]).unwrap();
    // It may have timed out before, while n2 was starting.
    let times_logged = |cluster: &Cluster| {
        cluster.agent("n1").unwrap().log().unwrap().matches("no reply to the test of checksums").count()
    };
    let before = times_logged(&cluster);
    cluster.agent_mut("n1").unwrap().restart().unwrap();
    await_that("the end of the checksum test", CHECKSUM_TEST_TIMEOUT, || times_logged(&cluster) > before);
    assert!(offloads(&cluster, ("n1", TUNNEL)));
}

/// The value of a datagram's checksum field when the kernel offloads it: the sum of the pseudo header (RFC 768).
fn pseudo_header_sum(from: IpAddr, to: IpAddr) -> u16 {
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let (protocol, length) = (17, 8 + "podwire".len() as u32);
    let words = [octets(from), octets(to)].concat();
    let sum: u32 = words.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let sum = sum + protocol + length;
    let folded = (sum & 0xffff) + (sum >> 16);
    u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap()
}
