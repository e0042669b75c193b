//! Interprets a set of elements as the kernel does: it looks up the class of the peer, then the maps in the order of [`VerdictKey`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;

use model::objects::{Direction, PortRange};
use policy::{ClassId, PolicyElement, PolicyVerdict, ProfileId, ProtocolNumber, VerdictKey};
use types::{Family, Protocol};

use crate::Flow;

/// A model of the kernel: the maps of the firewall.
#[derive(Debug, Clone, Default)]
pub struct Kernel {
    elements: BTreeSet<PolicyElement>,
    classes: HashMap<IpAddr, ClassId>,
    address_ranges: BTreeMap<Family, IntervalMap<IpAddr, ClassId>>,
    verdicts: HashMap<(Direction, VerdictKey), PolicyVerdict>,
    port_ranges: HashMap<(Direction, RangeScope, Protocol), IntervalMap<u16, PolicyVerdict>>,
    class_ranges: HashMap<(Direction, ProfileId), IntervalMap<ClassId, PolicyVerdict>>,
}

/// An operation that the kernel refuses, or that the engine must never request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefusedElement {
    KeyExists(PolicyElement),
    Overlap(PolicyElement),
    Missing(PolicyElement),
    /// A number, range or protocol that no map accepts.
    Invalid(PolicyElement),
}

impl fmt::Display for RefusedElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeyExists(element) => write!(f, "the key of {element:?} exists"),
            Self::Overlap(element) => write!(f, "{element:?} overlaps another interval of its map"),
            Self::Missing(element) => write!(f, "{element:?} to delete does not exist"),
            Self::Invalid(element) => write!(f, "{element:?} is invalid"),
        }
    }
}

/// The key of an interval map of ports, without protocol and ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum RangeScope {
    Peer(ProfileId, ClassId),
    AnyPod(ClassId),
    AnyPeer(ProfileId),
}

/// Intervals that do not overlap. The key is the first member, the value has the last member and the mapped value.
#[derive(Debug, Clone)]
struct IntervalMap<K, V>(BTreeMap<K, (K, V)>);

impl<K: Ord + Copy, V: Copy> IntervalMap<K, V> {
    fn get(&self, key: K) -> Option<V> {
        let (_, (last, value)) = self.0.range(..=key).next_back()?;
        (key <= *last).then_some(*value)
    }

    /// False if it overlaps another interval.
    fn insert(&mut self, first: K, last: K, value: V) -> bool {
        let is_free = self.0.range(..=last).next_back().is_none_or(|(_, (other, _))| *other < first);
        if is_free {
            self.0.insert(first, (last, value));
        }
        is_free
    }
}

impl<K, V> Default for IntervalMap<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl Kernel {
    pub fn load(elements: impl IntoIterator<Item = PolicyElement>) -> Result<Self, RefusedElement> {
        let mut kernel = Self::default();
        kernel.transaction([], elements)?;
        Ok(kernel)
    }

    pub fn elements(&self) -> &BTreeSet<PolicyElement> {
        &self.elements
    }

    /// Deletes, then adds. After a refusal, the state is undefined.
    pub fn transaction(
        &mut self,
        delete: impl IntoIterator<Item = PolicyElement>,
        add: impl IntoIterator<Item = PolicyElement>,
    ) -> Result<(), RefusedElement> {
        delete.into_iter().try_for_each(|element| self.delete(element))?;
        add.into_iter().try_for_each(|element| self.add(element))
    }

    fn add(&mut self, element: PolicyElement) -> Result<(), RefusedElement> {
        if !is_valid(&element) {
            return Err(RefusedElement::Invalid(element));
        }
        if !self.elements.insert(element) {
            return Err(RefusedElement::KeyExists(element));
        }
        match element {
            PolicyElement::Address { address, class } => {
                refuse_if(self.classes.insert(address, class).is_some(), RefusedElement::KeyExists(element))
            }
            PolicyElement::Addresses { first, last, class } => {
                let ranges = self.address_ranges.entry(Family::of(first)).or_default();
                refuse_if(!ranges.insert(first, last, class), RefusedElement::Overlap(element))
            }
            PolicyElement::OwnAddress { .. } => Ok(()),
            PolicyElement::Verdict { direction, key, verdict } => match MapSlot::of(key) {
                MapSlot::Single => {
                    let earlier = self.verdicts.insert((direction, key), verdict);
                    refuse_if(earlier.is_some(), RefusedElement::KeyExists(element))
                }
                MapSlot::Ports(scope, protocol, ports) => {
                    let ranges = self.port_ranges.entry((direction, scope, protocol)).or_default();
                    let is_added = ranges.insert(ports.first(), ports.last(), verdict);
                    refuse_if(!is_added, RefusedElement::Overlap(element))
                }
                MapSlot::Classes { profile, first, last } => {
                    let ranges = self.class_ranges.entry((direction, profile)).or_default();
                    refuse_if(!ranges.insert(first, last, verdict), RefusedElement::Overlap(element))
                }
            },
        }
    }

    fn delete(&mut self, element: PolicyElement) -> Result<(), RefusedElement> {
        if !self.elements.remove(&element) {
            return Err(RefusedElement::Missing(element));
        }
        match element {
            PolicyElement::Address { address, .. } => drop(self.classes.remove(&address)),
            PolicyElement::Addresses { first, .. } => {
                self.address_ranges.entry(Family::of(first)).or_default().0.remove(&first);
            }
            PolicyElement::OwnAddress { .. } => {}
            PolicyElement::Verdict { direction, key, .. } => match MapSlot::of(key) {
                MapSlot::Single => drop(self.verdicts.remove(&(direction, key))),
                MapSlot::Ports(scope, protocol, ports) => {
                    let ranges = self.port_ranges.entry((direction, scope, protocol)).or_default();
                    ranges.0.remove(&ports.first());
                }
                MapSlot::Classes { profile, first, .. } => {
                    self.class_ranges.entry((direction, profile)).or_default().0.remove(&first);
                }
            },
        }
        Ok(())
    }

    /// The class of the peer: its own element, else a range. A pod as its own peer has a class of its own.
    pub fn class(&self, flow: &Flow, direction: Direction) -> ClassId {
        let peer = flow.peer(direction);
        let is_own = || self.elements.contains(&PolicyElement::OwnAddress { address: peer });
        if flow.source == flow.destination && is_own() {
            return ClassId::SELF;
        }
        let range = || self.address_ranges.get(&Family::of(peer)).and_then(|ranges| ranges.get(peer));
        self.classes.get(&peer).copied().or_else(range).unwrap_or(ClassId::NONE)
    }

    /// The verdict for a pod with this profile on its link. The first map with a matching element decides.
    pub fn judge(&self, profile: ProfileId, direction: Direction, flow: &Flow) -> PolicyVerdict {
        if profile.0 < ProfileId::FIRST {
            return PolicyVerdict::Drop;
        }
        let class = self.class(flow, direction);
        let lookup = Lookup { kernel: self, direction, protocol: flow.protocol, port: port(flow) };
        let of_class = || {
            let range = self.class_ranges.get(&(direction, profile))?;
            range.get(class)
        };
        lookup
            .ports(RangeScope::Peer(profile, class))
            .or_else(|| lookup.protocol(RangeScope::Peer(profile, class)))
            .or_else(|| lookup.ports(RangeScope::AnyPod(class)))
            .or_else(|| lookup.protocol(RangeScope::AnyPod(class)))
            .or_else(of_class)
            .or_else(|| lookup.ports(RangeScope::AnyPeer(profile)))
            .or_else(|| lookup.protocol(RangeScope::AnyPeer(profile)))
            .unwrap_or(PolicyVerdict::Drop)
    }
}

/// A flow in the maps of one direction.
struct Lookup<'a> {
    kernel: &'a Kernel,
    direction: Direction,
    protocol: ProtocolNumber,
    port: Option<(Protocol, u16)>,
}

impl Lookup<'_> {
    fn single(&self, key: VerdictKey) -> Option<PolicyVerdict> {
        self.kernel.verdicts.get(&(self.direction, key)).copied()
    }

    /// A single port, then the ranges.
    fn ports(&self, scope: RangeScope) -> Option<PolicyVerdict> {
        let (protocol, port) = self.port?;
        let key = match scope {
            RangeScope::Peer(profile, class) => VerdictKey::PeerPort { profile, class, protocol, port },
            RangeScope::AnyPod(class) => VerdictKey::AnyPodPort { class, protocol, port },
            RangeScope::AnyPeer(profile) => VerdictKey::AnyPeerPort { profile, protocol, port },
        };
        let ranges = || self.kernel.port_ranges.get(&(self.direction, scope, protocol))?.get(port);
        self.single(key).or_else(ranges)
    }

    /// The whole protocol, then all protocols.
    fn protocol(&self, scope: RangeScope) -> Option<PolicyVerdict> {
        let protocol = self.protocol;
        let (specific, general) = match scope {
            RangeScope::Peer(profile, class) => {
                (VerdictKey::PeerProtocol { profile, class, protocol }, VerdictKey::Peer { profile, class })
            }
            RangeScope::AnyPod(class) => {
                (VerdictKey::AnyPodProtocol { class, protocol }, VerdictKey::AnyPod { class })
            }
            RangeScope::AnyPeer(profile) => {
                (VerdictKey::AnyPeerProtocol { profile, protocol }, VerdictKey::Default { profile })
            }
        };
        self.single(specific).or_else(|| self.single(general))
    }
}

fn port(flow: &Flow) -> Option<(Protocol, u16)> {
    flow.transport().zip(flow.port)
}

/// The kind of map that a verdict belongs to.
enum MapSlot {
    Single,
    Ports(RangeScope, Protocol, PortRange),
    Classes { profile: ProfileId, first: ClassId, last: ClassId },
}

impl MapSlot {
    fn of(key: VerdictKey) -> Self {
        match key {
            VerdictKey::PeerRange { profile, class, protocol, ports } => {
                Self::Ports(RangeScope::Peer(profile, class), protocol, ports)
            }
            VerdictKey::AnyPodRange { class, protocol, ports } => {
                Self::Ports(RangeScope::AnyPod(class), protocol, ports)
            }
            VerdictKey::AnyPeerRange { profile, protocol, ports } => {
                Self::Ports(RangeScope::AnyPeer(profile), protocol, ports)
            }
            VerdictKey::PeerClasses { profile, first, last } => Self::Classes { profile, first, last },
            VerdictKey::PeerPort { .. }
            | VerdictKey::PeerProtocol { .. }
            | VerdictKey::Peer { .. }
            | VerdictKey::AnyPodPort { .. }
            | VerdictKey::AnyPodProtocol { .. }
            | VerdictKey::AnyPod { .. }
            | VerdictKey::AnyPeerPort { .. }
            | VerdictKey::AnyPeerProtocol { .. }
            | VerdictKey::Default { .. } => Self::Single,
        }
    }
}

fn refuse_if(is_refused: bool, refusal: RefusedElement) -> Result<(), RefusedElement> {
    if is_refused { Err(refusal) } else { Ok(()) }
}

fn is_valid(element: &PolicyElement) -> bool {
    let is_class = |class: ClassId| class.0 >= ClassId::FIRST;
    match *element {
        PolicyElement::Address { class, .. } => is_class(class),
        PolicyElement::Addresses { first, last, class } => {
            is_class(class) && Family::of(first) == Family::of(last) && first <= last
        }
        PolicyElement::OwnAddress { .. } => true,
        PolicyElement::Verdict { key, .. } => {
            profile_of(key).is_none_or(|profile| profile.0 >= ProfileId::FIRST)
                && class_of(key).is_none_or(|class| is_class(class) || class == ClassId::SELF)
                && match MapSlot::of(key) {
                    MapSlot::Single | MapSlot::Ports(..) => true,
                    MapSlot::Classes { first, last, .. } => first <= last && is_class(first),
                }
        }
    }
}

fn profile_of(key: VerdictKey) -> Option<ProfileId> {
    match key {
        VerdictKey::PeerPort { profile, .. }
        | VerdictKey::PeerRange { profile, .. }
        | VerdictKey::PeerProtocol { profile, .. }
        | VerdictKey::Peer { profile, .. }
        | VerdictKey::PeerClasses { profile, .. }
        | VerdictKey::AnyPeerPort { profile, .. }
        | VerdictKey::AnyPeerRange { profile, .. }
        | VerdictKey::AnyPeerProtocol { profile, .. }
        | VerdictKey::Default { profile } => Some(profile),
        VerdictKey::AnyPodPort { .. }
        | VerdictKey::AnyPodRange { .. }
        | VerdictKey::AnyPodProtocol { .. }
        | VerdictKey::AnyPod { .. } => None,
    }
}

fn class_of(key: VerdictKey) -> Option<ClassId> {
    match key {
        VerdictKey::PeerPort { class, .. }
        | VerdictKey::PeerRange { class, .. }
        | VerdictKey::PeerProtocol { class, .. }
        | VerdictKey::Peer { class, .. }
        | VerdictKey::AnyPodPort { class, .. }
        | VerdictKey::AnyPodRange { class, .. }
        | VerdictKey::AnyPodProtocol { class, .. }
        | VerdictKey::AnyPod { class } => Some(class),
        VerdictKey::PeerClasses { .. }
        | VerdictKey::AnyPeerPort { .. }
        | VerdictKey::AnyPeerRange { .. }
        | VerdictKey::AnyPeerProtocol { .. }
        | VerdictKey::Default { .. } => None,
    }
}
