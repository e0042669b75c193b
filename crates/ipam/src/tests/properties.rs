use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::sample::Index;

use super::model::specs;
use super::*;

/// Ranges that a test can exhaust.
fn small() -> impl Strategy<Value = RangeSpec> {
    specs().prop_filter("large", |s| range(s.clone()).capacity() <= 512)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn c3_each_address_is_allocated_exactly_once(spec in small()) {
        let mut node = Node::of(spec);
        let allocated: Vec<_> = std::iter::from_fn(|| node.allocate()).collect();
        prop_assert_eq!(allocated.len() as u64, node.set.capacity());
        prop_assert_eq!(BTreeSet::from_iter(&allocated).len(), allocated.len());
    }

    #[test]
    fn c2_gateways_exclusions_and_reserved_are_never_allocated(spec in specs()) {
        let mut node = Node::of(spec.clone());
        let r = node.set.ranges()[0].clone();
        for ip in std::iter::from_fn(|| node.allocate()).take(200) {
            prop_assert!(ip != r.gateway() && ip != spec.subnet.network());
            prop_assert!(ip.is_ipv6() || ip != spec.subnet.broadcast());
            prop_assert!(!spec.exclude.iter().any(|e| e.contains(&ip)));
            prop_assert!(r.start() <= ip && ip <= r.end() && r.allocatable(ip));
        }
    }

    #[test]
    fn c2_capacity_counts_allocatable_addresses(spec in small()) {
        let r = range(spec);
        let allocatable = (0..r.window_len()).filter(|o| r.allocatable(r.address(*o))).count();
        prop_assert_eq!(allocatable as u64, r.capacity());
    }

    #[test]
    fn c3_a_released_address_can_be_allocated_again(spec in small(), which: Index) {
        let mut node = Node::of(spec);
        let allocated: Vec<_> = std::iter::from_fn(|| node.allocate()).collect();
        let released = *which.get(&allocated);
        node.release(released);
        prop_assert_eq!(node.allocate(), Some(released));
        prop_assert_eq!(node.allocate(), None);
    }

    #[test]
    fn c3_the_last_allocated_address_is_reused_last(spec in specs(), before in 0usize..100) {
        let mut node = Node::of(spec);
        let last = std::iter::from_fn(|| node.allocate()).take(before + 1).last().unwrap();
        node.release(last);
        let free = node.set.capacity() - node.claims.len() as u64;
        let next = node.allocate();
        prop_assert_eq!(next == Some(last), free == 1);
    }

    #[test]
    fn c3_released_addresses_are_reused_after_all_others(spec in small(), count in 1usize..50) {
        let mut node = Node::of(spec);
        let allocated: Vec<_> = std::iter::from_fn(|| node.allocate()).take(count).collect();
        let unused = node.set.capacity() - allocated.len() as u64;
        for ip in &allocated {
            node.release(*ip);
        }
        let first_reused = std::iter::from_fn(|| node.allocate()).position(|ip| allocated.contains(&ip));
        prop_assert_eq!(first_reused, Some(unused as usize));
    }

    #[test]
    fn c3_a_restart_does_not_change_allocations(spec in specs(), releases in prop::collection::vec(any::<Index>(), 0..20)) {
        let mut node = Node::of(spec);
        let allocated: Vec<_> = std::iter::from_fn(|| node.allocate()).take(60).collect();
        for i in releases {
            node.release(*i.get(&allocated));
        }
        let mut restarted = Node::new(node.set.clone());
        (restarted.claims, restarted.last) = (node.claims.clone(), node.last);
        restarted.restart();
        for _ in 0..80 {
            prop_assert_eq!(restarted.allocate(), node.allocate());
        }
    }
}
