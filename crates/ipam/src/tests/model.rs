//! Compares the allocator with a naive model: a set of claimed addresses and a linear search.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::interval::{address, number};

/// Tests one address at a time against the configuration, without using code of the crate.
struct NaiveAllocator {
    specs: Vec<RangeSpec>,
    claimed: BTreeSet<IpAddr>,
    last: Option<IpAddr>,
}

fn bounds(spec: &RangeSpec) -> (u128, u128) {
    let (first, last) = (number(spec.subnet.network()) + 1, number(spec.subnet.broadcast()));
    let last = if spec.subnet.addr().is_ipv4() { last - 1 } else { last };
    let (start, end) = (spec.start.map_or(first, number), spec.end.map_or(last, number));
    (start, end.min(start.saturating_add(u128::from(WINDOW) - 1)))
}

impl NaiveAllocator {
    fn search_order(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let contains = |spec: &&RangeSpec, ip: IpAddr| {
            let (first, last) = bounds(spec);
            spec.subnet.addr().is_ipv4() == ip.is_ipv4() && (first..=last).contains(&number(ip))
        };
        let last_range = self.last.and_then(|ip| self.specs.iter().position(|s| contains(&s, ip)));
        let count = self.specs.len();
        let nth = move |i: usize| (last_range.unwrap_or(0) + i) % count;
        let whole = |spec: &RangeSpec| {
            let (like, (first, last)) = (spec.subnet.addr(), bounds(spec));
            (first..=last).map(move |n| address(n, like))
        };
        // The range with the last address is searched twice: first only after that address, finally all of it.
        let start = last_range.and(self.last).map_or(0, |ip| number(ip) + 1);
        let after_last = whole(&self.specs[nth(0)]).skip_while(move |ip| number(*ip) < start);
        after_last.chain((1..=count).flat_map(move |i| whole(&self.specs[nth(i)])))
    }

    fn is_allocatable(&self, ip: IpAddr) -> bool {
        let spec = self.specs.iter().find(|s| s.subnet.contains(&ip)).unwrap();
        let special = ip == spec.subnet.network() || (ip.is_ipv4() && ip == spec.subnet.broadcast());
        let gateway = spec.gateway.unwrap_or(address(number(spec.subnet.network()) + 1, ip));
        !special && ip != gateway && !spec.exclude.iter().any(|e| e.contains(&ip))
    }

    fn allocate(&mut self) -> Option<IpAddr> {
        let next = self.search_order().find(|ip| self.is_allocatable(*ip) && !self.claimed.contains(ip))?;
        self.claimed.insert(next);
        self.last = Some(next);
        Some(next)
    }
}

#[derive(Debug, Clone)]
enum Op {
    Allocate,
    Release(Index),
    /// Requests an address at this distance from the last one.
    Request(u8),
    Restart,
    /// Clears the bit of a claimed address, as if a process was killed between claim and index update.
    ClearBit(Index),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => Just(Op::Allocate),
        3 => any::<Index>().prop_map(Op::Release),
        1 => any::<u8>().prop_map(Op::Request),
        1 => Just(Op::Restart),
        1 => any::<Index>().prop_map(Op::ClearBit),
    ];
    prop::collection::vec(op, 1..120)
}

fn subnets() -> impl Strategy<Value = IpNet> {
    let v4 = prop::sample::select(vec![30u8, 29, 28, 26, 24, 16, 12, 11, 8]);
    let v6 = prop::sample::select(vec![126u8, 125, 124, 120, 112, 108, 64, 48, 8]);
    prop_oneof![
        (any::<u32>(), v4).prop_map(|(bits, len)| (address(bits.into(), ip("0.0.0.0")), len)),
        (any::<u128>(), v6).prop_map(|(bits, len)| (address(bits, ip("::")), len)),
    ]
    .prop_map(|(ip, len)| IpNet::new(ip, len).unwrap().trunc())
}

/// Valid ranges. Start, end, gateway and exclusions are among the first addresses, which are allocated first.
pub(super) fn specs() -> impl Strategy<Value = RangeSpec> {
    let near = || prop::option::of(0u8..80);
    let exclude = prop::collection::vec((0u8..80, 0u8..5), 0..4);
    (subnets(), near(), near(), near(), exclude).prop_filter_map(
        "refused range",
        |(subnet, start, end, gateway, exclude)| {
            let size = number(subnet.broadcast()) - number(subnet.network());
            let at = |step: u8| {
                address(number(subnet.network()) + u128::from(step) % size.saturating_add(1), subnet.addr())
            };
            let exclude = exclude.iter().map(|(step, bits)| {
                IpNet::new(at(*step), subnet.max_prefix_len() - bits).unwrap_or_else(|e| unreachable!("{e}"))
            });
            let spec = RangeSpec {
                subnet,
                start: start.map(at),
                end: end.map(at),
                gateway: gateway.map(at),
                exclude: exclude.collect(),
            };
            Range::new(spec.clone()).is_ok().then_some(spec)
        },
    )
}

/// One to three ranges of one family that do not overlap.
fn sets() -> impl Strategy<Value = Vec<RangeSpec>> {
    prop::collection::vec(specs(), 1..4).prop_filter_map("refused set", |specs| {
        let overlap =
            |a: &RangeSpec, b: &RangeSpec| a.subnet.contains(&b.subnet) || b.subnet.contains(&a.subnet);
        let nested = (1..specs.len()).any(|i| specs[..i].iter().any(|s| overlap(s, &specs[i])));
        let set = RangeSet::new(specs.iter().cloned().map(range).collect());
        (!nested && set.is_ok()).then_some(specs)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn c3_the_allocator_matches_the_naive_model(specs in sets(), ops in ops()) {
        let mut node = Node::new(RangeSet::new(specs.iter().cloned().map(range).collect()).unwrap());
        let mut naive = NaiveAllocator { specs, claimed: BTreeSet::new(), last: None };
        for op in ops {
            let any_claim = |i: Index| (!node.claims.is_empty()).then(|| *i.get(&node.claims));
            match op {
                Op::Allocate => prop_assert_eq!(node.allocate(), naive.allocate()),
                Op::Release(i) => if let Some(ip) = any_claim(i) {
                    node.release(ip);
                    naive.claimed.remove(&ip);
                },
                Op::Request(step) => {
                    let front = node.last.unwrap_or(node.set.ranges()[0].start());
                    let ip = address(number(front).wrapping_add(step.into()), front);
                    if node.set.ranges().iter().any(|r| r.allocatable(ip)) {
                        prop_assert_eq!(node.claim(ip), naive.claimed.insert(ip));
                    }
                }
                Op::Restart => node.restart(),
                Op::ClearBit(i) => if let Some(ip) = any_claim(i) {
                    node.update_index(ip, clear);
                },
            }
        }
        prop_assert_eq!(BTreeSet::from_iter(node.claims.iter().copied()), naive.claimed);
    }
}
