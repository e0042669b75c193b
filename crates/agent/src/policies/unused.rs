//! Port ranges of profiles that no pod has any more. Pure.
//!
//! The kernel compares a range that it removes with all others of its map, so the removal of a profile can take seconds. The ranges
//! have no effect until a pod gets the profile again. So they are removed in small batches, after ADDs and changes were served.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use policy::{Delta, PolicyElement, ProfileId, VerdictKey};

/// How long ADDs and changes may wait for a batch. The number of ranges follows from the duration of the last batch.
const BATCH_TIME: Duration = Duration::from_millis(20);
const LARGEST_BATCH: usize = 256;
/// The pause after a batch, as a multiple of its duration.
const PAUSE_FACTOR: u32 = 4;

#[derive(Debug)]
pub(super) struct UnusedRanges {
    waiting: BTreeSet<PolicyElement>,
    batch: usize,
    earliest: Instant,
}

impl UnusedRanges {
    pub(super) fn new(now: Instant) -> Self {
        Self { waiting: BTreeSet::new(), batch: 1, earliest: now }
    }

    /// Keeps the ranges of unused profiles for later. Those of a profile that is used again are replaced, except those that it has
    /// again: the number of a profile follows from its rules.
    pub(super) fn postpone(&mut self, mut delta: Delta) -> Delta {
        if !self.waiting.is_empty() {
            let of_pods = delta.profiles.iter().map(|(_, profile)| *profile);
            let used: BTreeSet<ProfileId> =
                of_pods.chain(delta.set.iter().filter_map(range_profile)).collect();
            let is_used = |range: &PolicyElement| range_profile(range).is_some_and(|it| used.contains(&it));
            let again = self.waiting.extract_if(.., |range| is_used(range));
            let set: BTreeSet<&PolicyElement> = delta.set.iter().collect();
            delta.replaced.extend(again.filter(|range| !set.contains(range)));
        }
        let (ranges, others): (Vec<_>, Vec<_>) =
            delta.removed.into_iter().partition(|element| range_profile(element).is_some());
        self.waiting.extend(ranges);
        Delta { removed: others, ..delta }
    }

    /// Ranges that the kernel still has.
    pub(super) fn iter(&self) -> impl Iterator<Item = &PolicyElement> {
        self.waiting.iter()
    }

    /// When the next batch is due.
    pub(super) fn due(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.earliest)
    }

    /// The batch that is due. It may be empty.
    pub(super) fn batch(&self, now: Instant) -> Vec<PolicyElement> {
        match self.due() {
            Some(due) if due <= now => self.waiting.iter().take(self.batch).copied().collect(),
            Some(_) | None => Vec::new(),
        }
    }

    pub(super) fn removed(&mut self, batch: &[PolicyElement], now: Instant, took: Duration) {
        batch.iter().for_each(|range| {
            self.waiting.remove(range);
        });
        self.earliest = now + took * PAUSE_FACTOR;
        if took > BATCH_TIME {
            self.batch = (self.batch / 2).max(1);
        } else if took < BATCH_TIME / 2 {
            self.batch = (self.batch * 2).min(LARGEST_BATCH);
        }
    }

    /// The comparison with the kernel removes them instead.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }
}

/// The profile, if the element is a port range of one.
fn range_profile(element: &PolicyElement) -> Option<ProfileId> {
    let PolicyElement::Verdict { key, .. } = element else { return None };
    match *key {
        VerdictKey::PeerRange { profile, .. } | VerdictKey::AnyPeerRange { profile, .. } => Some(profile),
        VerdictKey::PeerPort { .. }
        | VerdictKey::PeerProtocol { .. }
        | VerdictKey::Peer { .. }
        | VerdictKey::AnyPodPort { .. }
        | VerdictKey::AnyPodRange { .. }
        | VerdictKey::AnyPodProtocol { .. }
        | VerdictKey::AnyPod { .. }
        | VerdictKey::PeerClasses { .. }
        | VerdictKey::AnyPeerPort { .. }
        | VerdictKey::AnyPeerProtocol { .. }
        | VerdictKey::Default { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use model::objects::{Direction, PortRange};
    use policy::PolicyVerdict;
    use types::Protocol;

    use super::*;

    fn element(key: VerdictKey) -> PolicyElement {
        PolicyElement::Verdict { direction: Direction::Ingress, key, verdict: PolicyVerdict::Accept }
    }

    fn profile(number: u32) -> ProfileId {
        ProfileId(ProfileId::FIRST + number)
    }

    fn ranges(of: u32, firsts: std::ops::Range<u16>) -> Vec<PolicyElement> {
        let range = |first: u16| {
            let ports = PortRange::new(first * 100, first * 100 + 50).unwrap();
            element(VerdictKey::AnyPeerRange { profile: profile(of), protocol: Protocol::Tcp, ports })
        };
        firsts.map(range).collect()
    }

    /// A kernel that refuses to delete an element that it does not have.
    #[derive(Default)]
    struct Table(BTreeSet<PolicyElement>);

    impl Table {
        fn delete(&mut self, elements: &[PolicyElement]) {
            elements.iter().for_each(|element| assert!(self.0.remove(element), "{element:?} is missing"));
        }

        fn apply(&mut self, delta: &Delta) {
            self.delete(&delta.replaced);
            self.0.extend(&delta.set);
            self.delete(&delta.removed);
        }

        fn ranges_of(&self, of: u32) -> Vec<PolicyElement> {
            self.0.iter().copied().filter(|it| range_profile(it) == Some(profile(of))).collect()
        }
    }

    #[test]
    fn only_ranges_of_unused_profiles_wait() {
        let default = element(VerdictKey::Default { profile: profile(0) });
        let mut unused = UnusedRanges::new(Instant::now());
        let mut removed = ranges(0, 1..4);
        removed.push(default);
        let replaced = ranges(1, 1..4);
        let delta = unused.postpone(Delta { removed, replaced, ..Delta::default() });
        assert_eq!((delta.removed, delta.replaced), (vec![default], ranges(1, 1..4)));
        assert!(unused.iter().eq(&ranges(0, 1..4)));
    }

    #[test]
    fn a_profile_that_is_used_again_has_only_its_own_ranges() {
        let mut unused = UnusedRanges::new(Instant::now());
        let mut table = Table::default();
        let mut apply = |delta| {
            let delta = unused.postpone(delta);
            table.apply(&delta);
            (table.ranges_of(0), table.ranges_of(1), delta.replaced.len(), unused.iter().count())
        };
        for of in [0, 1] {
            apply(Delta { set: ranges(of, 1..6), ..Delta::default() });
            apply(Delta { removed: ranges(of, 1..6), ..Delta::default() });
        }
        // With the same ranges, then with others.
        let again = apply(Delta { set: ranges(0, 1..6), ..Delta::default() });
        assert_eq!(again, (ranges(0, 1..6), ranges(1, 1..6), 0, 5));
        let profiles = vec![("p".into(), profile(1))];
        let again = apply(Delta { set: ranges(1, 3..8), profiles: profiles.clone(), ..Delta::default() });
        assert_eq!(again, (ranges(0, 1..6), ranges(1, 3..8), 2, 0));
        apply(Delta { removed: ranges(1, 3..8), ..Delta::default() });
        // Without any.
        assert_eq!(apply(Delta { profiles, ..Delta::default() }), (ranges(0, 1..6), vec![], 5, 0));
    }

    /// Ranges that one batch after the other removes, if each range takes this time.
    fn batches(each: Duration, count: u16) -> Vec<usize> {
        let mut now = Instant::now();
        let mut unused = UnusedRanges::new(now);
        unused.postpone(Delta { removed: ranges(0, 0..count), ..Delta::default() });
        let mut sizes = Vec::new();
        while let Some(due) = unused.due() {
            assert_eq!(unused.batch(due - Duration::from_nanos(1)), []);
            now = now.max(due);
            let batch = unused.batch(now);
            let took = each * u32::try_from(batch.len()).unwrap();
            now += took;
            unused.removed(&batch, now, took);
            assert_eq!(unused.due().unwrap_or(now + took * 4), now + took * 4);
            sizes.push(batch.len());
        }
        sizes
    }

    #[test]
    fn batches_are_as_large_as_their_time_allows() {
        assert_eq!(batches(Duration::from_millis(18), 5), [1; 5]);
        assert_eq!(batches(Duration::from_millis(3), 20), [1, 2, 4, 4, 4, 4, 1]);
        assert_eq!(batches(Duration::from_micros(1), 500), [1, 2, 4, 8, 16, 32, 64, 128, 245]);
    }
}
