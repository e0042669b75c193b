use std::net::IpAddr;

use crate::error::RequestError;
use crate::pools::Pools;
use crate::range::{Range, RangeRefusal};
use crate::set::RangeSet;

impl Pools {
    /// Assigns requested addresses to sets. Returns one entry per set: the index of the range and the address, or `None` for
    /// automatic allocation. Duplicates are ignored, because runtimes may pass an address by several conventions.
    pub fn plan_requests(
        &self,
        requested: &[(IpAddr, Option<u8>)],
    ) -> Result<Vec<Option<(usize, IpAddr)>>, RequestError> {
        let mut plan = vec![None; self.sets().len()];
        for &(ip, prefix) in requested {
            let (set, range) = self.find_allocatable(ip)?;
            check_prefix(ip, prefix, &self.sets()[set].ranges()[range])?;
            match plan[set] {
                Some((_, first)) if first != ip => {
                    let ranges = self.sets()[set].to_string();
                    return Err(RequestError::SameSet { first, second: ip, ranges });
                }
                Some(_) | None => plan[set] = Some((range, ip)),
            }
        }
        Ok(plan)
    }

    /// The indexes of the set and of the range that can allocate `ip`.
    fn find_allocatable(&self, ip: IpAddr) -> Result<(usize, usize), RequestError> {
        let indexes = self.find(ip);
        let containing = indexes.map(|(set, range)| &self.sets()[set].ranges()[range]);
        // A gateway or network address before rangeStart is in no range, but its range knows the specific reason.
        let refused = match containing {
            Some(range) => range.refusal(ip).map(|reason| (range, reason)),
            None => self.ranges().find_map(|range| match range.refusal(ip) {
                None | Some(RangeRefusal::Outside) => None,
                Some(reason) => Some((range, reason)),
            }),
        };
        match (refused, indexes) {
            (Some((range, reason)), _) => Err(self.refused(ip, range, reason)),
            (None, Some(indexes)) => Ok(indexes),
            (None, None) => Err(RequestError::Outside { ip, ranges: self.to_string() }),
        }
    }

    fn refused(&self, ip: IpAddr, range: &Range, reason: RangeRefusal) -> RequestError {
        let (subnet, ranges) = (range.subnet(), self.to_string());
        match reason {
            RangeRefusal::Outside => RequestError::Outside { ip, ranges },
            RangeRefusal::Gateway => RequestError::Gateway { ip, ranges },
            RangeRefusal::Excluded(exclude) => RequestError::Excluded { ip, exclude, ranges },
            RangeRefusal::NetworkAddress => RequestError::NetworkAddress { ip, subnet, ranges },
            RangeRefusal::BroadcastAddress => RequestError::BroadcastAddress { ip, subnet, ranges },
        }
    }

    fn ranges(&self) -> impl Iterator<Item = &Range> {
        self.sets().iter().flat_map(RangeSet::ranges)
    }
}

fn check_prefix(ip: IpAddr, prefix: Option<u8>, range: &Range) -> Result<(), RequestError> {
    match prefix {
        Some(given) if given != range.prefix_len() => {
            Err(RequestError::Prefix { ip, given, subnet: range.subnet() })
        }
        Some(_) | None => Ok(()),
    }
}
