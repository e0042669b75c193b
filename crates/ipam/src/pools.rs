use std::fmt;
use std::net::IpAddr;

use crate::error::PoolError;
use crate::range::{Range, RangeSpec};
use crate::set::{RangeSet, list, refuse_overlap};

/// A pod gets an address of each set.
const MOST_SETS: usize = 16;

/// All sets of a network: a pod gets one address of each. Never empty, and no address is in two ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pools(Vec<RangeSet>);

impl Pools {
    pub fn new(sets: Vec<RangeSet>) -> Result<Self, PoolError> {
        if sets.is_empty() {
            return Err(PoolError::NoSet);
        }
        if sets.len() > MOST_SETS {
            return Err(PoolError::TooManySets { given: sets.len(), most: MOST_SETS });
        }
        let ranges = || sets.iter().flat_map(RangeSet::ranges);
        refuse_overlap(ranges())?;
        let gateways: Vec<_> = ranges().map(Range::gateway).collect();
        Ok(Self(sets.into_iter().map(|s| s.sparing(&gateways)).collect::<Result<_, _>>()?))
    }

    pub fn sets(&self) -> &[RangeSet] {
        &self.0
    }

    /// The set and the range in it that the address lies in, whether or not a pod may have it.
    pub fn find(&self, ip: IpAddr) -> Option<(usize, usize)> {
        let within = |set: &RangeSet| set.ranges().iter().position(|r| r.contains(ip));
        self.0.iter().enumerate().find_map(|(i, set)| Some((i, within(set)?)))
    }
}

impl TryFrom<Vec<Vec<RangeSpec>>> for Pools {
    type Error = PoolError;

    /// From the shape of host-local's `ranges`: a list of sets, each a list of ranges.
    fn try_from(sets: Vec<Vec<RangeSpec>>) -> Result<Self, PoolError> {
        let set = |specs: Vec<RangeSpec>| {
            RangeSet::new(specs.into_iter().map(Range::new).collect::<Result<_, _>>()?)
        };
        Self::new(sets.into_iter().map(set).collect::<Result<_, _>>()?)
    }
}

impl fmt::Display for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        list(&self.0, f)
    }
}
