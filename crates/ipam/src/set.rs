use std::fmt;
use std::net::IpAddr;

use crate::error::{Exhausted, PoolError, RangeError};
use crate::index::{Words, first_free};
use crate::range::Range;
use crate::window::Span;

/// A network of a node has a range for each of its blocks.
const MOST_RANGES: usize = 1024;

/// Ranges of one family, apart from each other, from which a pod gets one address. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeSet(Vec<Range>);

/// The next address of a set: not yet claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    /// Which range of the set.
    pub range: usize,
    /// The address's bit in that range's index.
    pub offset: u32,
    pub ip: IpAddr,
}

/// A stretch of one range to search.
struct Leg {
    range: usize,
    span: Span,
}

impl RangeSet {
    pub fn new(ranges: Vec<Range>) -> Result<Self, PoolError> {
        let Some(first) = ranges.first() else { return Err(PoolError::NoRange) };
        if ranges.len() > MOST_RANGES {
            return Err(PoolError::TooManyRanges { given: ranges.len(), most: MOST_RANGES });
        }
        if let Some(other) = ranges.iter().find(|r| r.is_ipv4() != first.is_ipv4()) {
            return Err(PoolError::MixedFamilies { first: first.to_string(), second: other.to_string() });
        }
        refuse_overlap(ranges.iter())?;
        let gateways: Vec<_> = ranges.iter().map(Range::gateway).collect();
        Ok(Self(ranges).sparing(&gateways)?)
    }

    pub(crate) fn sparing(self, gateways: &[IpAddr]) -> Result<Self, RangeError> {
        self.0.into_iter().map(|r| r.sparing(gateways)).collect::<Result<_, _>>().map(Self)
    }

    pub fn ranges(&self) -> &[Range] {
        &self.0
    }

    /// How many addresses can be handed out automatically.
    pub fn capacity(&self) -> u64 {
        self.0.iter().map(Range::capacity).sum()
    }

    /// What to say when `next_after` found nothing.
    pub fn exhausted(&self) -> Exhausted {
        Exhausted { in_use: self.capacity(), ranges: self.to_string() }
    }

    /// Who is next: the first free address after `last`, the one handed out automatically before this (a requested one
    /// does not count). As host-local, it goes on to the end of `last`'s range, through the other ranges, and round to
    /// `last` itself. `words_for` opens a range's index, only when it is its turn, and perhaps twice.
    pub fn next_after<W: Words>(
        &self,
        last: Option<IpAddr>,
        mut words_for: impl FnMut(&Range) -> Result<W, W::Error>,
    ) -> Result<Option<Pick>, W::Error> {
        for Leg { range, span } in self.legs(last) {
            let current = &self.0[range];
            let mut words = words_for(current)?;
            if let Some(offset) = first_free(&mut words, current, span)? {
                return Ok(Some(Pick { range, offset, ip: current.address(offset) }));
            }
        }
        Ok(None)
    }

    fn legs(&self, last: Option<IpAddr>) -> impl Iterator<Item = Leg> + '_ {
        let place = |ip| self.0.iter().enumerate().find_map(|(i, r)| Some((i, r.offset(ip)? + 1)));
        let (range, cut) = last.and_then(place).unwrap_or((0, 0));
        let whole = |range: usize| Leg { range, span: Span { from: 0, to: self.0[range].window_len() } };
        let ahead = Leg { range, span: Span { from: cut, to: self.0[range].window_len() } };
        let others = (range + 1..self.0.len()).chain(0..range).map(whole);
        let behind = Leg { range, span: Span { from: 0, to: cut } };
        std::iter::once(ahead).chain(others).chain([behind]).filter(|leg| leg.span.from < leg.span.to)
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        list(&self.0, f)
    }
}

/// `a, b, c`, as people read lists.
pub(crate) fn list<T: fmt::Display>(items: &[T], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            f.write_str(", ")?;
        }
        write!(f, "{item}")?;
    }
    Ok(())
}

pub(crate) fn refuse_overlap<'a>(ranges: impl Iterator<Item = &'a Range>) -> Result<(), PoolError> {
    let mut ranges: Vec<_> = ranges.collect();
    ranges.sort_by_key(|r| r.start());
    // Sorted by start: where any two overlap, two neighbours do.
    match ranges.windows(2).find(|pair| pair[0].overlaps(pair[1])) {
        None => Ok(()),
        Some(pair) => Err(PoolError::Overlap { first: pair[0].to_string(), second: pair[1].to_string() }),
    }
}
