//! Flows from pods to their own node pass the input hook. They are judged there if a policy names nodes.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use model::objects::Direction::{Egress, Ingress};
use nft::DeniedPackets;
use nft::desired::policy::{OwnNode, PolicyOptions};
use policy::PolicyVerdict::{Accept, Drop};
use policy::{ClassId, PolicyElement, VerdictKey};
use rustix::net::{RecvFlags, SendFlags, recv, sendto};
use types::Protocol;

use super::judge::{Judged, Probe, Testbed, group, raw};
use super::samples::{address, class, options, profile, ranges, verdict};
use crate::lab::At;

const NODE: ClassId = ClassId(17);
const HOSTS: [(&str, &str); 2] = [("10.77.0.1", "192.0.2.1"), ("[fd77::1]", "[2001:db8::1]")];

/// Nothing is accepted by elements for any peer.
fn elements(others: &[PolicyElement]) -> Vec<PolicyElement> {
    let mut all = ranges(&[], class(0, 0));
    let default = VerdictKey::Default { profile: profile(1) };
    all.extend([verdict(Ingress, default, Drop), verdict(Egress, default, Drop)]);
    all.extend(["10.77.0.1", "fd77::1", "192.0.2.1"].map(|ip| address(ip, NODE)));
    all.extend(others);
    all
}

fn testbed(own_node: OwnNode) -> Testbed {
    Testbed::new(&PolicyOptions { own_node, ..options() }, [group(profile(1)); 2], &elements(&[]))
}

#[test]
fn only_elements_of_its_class_deny_flows_to_the_own_node() {
    let (judged, accepted) = (testbed(OwnNode::Judged), testbed(OwnNode::Accepted));
    let key = VerdictKey::PeerPort { profile: profile(1), class: NODE, protocol: Protocol::Tcp, port: 22 };
    let of_any_pod = VerdictKey::AnyPodProtocol { class: NODE, protocol: Protocol::Udp.number() };
    let accepts = VerdictKey::Peer { profile: profile(1), class: NODE };
    for (others, probe, port, expected) in [
        (vec![], Probe::Tcp, 22, Judged::Accepted),
        (vec![verdict(Egress, key, Drop)], Probe::Tcp, 22, Judged::DeniedEgress),
        (vec![verdict(Egress, key, Drop)], Probe::Tcp, 23, Judged::Accepted),
        (vec![verdict(Egress, key, Drop)], Probe::Udp, 22, Judged::Accepted),
        (vec![verdict(Egress, of_any_pod, Drop)], Probe::Udp, 9, Judged::DeniedEgress),
        (vec![verdict(Egress, of_any_pod, Drop)], Probe::Tcp, 9, Judged::Accepted),
        (
            vec![verdict(Egress, of_any_pod, Drop), verdict(Egress, accepts, Accept)],
            Probe::Udp,
            9,
            Judged::Accepted,
        ),
        // Ingress elements do not matter.
        (vec![verdict(Ingress, accepts, Drop)], Probe::Udp, 9, Judged::Accepted),
    ] {
        let elements = elements(&others);
        judged.apply(&elements);
        accepted.apply(&elements);
        for (gateway, other) in HOSTS {
            let target = format!("{gateway}:{port}");
            assert_eq!(judged.judge(At::Pod(2), probe, (At::Host, &target)), expected, "{target} {others:?}");
            assert_eq!(accepted.judge(At::Pod(2), probe, (At::Host, &target)), Judged::Accepted, "{target}");
            if other.starts_with('1') {
                let target = format!("{other}:{port}");
                assert_eq!(judged.judge(At::Pod(2), probe, (At::Host, &target)), expected, "{target}");
            }
        }
    }
}

#[test]
fn neighbour_discovery_passes_when_the_node_denies_everything() {
    let testbed = testbed(OwnNode::Judged);
    testbed.apply(&elements(&[verdict(Egress, VerdictKey::AnyPod { class: NODE }, Drop)]));
    let gateway: Ipv6Addr = "fd77::1".parse().unwrap();
    let number = 58;
    let [sender, receiver] =
        [At::Pod(2), At::Host].map(|at| testbed.lab.inside(at, || raw(gateway.into(), number)));
    // A neighbour solicitation, then an echo request of the same length. The kernel computes the checksums.
    let send = |kind: u8| {
        let message = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &gateway.octets()].concat();
        sendto(&sender, &message, SendFlags::empty(), &SocketAddr::new(gateway.into(), 0)).unwrap();
    };
    send(135);
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut received = [0; 99];
    while recv(&receiver, &mut received, RecvFlags::DONTWAIT).is_err() {
        assert!(Instant::now() < deadline, "the solicitation did not arrive");
        std::thread::yield_now();
    }
    assert_eq!((received[0], testbed.denied()), (135, DeniedPackets::default()));
    send(128);
    while testbed.denied().egress == 0 {
        assert!(Instant::now() < deadline, "the echo request was not denied");
        std::thread::yield_now();
    }
}

#[test]
fn the_host_reaches_pods_that_may_not_reach_the_host() {
    let testbed = testbed(OwnNode::Judged);
    testbed.apply(&elements(&[verdict(Egress, VerdictKey::AnyPod { class: NODE }, Drop)]));
    for target in ["10.77.0.2:80", "[fd77::2]:80"] {
        let server = testbed.lab.serve(At::Pod(2), Protocol::Tcp, target);
        testbed.lab.ask(At::Host, target, &server).unwrap();
    }
}
