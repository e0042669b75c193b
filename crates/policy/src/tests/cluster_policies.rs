//! ClusterNetworkPolicy, clause by clause.

use model::Selector;
use model::objects::*;
use types::Protocol;

use super::build::*;
use super::lab::{ICMP, Lab, SCTP, TCP, UDP};
use crate::element::{PolicyElement, VerdictKey};
use crate::problems::ProblemReason;
use crate::world::WorldChange;

const WEB: &str = "10.0.0.1";
const DB: &str = "10.0.0.2";
const OTHER: &str = "10.0.0.3";
const OUTSIDE: &str = "192.0.2.1";
const NODE: &str = "172.16.0.1";
const OTHER_NODE: &str = "172.16.0.2";

use ClusterAction::{Accept, Deny, Pass};
use ClusterTier::{Admin, Baseline};

fn lab() -> Lab {
    Lab::with([
        network("default", "default-net", "10.0.0.0/24 fd00::/64"),
        node("n1", NODE, "role=edge"),
        node("n2", OTHER_NODE, "role=worker"),
        namespace("default", "name=default"),
        namespace("other", "name=other"),
        pod("web", "10.0.0.1 fd00::1").labels("app=web").port("http", Protocol::Tcp, 8080).set(),
        pod("db", "10.0.0.2 fd00::2").labels("app=db").port("http", Protocol::Udp, 9000).set(),
        pod("other", "10.0.0.3 fd00::3").namespace("other").labels("app=web").node("n2").set(),
    ])
}

fn lab_with(policies: impl IntoIterator<Item = ClusterNetworkPolicy>) -> Lab {
    let mut lab = lab();
    lab.apply(policies.into_iter().map(WorldChange::SetClusterPolicy));
    lab
}

fn namespaces(text: &str) -> ClusterPeer {
    ClusterPeer::Namespaces(selector(text))
}

fn pods(text: &str) -> ClusterPeer {
    ClusterPeer::Pods { namespaces: Selector::all(), pods: selector(text) }
}

fn ingress(name: &str, tier: ClusterTier, priority: u16, rules: Vec<ClusterRule>) -> ClusterNetworkPolicy {
    ClusterNetworkPolicy { ingress: rules, ..cluster_policy(name, tier, priority) }
}

fn egress(name: &str, tier: ClusterTier, priority: u16, rules: Vec<ClusterRule>) -> ClusterNetworkPolicy {
    ClusterNetworkPolicy { egress: rules, ..cluster_policy(name, tier, priority) }
}

fn one(action: ClusterAction, peer: ClusterPeer) -> Vec<ClusterRule> {
    vec![cluster_rule(action, &[peer])]
}

fn for_protocols(
    action: ClusterAction,
    peer: ClusterPeer,
    protocols: &[ClusterProtocol],
) -> Vec<ClusterRule> {
    vec![ClusterRule { protocols: protocols.to_vec(), ..cluster_rule(action, &[peer]) }]
}

fn isolate_all() -> WorldChange {
    np("isolate", "", Some(vec![]), Some(vec![]))
}

#[test]
fn cnp_a_lower_priority_number_wins_then_the_name() {
    let lab = lab_with([
        ingress("a", Admin, 20, one(Deny, namespaces(""))),
        ingress("b", Admin, 10, one(Accept, namespaces(""))),
    ]);
    assert!(lab.accepts(WEB, DB, TCP(80)));
    let lab = lab_with([
        ingress("a", Admin, 10, one(Deny, namespaces(""))),
        ingress("b", Admin, 10, one(Accept, namespaces(""))),
    ]);
    assert!(!lab.accepts(WEB, DB, TCP(80)));
}

#[test]
fn cnp_rules_of_a_policy_are_evaluated_in_order() {
    let mut rules = one(Accept, pods("app=web"));
    rules.extend(one(Deny, namespaces("")));
    let lab = lab_with([ingress("a", Admin, 1, rules)]);
    assert!(lab.accepts(WEB, DB, TCP(80)) && !lab.accepts(DB, WEB, TCP(80)));
}

#[test]
fn cnp_admin_accept_and_deny_are_final_before_other_policies() {
    let mut lab = lab_with([ingress("a", Admin, 1, one(Accept, pods("app=web")))]);
    lab.apply([np("a", "", Some(vec![]), None)]);
    assert!(lab.accepts(WEB, DB, TCP(80)) && !lab.accepts(DB, WEB, TCP(80)));
    let mut lab = lab_with([ingress("a", Admin, 1, one(Deny, pods("app=web")))]);
    lab.apply([np("a", "", Some(vec![np_rule(&[], &[])]), None)]);
    assert!(!lab.accepts(WEB, DB, TCP(80)) && lab.accepts(DB, WEB, TCP(80)));
}

#[test]
fn cnp_pass_ends_the_tier() {
    let pass = ingress("a", Admin, 1, one(Pass, pods("app=web")));
    let deny = ingress("b", Admin, 2, one(Deny, namespaces("")));
    let mut lab = lab_with([pass, deny]);
    assert!(lab.accepts(WEB, DB, TCP(80)) && !lab.accepts(DB, WEB, TCP(80)));
    lab.apply([isolate_all()]);
    assert!(!lab.accepts(WEB, DB, TCP(80)));
}

#[test]
fn cnp_baseline_decides_only_what_no_other_policy_decides() {
    let mut lab = lab_with([ingress("a", Baseline, 1, one(Deny, namespaces("")))]);
    assert!(!lab.accepts(WEB, DB, TCP(80)) && lab.accepts(OUTSIDE, DB, TCP(80)));
    lab.apply([np("a", "app=db", Some(vec![np_rule(&[], &[tcp(80)])]), None)]);
    assert!(lab.accepts(WEB, DB, TCP(80)) && !lab.accepts(WEB, DB, TCP(81)));
    assert!(!lab.accepts(DB, WEB, TCP(80)));
}

#[test]
fn cnp_baseline_pass_accepts() {
    let mut rules = one(Pass, pods("app=web"));
    rules.extend(one(Deny, namespaces("")));
    let lab = lab_with([ingress("a", Baseline, 1, rules)]);
    assert!(lab.accepts(WEB, DB, TCP(80)) && !lab.accepts(DB, WEB, TCP(80)));
}

#[test]
fn cnp_subjects_are_namespaces_or_pods() {
    let mut policy = ingress("a", Admin, 1, one(Deny, namespaces("")));
    policy.subject = ClusterSubject::Namespaces(selector("name=other"));
    let lab = lab_with([policy.clone()]);
    assert!(!lab.accepts(WEB, OTHER, TCP(80)) && lab.accepts(WEB, DB, TCP(80)));
    policy.subject = ClusterSubject::Pods { namespaces: selector("name=default"), pods: selector("app=web") };
    let lab = lab_with([policy]);
    assert!(
        !lab.accepts(DB, WEB, TCP(80)) && lab.accepts(WEB, DB, TCP(80)) && lab.accepts(DB, OTHER, TCP(80))
    );
}

#[test]
fn cnp_namespace_labels_move_subjects_and_peers() {
    let mut policy = ingress("a", Admin, 1, one(Deny, namespaces("team=a")));
    policy.subject = ClusterSubject::Namespaces(selector("team=b"));
    let mut lab = lab_with([policy]);
    assert!(lab.accepts(OTHER, DB, TCP(80)));
    lab.apply([namespace("default", "team=b"), namespace("other", "team=a")]);
    assert!(!lab.accepts(OTHER, DB, TCP(80)));
    lab.apply([namespace("default", "team=c")]);
    assert!(lab.accepts(OTHER, DB, TCP(80)));
}

#[test]
fn cnp_networks_are_egress_peers_with_pods_and_nodes() {
    let blocks = ["10.0.0.3/32", "172.16.0.2/32", "192.0.2.0/24"].map(cidr).to_vec();
    let lab = lab_with([egress("a", Admin, 1, one(Deny, ClusterPeer::Networks(blocks)))]);
    assert!(
        !lab.accepts(DB, OTHER, TCP(80))
            && !lab.accepts(DB, OTHER_NODE, TCP(80))
            && !lab.accepts(DB, OUTSIDE, TCP(80))
    );
    assert!(lab.accepts(DB, WEB, TCP(80)) && lab.accepts(OUTSIDE, DB, TCP(80)));
    assert!(lab.engine.judges_own_node());
}

#[test]
fn cnp_nodes_are_egress_peers_with_the_own_node() {
    let edge = ClusterPeer::Nodes(selector("role=edge"));
    let lab = lab_with([egress("a", Admin, 1, one(Deny, edge))]);
    assert!(!lab.accepts(DB, NODE, TCP(80)) && lab.accepts(DB, OTHER_NODE, TCP(80)));
    assert!(lab.accepts(NODE, DB, TCP(80)));
    let workers = ClusterPeer::Nodes(selector("role=worker"));
    let lab = lab_with([egress("a", Admin, 1, one(Deny, workers))]);
    assert!(lab.accepts(DB, NODE, TCP(80)) && !lab.accepts(DB, OTHER_NODE, TCP(80)));
    assert!(!lab_with([ingress("a", Admin, 1, one(Deny, namespaces("")))]).engine.judges_own_node());
}

#[test]
fn cnp_only_admin_and_baseline_judge_the_own_node() {
    let edge = ClusterPeer::Nodes(selector("role=edge"));
    let mut lab =
        lab_with([egress("a", Baseline, 1, for_protocols(Deny, edge, &[port(Protocol::Tcp, 22, 22)]))]);
    lab.apply([isolate_all()]);
    assert!(!lab.accepts(DB, NODE, TCP(22)) && lab.accepts(DB, NODE, TCP(80)));
}

fn port(protocol: Protocol, first: u16, last: u16) -> ClusterProtocol {
    ClusterProtocol::Ports { protocol, port: PortMatch::Range(PortRange::new(first, last).unwrap()) }
}

#[test]
fn cnp_protocols_have_numbers_and_ranges_or_are_whole() {
    let whole = ClusterProtocol::Ports { protocol: Protocol::Sctp, port: PortMatch::All };
    let protocols = [port(Protocol::Tcp, 80, 80), port(Protocol::Udp, 1000, 1999), whole];
    let lab = lab_with([ingress("a", Admin, 1, for_protocols(Deny, namespaces(""), &protocols))]);
    assert!(!lab.accepts(WEB, DB, TCP(80)) && lab.accepts(WEB, DB, TCP(81)));
    assert!(!lab.accepts(WEB, DB, UDP(1999)) && lab.accepts(WEB, DB, UDP(2000)));
    assert!(!lab.accepts(WEB, DB, SCTP(1)) && lab.accepts(WEB, DB, ICMP));
}

#[test]
fn cnp_a_rule_without_protocols_matches_all_protocols() {
    let lab = lab_with([ingress("a", Admin, 1, one(Deny, namespaces("")))]);
    assert!(!lab.accepts(WEB, DB, ICMP) && !lab.accepts(WEB, DB, SCTP(5)));
}

#[test]
fn cnp_destination_named_ports_have_any_protocol() {
    let named = [ClusterProtocol::NamedPort("http".to_owned())];
    for lab in [
        lab_with([ingress("a", Admin, 1, for_protocols(Deny, namespaces(""), &named))]),
        lab_with([egress("a", Admin, 1, for_protocols(Deny, namespaces(""), &named))]),
    ] {
        assert!(!lab.accepts(DB, WEB, TCP(8080)) && lab.accepts(DB, WEB, UDP(8080)));
        assert!(!lab.accepts(WEB, DB, UDP(9000)) && lab.accepts(WEB, DB, TCP(9000)));
    }
}

#[test]
fn cnp_an_unknown_peer_of_accept_matches_nothing() {
    let mut rules = vec![cluster_rule(Accept, &[ClusterPeer::Unknown, pods("app=web")])];
    rules.extend(one(Deny, namespaces("")));
    let lab = lab_with([ingress("a", Admin, 1, rules)]);
    assert!(lab.accepts(WEB, DB, TCP(80)) && !lab.accepts(DB, WEB, TCP(80)));
    let problem = ProblemReason::UnknownPeer { direction: Direction::Ingress, rule: 0, action: Accept };
    assert_eq!(lab.engine.problems().into_iter().map(|one| one.reason).collect::<Vec<_>>(), [problem]);
}

#[test]
fn cnp_an_unknown_peer_of_deny_or_pass_denies_everything() {
    for action in [Deny, Pass] {
        let protocols = [port(Protocol::Tcp, 80, 80)];
        let lab = lab_with([egress("a", Admin, 1, for_protocols(action, ClusterPeer::Unknown, &protocols))]);
        assert!(
            !lab.accepts(DB, WEB, TCP(81))
                && !lab.accepts(DB, OUTSIDE, ICMP)
                && !lab.accepts(DB, NODE, TCP(1))
        );
        assert!(!lab.accepts(DB, DB, TCP(1)) && lab.accepts(OUTSIDE, DB, TCP(80)));
    }
}

#[test]
fn cnp_domain_names_match_nothing_and_are_a_problem() {
    let mut rules = one(Accept, ClusterPeer::DomainNames);
    rules.extend(one(Deny, ClusterPeer::Networks(vec![cidr("192.0.2.0/24")])));
    let lab = lab_with([egress("a", Admin, 1, rules)]);
    assert!(!lab.accepts(DB, OUTSIDE, TCP(80)) && lab.accepts(DB, WEB, TCP(80)));
    let problems = lab.engine.problems();
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].reason, ProblemReason::DomainNames { direction: Direction::Egress, rule: 0 });
    assert!(problems[0].to_string().starts_with("ClusterNetworkPolicy a: egress rule 0 has domain names"));
}

#[test]
fn cnp_a_pod_as_its_own_peer_is_judged() {
    let lab = lab_with([ingress("a", Admin, 1, one(Deny, pods("app=web")))]);
    assert!(!lab.accepts(WEB, WEB, TCP(80)) && lab.accepts(DB, DB, TCP(80)));
}

#[test]
fn cnp_pods_without_a_namespace_are_no_subjects_and_no_peers() {
    let mut lab = lab_with([ingress("a", Admin, 1, one(Deny, namespaces("")))]);
    lab.apply([pod("plain", "10.0.0.9").namespace("").set()]);
    assert!(lab.accepts(WEB, "10.0.0.9", TCP(80)) && lab.accepts("10.0.0.9", WEB, TCP(80)));
}

#[test]
fn cnp_an_admin_rule_for_all_pods_needs_no_elements_per_profile() {
    let lab = lab_with([ingress(
        "a",
        Admin,
        1,
        for_protocols(Deny, namespaces(""), &[port(Protocol::Tcp, 25, 25)]),
    )]);
    let is_of_pair = |element: &&PolicyElement| match element {
        PolicyElement::Verdict { key, .. } => {
            matches!(key, VerdictKey::PeerPort { class, .. } if class.0 != crate::element::ClassId::SELF.0)
        }
        _ => false,
    };
    assert_eq!(lab.kernel.elements.iter().filter(is_of_pair).count(), 0);
}
