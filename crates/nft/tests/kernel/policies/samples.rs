//! Elements of policies for the tests.

use std::net::IpAddr;

use model::objects::{Direction, PortRange};
use nft::desired::policy::{MarkBit, OwnNode, PolicyOptions, PolicySizes};
use policy::{ClassId, PolicyElement, PolicyVerdict, ProfileId, VerdictKey};
use types::Protocol;

pub(crate) const FORBIDDEN: u8 = 28;

pub(crate) fn options() -> PolicyOptions {
    PolicyOptions {
        forbidden: MarkBit::new(FORBIDDEN).unwrap(),
        own_node: OwnNode::Accepted,
        logs_per_second: Some(10),
        sizes: PolicySizes::default(),
    }
}

pub(crate) fn profile(number: u32) -> ProfileId {
    ProfileId(ProfileId::FIRST + number)
}

pub(crate) fn class(tenant: u32, number: u32) -> ClassId {
    ClassId((tenant << ClassId::SLOT_SHIFT) + ClassId::FIRST + number)
}

pub(crate) fn verdict(direction: Direction, key: VerdictKey, verdict: PolicyVerdict) -> PolicyElement {
    PolicyElement::Verdict { direction, key, verdict }
}

pub(crate) fn address(text: &str, class: ClassId) -> PolicyElement {
    PolicyElement::Address { address: text.parse().unwrap(), class }
}

pub(crate) fn own(text: &str) -> PolicyElement {
    PolicyElement::OwnAddress { address: text.parse().unwrap() }
}

/// Ranges that cover all addresses of both families: each begins at one of these addresses.
pub(crate) fn ranges(starts: &[(&str, ClassId)], default: ClassId) -> Vec<PolicyElement> {
    let mut out = Vec::new();
    for (zero, last) in [("0.0.0.0", "255.255.255.255"), ("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")] {
        let (zero, mut last): (IpAddr, IpAddr) = (zero.parse().unwrap(), last.parse().unwrap());
        let of_family = starts.iter().map(|(start, class)| (start.parse::<IpAddr>().unwrap(), *class));
        let mut starts: Vec<(IpAddr, ClassId)> =
            of_family.filter(|(start, _)| start.is_ipv4() == zero.is_ipv4()).collect();
        starts.push((zero, default));
        starts.sort();
        for (first, class) in starts.into_iter().rev() {
            out.push(PolicyElement::Addresses { first, last, class });
            last = match first {
                IpAddr::V4(ip) => IpAddr::V4(u32::from(ip).wrapping_sub(1).into()),
                IpAddr::V6(ip) => IpAddr::V6(u128::from(ip).wrapping_sub(1).into()),
            };
        }
    }
    out
}

/// Reproducible numbers.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, end: u32) -> u32 {
        // An LCG (Knuth). Its upper bits are random enough.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((self.0 >> 33) % u64::from(end)).unwrap()
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(u32::try_from(of.len()).unwrap()) as usize]
    }

    fn port(&mut self) -> u16 {
        u16::try_from(self.below(65_536)).unwrap()
    }
}

/// Different elements of all kinds, for about `count` verdicts. Each key once, intervals without overlap.
pub(crate) fn random_elements(random: &mut Random, count: u32) -> Vec<PolicyElement> {
    let mut elements: Vec<PolicyElement> = Vec::new();
    for n in 0..count / 4 {
        let [a, b] = u16::try_from(n).unwrap().to_be_bytes();
        let class = class(random.below(4000), random.below(1000));
        elements.push(address(&format!("10.1.{a}.{b}"), class));
        elements.push(address(&format!("fd00:1::{n:x}"), class));
        elements.push(own(&format!("10.2.{a}.{b}")));
        elements.push(own(&format!("fd00:2::{n:x}")));
    }
    for n in 0..count {
        let key = random_key(random, n);
        let direction = random.pick(&[Direction::Ingress, Direction::Egress]);
        let decided = random.pick(&[PolicyVerdict::Accept, PolicyVerdict::Drop]);
        elements.push(verdict(direction, key, decided));
    }
    let starts: Vec<(String, ClassId)> = (0..200)
        .map(|n| match random.below(2) {
            0 => (format!("10.{n}.{}.0", random.below(256)), class(0, random.below(9))),
            _ => (format!("fd00:{n:x}::{:x}", random.below(0x10000)), class(0, random.below(9))),
        })
        .collect();
    let starts: Vec<(&str, ClassId)> = starts.iter().map(|(start, class)| (start.as_str(), *class)).collect();
    elements.extend(ranges(&starts, class(0, 9)));
    elements.sort();
    elements
}

/// A key that no other number has: the number is in its profile and class.
fn random_key(random: &mut Random, n: u32) -> VerdictKey {
    let (profile, class) = (profile(n), class(n % 4000 + 1, n));
    let protocol = random.pick(&Protocol::ALL);
    let number = u8::try_from(random.below(256)).unwrap();
    let (port, other) = (random.port(), random.port());
    let ports = PortRange::new(port.min(other), port.max(other)).unwrap();
    match random.below(13) {
        0 => VerdictKey::PeerPort { profile, class, protocol, port },
        1 => VerdictKey::PeerRange { profile, class, protocol, ports },
        2 => VerdictKey::PeerProtocol { profile, class, protocol: number },
        3 => VerdictKey::Peer { profile, class },
        4 => VerdictKey::AnyPodPort { class, protocol, port },
        5 => VerdictKey::AnyPodRange { class, protocol, ports },
        6 => VerdictKey::AnyPodProtocol { class, protocol: number },
        7 => VerdictKey::AnyPod { class },
        8 => VerdictKey::PeerClasses { profile, first: ClassId(n), last: ClassId(u32::MAX - n) },
        9 => VerdictKey::AnyPeerPort { profile, protocol, port },
        10 => VerdictKey::AnyPeerRange { profile, protocol, ports },
        11 => VerdictKey::AnyPeerProtocol { profile, protocol: number },
        _ => VerdictKey::Default { profile },
    }
}
