use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::state::SCHEMA;

fn link(alias: &str) -> Link {
    Link {
        index: 7,
        name: "pwabc".to_owned(),
        mac: None,
        mtu: 1500,
        up: true,
        running: true,
        promisc: false,
        arp: false,
        master: None,
        group: 0,
        peer: None,
        alias: Some(alias.to_owned()),
        kind: None,
        hairpin: None,
        vxlan: None,
    }
}

fn placement(parts: [&str; 3]) -> Placement {
    let group = Some(parts[2]).filter(|group| !group.is_empty());
    Placement::parse(Some(parts[0]), Some(parts[1]), group).unwrap()
}

#[test]
fn a9_only_an_exact_placement_is_taken_from_an_alias() {
    for (words, expected) in [
        ("10.0.0.2/24 in=shop/front/web", Some(["shop", "front", "web"])),
        ("in=shop/front", Some(["shop", "front", ""])),
        // Written by the previous version.
        ("10.0.0.2/24 fd00::2/64", None),
        ("10.0.0.2/24 mac=02:00:00:00:00:01", None),
        ("in=", None),
        ("in=shop", None),
        ("in=shop/", None),
        ("in=shop/front/", None),
        ("in=/front/web", None),
        ("in=shop/front/web/more", None),
        ("in=shop/front/w\u{1b}eb", None),
        ("in=../front/web", None),
        ("in=shop/front/web in=other/front/web", None),
        ("x in=shop/front/web\n", None),
    ] {
        let text = format!("podwire:blue/c1/eth0 {words}");
        assert_eq!(Alias::parse(&text).unwrap().placement, expected.map(placement), "{words:?}");
    }
}

#[test]
fn f7_only_managed_links_have_a_mark() {
    let blue = NetworkName::try_from("blue").unwrap();
    let tunnel = of_tunnel(&blue);
    for (alias, expected) in [
        (BRIDGE_ALIAS, Some(LinkMark::Bridge)),
        (tunnel.as_str(), Some(LinkMark::Tunnel("blue"))),
        ("podwire:blue/c1/eth0", Alias::parse("podwire:blue/c1/eth0").map(LinkMark::HostEnd)),
        ("podwire", None),
        ("podwire bridges", None),
        ("podwire:blue", None),
        ("podwire:blue/c1", None),
        ("podwire0 of the lab", None),
        ("", None),
    ] {
        assert_eq!(LinkMark::of(&link(alias)), expected, "{alias}");
    }
    assert_eq!(LinkMark::of(&Link { alias: None, ..link("") }), None);
}

fn attachment(
    key: &AttachmentKey,
    addresses: &[IpNet],
    mac: Option<Mac>,
    addressing: Addressing,
) -> Attachment {
    let addresses: Vec<_> = addresses.iter().map(|address| json!({"address": address})).collect();
    serde_json::from_value(json!({
        "schema": SCHEMA, "network": key.network, "container": key.container, "ifname": key.ifname, "netns": "",
        "mode": "routed", "bridge": "b", "host_link": key.host_link(0), "host_mac": key.host_mac(),
        "pod_mac": mac.unwrap_or_else(|| key.pod_mac()), "mtu": 1500, "spoof_check": true, "created": 0,
        "addresses": addresses, "addressing": addressing,
    }))
    .unwrap()
}

fn address() -> impl Strategy<Value = IpNet> {
    let v4 = (any::<u32>(), 0_u8..=32).prop_map(|(ip, prefix)| IpNet::new(IpAddr::V4(ip.into()), prefix));
    let v6 = (any::<u128>(), 0_u8..=128).prop_map(|(ip, prefix)| IpNet::new(IpAddr::V6(ip.into()), prefix));
    prop_oneof![v4, v6].prop_map(Result::unwrap)
}

proptest! {
    #[test]
    fn f5_alias_words_are_read_back_or_omitted(
        network in "[a-z0-9]{1,90}",
        container in "[a-zA-Z0-9][a-zA-Z0-9_.-]{0,90}",
        ifname in "[a-z0-9]{1,15}",
        addresses in proptest::collection::vec(address(), 0..6),
        mac in proptest::option::of(any::<[u8; 5]>()),
        addressing in prop_oneof![Just(Addressing::Assigned), Just(Addressing::Dhcp), Just(Addressing::None)],
        parts in proptest::option::of(("[a-z0-9]{1,60}", "[a-z0-9]{1,60}", proptest::option::of("[a-z0-9]{1,60}"))),
    ) {
        let key = AttachmentKey {
            network: network.as_str().try_into().unwrap(),
            container: container.as_str().try_into().unwrap(),
            ifname: ifname.as_str().try_into().unwrap(),
        };
        let mac = mac.map(Mac::local);
        let placement = parts.map(|(tenant, network, group)| {
            Placement::parse(Some(&tenant), Some(&network), group.as_deref()).unwrap()
        });
        let written = Attachment { placement: placement.clone(), ..attachment(&key, &addresses, mac, addressing) };
        let text = written.alias();
        prop_assert!(text.len() <= MAX_LENGTH);
        let link = link(&text);
        let read = Alias::of(&link).unwrap();
        prop_assert!(read.is_of(&key) && is_of(&link, &key));
        prop_assert_eq!(read.stem(), key.file_stem());
        prop_assert_eq!(read.network, AttachmentKey::network_dir(&key.network));
        prop_assert_eq!(read.addressing, addressing);
        let is_complete = read.addresses == addresses;
        prop_assert!(is_complete || read.may_lack_addresses);
        prop_assert!(read.addresses.iter().all(|address| addresses.contains(address)));
        prop_assert_eq!(&ips_of(&link), &read.ips().collect::<Vec<_>>());
        let without = Attachment { placement: None, ..written }.alias();
        let fits = |word: &str| without.len() + 1 + word.len() <= MAX_LENGTH;
        prop_assert_eq!(read.placement, placement.filter(|placement| fits(&placement_word(placement))));
        if is_complete && without.len() + "mac=02:00:00:00:00:01 ".len() <= MAX_LENGTH {
            prop_assert_eq!(read.mac, mac.filter(|mac| *mac != key.pod_mac()));
        }
    }
}
