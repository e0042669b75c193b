use std::fmt;
use std::net::IpAddr;

use crate::error::PoolError;
use crate::range::{Range, RangeSpec};
use crate::set::{RangeSet, list, refuse_overlap};

/// Limit for the addresses of a pod.
const MAX_SETS: usize = 16;

/// All range sets of a network. A pod gets one address of each set. Never empty, and ranges do not overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pools(Vec<RangeSet>);

impl Pools {
    pub fn new(sets: Vec<RangeSet>) -> Result<Self, PoolError> {
        if sets.is_empty() {
            return Err(PoolError::NoSet);
        }
        if sets.len() > MAX_SETS {
            return Err(PoolError::TooManySets { given: sets.len(), max: MAX_SETS });
        }
        let ranges = || sets.iter().flat_map(RangeSet::ranges);
        refuse_overlap(ranges())?;
        let gateways: Vec<_> = ranges().map(Range::gateway).collect();
        Ok(Self(sets.into_iter().map(|s| s.reserving_gateways(&gateways)).collect::<Result<_, _>>()?))
    }

    pub fn sets(&self) -> &[RangeSet] {
        &self.0
    }

    /// The indexes of the set and of the range that contain the address, allocatable or not.
    pub fn find(&self, ip: IpAddr) -> Option<(usize, usize)> {
        let within = |set: &RangeSet| set.ranges().iter().position(|r| r.contains(ip));
        self.0.iter().enumerate().find_map(|(i, set)| Some((i, within(set)?)))
    }
}

impl TryFrom<Vec<Vec<RangeSpec>>> for Pools {
    type Error = PoolError;

    /// The structure of `ranges` in host-local: a list of sets, each a list of ranges.
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
