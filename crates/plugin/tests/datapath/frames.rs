//! Frames from a raw socket inside a pod, as a process with root privileges can send them.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::PacketSocket;
use testkit::frames::{self, MacBytes};
use testkit::{DEADLINE, Ns, Pod, inspect, ping, uninterrupted, wait_until};

use crate::common::{DUAL, Host, MODES, host_link, ips, v4, v6};
use crate::probes::{NODE, OUT, ip, outside};

const GATEWAYS: [&str; 2] = ["10.88.0.1", "fd00:88::1"];
const SPOOFED: [&str; 2] = ["10.88.0.200", "fd00:88::200"];
const UNKNOWN_MAC: MacBytes = [2, 0xde, 0xad, 0, 0, 1];
const REQUEST: u16 = 1;
const REPLY: u16 = 2;
const ROUTER_SOLICIT: u8 = 133;
const ROUTER_ADVERT: u8 = 134;
const SOLICIT: u8 = 135;
const ADVERT: u8 = 136;
const REDIRECT: u8 = 137;

/// A pod that sends raw frames to its host.
struct Attacker {
    raw: PacketSocket,
    mac: MacBytes,
    host_mac: MacBytes,
    pod: Pod,
    own: [IpAddr; 2],
}

impl Attacker {
    fn new(host: &Host, config: &Value) -> Self {
        let (pod, result) = host.attached("attacker", config);
        let mac_of = |ns: &Ns, dev: &str| frames::mac(&inspect::link(ns, dev).unwrap().mac.unwrap()).unwrap();
        // In mode `bridge`, frames for the host are sent to the bridge.
        let receiver = if config["mode"] == "routed" { host_link(&result) } else { BRIDGE };
        Self {
            raw: PacketSocket::open(&pod, "eth0").unwrap(),
            mac: mac_of(&pod, "eth0"),
            host_mac: mac_of(&host.node, receiver),
            own: [v4(&result), v6(&result)],
            pod,
        }
    }

    fn send_datagram(&self, between: frames::Between, source: IpAddr, (listener, text): (&UdpSocket, &str)) {
        let target = listener.local_addr().unwrap();
        let packet = frames::udp((source, 9).into(), target, text.as_bytes());
        self.raw.send(&frames::framed(between, &packet)).unwrap();
    }
}

/// Unlike the host ends of pods, without the prefix `pw`, as bridges of operators.
const BRIDGE: &str = "br-blue";

fn config(host: &Host, mode: &str) -> Value {
    host.config(&json!({"subnet": DUAL, "mode": mode, "bridge": BRIDGE}))
}

fn listen(ns: &Ns, address: IpAddr) -> UdpSocket {
    let socket = ns.enter(|| UdpSocket::bind((address, 0)).unwrap()).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket
}

/// The datagrams that the listener received before `end`. `send_end` is repeated until `end` arrives.
fn received(listener: &UdpSocket, send_end: &dyn Fn()) -> Vec<String> {
    listener.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let (deadline, mut received, mut buffer) = (Instant::now() + DEADLINE, Vec::new(), [0; 64]);
    send_end();
    loop {
        match uninterrupted(|| listener.recv(&mut buffer)) {
            Ok(count) => match String::from_utf8_lossy(&buffer[..count]).as_ref() {
                "end" => return received,
                datagram => received.push(datagram.to_owned()),
            },
            Err(_) => send_end(),
        }
        assert!(Instant::now() < deadline, "the end datagram did not arrive");
    }
}

fn send(from: &Ns, source: IpAddr, to: &UdpSocket, text: &str) {
    let target = to.local_addr().unwrap();
    let socket = from.enter(|| UdpSocket::bind((source, 0)).unwrap()).unwrap();
    socket.send_to(text.as_bytes(), target).unwrap();
}

/// All neighbour entries of the namespace, in every state: link and address.
fn neighbours(ns: &Ns) -> BTreeSet<(String, IpAddr)> {
    let mut all = BTreeSet::new();
    for family in ["-4", "-6"] {
        let shown = ns.json(&["ip", family, "-j", "neigh", "show", "nud", "all"]).unwrap();
        // The kernel adds entries for multicast destinations.
        let entries = shown.as_array().into_iter().flatten();
        let entries =
            entries.map(|e| (e["dev"].as_str().unwrap().to_owned(), ip(e["dst"].as_str().unwrap())));
        all.extend(entries.filter(|(_, address)| !address.is_multicast()));
    }
    all
}

/// At most five new entries, for the assert message.
fn new_neighbours(ns: &Ns, before: &BTreeSet<(String, IpAddr)>) -> Vec<(String, IpAddr)> {
    // Link-local addresses that the kernel derives from a MAC. A bridge and its pods may resolve each other at any time.
    let is_derived = |address: &IpAddr| match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.is_unicast_link_local() && v6.octets()[11..13] == [0xff, 0xfe],
    };
    let now = neighbours(ns);
    now.difference(before).filter(|(_, address)| !is_derived(address)).take(5).cloned().collect()
}

fn all_routers() -> Ipv6Addr {
    "ff02::2".parse().unwrap()
}

fn unknown_v4(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(10, 200, high, low)
}

fn unknown_v6(number: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xbad, number)
}

/// A bridge does not forward frames to a reserved multicast MAC. The host receives them with the port as input interface.
#[test]
fn a4_frames_to_reserved_macs_reach_no_host_socket() {
    for mode in MODES {
        let host = Host::new("reserved");
        let attacker = Attacker::new(&host, &config(&host, mode));
        for last in 0..16 {
            let reserved = [1, 0x80, 0xc2, 0, 0, last];
            for (family, gateway) in GATEWAYS.into_iter().enumerate() {
                let listener = listen(&host.node, ip(gateway));
                for (source, from) in
                    [(ip(SPOOFED[family]), attacker.mac), (attacker.own[family], UNKNOWN_MAC)]
                {
                    attacker.send_datagram((reserved, from), source, (&listener, "forged"));
                }
                let datagrams = received(&listener, &|| {
                    let between = (attacker.host_mac, attacker.mac);
                    attacker.send_datagram(between, attacker.own[family], (&listener, "end"));
                });
                assert_eq!(datagrams, [""; 0], "{mode}, {last:x}, {gateway}");
            }
        }
    }
}

#[test]
fn a4_frames_to_reserved_macs_create_no_neighbour_entries() {
    for mode in MODES {
        let host = Host::new("reserved-arp");
        let attacker = Attacker::new(&host, &config(&host, mode));
        for address in attacker.own {
            assert!(ping(&host.node, address, 1).unwrap().all());
        }
        let before = neighbours(&host.node);
        let [IpAddr::V4(gateway), IpAddr::V6(gateway6)] = GATEWAYS.map(ip) else { unreachable!() };
        for last in 0..16 {
            let reserved = [1, 0x80, 0xc2, 0, 0, last];
            for operation in [REQUEST, REPLY] {
                let sender = (UNKNOWN_MAC, unknown_v4(last.into()));
                let frame = frames::arp((reserved, attacker.mac), operation, sender, gateway);
                attacker.raw.send(&frame).unwrap();
            }
            for kind in [ROUTER_SOLICIT, ROUTER_ADVERT, SOLICIT, ADVERT, REDIRECT] {
                let target = (kind > ROUTER_ADVERT).then_some(gateway6);
                for to in [all_routers(), gateway6] {
                    let packet = frames::discovery((unknown_v6(last.into()), to), kind, target, UNKNOWN_MAC);
                    attacker.raw.send(&frames::framed((reserved, attacker.mac), &packet)).unwrap();
                }
            }
        }
        // When the ping is answered, the kernel has processed all earlier frames.
        assert!(ping(&attacker.pod, ip(GATEWAYS[0]), 1).unwrap().all());
        assert_eq!(new_neighbours(&host.node, &before), [], "{mode}");
    }
}

/// Otherwise a host of the underlay could use a pod's address to bypass policies.
#[test]
fn a13_packets_with_a_pods_source_from_the_underlay_are_dropped() {
    for mode in MODES {
        let host = Host::new("underlay");
        let out = outside(&host, &["10.88.0.0/24", "fd00:88::/64"]);
        let config = config(&host, mode);
        let (victim, victim_result) = host.attached("v", &config);
        let (trusted, trusted_result) = host.attached("t", &config);
        for link in ["all", "up0"] {
            host.node.sh(&["sysctl", "-q", "-w", &format!("net.ipv4.conf.{link}.rp_filter=0")]).unwrap();
        }
        for (family, source) in ips(&trusted_result).into_iter().enumerate() {
            out.sh(&["ip", "addr", "add", &source.to_string(), "dev", "lo"]).unwrap();
            let is_usable = || out.enter(|| UdpSocket::bind((source, 0)).is_ok());
            wait_until("the address to be usable", DEADLINE, is_usable).unwrap();
            for (receiver, target) in
                [(&*victim, ips(&victim_result)[family]), (&*host.node, ip(NODE[family]))]
            {
                let listener = listen(receiver, target);
                send(&out, source, &listener, "forged");
                let datagrams = received(&listener, &|| send(&out, ip(OUT[family]), &listener, "end"));
                assert_eq!(datagrams, [""; 0], "{mode}, {source} to {target}");
                // Packets of the pod itself still arrive.
                let datagrams = received(&listener, &|| send(&trusted, source, &listener, "end"));
                assert_eq!(datagrams, [""; 0], "{mode}, {source} to {target}");
            }
        }
    }
}

/// Transparent proxies on the host send such packets.
#[test]
fn a13_packets_with_a_pods_source_on_loopback_are_accepted() {
    for mode in MODES {
        let host = Host::new("transparent");
        let (_pod, result) = host.attached("a", &config(&host, mode));
        for (source, loopback) in [(v4(&result), "127.0.0.1"), (v6(&result), "::1")] {
            let listener = listen(&host.node, ip(loopback));
            let target = listener.local_addr().unwrap();
            let packet = frames::udp((source, 9).into(), target, b"end");
            let datagrams = received(&listener, &|| host.node.enter(|| send_raw(&packet, target)).unwrap());
            assert_eq!(datagrams, [""; 0], "{mode}, {source}");
        }
    }
}

/// Sends an IP packet with its header from the host.
fn send_raw(packet: &[u8], target: SocketAddr) {
    use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
    let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket(family, SocketType::RAW, Some(ipproto::RAW)).unwrap();
    let to = SocketAddr::new(target.ip(), 0);
    sendto(&socket, packet, SendFlags::empty(), &to).unwrap();
}

#[test]
fn a6_arp_and_nd_of_unknown_senders_create_no_entries() {
    let host = Host::new("unknown");
    let attacker = Attacker::new(&host, &config(&host, "routed"));
    let [IpAddr::V4(gateway), IpAddr::V6(gateway6)] = GATEWAYS.map(ip) else { unreachable!() };
    let before = neighbours(&host.node);
    let between = (attacker.host_mac, attacker.mac);
    for number in 0..5000 {
        for operation in [REQUEST, REPLY] {
            let frame = frames::arp(between, operation, (UNKNOWN_MAC, unknown_v4(number)), gateway);
            attacker.raw.send(&frame).unwrap();
        }
        for kind in [ROUTER_SOLICIT, SOLICIT, ADVERT] {
            let target = (kind != ROUTER_SOLICIT).then_some(gateway6);
            let packet = frames::discovery((unknown_v6(number), all_routers()), kind, target, UNKNOWN_MAC);
            attacker.raw.send(&frames::framed(between, &packet)).unwrap();
        }
    }
    for gateway in GATEWAYS {
        assert!(ping(&attacker.pod, ip(gateway), 1).unwrap().all());
    }
    assert_eq!(new_neighbours(&host.node, &before), []);
}

#[test]
fn a6_unassigned_addresses_are_unreachable_and_create_no_entries() {
    let host = Host::new("unassigned");
    let attacker = Attacker::new(&host, &config(&host, "routed"));
    let other = host.attached("b", &config(&host, "routed")).1;
    let before = neighbours(&host.node);
    // Tested first, because the kernel limits the rate of ICMP errors.
    for unassigned in ["10.88.0.77", "fd00:88::77"] {
        for from in [&*attacker.pod, &*host.node] {
            let shown = from.run(&["ping", "-n", "-c", "1", "-W", "10", unassigned], b"").unwrap();
            let text = format!("{}{}", shown.stdout, shown.stderr).to_lowercase();
            let is_refused = text.contains("unreachable") || text.contains("no route");
            assert!(is_refused, "{unassigned} from {}: {text}", from.name());
        }
    }
    let between = (attacker.host_mac, attacker.mac);
    for number in 4..=254 {
        let targets = [
            IpAddr::from([10, 88, 0, number]),
            Ipv6Addr::new(0xfd00, 0x88, 0, 0, 0, 0, 7, number.into()).into(),
        ];
        for (source, target) in attacker.own.into_iter().zip(targets) {
            let packet = frames::udp((source, 9).into(), (target, 9).into(), b"unassigned");
            attacker.raw.send(&frames::framed(between, &packet)).unwrap();
        }
    }
    assert_eq!(new_neighbours(&host.node, &before), []);
    for address in ips(&other) {
        assert!(ping(&attacker.pod, address, 1).unwrap().all(), "{address}");
    }
}

/// This happens if the mode of a network is changed while pods run.
#[test]
fn a6_bridged_and_routed_pods_of_one_subnet_are_reachable() {
    for modes in [MODES, ["routed", "bridge"]] {
        let host = Host::new("both-modes");
        for mode in modes {
            let (_pod, result) = host.attached(mode, &config(&host, mode));
            for address in ips(&result) {
                wait_until("the host to reach the pod", DEADLINE, || Ok(ping(&host.node, address, 1)?.all()))
                    .unwrap_or_else(|e| panic!("{modes:?}, {mode}, {address}: {e:#}"));
            }
        }
    }
}

#[test]
fn a10_spoofed_source_macs_are_dropped_in_both_modes() {
    for mode in MODES {
        for checked in [true, false] {
            let host = Host::new("source-mac");
            let mut config = config(&host, mode);
            config["spoofCheck"] = json!(checked);
            let attacker = Attacker::new(&host, &config);
            for (family, gateway) in GATEWAYS.into_iter().enumerate() {
                let (listener, own) = (listen(&host.node, ip(gateway)), attacker.own[family]);
                attacker.send_datagram((attacker.host_mac, UNKNOWN_MAC), own, (&listener, "forged"));
                let between = (attacker.host_mac, attacker.mac);
                let datagrams =
                    received(&listener, &|| attacker.send_datagram(between, own, (&listener, "end")));
                let expected: &[&str] = if checked { &[] } else { &["forged"] };
                assert_eq!(datagrams, expected, "{mode}, spoofCheck {checked}, {gateway}");
            }
        }
    }
}
