use super::*;

fn set_of(specs: Vec<RangeSpec>) -> Result<RangeSet, PoolError> {
    RangeSet::new(specs.into_iter().map(range).collect())
}

fn pools(sets: Vec<Vec<RangeSpec>>) -> Pools {
    Pools::try_from(sets).unwrap()
}

#[test]
fn c2_mixed_families_and_overlaps_in_a_set_are_refused() {
    let refusals = [
        (vec![], "a range set is empty; add a range or remove the set"),
        (
            vec![spec("10.1.0.0/24"), spec("fd00::/64")],
            "ranges 10.1.0.1-10.1.0.254 (subnet 10.1.0.0/24) and fd00::1-fd00::ffff:ffff:ffff:ffff (subnet fd00::/64) \
             of one set have different address families; use one set per family",
        ),
        (
            vec![spec("10.2.0.0/24"), spec("10.1.0.0/24"), between("10.2.0.0/16", "10.2.0.254", "10.2.1.9")],
            "ranges 10.2.0.1-10.2.0.254 (subnet 10.2.0.0/24) and 10.2.0.254-10.2.1.9 (subnet 10.2.0.0/16) overlap; \
             change rangeStart or rangeEnd so that each address is in one range",
        ),
    ];
    for (specs, expected) in refusals {
        assert_eq!(set_of(specs).unwrap_err().to_string(), expected);
    }
    let halves = vec![
        between("10.1.0.0/24", "10.1.0.10", "10.1.0.19"),
        between("10.1.0.0/24", "10.1.0.20", "10.1.0.29"),
    ];
    assert_eq!(set_of(halves).unwrap().capacity(), 20);
}

#[test]
fn c2_a_range_inside_another_one_is_an_overlap() {
    let specs = vec![spec("10.0.0.0/8"), spec("10.1.0.0/24"), spec("11.0.0.0/24")];
    assert!(matches!(set_of(specs), Err(PoolError::Overlap { .. })));
}

#[test]
fn c2_missing_sets_and_overlaps_between_sets_are_refused() {
    assert_eq!(
        Pools::new(vec![]).unwrap_err().to_string(),
        "no ranges are configured; set at least one subnet"
    );
    let same = vec![vec![spec("fd00::/64")], vec![spec("10.1.0.0/24")], vec![spec("fd00::/64")]];
    let refused = Pools::try_from(same).unwrap_err().to_string();
    let range = "fd00::1-fd00::ffff:ffff:ffff:ffff (subnet fd00::/64)";
    assert!(refused.starts_with(&format!("ranges {range} and {range} overlap; ")), "{refused}");
    let bad = Pools::try_from(vec![vec![spec("10.0.0.0/31")]]).unwrap_err();
    assert!(bad.to_string().starts_with("subnet 10.0.0.0/31 is too small"));
}

#[test]
fn c2_gateways_of_other_ranges_are_not_allocatable() {
    let first =
        RangeSpec { gateway: Some(ip("10.0.0.21")), ..between("10.0.0.0/24", "10.0.0.10", "10.0.0.19") };
    let second = between("10.0.0.0/24", "10.0.0.20", "10.0.0.22");
    for sets in [vec![vec![first.clone(), second.clone()]], vec![vec![first.clone()], vec![second.clone()]]] {
        let pools = pools(sets);
        let ranges: Vec<_> = pools.sets().iter().flat_map(RangeSet::ranges).collect();
        assert_eq!((ranges[0].capacity(), ranges[1].capacity()), (10, 2));
        assert_eq!(ranges[1].refusal(ip("10.0.0.21")), Some(RangeRefusal::Gateway));
    }
    let only = between("10.0.0.0/24", "10.0.0.21", "10.0.0.21");
    assert!(matches!(set_of(vec![first, only]), Err(PoolError::Range(RangeError::NothingLeft { .. }))));
}

#[test]
fn c2_find_returns_set_and_range() {
    let pools = pools(vec![vec![spec("10.1.0.0/24"), spec("10.2.0.0/24")], vec![spec("fd00::/64")]]);
    assert_eq!(pools.find(ip("10.1.0.1")), Some((0, 0)));
    assert_eq!(pools.find(ip("10.2.0.254")), Some((0, 1)));
    assert_eq!(pools.find(ip("fd00::9")), Some((1, 0)));
    assert_eq!(pools.find(ip("10.2.0.255")), None);
    assert_eq!(pools.find(ip("fd01::9")), None);
}

#[test]
fn e18_requested_addresses_are_assigned_to_their_sets() {
    let pools = pools(vec![vec![spec("10.1.0.0/24"), spec("10.2.0.0/24")], vec![spec("fd00::/64")]]);
    let (four, six) = (ip("10.2.0.9"), ip("fd00::9:0:0:1"));
    assert_eq!(pools.plan_requests(&[]).unwrap(), [None, None]);
    assert_eq!(pools.plan_requests(&[(six, None)]).unwrap(), [None, Some((0, six))]);
    let both = pools.plan_requests(&[(six, Some(64)), (four, Some(24))]).unwrap();
    assert_eq!(both, [Some((1, four)), Some((0, six))]);
    // CNI_ARGS and runtimeConfig may request the same address.
    assert_eq!(pools.plan_requests(&[(four, None), (four, Some(24))]).unwrap(), [Some((1, four)), None]);
}

#[test]
fn e18_an_address_outside_the_window_can_be_requested() {
    let pools = pools(vec![vec![spec("10.0.0.0/8")]]);
    let far = ip("10.200.0.1");
    assert_eq!(pools.plan_requests(&[(far, None)]).unwrap(), [Some((0, far))]);
}

#[test]
fn e18_refused_requests_name_the_reason() {
    let first =
        RangeSpec { exclude: vec![net("10.1.0.16/28")], ..between("10.1.0.0/24", "10.1.0.10", "10.1.0.255") };
    let pools = pools(vec![vec![first], vec![spec("fd00::/120")]]);
    let four = "10.1.0.10-10.1.0.255 (subnet 10.1.0.0/24)";
    let all = format!("{four}, fd00::1-fd00::ff (subnet fd00::/120)");
    for (requested, expected) in [
        (vec![("10.9.0.1", None)], format!("10.9.0.1 is outside of all ranges; request one of {all}")),
        (vec![("10.1.0.9", None)], format!("10.1.0.9 is outside of all ranges; request one of {all}")),
        // The gateway is outside the range, but the error names the more specific reason.
        (vec![("10.1.0.1", None)], format!("10.1.0.1 is a gateway; request another one of {all}")),
        (vec![("fd00::1", None)], format!("fd00::1 is a gateway; request another one of {all}")),
        (
            vec![("10.1.0.20", None)],
            format!("10.1.0.20 is excluded by 10.1.0.16/28; request another one of {all}"),
        ),
        (
            vec![("10.1.0.0", None)],
            format!("10.1.0.0 is the network address of 10.1.0.0/24; request another one of {all}"),
        ),
        (
            vec![("10.1.0.255", None)],
            format!("10.1.0.255 is the broadcast address of 10.1.0.0/24; request another one of {all}"),
        ),
        (
            vec![("fd00::", None)],
            format!("fd00:: is the network address of fd00::/120; request another one of {all}"),
        ),
        (
            vec![("10.1.0.10", Some(16))],
            "10.1.0.10/16 does not match subnet 10.1.0.0/24; request 10.1.0.10/24 or 10.1.0.10".to_owned(),
        ),
    ] {
        let requested: Vec<_> = requested.into_iter().map(|(a, p)| (ip(a), p)).collect();
        let refused = pools.plan_requests(&requested).unwrap_err().to_string();
        assert_eq!(refused, format!("requested address {expected}"));
    }
    let two = [(ip("10.1.0.10"), None), (ip("10.1.0.11"), None)];
    assert_eq!(
        pools.plan_requests(&two).unwrap_err().to_string(),
        format!(
            "requested addresses 10.1.0.10 and 10.1.0.11 are both of {four}, but a pod gets one address of it; \
             request one of them"
        )
    );
}

#[test]
fn c3_the_exhaustion_error_counts_addresses_in_use() {
    let mut node = Node::new(set_of(vec![spec("10.1.0.0/29"), spec("10.2.0.0/30")]).unwrap());
    assert_eq!(std::iter::from_fn(|| node.allocate()).count(), 6);
    assert_eq!(
        node.set.exhausted().to_string(),
        "no free address: all 6 of 10.1.0.1-10.1.0.6 (subnet 10.1.0.0/29), 10.2.0.1-10.2.0.2 (subnet 10.2.0.0/30) are \
         in use; remove pods or add a range"
    );
}

#[test]
fn c3_allocation_continues_after_the_last_address_and_wraps() {
    let specs = vec![spec("10.1.0.0/29"), spec("10.2.0.0/30"), spec("10.3.0.0/29")];
    let mut node = Node::new(set_of(specs).unwrap());
    node.last = Some(ip("10.1.0.5"));
    let allocated: Vec<_> = std::iter::from_fn(|| node.allocate()).map(|ip| ip.to_string()).collect();
    let expected =
        "10.1.0.6 10.2.0.2 10.3.0.2 10.3.0.3 10.3.0.4 10.3.0.5 10.3.0.6 10.1.0.2 10.1.0.3 10.1.0.4 10.1.0.5";
    assert_eq!(allocated.join(" "), expected);
}

#[test]
fn c3_an_unknown_last_address_starts_at_the_first_address() {
    for last in [None, Some(ip("192.0.2.1")), Some(ip("fd00::1"))] {
        let mut node = Node::of(spec("10.1.0.0/29"));
        node.last = last;
        assert_eq!(node.allocate(), Some(ip("10.1.0.2")));
    }
}

#[test]
fn the_number_of_sets_and_ranges_is_limited() {
    let net = |n: usize| spec(&format!("10.{}.{}.0/24", n / 256, n % 256));
    let sets = |count| Pools::try_from((0..count).map(|n| vec![net(n)]).collect::<Vec<_>>());
    assert!(sets(16).is_ok());
    let refused = sets(17).unwrap_err().to_string();
    assert!(
        refused.starts_with("17 range sets are configured, but a pod gets at most 16 addresses"),
        "{refused}"
    );
    let ranges = |count| set_of((0..count).map(net).collect());
    assert!(ranges(1024).is_ok());
    assert!(matches!(ranges(1025), Err(PoolError::TooManyRanges { given: 1025, max: 1024 })));
}
