use std::cmp::Reverse;

use crate::interval::Interval;

/// How many addresses of a range are handed out automatically; a requested address may lie anywhere in the range.
/// It bounds the index of a range to 128 KiB and a whole scan of it to microseconds, whatever the prefix length (a /64
/// has 2^64 addresses), and nobody has a million pods on a node.
pub const WINDOW: u32 = 1 << 20;

/// Half-open and in offsets from the window's first address.
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
    /// The allocatable offsets, ascending and apart: a scan jumps from one to the next, however large what is between.
    open: Vec<Span>,
}

impl Window {
    /// `open` is what may be handed out of `range`, ascending; nothing there, no window.
    pub(crate) fn choose(range: Interval, open: &[Interval]) -> Option<Self> {
        if open.is_empty() {
            return None;
        }
        let origin = origin(range, open);
        let covered = covered(origin, range);
        // `covered` has at most WINDOW addresses, so the differences fit.
        let offset = |number: u128| (number - origin) as u32;
        let spans = inside(open, covered).map(|i| Span { from: offset(i.first), to: offset(i.last) + 1 });
        Some(Self { origin, len: offset(covered.last) + 1, open: spans.collect() })
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.open.iter().map(|s| u64::from(s.to - s.from)).sum()
    }

    pub(crate) fn offset(&self, number: u128) -> Option<u32> {
        number.checked_sub(self.origin).filter(|o| *o < u128::from(self.len)).map(|o| o as u32)
    }

    /// The allocatable parts of `within`, ascending.
    pub(crate) fn open_within(&self, within: Span) -> impl Iterator<Item = Span> + '_ {
        let first = self.open.partition_point(|s| s.to <= within.from);
        self.open[first..]
            .iter()
            .take_while(move |s| s.from < within.to)
            .map(move |s| Span { from: s.from.max(within.from), to: s.to.min(within.to) })
    }
}

/// Offsets should depend on start and end alone, so that an edited exclusion keeps the stored index right. Only where a
/// range is larger than the window and exclusions take most of it (10.0.0.0/8 without 10.0.0.0/12) does it move
/// behind one of them: to the first place with enough room, or to the one with the most.
fn origin(range: Interval, open: &[Interval]) -> u128 {
    let enough = u128::from(WINDOW / 2);
    let fits = range.last - range.first < u128::from(WINDOW);
    if fits || room(range.first, range, open) >= enough {
        return range.first;
    }
    let places = open.iter().map(|i| i.first);
    places.min_by_key(|place| Reverse(room(*place, range, open).min(enough))).unwrap_or(range.first)
}

fn room(origin: u128, range: Interval, open: &[Interval]) -> u128 {
    inside(open, covered(origin, range)).map(|i| i.last - i.first + 1).sum()
}

fn covered(origin: u128, range: Interval) -> Interval {
    Interval { first: origin, last: origin.saturating_add(u128::from(WINDOW) - 1).min(range.last) }
}

fn inside(open: &[Interval], covered: Interval) -> impl Iterator<Item = Interval> + '_ {
    let first = open.partition_point(|i| i.last < covered.first);
    open[first..].iter().map_while(move |i| i.clip(covered))
}
