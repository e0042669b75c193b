//! The allocator against a naive one: a set of taken addresses and a walk from address to address.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::interval::{address, number};

/// Walks one address at a time and asks the configuration itself, never the crate, what may be handed out.
struct Naive {
    specs: Vec<RangeSpec>,
    taken: BTreeSet<IpAddr>,
    last: Option<IpAddr>,
}

fn bounds(spec: &RangeSpec) -> (u128, u128) {
    let (first, last) = (number(spec.subnet.network()) + 1, number(spec.subnet.broadcast()));
    let last = if spec.subnet.addr().is_ipv4() { last - 1 } else { last };
    let (start, end) = (spec.start.map_or(first, number), spec.end.map_or(last, number));
    (start, end.min(start.saturating_add(u128::from(WINDOW) - 1)))
}

impl Naive {
    fn walk(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let holds = |spec: &&RangeSpec, ip: IpAddr| {
            let (first, last) = bounds(spec);
            spec.subnet.addr().is_ipv4() == ip.is_ipv4() && (first..=last).contains(&number(ip))
        };
        let home = self.last.and_then(|ip| self.specs.iter().position(|s| holds(&s, ip)));
        let count = self.specs.len();
        let turn = move |i: usize| (home.unwrap_or(0) + i) % count;
        let whole = |spec: &RangeSpec| {
            let (like, (first, last)) = (spec.subnet.addr(), bounds(spec));
            (first..=last).map(move |n| address(n, like))
        };
        // Once round and the first range again; what lies before the cursor is skipped in the first turn.
        let cut = home.and(self.last).map_or(0, |ip| number(ip) + 1);
        let ahead = whole(&self.specs[turn(0)]).skip_while(move |ip| number(*ip) < cut);
        ahead.chain((1..=count).flat_map(move |i| whole(&self.specs[turn(i)])))
    }

    fn may_have(&self, ip: IpAddr) -> bool {
        let home = self.specs.iter().find(|s| s.subnet.contains(&ip)).unwrap();
        let special = ip == home.subnet.network() || (ip.is_ipv4() && ip == home.subnet.broadcast());
        let gateway = home.gateway.unwrap_or(address(number(home.subnet.network()) + 1, ip));
        !special && ip != gateway && !home.exclude.iter().any(|e| e.contains(&ip))
    }

    fn take(&mut self) -> Option<IpAddr> {
        let next = self.walk().find(|ip| self.may_have(*ip) && !self.taken.contains(ip))?;
        self.taken.insert(next);
        self.last = Some(next);
        Some(next)
    }
}

#[derive(Debug, Clone)]
enum Op {
    Take,
    Release(Index),
    /// A requested address: a number of steps from the last one.
    Request(u8),
    Restart,
    /// The index loses the bit of a claimed address, as after a kill between claim and index.
    Forget(Index),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => Just(Op::Take),
        3 => any::<Index>().prop_map(Op::Release),
        1 => any::<u8>().prop_map(Op::Request),
        1 => Just(Op::Restart),
        1 => any::<Index>().prop_map(Op::Forget),
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

/// Any range that the crate accepts. Start, end, gateway and exclusions lie near the front, where they matter.
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
        let apart =
            |a: &RangeSpec, b: &RangeSpec| a.subnet.contains(&b.subnet) || b.subnet.contains(&a.subnet);
        let nested = (1..specs.len()).any(|i| specs[..i].iter().any(|s| apart(s, &specs[i])));
        let set = RangeSet::new(specs.iter().cloned().map(range).collect());
        (!nested && set.is_ok()).then_some(specs)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn c3_every_decision_is_the_naive_ones(specs in sets(), ops in ops()) {
        let mut node = Node::new(RangeSet::new(specs.iter().cloned().map(range).collect()).unwrap());
        let mut naive = Naive { specs, taken: BTreeSet::new(), last: None };
        for op in ops {
            let claimed = |i: Index| (!node.claims.is_empty()).then(|| *i.get(&node.claims));
            match op {
                Op::Take => prop_assert_eq!(node.take(), naive.take()),
                Op::Release(i) => if let Some(ip) = claimed(i) {
                    node.release(ip);
                    naive.taken.remove(&ip);
                },
                Op::Request(step) => {
                    let front = node.last.unwrap_or(node.set.ranges()[0].start());
                    let ip = address(number(front).wrapping_add(step.into()), front);
                    if node.set.ranges().iter().any(|r| r.allocatable(ip)) {
                        prop_assert_eq!(node.claim(ip), naive.taken.insert(ip));
                    }
                }
                Op::Restart => node.restart(),
                Op::Forget(i) => if let Some(ip) = claimed(i) {
                    node.mark(ip, clear);
                },
            }
        }
        prop_assert_eq!(BTreeSet::from_iter(node.claims.iter().copied()), naive.taken);
    }
}
