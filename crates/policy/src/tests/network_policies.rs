//! NetworkPolicy, clause by clause. Every change is also checked by [`Lab`]: elements against explanations.

use model::objects::*;
use types::Protocol;

use super::build::*;
use super::lab::{ICMP, Lab, SCTP, TCP, UDP};
use crate::world::WorldChange;

const WEB: &str = "10.0.0.1";
const DB: &str = "10.0.0.2";
const OTHER: &str = "10.0.0.3";
const OUTSIDE: &str = "192.0.2.1";
const NODE: &str = "172.16.0.1";
const OTHER_NODE: &str = "172.16.0.2";

/// `web` and `db` in namespace `default`, `other` in namespace `other`.
fn lab() -> Lab {
    Lab::with([
        network("default", "default-net", "10.0.0.0/24 fd00::/64"),
        node("n1", NODE, ""),
        node("n2", OTHER_NODE, ""),
        namespace("default", "name=default"),
        namespace("other", "name=other"),
        pod("web", "10.0.0.1 fd00::1").labels("app=web").port("http", Protocol::Tcp, 8080).set(),
        pod("db", "10.0.0.2 fd00::2").labels("app=db env=prod").port("http", Protocol::Tcp, 9000).set(),
        pod("other", "10.0.0.3 fd00::3").namespace("other").labels("app=web").node("n2").set(),
    ])
}

fn lab_with(policies: impl IntoIterator<Item = WorldChange>) -> Lab {
    let mut lab = lab();
    lab.apply(policies);
    lab
}

fn everything() -> Vec<NetworkPolicyRule> {
    vec![np_rule(&[], &[])]
}

#[test]
fn np_pods_without_policies_accept_all_flows() {
    let lab = lab();
    assert!(
        lab.accepts(WEB, DB, TCP(80)) && lab.accepts(OUTSIDE, DB, ICMP) && lab.accepts(DB, OUTSIDE, UDP(53))
    );
}

#[test]
fn np_a_policy_isolates_only_in_its_directions() {
    let lab = lab_with([np("a", "app=db", Some(vec![]), None)]);
    assert!(!lab.accepts(WEB, DB, TCP(80)));
    assert!(lab.accepts(DB, WEB, TCP(80)));
    let lab = lab_with([np("a", "app=db", None, Some(vec![]))]);
    assert!(lab.accepts(WEB, DB, TCP(80)));
    assert!(!lab.accepts(DB, WEB, TCP(80)));
}

#[test]
fn np_empty_peers_and_ports_are_everything_and_no_rules_are_nothing() {
    let lab = lab_with([np("a", "", Some(everything()), Some(vec![]))]);
    assert!(
        lab.accepts(OUTSIDE, DB, TCP(80))
            && lab.accepts(OTHER, DB, SCTP(7))
            && lab.accepts(OUTSIDE, DB, ICMP)
    );
    assert!(!lab.accepts(DB, OUTSIDE, TCP(80)) && !lab.accepts(DB, OTHER, ICMP));
}

#[test]
fn np_an_empty_peer_selector_selects_all_pods_but_not_other_addresses() {
    let all = np_rule(&[np_pods(Some(""), "")], &[]);
    let lab = lab_with([np("a", "app=db", Some(vec![all]), None)]);
    assert!(lab.accepts(WEB, DB, TCP(80)) && lab.accepts(OTHER, DB, TCP(80)));
    assert!(!lab.accepts(OUTSIDE, DB, TCP(80)) && !lab.accepts(OTHER_NODE, DB, TCP(80)));
}

#[test]
fn np_not_in_and_does_not_exist_match_a_missing_key() {
    for selector in ["env!=prod", "!env"] {
        let rule = np_rule(&[np_pods(None, selector)], &[]);
        let lab = lab_with([np("a", "", Some(vec![rule]), None)]);
        assert!(lab.accepts(WEB, DB, TCP(80)), "{selector}");
        assert!(!lab.accepts(DB, WEB, TCP(80)), "{selector}");
    }
}

#[test]
fn np_selectors_of_one_peer_are_combined_and_peers_are_alternatives() {
    let both = np_rule(&[np_pods(Some("name=other"), "app=web")], &[]);
    let lab = lab_with([np("a", "app=db", Some(vec![both]), None)]);
    assert!(lab.accepts(OTHER, DB, TCP(80)) && !lab.accepts(WEB, DB, TCP(80)));
    let either = np_rule(&[np_pods(Some("name=other"), ""), np_pods(None, "app=web")], &[]);
    let lab = lab_with([np("a", "app=db", Some(vec![either]), None)]);
    assert!(lab.accepts(OTHER, DB, TCP(80)) && lab.accepts(WEB, DB, TCP(80)));
}

#[test]
fn np_policies_of_a_pod_add_up() {
    let web = np_rule(&[np_pods(None, "app=web")], &[tcp(80)]);
    let other = np_rule(&[np_pods(Some("name=other"), "")], &[tcp(81)]);
    let lab = lab_with([np("a", "", Some(vec![web]), None), np("b", "", Some(vec![other]), None)]);
    assert!(lab.accepts(WEB, DB, TCP(80)) && lab.accepts(OTHER, DB, TCP(81)));
    assert!(!lab.accepts(WEB, DB, TCP(81)) && !lab.accepts(OTHER, DB, TCP(80)));
}

#[test]
fn np_a_policy_of_another_namespace_does_not_select_a_pod() {
    let lab = lab_with([np("a", "app=web", Some(vec![]), None)]);
    assert!(!lab.accepts(DB, WEB, TCP(80)));
    assert!(lab.accepts(DB, OTHER, TCP(80)));
}

fn named(name: &str, protocol: Protocol) -> NetworkPolicyPort {
    NetworkPolicyPort { protocol, port: PortMatch::Named(name.to_owned()) }
}

#[test]
fn np_named_ports_resolve_per_pod_on_ingress_at_the_subject() {
    let rule = np_rule(&[], &[named("http", Protocol::Tcp)]);
    let lab = lab_with([np("a", "", Some(vec![rule]), None)]);
    assert!(lab.accepts(DB, WEB, TCP(8080)) && !lab.accepts(DB, WEB, TCP(9000)));
    assert!(lab.accepts(WEB, DB, TCP(9000)) && !lab.accepts(WEB, DB, TCP(8080)));
}

#[test]
fn np_named_ports_resolve_on_egress_at_the_destination() {
    let rule = np_rule(&[], &[named("http", Protocol::Tcp)]);
    let lab = lab_with([np("a", "", None, Some(vec![rule]))]);
    assert!(lab.accepts(DB, WEB, TCP(8080)) && !lab.accepts(DB, WEB, TCP(9000)));
    assert!(lab.accepts(WEB, DB, TCP(9000)) && !lab.accepts(WEB, DB, TCP(8080)));
}

#[test]
fn np_a_named_port_that_does_not_resolve_matches_nothing() {
    for port in [named("http", Protocol::Udp), named("https", Protocol::Tcp)] {
        let rule = np_rule(&[], &[port]);
        let lab = lab_with([np("a", "", Some(vec![rule.clone()]), Some(vec![rule]))]);
        assert!(!lab.accepts(DB, WEB, TCP(8080)) && !lab.accepts(DB, WEB, UDP(8080)));
        assert!(!lab.accepts(DB, OUTSIDE, TCP(8080)));
    }
}

#[test]
fn np_end_port_is_a_range() {
    let range = PortRange::new(1000, 2000).unwrap();
    let port = NetworkPolicyPort { protocol: Protocol::Tcp, port: PortMatch::Range(range) };
    let lab = lab_with([np("a", "", Some(vec![np_rule(&[], &[port])]), None)]);
    assert!(lab.accepts(WEB, DB, TCP(1000)) && lab.accepts(WEB, DB, TCP(2000)));
    assert!(
        !lab.accepts(WEB, DB, TCP(999))
            && !lab.accepts(WEB, DB, TCP(2001))
            && !lab.accepts(WEB, DB, UDP(1000))
    );
}

#[test]
fn np_blocks_match_addresses_of_pods_and_nodes() {
    let rule = np_rule(&[np_block("10.0.0.1/32", ""), np_block("172.16.0.2/32", "")], &[]);
    let lab = lab_with([np("a", "app=db", Some(vec![rule]), None)]);
    assert!(lab.accepts(WEB, DB, TCP(80)) && lab.accepts(OTHER_NODE, DB, TCP(80)));
    assert!(!lab.accepts(OTHER, DB, TCP(80)) && !lab.accepts(OUTSIDE, DB, TCP(80)));
}

#[test]
fn np_a_block_with_one_address_of_a_node_matches_all() {
    let rule = np_rule(&[np_block("172.16.0.2/32", "")], &[]);
    let lab = lab_with([
        node("n2", "172.16.0.2 10.0.0.128 fd01::2", ""),
        np("a", "app=db", Some(vec![rule]), None),
    ]);
    assert!(lab.accepts("10.0.0.128", DB, TCP(80)) && lab.accepts("fd01::2", "fd00::2", TCP(80)));
}

#[test]
fn np_except_limits_its_own_block_only() {
    let peers = [np_block("10.0.0.0/24", "10.0.0.1/32"), np_block("10.0.0.0/30", "10.0.0.3/32")];
    let lab = lab_with([np("a", "app=db", Some(vec![np_rule(&peers[..1], &[])]), None)]);
    assert!(!lab.accepts(WEB, DB, TCP(80)) && lab.accepts(OTHER, DB, TCP(80)));
    let lab = lab_with([np("a", "app=db", Some(vec![np_rule(&peers, &[])]), None)]);
    assert!(lab.accepts(WEB, DB, TCP(80)) && lab.accepts(OTHER, DB, TCP(80)));
}

#[test]
fn np_a_rule_for_one_family_isolates_the_other() {
    let rule = np_rule(&[np_block("0.0.0.0/0", "")], &[]);
    let lab = lab_with([np("a", "app=db", Some(vec![rule]), None)]);
    assert!(lab.accepts(WEB, DB, TCP(80)));
    assert!(!lab.accepts("fd00::1", "fd00::2", TCP(80)));
}

#[test]
fn np_host_network_pods_are_never_selected_and_count_as_their_node() {
    let host = pod("host", "").labels("app=web").node("n2").host_network().set();
    let own = pod("own", "").labels("app=web").host_network().set();
    let selector = np_rule(&[np_pods(None, "app=web")], &[]);
    let lab = lab_with([host.clone(), own.clone(), np("a", "", Some(vec![selector]), None)]);
    assert_eq!(lab.engine.profile(&"own".into()), None);
    assert!(lab.accepts(WEB, DB, TCP(80)) && !lab.accepts("host", DB, TCP(80)));
    let block = np_rule(&[np_block("172.16.0.2/32", "")], &[]);
    let lab = lab_with([host, own, np("a", "", Some(vec![block]), None)]);
    assert!(lab.accepts("host", DB, TCP(80)));
}

#[test]
fn np_a_pod_reaches_itself_and_is_reached_by_its_node() {
    let lab = lab_with([np("a", "", Some(vec![]), Some(vec![]))]);
    assert!(lab.accepts(DB, DB, TCP(80)) && lab.accepts(NODE, DB, TCP(80)) && lab.accepts(DB, NODE, TCP(80)));
    assert!(!lab.accepts(OTHER_NODE, DB, TCP(80)) && !lab.accepts(DB, OTHER_NODE, TCP(80)));
}

#[test]
fn np_completed_pods_are_ignored_also_if_another_pod_has_their_address() {
    let rule = np_rule(&[np_pods(None, "app=job")], &[]);
    let job = pod("job", "10.0.0.9").labels("app=job");
    let policy = np("a", "app=db", Some(vec![rule]), None);
    let mut lab = lab_with([job.clone().set(), policy]);
    assert!(lab.accepts("10.0.0.9", DB, TCP(80)));
    lab.apply([job.completed().set()]);
    assert!(!lab.accepts("10.0.0.9", DB, TCP(80)));
    lab.apply([pod("next", "10.0.0.9").labels("app=web").set()]);
    assert!(!lab.accepts("10.0.0.9", DB, TCP(80)) && lab.accepts("next", WEB, TCP(80)));
}

#[test]
fn np_pods_with_one_name_are_different_pods() {
    let mut first = pod("uid-1", "10.0.0.9").labels("app=web");
    first.namespace = Some("default".to_owned());
    let rule = np_rule(&[np_pods(None, "app=web")], &[]);
    let mut lab = lab_with([first.set(), np("a", "app=db", Some(vec![rule]), None)]);
    lab.apply([pod("uid-2", "10.0.0.10").labels("app=web").set()]);
    lab.apply([WorldChange::RemovePod("uid-1".into())]);
    assert!(lab.accepts("10.0.0.10", DB, TCP(80)) && !lab.accepts("10.0.0.9", DB, TCP(80)));
}

#[test]
fn np_rules_with_ports_exclude_icmp_and_rules_without_include_it() {
    let with = np_rule(
        &[np_pods(None, "app=web")],
        &[NetworkPolicyPort { protocol: Protocol::Tcp, port: PortMatch::All }],
    );
    let without = np_rule(&[np_pods(Some("name=other"), "")], &[]);
    let lab = lab_with([np("a", "app=db", Some(vec![with, without]), None)]);
    assert!(lab.accepts(WEB, DB, TCP(80)) && !lab.accepts(WEB, DB, ICMP));
    assert!(lab.accepts(OTHER, DB, ICMP));
}

#[test]
fn np_sctp_is_never_tcp() {
    let lab = lab_with([np("a", "app=db", Some(vec![np_rule(&[], &[tcp(80)])]), None)]);
    assert!(
        lab.accepts(WEB, DB, TCP(80)) && !lab.accepts(WEB, DB, SCTP(80)) && !lab.accepts(WEB, DB, UDP(80))
    );
}

#[test]
fn np_namespace_labels_move_peers() {
    let rule = np_rule(&[np_pods(Some("team=a"), "")], &[]);
    let mut lab = lab_with([np("a", "app=db", Some(vec![rule]), None)]);
    assert!(!lab.accepts(OTHER, DB, TCP(80)));
    lab.apply([namespace("other", "team=a")]);
    assert!(lab.accepts(OTHER, DB, TCP(80)));
    lab.apply([WorldChange::RemoveNamespace("other".to_owned())]);
    assert!(!lab.accepts(OTHER, DB, TCP(80)));
}

#[test]
fn np_labels_of_pods_move_subjects_and_peers() {
    let rule = np_rule(&[np_pods(None, "app=web")], &[]);
    let mut lab = lab_with([np("a", "app=db", Some(vec![rule]), None)]);
    lab.apply([pod("web", WEB).labels("app=db").set()]);
    assert!(!lab.accepts(WEB, DB, TCP(80)) && !lab.accepts(OTHER, WEB, TCP(80)));
    lab.apply([pod("db", DB).set()]);
    assert!(lab.accepts(WEB, DB, TCP(80)));
}

#[test]
fn np_pods_without_a_namespace_are_no_subjects_and_no_peers() {
    let plain = pod("plain", "10.0.0.9").namespace("").labels("app=web").set();
    let all = np_rule(&[np_pods(Some(""), "")], &[]);
    let lab = lab_with([plain, np("a", "", Some(vec![all]), None)]);
    assert!(!lab.accepts("plain", DB, TCP(80)) && lab.accepts(DB, "plain", TCP(80)));
}
