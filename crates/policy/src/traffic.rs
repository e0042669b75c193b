//! Sets of traffic: protocols, and destination ports of the protocols that have ports.

use std::sync::LazyLock;

use model::objects::PortRange;
use types::Protocol;

use crate::element::ProtocolNumber;

/// A set of ports: ranges in ascending order that neither overlap nor touch, so that equal sets have equal values.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct PortSet(Vec<PortRange>);

/// A set of pairs of protocol and destination port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct TrafficSet {
    /// In the order of [`Protocol::ALL`].
    ports: [PortSet; 3],
    /// One bit per protocol number. The bits of protocols with ports are never set.
    others: [u64; 4],
}

static ALL: LazyLock<TrafficSet> = LazyLock::new(|| {
    let mut others = [u64::MAX; 4];
    for protocol in Protocol::ALL {
        let (word, bit) = position(protocol.number());
        others[word] &= !bit;
    }
    TrafficSet { ports: [PortSet::all(), PortSet::all(), PortSet::all()], others }
});

fn position(number: ProtocolNumber) -> (usize, u64) {
    (usize::from(number / 64), 1 << (number % 64))
}

fn index(protocol: Protocol) -> usize {
    match protocol {
        Protocol::Tcp => 0,
        Protocol::Udp => 1,
        Protocol::Sctp => 2,
    }
}

/// The protocol with ports that has this number.
pub(crate) fn with_ports(number: ProtocolNumber) -> Option<Protocol> {
    Protocol::ALL.into_iter().find(|protocol| protocol.number() == number)
}

impl PortSet {
    pub(crate) fn all() -> Self {
        Self(vec![PortRange::ALL])
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn is_all(&self) -> bool {
        self.0.first() == Some(&PortRange::ALL)
    }

    pub(crate) fn ranges(&self) -> impl Iterator<Item = PortRange> + '_ {
        self.0.iter().copied()
    }

    pub(crate) fn contains(&self, port: u16) -> bool {
        self.0.iter().any(|range| range.contains(port))
    }

    pub(crate) fn complement(&self) -> Self {
        Self::all().combine(self, |a, b| a && !b)
    }

    /// The `edge`th change between outside and inside of the set, counted from 0.
    fn edge(&self, edge: usize) -> u32 {
        match self.0.get(edge / 2) {
            None => u32::MAX,
            Some(range) if edge.is_multiple_of(2) => u32::from(range.first()),
            Some(range) => u32::from(range.last()) + 1,
        }
    }

    /// The ports for which `keep` is true. `keep(false, false)` must be false.
    pub(crate) fn combine(&self, other: &Self, keep: fn(bool, bool) -> bool) -> Self {
        let (mut a, mut b, mut start) = (0, 0, None);
        let mut ranges = Vec::new();
        loop {
            let at = self.edge(a).min(other.edge(b));
            a += usize::from(self.edge(a) == at);
            b += usize::from(other.edge(b) == at);
            if at == u32::MAX {
                return Self(ranges);
            }
            match (start, keep(a % 2 == 1, b % 2 == 1)) {
                (None, true) => start = Some(at),
                (Some(first), false) => {
                    ranges.extend(port(first).zip(port(at - 1)).and_then(|(a, b)| PortRange::new(a, b)));
                    start = None;
                }
                (None, false) | (Some(_), true) => {}
            }
        }
    }
}

fn port(number: u32) -> Option<u16> {
    u16::try_from(number).ok()
}

impl TrafficSet {
    pub(crate) fn none() -> Self {
        Self::default()
    }

    pub(crate) fn all() -> Self {
        ALL.clone()
    }

    pub(crate) fn of_ports(protocol: Protocol, range: PortRange) -> Self {
        let mut set = Self::none();
        set.ports[index(protocol)] = PortSet(vec![range]);
        set
    }

    /// These ports of all protocols with ports.
    pub(crate) fn of_any_protocol(range: PortRange) -> Self {
        Self { ports: std::array::from_fn(|_| PortSet(vec![range])), others: [0; 4] }
    }

    pub(crate) fn of_protocol(number: ProtocolNumber) -> Self {
        if let Some(protocol) = with_ports(number) {
            return Self::of_ports(protocol, PortRange::ALL);
        }
        let mut set = Self::none();
        let (word, bit) = position(number);
        set.others[word] |= bit;
        set
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.others == [0; 4] && self.ports.iter().all(PortSet::is_empty)
    }

    pub(crate) fn is_all(&self) -> bool {
        self.others == ALL.others && self.ports.iter().all(PortSet::is_all)
    }

    pub(crate) fn ports(&self, protocol: Protocol) -> &PortSet {
        &self.ports[index(protocol)]
    }

    /// The members that have no ports.
    pub(crate) fn other_protocols(&self) -> impl Iterator<Item = ProtocolNumber> + '_ {
        (0..=u8::MAX).filter(|number| self.has_other(*number))
    }

    pub(crate) fn has_other(&self, number: ProtocolNumber) -> bool {
        let (word, bit) = position(number);
        self.others[word] & bit != 0
    }

    /// `port` counts only if the protocol has ports.
    pub(crate) fn contains(&self, number: ProtocolNumber, port: u16) -> bool {
        match with_ports(number) {
            Some(protocol) => self.ports(protocol).contains(port),
            None => self.has_other(number),
        }
    }

    pub(crate) fn union(&self, other: &Self) -> Self {
        if other.is_empty() || self.is_all() {
            return self.clone();
        }
        if self.is_empty() || other.is_all() {
            return other.clone();
        }
        self.combine(other, |a, b| a || b, |a, b| a | b)
    }

    pub(crate) fn intersection(&self, other: &Self) -> Self {
        if self.is_empty() || other.is_all() {
            return self.clone();
        }
        if other.is_empty() || self.is_all() {
            return other.clone();
        }
        self.combine(other, |a, b| a && b, |a, b| a & b)
    }

    pub(crate) fn difference(&self, other: &Self) -> Self {
        if self.is_empty() || other.is_empty() {
            return self.clone();
        }
        if other.is_all() {
            return Self::none();
        }
        self.combine(other, |a, b| a && !b, |a, b| a & !b)
    }

    pub(crate) fn symmetric_difference(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a != b, |a, b| a ^ b)
    }

    fn combine(&self, other: &Self, keep: fn(bool, bool) -> bool, word: fn(u64, u64) -> u64) -> Self {
        Self {
            ports: std::array::from_fn(|i| self.ports[i].combine(&other.ports[i], keep)),
            others: std::array::from_fn(|i| word(self.others[i], other.others[i])),
        }
    }
}
