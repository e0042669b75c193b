//! The table of peers is applied, changed, repaired and removed, and other tables stay unchanged.

use std::collections::BTreeSet;

use nft::{AttachMode, Firewall, PeerRules, PeerTable, Surplus};
use types::PeerSource;

use crate::common::{Sample, drift, in_netns, nft, repair, run};

fn rules() -> PeerRules {
    PeerRules {
        vni: 4077,
        port: 4789,
        mac: "02:00:00:00:00:07".parse().unwrap(),
        locals: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
        blocks4: BTreeSet::from([24]),
        blocks6: BTreeSet::from([72]),
    }
}

fn table(network: &str) -> PeerTable {
    PeerTable::open(&network.try_into().unwrap()).unwrap()
}

fn source(outer: &str, inner: &str) -> PeerSource {
    PeerSource::Tunnel { outer: outer.parse().unwrap(), inner: inner.parse().unwrap() }
}

fn block(length: u8) -> ipnet::IpNet {
    format!("10.42.16.0/{length}").parse().unwrap()
}

/// The permitted sources of the node with this number.
fn sources(n: u8) -> Vec<PeerSource> {
    let (v4, v6) = (format!("192.0.2.{n}"), format!("2001:db8::{n:x}"));
    let inner = [
        format!("10.42.{n}.0/24"),
        format!("fd42:0:0:0:{n:x}00::/72"),
        format!("{v4}/32"),
        format!("{v6}/128"),
    ];
    [&v4, &v6].iter().flat_map(|outer| inner.iter().map(|inner| source(outer, inner))).collect()
}

/// All tables without their digests, which the kernel lists in no particular order.
fn listed() -> String {
    let text = nft("list ruleset");
    let mut is_digest = false;
    let mut kept = String::new();
    for line in text.lines() {
        is_digest = (is_digest && line != "\t}") || line.starts_with("\tmap applied");
        if !is_digest {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn every_block_length_survives_a_listing_and_reload() {
    for (block4, block6) in [(24, 72), (26, 70), (20, 64), (29, 125), (25, 121)] {
        in_netns(|| {
            let rules =
                PeerRules { blocks4: BTreeSet::from([block4]), blocks6: BTreeSet::from([block6]), ..rules() };
            let mut blue = table("blue");
            let sources = [
                source("192.0.2.5", &format!("10.42.16.0/{block4}")),
                source("2001:db8::5", &format!("fd42:1::/{block6}")),
                PeerSource::Link { mac: "02:00:00:00:00:05".parse().unwrap(), block: block(block4) },
                PeerSource::Checked { block: block(block4) },
            ];
            blue.reconcile(&rules, &sources, Surplus::Remove).unwrap();
            assert_eq!(blue.reconcile(&rules, &sources, Surplus::Remove).unwrap(), [""; 0], "/{block4}");
            let (before, text) = (listed(), nft("list ruleset"));
            nft("flush ruleset");
            run("nft", &[&text]);
            assert_eq!(listed(), before);
            assert_eq!(
                blue.reconcile(&rules, &sources, Surplus::Remove).unwrap(),
                [""; 0],
                "/{block4}, reloaded"
            );
        });
    }
}

#[test]
fn sources_are_added_and_removed_by_differences() {
    in_netns(|| {
        let mut blue = table("blue");
        blue.reconcile(&rules(), &sources(5), Surplus::Remove).unwrap();
        let five = listed();
        assert!(five.contains("192.0.2.5 . 0xa2a05") && five.contains("2001:db8::5 . 0x"), "{five}");
        blue.add(&sources(6)).unwrap();
        assert_eq!(
            blue.reconcile(&rules(), &[sources(5), sources(6)].concat(), Surplus::Remove).unwrap(),
            [""; 0]
        );
        blue.remove(&sources(6)).unwrap();
        blue.remove(&sources(6)).unwrap();
        assert_eq!(listed(), five);
        // Elements of unknown peers stay while the list may be incomplete.
        blue.add(&sources(6)).unwrap();
        assert_eq!(blue.reconcile(&rules(), &sources(5), Surplus::Keep).unwrap(), [""; 0]);
        assert_eq!(blue.reconcile(&rules(), &sources(5), Surplus::Remove).unwrap(), ["10 elements removed"]);
        nft("flush set inet podwire-peers-blue over4_block4_24");
        assert_eq!(blue.reconcile(&rules(), &sources(5), Surplus::Keep).unwrap(), ["1 element added"]);
        assert_eq!(listed(), five);
        nft("flush ruleset");
        assert!(blue.add(&sources(6)).is_err(), "the table does not exist");
    });
}

#[test]
fn drift_is_found_and_repaired_with_all_elements() {
    in_netns(|| {
        let mut blue = table("blue");
        blue.reconcile(&rules(), &sources(5), Surplus::Remove).unwrap();
        let before = listed();
        for act in [
            "flush ruleset",
            "flush chain inet podwire-peers-blue receive",
            "flush chain inet podwire-peers-blue input; delete chain inet podwire-peers-blue input",
            "insert rule inet podwire-peers-blue receive accept",
            "add rule inet podwire-peers-blue send accept",
            "add chain inet podwire-peers-blue more { type filter hook input priority 0; }",
            "add chain inet podwire-peers-blue input { policy drop ; }",
            "add table inet podwire-peers-blue { flags dormant ; }",
            "flush map inet podwire-peers-blue revision",
            // Other numbers in rules of the same form.
            "flush chain inet podwire-peers-blue input; add rule inet podwire-peers-blue input udp dport 4790 @th,96,24 0xfed goto receive",
            "flush chain inet podwire-peers-blue input; add rule inet podwire-peers-blue input udp dport 4789 @th,96,24 0xfee goto receive",
            "flush chain inet podwire-peers-blue receive; delete set inet podwire-peers-blue over4_block4_24",
        ] {
            nft(act);
            assert_ne!(listed(), before, "{act}");
            let done = blue.reconcile(&rules(), &sources(5), Surplus::Keep).unwrap();
            assert!(!done.is_empty(), "{act}");
            // The kernel lists chains in the order of their creation.
            assert_eq!(sorted(&listed()), sorted(&before), "{act}");
        }
        // Another address of the node, and another block length.
        let other = PeerRules {
            locals: vec!["192.0.2.9".parse().unwrap()],
            blocks4: BTreeSet::from([26]),
            ..rules()
        };
        assert!(!blue.reconcile(&other, &sources(5), Surplus::Remove).unwrap().is_empty());
        assert!(listed().contains("ip daddr 192.0.2.9") && !listed().contains("over6_block4_"));
    });
}

/// Routes of unknown peers stay in this case, too.
#[test]
fn replaced_tables_keep_unknown_peers_while_the_list_is_incomplete() {
    in_netns(|| {
        let mut blue = table("blue");
        blue.reconcile(&rules(), &[sources(5), sources(6)].concat(), Surplus::Remove).unwrap();
        let before = listed();
        for act in [
            "flush chain inet podwire-peers-blue receive",
            "add table inet podwire-peers-blue { flags dormant ; }",
            "add element inet podwire-peers-blue revision { 3 : 3 }; delete element inet podwire-peers-blue revision { 1 }",
        ] {
            nft(act);
            // As after a restart.
            assert!(
                !table("blue").reconcile(&rules(), &sources(5), Surplus::Keep).unwrap().is_empty(),
                "{act}"
            );
            assert_eq!(listed(), before, "{act}");
        }
        let moved = PeerRules { locals: vec!["192.0.2.9".parse().unwrap()], ..rules() };
        blue.reconcile(&moved, &sources(5), Surplus::Keep).unwrap();
        assert!(listed().contains("192.0.2.6 . 0xa2a06"), "{}", listed());
        assert_eq!(blue.reconcile(&moved, &sources(5), Surplus::Remove).unwrap(), ["6 elements removed"]);
        // With another block length, blocks of unknown peers cannot be kept.
        blue.reconcile(&rules(), &[sources(5), sources(6)].concat(), Surplus::Remove).unwrap();
        let longer = PeerRules { blocks4: BTreeSet::from([26]), ..rules() };
        blue.reconcile(&longer, &sources(5), Surplus::Keep).unwrap();
        assert!(!listed().contains("192.0.2.6 . 0xa2a06"), "{}", listed());
        assert!(listed().contains("192.0.2.6 . 0xc0000206"), "{}", listed());
        // A set that another process created with another type.
        nft("delete table inet podwire-peers-blue");
        nft("table inet podwire-peers-blue { set peers4 { type inet_service; elements = { 7 }; }; }");
        blue.reconcile(&rules(), &sources(5), Surplus::Keep).unwrap();
        nft(
            "flush chain inet podwire-peers-blue send; delete set inet podwire-peers-blue peers4; add set inet podwire-peers-blue peers4 { type ether_addr ; }; add element inet podwire-peers-blue peers4 { 02:00:00:00:00:01 }",
        );
        blue.reconcile(&rules(), &sources(5), Surplus::Keep).unwrap();
        assert!(listed().contains("set peers4 {\n\t\ttype ipv4_addr\n"), "{}", listed());
    });
}

#[test]
fn tables_of_two_networks_and_of_pods_are_independent() {
    in_netns(|| {
        let sample = Sample::new(AttachMode::Routed, 2);
        sample.add_pod();
        let (mut blue, mut red) = (table("blue"), table("red"));
        let other = PeerRules { vni: 4078, ..rules() };
        blue.reconcile(&rules(), &sources(5), Surplus::Remove).unwrap();
        red.reconcile(&other, &sources(6), Surplus::Remove).unwrap();
        let all = listed();
        assert_eq!(blue.reconcile(&rules(), &sources(5), Surplus::Remove).unwrap(), [""; 0]);
        let mut firewall = Firewall::open().unwrap();
        repair(&[sample.pod()]);
        assert_eq!(drift(&[sample.pod()]), [""; 0]);
        assert_eq!(listed(), all);
        assert_eq!(nft::unmanaged_drops(&[]).unwrap(), []);
        assert!(firewall.cleanup().unwrap());
        assert_eq!(blue.reconcile(&rules(), &sources(5), Surplus::Remove).unwrap(), [""; 0]);
        assert_eq!(
            firewall.delete_network_tables(&|network| network == "red").unwrap(),
            ["podwire-peers-red"]
        );
        assert!(!listed().contains("podwire-peers-red") && listed().contains("podwire-peers-blue"));
        assert!(blue.delete().unwrap() && !blue.delete().unwrap());
        assert_eq!(listed(), "");
    });
}

/// 30,000 elements in one transaction, and none is lost.
#[test]
fn five_thousand_nodes_are_loaded_at_once() {
    in_netns(|| {
        let of = |n: u32| {
            let [_, a, b, c] = n.to_be_bytes();
            let (outer, block) =
                (format!("172.{}.{b}.{c}", 16 + a), format!("10.{}.{}.0/24", n >> 8, n & 255));
            [source(&outer, &block), source(&outer, &format!("{outer}/32"))]
        };
        let all: Vec<PeerSource> = (0..5000).flat_map(of).collect();
        let mut blue = table("blue");
        blue.reconcile(&rules(), &all, Surplus::Remove).unwrap();
        assert_eq!(blue.reconcile(&rules(), &all, Surplus::Remove).unwrap(), [""; 0]);
        // Over netlink, too.
        blue.reconcile(&rules(), &[], Surplus::Remove).unwrap();
        assert_eq!(blue.reconcile(&rules(), &all, Surplus::Remove).unwrap(), ["15000 elements added"]);
    });
}
