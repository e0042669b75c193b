use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::sample::Index;

use super::model::specs;
use super::*;

/// Small enough to be taken whole in a test.
fn small() -> impl Strategy<Value = RangeSpec> {
    specs().prop_filter("large", |s| range(s.clone()).capacity() <= 512)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn c3_exactly_capacity_addresses_can_be_taken_and_none_twice(spec in small()) {
        let mut node = Node::of(spec);
        let taken: Vec<_> = std::iter::from_fn(|| node.take()).collect();
        prop_assert_eq!(taken.len() as u64, node.set.capacity());
        prop_assert_eq!(BTreeSet::from_iter(&taken).len(), taken.len());
    }

    #[test]
    fn c2_gateway_exclusions_and_reserved_are_never_handed_out(spec in specs()) {
        let mut node = Node::of(spec.clone());
        let r = node.set.ranges()[0].clone();
        for ip in std::iter::from_fn(|| node.take()).take(200) {
            prop_assert!(ip != r.gateway() && ip != spec.subnet.network());
            prop_assert!(ip.is_ipv6() || ip != spec.subnet.broadcast());
            prop_assert!(!spec.exclude.iter().any(|e| e.contains(&ip)));
            prop_assert!(r.start() <= ip && ip <= r.end() && r.allocatable(ip));
        }
    }

    #[test]
    fn c2_capacity_counts_what_is_allocatable(spec in small()) {
        let r = range(spec);
        let open = (0..r.window_len()).filter(|o| r.allocatable(r.address(*o))).count();
        prop_assert_eq!(open as u64, r.capacity());
    }

    #[test]
    fn c3_what_is_released_is_free_again(spec in small(), which: Index) {
        let mut node = Node::of(spec);
        let taken: Vec<_> = std::iter::from_fn(|| node.take()).collect();
        let freed = *which.get(&taken);
        node.release(freed);
        prop_assert_eq!(node.take(), Some(freed));
        prop_assert_eq!(node.take(), None);
    }

    #[test]
    fn c3_the_address_just_handed_out_and_released_is_not_next(spec in specs(), before in 0usize..100) {
        let mut node = Node::of(spec);
        let last = std::iter::from_fn(|| node.take()).take(before + 1).last().unwrap();
        node.release(last);
        let free = node.set.capacity() - node.claims.len() as u64;
        let next = node.take();
        prop_assert_eq!(next == Some(last), free == 1);
    }

    #[test]
    fn c3_a_freed_address_rests_until_the_others_had_their_turn(spec in small(), taken in 1usize..50) {
        let mut node = Node::of(spec);
        let taken: Vec<_> = std::iter::from_fn(|| node.take()).take(taken).collect();
        let fresh = node.set.capacity() - taken.len() as u64;
        for ip in &taken {
            node.release(*ip);
        }
        let first_reused = std::iter::from_fn(|| node.take()).position(|ip| taken.contains(&ip));
        prop_assert_eq!(first_reused, Some(fresh as usize));
    }

    #[test]
    fn c3_a_restart_changes_no_decision(spec in specs(), gone in prop::collection::vec(any::<Index>(), 0..20)) {
        let mut node = Node::of(spec);
        let taken: Vec<_> = std::iter::from_fn(|| node.take()).take(60).collect();
        for i in gone {
            node.release(*i.get(&taken));
        }
        let mut restarted = Node::new(node.set.clone());
        (restarted.claims, restarted.last) = (node.claims.clone(), node.last);
        restarted.restart();
        for _ in 0..80 {
            prop_assert_eq!(restarted.take(), node.take());
        }
    }
}
