use super::*;

#[test]
fn c2_ranges_have_the_defaults_of_host_local() {
    let r = range(spec("10.88.0.0/24"));
    assert_eq!((r.start(), r.end(), r.gateway()), (ip("10.88.0.1"), ip("10.88.0.254"), ip("10.88.0.1")));
    assert_eq!((r.subnet(), r.prefix_len(), r.capacity()), (net("10.88.0.0/24"), 24, 253));
    let r = range(spec("fd00:1::/64"));
    let last = ip("fd00:1::ffff:ffff:ffff:ffff");
    assert_eq!((r.start(), r.end(), r.gateway()), (ip("fd00:1::1"), last, ip("fd00:1::1")));
    assert_eq!((r.prefix_len(), r.capacity()), (64, u64::from(WINDOW) - 1));
}

#[test]
fn c2_capacity_is_right_for_every_subnet_size() {
    let window = u64::from(WINDOW);
    for (subnet, capacity) in [
        ("10.0.0.0/30", 1),
        ("10.0.0.0/29", 5),
        ("10.0.0.0/16", 65_533),
        ("10.0.0.0/12", window - 3),
        ("10.0.0.0/11", window - 1),
        ("64.0.0.0/3", window - 1),
        ("fd00::/126", 2),
        ("fd00::/125", 6),
        ("fd00::/108", window - 2),
        ("2000::/3", window - 1),
    ] {
        let r = range(spec(subnet));
        assert_eq!(r.capacity(), capacity, "{subnet}");
        assert!(r.window_len() <= WINDOW && r.window_words() <= 16_384, "{subnet}");
    }
}

#[test]
fn c2_invalid_ranges_are_refused_with_a_fix() {
    let small4 =
        "network address, gateway, pod and broadcast address need four addresses; use a /30 or larger";
    let small6 = "subnet-router anycast address, gateway and pod need three addresses; use a /126 or larger";
    let gateway = |subnet, g| RangeSpec { gateway: Some(ip(g)), ..spec(subnet) };
    for (spec, expected) in [
        (spec("10.88.0.5/16"), "subnet 10.88.0.5/16 has host bits set; write 10.88.0.0/16".to_owned()),
        (spec("fd00::5/64"), "subnet fd00::5/64 has host bits set; write fd00::/64".to_owned()),
        (spec("10.0.0.0/31"), format!("subnet 10.0.0.0/31 is too small: {small4}")),
        (spec("10.0.0.1/32"), format!("subnet 10.0.0.1/32 is too small: {small4}")),
        (spec("fd00::/127"), format!("subnet fd00::/127 is too small: {small6}")),
        (spec("fd00::1/128"), format!("subnet fd00::1/128 is too small: {small6}")),
        (
            between("10.0.0.0/24", "fd00::1", "10.0.0.9"),
            "rangeStart fd00::1 is IPv6, but subnet 10.0.0.0/24 is IPv4; use addresses of one family in a range".into(),
        ),
        (
            between("fd00::/64", "fd00::1", "10.0.0.9"),
            "rangeEnd 10.0.0.9 is IPv4, but subnet fd00::/64 is IPv6; use addresses of one family in a range".into(),
        ),
        (
            gateway("10.0.0.0/24", "fd00::1"),
            "gateway fd00::1 is IPv6, but subnet 10.0.0.0/24 is IPv4; use addresses of one family in a range".into(),
        ),
        (
            without("10.0.0.0/24", &["fd00::/120"]),
            "exclude fd00:: is IPv6, but subnet 10.0.0.0/24 is IPv4; use addresses of one family in a range".into(),
        ),
        (
            between("10.0.0.0/24", "10.0.1.1", "10.0.0.9"),
            "rangeStart 10.0.1.1 is outside of subnet 10.0.0.0/24; use one from 10.0.0.1 to 10.0.0.254".into(),
        ),
        (
            between("fd00::/126", "fd00::1", "fd00::4"),
            "rangeEnd fd00::4 is outside of subnet fd00::/126; use one from fd00::1 to fd00::3".into(),
        ),
        (
            between("10.0.0.0/24", "10.0.0.9", "10.0.0.8"),
            "rangeStart 10.0.0.9 is after rangeEnd 10.0.0.8; swap them".into(),
        ),
        (
            between("10.0.0.0/24", "10.0.0.1", "10.0.0.1"),
            "range 10.0.0.1-10.0.0.1 of subnet 10.0.0.0/24 has no address for pods: gateway, exclusions and \
             reserved addresses cover all of it; use a larger range or fewer exclusions"
                .into(),
        ),
    ] {
        assert_eq!(Range::new(spec.clone()).unwrap_err().to_string(), expected, "{spec:?}");
    }
}

#[test]
fn c2_a_completely_excluded_range_is_refused() {
    for (subnet, exclude) in [
        ("10.0.0.0/24", &["10.0.0.0/25", "10.0.0.128/25"][..]),
        ("10.0.0.0/30", &["10.0.0.2/32"]),
        ("fd00::/126", &["fd00::2/127"]),
        ("2000::/3", &["2000::/3"]),
        ("10.0.0.0/8", &["10.0.0.0/9", "10.128.0.0/9"]),
    ] {
        let refused = Range::new(without(subnet, exclude)).unwrap_err();
        assert!(matches!(refused, RangeError::NothingLeft { .. }), "{subnet} {refused}");
    }
}

#[test]
fn c2_reserved_and_excluded_addresses_are_not_allocatable() {
    let r = range(RangeSpec {
        gateway: Some(ip("10.0.0.7")),
        exclude: vec![net("10.0.0.16/28")],
        ..between("10.0.0.0/24", "10.0.0.0", "10.0.0.255")
    });
    for (address, reason) in [
        ("10.0.0.0", Some(RangeRefusal::NetworkAddress)),
        ("10.0.0.1", None),
        ("10.0.0.7", Some(RangeRefusal::Gateway)),
        ("10.0.0.15", None),
        ("10.0.0.16", Some(RangeRefusal::Excluded(net("10.0.0.16/28")))),
        ("10.0.0.31", Some(RangeRefusal::Excluded(net("10.0.0.16/28")))),
        ("10.0.0.32", None),
        ("10.0.0.255", Some(RangeRefusal::BroadcastAddress)),
        ("10.0.1.1", Some(RangeRefusal::Outside)),
        ("fd00::1", Some(RangeRefusal::Outside)),
    ] {
        assert_eq!(r.refusal(ip(address)), reason, "{address}");
        assert_eq!(r.allocatable(ip(address)), reason.is_none(), "{address}");
    }
    assert_eq!(r.capacity(), 256 - 2 - 1 - 16);
    let r = range(between("fd00::/120", "fd00::", "fd00::ff"));
    assert_eq!(r.refusal(ip("fd00::")), Some(RangeRefusal::NetworkAddress));
    assert!(r.allocatable(ip("fd00::ff")), "IPv6 has no broadcast address");
    assert!(!r.contains(ip("0.0.0.5")));
}

#[test]
fn c2_a_gateway_may_be_outside_the_subnet() {
    let r = range(RangeSpec { gateway: Some(ip("169.254.1.1")), ..spec("10.0.0.0/30") });
    assert_eq!((r.gateway(), r.capacity()), (ip("169.254.1.1"), 2));
    assert!(r.allocatable(ip("10.0.0.1")));
}

#[test]
fn c2_offsets_and_addresses_are_inverse_within_the_window() {
    for subnet in
        ["10.0.0.0/30", "10.0.0.0/24", "64.0.0.0/3", "223.0.0.0/8", "fd00::/126", "fdff::/16", "2000::/3"]
    {
        let r = range(spec(subnet));
        assert_eq!(r.offset(r.start()), Some(0), "{subnet}");
        for offset in [0, r.window_len() / 2, r.window_len() - 1] {
            assert_eq!(r.offset(r.address(offset)), Some(offset), "{subnet}");
        }
    }
    let r = range(spec("10.0.0.0/8"));
    assert_eq!(r.offset(ip("10.16.0.0")), Some(WINDOW - 1));
    assert_eq!(r.offset(ip("10.16.0.1")), None, "after the window");
    assert!(r.allocatable(ip("10.16.0.1")), "but it can be requested");
    assert_eq!(r.offset(ip("10.0.0.0")), None, "before start");
    assert_eq!(r.offset(ip("::10.0.0.1")), None, "same number in the other family");
}

#[test]
fn c2_index_names_are_file_names_and_contain_the_first_address() {
    assert_eq!(range(spec("10.88.0.0/24")).name(), "10.88.0.1-10.88.0.254");
    assert_eq!(range(without("10.88.0.0/24", &["10.88.0.0/25"])).name(), "10.88.0.1-10.88.0.254");
    assert_eq!(range(without("10.0.0.0/8", &["10.0.0.0/12"])).name(), "10.16.0.0-10.255.255.254");
    let long = "1111:2222:3333:4444:5555:6666:7777:0/112";
    let name = range(spec(long)).name();
    assert!(name.len() < 200 && !name.contains('/'), "{name}");
}

#[test]
fn c2_the_window_of_a_huge_range_avoids_large_exclusions() {
    let full = u64::from(WINDOW);
    for (subnet, exclude, origin, capacity) in [
        ("10.0.0.0/8", &["10.0.0.0/12"][..], "10.16.0.0", full),
        ("10.0.0.0/8", &["10.0.0.0/12", "10.16.1.0/24"], "10.16.0.0", full - 256),
        ("10.0.0.0/8", &["10.0.1.0/24", "10.0.2.0/23", "10.128.0.0/9"], "10.0.0.1", full - 1 - 256 - 512),
        // The range is not larger than the window, so the window starts at its first address.
        ("10.0.0.0/15", &["10.0.1.0/24"], "10.0.0.1", 131_069 - 256),
        ("fd00::/64", &["fd00::/65"], "fd00:0:0:0:8000::", full),
        ("fd00::/64", &["fd00::/120"], "fd00::1", full - 255),
        ("10.0.0.0/11", &["10.0.0.0/12", "10.16.0.0/13", "10.24.0.0/14"], "10.28.0.0", 262_143),
    ] {
        let r = range(without(subnet, exclude));
        assert_eq!((r.address(0), r.capacity()), (ip(origin), capacity), "{subnet} without {exclude:?}");
    }
    // 256 addresses, then an exclusion of four windows: the window starts after the exclusion.
    let r = range(RangeSpec { start: Some(ip("10.127.255.0")), ..without("10.0.0.0/8", &["10.128.0.0/10"]) });
    assert_eq!((r.address(0), r.capacity()), (ip("10.192.0.0"), full));
}

#[test]
fn special_subnets_and_gateways_are_refused_with_a_fix() {
    for (subnet, expected) in [
        (
            "127.0.0.0/8",
            "subnet 127.0.0.0/8 includes a loopback address, which no pod can have; use one such as 10.83.0.0/16",
        ),
        (
            "fe80::/64",
            "subnet fe80::/64 includes a link-local address, which no pod can have; use one such as fd00:88::/64",
        ),
    ] {
        assert_eq!(Range::new(spec(subnet)).unwrap_err().to_string(), expected);
    }
    let gateway = RangeSpec { gateway: Some(ip("224.0.0.1")), ..spec("10.0.0.0/24") };
    assert_eq!(
        Range::new(gateway).unwrap_err().to_string(),
        "gateway 224.0.0.1 is a multicast address; use one of subnet 10.0.0.0/24, or a link-local one"
    );
}
