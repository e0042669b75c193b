//! Structure and elements: applied, listed, compared, repaired.

use std::collections::BTreeSet;

use model::objects::{Direction, PortRange};
use nft::desired::Table;
use nft::desired::policy::{OwnNode, PolicyOptions, PolicySizes, table};
use nft::{Firewall, RulesetChange, RulesetMonitor, Surplus};
use policy::{ClassId, PolicyElement, PolicyVerdict, VerdictKey};
use types::Protocol;

use super::samples::{Random, address, class, options, own, profile, random_elements, ranges, verdict};
use crate::common::{all_elements, in_netns, nft, run, structure};

const NAME: &str = "inet podwire-policy";

/// Elements of all maps.
fn elements() -> Vec<PolicyElement> {
    let (profile, class) = (profile(0), class(1, 0));
    let (protocol, port) = (Protocol::Tcp, 80);
    let ports = PortRange::new(8000, 8999).unwrap();
    let keys = [
        VerdictKey::PeerPort { profile, class, protocol, port },
        VerdictKey::PeerRange { profile, class, protocol, ports },
        VerdictKey::PeerProtocol { profile, class, protocol: 1 },
        VerdictKey::Peer { profile, class },
        VerdictKey::AnyPodPort { class, protocol, port },
        VerdictKey::AnyPodRange { class, protocol, ports },
        VerdictKey::AnyPodProtocol { class, protocol: 253 },
        VerdictKey::AnyPod { class },
        VerdictKey::PeerClasses { profile, first: ClassId(0x20_0000), last: ClassId(u32::MAX) },
        VerdictKey::AnyPeerPort { profile, protocol, port: 0 },
        VerdictKey::AnyPeerRange { profile, protocol, ports: PortRange::ALL },
        VerdictKey::AnyPeerRange { profile, protocol: Protocol::Sctp, ports: PortRange::single(7) },
        VerdictKey::AnyPeerProtocol { profile, protocol: 58 },
        VerdictKey::Default { profile },
    ];
    let mut all = ranges(&[("10.0.0.0", class), ("10.0.0.1", ClassId(17)), ("fd00::", class)], ClassId(16));
    for direction in [Direction::Ingress, Direction::Egress] {
        all.extend(keys.map(|key| verdict(direction, key, PolicyVerdict::Accept)));
    }
    all.extend([address("10.0.0.2", class), address("fd00::2", class), own("10.0.0.2"), own("fd00::2")]);
    all.sort();
    all
}

/// The table without counters, in an order that does not depend on the order of changes.
fn observed() -> String {
    let structure = structure();
    let mut lines: Vec<&str> = structure.lines().collect();
    lines.sort_unstable();
    lines.join("\n") + &all_elements()
}

/// Equality without printing thousands of lines.
fn assert_same(one: &str, other: &str, what: &str) {
    let lines = |of: &str| of.lines().map(ToOwned::to_owned).collect::<BTreeSet<_>>();
    let (one, other) = (lines(one), lines(other));
    let difference: Vec<&String> = one.symmetric_difference(&other).collect();
    assert!(difference.is_empty(), "{what}: {difference:#?}");
}

fn full() -> Table {
    table(&PolicyOptions { own_node: OwnNode::Judged, ..options() })
}

#[test]
fn nft_prints_the_whole_table_and_loads_its_own_listing() {
    in_netns(|| {
        let (table, wanted, mut firewall) = (full(), elements(), Firewall::open().unwrap());
        firewall.reconcile_policies(&table, &wanted, Surplus::Remove).unwrap();
        let applied = observed();
        let text = nft("list ruleset");
        assert!(!text.contains("[invalid"), "{text}");
        nft("flush ruleset");
        run("nft", &[&text]);
        assert_same(&observed(), &applied, "reloaded");
        assert_eq!(firewall.reconcile_policies(&table, &wanted, Surplus::Remove).unwrap(), [""; 0]);
        assert_eq!(firewall.policy_elements(&table).unwrap(), wanted);
        // The elements in the syntax of nft are the same.
        nft("flush ruleset");
        nft("add table inet podwire-policy");
        nft("add set inet podwire-policy class4 { type mark; }");
        firewall.reconcile_policies(&table, &wanted, Surplus::Remove).unwrap();
        assert_same(&observed(), &applied, "reloaded");
        assert_eq!(nft::unmanaged_drops(&[]).unwrap(), []);
    });
}

/// Changes by another process, as nft commands, and one of the differences that must be reported.
const DRIFT: [(&str, &str); 14] = [
    ("flush ruleset", "table inet podwire-policy is missing"),
    ("flush table TABLE", "chain inet podwire-policy ingress has 0 rules instead of 19"),
    ("flush chain TABLE egress-deny", "chain inet podwire-policy egress-deny has 0 rules instead of 4"),
    ("delete chain TABLE forward-policy", "chain inet podwire-policy forward-policy is missing"),
    ("insert rule TABLE ingress accept", "chain inet podwire-policy ingress has 20 rules instead of 19"),
    ("flush map TABLE class4; flush map TABLE out_peer", "2 elements added"),
    ("flush map TABLE range4", "3 elements added"),
    ("delete element TABLE range4 { 10.0.0.0 }", "1 element added"),
    ("delete element TABLE in_peer_classes { 1347878912 . 20:0-ffff:ffff }", "1 element added"),
    ("add element TABLE in_peer_classes { 1347878912 . 0:1-0:1 : 0:1 }", "1 element removed"),
    (
        "delete element TABLE in_any_range { 1347878912 . tcp . 0-65535 }; add element TABLE in_any_range { 1347878912 . tcp . 9-99 : 0:1, 1347878912 . tcp . 100-200 : 0:2 }",
        "2 elements removed",
    ),
    (
        "delete element TABLE in_default { 1347878912 }; add element TABLE in_default { 1347878912 : 0:2 }",
        "1 element changed",
    ),
    ("add element TABLE out_default { 7 : 0:1 }", "1 element removed"),
    (
        "delete element TABLE range6 { fd00::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff }; add element TABLE range6 { fd00::-fe00:: : 0:9 }",
        "1 element changed",
    ),
];

#[test]
fn every_kind_of_drift_is_found_and_repaired() {
    in_netns(|| {
        let (table, wanted, mut firewall) = (full(), elements(), Firewall::open().unwrap());
        let mut reconcile = |surplus| firewall.reconcile_policies(&table, &wanted, surplus).unwrap();
        assert!(reconcile(Surplus::Remove).contains(&"table inet podwire-policy is missing".to_owned()));
        assert_eq!(reconcile(Surplus::Remove), [""; 0]);
        let before = observed();
        for (act, expected) in DRIFT {
            run("nft", &[&act.replace("TABLE", NAME)]);
            assert!(observed() != before, "{act}");
            // Elements that are not wanted, and in the way of others.
            if expected.ends_with("removed") && !act.contains("delete") {
                assert_eq!(reconcile(Surplus::Keep), [""; 0], "{act}");
            }
            let changes = reconcile(Surplus::Remove);
            assert!(changes.iter().any(|change| change == expected), "{act}: {changes:?}");
            assert_same(&observed(), &before, act);
            assert_eq!(reconcile(Surplus::Remove), [""; 0], "{act}");
        }
    });
}

#[test]
fn thousands_of_random_elements_are_read_back_from_the_kernels_listing() {
    in_netns(|| {
        let (table, mut firewall, mut random) = (full(), Firewall::open().unwrap(), Random::new(1));
        let mut wanted = Vec::new();
        for _ in 0..3 {
            wanted = random_elements(&mut random, 4000);
            firewall.reconcile_policies(&table, &wanted, Surplus::Remove).unwrap();
            assert_eq!(firewall.policy_elements(&table).unwrap(), wanted);
        }
        assert_eq!(firewall.reconcile_policies(&table, &wanted, Surplus::Remove).unwrap(), [""; 0]);
        run("nft", &[&format!("add element {NAME} in_default {{ 1347878912 : 0:9 }}")]);
        let unknown = firewall.policy_elements(&table).unwrap_err().to_string();
        assert!(unknown.contains("in_default"), "{unknown}");
    });
}

#[test]
fn a_change_is_one_transaction_and_is_refused_as_a_whole() {
    in_netns(|| {
        let (table, mut firewall) = (full(), Firewall::open().unwrap());
        let before = elements();
        firewall.reconcile_policies(&table, &before, Surplus::Remove).unwrap();
        let dropped = |element: &PolicyElement| match *element {
            PolicyElement::Verdict { direction, key, .. } => {
                Some(verdict(direction, key, PolicyVerdict::Drop))
            }
            PolicyElement::Address { .. }
            | PolicyElement::Addresses { .. }
            | PolicyElement::OwnAddress { .. } => None,
        };
        let is_range = |element: &&PolicyElement| matches!(element, PolicyElement::Addresses { .. });
        let mut set: Vec<PolicyElement> = before.iter().filter_map(dropped).collect();
        let mut replaced: Vec<PolicyElement> =
            before.iter().filter(|e| dropped(e).is_some()).copied().collect();
        replaced.extend(before.iter().filter(is_range));
        // Ranges with other borders, some of them the same.
        set.extend(ranges(&[("10.0.0.1", ClassId(18)), ("10.0.0.9", ClassId(19))], ClassId(16)));
        let listing = || nft("-j list ruleset");
        let unchanged = listing();
        for missing in [own("10.9.9.9"), address("10.9.9.9", ClassId(16))] {
            let replaced: Vec<PolicyElement> = replaced.iter().copied().chain([missing]).collect();
            firewall.apply_policy(&replaced, &set).unwrap_err();
            assert_same(&listing(), &unchanged, "refused");
        }
        // It exists with another class.
        let conflict: Vec<PolicyElement> =
            set.iter().copied().chain([address("10.0.0.2", ClassId(77))]).collect();
        firewall.apply_policy(&replaced, &conflict).unwrap_err();
        assert_same(&listing(), &unchanged, "refused");
        firewall.apply_policy(&replaced, &set).unwrap();
        let mut after: Vec<PolicyElement> =
            before.iter().filter(|e| !replaced.contains(e)).chain(&set).copied().collect();
        after.sort();
        assert_eq!(firewall.policy_elements(&table).unwrap(), after);
        // Missing elements do not prevent the removal of others.
        let removed: Vec<PolicyElement> = set.iter().copied().chain([own("10.9.9.9")]).collect();
        firewall.remove_policy(&removed).unwrap();
        after.retain(|element| !set.contains(element));
        assert_eq!(firewall.policy_elements(&table).unwrap(), after);
        assert!(firewall.remove_policies().unwrap());
        assert!(!firewall.remove_policies().unwrap());
    });
}

#[test]
fn a_full_map_is_reported_and_raised_in_place() {
    in_netns(|| {
        let with = |sizes| table(&PolicyOptions { sizes, ..options() });
        let (mut firewall, sizes) =
            (Firewall::open().unwrap(), PolicySizes { addresses: 2, ..PolicySizes::default() });
        let addresses: Vec<PolicyElement> =
            (1..=3).map(|n| address(&format!("10.0.0.{n}"), class(1, n))).collect();
        firewall.reconcile_policies(&with(sizes), &addresses[..2], Surplus::Remove).unwrap();
        assert!(firewall.apply_policy(&[], &addresses).unwrap_err().is_full());
        let raised = sizes.raised_for(&addresses);
        assert_eq!(raised, PolicySizes { addresses: 8, ..sizes });
        assert_eq!(raised.raised_for(&addresses), raised);
        let changes = firewall.reconcile_policies(&with(raised), &addresses, Surplus::Remove).unwrap();
        assert!(changes.contains(&"1 element added".to_owned()), "{changes:?}");
        assert_eq!(firewall.policy_elements(&with(raised)).unwrap(), addresses);
    });
}

#[test]
fn only_changes_of_other_processes_are_reported_for_elements() {
    in_netns(|| {
        let (table, mut firewall) = (full(), Firewall::open().unwrap());
        firewall.reconcile_policies(&table, &elements(), Surplus::Remove).unwrap();
        let mut monitor = RulesetMonitor::open().unwrap();
        monitor.ignore_policy_elements_of(&firewall).unwrap();
        let changed = RulesetChange { policies: true, ..RulesetChange::default() };
        let (old, new) = (address("10.0.0.2", class(1, 0)), address("10.0.0.2", class(1, 1)));
        firewall.apply_policy(&[old], &[new]).unwrap();
        firewall.apply_policy(&[new], &[old]).unwrap();
        firewall.remove_policy(&[own("10.0.0.2")]).unwrap();
        firewall.apply_policy(&[], &[own("10.0.0.2")]).unwrap();
        assert_eq!(monitor.read().unwrap(), RulesetChange::default());
        for act in [
            "add element TABLE in_default { 7 : 0:1 }",
            "delete element TABLE in_default { 7 }",
            "flush map TABLE class4",
            "insert rule TABLE ingress accept",
            "delete table TABLE",
        ] {
            run("nft", &[&act.replace("TABLE", NAME)]);
            assert_eq!(monitor.read().unwrap(), changed, "{act}");
        }
        // Another socket of this process.
        firewall.reconcile_policies(&table, &elements(), Surplus::Remove).unwrap();
        assert_eq!(monitor.read().unwrap(), changed);
        Firewall::open().unwrap().apply_policy(&[old], &[new]).unwrap();
        assert_eq!(monitor.read().unwrap(), changed);
    });
}
