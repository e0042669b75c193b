//! Denied packets are logged with direction, links and headers, at a limited rate.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use model::objects::Direction::{Egress, Ingress};
use netlink::RtSocket;
use nft::desired::policy::PolicyOptions;
use nft::{AttachMode, DeniedLog, DeniedPacket};
use policy::PolicyVerdict::{Accept, Drop};
use policy::VerdictKey;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::judge::{Testbed, any, group};
use super::samples::{class, options, profile, ranges, verdict};
use crate::common::Sample;
use crate::lab::At;

fn testbed(logs_per_second: Option<u32>) -> Testbed {
    let of = |number, side, decided| verdict(side, VerdictKey::Default { profile: profile(number) }, decided);
    let mut elements = ranges(&[], class(0, 0));
    elements.extend([
        of(1, Ingress, Drop),
        of(1, Egress, Drop),
        of(2, Ingress, Accept),
        of(2, Egress, Accept),
    ]);
    let groups = [group(profile(1)), group(profile(2))];
    Testbed::new(&PolicyOptions { logs_per_second, ..options() }, groups, &elements)
}

fn link(testbed: &Testbed, pod: u16) -> u32 {
    let name = Sample::new(AttachMode::Routed, pod).link;
    testbed.lab.inside(At::Host, || RtSocket::open().unwrap().link(&name).unwrap().unwrap().index)
}

/// Waits for the next packets.
fn next(log: &mut DeniedLog) -> Vec<DeniedPacket> {
    let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(&*log, PollFlags::IN)], Some(&timeout)).unwrap();
    assert_eq!(ready, 1, "no packet was logged");
    log.read().unwrap()
}

#[test]
fn denied_packets_are_logged_with_direction_links_and_headers() {
    let testbed = testbed(Some(100));
    let mut log = testbed.lab.inside(At::Host, || DeniedLog::open().unwrap());
    let taken = testbed.lab.inside(At::Host, || DeniedLog::open().unwrap_err().to_string());
    assert!(taken.contains("another process listens"), "{taken}");
    let (two, three) = (link(&testbed, 2), link(&testbed, 3));
    for (from, target, direction, links) in [
        (At::Pod(3), "10.77.0.2:4242", Ingress, (three, two)),
        (At::Pod(3), "[fd77::2]:4242", Ingress, (three, two)),
        (At::Pod(2), "10.77.0.3:4242", Egress, (two, three)),
        (At::Pod(2), "[fd77::3]:4242", Egress, (two, three)),
    ] {
        let target: SocketAddr = target.parse().unwrap();
        let sender = testbed.lab.inside(from, || UdpSocket::bind(any(target)).unwrap());
        sender.send_to(&[7; 1000], target).unwrap();
        let logged = next(&mut log);
        let [packet] = logged.as_slice() else { panic!("{logged:?}") };
        assert_eq!(
            (packet.direction, packet.input, packet.output),
            (direction, Some(links.0), Some(links.1))
        );
        assert_eq!(packet.packet.len(), 128);
        let header = if target.is_ipv4() { 20 } else { 40 };
        assert_eq!(packet.packet[0] >> 4, if target.is_ipv4() { 4 } else { 6 });
        assert_eq!(packet.packet[header + 2..header + 4], 4242_u16.to_be_bytes());
    }
}

#[test]
fn the_rate_of_logged_packets_is_limited_and_all_are_counted() {
    const RATE: u32 = 20;
    const SENT: u32 = 2000;
    let testbed = testbed(Some(RATE));
    let mut log = testbed.lab.inside(At::Host, || DeniedLog::open().unwrap());
    let target: SocketAddr = "10.77.0.2:4242".parse().unwrap();
    let sender = testbed.lab.inside(At::Pod(3), || UdpSocket::bind(any(target)).unwrap());
    let start = Instant::now();
    (0..SENT).for_each(|_| assert_eq!(sender.send_to(b"x", target).unwrap(), 1));
    while testbed.denied().ingress < SENT.into() {
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", testbed.denied());
        std::thread::yield_now();
    }
    let allowed = RATE + RATE * u32::try_from(start.elapsed().as_secs() + 1).unwrap();
    let mut logged = next(&mut log);
    // The burst is logged, the others are not.
    while logged.len() < RATE as usize {
        logged.append(&mut next(&mut log));
    }
    assert!(logged.len() <= allowed as usize, "{} packets were logged", logged.len());
    assert!(logged.iter().all(|packet| packet.direction == Ingress));
    assert_eq!(testbed.denied().ingress, u64::from(SENT));
}

#[test]
fn without_a_rate_nothing_is_logged_and_packets_are_counted() {
    let testbed = testbed(None);
    let mut log = testbed.lab.inside(At::Host, || DeniedLog::open().unwrap());
    let target: SocketAddr = "10.77.0.2:4242".parse().unwrap();
    let sender = testbed.lab.inside(At::Pod(3), || UdpSocket::bind(any(target)).unwrap());
    sender.send_to(b"x", target).unwrap();
    let start = Instant::now();
    while testbed.denied().ingress < 1 {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::yield_now();
    }
    let table = testbed.lab.inside(At::Host, || crate::common::nft("list ruleset"));
    assert!(!table.contains(" log "), "{table}");
    assert_eq!(log.read().unwrap(), []);
}
