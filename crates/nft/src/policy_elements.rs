//! The elements of the table of policies: from the engine's values to the kernel's bytes and back. Pure.

use std::net::IpAddr;

use model::objects::PortRange;
use policy::{ClassId, PolicyElement, PolicyVerdict, ProfileId, VerdictKey};
use types::Protocol;

use crate::desired::SetKeys;
use crate::desired::policy::{CLASSES, DIRECTIONS, OWN, POLICY, RANGES, result};
use crate::desired::policy_maps::VerdictMap;
use crate::diff::{StoredData, StoredElements};
use crate::element::{Data, Element, Field, StoredKey};

pub(crate) fn elements(of: &[PolicyElement]) -> Vec<Element<'static>> {
    of.iter().map(element).collect()
}

fn element(of: &PolicyElement) -> Element<'static> {
    let class = |class: ClassId| Data::Value(vec![Field::Class(class.0)]);
    let (set, key, data) = match *of {
        PolicyElement::Address { address, class: of } => {
            (by_family(CLASSES, address), vec![Field::Ip(address)], class(of))
        }
        PolicyElement::Addresses { first, last, class: of } => {
            (by_family(RANGES, first), vec![Field::Range(first, last)], class(of))
        }
        PolicyElement::OwnAddress { address } => {
            (by_family(OWN, address), vec![Field::Ip(address); 2], Data::None)
        }
        PolicyElement::Verdict { direction, key, verdict } => {
            (VerdictMap::of(&key).name(direction), fields(key), class(result(verdict)))
        }
    };
    Element::new(POLICY, set, key, data)
}

fn by_family(names: [&'static str; 2], address: IpAddr) -> &'static str {
    names[usize::from(address.is_ipv6())]
}

fn fields(key: VerdictKey) -> Vec<Field<'static>> {
    let group = |profile: ProfileId| Field::LinkGroup(profile.0);
    let of = |class: ClassId| Field::Class(class.0);
    let interval = |ports: PortRange| Field::Ports(ports.first(), ports.last());
    match key {
        VerdictKey::PeerPort { profile, class, protocol, port } => {
            vec![group(profile), of(class), Field::Protocol(protocol), Field::Port(port)]
        }
        VerdictKey::PeerRange { profile, class, protocol, ports } => {
            vec![group(profile), of(class), Field::Protocol(protocol), interval(ports)]
        }
        VerdictKey::PeerProtocol { profile, class, protocol } => {
            vec![group(profile), of(class), Field::ProtocolNumber(protocol)]
        }
        VerdictKey::Peer { profile, class } => vec![group(profile), of(class)],
        VerdictKey::AnyPodPort { class, protocol, port } => {
            vec![of(class), Field::Protocol(protocol), Field::Port(port)]
        }
        VerdictKey::AnyPodRange { class, protocol, ports } => {
            vec![of(class), Field::Protocol(protocol), interval(ports)]
        }
        VerdictKey::AnyPodProtocol { class, protocol } => vec![of(class), Field::ProtocolNumber(protocol)],
        VerdictKey::AnyPod { class } => vec![of(class)],
        VerdictKey::PeerClasses { profile, first, last } => {
            vec![group(profile), Field::Classes(first.0, last.0)]
        }
        VerdictKey::AnyPeerPort { profile, protocol, port } => {
            vec![group(profile), Field::Protocol(protocol), Field::Port(port)]
        }
        VerdictKey::AnyPeerRange { profile, protocol, ports } => {
            vec![group(profile), Field::Protocol(protocol), interval(ports)]
        }
        VerdictKey::AnyPeerProtocol { profile, protocol } => {
            vec![group(profile), Field::ProtocolNumber(protocol)]
        }
        VerdictKey::Default { profile } => vec![group(profile)],
    }
}

/// The values that the listed elements stand for, sorted. An error names a set with an element that Podwire does not write.
pub(crate) fn read(stored: StoredElements) -> Result<Vec<PolicyElement>, String> {
    let mut found = Vec::new();
    for (set, elements) in stored {
        let elements: Vec<Stored> = elements.into_iter().collect();
        let read = match set.as_str() {
            name if CLASSES.contains(&name) => addresses(&elements),
            name if RANGES.contains(&name) => ranges(&elements),
            name if OWN.contains(&name) => own(&elements),
            name => verdicts(name, &elements),
        };
        found.append(&mut read.ok_or(set)?);
    }
    found.sort_unstable();
    Ok(found)
}

type Stored = (StoredKey, StoredData);

fn addresses(elements: &[Stored]) -> Option<Vec<PolicyElement>> {
    let read = |(key, data): &Stored| {
        Some(PolicyElement::Address { address: address(&key.key)?, class: class_of(data)? })
    };
    elements.iter().map(read).collect()
}

/// The kernel lists both ends of an interval as elements. Ranges do not overlap, so the end of a range is the next end by address.
/// A range to the end of the address space has none.
fn ranges(elements: &[Stored]) -> Option<Vec<PolicyElement>> {
    let mut ends: Vec<IpAddr> = Vec::new();
    for (key, _) in elements.iter().filter(|(key, _)| key.is_interval_end) {
        ends.push(address(&key.key)?);
    }
    ends.sort_unstable();
    let read = |(key, data): &Stored| {
        let first = address(&key.key)?;
        let next = ends.get(ends.partition_point(|end| *end <= first));
        let last = next.map_or_else(|| greatest(first), |end| before(*end));
        Some(PolicyElement::Addresses { first, last, class: class_of(data)? })
    };
    elements.iter().filter(|(key, _)| !key.is_interval_end).map(read).collect()
}

fn greatest(of_family: IpAddr) -> IpAddr {
    match of_family {
        IpAddr::V4(_) => [u8::MAX; 4].into(),
        IpAddr::V6(_) => [u8::MAX; 16].into(),
    }
}

/// The address before this one, which is not the first one.
fn before(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(ip) => IpAddr::V4(u32::from(ip).wrapping_sub(1).into()),
        IpAddr::V6(ip) => IpAddr::V6(u128::from(ip).wrapping_sub(1).into()),
    }
}

fn own(elements: &[Stored]) -> Option<Vec<PolicyElement>> {
    let read = |(key, _): &Stored| {
        let (source, destination) = key.key.split_at_checked(key.key.len() / 2)?;
        (source == destination).then_some(())?;
        Some(PolicyElement::OwnAddress { address: address(source)? })
    };
    elements.iter().map(read).collect()
}

fn verdicts(set: &str, elements: &[Stored]) -> Option<Vec<PolicyElement>> {
    let mut maps = DIRECTIONS.into_iter().flat_map(|of| VerdictMap::all().map(move |map| (of, map)));
    let (direction, map) = maps.find(|(direction, map)| map.name(*direction) == set)?;
    let read = |(key, data): &Stored| {
        let verdict = match class_of(data)? {
            ClassId::ACCEPTED => PolicyVerdict::Accept,
            ClassId::DROPPED => PolicyVerdict::Drop,
            ClassId(_) => return None,
        };
        Some(PolicyElement::Verdict { direction, key: verdict_key(map, key)?, verdict })
    };
    elements.iter().map(read).collect()
}

/// The fields of a key as they are stored, each in four bytes.
struct KeyWords<'a> {
    first: &'a [u8],
    last: &'a [u8],
    keys: SetKeys,
}

impl<'a> KeyWords<'a> {
    fn next(&mut self) -> Option<([u8; 4], [u8; 4])> {
        let (first, last);
        (first, self.first) = self.first.split_first_chunk()?;
        (last, self.last) = self.last.split_first_chunk()?;
        Some((*first, *last))
    }

    /// Numbers of intervals are in network byte order.
    fn numbers(&mut self) -> Option<(u32, u32)> {
        let number = match self.keys {
            SetKeys::Exact => u32::from_ne_bytes,
            SetKeys::Intervals => u32::from_be_bytes,
        };
        let (first, last) = self.next()?;
        Some((number(first), number(last)))
    }

    fn profile(&mut self) -> Option<ProfileId> {
        self.numbers().map(|(first, _)| ProfileId(first))
    }

    fn class(&mut self) -> Option<ClassId> {
        self.numbers().map(|(first, _)| ClassId(first))
    }

    fn number(&mut self) -> Option<u8> {
        self.next().map(|([number, ..], _)| number)
    }

    fn protocol(&mut self) -> Option<Protocol> {
        let number = self.number()?;
        Protocol::ALL.into_iter().find(|protocol| protocol.number() == number)
    }

    fn port(&mut self) -> Option<u16> {
        self.next().map(|([high, low, ..], _)| u16::from_be_bytes([high, low]))
    }

    fn ports(&mut self) -> Option<PortRange> {
        let ([a, b, ..], [c, d, ..]) = self.next()?;
        PortRange::new(u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
    }
}

fn verdict_key(map: VerdictMap, stored: &StoredKey) -> Option<VerdictKey> {
    let last = stored.last.as_ref().unwrap_or(&stored.key);
    let mut key = KeyWords { first: &stored.key, last, keys: map.keys() };
    let read = match map {
        VerdictMap::PeerPort => VerdictKey::PeerPort {
            profile: key.profile()?,
            class: key.class()?,
            protocol: key.protocol()?,
            port: key.port()?,
        },
        VerdictMap::PeerRange => VerdictKey::PeerRange {
            profile: key.profile()?,
            class: key.class()?,
            protocol: key.protocol()?,
            ports: key.ports()?,
        },
        VerdictMap::PeerProtocol => {
            VerdictKey::PeerProtocol { profile: key.profile()?, class: key.class()?, protocol: key.number()? }
        }
        VerdictMap::Peer => VerdictKey::Peer { profile: key.profile()?, class: key.class()? },
        VerdictMap::AnyPodPort => {
            VerdictKey::AnyPodPort { class: key.class()?, protocol: key.protocol()?, port: key.port()? }
        }
        VerdictMap::AnyPodRange => {
            VerdictKey::AnyPodRange { class: key.class()?, protocol: key.protocol()?, ports: key.ports()? }
        }
        VerdictMap::AnyPodProtocol => {
            VerdictKey::AnyPodProtocol { class: key.class()?, protocol: key.number()? }
        }
        VerdictMap::AnyPod => VerdictKey::AnyPod { class: key.class()? },
        VerdictMap::PeerClasses => {
            let (profile, (first, last)) = (key.profile()?, key.numbers()?);
            VerdictKey::PeerClasses { profile, first: ClassId(first), last: ClassId(last) }
        }
        VerdictMap::AnyPeerPort => {
            VerdictKey::AnyPeerPort { profile: key.profile()?, protocol: key.protocol()?, port: key.port()? }
        }
        VerdictMap::AnyPeerRange => VerdictKey::AnyPeerRange {
            profile: key.profile()?,
            protocol: key.protocol()?,
            ports: key.ports()?,
        },
        VerdictMap::AnyPeerProtocol => {
            VerdictKey::AnyPeerProtocol { profile: key.profile()?, protocol: key.number()? }
        }
        VerdictMap::Default => VerdictKey::Default { profile: key.profile()? },
    };
    Some(read)
}

fn class_of(data: &StoredData) -> Option<ClassId> {
    let bytes = data.value.as_deref()?.first_chunk().copied()?;
    Some(ClassId(u32::from_ne_bytes(bytes)))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => bytes.first_chunk::<4>().map(|ip| IpAddr::from(*ip)),
        16 => bytes.first_chunk::<16>().map(|ip| IpAddr::from(*ip)),
        _ => None,
    }
}
