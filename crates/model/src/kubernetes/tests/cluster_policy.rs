use serde_json::{Value, json};
use types::Protocol;

use crate::kubernetes::InvalidPolicy;
use crate::objects::{
    ClusterAction, ClusterNetworkPolicy, ClusterPeer, ClusterProtocol, ClusterRule, ClusterSubject,
    ClusterTier, PortMatch, PortRange,
};
use crate::selector::Selector;

fn decode(
    change: impl FnOnce(&mut Value),
) -> Result<ClusterNetworkPolicy, InvalidPolicy<ClusterNetworkPolicy>> {
    let mut object = json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2",
        "kind": "ClusterNetworkPolicy",
        "metadata": { "name": "p" },
        "spec": { "tier": "Admin", "priority": 10, "subject": { "namespaces": {} } },
    });
    change(&mut object["spec"]);
    ClusterNetworkPolicy::decode(object)
}

fn egress(rule: &Value) -> Result<Vec<ClusterRule>, InvalidPolicy<ClusterNetworkPolicy>> {
    decode(|spec| spec["egress"] = json!([rule])).map(|policy| policy.egress)
}

fn ingress(rule: &Value) -> Result<Vec<ClusterRule>, InvalidPolicy<ClusterNetworkPolicy>> {
    decode(|spec| spec["ingress"] = json!([rule])).map(|policy| policy.ingress)
}

fn protocols(protocols: &Value) -> Vec<ClusterProtocol> {
    let rule = json!({ "action": "Deny", "from": [{ "namespaces": {} }], "protocols": protocols });
    ingress(&rule).unwrap().remove(0).protocols
}

#[test]
fn tier_priority_and_subject_are_read() {
    let policy = decode(|_| {}).unwrap();
    assert_eq!((policy.name.as_str(), policy.tier, policy.priority), ("p", ClusterTier::Admin, 10));
    assert_eq!(policy.subject, ClusterSubject::Namespaces(Selector::all()));
    assert!(policy.ingress.is_empty() && policy.egress.is_empty());
    let policy = decode(|spec| {
        spec["tier"] = "Baseline".into();
        spec["priority"] = 1000.into();
        spec["subject"] = json!({ "pods": { "podSelector": { "matchLabels": { "a": "b" } } } });
    });
    let policy = policy.unwrap();
    assert_eq!((policy.tier, policy.priority), (ClusterTier::Baseline, 1000));
    let ClusterSubject::Pods { namespaces, pods } = policy.subject else { panic!() };
    assert_eq!((namespaces, pods.requirements.len()), (Selector::all(), 1));
}

#[test]
fn rules_keep_their_order_with_all_actions() {
    let rule = |name: &str, action: &str| json!({ "name": name, "action": action, "from": [{ "pods": { "namespaceSelector": {}, "podSelector": {} } }] });
    let rules = json!([rule("b", "Pass"), rule("a", "Accept"), rule("c", "Deny")]);
    let policy = decode(|spec| spec["ingress"] = rules).unwrap();
    let found: Vec<_> =
        policy.ingress.iter().map(|rule| (rule.name.as_deref().unwrap(), rule.action)).collect();
    assert_eq!(found, [("b", ClusterAction::Pass), ("a", ClusterAction::Accept), ("c", ClusterAction::Deny)]);
    assert_eq!(
        policy.ingress[0].peers,
        [ClusterPeer::Pods { namespaces: Selector::all(), pods: Selector::all() }]
    );
    assert!(policy.ingress[0].protocols.is_empty());
}

#[test]
fn egress_has_nodes_networks_and_domain_names() {
    let to = json!([
        { "nodes": {} },
        { "networks": ["10.0.0.1/8", "fd00::/8"] },
        { "domainNames": ["*.example.org"] },
        { "namespaces": {} },
    ]);
    let rules = egress(&json!({ "action": "Accept", "to": to })).unwrap();
    let blocks = vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
    assert_eq!(
        rules[0].peers,
        [
            ClusterPeer::Nodes(Selector::all()),
            ClusterPeer::Networks(blocks),
            ClusterPeer::DomainNames,
            ClusterPeer::Namespaces(Selector::all()),
        ]
    );
}

#[test]
fn an_unknown_kind_of_peer_is_kept_for_the_engine() {
    for peer in [json!({}), json!({ "services": {} })] {
        let rules = egress(&json!({ "action": "Deny", "to": [peer] })).unwrap();
        assert_eq!(rules[0].peers, [ClusterPeer::Unknown]);
    }
    for peer in [json!({ "nodes": {} }), json!({ "networks": ["10.0.0.0/8"] })] {
        let rules = ingress(&json!({ "action": "Accept", "from": [peer] })).unwrap();
        assert_eq!(rules[0].peers, [ClusterPeer::Unknown], "ingress rules have no such peers");
    }
}

#[test]
fn a_protocol_has_a_number_a_range_a_name_or_all_ports() {
    let found = protocols(&json!([
        { "tcp": { "destinationPort": { "number": 80 } } },
        { "udp": { "destinationPort": { "range": { "start": 5000, "end": 5100 } } } },
        { "sctp": {} },
        { "destinationNamedPort": "http" },
    ]));
    let ports = |protocol, port| ClusterProtocol::Ports { protocol, port };
    assert_eq!(
        found,
        [
            ports(Protocol::Tcp, PortMatch::Range(PortRange::single(80))),
            ports(Protocol::Udp, PortMatch::Range(PortRange::new(5000, 5100).unwrap())),
            ports(Protocol::Sctp, PortMatch::All),
            ClusterProtocol::NamedPort("http".to_owned()),
        ]
    );
}

#[test]
fn an_unknown_kind_of_protocol_accepts_nothing_and_denies_everything() {
    let rule = |action: &str, protocols: Value| {
        egress(&json!({ "action": action, "to": [{ "namespaces": {} }], "protocols": protocols })).unwrap()
    };
    assert_eq!(rule("Accept", json!([{ "icmp": {} }])), []);
    let tcp = rule("Accept", json!([{ "icmp": {} }, { "tcp": {} }]));
    assert_eq!(tcp[0].protocols.len(), 1);
    for action in ["Deny", "Pass"] {
        let rules = rule(action, json!([{ "tcp": {} }, { "icmp": {} }]));
        assert_eq!((&rules[0].peers, rules[0].protocols.len()), (&vec![ClusterPeer::Unknown], 0));
    }
}

#[test]
fn an_invalid_header_has_no_closed_form() {
    for (field, value, expected) in [
        ("tier", json!("Middle"), "spec.tier: \"Middle\" is not allowed: Admin or Baseline"),
        ("tier", Value::Null, "spec.tier: is missing"),
        ("priority", json!(1001), "spec.priority: 1001 is not allowed: 0 to 1000"),
        ("priority", json!(-1), "spec.priority: -1"),
        ("priority", Value::Null, "spec.priority: is missing"),
        ("subject", json!({}), "spec.subject: must have namespaces or pods"),
        ("subject", json!({ "nodes": {} }), "spec.subject: must have namespaces or pods"),
        ("subject", json!({ "namespaces": {}, "pods": {} }), "spec.subject: must have exactly one field"),
        ("ingress", json!({}), "spec.ingress: invalid type"),
    ] {
        let invalid = decode(|spec| spec[field] = value).unwrap_err();
        assert!(invalid.to_string().starts_with(expected), "{invalid}");
        assert_eq!(invalid.closed, None);
    }
    assert!(decode(|spec| spec["priority"] = 0.into()).is_ok());
}

#[test]
fn invalid_rules_name_the_field_and_close_the_subjects() {
    let all = json!([{ "namespaces": {} }]);
    let with = |protocol: Value| json!({ "action": "Deny", "to": all, "protocols": [protocol] });
    let to = |peer: Value| json!({ "action": "Deny", "to": [peer] });
    let named = |peer: Value| json!({ "action": "Accept", "to": [peer], "protocols": [{ "destinationNamedPort": "http" }] });
    for (rule, expected) in [
        (json!({ "to": all }), "action: is missing"),
        (json!({ "action": "Allow", "to": all }), "action: \"Allow\" is not allowed: Accept, Deny or Pass"),
        (json!({ "action": "Deny" }), "to: is missing: at least one peer"),
        (json!({ "action": "Deny", "to": [] }), "to: is missing"),
        (json!({ "action": "Deny", "to": vec![json!({ "namespaces": {} }); 26] }), "to: has 26 items"),
        (json!({ "action": "Deny", "to": all, "name": "n".repeat(101) }), "name: is longer than 100"),
        (json!({ "action": "Deny", "to": all, "protocols": [] }), "protocols: is empty"),
        (
            json!({ "action": "Deny", "to": all, "protocols": vec![json!({ "tcp": {} }); 26] }),
            "protocols: has 26 items",
        ),
        (to(json!({ "networks": [] })), "to[0].networks: is empty"),
        (to(json!({ "networks": ["10.0.0.0"] })), "to[0].networks[0]: \"10.0.0.0\""),
        (to(json!({ "networks": vec!["10.0.0.0/8"; 26] })), "to[0].networks: has 26 items"),
        (to(json!({ "namespaces": {}, "nodes": {} })), "to[0]: must have exactly one field"),
        (to(json!({ "domainNames": ["example.org"] })), "to[0].domainNames: only rules with action Accept"),
        (
            to(
                json!({ "pods": { "podSelector": { "matchExpressions": [{ "key": "a", "operator": "?" }] } } }),
            ),
            "to[0].pods.podSelector.matchExpressions[0].operator",
        ),
        (with(json!({ "tcp": {}, "udp": {} })), "protocols[0]: must have exactly one field"),
        (
            with(json!({ "tcp": {}, "destinationNamedPort": "a" })),
            "protocols[0]: must have exactly one field",
        ),
        (
            with(json!({ "tcp": { "destinationPort": {} } })),
            "protocols[0].tcp.destinationPort: must have either",
        ),
        (
            with(json!({ "udp": { "destinationPort": { "number": 0 } } })),
            "protocols[0].udp.destinationPort.number: 0",
        ),
        (
            with(json!({ "tcp": { "destinationPort": { "range": { "start": 80, "end": 80 } } } })),
            "protocols[0].tcp.destinationPort.range.end: 80 is not allowed: more than the start, 80",
        ),
        (
            with(json!({ "tcp": { "destinationPort": { "range": { "start": 80 } } } })),
            "protocols[0].tcp.destinationPort.range.end: null",
        ),
        (with(json!({ "destinationNamedPort": "HTTP" })), "protocols[0].destinationNamedPort: \"HTTP\""),
        (
            named(json!({ "nodes": {} })),
            "protocols[0].destinationNamedPort: networks, nodes and domain names",
        ),
        (named(json!({ "networks": ["10.0.0.0/8"] })), "protocols[0].destinationNamedPort: networks"),
    ] {
        let invalid = egress(&rule).expect_err(&rule.to_string());
        assert!(invalid.to_string().starts_with(&format!("spec.egress[0].{expected}")), "{invalid}");
        let closed = invalid.closed.unwrap();
        assert!(closed.ingress.is_empty(), "it had no ingress rules");
        assert_eq!(
            (closed.egress[0].action, &closed.egress[0].peers),
            (ClusterAction::Deny, &vec![ClusterPeer::Unknown])
        );
    }
}

#[test]
fn at_most_25_rules_per_direction_are_allowed() {
    let rules = |count| json!(vec![json!({ "action": "Pass", "from": [{ "namespaces": {} }] }); count]);
    assert_eq!(decode(|spec| spec["ingress"] = rules(25)).unwrap().ingress.len(), 25);
    let invalid = decode(|spec| spec["ingress"] = rules(26)).unwrap_err();
    assert_eq!(invalid.to_string(), "spec.ingress: has 26 items; at most 25 are allowed");
}
