//! Packets that enter a tunnel without being sent by the peer that owns their source. Each test sends a legal frame of the
//! same make afterwards: that it arrives, and the others do not, shows that they were dropped and not merely wrong.

mod frame;

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;

use testkit::{
    Agent, Cluster, DEADLINE, Extra, Families, Ns, Plan, TransportMode, inspect, udp_connects, udp_echo,
    uninterrupted, wait_until,
};

use super::{TUNNEL, ip};
use crate::common::{SOON, TIMEOUT, await_that, expect_reach, pod, up};
use crate::store::{Desk, node_key};
use frame::{Frame, PORT, VNI};

const TABLE: &str = "podwire-peers-podwire";

fn plan(underlay: Families) -> Plan {
    Plan { underlay, transport: TransportMode::Vxlan, ..Plan::default() }
}

/// Of a node, on the underlay.
fn address(cluster: &Cluster, node: &str) -> IpAddr {
    cluster.addresses(node).unwrap()[0]
}

/// Of the tunnel devices of a node.
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

/// A process in pod p1 on n1 that is sent frames by hand.
struct Target<'a> {
    cluster: &'a Cluster,
    socket: UdpSocket,
    at: SocketAddr,
    mac: [u8; 6],
}

impl<'a> Target<'a> {
    fn new(cluster: &'a Cluster, address: IpAddr) -> Self {
        let socket = pod(cluster, "p1").pod.enter(|| UdpSocket::bind((address, 0))).unwrap().unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        let (at, mac) = (socket.local_addr().unwrap(), tunnel_mac(cluster.node("n1").unwrap()));
        Self { cluster, socket, at, mac }
    }

    /// One for each address of the pod.
    fn both(cluster: &'a Cluster) -> Vec<Self> {
        pod(cluster, "p1").addresses.iter().map(|address| Self::new(cluster, *address)).collect()
    }

    /// The address of a pod in this target's family.
    fn peer(&self, name: &str) -> IpAddr {
        let wired = pod(self.cluster, name);
        wired.addresses.iter().copied().find(|address| address.is_ipv4() == self.at.is_ipv4()).unwrap()
    }

    fn frame(&self, from: IpAddr) -> Frame {
        Frame { vni: VNI, mac: self.mac, from, to: (self.at.ip(), self.at.port()), tag: &[] }
    }

    fn tunnel(&self) -> SocketAddr {
        (address(self.cluster, "n1"), PORT).into()
    }

    /// From a pod of n2, as n2 sends it.
    fn send_legal(&self, text: &str) {
        let frame = self.frame(self.peer("p2")).bytes(text);
        send(self.cluster.node("n2").unwrap(), self.tunnel(), &frame);
    }

    /// n1 has taken everything that this machine has sent it until now.
    fn await_arrival(&self, of: &Ns) {
        let n1 = self.cluster.node("n1").unwrap();
        let echo = udp_echo(n1, (address(self.cluster, "n1"), 0).into()).unwrap();
        assert!(udp_connects(of, echo.address(), TIMEOUT).unwrap().is_some());
    }

    /// Everything that has come, up to a legal frame that is sent now.
    #[track_caller]
    fn expect(&self, wanted: &[&str]) {
        self.send_legal("last");
        let mut observed = Vec::new();
        while observed.last().is_none_or(|text| text != "last") {
            let mut bytes = [0; 100];
            let length = uninterrupted(|| self.socket.recv(&mut bytes))
                .unwrap_or_else(|error| panic!("after {observed:?}: {error}"));
            observed.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
        }
        assert_eq!(observed.split_last().unwrap().1, wanted, "to {}", self.at);
    }
}

fn outside(like: IpAddr) -> IpAddr {
    if like.is_ipv4() { [203, 0, 113, 9].into() } else { "2001:db8:9::9".parse().unwrap() }
}

fn neighbours(node: &Ns) -> String {
    node.sh(&["ip", "neigh", "show", "nud", "all"]).unwrap()
}

#[test]
fn tunnels_take_only_what_the_owner_of_the_source_sends() {
    for (label, underlay) in [("inject4", Families::V4), ("inject6", Families::V6)] {
        let cluster = up(label, &plan(underlay));
        cluster.pod("n1", "p4").unwrap();
        let [n1, n2] = ["n1", "n2"].map(|name| cluster.node(name).unwrap());
        let stranger = cluster.underlay();
        for target in Target::both(&cluster) {
            let [legal, others, local] = ["p2", "p3", "p4"].map(|name| target.peer(name));
            let at = target.tunnel();
            target.expect(&[]);
            // A machine that is no node.
            for from in [legal, outside(legal), local] {
                send(stranger, at, &target.frame(from).bytes("stranger"));
            }
            target.await_arrival(stranger);
            target.expect(&[]);
            let counted = n1.sh(&["nft", "list", "chain", "inet", TABLE, "receive"]).unwrap();
            assert!(!counted.contains("packets 0 "), "{counted}");
            // A node with sources that are not its own.
            for from in [others, local, outside(legal), address(&cluster, "n3"), address(&cluster, "n1")] {
                if from.is_ipv4() == legal.is_ipv4() {
                    send(n2, at, &target.frame(from).bytes("not its own"));
                }
            }
            target.expect(&[]);
            // Frames for others than this node, and of kinds that no pod sends.
            for mac in [[255; 6], [1, 0, 94, 0, 0, 1], [51, 51, 0, 0, 0, 1], [2, 0, 0, 0, 0, 0x67]] {
                send(n2, at, &Frame { mac, ..target.frame(legal) }.bytes("for others"));
            }
            let tagged = Frame { tag: &[0x81, 0x00, 0, 7], ..target.frame(legal) };
            send(n2, at, &tagged.bytes("tagged"));
            send(n2, at, &Frame { vni: VNI + 1, ..target.frame(legal) }.bytes("another network"));
            target.expect(&[]);
            // Own addresses of the sending node are not a pod's, and a process may be bound to them.
            let own = address(&cluster, "n2");
            if own.is_ipv4() == legal.is_ipv4() {
                send(n2, at, &target.frame(own).bytes("node"));
                target.expect(&["node"]);
            }
        }
        // ARP requests, from peers and from other machines: the sender is neither learnt nor answered.
        let four = pod(&cluster, "p1").addresses.iter().copied().find(IpAddr::is_ipv4).unwrap();
        let target = Target::new(&cluster, four);
        let before = neighbours(n1);
        for mac in [[255; 6], target.mac] {
            let frame = Frame { mac, ..target.frame(target.peer("p2")) };
            send(n2, target.tunnel(), &frame.arp());
            send(stranger, target.tunnel(), &frame.arp());
        }
        target.await_arrival(stranger);
        target.expect(&[]);
        let is_learnt = |line: &str| line.contains("02:00:00:00:00:66");
        assert!(!neighbours(n1).lines().any(is_learnt), "{before}\n{}", neighbours(n1));
        expect_reach(&cluster, SOON);
    }
}

/// Through its own node, through another one, and through a service that leads there.
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
        let (near, far) = (pod(&cluster, "p4"), pod(&cluster, "p2"));
        let node = address(&cluster, "n1");
        let (word, service) = if node.is_ipv4() { ("ip", "10.96.0.10") } else { ("ip6", "fd96::10") };
        let rule =
            format!("{word} daddr {service} udp dport 53 dnat {word} to {}", SocketAddr::new(node, PORT));
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
                send(&far.pod, target.tunnel(), &frame);
                send(&far.pod, service, &frame);
                send(&near.pod, target.tunnel(), &frame);
                for gateway in ["n1", "n2"].map(|node| gateway(&cluster, node, target.at.is_ipv4())) {
                    send(&near.pod, (gateway, PORT).into(), &frame);
                    send(&far.pod, (gateway, PORT).into(), &frame);
                }
            }
            target.await_arrival(&far.pod);
            target.await_arrival(&near.pod);
            target.expect(&[]);
        }
        // Without the tables the same frames arrive: they are well made, and the service works.
        for node in ["n1", "n2"] {
            cluster.kill_agent(node).unwrap();
            cluster.node(node).unwrap().sh(&["nft", "delete", "table", "inet", TABLE]).unwrap();
        }
        for target in Target::both(&cluster) {
            let frame = target.frame(target.peer("p2"));
            send(&far.pod, target.tunnel(), &frame.bytes("direct"));
            target.await_arrival(&far.pod);
            send(&far.pod, service, &frame.bytes("service"));
            target.await_arrival(&far.pod);
            target.expect(&["direct", "service"]);
        }
    }
}

/// What the bridge of a node carries.
fn gateway(cluster: &Cluster, node: &str, is_v4: bool) -> IpAddr {
    let name = if node == "n1" { "p1" } else { "p2" };
    let wired = pod(cluster, name);
    let family = if is_v4 { inspect::Family::V4 } else { inspect::Family::V6 };
    let routes = inspect::routes(&wired.pod, family).unwrap();
    routes.iter().find_map(|route| route.gateway).unwrap()
}

/// A connection that another node opened from its tunnel port, with both of its ends changed on the way: only behind all of
/// that a reply shows where it goes.
#[test]
fn replies_of_pods_cannot_become_packets_of_a_tunnel() {
    for (label, underlay) in [("reply4", Families::V4), ("reply6", Families::V6)] {
        let cluster = up(label, &plan(underlay));
        let (n1, n2) = (address(&cluster, "n1"), address(&cluster, "n2"));
        let word = if n2.is_ipv4() { "ip" } else { "ip6" };
        let own = |name: &str| {
            let addresses = pod(&cluster, name).addresses.clone();
            addresses.into_iter().find(|address| address.is_ipv4() == n2.is_ipv4()).unwrap()
        };
        let server = SocketAddr::new(own("p2"), 5000);
        let service = format!(
            "table inet services {{
                chain a {{ type nat hook prerouting priority -110; {word} daddr {n2} udp dport 30000 dnat {word} to {server}; }}
                chain b {{ type nat hook postrouting priority 90; {word} daddr {} udp dport 5000 masquerade; }}
            }}",
            server.ip()
        );
        cluster.node("n2").unwrap().sh(&["nft", &service]).unwrap();
        let bind = |name: &str, port: u16| {
            let socket =
                pod(&cluster, name).pod.enter(|| UdpSocket::bind((own(name), port))).unwrap().unwrap();
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            socket
        };
        // n1 gives its own address to what the pod sends, and leaves the port.
        let (client, socket) = (bind("p1", PORT), bind("p2", server.port()));
        client.send_to(b"hello", SocketAddr::new(n2, 30000)).unwrap();
        let mut bytes = [0; 200];
        let (_, from) = uninterrupted(|| socket.recv_from(&mut bytes)).unwrap();
        assert_ne!(from.ip(), n1, "the service changes sources");
        let frame = Frame { vni: VNI, mac: [2; 6], from: own("p2"), to: (own("p1"), 9), tag: &[] };
        for text in [&b"before"[..], &frame.bytes("injected"), b"after"] {
            socket.send_to(text, from).unwrap();
        }
        for wanted in ["before", "after"] {
            let length = uninterrupted(|| client.recv(&mut bytes)).unwrap();
            assert_eq!(String::from_utf8_lossy(&bytes[..length]), wanted);
        }
    }
}

fn has_table(node: &Ns) -> bool {
    node.sh(&["nft", "list", "tables"]).unwrap().contains(TABLE)
}

#[test]
fn a_peers_new_address_is_accepted_and_its_old_one_closed() {
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
        await_that("n1 to know only the new address", SOON, || {
            let listed = listed();
            listed.contains(&format!("{new} . ")) && !listed.contains(&format!("{old} . "))
        });
        expect_reach(&cluster, SOON);
        // Another machine that gets the old address is not n2.
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
fn flushed_rules_come_back_with_all_peers() {
    let cluster = up("flushed", &plan(Families::V4));
    let n1 = cluster.node("n1").unwrap();
    // Without the counter, and without the digests, which the kernel lists in no particular order.
    let listed = || {
        let text = n1.sh(&["nft", "-s", "list", "table", "inet", TABLE]).ok()?;
        let (head, rest) = text.split_once("\tmap applied {")?;
        let (_digests, rest) = rest.split_once("\n\t}\n")?;
        Some(format!("{head}{rest}"))
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
        await_that(&format!("all to be back after {fault:?}"), SOON, || {
            // While it is missing, nft cannot list it.
            listed() == before
        });
        for target in Target::both(&cluster) {
            let stranger = cluster.underlay();
            send(stranger, target.tunnel(), &target.frame(target.peer("p2")).bytes("stranger"));
            target.await_arrival(stranger);
            target.expect(&[]);
        }
    }
    expect_reach(&cluster, SOON);
}

#[test]
fn a_node_without_tunnel_and_peers_has_no_table() {
    let cluster = up("notunnel", &Plan { nodes: 1, transport: TransportMode::Direct, ..Plan::default() });
    let n1 = cluster.node("n1").unwrap();
    assert!(inspect::link(n1, TUNNEL).is_err() && !has_table(n1));
}

/// A node keeps its device when its transport becomes direct, and others do not know of it.
#[test]
fn pods_of_nodes_without_tunnels_cannot_send_to_tunnel_ports() {
    for (label, underlay, tunnel) in [("bare4", Families::V4, "pwvx4"), ("bare6", Families::V6, "pwvx6")] {
        // Without tunnels, pods have the families of the underlay.
        let is_alike = |pods: &ipnet::IpNet| pods.addr().is_ipv4() == (underlay == Families::V4);
        let pods = Plan::default().pods.into_iter().filter(is_alike).collect();
        let mut cluster = up(label, &Plan { nodes: 2, pods, ..plan(underlay) });
        for node in ["n1", "n2"] {
            cluster.kill_agent(node).unwrap();
            cluster.agent_mut(node).unwrap().set_flag("--network-transport", "direct").unwrap();
        }
        cluster.start_agent("n1").unwrap();
        // A node keeps a tunnel for every peer whose record still says that it may send through one.
        let is_direct = |record: &String| record.contains(r#""transport":"direct""#);
        let records = Desk::of(&cluster);
        wait_until("the record of n1", DEADLINE, || {
            Ok(records.all().get(&node_key("n1")).is_some_and(is_direct))
        })
        .unwrap();
        let n2 = cluster.node("n2").unwrap();
        ip(n2, &format!("link del {tunnel}"));
        n2.sh(&["nft", "delete", "table", "inet", TABLE]).unwrap();
        // The record of n1 on its disk, if there is one, says that n1 may send through a tunnel.
        n2.sh(&["rm", "-f", n2.dir().join("lib/podwire/peers.json").to_str().unwrap()]).unwrap();
        cluster.start_agent("n2").unwrap();
        expect_reach(&cluster, SOON);
        let [n1, n2] = ["n1", "n2"].map(|node| cluster.node(node).unwrap());
        assert!(inspect::link(n1, tunnel).is_ok() && inspect::link(n2, tunnel).is_err());
        let far = pod(&cluster, "p2");
        for target in Target::both(&cluster) {
            send(&far.pod, target.tunnel(), &target.frame(target.peer("p2")).bytes("pod"));
            target.await_arrival(&far.pod);
            target.expect(&[]);
        }
    }
}

/// The name of the underlay's link is the machine's choice.
#[test]
fn an_underlay_named_like_pod_links_carries_tunnels() {
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
    expect_reach(&cluster, SOON);
    // A pod that takes the address of a peer is stopped by the check of its sources.
    cluster.pod("n1", "p4").unwrap();
    let (near, taken) = (pod(&cluster, "p4"), address(&cluster, "n2"));
    ip(&near.pod, &format!("addr add {taken}/32 dev eth0"));
    for target in Target::both(&cluster) {
        let frame = target.frame(target.peer("p2")).bytes("pod");
        send_from(&near.pod, (taken, 0).into(), target.tunnel(), &frame);
        target.await_arrival(&near.pod);
        target.expect(&[]);
    }
}

/// An `nft` for one node's agent that fails while a file is there, and counts how often it does.
struct Failing {
    dir: std::path::PathBuf,
}

impl Failing {
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

    fn begin(&self) {
        fs::write(self.dir.join("on"), "").unwrap();
    }

    fn end(&self) {
        fs::remove_file(self.dir.join("on")).unwrap();
    }

    /// Everything that the agent does about the first failure is done when there is another.
    fn await_two(&self) {
        let count = || fs::read(self.dir.join("on")).unwrap().len();
        let before = count();
        await_that("two failures of nft", TIMEOUT, || count() >= before + 2);
    }
}

#[test]
fn no_tunnel_is_made_while_the_firewall_fails() {
    let mut cluster = up("unguarded", &Plan { nodes: 2, ..plan(Families::V4) });
    cluster.kill_agent("n1").unwrap();
    let failing = Failing::new(&mut cluster, "n1");
    cluster.start_agent("n1").unwrap();
    let n1 = cluster.node("n1").unwrap();
    let size = |node: &Ns| inspect::link(node, TUNNEL).map(|link| link.mtu);
    let before = size(n1).unwrap();
    // One that is there is known to the agent.
    failing.begin();
    n1.sh(&["nft", "delete", "table", "inet", TABLE]).unwrap();
    ip(n1, &format!("link del {TUNNEL}"));
    failing.await_two();
    assert!(size(n1).is_err(), "{:?}", size(n1));
    failing.end();
    expect_reach(&cluster, SOON);
    // One that is there is adjusted, also by an agent that has just started.
    cluster.kill_agent("n1").unwrap();
    failing.begin();
    let n1 = cluster.node("n1").unwrap();
    n1.sh(&["nft", "delete", "table", "inet", TABLE]).unwrap();
    ip(n1, &format!("link set {TUNNEL} mtu 1300"));
    cluster.agent_mut("n1").unwrap().launch().unwrap();
    let n1 = cluster.node("n1").unwrap();
    await_that("the MTU to be right", SOON, || size(n1).is_ok_and(|mtu| mtu == before));
    failing.end();
    cluster.agent_mut("n1").unwrap().wait_ready().unwrap();
    expect_reach(&cluster, SOON);
}

/// The store cannot be reached then, either.
#[test]
fn an_agent_that_starts_without_underlay_keeps_accepting_peers() {
    for (label, underlay) in [("away4", Families::V4), ("away6", Families::V6)] {
        let mut cluster = up(label, &Plan { nodes: 2, ..plan(underlay) });
        cluster.kill_agent("n1").unwrap();
        let n1 = cluster.node("n1").unwrap();
        let listed = |node: &Ns| node.sh(&["nft", "-s", "list", "table", "inet", TABLE]).unwrap();
        let before = listed(n1);
        ip(n1, "link set eth0 down");
        n1.sh(&["nft", "flush", "chain", "inet", TABLE, "receive"]).unwrap();
        cluster.agent_mut("n1").unwrap().launch().unwrap();
        let n1 = cluster.node("n1").unwrap();
        await_that("the table to be repaired", SOON, || listed(n1).contains("@th,128,48 !="));
        assert_eq!(listed(n1), before);
    }
}

/// Both networks use one UDP port; their VNIs differ.
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
    let other = address(&cluster, "n2");
    await_that("n1 to know n2 in both networks", TIMEOUT, || {
        ["podwire-peers-red", TABLE]
            .iter()
            .all(|table| listed(table).is_ok_and(|text| text.contains(&format!("{other} . "))))
    });
    expect_reach(&cluster, SOON);
    // A network's node may not send another network's sources.
    let target = Target::new(&cluster, pod(&cluster, "p1").addresses[0]);
    for from in ["10.43.0.9", "10.43.1.9"] {
        send(cluster.node("n2").unwrap(), target.tunnel(), &target.frame(from.parse().unwrap()).bytes("red"));
    }
    target.expect(&[]);
    // One that goes leaves the other's.
    let blue = listed(TABLE).unwrap();
    n1.sh(&["nft", "delete", "table", "inet", "podwire-peers-red"]).unwrap();
    await_that("red's to be back", SOON, || listed("podwire-peers-red").is_ok());
    assert_eq!(listed(TABLE).unwrap(), blue);
    drop(red);
}
