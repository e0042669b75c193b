//! Changes while flows exist and packets are sent.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use model::objects::Direction::{Egress, Ingress};
use nft::DeniedPackets;
use policy::PolicyVerdict::{Accept, Drop};
use policy::{PolicyElement, VerdictKey};
use testkit::uninterrupted;
use types::Protocol;

use super::judge::{Judged, Probe, any, group};
use super::samples::{address, class, profile, ranges, verdict};
use super::traffic::{
    BLUE, GREEN, OUTSIDE, OUTSIDE_CLASS, TIMEOUT, TO_2, classes, default, elements, testbed,
};
use crate::common::run;
use crate::lab::At;

#[test]
fn established_flows_continue_when_nothing_new_is_accepted() {
    let testbed = testbed(&[]);
    let denied: Vec<PolicyElement> = classes();
    for target in TO_2 {
        testbed.apply(&elements(&[]));
        let listener = testbed.lab.inside(At::Pod(2), || TcpListener::bind(target).unwrap());
        let mut client = testbed.lab.inside(At::Pod(3), || std::net::TcpStream::connect(target).unwrap());
        let (mut server, _) = uninterrupted(|| listener.accept()).unwrap();
        client.set_read_timeout(TIMEOUT).unwrap();
        server.set_read_timeout(TIMEOUT).unwrap();
        testbed.apply(&denied);
        for byte in 0..20 {
            client.write_all(&[byte]).unwrap();
            let mut received = [0];
            server.read_exact(&mut received).unwrap();
            server.write_all(&received).unwrap();
            client.read_exact(&mut received).unwrap();
            assert_eq!(received, [byte]);
        }
        drop(listener);
        assert_eq!(testbed.judge(At::Pod(3), Probe::Tcp, (At::Pod(2), target)), Judged::DeniedEgress);
    }
}

#[test]
fn a_change_and_a_new_group_take_effect_for_the_next_flow() {
    let testbed = testbed(&[]);
    let closed = [Ingress, Egress].map(|side| verdict(side, default(9), Drop));
    testbed.with_firewall(|firewall| firewall.apply_policy(&[], &closed).unwrap());
    for target in OUTSIDE {
        assert_eq!(testbed.judge(At::Pod(2), Probe::Udp, (At::Outside, target)), Judged::Accepted);
    }
    testbed.set_group(2, group(profile(9)));
    for target in OUTSIDE {
        assert_eq!(testbed.judge(At::Pod(2), Probe::Udp, (At::Outside, target)), Judged::DeniedEgress);
    }
    let opened = closed.map(|element| match element {
        PolicyElement::Verdict { direction, key, .. } => verdict(direction, key, Accept),
        other => other,
    });
    testbed.with_firewall(|firewall| firewall.apply_policy(&closed, &opened).unwrap());
    for target in OUTSIDE {
        assert_eq!(testbed.judge(At::Pod(2), Probe::Udp, (At::Outside, target)), Judged::Accepted);
    }
}

/// Packets are sent while classes, ranges and verdicts change. Before and after each change, port 80 is accepted and port 81 is
/// denied.
#[test]
fn no_packet_gets_a_wrong_verdict_during_a_change() {
    const CHANGES: usize = 400;
    let (first, second) = (class(1, 7), class(1, 8));
    let at =
        |class, port| VerdictKey::PeerPort { profile: profile(BLUE), class, protocol: Protocol::Udp, port };
    let accepted = [first, second].map(|class| verdict(Ingress, at(class, 80), Accept));
    let testbed = testbed(&[&accepted[..], &[verdict(Ingress, default(BLUE), Drop)]].concat());
    let of = |class, border: u8| {
        let mut of_class: Vec<PolicyElement> =
            ranges(&[(&format!("192.0.2.{border}"), OUTSIDE_CLASS)], class);
        of_class
            .retain(|element| matches!(element, PolicyElement::Addresses { first, .. } if first.is_ipv4()));
        of_class.push(address("10.77.0.3", class));
        of_class
    };
    let mut elements = elements(&accepted);
    elements.retain(|element| !matches!(element, PolicyElement::Addresses { first, .. } if first.is_ipv4()));
    elements.retain(|element| *element != address("10.77.0.3", class(1, GREEN)));
    elements.retain(|element| *element != verdict(Ingress, default(BLUE), Accept));
    elements.push(verdict(Ingress, default(BLUE), Drop));
    elements.extend(of(first, 100));
    testbed.apply(&elements);
    let target: SocketAddr = TO_2[0].parse().unwrap();
    let server = testbed.lab.inside(At::Pod(2), || UdpSocket::bind(target).unwrap());
    server.set_read_timeout(TIMEOUT).unwrap();
    let other = SocketAddr::new(target.ip(), 81);
    let never = testbed.lab.inside(At::Pod(2), || UdpSocket::bind(other).unwrap());
    never.set_nonblocking(true).unwrap();
    let is_done = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut sent = 0;
            while !is_done.load(Ordering::Relaxed) {
                for from in [At::Pod(3), At::Outside] {
                    let sender = testbed.lab.inside(from, || UdpSocket::bind(any(target)).unwrap());
                    sender.send_to(b"denied", other).unwrap();
                    sender.send_to(b"accepted", target).unwrap();
                    uninterrupted(|| server.recv(&mut [0; 20])).unwrap();
                    sent += 1;
                }
            }
            sent
        });
        testbed.with_firewall(|firewall| {
            for n in 0..CHANGES {
                let (old, new) = ((first, 100), (second, 50));
                let (old, new) = if n % 2 == 0 { (old, new) } else { (new, old) };
                firewall.apply_policy(&of(old.0, old.1), &of(new.0, new.1)).unwrap();
            }
        });
        is_done.store(true, Ordering::Relaxed);
        sending.join().unwrap()
    });
    assert!(sent > 100, "{sent} packets were sent");
    assert_eq!(testbed.denied(), DeniedPackets { ingress: sent, ..DeniedPackets::default() });
    assert!(never.recv(&mut [0; 20]).is_err());
}

#[test]
fn no_accepted_flow_is_denied_while_a_missing_table_is_restored() {
    let testbed = testbed(&[]);
    let target: SocketAddr = TO_2[0].parse().unwrap();
    let server = testbed.lab.inside(At::Pod(2), || UdpSocket::bind(target).unwrap());
    server.set_read_timeout(TIMEOUT).unwrap();
    let is_done = AtomicBool::new(false);
    // A packet that is judged at the moment of a flush may find the rules, but no elements. Only the restoration is tested.
    let flushing = Mutex::new(());
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let sender = testbed.lab.inside(At::Pod(3), || UdpSocket::bind(any(target)).unwrap());
                let _not_now = flushing.lock().unwrap();
                sender.send_to(b"accepted", target).unwrap();
                // Times out if the packet was denied.
                uninterrupted(|| server.recv(&mut [0; 20])).unwrap();
            }
        });
        for _ in 0..8 {
            for act in ["flush ruleset", "flush table inet podwire-policy"] {
                {
                    let _no_packets = flushing.lock().unwrap();
                    testbed.lab.inside(At::Host, || run("nft", &[act]));
                }
                testbed.apply(&elements(&[]));
            }
        }
        is_done.store(true, Ordering::Relaxed);
        sending.join().unwrap();
    });
}
