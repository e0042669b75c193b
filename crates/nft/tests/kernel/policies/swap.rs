//! The table of another release is replaced while packets are sent, and back.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use model::objects::Direction::Ingress;
use nft::Surplus;
use nft::desired::Table;
use nft::desired::policy::{OwnNode, PolicyOptions, table};
use policy::PolicyVerdict::Accept;
use policy::{PolicyElement, VerdictKey};
use testkit::{DEADLINE, uninterrupted, wait_until};
use types::Protocol;

use super::judge::{Testbed, any};
use super::samples::{class, options, profile, verdict};
use super::traffic::{BLUE, GREEN, TIMEOUT, TO_2, default, elements, testbed};
use crate::common::{nft, run};
use crate::lab::At;

/// Pod 2 accepts port 80 of pod 3 and nothing else.
fn wanted() -> Vec<PolicyElement> {
    let key = VerdictKey::PeerPort {
        profile: profile(BLUE),
        class: class(1, GREEN),
        protocol: Protocol::Udp,
        port: 80,
    };
    let denied = verdict(Ingress, default(BLUE), policy::PolicyVerdict::Drop);
    elements(&[verdict(Ingress, key, Accept), denied])
}

/// Two structures that one release has.
fn structures() -> [Table; 2] {
    let judged = PolicyOptions { own_node: OwnNode::Judged, logs_per_second: None, ..options() };
    [table(&options()), table(&judged)]
}

/// Structures of other releases, made from this one's listing: a map has another name, and there are another chain and set.
fn of_other_releases(listing: &str) -> [String; 2] {
    let renamed = listing.replace("in_default", "in_standard");
    assert_ne!(renamed, listing);
    let (before, after) = listing.split_once("\tchain ingress {\n").unwrap();
    let extended = format!(
        "{before}\tset extra {{ type ipv4_addr; }}\n\tchain extra {{ ip saddr @extra drop; }}\n\tchain ingress {{\n\t\tjump extra\n{after}"
    );
    [renamed, extended]
}

fn keep(testbed: &Testbed, table: &Table, elements: &[PolicyElement]) {
    testbed.with_firewall(|firewall| {
        firewall.reconcile_policies(table, elements, Surplus::Remove).unwrap();
        assert_eq!(firewall.reconcile_policies(table, elements, Surplus::Remove).unwrap(), [""; 0]);
    });
}

#[test]
fn no_packet_is_lost_and_none_passes_while_structures_are_swapped_forward_and_back() {
    const ROUNDS: usize = 6;
    let (testbed, wanted, structures) = (testbed(&[]), wanted(), structures());
    keep(&testbed, &structures[0], &wanted);
    let listing = testbed.lab.inside(At::Host, || nft("list table inet podwire-policy"));
    let target: SocketAddr = TO_2[0].parse().unwrap();
    let server = testbed.lab.inside(At::Pod(2), || UdpSocket::bind(target).unwrap());
    server.set_read_timeout(TIMEOUT).unwrap();
    let other = SocketAddr::new(target.ip(), 81);
    let never = testbed.lab.inside(At::Pod(2), || UdpSocket::bind(other).unwrap());
    never.set_nonblocking(true).unwrap();
    let (is_done, sent, loading) = (AtomicBool::new(false), AtomicU32::new(0), Mutex::new(()));
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let sender = testbed.lab.inside(At::Pod(3), || UdpSocket::bind(any(target)).unwrap());
                let _not_now = loading.lock().unwrap();
                sender.send_to(b"denied", other).unwrap();
                sender.send_to(b"accepted", target).unwrap();
                // Times out if the packet was denied.
                uninterrupted(|| server.recv(&mut [0; 20])).unwrap();
                sent.fetch_add(1, Ordering::Relaxed);
            }
        });
        let wait_for_packets = || {
            let before = sent.load(Ordering::Relaxed);
            wait_until("packets", DEADLINE, || Ok(sent.load(Ordering::Relaxed) > before + 10)).unwrap();
        };
        for round in 0..ROUNDS {
            for structure in structures.iter().rev() {
                keep(&testbed, structure, &wanted);
                wait_for_packets();
            }
            let text = &of_other_releases(&listing)[round % 2];
            {
                // The other release replaces the table as it likes. Here only the way to this release is tested.
                let _no_packets = loading.lock().unwrap();
                testbed.lab.inside(At::Host, || {
                    run("nft", &["delete table inet podwire-policy"]);
                    run("nft", &[text]);
                });
            }
            wait_for_packets();
            keep(&testbed, &structures[0], &wanted);
        }
        is_done.store(true, Ordering::Relaxed);
        sending.join().unwrap();
    });
    assert!(never.recv(&mut [0; 20]).is_err(), "a denied packet arrived");
    println!("{} packets", sent.load(Ordering::Relaxed));
}
