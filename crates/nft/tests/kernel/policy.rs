//! `Firewall::reconcile_table` applies, compares and repairs any table. The table of these tests has the parts that network policies
//! need: verdict maps by link group, interval sets of CIDRs with sizes, maps to classes, and counters, for IPv4 and IPv6.

use nft::desired::{
    Chain, ChainType, Data, Element, Field, HookPoint, MapVerdict, Set, SetKeys, SetValue, Table,
    TableFamily, Type,
};
use nft::{Firewall, Protocol, Surplus};
use types::IfName;

use crate::common::{all_elements, in_netns, nft, run, structure};

const NAME: &str = "podwire-policy";
const PROFILE: u32 = 0x5057_0000;

fn policy() -> Table {
    use Type::{Class, Ip4, Ip6, Link, LinkGroup, Port, Protocol};
    let verdicts = |name: &'static str, key: &[Type]| Set {
        value: SetValue::Verdict,
        size: Some(20_000),
        ..Set::lasting(name, key)
    };
    let intervals = |set: Set| Set { keys: SetKeys::Intervals, size: Some(64), ..set };
    let classes = |name: &'static str, key| Set {
        value: SetValue::Data(vec![Class]),
        size: Some(1000),
        ..Set::lasting(name, &[key])
    };
    let port = [LinkGroup, Class, Protocol, Port];
    let sets = vec![
        verdicts("in_port", &port),
        intervals(verdicts("in_ports", &port)),
        verdicts("in_class", &[LinkGroup, Class]),
        verdicts("in_default", &[LinkGroup]),
        verdicts("source4", &[Ip4, Link]),
        verdicts("source6", &[Ip6, Link]),
        classes("class4", Ip4),
        classes("class6", Ip6),
        intervals(classes("cidr4", Ip4)),
        intervals(classes("cidr6", Ip6)),
        intervals(Set::lasting("nets4", &[Ip4])),
        intervals(Set::lasting("nets6", &[Ip6])),
    ];
    let chains = vec![
        Chain::plain(
            "forward-policy",
            &[
                "ip saddr . iifname vmap @source4",
                "ip6 saddr . iifname vmap @source6",
                r#"oifname "pw*" jump ingress"#,
                "meta priority set 0:0",
            ],
        )
        .at(ChainType::Filter, HookPoint::Forward, -5),
        Chain::plain(
            "ingress",
            &[
                "meta priority set ip saddr map @cidr4",
                "meta priority set ip6 saddr map @cidr6",
                "meta priority set ip saddr map @class4",
                "meta priority set ip6 saddr map @class6",
                "oifgroup . meta priority . meta l4proto . th dport vmap @in_port",
                "oifgroup . meta priority . meta l4proto . th dport vmap @in_ports",
                "oifgroup . meta priority vmap @in_class",
                "jump nets",
                "oifgroup vmap @in_default",
            ],
        ),
        Chain::plain("nets", &["ip saddr @nets4 counter accept", "ip6 saddr @nets6 counter accept"]),
        Chain::plain("deny", &["counter drop"]),
    ];
    Table::new(TableFamily::Inet, NAME, sets, chains)
}

fn verdict<'a>(
    table: &'a Table,
    set: &'static str,
    key: Vec<Field<'a>>,
    verdict: MapVerdict<'static>,
) -> Element<'a> {
    Element::new(table.id(), set, key, Data::Verdict(verdict))
}

fn elements<'a>(table: &'a Table, link: &'a IfName) -> Vec<Element<'a>> {
    let (group, class, other) = (Field::LinkGroup(PROFILE), Field::Class(0x0001_0002), Field::Class(3));
    let (tcp, udp) = (Field::Protocol(Protocol::Tcp), Field::Protocol(Protocol::Udp));
    let ip = |ip: &str| Field::Ip(ip.parse().unwrap());
    let net = |net: &str| Field::Net(net.parse().unwrap());
    let mut all = vec![
        verdict(table, "in_port", vec![group, class, tcp, Field::Port(80)], MapVerdict::Accept),
        verdict(table, "in_port", vec![group, class, udp, Field::Port(53)], MapVerdict::Jump("deny")),
        verdict(table, "in_ports", vec![group, class, tcp, Field::Ports(8000, 8999)], MapVerdict::Accept),
        verdict(table, "in_ports", vec![group, other, tcp, Field::Ports(1, 65535)], MapVerdict::Drop),
        verdict(table, "in_class", vec![group, other], MapVerdict::Drop),
        verdict(table, "in_default", vec![group], MapVerdict::Goto("deny")),
        verdict(table, "source4", vec![ip("10.0.0.2"), Field::Link(link)], MapVerdict::Drop),
        verdict(table, "source6", vec![ip("fd00::2"), Field::Link(link)], MapVerdict::Drop),
    ];
    let data = |set: &'static str, key, class| {
        Element::new(table.id(), set, vec![key], Data::Value(vec![Field::Class(class)]))
    };
    all.extend([
        data("class4", ip("10.0.0.2"), 0x0001_0002),
        data("class6", ip("fd00::2"), 0x0001_0002),
        data("cidr4", net("0.0.0.0/8"), 4),
        data("cidr4", net("10.0.0.0/8"), 3),
        data("cidr4", net("255.0.0.0/8"), 5),
        data("cidr6", net("::/8"), 4),
        data("cidr6", net("fd00::/8"), 3),
        data("cidr6", net("ff00::/8"), 5),
    ]);
    // Adjacent intervals, single addresses, and both ends of the address space.
    for (set, nets) in [
        ("nets4", ["10.0.0.0/8", "11.0.0.0/8", "192.0.2.7/32", "255.255.255.255/32"]),
        ("nets6", ["::/64", "fd00::/8", "2001:db8::7/128", "ffff::/16"]),
    ] {
        all.extend(nets.iter().map(|one| Element::new(table.id(), set, vec![net(one)], Data::None)));
    }
    all
}

/// The table without counters, in an order that does not depend on the order of changes.
fn observed() -> (Vec<String>, String) {
    let mut lines: Vec<String> = structure().lines().map(ToOwned::to_owned).collect();
    lines.sort();
    (lines, all_elements())
}

fn handle_of_last_rule(chain: &str) -> String {
    let listed = nft(&format!("-a list chain inet {NAME} {chain}"));
    let mut rules = listed.lines().filter(|line| line.contains("# handle") && !line.contains("chain "));
    rules.next_back().unwrap().rsplit(' ').next().unwrap().to_owned()
}

/// Changes by another process as nft commands, and one of the differences that must be reported. `TABLE` stands for the table,
/// `LAST` for the handle of the last rule.
const DRIFT: [(&str, &str); 27] = [
    ("flush ruleset", "table inet podwire-policy is missing"),
    ("delete table TABLE", "table inet podwire-policy is missing"),
    ("flush table TABLE", "chain inet podwire-policy ingress has 0 rules instead of 9"),
    ("delete rule TABLE ingress handle LAST", "chain inet podwire-policy ingress has 8 rules instead of 9"),
    ("insert rule TABLE ingress accept", "chain inet podwire-policy ingress has 10 rules instead of 9"),
    (
        "replace rule TABLE ingress handle LAST iifgroup vmap @in_default",
        "chain inet podwire-policy ingress has other rules than Podwire applied",
    ),
    (
        "add chain TABLE other { type filter hook forward priority 0; policy drop; }",
        "chain inet podwire-policy other is not Podwire's",
    ),
    ("add set TABLE other { type mark; }", "set inet podwire-policy other is not Podwire's"),
    (
        "add table TABLE { flags dormant; }",
        "table inet podwire-policy is dormant: its chains are not in force",
    ),
    // Elements.
    ("flush map TABLE in_port", "2 elements added"),
    ("delete element TABLE in_port { 1347878912 . 1:2 . tcp . 80 }", "1 element added"),
    ("delete element TABLE in_ports { 1347878912 . 1:2 . tcp . 8000-8999 }", "1 element added"),
    ("delete element TABLE nets4 { 10.0.0.0/8 }", "1 element added"),
    ("delete element TABLE cidr6 { ff00::/8 }", "1 element added"),
    ("add element TABLE in_default { 7 : accept }", "1 element removed"),
    ("add element TABLE in_ports { 1347878912 . 1:2 . tcp . 9000-9100 : accept }", "1 element removed"),
    ("add element TABLE nets6 { 2001:db8:1::/48 }", "1 element removed"),
    (
        "delete element TABLE in_default { 1347878912 : goto deny }; add element TABLE in_default { 1347878912 : accept }",
        "1 element changed",
    ),
    (
        "delete element TABLE in_port { 1347878912 . 1:2 . udp . 53 }; add element TABLE in_port { 1347878912 . 1:2 . udp . 53 : jump nets }",
        "1 element changed",
    ),
    (
        "delete element TABLE in_ports { 1347878912 . 0:3 . tcp . 1-65535 }; add element TABLE in_ports { 1347878912 . 0:3 . tcp . 1-65535 : accept }",
        "1 element changed",
    ),
    (
        "delete element TABLE class4 { 10.0.0.2 }; add element TABLE class4 { 10.0.0.2 : 0:9 }",
        "1 element changed",
    ),
    (
        "delete element TABLE cidr4 { 10.0.0.0/8 }; add element TABLE cidr4 { 10.0.0.0/8 : 0:9 }",
        "1 element changed",
    ),
    // An interval with another end, and intervals that overlap the wanted one.
    ("delete element TABLE nets4 { 10.0.0.0/8 }; add element TABLE nets4 { 10.0.0.0/9 }", "1 element added"),
    (
        "delete element TABLE cidr6 { fd00::/8 }; add element TABLE cidr6 { fd00::/16 : 0:3, fd12::/16 : 0:3, fdff::/16 : 0:1 }",
        "2 elements removed",
    ),
    // Types of sets.
    (
        "add map TABLE in_port { type devgroup . classid . inet_proto . inet_service : verdict; size 3; }",
        "set inet podwire-policy in_port has another size",
    ),
    (
        "flush chain TABLE nets; delete set TABLE nets4; add set TABLE nets4 { type ipv4_addr; size 64; flags interval, timeout; }; add rule TABLE nets ip saddr @nets4 counter accept; add rule TABLE nets ip6 saddr @nets6 counter accept",
        "set inet podwire-policy nets4 is not as Podwire applied it",
    ),
    // The kernel deletes no chain that an element of a map refers to.
    (
        "add chain TABLE other; add element TABLE in_default { 9 : jump other }",
        "chain inet podwire-policy other is not Podwire's",
    ),
];

#[test]
fn every_kind_of_drift_of_a_policy_table_is_found_and_repaired() {
    in_netns(|| {
        let (table, link, mut firewall) = (policy(), "pwabc".try_into().unwrap(), Firewall::open().unwrap());
        let wanted = elements(&table, &link);
        let mut reconcile = || firewall.reconcile_table(&table, &wanted, Surplus::Remove).unwrap();
        assert_eq!(reconcile(), ["table inet podwire-policy is missing"]);
        assert_eq!(reconcile(), [""; 0]);
        let before = observed();
        assert_eq!(before.1.lines().count(), wanted.len(), "{}", before.1);
        for (act, expected) in DRIFT {
            let act = act.replace("TABLE", &format!("inet {NAME}"));
            let act = act.replace("LAST", &handle_of_last_rule("ingress"));
            run("nft", &[&act]);
            assert_ne!(observed(), before, "{act}");
            let changes = reconcile();
            assert!(changes.iter().any(|change| change == expected), "{act}: {changes:?}");
            assert_eq!(reconcile(), [""; 0], "{act}");
            assert_eq!(observed(), before, "{act}");
        }
        assert_eq!(nft::unmanaged_drops(&[]).unwrap(), []);
    });
}

#[test]
fn elements_added_over_netlink_are_listed_like_those_added_by_nft() {
    in_netns(|| {
        let (table, link, mut firewall) = (policy(), "pwabc".try_into().unwrap(), Firewall::open().unwrap());
        let wanted = elements(&table, &link);
        firewall.reconcile_table(&table, &wanted, Surplus::Remove).unwrap();
        let by_nft = observed();
        let removed = firewall.reconcile_table(&table, &[], Surplus::Remove).unwrap();
        assert_eq!(removed, [format!("{} elements removed", wanted.len())]);
        assert_eq!(all_elements(), "");
        let added = firewall.reconcile_table(&table, &wanted, Surplus::Remove).unwrap();
        assert_eq!(added, [format!("{} elements added", wanted.len())]);
        assert_eq!(observed(), by_nft);
        // nft can load its own listing.
        let text = nft("list ruleset");
        nft("flush ruleset");
        run("nft", &[&text]);
        assert_eq!(observed(), by_nft);
        assert_eq!(firewall.reconcile_table(&table, &wanted, Surplus::Remove).unwrap(), [""; 0]);
    });
}

#[test]
fn thousands_of_verdicts_are_added_changed_and_removed_in_batches() {
    in_netns(|| {
        let (table, mut firewall) = (policy(), Firewall::open().unwrap());
        let link: IfName = "pwabc".try_into().unwrap();
        let of = |n: u16, to: MapVerdict<'static>| {
            let [a, b] = n.to_be_bytes();
            let (v4, v6) = (format!("10.0.{a}.{b}"), format!("fd00::{n:x}"));
            let key = |ip: &str| vec![Field::Ip(ip.parse().unwrap()), Field::Link(&link)];
            [verdict(&table, "source4", key(&v4), to), verdict(&table, "source6", key(&v6), to)]
        };
        let all = |to| (0..4000).flat_map(|n| of(n, to)).collect::<Vec<_>>();
        let mut reconcile =
            |wanted: &[Element<'_>], surplus| firewall.reconcile_table(&table, wanted, surplus).unwrap();
        reconcile(&[], Surplus::Remove);
        assert_eq!(reconcile(&all(MapVerdict::Drop), Surplus::Remove), ["8000 elements added"]);
        assert_eq!(reconcile(&all(MapVerdict::Jump("deny")), Surplus::Remove), ["8000 elements changed"]);
        assert_eq!(reconcile(&all(MapVerdict::Jump("deny")), Surplus::Remove), [""; 0]);
        assert_eq!(reconcile(&all(MapVerdict::Jump("deny"))[..2], Surplus::Keep), [""; 0]);
        assert_eq!(
            reconcile(&all(MapVerdict::Jump("deny"))[..2], Surplus::Remove),
            ["7998 elements removed"]
        );
        assert_eq!(all_elements().lines().count(), 2);
    });
}

#[test]
fn a_full_map_is_an_error_and_a_larger_size_is_applied() {
    in_netns(|| {
        let table = |size| {
            let map = Set { value: SetValue::Verdict, size: Some(size), ..Set::lasting("m", &[Type::Mark]) };
            Table::new(TableFamily::Inet, NAME, vec![map], Vec::new())
        };
        let (small, large, mut firewall) = (table(2), table(3), Firewall::open().unwrap());
        let three = [1, 2, 3].map(|n| verdict(&small, "m", vec![Field::Mark(n)], MapVerdict::Accept));
        firewall.reconcile_table(&small, &three[..2], Surplus::Remove).unwrap();
        let refused = firewall.reconcile_table(&small, &three, Surplus::Remove).unwrap_err().to_string();
        assert!(refused.contains("inet podwire-policy"), "{refused}");
        firewall.reconcile_table(&large, &three, Surplus::Remove).unwrap();
        assert_eq!(all_elements().lines().count(), 3);
        assert_eq!(firewall.reconcile_table(&large, &three, Surplus::Remove).unwrap(), [""; 0]);
    });
}
