//! Properties of sets of traffic and of the partition of addresses.

use std::net::IpAddr;

use ipnet::IpNet;
use model::objects::PortRange;
use proptest::prelude::*;
use types::Protocol;

use crate::cidr::{Cidrs, partition};
use crate::element::PolicyVerdict;
use crate::encode::{EntryKey, encode_all, encode_over, encode_part};
use crate::traffic::{TrafficSet, with_ports};

fn range() -> impl Strategy<Value = PortRange> {
    let edge = prop_oneof![Just(0), Just(1), 78..100u16, Just(65534), Just(65535), any::<u16>()];
    (edge.clone(), edge).prop_map(|(a, b)| PortRange::new(a.min(b), a.max(b)).unwrap())
}

fn set() -> impl Strategy<Value = TrafficSet> {
    let part = prop_oneof![
        4 => (0..3usize, range()).prop_map(|(p, range)| TrafficSet::of_ports(Protocol::ALL[p], range)),
        2 => prop::sample::select(vec![1u8, 6, 17, 47, 58, 132, 255]).prop_map(TrafficSet::of_protocol),
        1 => Just(TrafficSet::all()),
    ];
    let step = (part, any::<bool>());
    prop::collection::vec(step, 0..5).prop_map(|steps| {
        steps.into_iter().fold(TrafficSet::none(), |set, (part, is_added)| {
            if is_added { set.union(&part) } else { set.difference(&part) }
        })
    })
}

/// All values at which a set can change, and their neighbours.
fn samples(sets: &[&TrafficSet]) -> Vec<(u8, u16)> {
    let mut samples: Vec<(u8, u16)> = (0..=255).map(|number| (number, 0)).collect();
    for protocol in Protocol::ALL {
        let ranges = sets.iter().flat_map(|set| set.ports(protocol).ranges());
        let edges = ranges.flat_map(|range| [range.first(), range.last()]);
        let ports = edges.flat_map(|port| [port.saturating_sub(1), port, port.saturating_add(1)]);
        samples.extend(ports.chain([1, 80, 65535]).map(|port| (protocol.number(), port)));
    }
    samples
}

fn lookup(entries: &[crate::encode::VerdictEntry], number: u8, port: u16) -> Option<PolicyVerdict> {
    let is_match = |key: EntryKey| match key {
        EntryKey::Port(protocol, one) => with_ports(number) == Some(protocol) && port == one,
        EntryKey::Range(protocol, range) => with_ports(number) == Some(protocol) && range.contains(port),
        EntryKey::Protocol(protocol) => protocol == number,
        EntryKey::All => true,
    };
    let mut entries = entries.to_vec();
    // The order of lookups: ports of all protocols, then ranges, then protocols, then all.
    entries.sort_by_key(|entry| entry.key);
    entries.iter().find(|entry| is_match(entry.key)).map(|entry| entry.verdict)
}

fn is_accepted(verdict: Option<PolicyVerdict>, base: bool) -> bool {
    verdict.map_or(base, |verdict| verdict == PolicyVerdict::Accept)
}

proptest! {
    #[test]
    fn operations_on_traffic_sets_are_those_of_their_members(a in set(), b in set()) {
        let (union, both, less, either) =
            (a.union(&b), a.intersection(&b), a.difference(&b), a.symmetric_difference(&b));
        for (number, port) in samples(&[&a, &b]) {
            let (in_a, in_b) = (a.contains(number, port), b.contains(number, port));
            prop_assert_eq!(union.contains(number, port), in_a || in_b);
            prop_assert_eq!(both.contains(number, port), in_a && in_b);
            prop_assert_eq!(less.contains(number, port), in_a && !in_b);
            prop_assert_eq!(either.contains(number, port), in_a != in_b);
        }
        prop_assert_eq!(either.is_empty(), a == b);
        prop_assert_eq!(union.difference(&b).union(&both), a.clone());
        prop_assert_eq!(TrafficSet::all().difference(&a).union(&a), TrafficSet::all());
    }

    #[test]
    fn entries_yield_exactly_the_encoded_set(a in set(), b in set()) {
        let (all, over) = (encode_all(&a), encode_over(&a, &b));
        let denied = b.difference(&a);
        let part = encode_part(&a, &denied);
        for (number, port) in samples(&[&a, &b]) {
            let expected = a.contains(number, port);
            prop_assert_eq!(is_accepted(lookup(&all, number, port), !expected), expected);
            prop_assert_eq!(is_accepted(lookup(&over, number, port), b.contains(number, port)), expected);
            let decided = expected || denied.contains(number, port);
            let found = lookup(&part, number, port);
            prop_assert_eq!(found.is_some(), decided);
            prop_assert!(!decided || is_accepted(found, false) == expected);
        }
        for entries in [&all, &over, &part] {
            let mut keys: Vec<_> = entries.iter().map(|entry| entry.key).collect();
            keys.dedup();
            prop_assert_eq!(keys.len(), entries.len());
        }
        prop_assert!(over.len() <= all.len());
        prop_assert_eq!(over.is_empty(), a == b);
    }

    #[test]
    fn parts_cover_all_addresses_and_know_their_smallest_block(
        blocks in prop::collection::vec((any::<u32>(), 0..=32u8), 0..6),
        small in prop::collection::vec((0..4u32, 28..=32u8), 0..6),
        networks in prop::collection::vec((any::<u128>(), 0..=128u8), 0..3),
    ) {
        let v4 = |(number, length): &(u32, u8)| IpNet::new(IpAddr::from(number.to_be_bytes()), *length).unwrap().trunc();
        let v6 = |(number, length): &(u128, u8)| IpNet::new(IpAddr::from(number.to_be_bytes()), *length).unwrap().trunc();
        let blocks: Vec<IpNet> = blocks.iter().chain(&small).map(v4).chain(networks.iter().map(v6)).collect();
        let networks: Vec<IpNet> = networks.iter().map(v6).collect();
        let (mut used, mut inside) = (Cidrs::default(), Cidrs::default());
        for block in &blocks {
            used.add(*block);
        }
        for block in &networks {
            inside.add(*block);
        }
        let parts = partition(&used, &inside);
        let next = |address: IpAddr| match address {
            IpAddr::V4(address) => u32::from(address).checked_add(1).map(|n| IpAddr::from(n.to_be_bytes())),
            IpAddr::V6(address) => u128::from(address).checked_add(1).map(|n| IpAddr::from(n.to_be_bytes())),
        };
        prop_assert_eq!(parts[0].first, "0.0.0.0".parse::<IpAddr>().unwrap());
        prop_assert_eq!(next(parts[parts.len() - 1].last), None);
        for pair in parts.windows(2) {
            let expected = next(pair[0].last).unwrap_or("::".parse().unwrap());
            prop_assert_eq!(pair[1].first, expected);
        }
        for part in &parts {
            for address in [part.first, part.last] {
                let containing = blocks.iter().filter(|block| block.contains(&address));
                prop_assert_eq!(part.cidr, containing.max_by_key(|block| block.prefix_len()).copied());
                prop_assert_eq!(part.is_in_network, networks.iter().any(|block| block.contains(&address)));
            }
        }
        for block in &blocks {
            used.remove(*block);
        }
        prop_assert!(parts.iter().all(|part| used.smallest(part.first).is_none()));
    }
}
