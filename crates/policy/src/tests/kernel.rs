//! Evaluates elements as the firewall does.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::objects::{Direction, PortRange};

use crate::element::{ClassId, Delta, PolicyElement, PolicyVerdict, ProfileId, ProtocolNumber, VerdictKey};
use crate::engine::PolicyEngine;
use crate::traffic::with_ports;
use crate::world::PodUid;

#[derive(Debug, Clone, Default)]
pub(crate) struct Kernel {
    pub(crate) elements: BTreeSet<PolicyElement>,
    pub(crate) profiles: BTreeMap<PodUid, ProfileId>,
    verdicts: BTreeMap<(Direction, VerdictKey), PolicyVerdict>,
    classes: BTreeMap<IpAddr, ClassId>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Packet {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) protocol: ProtocolNumber,
    pub(crate) port: u16,
}

fn range_of(element: &PolicyElement) -> Option<(String, u128, u128)> {
    let number = |address: &IpAddr| match address {
        IpAddr::V4(address) => u128::from(u32::from(*address)),
        IpAddr::V6(address) => u128::from(*address),
    };
    let ports = |map: String, ports: &PortRange| (map, u128::from(ports.first()), u128::from(ports.last()));
    match element {
        PolicyElement::Addresses { first, last, class: _ } => {
            Some((format!("addresses {}", first.is_ipv4()), number(first), number(last)))
        }
        PolicyElement::Verdict { direction, key, verdict: _ } => match key {
            VerdictKey::PeerRange { profile, class, protocol, ports: range } => {
                Some(ports(format!("{direction:?} {profile:?} {class:?} {protocol}"), range))
            }
            VerdictKey::AnyPodRange { class, protocol, ports: range } => {
                Some(ports(format!("{direction:?} any {class:?} {protocol}"), range))
            }
            VerdictKey::AnyPeerRange { profile, protocol, ports: range } => {
                Some(ports(format!("{direction:?} {profile:?} any {protocol}"), range))
            }
            VerdictKey::PeerClasses { profile, first, last } => {
                Some((format!("{direction:?} {profile:?}"), u128::from(first.0), u128::from(last.0)))
            }
            _ => None,
        },
        PolicyElement::Address { .. } | PolicyElement::OwnAddress { .. } => None,
    }
}

impl Kernel {
    pub(crate) fn of(engine: &PolicyEngine) -> Self {
        let mut kernel = Self::default();
        for element in engine.elements() {
            assert!(kernel.elements.insert(element), "twice: {element:?}");
        }
        kernel.profiles = engine.profiles().map(|(pod, profile)| (pod.clone(), profile)).collect();
        kernel.index();
        kernel
    }

    /// Checks keys and ranges, and prepares lookups.
    fn index(&mut self) {
        self.verdicts.clear();
        self.classes.clear();
        let mut ranges: BTreeMap<String, Vec<(u128, u128)>> = BTreeMap::new();
        for element in &self.elements {
            match *element {
                PolicyElement::Address { address, class } => {
                    assert_eq!(self.classes.insert(address, class), None, "{element:?}");
                }
                PolicyElement::Verdict { direction, key, verdict } => {
                    assert_eq!(self.verdicts.insert((direction, key), verdict), None, "{element:?}");
                }
                PolicyElement::Addresses { .. } | PolicyElement::OwnAddress { .. } => {}
            }
            if let Some((map, first, last)) = range_of(element) {
                assert!(first <= last, "{element:?}");
                ranges.entry(map).or_default().push((first, last));
            }
        }
        for (map, mut ranges) in ranges {
            ranges.sort_unstable();
            for pair in ranges.windows(2) {
                assert!(pair[0].1 < pair[1].0, "{map}: {pair:?} overlap");
            }
        }
    }

    /// Applies the first transaction of a delta.
    pub(crate) fn set(&mut self, delta: &Delta) {
        for element in &delta.replaced {
            assert!(self.elements.remove(element), "not there: {element:?}");
        }
        for element in &delta.set {
            assert!(!delta.replaced.contains(element), "redundant: {element:?}");
            assert!(self.elements.insert(*element), "already there: {element:?}");
        }
        self.index();
    }

    pub(crate) fn finish(&mut self, delta: &Delta) {
        for (pod, profile) in &delta.profiles {
            assert_ne!(self.profiles.insert(pod.clone(), *profile), Some(*profile), "redundant: {pod}");
        }
        for element in &delta.removed {
            assert!(self.elements.remove(element), "not there: {element:?}");
        }
        self.index();
    }

    fn class(&self, packet: Packet, peer: IpAddr) -> ClassId {
        if packet.from == packet.to && self.elements.contains(&PolicyElement::OwnAddress { address: peer }) {
            return ClassId::SELF;
        }
        if let Some(class) = self.classes.get(&peer) {
            return *class;
        }
        let range = self.elements.iter().find_map(|element| match element {
            PolicyElement::Addresses { first, last, class }
                if first.is_ipv4() == peer.is_ipv4() && *first <= peer && peer <= *last =>
            {
                Some(*class)
            }
            _ => None,
        });
        range.unwrap_or(ClassId::NONE)
    }

    /// The verdict at a local pod.
    pub(crate) fn verdict(&self, direction: Direction, profile: ProfileId, packet: Packet) -> PolicyVerdict {
        let peer = match direction {
            Direction::Ingress => packet.from,
            Direction::Egress => packet.to,
        };
        let class = self.class(packet, peer);
        let exact = |key| self.verdicts.get(&(direction, key)).copied();
        let number = packet.protocol;
        let any = |is_match: &dyn Fn(&VerdictKey) -> bool| {
            let mut all = self.verdicts.iter().filter(|((of, _), _)| *of == direction);
            all.find(|((_, key), _)| is_match(key)).map(|(_, verdict)| *verdict)
        };
        let with = with_ports(number);
        let port = packet.port;
        let keys_of_peer = || {
            let ports = with.and_then(|protocol| {
                exact(VerdictKey::PeerPort { profile, class, protocol, port }).or_else(|| {
                    any(&|key| {
                        matches!(*key, VerdictKey::PeerRange { profile: p, class: c, protocol: n, ports }
                        if (p, c, n) == (profile, class, protocol) && ports.contains(port))
                    })
                })
            });
            ports
                .or_else(|| exact(VerdictKey::PeerProtocol { profile, class, protocol: number }))
                .or_else(|| exact(VerdictKey::Peer { profile, class }))
        };
        let any_pod = || {
            let ports = with.and_then(|protocol| {
                exact(VerdictKey::AnyPodPort { class, protocol, port }).or_else(|| {
                    any(&|key| {
                        matches!(*key, VerdictKey::AnyPodRange { class: c, protocol: n, ports }
                        if (c, n) == (class, protocol) && ports.contains(port))
                    })
                })
            });
            ports
                .or_else(|| exact(VerdictKey::AnyPodProtocol { class, protocol: number }))
                .or_else(|| exact(VerdictKey::AnyPod { class }))
        };
        let classes = || {
            any(&|key| {
                matches!(*key, VerdictKey::PeerClasses { profile: p, first, last }
                if p == profile && first <= class && class <= last)
            })
        };
        let any_peer = || {
            let ports = with.and_then(|protocol| {
                exact(VerdictKey::AnyPeerPort { profile, protocol, port }).or_else(|| {
                    any(&|key| {
                        matches!(*key, VerdictKey::AnyPeerRange { profile: p, protocol: n, ports }
                        if (p, n) == (profile, protocol) && ports.contains(port))
                    })
                })
            });
            ports
                .or_else(|| exact(VerdictKey::AnyPeerProtocol { profile, protocol: number }))
                .or_else(|| exact(VerdictKey::Default { profile }))
        };
        let found = keys_of_peer().or_else(any_pod).or_else(classes).or_else(any_peer);
        found.unwrap_or(PolicyVerdict::Drop)
    }
}
