//! Lists elements of compiled results.

use model::objects::Direction;

use crate::any_pod::AnyPod;
use crate::class::Classes;
use crate::direction::DIRECTIONS;
use crate::element::{ClassId, PolicyElement, PolicyVerdict, VerdictKey};
use crate::encode::{Entries, EntryKey};
use crate::engine::PolicyEngine;
use crate::profiles::ProfileEntry;
use crate::side::ProfileNumbers;

pub(crate) fn verdict(direction: Direction, key: VerdictKey, verdict: PolicyVerdict) -> PolicyElement {
    PolicyElement::Verdict { direction, key, verdict }
}

/// The element of an entry of a profile and class.
pub(crate) fn of_pair(
    direction: Direction,
    numbers: ProfileNumbers,
    class: ClassId,
) -> impl Fn(EntryKey, PolicyVerdict) -> PolicyElement + Copy {
    move |key, value| verdict(direction, key.of_peer(numbers.id, class), value)
}

pub(crate) fn of_any_pod(
    direction: Direction,
    class: ClassId,
) -> impl Fn(EntryKey, PolicyVerdict) -> PolicyElement + Copy {
    move |key, value| verdict(direction, key.of_any_pod(class), value)
}

fn map_entries(
    entries: &Entries,
    to_element: impl Fn(EntryKey, PolicyVerdict) -> PolicyElement,
) -> impl Iterator<Item = PolicyElement> {
    entries.iter().map(move |entry| to_element(entry.key, entry.verdict))
}

pub(crate) fn of_profile(profile: &ProfileEntry, classes: &Classes) -> impl Iterator<Item = PolicyElement> {
    let numbers = profile.numbers;
    DIRECTIONS.into_iter().flat_map(move |direction| {
        let side = &profile.sides[direction];
        let base = side.base.iter().flat_map(move |base| base.elements(numbers));
        let base = base.map(move |(key, value)| verdict(direction, key, value));
        let own = side.self_pair.iter().map(|entries| (ClassId::SELF, entries));
        let pairs = side.pairs.iter();
        let pairs = pairs.filter_map(|(class, entries)| Some((classes.get(class)?.id, entries)));
        let pairs = pairs
            .chain(own)
            .flat_map(move |(class, entries)| map_entries(entries, of_pair(direction, numbers, class)));
        base.chain(pairs)
    })
}

fn of_class(class: ClassId, direction: Direction, any_pod: &AnyPod) -> impl Iterator<Item = PolicyElement> {
    map_entries(&any_pod.entries, of_any_pod(direction, class))
}

pub(crate) fn all(engine: &PolicyEngine) -> impl Iterator<Item = PolicyElement> {
    let classes = &engine.classes;
    let addresses = engine.addresses.states.iter().flat_map(|(address, state)| {
        let address = *address;
        let class = classes.get(state.class).map(|class| PolicyElement::Address { address, class: class.id });
        class.into_iter().chain(state.is_own.then_some(PolicyElement::OwnAddress { address }))
    });
    let ranges = engine.addresses.ranges.iter().map(|range| PolicyElement::Addresses {
        first: range.first,
        last: range.last,
        class: range.id,
    });
    let any_pod = classes.iter().flat_map(|(_, class)| {
        DIRECTIONS.into_iter().flat_map(move |direction| {
            class.any_pod[direction].iter().flat_map(move |any_pod| of_class(class.id, direction, any_pod))
        })
    });
    let profiles = engine.profiles.iter().flat_map(|profile| of_profile(profile, classes));
    addresses.chain(ranges).chain(any_pod).chain(profiles)
}
