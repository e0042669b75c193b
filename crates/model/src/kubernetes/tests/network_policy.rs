use serde_json::{Value, json};
use types::Protocol;

use crate::kubernetes::InvalidPolicy;
use crate::objects::{
    NamespaceScope, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicyRule, PortMatch,
    PortRange,
};
use crate::selector::{LabelOperator, Labels, Selector};

fn decode(spec: &Value) -> Result<NetworkPolicy, InvalidPolicy<NetworkPolicy>> {
    NetworkPolicy::decode(json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": { "name": "p", "namespace": "shop", "resourceVersion": "5" },
        "spec": spec,
    }))
}

fn valid(spec: &Value) -> NetworkPolicy {
    decode(spec).unwrap()
}

/// The rule of an ingress policy with one rule.
#[expect(clippy::needless_pass_by_value, reason = "callers pass json!")]
fn ingress_rule(rule: Value) -> NetworkPolicyRule {
    valid(&json!({ "podSelector": {}, "ingress": [rule] })).ingress.unwrap().remove(0)
}

#[expect(clippy::needless_pass_by_value, reason = "callers pass json!")]
fn ports(ports: Value) -> Vec<NetworkPolicyPort> {
    ingress_rule(json!({ "ports": ports })).ports
}

fn isolates(spec: &Value) -> [bool; 2] {
    let policy = valid(spec);
    [policy.ingress.is_some(), policy.egress.is_some()]
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn explicit_policy_types_win_and_absent_ones_have_defaults() {
    for (spec, expected) in [
        (json!({ "podSelector": {} }), [true, false]),
        (json!({ "podSelector": {}, "policyTypes": [] }), [true, false]),
        (json!({ "podSelector": {}, "ingress": [{}] }), [true, false]),
        (json!({ "podSelector": {}, "egress": [] }), [true, false]),
        (json!({ "podSelector": {}, "egress": [{}] }), [true, true]),
        (json!({ "podSelector": {}, "policyTypes": ["Egress"] }), [false, true]),
        (json!({ "podSelector": {}, "policyTypes": ["Egress"], "ingress": [{}] }), [false, true]),
        (json!({ "podSelector": {}, "policyTypes": ["Ingress"], "egress": [{}] }), [true, false]),
        (json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] }), [true, true]),
    ] {
        assert_eq!(isolates(&spec), expected, "{spec}");
    }
}

#[test]
fn no_rules_allow_nothing_and_an_empty_rule_allows_everything() {
    let policy = valid(&json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": null }));
    assert_eq!((policy.ingress, policy.egress), (Some(Vec::new()), Some(Vec::new())));
    let everything = NetworkPolicyRule { peers: Vec::new(), ports: Vec::new() };
    for rule in [json!({}), json!({ "from": [], "ports": [] }), json!({ "from": null, "ports": null })] {
        assert_eq!(ingress_rule(rule.clone()), everything, "{rule}");
    }
}

#[test]
fn the_namespace_and_the_subjects_are_read() {
    let policy = valid(&json!({ "podSelector": { "matchLabels": { "app": "web" } } }));
    assert_eq!((policy.namespace.as_str(), policy.name.as_str()), ("shop", "p"));
    assert!(policy.subjects.matches(&labels(&[("app", "web"), ("x", "y")])));
    assert!(!policy.subjects.matches(&labels(&[("app", "db")])));
    let bare =
        NetworkPolicy::decode(json!({ "metadata": { "name": "p" }, "spec": { "podSelector": {} } })).unwrap();
    assert_eq!((bare.namespace.as_str(), bare.subjects), ("default", Selector::all()));
}

#[test]
fn all_requirements_of_a_selector_must_hold() {
    let selector = json!({
        "matchLabels": { "app": "web" },
        "matchExpressions": [
            { "key": "tier", "operator": "In", "values": ["a", "b"] },
            { "key": "env", "operator": "NotIn", "values": ["test"] },
            { "key": "live", "operator": "Exists" },
            { "key": "old", "operator": "DoesNotExist", "values": [] },
        ],
    });
    let subjects = valid(&json!({ "podSelector": selector })).subjects;
    let good = [("app", "web"), ("tier", "b"), ("live", "")];
    assert!(subjects.matches(&labels(&good)));
    assert!(!subjects.matches(&labels(&good[..2])));
    for more in [("env", "test"), ("old", "1"), ("tier", "c"), ("app", "db")] {
        let changed: Vec<_> = good.iter().copied().chain([more]).collect();
        assert!(!subjects.matches(&labels(&changed)), "{more:?}");
    }
    assert!(matches!(subjects.requirements[0].operator, LabelOperator::In(_)));
}

#[test]
fn a_port_is_a_number_a_range_a_name_or_all() {
    let port = |protocol, port| NetworkPolicyPort { protocol, port };
    let range = |first, last| PortMatch::Range(PortRange::new(first, last).unwrap());
    let found = ports(json!([
        { "port": 80 },
        { "protocol": "UDP", "port": 53 },
        { "protocol": "SCTP" },
        {},
        { "port": "http" },
        { "protocol": "TCP", "port": 8000, "endPort": 9000 },
        { "port": 65535, "endPort": 65535 },
    ]));
    assert_eq!(
        found,
        [
            port(Protocol::Tcp, range(80, 80)),
            port(Protocol::Udp, range(53, 53)),
            port(Protocol::Sctp, PortMatch::All),
            port(Protocol::Tcp, PortMatch::All),
            port(Protocol::Tcp, PortMatch::Named("http".to_owned())),
            port(Protocol::Tcp, range(8000, 9000)),
            port(Protocol::Tcp, range(65535, 65535)),
        ]
    );
}

#[test]
fn selectors_of_one_peer_are_combined_and_two_peers_are_alternatives() {
    let (namespaces, pods) = (json!({ "matchLabels": { "n": "1" } }), json!({ "matchLabels": { "p": "1" } }));
    let both =
        ingress_rule(json!({ "from": [{ "namespaceSelector": namespaces, "podSelector": pods }] })).peers;
    let two =
        ingress_rule(json!({ "from": [{ "namespaceSelector": namespaces }, { "podSelector": pods }] })).peers;
    let selector = |key: &str| {
        let requirement = crate::selector::LabelRequirement {
            key: key.to_owned(),
            operator: LabelOperator::In(["1".to_owned()].into()),
        };
        Selector { requirements: vec![requirement] }
    };
    let peer = |namespaces, pods| NetworkPolicyPeer::Pods { namespaces, pods };
    assert_eq!(both, [peer(NamespaceScope::Matching(selector("n")), selector("p"))]);
    assert_eq!(
        two,
        [
            peer(NamespaceScope::Matching(selector("n")), Selector::all()),
            peer(NamespaceScope::Own, selector("p")),
        ]
    );
    let all = ingress_rule(json!({ "from": [{ "namespaceSelector": {} }, { "podSelector": {} }] })).peers;
    assert_eq!(
        all,
        [
            peer(NamespaceScope::Matching(Selector::all()), Selector::all()),
            peer(NamespaceScope::Own, Selector::all()),
        ]
    );
}

#[test]
fn an_ip_block_has_exceptions_and_its_host_bits_are_ignored() {
    let block = json!({ "cidr": "10.1.2.3/8", "except": ["10.5.0.1/16"] });
    let peers =
        ingress_rule(json!({ "from": [{ "ipBlock": block }, { "ipBlock": { "cidr": "fd00::/8" } }] })).peers;
    assert_eq!(
        peers,
        [
            NetworkPolicyPeer::Block {
                cidr: "10.0.0.0/8".parse().unwrap(),
                except: vec!["10.5.0.0/16".parse().unwrap()]
            },
            NetworkPolicyPeer::Block { cidr: "fd00::/8".parse().unwrap(), except: Vec::new() },
        ]
    );
}

#[test]
fn egress_rules_have_the_same_form() {
    let policy = valid(
        &json!({ "podSelector": {}, "egress": [{ "to": [{ "podSelector": {} }], "ports": [{ "port": 53 }] }] }),
    );
    let rule = &policy.egress.unwrap()[0];
    assert_eq!((rule.peers.len(), rule.ports.len()), (1, 1));
}

#[test]
fn invalid_policies_name_the_field_and_isolate_their_subjects() {
    let from = |peer: Value| json!({ "podSelector": {}, "ingress": [{}, { "from": [peer] }] });
    let port = |port: Value| json!({ "podSelector": {}, "ingress": [{ "ports": [port] }] });
    let select = |requirement: Value| json!({ "podSelector": { "matchExpressions": [requirement] } });
    for (spec, expected) in [
        (
            json!({ "policyTypes": ["Both"] }),
            "spec.policyTypes[0]: \"Both\" is not allowed: Ingress or Egress",
        ),
        (from(json!({})), "spec.ingress[1].from[0]: must have podSelector, namespaceSelector or ipBlock"),
        (
            from(json!({ "ipBlock": { "cidr": "10.0.0.0/8" }, "podSelector": {} })),
            "spec.ingress[1].from[0]: a peer with ipBlock",
        ),
        (
            from(json!({ "ipBlock": { "cidr": "10.0.0.0/33" } })),
            "spec.ingress[1].from[0].ipBlock.cidr: \"10.0.0.0/33\" is not",
        ),
        (from(json!({ "ipBlock": {} })), "spec.ingress[1].from[0].ipBlock.cidr: \"\" is not"),
        (
            from(json!({ "ipBlock": { "cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"] } })),
            "spec.ingress[1].from[0].ipBlock.except[0]: 11.0.0.0/16",
        ),
        (
            from(json!({ "ipBlock": { "cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"] } })),
            "spec.ingress[1].from[0].ipBlock.except[0]: 10.0.0.0/8",
        ),
        (
            from(json!({ "namespaceSelector": { "matchExpressions": [{ "key": "a", "operator": "Is" }] } })),
            "spec.ingress[1].from[0].namespaceSelector.matchExpressions[0].operator: \"Is\"",
        ),
        (
            port(json!({ "protocol": "ICMP" })),
            "spec.ingress[0].ports[0].protocol: \"ICMP\" is not allowed: TCP, UDP or SCTP",
        ),
        (port(json!({ "port": 0 })), "spec.ingress[0].ports[0].port: 0 is not allowed: 1 to 65535"),
        (port(json!({ "port": 65536 })), "spec.ingress[0].ports[0].port: 65536"),
        (port(json!({ "port": true })), "spec.ingress[0].ports[0].port: true"),
        (
            port(json!({ "port": "80" })),
            "spec.ingress[0].ports[0].port: \"80\" is not allowed: the name of a port",
        ),
        (
            port(json!({ "port": "http", "endPort": 90 })),
            "spec.ingress[0].ports[0].endPort: needs a port that is a number",
        ),
        (port(json!({ "endPort": 90 })), "spec.ingress[0].ports[0].endPort: needs a port"),
        (
            port(json!({ "port": 80, "endPort": 79 })),
            "spec.ingress[0].ports[0].endPort: 79 is not allowed: at least the port, 80",
        ),
        (
            select(json!({ "key": "a", "operator": "In" })),
            "spec.podSelector.matchExpressions[0].values: operator In needs",
        ),
        (
            select(json!({ "key": "a", "operator": "Exists", "values": ["b"] })),
            "spec.podSelector.matchExpressions[0].values: operator Exists has no values",
        ),
        (select(json!({ "operator": "Exists" })), "spec.podSelector.matchExpressions[0].key: is missing"),
    ] {
        let invalid = decode(&spec).expect_err(&spec.to_string());
        assert!(invalid.to_string().starts_with(expected), "{invalid}");
        let closed = invalid.closed.unwrap();
        assert_eq!(
            (closed.name.as_str(), closed.ingress, closed.subjects),
            ("p", Some(Vec::new()), Selector::all())
        );
    }
}

#[test]
fn an_invalid_policy_isolates_only_its_subjects_and_directions() {
    let spec = json!({
        "podSelector": { "matchLabels": { "app": "web" } },
        "policyTypes": ["Egress"],
        "egress": [{ "ports": [{ "port": 0 }] }],
    });
    let closed = decode(&spec).unwrap_err().closed.unwrap();
    assert_eq!((closed.ingress, closed.egress), (None, Some(Vec::new())));
    assert!(!closed.subjects.matches(&Labels::new()));
}

#[test]
fn a_field_of_the_wrong_type_isolates_the_namespace() {
    let invalid =
        decode(&json!({ "podSelector": {}, "ingress": [{ "ports": [{ "endPort": "x" }] }] })).unwrap_err();
    assert_eq!(invalid.error.field, "spec.ingress[0].ports[0].endPort");
    let closed = invalid.closed.unwrap();
    assert_eq!((closed.namespace.as_str(), closed.egress), ("shop", Some(Vec::new())));
    for nameless in [json!({}), json!({ "metadata": 5 }), json!([]), json!({ "spec": { "ingress": 5 } })] {
        assert_eq!(NetworkPolicy::decode(nameless).unwrap_err().closed, None);
    }
}
