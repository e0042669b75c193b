use std::cmp::Reverse;

use crate::interval::Interval;

/// The maximum number of addresses of a range for automatic allocation. Requested addresses may be anywhere in the range. This
/// limits an index to 128 KiB and a full scan to microseconds for every prefix length. No node has a million pods.
pub const WINDOW: u32 = 1 << 20;

/// A half-open interval of offsets from the window's first address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) from: u32,
    pub(crate) to: u32,
}

/// The part of a range that the index covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) origin: u128,
    pub(crate) len: u32,
    /// The allocatable offsets, ascending and disjoint. A scan skips the gaps between them.
    allocatable: Vec<Span>,
}

impl Window {
    /// `allocatable` are the allocatable parts of `range`, ascending. Returns None if there are none.
    pub(crate) fn choose(range: Interval, allocatable: &[Interval]) -> Option<Self> {
        if allocatable.is_empty() {
            return None;
        }
        let origin = origin(range, allocatable);
        let covered = covered(origin, range);
        // `covered` has at most WINDOW addresses, so the differences fit.
        let offset = |number: u128| (number - origin) as u32;
        let span = |i: Interval| Span { from: offset(i.first), to: offset(i.last) + 1 };
        let spans = inside(allocatable, covered).map(span);
        Some(Self { origin, len: offset(covered.last) + 1, allocatable: spans.collect() })
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.allocatable.iter().map(|s| u64::from(s.to - s.from)).sum()
    }

    pub(crate) fn offset(&self, number: u128) -> Option<u32> {
        number.checked_sub(self.origin).filter(|o| *o < u128::from(self.len)).map(|o| o as u32)
    }

    /// The allocatable parts of `within`, ascending.
    pub(crate) fn allocatable_within(&self, within: Span) -> impl Iterator<Item = Span> + '_ {
        let first = self.allocatable.partition_point(|s| s.to <= within.from);
        self.allocatable[first..]
            .iter()
            .take_while(move |s| s.from < within.to)
            .map(move |s| Span { from: s.from.max(within.from), to: s.to.min(within.to) })
    }
}

/// The first address of the window. It should depend only on the range's start and end, so that a stored index stays valid if
/// exclusions change. If the range is larger than the window and exclusions cover most of the window (10.0.0.0/8 without
/// 10.0.0.0/12), the window starts after an exclusion: at the first position with enough addresses, else at the position with
/// the most.
fn origin(range: Interval, allocatable: &[Interval]) -> u128 {
    let enough = u128::from(WINDOW / 2);
    let fits = range.last - range.first < u128::from(WINDOW);
    if fits || capacity_at(range.first, range, allocatable) >= enough {
        return range.first;
    }
    let capacity = |origin: u128| capacity_at(origin, range, allocatable).min(enough);
    let origins = allocatable.iter().map(|i| i.first);
    origins.min_by_key(|origin| Reverse(capacity(*origin))).unwrap_or(range.first)
}

fn capacity_at(origin: u128, range: Interval, allocatable: &[Interval]) -> u128 {
    inside(allocatable, covered(origin, range)).map(|i| i.last - i.first + 1).sum()
}

fn covered(origin: u128, range: Interval) -> Interval {
    Interval { first: origin, last: origin.saturating_add(u128::from(WINDOW) - 1).min(range.last) }
}

fn inside(allocatable: &[Interval], covered: Interval) -> impl Iterator<Item = Interval> + '_ {
    let first = allocatable.partition_point(|i| i.last < covered.first);
    allocatable[first..].iter().map_while(move |i| i.clip(covered))
}
