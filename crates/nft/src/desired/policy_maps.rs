//! The maps of the table of policies: names, keys and sizes.

use std::collections::HashMap;

use model::objects::Direction;
use policy::{PolicyElement, VerdictKey};

use super::Type::{Class, LinkGroup, Port, Protocol};
use super::{Name, Set, SetKeys, SetValue, Type};

/// The largest number of elements of each map. A larger size is applied in place. The kernel allocates 11 to 22 bytes for each
/// when it creates the map, also without elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicySizes {
    /// Of the map of addresses of each family.
    pub addresses: u32,
    /// Of each map with profile and class in its key.
    pub peers: u32,
    /// Of each other map.
    pub others: u32,
}

impl Default for PolicySizes {
    fn default() -> Self {
        Self { addresses: 16_384, peers: 16_384, others: 2048 }
    }
}

impl PolicySizes {
    /// Raised if necessary, so that each map can have at least twice these elements. Never lowered.
    #[must_use]
    pub fn raised_for<'a>(self, elements: impl IntoIterator<Item = &'a PolicyElement>) -> Self {
        let mut counts: HashMap<(SizeClass, usize), u32> = HashMap::new();
        for element in elements {
            *counts.entry(size_class(element)).or_default() += 1;
        }
        let raised = |size: u32, of: SizeClass| {
            let largest = counts.iter().filter(|((class, _), _)| *class == of).map(|(_, count)| *count).max();
            match largest.unwrap_or_default().saturating_mul(2) {
                twice if twice > size => twice.checked_next_power_of_two().unwrap_or(u32::MAX),
                _ => size,
            }
        };
        Self {
            addresses: raised(self.addresses, SizeClass::Addresses),
            peers: raised(self.peers, SizeClass::Peers),
            others: raised(self.others, SizeClass::Others),
        }
    }
}

/// The field of [`PolicySizes`] that limits a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum SizeClass {
    Addresses,
    Peers,
    Others,
}

/// The limit of an element's map, and a number that distinguishes the maps with this limit.
fn size_class(element: &PolicyElement) -> (SizeClass, usize) {
    match *element {
        PolicyElement::Address { address, .. } => (SizeClass::Addresses, usize::from(address.is_ipv6())),
        PolicyElement::Addresses { first, .. } => (SizeClass::Others, usize::from(first.is_ipv6())),
        PolicyElement::OwnAddress { address } => (SizeClass::Others, 2 + usize::from(address.is_ipv6())),
        PolicyElement::Verdict { direction, ref key, .. } => {
            let map = VerdictMap::of(key);
            let number = 2 * map as usize + direction as usize;
            if map.is_of_peers() { (SizeClass::Peers, number) } else { (SizeClass::Others, 4 + number) }
        }
    }
}

/// The maps of verdicts, in the order in which they are looked up. The maps of any peer are looked up in reverse, and the last
/// match decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VerdictMap {
    PeerPort,
    PeerRange,
    PeerProtocol,
    Peer,
    AnyPodPort,
    AnyPodRange,
    AnyPodProtocol,
    AnyPod,
    PeerClasses,
    AnyPeerPort,
    AnyPeerRange,
    AnyPeerProtocol,
    Default,
}

impl VerdictMap {
    pub(super) const SPECIFIC: [Self; 8] = [
        Self::PeerPort,
        Self::PeerRange,
        Self::PeerProtocol,
        Self::Peer,
        Self::AnyPodPort,
        Self::AnyPodRange,
        Self::AnyPodProtocol,
        Self::AnyPod,
    ];
    /// From general to specific.
    pub(super) const ANY_PEER: [Self; 4] =
        [Self::Default, Self::AnyPeerProtocol, Self::AnyPeerRange, Self::AnyPeerPort];

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Self::SPECIFIC.into_iter().chain([Self::PeerClasses]).chain(Self::ANY_PEER)
    }

    pub(crate) fn of(key: &VerdictKey) -> Self {
        match key {
            VerdictKey::PeerPort { .. } => Self::PeerPort,
            VerdictKey::PeerRange { .. } => Self::PeerRange,
            VerdictKey::PeerProtocol { .. } => Self::PeerProtocol,
            VerdictKey::Peer { .. } => Self::Peer,
            VerdictKey::AnyPodPort { .. } => Self::AnyPodPort,
            VerdictKey::AnyPodRange { .. } => Self::AnyPodRange,
            VerdictKey::AnyPodProtocol { .. } => Self::AnyPodProtocol,
            VerdictKey::AnyPod { .. } => Self::AnyPod,
            VerdictKey::PeerClasses { .. } => Self::PeerClasses,
            VerdictKey::AnyPeerPort { .. } => Self::AnyPeerPort,
            VerdictKey::AnyPeerRange { .. } => Self::AnyPeerRange,
            VerdictKey::AnyPeerProtocol { .. } => Self::AnyPeerProtocol,
            VerdictKey::Default { .. } => Self::Default,
        }
    }

    pub(crate) fn name(self, direction: Direction) -> &'static str {
        let (ingress, egress) = match self {
            Self::PeerPort => ("in_peer_port", "out_peer_port"),
            Self::PeerRange => ("in_peer_range", "out_peer_range"),
            Self::PeerProtocol => ("in_peer_protocol", "out_peer_protocol"),
            Self::Peer => ("in_peer", "out_peer"),
            Self::AnyPodPort => ("in_pod_port", "out_pod_port"),
            Self::AnyPodRange => ("in_pod_range", "out_pod_range"),
            Self::AnyPodProtocol => ("in_pod_protocol", "out_pod_protocol"),
            Self::AnyPod => ("in_pod", "out_pod"),
            Self::PeerClasses => ("in_peer_classes", "out_peer_classes"),
            Self::AnyPeerPort => ("in_any_port", "out_any_port"),
            Self::AnyPeerRange => ("in_any_range", "out_any_range"),
            Self::AnyPeerProtocol => ("in_any_protocol", "out_any_protocol"),
            Self::Default => ("in_default", "out_default"),
        };
        match direction {
            Direction::Ingress => ingress,
            Direction::Egress => egress,
        }
    }

    fn key(self) -> &'static [Type] {
        match self {
            Self::PeerPort | Self::PeerRange => &[LinkGroup, Class, Protocol, Port],
            Self::PeerProtocol => &[LinkGroup, Class, Protocol],
            Self::Peer | Self::PeerClasses => &[LinkGroup, Class],
            Self::AnyPodPort | Self::AnyPodRange => &[Class, Protocol, Port],
            Self::AnyPodProtocol => &[Class, Protocol],
            Self::AnyPod => &[Class],
            Self::AnyPeerPort | Self::AnyPeerRange => &[LinkGroup, Protocol, Port],
            Self::AnyPeerProtocol => &[LinkGroup, Protocol],
            Self::Default => &[LinkGroup],
        }
    }

    pub(crate) fn keys(self) -> SetKeys {
        match self {
            Self::PeerRange | Self::AnyPodRange | Self::PeerClasses | Self::AnyPeerRange => {
                SetKeys::Intervals
            }
            Self::PeerPort
            | Self::PeerProtocol
            | Self::Peer
            | Self::AnyPodPort
            | Self::AnyPodProtocol
            | Self::AnyPod
            | Self::AnyPeerPort
            | Self::AnyPeerProtocol
            | Self::Default => SetKeys::Exact,
        }
    }

    fn is_of_peers(self) -> bool {
        matches!(self, Self::PeerPort | Self::PeerRange | Self::PeerProtocol | Self::Peer)
    }

    pub(super) fn set(self, direction: Direction, sizes: PolicySizes) -> Set {
        let size = if self.is_of_peers() { sizes.peers } else { sizes.others };
        let set = classes(self.name(direction), self.key(), size);
        Set { keys: self.keys(), ..set }
    }

    /// The rule that looks up the map. If it has no match, the register keeps its value.
    pub(super) fn rule(self, direction: Direction) -> Name {
        let part = |part: &Type| match part {
            LinkGroup => link_group(direction).to_owned(),
            other => other.expression(),
        };
        let key: Vec<String> = self.key().iter().map(part).collect();
        format!("meta priority set {} map @{}", key.join(" . "), self.name(direction)).into()
    }
}

/// The expression of the pod's profile: the group of its link.
pub(super) fn link_group(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "oifgroup",
        Direction::Egress => "iifgroup",
    }
}

pub(super) fn classes(name: &'static str, key: &[Type], size: u32) -> Set {
    Set { value: SetValue::Data(vec![Class]), size: Some(size), ..Set::lasting(name, key) }
}
