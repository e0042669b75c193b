use std::net::IpAddr;

use crate::error::RequestError;
use crate::pools::Pools;
use crate::range::{Range, RangeRefusal};
use crate::set::RangeSet;

impl Pools {
    /// Which requested address serves which set: one entry per set, with the range in it; `None` where the set is left
    /// to automatic allocation. The same address twice is one wish, as runtimes may pass it by several conventions.
    pub fn plan_requests(
        &self,
        requested: &[(IpAddr, Option<u8>)],
    ) -> Result<Vec<Option<(usize, IpAddr)>>, RequestError> {
        let mut plan = vec![None; self.sets().len()];
        for &(ip, prefix) in requested {
            let (set, range) = self.home(ip)?;
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

    /// The set and range that may hand out `ip`, or why none does.
    fn home(&self, ip: IpAddr) -> Result<(usize, usize), RequestError> {
        let home = self.find(ip);
        let holder = home.map(|(set, range)| &self.sets()[set].ranges()[range]);
        // No range holds a gateway or a network address that lies before rangeStart; its own range still knows what it is.
        let refused = match holder {
            Some(range) => range.refusal(ip).map(|why| (range, why)),
            None => self.ranges().find_map(|range| match range.refusal(ip) {
                None | Some(RangeRefusal::Outside) => None,
                Some(why) => Some((range, why)),
            }),
        };
        match (refused, home) {
            (Some((range, why)), _) => Err(self.explain(ip, range, why)),
            (None, Some(home)) => Ok(home),
            (None, None) => Err(RequestError::Outside { ip, ranges: self.to_string() }),
        }
    }

    fn explain(&self, ip: IpAddr, range: &Range, why: RangeRefusal) -> RequestError {
        let (subnet, ranges) = (range.subnet(), self.to_string());
        match why {
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
