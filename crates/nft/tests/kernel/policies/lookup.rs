//! The order of lookups: real packets against a plain reading of the documentation of [`VerdictKey`].

use model::objects::{Direction, PortRange};
use policy::{ClassId, PolicyElement, PolicyVerdict, VerdictKey};
use types::Protocol;

use super::judge::{Judged, Probe, Testbed, group};
use super::samples::{Random, address, class, options, profile, ranges, verdict};
use crate::lab::At;

/// The profile of pod 2, whose verdicts are tested.
const SUBJECT: u32 = 1;
/// The profile of pod 3, which accepts everything.
const ACCEPTING: u32 = 2;
const PORTS: [u16; 3] = [1010, 1015, 1025];
const OTHER: u8 = 253;

fn covers(key: VerdictKey, peer: ClassId, (number, at): (u8, Option<u16>)) -> bool {
    let of = profile(SUBJECT);
    let is = |protocol: Protocol| protocol.number() == number;
    match key {
        VerdictKey::PeerPort { profile, class, protocol, port } => {
            profile == of && class == peer && is(protocol) && at == Some(port)
        }
        VerdictKey::PeerRange { profile, class, protocol, ports } => {
            profile == of && class == peer && is(protocol) && at.is_some_and(|port| ports.contains(port))
        }
        VerdictKey::PeerProtocol { profile, class, protocol } => {
            profile == of && class == peer && protocol == number
        }
        VerdictKey::Peer { profile, class } => profile == of && class == peer,
        VerdictKey::AnyPodPort { class, protocol, port } => class == peer && is(protocol) && at == Some(port),
        VerdictKey::AnyPodRange { class, protocol, ports } => {
            class == peer && is(protocol) && at.is_some_and(|port| ports.contains(port))
        }
        VerdictKey::AnyPodProtocol { class, protocol } => class == peer && protocol == number,
        VerdictKey::AnyPod { class } => class == peer,
        VerdictKey::PeerClasses { profile, first, last } => profile == of && (first..=last).contains(&peer),
        VerdictKey::AnyPeerPort { profile, protocol, port } => {
            profile == of && is(protocol) && at == Some(port)
        }
        VerdictKey::AnyPeerRange { profile, protocol, ports } => {
            profile == of && is(protocol) && at.is_some_and(|port| ports.contains(port))
        }
        VerdictKey::AnyPeerProtocol { profile, protocol } => profile == of && protocol == number,
        VerdictKey::Default { profile } => profile == of,
    }
}

/// The first matching key in the order of [`VerdictKey`] decides.
fn expected(
    elements: &[PolicyElement],
    side: Direction,
    peer: ClassId,
    (probe, port): (Probe, u16),
) -> PolicyVerdict {
    let (number, at) = match probe {
        Probe::Udp => (17, Some(port)),
        Probe::Tcp => (6, Some(port)),
        Probe::Raw(number) => (number, None),
    };
    let mut keys: Vec<(VerdictKey, PolicyVerdict)> = elements
        .iter()
        .filter_map(|element| match *element {
            PolicyElement::Verdict { direction, key, verdict } if direction == side => Some((key, verdict)),
            PolicyElement::Verdict { .. }
            | PolicyElement::Address { .. }
            | PolicyElement::Addresses { .. }
            | PolicyElement::OwnAddress { .. } => None,
        })
        .collect();
    keys.sort();
    let mut matching = keys.into_iter().filter(|(key, _)| covers(*key, peer, (number, at)));
    matching.next().map_or(PolicyVerdict::Drop, |(_, verdict)| verdict)
}

/// Some of the elements that could match a packet of the peer, with any verdicts.
fn random_verdicts(random: &mut Random, side: Direction, class: ClassId) -> Vec<PolicyElement> {
    let (profile, ports) = (profile(SUBJECT), PortRange::new(1010, 1019).unwrap());
    let mut keys = Vec::new();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for port in PORTS {
            keys.push(VerdictKey::PeerPort { profile, class, protocol, port });
            keys.push(VerdictKey::AnyPodPort { class, protocol, port });
            keys.push(VerdictKey::AnyPeerPort { profile, protocol, port });
        }
        keys.push(VerdictKey::PeerRange { profile, class, protocol, ports });
        keys.push(VerdictKey::AnyPodRange { class, protocol, ports });
        keys.push(VerdictKey::AnyPeerRange { profile, protocol, ports });
    }
    for protocol in [Protocol::Tcp.number(), Protocol::Udp.number(), OTHER] {
        keys.push(VerdictKey::PeerProtocol { profile, class, protocol });
        keys.push(VerdictKey::AnyPodProtocol { class, protocol });
        keys.push(VerdictKey::AnyPeerProtocol { profile, protocol });
    }
    keys.push(VerdictKey::Peer { profile, class });
    keys.push(VerdictKey::AnyPod { class });
    keys.push(VerdictKey::PeerClasses { profile, first: ClassId(class.0 - 1), last: ClassId(class.0 + 1) });
    keys.push(VerdictKey::Default { profile });
    // The chance differs between calls: with few elements, the general ones decide, too.
    let chance = random.below(10) + 1;
    let mut chosen = Vec::new();
    for key in keys {
        let decided = [PolicyVerdict::Accept, PolicyVerdict::Drop][random.below(2) as usize];
        if random.below(10) < chance {
            chosen.push(verdict(side, key, decided));
        }
    }
    chosen
}

#[test]
fn the_most_specific_element_decides_in_both_directions_and_families() {
    let mut random = Random::new(7);
    let (peer, outside_class) = (class(1, 5), class(0, 1));
    let accepting =
        |side| verdict(side, VerdictKey::Default { profile: profile(ACCEPTING) }, PolicyVerdict::Accept);
    let mut base = ranges(&[], outside_class);
    base.extend([accepting(Direction::Ingress), accepting(Direction::Egress)]);
    base.extend([address("10.77.0.3", peer), address("fd77::3", peer)]);
    base.extend([address("10.77.0.2", class(1, 6)), address("fd77::2", class(1, 6))]);
    let groups = [group(profile(SUBJECT)), group(profile(ACCEPTING))];
    let testbed = Testbed::new(&options(), groups, &base);
    let (mut accepted, mut denied) = (0, 0);
    for round in 0..60 {
        let mut elements = base.clone();
        elements.extend(random_verdicts(&mut random, Direction::Ingress, peer));
        elements.extend(random_verdicts(&mut random, Direction::Egress, peer));
        testbed.apply(&elements);
        for side in [Direction::Ingress, Direction::Egress] {
            let (from, at, hosts, refused) = match side {
                Direction::Ingress => {
                    (At::Pod(3), At::Pod(2), ["10.77.0.2", "[fd77::2]"], Judged::DeniedIngress)
                }
                Direction::Egress => {
                    (At::Pod(2), At::Pod(3), ["10.77.0.3", "[fd77::3]"], Judged::DeniedEgress)
                }
            };
            let host = hosts[round % 2];
            for (probe, port) in [
                (Probe::Udp, PORTS[0]),
                (Probe::Udp, PORTS[1]),
                (Probe::Udp, PORTS[2]),
                (Probe::Tcp, PORTS[0]),
                (Probe::Tcp, PORTS[1]),
                (Probe::Tcp, PORTS[2]),
                (Probe::Raw(OTHER), 0),
            ] {
                let judged = testbed.judge(from, probe, (at, &format!("{host}:{port}")));
                let expected = match expected(&elements, side, peer, (probe, port)) {
                    PolicyVerdict::Accept => Judged::Accepted,
                    PolicyVerdict::Drop => refused,
                };
                match expected {
                    Judged::Accepted => accepted += 1,
                    _ => denied += 1,
                }
                assert_eq!(judged, expected, "{side:?} {host} {probe:?} {port}: {elements:#?}");
            }
        }
    }
    assert!(accepted > 100 && denied > 100, "{accepted} accepted, {denied} denied");
}
