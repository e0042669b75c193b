//! Decisions about real packets, in both address families.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use model::objects::Direction::{Egress, Ingress};
use nft::{AttachMode, DeniedPackets};
use policy::PolicyVerdict::{Accept, Drop};
use policy::{ClassId, PolicyElement, ProfileId, VerdictKey};
use rustix::net::{SendFlags, sendto};
use testkit::uninterrupted;
use types::Protocol;

use super::judge::{Judged, PacketPath, Probe, Testbed, any, group, raw};
use super::samples::{address, class, options, own, profile, ranges, verdict};
use crate::common::{Sample, nft, run};
use crate::lab::{At, Lab};

pub(super) const BLUE: u32 = 1;
pub(super) const GREEN: u32 = 2;
const GROUPS: [u32; 2] = [ProfileId::FIRST + BLUE, ProfileId::FIRST + GREEN];
pub(super) const TO_2: [&str; 2] = ["10.77.0.2:80", "[fd77::2]:80"];
pub(super) const TO_3: [&str; 2] = ["10.77.0.3:80", "[fd77::3]:80"];
pub(super) const OUTSIDE: [&str; 2] = ["192.0.2.2:80", "[2001:db8::2]:80"];
pub(super) const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));

pub(super) const OUTSIDE_CLASS: ClassId = ClassId(16);
const NODE: ClassId = ClassId(17);

/// The classes of all addresses: pods 2 and 3 are of tenant 1. 192.0.2.2 and 2001:db8::2 have no class of their own.
pub(super) fn classes() -> Vec<PolicyElement> {
    let mut all = ranges(&[], OUTSIDE_CLASS);
    for (text, class) in [
        ("10.77.0.2", class(1, BLUE)),
        ("fd77::2", class(1, BLUE)),
        ("10.77.0.3", class(1, GREEN)),
        ("fd77::3", class(1, GREEN)),
        ("10.77.0.1", NODE),
        ("fd77::1", NODE),
        ("192.0.2.1", NODE),
        ("2001:db8::1", NODE),
    ] {
        all.push(address(text, class));
    }
    all.extend(["10.77.0.2", "fd77::2", "10.77.0.3", "fd77::3"].map(own));
    all
}

pub(super) fn default(number: u32) -> VerdictKey {
    VerdictKey::Default { profile: profile(number) }
}

/// The classes, and profiles that accept everything, except where another default is given.
pub(super) fn elements(others: &[PolicyElement]) -> Vec<PolicyElement> {
    let mut all = classes();
    for number in [BLUE, GREEN] {
        for direction in [Ingress, Egress] {
            let decided = verdict(direction, default(number), Drop);
            if !others.contains(&decided) {
                all.push(verdict(direction, default(number), Accept));
            }
        }
    }
    all.extend(others);
    all
}

pub(super) fn testbed(others: &[PolicyElement]) -> Testbed {
    Testbed::new(&options(), GROUPS, &elements(others))
}

#[test]
fn both_ends_on_one_node_are_judged() {
    let testbed = testbed(&[]);
    let two_accepts = verdict(Ingress, default(BLUE), Drop);
    let three_sends = verdict(Egress, default(GREEN), Drop);
    for (others, to_2, to_3) in [
        (vec![], Judged::Accepted, Judged::Accepted),
        (vec![two_accepts], Judged::DeniedIngress, Judged::Accepted),
        (vec![three_sends], Judged::DeniedEgress, Judged::Accepted),
        (vec![two_accepts, three_sends], Judged::DeniedEgress, Judged::Accepted),
    ] {
        testbed.apply(&elements(&others));
        for probe in [Probe::Udp, Probe::Tcp] {
            for (target_2, target_3) in TO_2.into_iter().zip(TO_3) {
                assert_eq!(testbed.judge(At::Pod(3), probe, (At::Pod(2), target_2)), to_2, "{others:?}");
                assert_eq!(testbed.judge(At::Pod(2), probe, (At::Pod(3), target_3)), to_3, "{others:?}");
            }
        }
    }
}

#[test]
fn the_host_reaches_its_pods_and_pods_reach_their_host() {
    let testbed = testbed(&[BLUE, GREEN].map(|n| verdict(Ingress, default(n), Drop)));
    testbed.apply(&classes());
    for (target, host) in TO_2.into_iter().zip(["10.77.0.1:80", "[fd77::1]:80"]) {
        assert_eq!(testbed.judge(At::Host, Probe::Udp, (At::Pod(2), target)), Judged::Accepted);
        assert_eq!(testbed.judge(At::Pod(2), Probe::Udp, (At::Host, host)), Judged::Accepted);
        assert_eq!(testbed.judge(At::Pod(3), Probe::Udp, (At::Pod(2), target)), Judged::DeniedEgress);
    }
}

#[test]
fn addresses_without_a_class_of_their_own_have_that_of_their_range() {
    let key = |class| VerdictKey::Peer { profile: profile(BLUE), class };
    let denied = verdict(Ingress, default(BLUE), Drop);
    let testbed = testbed(&[denied]);
    let in_range = |class| {
        let starts = [
            ("192.0.2.2", class),
            ("192.0.2.3", OUTSIDE_CLASS),
            ("2001:db8::2", class),
            ("2001:db8::3", OUTSIDE_CLASS),
        ];
        let mut all = elements(&[denied, verdict(Ingress, key(NODE), Accept)]);
        all.retain(|element| !matches!(element, PolicyElement::Addresses { .. }));
        all.extend(ranges(&starts, OUTSIDE_CLASS));
        all
    };
    for (class, expected) in [(NODE, Judged::Accepted), (ClassId(18), Judged::DeniedIngress)] {
        testbed.apply(&in_range(class));
        for target in TO_2 {
            assert_eq!(testbed.judge(At::Outside, Probe::Udp, (At::Pod(2), target)), expected);
        }
    }
    // Without ranges, elements are missing: nothing is accepted, also by elements for any peer.
    let mut unclassified = elements(&[]);
    unclassified.retain(|element| !matches!(element, PolicyElement::Addresses { .. }));
    testbed.apply(&unclassified);
    for target in TO_2 {
        assert_eq!(testbed.judge(At::Outside, Probe::Udp, (At::Pod(2), target)), Judged::DeniedIngress);
        assert_eq!(testbed.judge(At::Pod(3), Probe::Udp, (At::Pod(2), target)), Judged::Accepted);
    }
}

#[test]
fn a_link_without_a_profile_is_closed() {
    let any = |direction, n| verdict(direction, VerdictKey::AnyPod { class: class(1, n) }, Accept);
    let opened = elements(&[any(Ingress, GREEN), any(Egress, GREEN), any(Ingress, BLUE), any(Egress, BLUE)]);
    let testbed = Testbed::new(&options(), GROUPS, &opened);
    for closed in [0, 7, ProfileId::FIRST - 1, ProfileId::LAST + 1, u32::MAX] {
        testbed.set_group(2, closed);
        for (target_2, target_3) in TO_2.into_iter().zip(TO_3) {
            let to_2 = testbed.judge(At::Pod(3), Probe::Udp, (At::Pod(2), target_2));
            let to_3 = testbed.judge(At::Pod(2), Probe::Udp, (At::Pod(3), target_3));
            assert_eq!((to_2, to_3), (Judged::DeniedIngress, Judged::DeniedEgress), "{closed:#x}");
        }
    }
    // A number without elements accepts only what any pod accepts.
    for unused in [ProfileId::FIRST, ProfileId::LAST] {
        testbed.set_group(2, unused);
        for target in TO_2 {
            assert_eq!(testbed.judge(At::Pod(3), Probe::Udp, (At::Pod(2), target)), Judged::Accepted);
            let from_outside = testbed.judge(At::Outside, Probe::Udp, (At::Pod(2), target));
            assert_eq!(from_outside, Judged::DeniedIngress, "{unused:#x}");
        }
    }
}

#[test]
fn classes_of_other_tenants_are_denied_by_two_ranges() {
    let slot = |tenant: u32| tenant << ClassId::SLOT_SHIFT;
    let ranges = |profile| {
        [(slot(1), slot(5) - 1), (slot(6), u32::MAX)].map(|(first, last)| {
            let key = VerdictKey::PeerClasses { profile, first: ClassId(first), last: ClassId(last) };
            verdict(Ingress, key, Drop)
        })
    };
    let testbed = testbed(&[]);
    let numbers = [slot(1), slot(5) - 1, slot(6), u32::MAX].map(|number| (number, Judged::DeniedIngress));
    let own_tenant = [slot(5), slot(6) - 1, OUTSIDE_CLASS.0].map(|number| (number, Judged::Accepted));
    for (number, expected) in numbers.into_iter().chain(own_tenant) {
        let mut all = elements(&ranges(profile(BLUE)));
        all.retain(|element| !matches!(element, PolicyElement::Address { .. }));
        all.extend([address("10.77.0.3", ClassId(number)), address("fd77::3", ClassId(number))]);
        testbed.apply(&all);
        for target in TO_2 {
            assert_eq!(testbed.judge(At::Pod(3), Probe::Udp, (At::Pod(2), target)), expected, "{number:#x}");
        }
    }
}

#[test]
fn a_pod_that_reaches_itself_is_its_own_peer() {
    let reachable = |decided| {
        let key = VerdictKey::Peer { profile: profile(BLUE), class: ClassId::SELF };
        let drops = [Ingress, Egress].map(|side| verdict(side, default(BLUE), Drop));
        let selves = [Ingress, Egress].map(|side| verdict(side, key, decided));
        [drops, selves].concat()
    };
    let testbed = testbed(&reachable(Accept));
    testbed.lab.add_pod(&Sample::new(AttachMode::Routed, 2).publish(Protocol::Udp, 8080, 80));
    for (decided, expected) in [(Accept, Judged::Accepted), (Drop, Judged::DeniedEgress)] {
        testbed.apply(&elements(&reachable(decided)));
        for (host, pod) in ["192.0.2.1:8080", "[2001:db8::1]:8080"].into_iter().zip(TO_2) {
            let (target, receiver) = (host.parse().unwrap(), pod.parse().unwrap());
            let path = PacketPath { from: At::Pod(2), target, at: At::Pod(2), receiver };
            assert_eq!(testbed.judge_path(Probe::Udp, path), expected);
        }
        assert_eq!(testbed.judge(At::Pod(2), Probe::Udp, (At::Pod(3), TO_3[0])), Judged::DeniedEgress);
    }
}

#[test]
fn packets_are_judged_after_their_destination_is_changed() {
    let at = |port| {
        let key = VerdictKey::AnyPeerPort { profile: profile(BLUE), protocol: Protocol::Tcp, port };
        [verdict(Ingress, default(BLUE), Drop), verdict(Ingress, key, Accept)]
    };
    let testbed = testbed(&at(80));
    testbed.lab.add_pod(&Sample::new(AttachMode::Routed, 2).publish(Protocol::Tcp, 8080, 80));
    for (port, expected) in [(80, Judged::Accepted), (8080, Judged::DeniedIngress)] {
        testbed.apply(&elements(&at(port)));
        for (host, pod) in ["192.0.2.1:8080", "[2001:db8::1]:8080"].into_iter().zip(TO_2) {
            let (target, receiver) = (host.parse().unwrap(), pod.parse().unwrap());
            let path = PacketPath { from: At::Outside, target, at: At::Pod(2), receiver };
            assert_eq!(testbed.judge_path(Probe::Tcp, path), expected);
        }
    }
}

#[test]
fn replies_pass_to_pods_that_accept_nothing() {
    let testbed = testbed(&[verdict(Ingress, default(GREEN), Drop), verdict(Egress, default(BLUE), Drop)]);
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        for target in TO_2 {
            let server = testbed.lab.serve(At::Pod(2), protocol, target);
            testbed.lab.ask(At::Pod(3), target, &server).unwrap();
        }
    }
    assert_eq!(testbed.denied(), DeniedPackets::default());
}

#[test]
fn icmp_errors_are_related_to_their_flow() {
    let testbed = testbed(&[verdict(Ingress, default(GREEN), Drop), verdict(Egress, default(BLUE), Drop)]);
    for target in TO_2 {
        let target: SocketAddr = target.parse().unwrap();
        let client = testbed.lab.inside(At::Pod(3), || UdpSocket::bind(any(target)).unwrap());
        client.set_read_timeout(TIMEOUT).unwrap();
        client.connect(target).unwrap();
        client.send(b"request").unwrap();
        let refused = uninterrupted(|| client.recv(&mut [0; 9])).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
    assert_eq!(testbed.denied(), DeniedPackets::default());
}

#[test]
fn fragments_are_judged_as_one_datagram() {
    let key = VerdictKey::AnyPeerPort { profile: profile(BLUE), protocol: Protocol::Udp, port: 80 };
    let testbed = testbed(&[verdict(Ingress, default(BLUE), Drop), verdict(Ingress, key, Accept)]);
    let large = [7; 4000];
    for target in TO_2 {
        let target: SocketAddr = target.parse().unwrap();
        let server = testbed.lab.inside(At::Pod(2), || UdpSocket::bind(target).unwrap());
        server.set_read_timeout(TIMEOUT).unwrap();
        let sender = testbed.lab.inside(At::Pod(3), || UdpSocket::bind(any(target)).unwrap());
        let other = SocketAddr::new(target.ip(), 81);
        let before = testbed.denied().ingress;
        sender.send_to(&large, other).unwrap();
        sender.send_to(&large, target).unwrap();
        let mut received = [0; 5000];
        assert_eq!(uninterrupted(|| server.recv(&mut received)).unwrap(), large.len());
        // The kernel forwards the fragments of a datagram one by one, but judges the datagram.
        assert_eq!(testbed.denied().ingress, before + 1);
    }
}

#[test]
fn later_hooks_see_no_class_in_the_priority() {
    let testbed = testbed(&[]);
    let count = "add table inet later; \
                 add chain inet later c { type filter hook forward priority 0; }; \
                 add rule inet later c meta priority 0:0 counter; \
                 add rule inet later c meta priority != 0:0 counter";
    testbed.lab.inside(At::Host, || run("nft", &[count]));
    for (target_2, target_3) in TO_2.into_iter().zip(TO_3) {
        assert_eq!(testbed.judge(At::Pod(3), Probe::Udp, (At::Pod(2), target_2)), Judged::Accepted);
        assert_eq!(testbed.judge(At::Pod(2), Probe::Udp, (At::Pod(3), target_3)), Judged::Accepted);
        assert_eq!(testbed.judge(At::Outside, Probe::Udp, (At::Pod(2), target_2)), Judged::Accepted);
    }
    let listed = testbed.lab.inside(At::Host, || nft("list chain inet later c"));
    assert!(listed.contains("meta priority none counter packets 6 "), "{listed}");
    assert!(listed.contains("meta priority != none counter packets 0 "), "{listed}");
}

#[test]
fn denied_packets_are_counted_exactly() {
    let testbed = testbed(&[verdict(Ingress, default(BLUE), Drop), verdict(Egress, default(BLUE), Drop)]);
    let expected = DeniedPackets { ingress: 60, egress: 100, invalid: 0, forbidden: 0 };
    for (target_2, target_3) in TO_2.into_iter().zip(TO_3) {
        let [target_2, target_3]: [SocketAddr; 2] = [target_2, target_3].map(|text| text.parse().unwrap());
        let from = |at| testbed.lab.inside(at, || UdpSocket::bind(any(target_2)).unwrap());
        let (two, three) = (from(At::Pod(2)), from(At::Pod(3)));
        (0..30).for_each(|_| assert_eq!(three.send_to(b"one", target_2).unwrap(), 3));
        (0..50).for_each(|_| assert_eq!(two.send_to(b"one", target_3).unwrap(), 3));
    }
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while testbed.denied() != expected && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(testbed.denied(), expected);
}

#[test]
fn packets_without_a_flow_are_judged_but_not_counted_as_flows() {
    let testbed = testbed(&[]);
    // Echo replies without a request.
    let send = |target: IpAddr, number: u8, kind: u8| {
        let [sender, receiver] =
            [At::Pod(3), At::Pod(2)].map(|at| testbed.lab.inside(at, || raw(target, number)));
        let mut message = [kind, 0, 0, 0, 0, 7, 0, 7];
        if target.is_ipv4() {
            // The kernel computes only the checksum of ICMPv6.
            let sum = !(u16::from(kind) * 256 + 14);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        sendto(&sender, &message, SendFlags::empty(), &SocketAddr::new(target, 0)).unwrap();
        receiver
    };
    let replies = [("10.77.0.2", 1, 0), ("fd77::2", 58, 129)];
    for (target, number, kind) in replies {
        let receiver = send(target.parse().unwrap(), number, kind);
        let arrived = || rustix::net::recv(&receiver, &mut [0; 99], rustix::net::RecvFlags::DONTWAIT).is_ok();
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while !arrived() {
            assert!(std::time::Instant::now() < deadline, "no packet at {target}");
            std::thread::yield_now();
        }
    }
    testbed.apply(&elements(&[verdict(Ingress, default(BLUE), Drop)]));
    let before = testbed.denied();
    for (target, number, kind) in replies {
        send(target.parse().unwrap(), number, kind);
    }
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while testbed.denied().invalid < before.invalid + 2 && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(testbed.denied(), DeniedPackets { invalid: before.invalid + 2, ..before });
}

#[test]
fn a_tunnel_named_like_a_pod_link_is_not_judged() {
    let testbed = testbed(&[]);
    let lab: &Lab = &testbed.lab;
    for (at, local, remote) in [(At::Host, 1, 2), (At::Outside, 2, 1)] {
        let ends = format!("local 192.0.2.{local} remote 192.0.2.{remote}");
        lab.ip(at, &format!("link add pwvx4 type vxlan id 7 {ends} dstport 4789"));
        lab.ip(at, &format!("addr add 10.99.0.{local}/24 dev pwvx4"));
        lab.ip(at, &format!("addr add fd99::{local}/64 dev pwvx4 nodad"));
        lab.ip(at, "link set pwvx4 up");
    }
    for (subnet, host) in [("10.77.0.0/24", "10.99.0.1"), ("fd77::/64", "fd99::1")] {
        lab.ip(At::Outside, &format!("route replace {subnet} via {host}"));
    }
    for (target, remote) in TO_2.into_iter().zip(["10.99.0.2:80", "[fd99::2]:80"]) {
        assert_eq!(testbed.judge(At::Outside, Probe::Udp, (At::Pod(2), target)), Judged::Accepted);
        assert_eq!(testbed.judge(At::Pod(2), Probe::Udp, (At::Outside, remote)), Judged::Accepted);
        testbed.set_group(2, 0);
        assert_eq!(testbed.judge(At::Outside, Probe::Udp, (At::Pod(2), target)), Judged::DeniedIngress);
        assert_eq!(testbed.judge(At::Pod(2), Probe::Udp, (At::Outside, remote)), Judged::DeniedEgress);
        testbed.set_group(2, group(profile(BLUE)));
    }
}
