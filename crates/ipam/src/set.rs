use std::fmt;
use std::net::IpAddr;

use crate::error::{Exhausted, PoolError, RangeError};
use crate::index::{Words, first_free};
use crate::range::Range;
use crate::window::Span;

/// Limit for the ranges of a set. The agent has one range per block of the node.
const MAX_RANGES: usize = 1024;

/// Disjoint ranges of one family. A pod gets one address of the set. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeSet(Vec<Range>);

/// The next free address of a set, not yet claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    /// The index of the range in the set.
    pub range: usize,
    /// The address's bit in that range's index.
    pub offset: u32,
    pub ip: IpAddr,
}

/// A part of a range to search.
struct SearchStep {
    range: usize,
    span: Span,
}

impl RangeSet {
    pub fn new(ranges: Vec<Range>) -> Result<Self, PoolError> {
        let Some(first) = ranges.first() else { return Err(PoolError::NoRange) };
        if ranges.len() > MAX_RANGES {
            return Err(PoolError::TooManyRanges { given: ranges.len(), max: MAX_RANGES });
        }
        if let Some(other) = ranges.iter().find(|r| r.is_ipv4() != first.is_ipv4()) {
            return Err(PoolError::MixedFamilies { first: first.to_string(), second: other.to_string() });
        }
        refuse_overlap(ranges.iter())?;
        let gateways: Vec<_> = ranges.iter().map(Range::gateway).collect();
        Ok(Self(ranges).reserving_gateways(&gateways)?)
    }

    pub(crate) fn reserving_gateways(self, gateways: &[IpAddr]) -> Result<Self, RangeError> {
        self.0.into_iter().map(|r| r.reserving_gateways(gateways)).collect::<Result<_, _>>().map(Self)
    }

    pub fn ranges(&self) -> &[Range] {
        &self.0
    }

    /// The number of addresses for automatic allocation.
    pub fn capacity(&self) -> u64 {
        self.0.iter().map(Range::capacity).sum()
    }

    /// The error if `next_after` returns None.
    pub fn exhausted(&self) -> Exhausted {
        Exhausted { in_use: self.capacity(), ranges: self.to_string() }
    }

    /// The first free address after `last`, the previous automatically allocated address. As in host-local, the search covers
    /// the remaining part of the range with `last`, then all other ranges, then the part up to `last` itself. `words_for` opens
    /// the bitmap of a range right before it is searched, possibly twice.
    pub fn next_after<W: Words>(
        &self,
        last: Option<IpAddr>,
        mut words_for: impl FnMut(&Range) -> Result<W, W::Error>,
    ) -> Result<Option<Pick>, W::Error> {
        for SearchStep { range, span } in self.search_steps(last) {
            let current = &self.0[range];
            let mut words = words_for(current)?;
            if let Some(offset) = first_free(&mut words, current, span)? {
                return Ok(Some(Pick { range, offset, ip: current.address(offset) }));
            }
        }
        Ok(None)
    }

    fn search_steps(&self, last: Option<IpAddr>) -> impl Iterator<Item = SearchStep> + '_ {
        let after = |ip| self.0.iter().enumerate().find_map(|(i, r)| Some((i, r.offset(ip)? + 1)));
        let (range, start) = last.and_then(after).unwrap_or((0, 0));
        let whole =
            |range: usize| SearchStep { range, span: Span { from: 0, to: self.0[range].window_len() } };
        let after_last = SearchStep { range, span: Span { from: start, to: self.0[range].window_len() } };
        let other_ranges = (range + 1..self.0.len()).chain(0..range).map(whole);
        let up_to_last = SearchStep { range, span: Span { from: 0, to: start } };
        let steps = std::iter::once(after_last).chain(other_ranges).chain([up_to_last]);
        steps.filter(|step| step.span.from < step.span.to)
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        list(&self.0, f)
    }
}

/// `a, b, c`
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
    // If any two ranges overlap, then also two adjacent ones in the order of their start.
    match ranges.windows(2).find(|pair| pair[0].overlaps(pair[1])) {
        None => Ok(()),
        Some(pair) => Err(PoolError::Overlap { first: pair[0].to_string(), second: pair[1].to_string() }),
    }
}
