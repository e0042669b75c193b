//! A pod can use only its own addresses. Each test also runs without the guard, to show that it detects spoofed packets.

use std::net::{Ipv6Addr, SocketAddrV6};
use std::time::{Duration, Instant};

use nft::{AttachMode, Guard, Protocol};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto, recv, sendto, socket, sockopt};
use testkit::uninterrupted;

use crate::common::{Sample, repair, run};
use crate::lab::{At, Lab};

const BOTH: [AttachMode; 2] = [AttachMode::Bridge, AttachMode::Routed];
/// The guards Dhcp and Mac exist only in bridge mode.
const ALL: [(AttachMode, Guard); 6] = [
    (AttachMode::Bridge, Guard::On),
    (AttachMode::Bridge, Guard::Dhcp),
    (AttachMode::Bridge, Guard::Mac),
    (AttachMode::Bridge, Guard::Off),
    (AttachMode::Routed, Guard::On),
    (AttachMode::Routed, Guard::Off),
];

fn lab(mode: AttachMode, guard: Guard) -> Lab {
    let lab = Lab::new(mode);
    for n in [2, 3] {
        lab.add_pod(&Sample { guard, ..Sample::new(mode, n) });
    }
    lab
}

/// The datagrams that arrive.
fn expected(guard: Guard) -> &'static [&'static str] {
    match guard {
        Guard::On | Guard::Dhcp => &["hello", "true"],
        Guard::Mac | Guard::Off => &["hello", "spoofed", "true"],
    }
}

#[test]
fn spoofed_source_addresses_are_dropped() {
    for (mode, guard) in ALL {
        let lab = lab(mode, guard);
        lab.ip(At::Pod(2), "addr add 10.77.0.9/32 dev lo");
        lab.ip(At::Pod(2), "addr add fd77::9/128 dev lo");
        for (target, own, spoofed) in
            [("10.77.0.3:80", "10.77.0.2:0", "10.77.0.9:0"), ("[fd77::3]:80", "[fd77::2]:0", "[fd77::9]:0")]
        {
            let server = lab.serve(At::Pod(3), Protocol::Udp, target);
            let (own, spoofed) = (lab.sender(At::Pod(2), own), lab.sender(At::Pod(2), spoofed));
            // The first one also resolves the neighbour, so that the next ones are sent at once and in order.
            own.send("hello", target);
            let mut arrived = vec![server.receive()];
            spoofed.send("spoofed", target);
            own.send("true", target);
            while arrived.last().is_some_and(|last| last != "true") {
                arrived.push(server.receive());
            }
            assert_eq!(arrived, expected(guard));
        }
    }
}

#[test]
fn a_spoofed_source_mac_is_dropped_on_a_bridge() {
    for guard in [Guard::On, Guard::Dhcp, Guard::Mac, Guard::Off] {
        let lab = lab(AttachMode::Bridge, guard);
        let own = Sample::new(AttachMode::Bridge, 2).mac;
        for (target, source) in [("10.77.0.3:80", "10.77.0.2:0"), ("[fd77::3]:80", "[fd77::2]:0")] {
            let server = lab.serve(At::Pod(3), Protocol::Udp, target);
            let sender = lab.sender(At::Pod(2), source);
            sender.send("hello", target);
            let mut arrived = vec![server.receive()];
            // With a permanent neighbour only the MAC of the sender can cause a drop.
            let (address, receiver) = (
                target.rsplit_once(':').unwrap().0.trim_matches(['[', ']']),
                Sample::new(AttachMode::Bridge, 3).mac,
            );
            lab.ip(At::Pod(2), "link set eth0 address 02:00:00:00:00:99");
            lab.ip(At::Pod(2), &format!("neigh replace {address} lladdr {receiver} nud permanent dev eth0"));
            sender.send("spoofed", target);
            lab.ip(At::Pod(2), &format!("link set eth0 address {own}"));
            lab.ip(At::Pod(2), &format!("neigh replace {address} lladdr {receiver} nud permanent dev eth0"));
            sender.send("true", target);
            while arrived.last().is_some_and(|last| last != "true") {
                arrived.push(server.receive());
            }
            // Guard::Mac drops these, too.
            let guard = if guard == Guard::Mac { Guard::On } else { guard };
            assert_eq!(arrived, expected(guard));
        }
    }
}

/// Whether the host resolves this address of pod 2 to a MAC.
fn host_resolves(lab: &Lab, address: &str) -> bool {
    let target = if address.contains(':') { format!("[{address}]:9") } else { format!("{address}:9") };
    lab.sender(At::Host, if address.contains(':') { "[::]:0" } else { "0.0.0.0:0" }).send("probe", &target);
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let shown = lab.ip(At::Host, &format!("neigh show to {address} dev br0"));
        if shown.contains("lladdr") {
            return true;
        }
        if shown.contains("FAILED") {
            return false;
        }
        assert!(Instant::now() < deadline, "neither resolved nor failed: {shown:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn arp_and_nd_answers_for_other_addresses_are_dropped_on_a_bridge() {
    for guard in [Guard::On, Guard::Dhcp, Guard::Mac, Guard::Off] {
        let lab = lab(AttachMode::Bridge, guard);
        for version in ["ipv4", "ipv6"] {
            lab.sysctl(At::Host, &format!("{version}/neigh/br0/retrans_time_ms"), "100");
        }
        lab.ip(At::Pod(2), "addr add 10.77.0.9/32 dev eth0");
        lab.ip(At::Pod(2), "addr add fd77::9/128 dev eth0");
        for own in ["10.77.0.2", "fd77::2"] {
            assert!(host_resolves(&lab, own), "{own}");
        }
        for spoofed in ["10.77.0.9", "fd77::9"] {
            let is_answered = matches!(guard, Guard::Mac | Guard::Off);
            assert_eq!(host_resolves(&lab, spoofed), is_answered, "{spoofed}");
        }
    }
}

/// DHCP clients send from 0.0.0.0 while they have no address. Newer clients also send the release from 0.0.0.0, to the address of
/// the server. Only a packet socket receives it, so nft counts it here.
#[test]
fn b11_only_the_dhcp_and_mac_guards_accept_dhcp_requests() {
    for (guard, expected) in [
        (Guard::On, &["true"][..]),
        (Guard::Dhcp, &["discover", "true"]),
        (Guard::Mac, &["other port", "discover", "true"]),
    ] {
        let lab = lab(AttachMode::Bridge, guard);
        let server = lab.serve(At::Pod(3), Protocol::Udp, "0.0.0.0:67");
        let other = lab.serve(At::Pod(3), Protocol::Udp, "0.0.0.0:69");
        lab.ip(At::Pod(2), "addr flush dev eth0");
        for target in ["255.255.255.255", "10.77.0.3"] {
            lab.ip(At::Pod(2), &format!("route add {target} dev eth0"));
        }
        let server_mac = Sample::new(AttachMode::Bridge, 3).mac;
        lab.ip(At::Pod(2), &format!("neigh add 10.77.0.3 lladdr {server_mac} nud permanent dev eth0"));
        lab.inside(At::Pod(3), || run("nft", &[RELEASES]));
        let client = lab.sender(At::Pod(2), "0.0.0.0:68");
        client.broadcast("other port", 69);
        client.broadcast("discover", 67);
        client.send("release", "10.77.0.3:67");
        lab.ip(At::Pod(2), "addr add 10.77.0.2/24 dev eth0");
        lab.sender(At::Pod(2), "10.77.0.2:0").send("true", "10.77.0.3:69");
        lab.sender(At::Pod(2), "10.77.0.2:0").send("true", "10.77.0.3:67");
        let mut arrived = Vec::new();
        for listener in [other, server] {
            while arrived.last().is_none_or(|last| last != "true") {
                arrived.push(listener.receive());
            }
            arrived.pop();
        }
        arrived.push("true".to_owned());
        assert_eq!(arrived, expected, "{guard:?}");
        let released = lab.inside(At::Pod(3), || run("nft", &["list", "ruleset"])).contains("packets 1 ");
        assert_eq!(released, guard != Guard::On, "{guard:?}");
    }
}

/// Counts DHCP releases.
const RELEASES: &str = "table inet watch { chain clients { type filter hook prerouting priority -300; \
                        ip saddr 0.0.0.0 ip daddr 10.77.0.3 udp dport 67 counter; }; }";

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ADVERT: u8 = 136;
const ROUTER_ADVERT: u8 = 134;

fn icmp6(lab: &Lab, at: At) -> OwnedFd {
    let open = || socket(AddressFamily::INET6, SocketType::RAW, Some(ipproto::ICMPV6)).unwrap();
    let socket = lab.inside(at, open);
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(Duration::from_secs(5))).unwrap();
    socket
}

/// Sends a neighbour advertisement for `target`, or a router advertisement.
fn advertise(lab: &Lab, kind: u8, target: Ipv6Addr) {
    let socket = icmp6(lab, At::Pod(2));
    let mut message = vec![kind, 0, 0, 0, 0x20, 0, 0, 0];
    message.extend_from_slice(&target.octets());
    let scope: u32 = lab.ip(At::Pod(2), "-o link show dev eth0").split(':').next().unwrap().parse().unwrap();
    sendto(&socket, &message, SendFlags::empty(), &SocketAddrV6::new(ALL_NODES, 0, 0, scope)).unwrap();
}

/// The received advertisements up to the one for `last`: kind and target.
fn received(socket: &OwnedFd, last: Ipv6Addr) -> Vec<(u8, Ipv6Addr)> {
    let mut advertisements = Vec::new();
    while advertisements.last() != Some(&(ADVERT, last)) {
        let mut message = [0; 1500];
        uninterrupted(|| Ok(recv(socket, &mut message, RecvFlags::empty())?))
            .expect("the advertisement for the own address comes last");
        let (kind, target) = (message[0], *message[8..].first_chunk::<16>().unwrap());
        if matches!(kind, ADVERT | ROUTER_ADVERT) {
            advertisements.push((kind, Ipv6Addr::from(target)));
        }
    }
    advertisements
}

#[test]
fn router_advertisements_and_those_for_other_addresses_are_dropped() {
    let (own, spoofed): (Ipv6Addr, Ipv6Addr) = ("fd77::2".parse().unwrap(), "fd77::9".parse().unwrap());
    for (mode, guard) in ALL {
        let lab = lab(mode, guard);
        // In routed mode the host has permanent neighbours, and the guard drops all neighbour discovery.
        let listener = match mode {
            AttachMode::Bridge => icmp6(&lab, At::Pod(3)),
            AttachMode::Routed => icmp6(&lab, At::Host),
        };
        advertise(&lab, ROUTER_ADVERT, spoofed);
        if mode == AttachMode::Bridge {
            advertise(&lab, ADVERT, spoofed);
        }
        advertise(&lab, ADVERT, own);
        if (mode, guard) == (AttachMode::Routed, Guard::On) {
            let server = lab.serve(At::Host, Protocol::Udp, "[fd77::1]:9");
            lab.sender(At::Pod(2), "[fd77::2]:0").send("true", "[fd77::1]:9");
            assert_eq!(server.receive(), "true", "all earlier packets have been processed");
            let flags = RecvFlags::DONTWAIT;
            assert_eq!(recv(&listener, &mut [0; 1500], flags).unwrap_err(), rustix::io::Errno::AGAIN);
            continue;
        }
        let received = received(&listener, own);
        match (mode, guard) {
            (_, Guard::On | Guard::Dhcp) => assert_eq!(received, [(ADVERT, own)]),
            (AttachMode::Bridge, Guard::Mac | Guard::Off) => {
                assert_eq!(received, [(ROUTER_ADVERT, spoofed), (ADVERT, spoofed), (ADVERT, own)]);
            }
            (AttachMode::Routed, Guard::Mac | Guard::Off) => {
                assert_eq!(received, [(ROUTER_ADVERT, spoofed), (ADVERT, own)]);
            }
        }
    }
}

/// A pod without a guard, connected through the bridge or link of this name.
fn connected_through(mode: AttachMode, n: u16, link: &str) -> Sample {
    let (link, sample) = (link.try_into().unwrap(), Sample { guard: Guard::Off, ..Sample::new(mode, n) });
    match mode {
        AttachMode::Bridge => Sample { bridge: Some(link), ..sample },
        AttachMode::Routed => Sample { link, ..sample },
    }
}

#[test]
fn host_loopback_is_unreachable_from_pods_despite_route_localnet() {
    for mode in BOTH {
        let lab = lab(mode, Guard::Off);
        // A privileged pod can send packets to 127.0.0.1 through its link.
        lab.sysctl(At::Pod(2), "ipv4/conf/eth0/route_localnet", "1");
        lab.ip(At::Pod(2), "route del local 127.0.0.1 dev lo table local");
        lab.ip(At::Pod(2), "route del local 127.0.0.0/8 dev lo table local");
        lab.ip(At::Pod(2), "route add 127.0.0.1 via 10.77.0.1");
        let server = lab.serve(At::Host, Protocol::Udp, "0.0.0.0:9");
        let sender = lab.sender(At::Pod(2), "10.77.0.2:0");
        let attempt = || {
            sender.send("hello", "10.77.0.1:9");
            let mut arrived = vec![server.receive()];
            sender.send("spoofed", "127.0.0.1:9");
            sender.send("true", "10.77.0.1:9");
            while arrived.last().is_some_and(|last| last != "true") {
                arrived.push(server.receive());
            }
            arrived
        };
        assert_eq!(attempt(), ["hello", "true"]);
        // The operator may have enabled route_localnet on all links, with any names.
        lab.sysctl(At::Host, "ipv4/conf/all/route_localnet", "1");
        let mut link = match mode {
            AttachMode::Bridge => "br0".to_owned(),
            AttachMode::Routed => Sample::new(mode, 2).link.to_string(),
        };
        for name in ["eth7", "pwvx4"] {
            lab.ip(At::Host, &format!("link set {link} name {name}"));
            name.clone_into(&mut link);
            lab.add_pod(&connected_through(mode, 2, name));
            assert_eq!(attempt(), ["hello", "true"], "{name}");
        }
        // Packets without conntrack pass no NAT chain.
        lab.inside(At::Host, || {
            run("nft", &["table inet unmanaged { chain c { type filter hook prerouting priority -300; udp dport 9 notrack; }; }"])
        });
        assert_eq!(attempt(), ["hello", "true"], "untracked");
        lab.inside(At::Host, || run("nft", &["delete table inet unmanaged"]));
        let without_rules = "flush chain inet podwire nat-prerouting; flush chain inet podwire to-host";
        lab.inside(At::Host, || run("nft", &[without_rules]));
        assert_eq!(attempt(), ["hello", "spoofed", "true"], "without the rules the packet arrives");
        let samples = [2, 3].map(|n| connected_through(mode, n, "pwvx4"));
        lab.inside(At::Host, || repair(&samples.each_ref().map(Sample::pod)));
        assert_eq!(
            attempt(),
            ["hello", "true"],
            "dropped again after the repair, although a conntrack entry exists"
        );
    }
}
