//! Both transports and all families of the underlay: who reaches whom, from pods and from nodes.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use netlink::{Ethtool, NetNs};
use testkit::{
    Cluster, DEADLINE, Extra, Families, Plan, PodPath, TransportMode, inspect, ping, udp_connects, udp_echo,
};

use super::{TUNNEL, mtu_of, problems, transfer, way};
use crate::common::{BRIEFLY, SOON, Streams, await_that, expect_reach, pod, up};

#[test]
fn the_transport_is_chosen_by_config() {
    let cluster = up("vxlan", &Plan { nodes: 2, transport: TransportMode::Vxlan, ..Plan::default() });
    assert_eq!((way(&cluster, "p1", "p2"), way(&cluster, "p2", "p1")), (PodPath::Vxlan, PodPath::Vxlan));
    let streams = Streams::between(&cluster, &[("p1", "p2")]);
    expect_reach(&cluster, SOON);
    streams.expect_whole();
    drop(cluster);

    // Direct needs no tunnel, leaves pods the whole MTU, and says who cannot be reached without one.
    let plan = Plan { subnets: 2, transport: TransportMode::Direct, ..Plan::default() };
    let cluster = Cluster::up("direct", &plan).unwrap();
    cluster.pods_everywhere(1).unwrap();
    await_that("p1 and p3 to reach each other", SOON, || {
        let matrix = cluster.reach(BRIEFLY).unwrap();
        matrix.cell("p1", "p3").unwrap().is_ok() && matrix.cell("p3", "p1").unwrap().is_ok()
    });
    assert_eq!((way(&cluster, "p1", "p3"), way(&cluster, "p1", "p2")), (PodPath::Direct, PodPath::None));
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
    let plan = Plan { nodes: 3, transport: TransportMode::Direct, ..Plan::default() };
    let mut cluster = up("change", &plan);
    for (node, transport) in [("n3", "vxlan"), ("n2", "vxlan"), ("n1", "auto"), ("n3", "direct")] {
        let streams = Streams::between(&cluster, &[("p1", "p2"), ("p2", "p3"), ("p3", "p1")]);
        cluster.kill_agent(node).unwrap();
        cluster.agent_mut(node).unwrap().set_flag("--network-transport", transport).unwrap();
        cluster.start_agent(node).unwrap();
        expect_reach(&cluster, SOON);
        streams.expect_back();
    }
    let ways = [way(&cluster, "p2", "p1"), way(&cluster, "p1", "p2"), way(&cluster, "p3", "p2")];
    assert_eq!(ways, [PodPath::Vxlan, PodPath::Direct, PodPath::Direct]);
    // Entries that the earlier agent of n3 left are removed, and are no repair.
    let n3 = cluster.node("n3").unwrap();
    await_that("no neighbour on n3's tunnel", SOON, || {
        n3.sh(&["ip", "neigh", "show", "dev", TUNNEL, "nud", "permanent"]).unwrap().is_empty()
    });
    let log = cluster.agent("n3").unwrap().log().unwrap();
    assert!(!log.lines().any(|line| line.contains("repaired: ") && line.contains(" removed: ")), "{log}");
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
    for (name, way_there) in [("p2", PodPath::Vxlan), ("p3", PodPath::Direct)] {
        assert_eq!(way(&cluster, "p1", name), way_there);
        let wired = pod(&cluster, name);
        for (index, address) in wired.addresses.iter().enumerate() {
            let echo = udp_echo(&wired.pod, SocketAddr::new(*address, 0)).unwrap();
            let observed = udp_connects(n1, echo.address(), SOON).unwrap().map(|observed| observed.ip());
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

/// Of a pod: the address of its node's bridge.
fn gateway_of(cluster: &Cluster, name: &str, family: usize) -> IpAddr {
    let pod = pod(cluster, name);
    let on_bridge = inspect::addresses(cluster.node(&pod.node).unwrap(), "podwire0").unwrap();
    on_bridge.iter().find(|address| address.net.contains(&pod.addresses[family])).unwrap().net.addr()
}

#[test]
fn the_tunnels_checksum_offload_is_what_the_config_says() {
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
    // A device that is made anew is treated alike.
    let n1 = cluster.node("n1").unwrap();
    super::ip(n1, "link del dev pwvx4");
    await_that("another tunnel", SOON, || inspect::link(n1, TUNNEL).is_ok_and(|link| link.is_up()));
    expect_reach(&cluster, SOON);
    assert!(!offloads("n1"));
}

fn offloads(cluster: &Cluster, (node, tunnel): (&str, &str)) -> bool {
    let ns = cluster.node(node).unwrap();
    let mut ethtool = Ethtool::open_in(&NetNs::open(ns.path()).unwrap()).unwrap();
    ethtool.tx_checksum(inspect::link(ns, tunnel).unwrap().index).unwrap()
}

/// A trial with a node that is not there yet takes five seconds, and the next one begins as much later.
const TRIAL: Duration = DEADLINE;

/// A card that gets checksums of tunnelled packets wrong: what was left to it does not arrive. How one recognises that from
/// outside: where the checksum belongs, there is still the sum of the addresses alone.
fn wrong_checksums(label: &str, underlay: Families) {
    let mut cluster = up(label, &Plan { nodes: 2, subnets: 2, underlay, ..Plan::default() });
    let (tunnel, family) = if underlay == Families::V6 { ("pwvx6", "ip6") } else { (TUNNEL, "ip") };
    let offloads = |cluster: &Cluster, node: &str| offloads(cluster, (node, tunnel));
    let told_by = |cluster: &Cluster, node: &str, what: &str| {
        cluster.agent(node).unwrap().log().unwrap().matches(what).count()
    };
    let times_told = |cluster: &Cluster, what: &str| told_by(cluster, "n1", what);
    let (right, wrong) =
        ("gets through the tunnel are right", "n2 gets through the tunnel has wrong checksums");
    let (helped, kept) = ("with checksums by the kernel, what n2 gets", "made by the kernel already");
    await_that("n2 to find out", TRIAL, || told_by(&cluster, "n2", right) == 1);
    let of_n1 =
        cluster.addresses("n1").unwrap().into_iter().find(|ip| ip.is_ipv4() == (family == "ip")).unwrap();
    // In which of them: the place of the inner checksum, behind the headers of UDP, VXLAN, Ethernet and IP.
    for (index, header) in [(0, 20), (1, 40)] {
        await_that("n1 to find out", TRIAL, || times_told(&cluster, right) == index + 1);
        assert!(offloads(&cluster, "n1") && offloads(&cluster, "n2"));
        let (from, to) = (gateway_of(&cluster, "p1", index), gateway_of(&cluster, "p2", index));
        let (bits, sum) = (8 * (8 + 8 + 14 + header + 6), left_alone(from, to));
        let hook = "type filter hook forward priority 0";
        let rule = format!("{family} saddr {of_n1} udp dport 4789 @th,{bits},16 {sum} drop");
        let table = format!("table inet card {{ chain forward {{ {hook}; {rule}; }}; }}");
        cluster.underlay().sh(&["nft", &table]).unwrap();
        cluster.agent_mut("n1").unwrap().restart().unwrap();
        await_that("n1 to find out", TRIAL, || times_told(&cluster, wrong) == index + 1);
        await_that("the kernel to make checksums", SOON, || !offloads(&cluster, "n1"));
        await_that("n1 to see that it helped", TRIAL, || times_told(&cluster, helped) == index + 1);
        assert!(offloads(&cluster, "n2"), "n2's card is another");
        expect_reach(&cluster, SOON);
        // Somebody who switches it on is overruled, a tunnel that is made anew is treated alike, and so it is by the next agent.
        let switch = |link: u32| Ethtool::open().and_then(|mut ethtool| ethtool.set_tx_checksum(link, true));
        let n1 = cluster.node("n1").unwrap();
        let link = inspect::link(n1, tunnel).unwrap().index;
        n1.enter(|| switch(link)).unwrap().unwrap();
        await_that("the kernel to make checksums again", SOON, || !offloads(&cluster, "n1"));
        super::ip(n1, &format!("link del dev {tunnel}"));
        await_that("another tunnel, and the kernel to make its checksums", SOON, || {
            inspect::link(n1, tunnel).is_ok_and(|link| link.is_up()) && !offloads(&cluster, "n1")
        });
        cluster.agent_mut("n1").unwrap().restart().unwrap();
        await_that("the next agent to see it", TRIAL, || times_told(&cluster, kept) == index + 1);
        assert!(!offloads(&cluster, "n1"));
        // A better card comes with a boot, and then the tunnel is new.
        cluster.underlay().sh(&["nft", "delete table inet card"]).unwrap();
        cluster.kill_agent("n1").unwrap();
        super::ip(cluster.node("n1").unwrap(), &format!("link del dev {tunnel}"));
        cluster.start_agent("n1").unwrap();
        expect_reach(&cluster, SOON);
    }
    await_that("n1 to find out", TRIAL, || times_told(&cluster, right) == 3);
    assert!(offloads(&cluster, "n1"));
}

#[test]
fn pain9_checksums_that_arrive_wrong_are_made_by_the_kernel() {
    wrong_checksums("checksums", Families::Both);
}

#[test]
fn pain9_checksums_that_arrive_wrong_over_ipv6_are_made_by_the_kernel() {
    wrong_checksums("checksums6", Families::V6);
}

/// Silence alone says nothing of the card.
#[test]
fn a_node_that_does_not_answer_leaves_checksums_to_the_card() {
    let talkative = Extra { flags: ["--log-level", "debug"].map(str::to_owned).into(), ..Extra::default() };
    let each = [("n1".to_owned(), talkative)].into();
    let mut cluster = up("silence", &Plan { nodes: 2, subnets: 2, each, ..Plan::default() });
    let rule = "table inet quiet { chain input { type filter hook input priority 0; udp dport 9 drop; }; }";
    cluster.node("n2").unwrap().sh(&["nft", rule]).unwrap();
    // It may have been silent at first, when it was not there yet.
    let told = |cluster: &Cluster| {
        cluster.agent("n1").unwrap().log().unwrap().matches("no reply to the test of checksums").count()
    };
    let before = told(&cluster);
    cluster.agent_mut("n1").unwrap().restart().unwrap();
    await_that("n1 to give up", TRIAL, || told(&cluster) > before);
    assert!(offloads(&cluster, ("n1", TUNNEL)));
}

/// What the kernel puts where a datagram's checksum belongs when it leaves the rest to a card: RFC 768's pseudo header, added up.
fn left_alone(from: IpAddr, to: IpAddr) -> u16 {
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
