//! Tenants, groups, shares, unknown addresses, and the limit.

use model::objects::*;
use types::{GroupName, Protocol};

use super::build::*;
use super::kernel::Kernel;
use super::lab::{ICMP, Lab, TCP, UDP, changes_of};
use crate::element::{PolicyElement, PolicyVerdict};
use crate::engine::PolicyEngine;
use crate::explain::{FlowEnd, PolicyFlow};
use crate::problems::{PolicyObject, ProblemReason};
use crate::query::{FlowQuery, FlowTraffic, QueryEnd};
use crate::world::{PodEntry, WorldChange};

const RED: &str = "10.0.0.1";
const RED_BACK: &str = "10.0.0.2";
const BLUE: &str = "10.0.1.1";
const OUTSIDE: &str = "192.0.2.1";
const NODE: &str = "172.16.0.1";
const OTHER_NODE: &str = "172.16.0.2";

fn lab() -> Lab {
    Lab::with([
        network("red", "default-net", "10.0.0.0/24"),
        network("blue", "default-net", "10.0.1.0/24"),
        node("n1", NODE, ""),
        node("n2", OTHER_NODE, ""),
        group("front", &[]),
        group("rear", &[]),
        pod("red", RED).tenant("red").group("front").namespace("").set(),
        pod("red-back", RED_BACK).tenant("red").network("back").group("rear").namespace("").set(),
        pod("blue", BLUE).tenant("blue").namespace("").set(),
    ])
}

fn lab_with(changes: impl IntoIterator<Item = WorldChange>) -> Lab {
    let mut lab = lab();
    lab.apply(changes);
    lab
}

fn group_name(name: &str) -> GroupName {
    name.try_into().unwrap()
}

fn share(part: SharedPart, with: &[&str], ports: &[(Protocol, PortRange)]) -> WorldChange {
    WorldChange::SetShare(Share {
        tenant: tenant_name("red"),
        name: "s".to_owned(),
        part,
        with: with.iter().map(|name| tenant_name(name)).collect(),
        ports: ports.to_vec(),
    })
}

fn rule((id, priority): (u32, u8), direction: Direction, peer: GroupPeer, action: RuleAction) -> GroupRule {
    GroupRule { id, direction, priority, peer, protocol: RuleProtocol::Any, ports: None, action }
}

/// A group of tenant `red` with the policies bound to it.
fn group(name: &str, policies: &[&str]) -> WorldChange {
    let policies = policies.iter().map(|&policy| policy.to_owned()).collect();
    WorldChange::SetGroup(Group { tenant: tenant_name("red"), name: group_name(name), policies })
}

/// Policy `p` bound to group `front` of tenant `red`.
fn front(rules: Vec<GroupRule>) -> [WorldChange; 2] {
    let tenant = tenant_name("red");
    [group("front", &["p"]), WorldChange::SetGroupPolicy(GroupPolicy { tenant, name: "p".to_owned(), rules })]
}

use Direction::{Egress, Ingress};
use RuleAction::{Allow, Deny};

#[test]
fn d_pods_of_different_tenants_cannot_communicate() {
    let lab = lab();
    assert!(
        lab.accepts(RED, RED_BACK, TCP(80))
            && !lab.accepts(RED, BLUE, TCP(80))
            && !lab.accepts(BLUE, RED, ICMP)
    );
    assert!(lab.accepts(RED, OUTSIDE, TCP(80)) && lab.accepts(OUTSIDE, RED, TCP(80)));
}

#[test]
fn d_a_share_lets_other_tenants_open_flows_but_not_its_owner() {
    let lab = lab_with([share(SharedPart::AllPods, &[], &[])]);
    assert!(lab.accepts(BLUE, RED, TCP(80)) && !lab.accepts(RED, BLUE, TCP(80)));
}

#[test]
fn d_a_share_is_limited_to_its_part_tenants_and_ports() {
    let web = [(Protocol::Tcp, PortRange::single(80))];
    for part in
        [SharedPart::Group(group_name("front")), SharedPart::Network("default-net".try_into().unwrap())]
    {
        let lab = lab_with([share(part, &["blue"], &web)]);
        assert!(lab.accepts(BLUE, RED, TCP(80)) && !lab.accepts(BLUE, RED, TCP(81)));
        assert!(!lab.accepts(BLUE, RED_BACK, TCP(80)) && !lab.accepts(BLUE, RED, ICMP));
    }
    assert!(!lab_with([share(SharedPart::AllPods, &["green"], &[])]).accepts(BLUE, RED, TCP(80)));
}

#[test]
fn d_a_share_does_not_bypass_group_rules() {
    let mut lab = lab_with([share(SharedPart::AllPods, &[], &[])]);
    lab.apply(front(vec![rule((1, 1), Ingress, GroupPeer::Any, Deny)]));
    assert!(!lab.accepts(BLUE, RED, TCP(80)) && lab.accepts(BLUE, RED_BACK, TCP(80)));
}

#[test]
fn d_nodes_of_a_tenant_are_allowed_or_denied_except_the_own_node() {
    let lab = lab();
    assert!(lab.accepts(OTHER_NODE, RED, TCP(80)) && lab.accepts(RED, OTHER_NODE, TCP(80)));
    let tenant = Tenant { name: tenant_name("red"), nodes: NodeAccess::Deny, default_network: None };
    let lab = lab_with([WorldChange::SetTenant(tenant)]);
    assert!(!lab.accepts(OTHER_NODE, RED, TCP(80)) && !lab.accepts(RED, OTHER_NODE, TCP(80)));
    assert!(lab.accepts(NODE, RED, TCP(80)) && lab.accepts(RED, NODE, TCP(80)));
    assert!(lab.accepts(OTHER_NODE, BLUE, TCP(80)));
}

#[test]
fn d_unknown_addresses_inside_a_network_are_denied_until_their_pod_is_known() {
    let mut lab = lab();
    assert!(!lab.accepts("10.0.0.77", RED, TCP(80)) && !lab.accepts(RED, "10.0.0.77", TCP(80)));
    lab.apply([pod("new", "10.0.0.77").tenant("red").node("n2").namespace("").set()]);
    assert!(lab.accepts("10.0.0.77", RED, TCP(80)));
}

#[test]
fn d_group_rules_decide_by_priority_then_id_and_no_match_passes() {
    let peer = || GroupPeer::Group(group_name("rear"));
    let lab = lab_with(front(vec![
        rule((1, 1), Ingress, peer(), Deny),
        rule((2, 50), Ingress, peer(), Allow),
        rule((4, 50), Ingress, peer(), Deny),
    ]));
    assert!(lab.accepts(RED_BACK, RED, TCP(80)));
    let lab =
        lab_with(front(vec![rule((3, 50), Ingress, peer(), Allow), rule((2, 50), Ingress, peer(), Deny)]));
    assert!(!lab.accepts(RED_BACK, RED, TCP(80)) && lab.accepts(OUTSIDE, RED, TCP(80)));
}

#[test]
fn d_group_rules_have_a_direction() {
    let lab = lab_with(front(vec![rule((1, 1), Egress, GroupPeer::Any, Deny)]));
    assert!(!lab.accepts(RED, RED_BACK, TCP(80)) && lab.accepts(RED_BACK, RED, TCP(80)));
    assert!(lab.accepts(RED, RED, TCP(80)) && lab.accepts(RED, NODE, TCP(80)));
}

#[test]
fn d_group_rules_select_groups_networks_and_blocks() {
    for peer in [
        GroupPeer::Group(group_name("rear")),
        GroupPeer::Network("back".try_into().unwrap()),
        GroupPeer::Block(cidr("10.0.0.2/32")),
    ] {
        let lab = lab_with(front(vec![rule((1, 1), Ingress, peer.clone(), Deny)]));
        assert!(!lab.accepts(RED_BACK, RED, TCP(80)) && lab.accepts(OUTSIDE, RED, TCP(80)), "{peer:?}");
    }
}

#[test]
fn d_group_rules_have_protocols_and_ports() {
    let tcp = RuleProtocol::WithPorts(Protocol::Tcp);
    let any = || rule((1, 1), Ingress, GroupPeer::Any, Deny);
    let lab = lab_with(front(vec![
        GroupRule { protocol: tcp, ports: PortRange::new(80, 90), ..any() },
        GroupRule { id: 2, protocol: RuleProtocol::Icmp, ..any() },
        GroupRule { id: 3, protocol: RuleProtocol::Number(17), ..any() },
    ]));
    assert!(!lab.accepts(OUTSIDE, RED, TCP(90)) && lab.accepts(OUTSIDE, RED, TCP(91)));
    assert!(
        !lab.accepts(OUTSIDE, RED, ICMP)
            && !lab.accepts(OUTSIDE, RED, (58, 0))
            && !lab.accepts(OUTSIDE, RED, UDP(1))
    );
}

#[test]
fn d_group_allow_does_not_bypass_network_policies_and_deny_is_final() {
    let isolate = |rules| np("a", "", Some(rules), None);
    let subject = pod("red", RED).tenant("red").group("front").set();
    let mut lab = lab_with(front(vec![rule((1, 1), Ingress, GroupPeer::Any, Allow)]));
    lab.apply([subject.clone(), isolate(vec![])]);
    assert!(!lab.accepts(RED_BACK, RED, TCP(80)));
    let mut lab = lab_with(front(vec![rule((1, 1), Ingress, GroupPeer::Any, Deny)]));
    lab.apply([subject, isolate(vec![np_rule(&[], &[])])]);
    assert!(!lab.accepts(RED_BACK, RED, TCP(80)));
}

#[test]
fn d_missing_objects_close_their_pods_and_are_reported() {
    let mut lab = lab_with([group("front", &["p"])]);
    let problems = |lab: &Lab| {
        let problems = lab.engine.problems();
        problems.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(!lab.accepts(RED, RED_BACK, TCP(80)) && !lab.accepts(OUTSIDE, RED, TCP(80)));
    let closed = "it is missing or cannot be read; its pods are closed";
    assert_eq!(problems(&lab), [format!("policy p of tenant red: {closed}")]);
    lab.apply([WorldChange::RemoveGroup(tenant_name("red"), group_name("rear"))]);
    let both = ["group rear", "policy p"].map(|object| format!("{object} of tenant red: {closed}"));
    assert_eq!(problems(&lab), both);
    assert!(!lab.accepts(OUTSIDE, RED_BACK, TCP(80)));
    lab.apply(front(Vec::new()).into_iter().chain([group("rear", &[])]));
    assert!(lab.accepts(RED, RED_BACK, TCP(80)) && lab.engine.problems().is_empty());
}

#[test]
fn d_pods_with_the_same_policies_share_a_profile() {
    let mut lab = lab();
    lab.apply([pod("again", "10.0.0.5").tenant("red").namespace("").labels("app=x").set()]);
    let profile = |pod: &str| lab.engine.profile(&pod.into()).unwrap();
    assert_eq!(profile("red"), profile("again"));
    assert_ne!(profile("red"), profile("blue"));
}

#[test]
fn d_an_unchanged_input_changes_nothing() {
    let mut lab = lab_with(front(vec![rule((1, 1), Ingress, GroupPeer::Any, Deny)]));
    let changes = changes_of(lab.engine.world());
    assert!(lab.engine.apply(changes).is_empty());
}

#[test]
fn d_all_addresses_have_a_class_without_inputs() {
    let kernel = Kernel::of(&PolicyEngine::new(node_name("n1")));
    let texts: Vec<_> = kernel
        .elements
        .iter()
        .map(|element| match element {
            PolicyElement::Addresses { first, last, class: _ } => format!("{first}-{last}"),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(texts, ["0.0.0.0-255.255.255.255", "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"]);
}

#[test]
fn d_a_too_large_policy_isolates_and_all_others_stay_in_force() {
    let ports: Vec<_> = (0..60).map(|number| tcp(1000 + number * 2)).collect();
    let large = np(
        "large",
        "app=db",
        Some(vec![np_rule(&[np_pods(None, "app=web"), np_pods(None, "app=db")], &ports)]),
        None,
    );
    let small = np("small", "app=web", Some(vec![np_rule(&[np_pods(None, "app=db")], &[tcp(80)])]), None);
    let mut engine = PolicyEngine::with_limit(node_name("n1"), 50);
    let pods = [pod("web", "10.0.0.1").labels("app=web").set(), pod("db", "10.0.0.2").labels("app=db").set()];
    engine.apply(pods);
    engine.apply([small, large]);
    let accepts = |engine: &PolicyEngine, from: &str, to: &str, port| {
        let end = |uid: &str| FlowEnd::Pod(uid.into());
        let flow = PolicyFlow { from: end(from), to: end(to), protocol: 6, port };
        engine.explain(&flow).verdict == PolicyVerdict::Accept
    };
    assert!(!accepts(&engine, "web", "db", 1000) && accepts(&engine, "db", "web", 80));
    let problems = engine.problems();
    let object = PolicyObject::NetworkPolicy { namespace: "default".to_owned(), name: "large".to_owned() };
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].object, object);
    assert!(matches!(problems[0].reason, ProblemReason::TooLarge { elements, limit: 50 } if elements > 50));
    engine.apply([np("large", "app=db", Some(vec![np_rule(&[], &[tcp(1000)])]), None)]);
    assert!(accepts(&engine, "web", "db", 1000) && engine.problems().is_empty());
}

#[test]
fn d_a_query_explains_pairs_of_groups_up_to_a_limit() {
    let mut lab = lab_with(front(vec![rule((7, 1), Ingress, GroupPeer::Any, Deny)]));
    let pods = (0..20).map(|number| {
        pod(&format!("many-{number}"), &format!("10.0.1.{number}"))
            .tenant("red")
            .group("front")
            .namespace("")
            .set()
    });
    lab.apply(pods);
    let ask = |from: &str, to: &str| {
        let traffic = FlowTraffic::parse("tcp", Some(80)).unwrap();
        let [from, to] = [from, to].map(|end| QueryEnd::Named(end.to_owned()));
        lab.engine.answer(&FlowQuery { from, to, traffic })
    };
    let one = ask("many-1", "many-2").unwrap();
    let [explained] = one.explanations.as_slice() else { panic!("{one:?}") };
    assert_eq!((explained.verdict, one.omitted), (PolicyVerdict::Drop, 0));
    let is_member = |pod: &&PodEntry| {
        let placement = &pod.identity.placement;
        placement.tenant.as_str() == "red"
            && placement.group.as_ref().is_some_and(|group| group.as_str() == "front")
    };
    let members = lab.engine.world().pods.values().filter(is_member).count();
    let all = ask("group:red/front", "group:red/front").unwrap();
    assert_eq!(all.explanations.len() + all.omitted, members * (members - 1));
    assert_eq!(all.explanations.len(), 64);
    for (from, to, message) in [
        ("many-1", "group:red/none", "to group:red/none: group red/none does not exist: known are "),
        ("mny-1", "world", "from mny-1: it is not a pod (NAMESPACE/NAME), an address"),
        ("10.0.1.1", "fd00::1", "no common address family"),
    ] {
        let error = ask(from, to).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn d_pods_of_other_nodes_are_explained_too() {
    let mut lab = lab_with(front(vec![rule((7, 1), Ingress, GroupPeer::Any, Deny)]));
    lab.apply([
        pod("far", "10.0.0.50").tenant("red").group("front").node("n2").namespace("").set(),
        pod("near", "10.0.0.51").tenant("red").node("n2").namespace("").set(),
    ]);
    assert!(!lab.accepts("near", "far", TCP(80)) && lab.accepts("far", "near", TCP(80)));
    assert!(lab.accepts(OTHER_NODE, "far", TCP(80)) && !lab.accepts(NODE, "far", TCP(80)));
}
