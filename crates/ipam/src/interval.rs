use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// A closed interval of addresses as numbers. Not stored as a length, because the length of `::/0` does not fit into a u128.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) first: u128,
    pub(crate) last: u128,
}

impl Interval {
    pub(crate) fn of_net(net: IpNet) -> Self {
        Self { first: number(net.network()), last: number(net.broadcast()) }
    }

    pub(crate) fn of_address(ip: IpAddr) -> Self {
        Self { first: number(ip), last: number(ip) }
    }

    /// The part of `self` inside `other`.
    pub(crate) fn clip(self, other: Self) -> Option<Self> {
        let both = Self { first: self.first.max(other.first), last: self.last.min(other.last) };
        (both.first <= both.last).then_some(both)
    }

    /// The parts of `self` outside `excluded`, ascending. `excluded` may be unsorted and overlapping.
    pub(crate) fn without(self, mut excluded: Vec<Self>) -> Vec<Self> {
        excluded.sort_by_key(|e| e.first);
        let mut remaining = Vec::new();
        let mut next = self.first;
        for e in excluded.into_iter().filter_map(|e| e.clip(self)) {
            if e.first > next {
                remaining.push(Self { first: next, last: e.first - 1 });
            }
            // This also prevents an overflow of the addition below.
            if e.last == self.last {
                return remaining;
            }
            next = next.max(e.last + 1);
        }
        remaining.push(Self { first: next, last: self.last });
        remaining
    }
}

pub(crate) fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The address with this number in the family of `like`.
pub(crate) fn address(number: u128, like: IpAddr) -> IpAddr {
    match like {
        // The number of an IPv4 address fits into 32 bits.
        IpAddr::V4(_) => Ipv4Addr::from_bits(number as u32).into(),
        IpAddr::V6(_) => Ipv6Addr::from_bits(number).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn iv(first: u128, last: u128) -> Interval {
        Interval { first, last }
    }

    #[test]
    fn without_returns_the_gaps_between_exclusions() {
        let all = iv(10, 20);
        assert_eq!(all.without(vec![]), [all]);
        assert_eq!(all.without(vec![iv(0, 9), iv(21, 30)]), [all]);
        assert_eq!(all.without(vec![iv(15, 15), iv(0, 11)]), [iv(12, 14), iv(16, 20)]);
        assert_eq!(all.without(vec![iv(12, 18), iv(13, 14), iv(18, 19)]), [iv(10, 11), iv(20, 20)]);
        assert_eq!(all.without(vec![iv(12, 13), iv(14, 20)]), [iv(10, 11)]);
        assert_eq!(all.without(vec![iv(0, 99)]), []);
    }

    #[test]
    fn without_does_not_overflow_at_the_last_address() {
        let all = iv(0, u128::MAX);
        assert_eq!(all.without(vec![all]), []);
        assert_eq!(all.without(vec![iv(0, 0), iv(u128::MAX, u128::MAX)]), [iv(1, u128::MAX - 1)]);
    }
}
