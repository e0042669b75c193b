//! Turns sets of accepted traffic into entries of the firewall's maps, as few as possible.

use std::collections::HashMap;
use std::sync::Arc;

use model::objects::PortRange;
use types::Protocol;

use crate::element::{ClassId, PolicyVerdict, ProfileId, ProtocolNumber, VerdictKey};
use crate::traffic::{PortSet, TrafficSet};

/// Ranges up to this length are written as single ports, because the lookup of a port is cheaper than that of a range.
const MAX_SINGLE_PORTS: u16 = 16;

/// The traffic of an entry, from specific to general.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum EntryKey {
    Port(Protocol, u16),
    Range(Protocol, PortRange),
    Protocol(ProtocolNumber),
    All,
}

/// The most specific entry decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct VerdictEntry {
    pub(crate) key: EntryKey,
    pub(crate) verdict: PolicyVerdict,
}

/// Sorted by key. Shared by all pairs of profile and class with the same entries.
pub(crate) type Entries = Arc<[VerdictEntry]>;

impl EntryKey {
    pub(crate) fn of_peer(self, profile: ProfileId, class: ClassId) -> VerdictKey {
        match self {
            Self::Port(protocol, port) => VerdictKey::PeerPort { profile, class, protocol, port },
            Self::Range(protocol, ports) => VerdictKey::PeerRange { profile, class, protocol, ports },
            Self::Protocol(protocol) => VerdictKey::PeerProtocol { profile, class, protocol },
            Self::All => VerdictKey::Peer { profile, class },
        }
    }

    pub(crate) fn of_any_pod(self, class: ClassId) -> VerdictKey {
        match self {
            Self::Port(protocol, port) => VerdictKey::AnyPodPort { class, protocol, port },
            Self::Range(protocol, ports) => VerdictKey::AnyPodRange { class, protocol, ports },
            Self::Protocol(protocol) => VerdictKey::AnyPodProtocol { class, protocol },
            Self::All => VerdictKey::AnyPod { class },
        }
    }

    pub(crate) fn of_any_peer(self, profile: ProfileId) -> VerdictKey {
        match self {
            Self::Port(protocol, port) => VerdictKey::AnyPeerPort { profile, protocol, port },
            Self::Range(protocol, ports) => VerdictKey::AnyPeerRange { profile, protocol, ports },
            Self::Protocol(protocol) => VerdictKey::AnyPeerProtocol { profile, protocol },
            Self::All => VerdictKey::Default { profile },
        }
    }
}

fn verdict(is_accepted: bool) -> PolicyVerdict {
    if is_accepted { PolicyVerdict::Accept } else { PolicyVerdict::Drop }
}

/// The set of traffic that a constant verdict accepts.
pub(crate) fn constant(verdict: PolicyVerdict) -> TrafficSet {
    match verdict {
        PolicyVerdict::Accept => TrafficSet::all(),
        PolicyVerdict::Drop => TrafficSet::none(),
    }
}

fn push_ports(entries: &mut Vec<VerdictEntry>, protocol: Protocol, ports: &PortSet, verdict: PolicyVerdict) {
    for range in ports.ranges() {
        if range.last() - range.first() < MAX_SINGLE_PORTS {
            let singles = (range.first()..=range.last()).map(|port| EntryKey::Port(protocol, port));
            entries.extend(singles.map(|key| VerdictEntry { key, verdict }));
        } else {
            entries.push(VerdictEntry { key: EntryKey::Range(protocol, range), verdict });
        }
    }
}

/// Entries of one protocol that turn `base` into `accepted`: the differences, or an entry for the protocol and its exceptions.
fn encode_protocol(protocol: Protocol, accepted: &PortSet, base: &PortSet) -> Vec<VerdictEntry> {
    if accepted == base {
        return Vec::new();
    }
    let mut differences = Vec::new();
    push_ports(&mut differences, protocol, &accepted.combine(base, |a, b| a && !b), PolicyVerdict::Accept);
    push_ports(&mut differences, protocol, &base.combine(accepted, |a, b| a && !b), PolicyVerdict::Drop);
    [differences, whole_protocol(protocol, accepted)].into_iter().min_by_key(Vec::len).unwrap_or_default()
}

/// An entry for the protocol and its exceptions.
fn whole_protocol(protocol: Protocol, accepted: &PortSet) -> Vec<VerdictEntry> {
    let candidate = |verdict, exceptions: &PortSet, exception| {
        let mut entries = vec![VerdictEntry { key: EntryKey::Protocol(protocol.number()), verdict }];
        push_ports(&mut entries, protocol, exceptions, exception);
        entries
    };
    let drop = candidate(PolicyVerdict::Drop, accepted, PolicyVerdict::Accept);
    let accept = candidate(PolicyVerdict::Accept, &accepted.complement(), PolicyVerdict::Drop);
    [drop, accept].into_iter().min_by_key(Vec::len).unwrap_or_default()
}

/// Entries that turn `base` into `accepted`.
fn encode_differences(accepted: &TrafficSet, base: &TrafficSet) -> Vec<VerdictEntry> {
    let mut entries = Vec::new();
    for protocol in Protocol::ALL {
        entries.extend(encode_protocol(protocol, accepted.ports(protocol), base.ports(protocol)));
    }
    for number in accepted.symmetric_difference(base).other_protocols() {
        let key = EntryKey::Protocol(number);
        entries.push(VerdictEntry { key, verdict: verdict(accepted.has_other(number)) });
    }
    entries
}

/// Entries that decide all traffic.
pub(crate) fn encode_all(accepted: &TrafficSet) -> Vec<VerdictEntry> {
    let with = |verdict| {
        let mut entries = encode_differences(accepted, &constant(verdict));
        entries.push(VerdictEntry { key: EntryKey::All, verdict });
        entries
    };
    let candidates = [with(PolicyVerdict::Drop), with(PolicyVerdict::Accept)];
    sorted(candidates.into_iter().min_by_key(Vec::len).unwrap_or_default())
}

/// Entries that turn `base` into `accepted`, with or without an entry for all traffic.
pub(crate) fn encode_over(accepted: &TrafficSet, base: &TrafficSet) -> Vec<VerdictEntry> {
    if accepted == base {
        return Vec::new();
    }
    let candidates = [sorted(encode_differences(accepted, base)), encode_all(accepted)];
    candidates.into_iter().min_by_key(Vec::len).unwrap_or_default()
}

/// Entries that decide exactly the traffic of both sets, which are disjoint.
pub(crate) fn encode_part(accepted: &TrafficSet, denied: &TrafficSet) -> Vec<VerdictEntry> {
    if accepted.union(denied).is_all() {
        return encode_all(accepted);
    }
    let mut entries = Vec::new();
    for protocol in Protocol::ALL {
        let (accepted, denied) = (accepted.ports(protocol), denied.ports(protocol));
        if accepted.combine(denied, |a, b| a || b).is_all() {
            entries.extend(whole_protocol(protocol, accepted));
        } else {
            push_ports(&mut entries, protocol, accepted, PolicyVerdict::Accept);
            push_ports(&mut entries, protocol, denied, PolicyVerdict::Drop);
        }
    }
    for (set, verdict) in [(accepted, PolicyVerdict::Accept), (denied, PolicyVerdict::Drop)] {
        entries.extend(
            set.other_protocols().map(|number| VerdictEntry { key: EntryKey::Protocol(number), verdict }),
        );
    }
    sorted(entries)
}

fn sorted(mut entries: Vec<VerdictEntry>) -> Vec<VerdictEntry> {
    entries.sort_unstable();
    entries
}

/// Encodes each combination of sets once.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    known: HashMap<(TrafficSet, TrafficSet), Option<Entries>>,
}

impl Encoder {
    /// None if the sets are equal.
    pub(crate) fn encode(&mut self, accepted: TrafficSet, base: TrafficSet) -> Option<Entries> {
        let pair = (accepted, base);
        if let Some(known) = self.known.get(&pair) {
            return known.clone();
        }
        let entries = encode_over(&pair.0, &pair.1);
        let entries = (!entries.is_empty()).then(|| Entries::from(entries));
        self.known.insert(pair, entries.clone());
        entries
    }
}
