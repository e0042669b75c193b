//! Packets that enter a tunnel without being sent by the peer that owns their source. Each test afterwards sends a similar legal
//! frame. If only that one arrives, the other ones were dropped and not merely malformed.

mod frame;

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;

use model::{NodeRecord, Object as _};
use testkit::{
    Agent, Cluster, DEADLINE, Extra, Families, Ns, Plan, TransportMode, inspect, udp_connects, udp_echo,
    uninterrupted, wait_until,
};

use super::{TUNNEL, ip};
use crate::common::{TIMEOUT, await_that, expect_reach, pod, up};
use crate::store::{StoreClient, node_key};
use frame::{Frame, PORT, VNI};

const TABLE: &str = "podwire-peers-podwire";

fn plan(underlay: Families) -> Plan {
    Plan { underlay, transport: TransportMode::Vxlan, ..Plan::default() }
}

/// The underlay address of a node.
fn address(cluster: &Cluster, node: &str) -> IpAddr {
    cluster.addresses(node).unwrap()[0]
}

/// The MAC of a node's tunnel devices, which it may not have.
fn published_tunnel_mac(cluster: &Cluster, node: &str) -> [u8; 6] {
    let records = StoreClient::of(cluster).all();
    NodeRecord::decode(records[&node_key(node)].as_bytes()).unwrap().tunnel_mac.octets()
}

/// The MAC of a node's tunnel devices.
fn tunnel_mac(node: &Ns) -> [u8; 6] {
    let is_tunnel = |link: &inspect::ListedLink| link.name.starts_with("pwvx");
    let link = inspect::links(node).unwrap().into_iter().find(is_tunnel).unwrap();
    let octets: Vec<u8> =
        link.mac.unwrap().split(':').map(|octet| u8::from_str_radix(octet, 16).unwrap()).collect();
    octets.try_into().unwrap()
}

fn send(from: &Ns, to: SocketAddr, bytes: &[u8]) {
    let any: SocketAddr = if to.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    send_from(from, any, to, bytes);
}

fn send_from(ns: &Ns, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
    ns.enter(|| UdpSocket::bind(from).unwrap().send_to(bytes, to)).unwrap().unwrap();
}

/// A process in pod p1 on n1 that receives handmade frames.
struct Target<'a> {
    cluster: &'a Cluster,
    socket: UdpSocket,
    address: SocketAddr,
    mac: [u8; 6],
    /// The MAC of n2's tunnel devices.
    sender: [u8; 6],
}

impl<'a> Target<'a> {
    fn new(cluster: &'a Cluster, address: IpAddr) -> Self {
        let socket = pod(cluster, "p1").pod.enter(|| UdpSocket::bind((address, 0))).unwrap().unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        let (bound, mac) = (socket.local_addr().unwrap(), tunnel_mac(cluster.node("n1").unwrap()));
        let sender = published_tunnel_mac(cluster, "n2");
        Self { cluster, socket, address: bound, mac, sender }
    }

    /// One for each address of the pod.
    fn both(cluster: &'a Cluster) -> Vec<Self> {
        pod(cluster, "p1").addresses.iter().map(|address| Self::new(cluster, *address)).collect()
    }

    /// The address of a pod in this target's family.
    fn peer(&self, name: &str) -> IpAddr {
        let attached = pod(self.cluster, name);
        attached
            .addresses
            .iter()
            .copied()
            .find(|address| address.is_ipv4() == self.address.is_ipv4())
            .unwrap()
    }

    fn frame(&self, from: IpAddr) -> Frame {
        let (mac, sender) = (self.mac, self.sender);
        Frame { vni: VNI, mac, sender, from, to: (self.address.ip(), self.address.port()), tag: &[] }
    }

    fn tunnel(&self) -> SocketAddr {
        (address(self.cluster, "n1"), PORT).into()
    }

    /// Sends a frame of a pod on n2, from n2.
    fn send_legal(&self, text: &str) {
        let frame = self.frame(self.peer("p2")).bytes(text);
        send(self.cluster.node("n2").unwrap(), self.tunnel(), &frame);
    }

    /// Waits until n1 has received everything that this host has sent so far.
    fn await_arrival(&self, of: &Ns) {
        let n1 = self.cluster.node("n1").unwrap();
        let echo = udp_echo(n1, (address(self.cluster, "n1"), 0).into()).unwrap();
        assert!(udp_connects(of, echo.address(), TIMEOUT).unwrap().is_some());
    }

    /// Expects exactly these texts before a legal frame that is sent now.
    #[track_caller]
    fn expect(&self, expected: &[&str]) {
        self.send_legal("last");
        let mut observed = Vec::new();
        while observed.last().is_none_or(|text| text != "last") {
            let mut bytes = [0; 100];
            let length = uninterrupted(|| self.socket.recv(&mut bytes))
                .unwrap_or_else(|error| panic!("after {observed:?}: {error}"));
            observed.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
        }
        assert_eq!(observed.split_last().unwrap().1, expected, "to {}", self.address);
    }
}

fn outside(family_of: IpAddr) -> IpAddr {
    if family_of.is_ipv4() { [203, 0, 113, 9].into() } else { "2001:db8:9::9".parse().unwrap() }
}

fn neighbours(node: &Ns) -> String {
    node.sh(&["ip", "neigh", "show", "nud", "all"]).unwrap()
}

#[test]
fn tunnels_accept_only_packets_from_the_owner_of_the_source() {
    for (label, underlay) in [("inject4", Families::V4), ("inject6", Families::V6)] {
        let cluster = up(label, &plan(underlay));
        cluster.pod("n1", "p4").unwrap();
        let [n1, n2] = ["n1", "n2"].map(|name| cluster.node(name).unwrap());
        let other_host = cluster.underlay();
        for target in Target::both(&cluster) {
            let [legal, third_node, local] = ["p2", "p3", "p4"].map(|name| target.peer(name));
            let tunnel = target.tunnel();
            target.expect(&[]);
            // A host that is no node.
            for from in [legal, outside(legal), local] {
                send(other_host, tunnel, &target.frame(from).bytes("other host"));
            }
            target.await_arrival(other_host);
            target.expect(&[]);
            let counted = n1.sh(&["nft", "list", "chain", "inet", TABLE, "receive"]).unwrap();
            assert!(!counted.contains("packets 0 "), "{counted}");
            // A node with sources of other nodes.
            for from in [third_node, local, outside(legal), address(&cluster, "n3"), address(&cluster, "n1")]
            {
                if from.is_ipv4() == legal.is_ipv4() {
                    send(n2, tunnel, &target.frame(from).bytes("spoofed"));
                }
            }
            target.expect(&[]);
            // Frames for other MACs, and of types that pods do not send.
            for mac in [[255; 6], [1, 0, 94, 0, 0, 1], [51, 51, 0, 0, 0, 1], [2, 0, 0, 0, 0, 0x67]] {
                send(n2, tunnel, &Frame { mac, ..target.frame(legal) }.bytes("other MAC"));
            }
            let tagged = Frame { tag: &[0x81, 0x00, 0, 7], ..target.frame(legal) };
            send(n2, tunnel, &tagged.bytes("tagged"));
            send(n2, tunnel, &Frame { vni: VNI + 1, ..target.frame(legal) }.bytes("another network"));
            target.expect(&[]);
            // The node's own addresses are legal sources, because processes of the node may be bound to them.
            let own = address(&cluster, "n2");
            if own.is_ipv4() == legal.is_ipv4() {
                send(n2, tunnel, &target.frame(own).bytes("node"));
                target.expect(&["node"]);
            }
        }
        // ARP requests from peers and other hosts: the sender is neither learnt nor answered.
        let four = pod(&cluster, "p1").addresses.iter().copied().find(IpAddr::is_ipv4).unwrap();
        let target = Target::new(&cluster, four);
        let before = neighbours(n1);
        for mac in [[255; 6], target.mac] {
            let frame = Frame { mac, ..target.frame(target.peer("p2")) };
            send(n2, target.tunnel(), &frame.arp());
            send(other_host, target.tunnel(), &frame.arp());
        }
        target.await_arrival(other_host);
        target.expect(&[]);
        let is_learnt = |line: &str| line.contains("02:00:00:00:00:66");
        assert!(!neighbours(n1).lines().any(is_learnt), "{before}\n{}", neighbours(n1));
        expect_reach(&cluster, TIMEOUT);
    }
}

/// Through their own node, through another node, and through a service.
#[test]
fn pods_cannot_send_to_tunnel_ports_of_nodes() {
    for (label, underlay, mode) in [
        ("podinject4", Families::V4, "routed"),
        ("podinject6", Families::V6, "routed"),
        ("podbridge4", Families::V4, "bridge"),
        ("podbridge6", Families::V6, "bridge"),
    ] {
        let all = Extra { flags: vec![format!("--network-mode={mode}")], ..Extra::default() };
        let mut cluster = up(label, &Plan { all, ..plan(underlay) });
        cluster.pod("n1", "p4").unwrap();
        let n2 = cluster.node("n2").unwrap();
        let (local, remote) = (pod(&cluster, "p4"), pod(&cluster, "p2"));
        let node = address(&cluster, "n1");
        let (family, service) = if node.is_ipv4() { ("ip", "10.96.0.10") } else { ("ip6", "fd96::10") };
        let rule =
            format!("{family} daddr {service} udp dport 53 dnat {family} to {}", SocketAddr::new(node, PORT));
        n2.sh(&[
            "nft",
            &format!(
                "table inet services {{ chain c {{ type nat hook prerouting priority -100; {rule}; }}; }}"
            ),
        ])
        .unwrap();
        let service = SocketAddr::new(service.parse().unwrap(), 53);
        for target in Target::both(&cluster) {
            for from in ["p2", "p4", "p3"] {
                let frame = target.frame(target.peer(from)).bytes("pod");
                send(&remote.pod, target.tunnel(), &frame);
                send(&remote.pod, service, &frame);
                send(&local.pod, target.tunnel(), &frame);
                for gateway in ["n1", "n2"].map(|node| gateway(&cluster, node, target.address.is_ipv4())) {
                    send(&local.pod, (gateway, PORT).into(), &frame);
                    send(&remote.pod, (gateway, PORT).into(), &frame);
                }
            }
            target.await_arrival(&remote.pod);
            target.await_arrival(&local.pod);
            target.expect(&[]);
        }
        // Without the tables, the same frames arrive: they are well-formed, and the service works.
        for node in ["n1", "n2"] {
            cluster.kill_agent(node).unwrap();
            cluster.node(node).unwrap().sh(&["nft", "delete", "table", "inet", TABLE]).unwrap();
        }
        for target in Target::both(&cluster) {
            let frame = target.frame(target.peer("p2"));
            send(&remote.pod, target.tunnel(), &frame.bytes("direct"));
            target.await_arrival(&remote.pod);
            send(&remote.pod, service, &frame.bytes("service"));
            target.await_arrival(&remote.pod);
            target.expect(&["direct", "service"]);
        }
    }
}

/// The address of a node's bridge.
fn gateway(cluster: &Cluster, node: &str, is_v4: bool) -> IpAddr {
    let name = if node == "n1" { "p1" } else { "p2" };
    let attached = pod(cluster, name);
    let family = if is_v4 { inspect::Family::V4 } else { inspect::Family::V6 };
    let routes = inspect::routes(&attached.pod, family).unwrap();
    routes.iter().find_map(|route| route.gateway).unwrap()
}

/// Another node opens a connection from its tunnel port, and NAT changes both ends. The destination of a reply is visible only
/// after all NAT rules.
#[test]
fn replies_of_pods_cannot_enter_a_tunnel() {
    for (label, underlay) in [("reply4", Families::V4), ("reply6", Families::V6)] {
        let cluster = up(label, &plan(underlay));
        let (n1, n2) = (address(&cluster, "n1"), address(&cluster, "n2"));
        let family = if n2.is_ipv4() { "ip" } else { "ip6" };
        let pod_address = |name: &str| {
            let addresses = pod(&cluster, name).addresses.clone();
            addresses.into_iter().find(|address| address.is_ipv4() == n2.is_ipv4()).unwrap()
        };
        let server = SocketAddr::new(pod_address("p2"), 5000);
        let service = format!(
            "table inet services {{
                chain a {{ type nat hook prerouting priority -110; {family} daddr {n2} udp dport 30000 dnat {family} to {server}; }}
                chain b {{ type nat hook postrouting priority 90; {family} daddr {} udp dport 5000 masquerade; }}
            }}",
            server.ip()
        );
        cluster.node("n2").unwrap().sh(&["nft", &service]).unwrap();
        let bind = |name: &str, port: u16| {
            let socket = pod(&cluster, name)
                .pod
                .enter(|| UdpSocket::bind((pod_address(name), port)))
                .unwrap()
                .unwrap();
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            socket
        };
        // n1 masquerades the packet and keeps its source port.
        let (client, socket) = (bind("p1", PORT), bind("p2", server.port()));
        client.send_to(b"hello", SocketAddr::new(n2, 30000)).unwrap();
        let mut bytes = [0; 200];
        let (_, from) = uninterrupted(|| socket.recv_from(&mut bytes)).unwrap();
        assert_ne!(from.ip(), n1, "the service must masquerade");
        let frame = Frame {
            vni: VNI,
            mac: [2; 6],
            sender: [2; 6],
            from: pod_address("p2"),
            to: (pod_address("p1"), 9),
            tag: &[],
        };
        for text in [&b"before"[..], &frame.bytes("injected"), b"after"] {
            socket.send_to(text, from).unwrap();
        }
        for expected in ["before", "after"] {
            let length = uninterrupted(|| client.recv(&mut bytes)).unwrap();
            assert_eq!(String::from_utf8_lossy(&bytes[..length]), expected);
        }
    }
}

fn has_table(node: &Ns) -> bool {
    node.sh(&["nft", "list", "tables"]).unwrap().contains(TABLE)
}

#[test]
fn a_new_address_of_a_peer_replaces_its_old_one() {
    for (label, underlay) in [("moved4", Families::V4), ("moved6", Families::V6)] {
        let cluster = up(label, &plan(underlay));
        let [n1, n2, n3] = ["n1", "n2", "n3"].map(|name| cluster.node(name).unwrap());
        let old = address(&cluster, "n2");
        let (length, full, nodad, new) = match old {
            IpAddr::V4(_) => (24, 32, "", "10.199.1.22"),
            IpAddr::V6(_) => (64, 128, " nodad", "fd99:1::22"),
        };
        ip(n2, &format!("addr add {new}/{length} dev eth0{nodad}"));
        if old.is_ipv4() {
            super::set_sysctl(n2, "ipv4/conf/eth0/promote_secondaries", "1");
        }
        ip(n2, &format!("addr del {old}/{length} dev eth0"));
        let listed = || n1.sh(&["nft", "list", "table", "inet", TABLE]).unwrap();
        await_that("n1 to know only the new address", TIMEOUT, || {
            let listed = listed();
            listed.contains(&format!("{new} . ")) && !listed.contains(&format!("{old} . "))
        });
        expect_reach(&cluster, TIMEOUT);
        // Another host with the old address is not n2.
        ip(n3, &format!("addr add {old}/{full} dev eth0{nodad}"));
        for target in Target::both(&cluster) {
            let frame = target.frame(target.peer("p2")).bytes("old");
            send_from(n3, (old, 0).into(), target.tunnel(), &frame);
            target.await_arrival(n3);
            target.expect(&[]);
        }
    }
}

#[test]
fn flushed_rules_are_restored_for_all_peers() {
    let cluster = up("flushed", &plan(Families::V4));
    let n1 = cluster.node("n1").unwrap();
    // Without the counter and the digests, which the kernel lists in any order.
    let listed = || {
        let text = n1.sh(&["nft", "-s", "list", "table", "inet", TABLE]).ok()?;
        let (head, tail) = text.split_once("\tmap applied {")?;
        let (_digests, tail) = tail.split_once("\n\t}\n")?;
        Some(format!("{head}{tail}"))
    };
    let before = listed();
    assert!(before.is_some());
    for fault in [
        vec!["nft", "flush", "ruleset"],
        vec!["nft", "delete", "table", "inet", TABLE],
        vec!["nft", "flush", "chain", "inet", TABLE, "receive"],
        vec!["nft", "flush", "set", "inet", TABLE, "over4_block4_24"],
        vec!["nft", "insert", "rule", "inet", TABLE, "receive", "accept"],
    ] {
        n1.sh(&fault).unwrap();
        await_that(&format!("the rules to be restored after {fault:?}"), TIMEOUT, || {
            // nft fails while the table is missing.
            listed() == before
        });
        for target in Target::both(&cluster) {
            let other_host = cluster.underlay();
            send(other_host, target.tunnel(), &target.frame(target.peer("p2")).bytes("other host"));
            target.await_arrival(other_host);
            target.expect(&[]);
        }
    }
    expect_reach(&cluster, TIMEOUT);
}

#[test]
fn a_node_without_tunnel_and_peers_has_no_table() {
    let cluster = up("notunnel", &Plan { nodes: 1, transport: TransportMode::Direct, ..Plan::default() });
    let n1 = cluster.node("n1").unwrap();
    assert!(inspect::link(n1, TUNNEL).is_err() && !has_table(n1));
}

/// A node keeps its device when its transport becomes direct, but peers do not know of it.
#[test]
fn pods_of_nodes_without_tunnels_cannot_send_to_tunnel_ports() {
    for (label, underlay, tunnel) in [("bare4", Families::V4, "pwvx4"), ("bare6", Families::V6, "pwvx6")] {
        // Without tunnels, pods have the families of the underlay.
        let is_underlay_family = |pods: &ipnet::IpNet| pods.addr().is_ipv4() == (underlay == Families::V4);
        let pods = Plan::default().pods.into_iter().filter(is_underlay_family).collect();
        let mut cluster = up(label, &Plan { nodes: 2, pods, ..plan(underlay) });
        for node in ["n1", "n2"] {
            cluster.kill_agent(node).unwrap();
            cluster.agent_mut(node).unwrap().set_flag("--network-transport", "direct").unwrap();
        }
        cluster.start_agent("n1").unwrap();
        // A node keeps a tunnel for every peer whose record allows sending through one.
        let is_direct = |record: &String| record.contains(r#""transport":"direct""#);
        let records = StoreClient::of(&cluster);
        wait_until("the record of n1", DEADLINE, || {
            Ok(records.all().get(&node_key("n1")).is_some_and(is_direct))
        })
        .unwrap();
        let n2 = cluster.node("n2").unwrap();
        ip(n2, &format!("link del {tunnel}"));
        n2.sh(&["nft", "delete", "table", "inet", TABLE]).unwrap();
        // A saved record of n1 could still allow sending through a tunnel.
        n2.sh(&["rm", "-f", n2.dir().join("lib/podwire/peers.json").to_str().unwrap()]).unwrap();
        cluster.start_agent("n2").unwrap();
        expect_reach(&cluster, TIMEOUT);
        let [n1, n2] = ["n1", "n2"].map(|node| cluster.node(node).unwrap());
        assert!(inspect::link(n1, tunnel).is_ok() && inspect::link(n2, tunnel).is_err());
        let remote = pod(&cluster, "p2");
        for target in Target::both(&cluster) {
            send(&remote.pod, target.tunnel(), &target.frame(target.peer("p2")).bytes("pod"));
            target.await_arrival(&remote.pod);
            target.expect(&[]);
        }
    }
}

/// The name of the underlay's link is the operator's choice.
#[test]
fn an_underlay_link_named_like_pod_links_carries_tunnels() {
    let mut cluster = up("named", &plan(Families::V4));
    cluster.kill_agent("n1").unwrap();
    let n1 = cluster.node("n1").unwrap();
    let routes = n1.sh(&["ip", "route", "show", "default"]).unwrap();
    for line in ["link set eth0 down", "link set eth0 name pw0", "link set pw0 up"] {
        ip(n1, line);
    }
    for route in routes.lines() {
        ip(n1, &format!("route replace {}", route.replace("eth0", "pw0").trim()));
    }
    cluster.start_agent("n1").unwrap();
    expect_reach(&cluster, TIMEOUT);
    // The source check stops a pod that uses the address of a peer.
    cluster.pod("n1", "p4").unwrap();
    let (local, spoofed) = (pod(&cluster, "p4"), address(&cluster, "n2"));
    ip(&local.pod, &format!("addr add {spoofed}/32 dev eth0"));
    for target in Target::both(&cluster) {
        let frame = target.frame(target.peer("p2")).bytes("pod");
        send_from(&local.pod, (spoofed, 0).into(), target.tunnel(), &frame);
        target.await_arrival(&local.pod);
        target.expect(&[]);
    }
}

/// An `nft` for one node's agent that fails while the file `on` exists, and counts the failures.
struct FailingNft {
    dir: std::path::PathBuf,
}

impl FailingNft {
    fn new(cluster: &mut Cluster, node: &str) -> Self {
        let dir = cluster.node(node).unwrap().dir().join("failing");
        fs::create_dir_all(&dir).unwrap();
        let (program, path) = (dir.join("nft"), dir.display());
        let script =
            format!("#!/bin/sh\n[ -e {path}/on ] || exec /usr/sbin/nft \"$@\"\necho >>{path}/on\nexit 1\n");
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{path}:{}", std::env::var("PATH").unwrap());
        cluster.agent_mut(node).unwrap().set_env(&[("PATH".to_owned(), path)]);
        Self { dir }
    }

    fn start(&self) {
        fs::write(self.dir.join("on"), "").unwrap();
    }

    fn end(&self) {
        fs::remove_file(self.dir.join("on")).unwrap();
    }

    /// Waits for a second failure. The agent has then handled the first one.
    fn await_two(&self) {
        let count = || fs::read(self.dir.join("on")).unwrap().len();
        let before = count();
        await_that("two failures of nft", TIMEOUT, || count() >= before + 2);
    }
}

#[test]
fn no_tunnel_is_created_while_nft_fails() {
    let mut cluster = up("unguarded", &Plan { nodes: 2, ..plan(Families::V4) });
    cluster.kill_agent("n1").unwrap();
    let failing = FailingNft::new(&mut cluster, "n1");
    cluster.start_agent("n1").unwrap();
    let n1 = cluster.node("n1").unwrap();
    let tunnel_mtu = |node: &Ns| inspect::link(node, TUNNEL).map(|link| link.mtu);
    let before = tunnel_mtu(n1).unwrap();
    // A removed tunnel is not created again.
    failing.start();
    n1.sh(&["nft", "delete", "table", "inet", TABLE]).unwrap();
    ip(n1, &format!("link del {TUNNEL}"));
    failing.await_two();
    assert!(tunnel_mtu(n1).is_err(), "{:?}", tunnel_mtu(n1));
    failing.end();
    expect_reach(&cluster, TIMEOUT);
    // An existing tunnel is adjusted, also by an agent that has just started.
    cluster.kill_agent("n1").unwrap();
    failing.start();
    let n1 = cluster.node("n1").unwrap();
    n1.sh(&["nft", "delete", "table", "inet", TABLE]).unwrap();
    ip(n1, &format!("link set {TUNNEL} mtu 1300"));
    cluster.agent_mut("n1").unwrap().launch().unwrap();
    let n1 = cluster.node("n1").unwrap();
    await_that("the MTU to be repaired", TIMEOUT, || tunnel_mtu(n1).is_ok_and(|mtu| mtu == before));
    failing.end();
    cluster.agent_mut("n1").unwrap().wait_ready().unwrap();
    expect_reach(&cluster, TIMEOUT);
}

/// The store is unreachable, too.
#[test]
fn an_agent_started_without_underlay_keeps_accepting_peers() {
    for (label, underlay) in [("down4", Families::V4), ("down6", Families::V6)] {
        let mut cluster = up(label, &Plan { nodes: 2, ..plan(underlay) });
        cluster.kill_agent("n1").unwrap();
        let n1 = cluster.node("n1").unwrap();
        let listed = |node: &Ns| node.sh(&["nft", "-s", "list", "table", "inet", TABLE]).unwrap();
        let before = listed(n1);
        ip(n1, "link set eth0 down");
        n1.sh(&["nft", "flush", "chain", "inet", TABLE, "receive"]).unwrap();
        cluster.agent_mut("n1").unwrap().launch().unwrap();
        let n1 = cluster.node("n1").unwrap();
        await_that("the table to be repaired", TIMEOUT, || listed(n1).contains("@th,128,48 !="));
        assert_eq!(listed(n1), before);
    }
}

/// Both networks use the same UDP port with different VNIs.
#[test]
fn two_networks_on_one_port_keep_their_own_peers() {
    let cluster = up("twonets", &Plan { nodes: 2, ..plan(Families::V4) });
    let endpoints = cluster.etcd.endpoints().join(",");
    let red = ["n1", "n2"].map(|name| {
        let node = cluster.node(name).unwrap();
        let flags = [
            "--install=false",
            "--node",
            name,
            "--store",
            "etcd",
            "--etcd-endpoints",
            &endpoints,
            "--etcd-prefix",
            "/red",
            "--network-name=red",
            "--network-bridge=red0",
            "--network-tunnel=red",
            "--network-vni=4078",
            "--network-subnet=10.43.0.0/16",
            "--network-margin=8",
            "--network-transport=vxlan",
        ];
        let mut agent = Agent::in_dir(node, &node.dir().join("red"), &flags).unwrap();
        agent.launch().unwrap();
        agent.wait_ready().unwrap();
        agent
    });
    let n1 = cluster.node("n1").unwrap();
    let listed = |table: &str| n1.sh(&["nft", "list", "table", "inet", table]);
    let n2_address = address(&cluster, "n2");
    await_that("n1 to know n2 in both networks", TIMEOUT, || {
        ["podwire-peers-red", TABLE]
            .iter()
            .all(|table| listed(table).is_ok_and(|text| text.contains(&format!("{n2_address} . "))))
    });
    expect_reach(&cluster, TIMEOUT);
    // A node of one network must not send sources of another network.
    let target = Target::new(&cluster, pod(&cluster, "p1").addresses[0]);
    for from in ["10.43.0.9", "10.43.1.9"] {
        send(cluster.node("n2").unwrap(), target.tunnel(), &target.frame(from.parse().unwrap()).bytes("red"));
    }
    target.expect(&[]);
    // Restoring one table does not change the other one.
    let other_table = listed(TABLE).unwrap();
    n1.sh(&["nft", "delete", "table", "inet", "podwire-peers-red"]).unwrap();
    await_that("the table of network red to be restored", TIMEOUT, || listed("podwire-peers-red").is_ok());
    assert_eq!(listed(TABLE).unwrap(), other_table);
    drop(red);
}
