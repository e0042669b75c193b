use serde_json::{Value, json};

use types::Protocol;

use super::*;
use crate::DecodeError;
use crate::objects::{Direction, GroupPeer, PortRange, RuleAction, RuleProtocol, SharedPart, TrafficLimit};

#[expect(clippy::needless_pass_by_value, reason = "callers pass json!")]
pub(crate) fn document(kind: &str, name: &str, spec: Value) -> Value {
    let metadata = match kind {
        "Tenant" => json!({ "name": name }),
        _owned => json!({ "name": name, "tenant": "blue" }),
    };
    json!({ "apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec })
}

fn read(kind: &str, spec: Value) -> Result<ClusterObject, FieldError> {
    ClusterObject::from_document(document(kind, "web", spec))
}

/// The error for each spec starts with the field and contains the texts.
fn refused(kind: &str, cases: &[(Value, &[&str])]) {
    for (spec, texts) in cases {
        let error = read(kind, spec.clone()).expect_err(&spec.to_string()).to_string();
        assert!(error.starts_with(texts[0]), "{spec}: {error}");
        assert!(texts.iter().all(|text| error.contains(text)), "{spec}: {error}");
        assert!(error.len() < 500 && !error.contains(char::is_control), "{error:?}");
    }
}

fn samples() -> Vec<Value> {
    let rules = json!([
        { "id": 7, "direction": "in", "priority": 100, "peer": { "group": "db" }, "protocol": "tcp", "port": 80, "action": "allow" },
        { "id": 8, "direction": "out", "priority": 1, "peer": { "cidr": "10.0.0.0/8" }, "protocol": "udp", "port": "53-60", "action": "deny" },
        { "id": 9, "direction": "in", "priority": 1, "peer": { "network": "front" }, "protocol": 47, "action": "deny" },
        { "id": 10, "direction": "in", "priority": 1, "peer": "any", "protocol": "icmp", "action": "allow" },
    ]);
    vec![
        document("Tenant", "blue", json!({ "nodes": "deny", "defaultNetwork": "front" })),
        document(
            "Network",
            "front",
            json!({ "subnets": ["10.1.0.0/16", "fd00:1::/64"], "blockMargin": 8, "mtu": 1400, "masquerade": false, "nodes": ["n1", "n2.example.org"] }),
        ),
        document(
            "Profile",
            "slow",
            json!({ "ingress": { "rate": 100_000_000, "burst": 2_000_000 }, "dscp": 46 }),
        ),
        document(
            "Group",
            "web",
            json!({ "network": "front", "pools": ["10.1.8.0/24"], "policies": ["from-db"], "profile": "slow" }),
        ),
        document("Policy", "from-db", json!({ "rules": rules })),
        document(
            "Share",
            "dns",
            json!({ "group": "dns", "with": ["green"], "ports": ["udp/53", "tcp/5000-5100", "sctp"] }),
        ),
    ]
}

#[test]
fn d_all_kinds_round_trip_as_documents_and_in_the_store() {
    for document in samples() {
        let object = ClusterObject::from_document(document.clone()).unwrap();
        assert_eq!(object.to_document(), document);
        assert_eq!(object.clone().checked(), Ok(object.clone()));
        assert_eq!(described(&document), Some(object.id()));
        let stored = ObjectRecord::from(object);
        let id = stored.object.id();
        assert_eq!(ObjectRecord::decode(&id, &stored.encode()), Ok(stored), "{id}");
    }
}

#[test]
fn b10_defaults_are_filled_in() {
    let bare = json!({ "apiVersion": API_VERSION, "kind": "Group", "metadata": { "name": "web" }, "spec": { "network": "front" } });
    let ClusterObject::Group(group) = ClusterObject::from_document(bare).unwrap() else { panic!() };
    assert_eq!(group.group.tenant.as_str(), "default");
    assert!(group.pools.is_empty() && group.group.policies.is_empty() && group.profile.is_none());
    let ClusterObject::Network(network) = read("Network", json!({ "subnets": ["10.1.0.0/16"] })).unwrap()
    else {
        panic!()
    };
    assert_eq!((network.margin, network.mtu, network.masquerade), (8, None, true));
    assert!(network.includes_node(&"any".try_into().unwrap()));
    let rule = json!({ "direction": "out", "action": "deny" });
    let ClusterObject::Policy(policy) = read("Policy", json!({ "rules": [rule] })).unwrap() else { panic!() };
    let rule = &policy.rules[0];
    assert_eq!((rule.id, rule.priority, rule.direction), (0, 1, Direction::Egress));
    assert_eq!((&rule.peer, rule.protocol, rule.ports), (&GroupPeer::Any, RuleProtocol::Any, None));
    let ClusterObject::Tenant(tenant) = read("Tenant", json!({})).unwrap() else { panic!() };
    assert_eq!((tenant.nodes, tenant.default_network), (crate::objects::NodeAccess::Allow, None));
}

#[test]
fn d_names_are_dns_labels() {
    for name in ["", "Web", "a.b", "a_b", "-a", "a-", "a b", "ä", &"a".repeat(64), "a\u{1b}[2J"] {
        for (metadata, field) in [
            (json!({ "name": name }), "metadata.name"),
            (json!({ "name": "a", "tenant": name }), "metadata.tenant"),
        ] {
            let bad =
                json!({ "apiVersion": API_VERSION, "kind": "Policy", "metadata": metadata, "spec": {} });
            let error = ClusterObject::from_document(bad).unwrap_err();
            assert_eq!(error.field, field, "{name}");
            assert!(error.reason.contains("1 to 63 lower-case letters"), "{error}");
        }
    }
    assert!(ObjectId::parse(ObjectKind::Group, "blue", "web-1").is_ok());
    assert!(ObjectId::parse(ObjectKind::Group, "Blue", "web-1").is_err());
}

#[test]
fn d_unknown_fields_in_documents_are_errors_with_the_closest_name() {
    let top = json!({ "apiVersion": API_VERSION, "kind": "Tenant", "metadata": { "name": "a" }, "sepc": {} });
    assert_eq!(
        ClusterObject::from_document(top).unwrap_err().to_string(),
        "sepc: unknown field; did you mean \"spec\"?"
    );
    let rule = json!({ "direction": "in", "action": "deny", "prioritty": 5 });
    for (kind, spec, expected) in [
        ("Group", json!({ "network": "a", "pool": [] }), "spec.pool: unknown field; did you mean \"pools\"?"),
        (
            "Policy",
            json!({ "rules": [rule] }),
            "spec.rules[0].prioritty: unknown field; did you mean \"priority\"?",
        ),
        (
            "Profile",
            json!({ "ingress": { "rate": 9000, "brust": 1 } }),
            "spec.ingress.brust: unknown field; did you mean \"burst\"?",
        ),
        (
            "Tenant",
            json!({ "color": "red" }),
            "spec.color: unknown field; the known fields are nodes, defaultNetwork",
        ),
    ] {
        assert_eq!(read(kind, spec).unwrap_err().to_string(), expected);
    }
}

#[test]
fn d_version_and_kind_are_checked() {
    for (document, expected) in [
        (json!([]), "document: [] is not allowed: expected a mapping of fields"),
        (json!({}), "apiVersion: is missing: write podwire.io/v1alpha1"),
        (json!({ "apiVersion": "v1" }), "apiVersion: \"v1\" is not allowed: podwire.io/v1alpha1"),
        (
            json!({ "apiVersion": API_VERSION, "kind": "Gruop" }),
            "kind: \"Gruop\" is not allowed: Tenant, Network, Profile, Group, Policy, Share; did you mean Group?",
        ),
        (json!({ "apiVersion": API_VERSION, "kind": "Group" }), "metadata.name: is missing"),
        (
            json!({ "apiVersion": API_VERSION, "kind": "Tenant", "metadata": { "name": "a", "tenant": "b" } }),
            "metadata.tenant: unknown field; the known fields are name",
        ),
    ] {
        assert_eq!(ClusterObject::from_document(document).unwrap_err().to_string(), expected);
    }
}

#[test]
fn d_tenants_and_groups_are_checked() {
    refused(
        "Tenant",
        &[
            (json!({ "nodes": "maybe" }), &["spec.nodes", "\"maybe\"", "allow or deny"]),
            (json!({ "defaultNetwork": "A" }), &["spec.defaultNetwork", "\"A\""]),
            (json!({ "defaultNetwork": 5 }), &["spec.defaultNetwork", "5", "expected a string"]),
        ],
    );
    refused(
        "Group",
        &[
            (json!({}), &["spec.network: is missing"]),
            (
                json!({ "network": "a", "pools": ["10.1.0.0/24", "10.1.0.128/25"] }),
                &["spec.pools[1]", "10.1.0.128/25 overlaps 10.1.0.0/24"],
            ),
            (
                json!({ "network": "a", "pools": ["10.1.0.1/24"] }),
                &["spec.pools[0]", "10.1.0.1/24", "write 10.1.0.0/24"],
            ),
            (
                json!({ "network": "a", "pools": ["10.1.0.0"] }),
                &["spec.pools[0]", "\"10.1.0.0\"", "expected a CIDR"],
            ),
            (json!({ "network": "a", "pools": "10.1.0.0/24" }), &["spec.pools", "expected a list"]),
            (json!({ "network": "a", "policies": ["p", "p"] }), &["spec.policies[1]", "listed twice"]),
        ],
    );
}

#[test]
fn d_networks_are_checked() {
    refused(
        "Network",
        &[
            (json!({}), &["spec.subnets: is missing"]),
            (
                json!({ "subnets": ["10.1.0.0/16", "10.2.0.0/16"] }),
                &["spec.subnets[1]", "second IPv4 subnet beside 10.1.0.0/16"],
            ),
            (json!({ "subnets": ["10.1.0.0/30"], "blockMargin": 0 }), &["spec.subnets[0]", "at most /29"]),
            (json!({ "subnets": ["10.1.0.0/24"] }), &["spec.subnets[0]", "margin of 8 bits"]),
            (json!({ "subnets": ["127.0.0.0/16"] }), &["spec.subnets[0]", "a loopback"]),
            (json!({ "subnets": ["fd00::/64"], "mtu": 1279 }), &["spec.mtu", "1279", "1280 to 65535"]),
            (json!({ "subnets": ["10.1.0.0/16"], "mtu": 67 }), &["spec.mtu", "68 to 65535"]),
            (
                json!({ "subnets": ["10.1.0.0/16"], "blockMargin": 33 }),
                &["spec.blockMargin", "33", "0 to 32"],
            ),
            (
                json!({ "subnets": ["10.1.0.0/16"], "masquerade": "no" }),
                &["spec.masquerade", "true or false"],
            ),
            (json!({ "subnets": ["10.1.0.0/16"], "nodes": ["a b"] }), &["spec.nodes[0]", "a b"]),
            (json!({ "subnets": ["10.1.0.0/16"], "nodes": ["a", "a"] }), &["spec.nodes[1]", "listed twice"]),
            (
                json!({ "subnets": ["10.1.0.0/16"], "nodes": [format!("a\u{1b}{}", "x".repeat(9999))] }),
                &["spec.nodes[0]"],
            ),
        ],
    );
}

#[test]
fn d_rules_are_checked() {
    let rule = |more: Value| {
        let mut rule = json!({ "direction": "in", "action": "deny" });
        for (name, value) in more.as_object().unwrap() {
            rule[name] = value.clone();
        }
        json!({ "rules": [rule] })
    };
    refused(
        "Policy",
        &[
            (json!({ "rules": [{ "action": "deny" }] }), &["spec.rules[0].direction: is missing"]),
            (json!({ "rules": [{ "direction": "in" }] }), &["spec.rules[0].action: is missing"]),
            (json!({ "rules": [5] }), &["spec.rules[0]", "5", "expected a mapping"]),
            (rule(json!({ "direction": "both" })), &["spec.rules[0].direction", "\"both\"", "in or out"]),
            (rule(json!({ "action": "drop" })), &["spec.rules[0].action", "allow or deny"]),
            (rule(json!({ "priority": 0 })), &["spec.rules[0].priority", "0 is not", "1 to 100"]),
            (rule(json!({ "priority": 101 })), &["spec.rules[0].priority", "101"]),
            (rule(json!({ "priority": 1.5 })), &["spec.rules[0].priority", "1.5"]),
            (rule(json!({ "id": 0 })), &["spec.rules[0].id", "1 to 4294967295"]),
            (rule(json!({ "peer": "all" })), &["spec.rules[0].peer", "\"all\"", "{group: NAME}"]),
            (rule(json!({ "peer": {} })), &["spec.rules[0].peer", "exactly one of"]),
            (
                rule(json!({ "peer": { "group": "a", "cidr": "10.0.0.0/8" } })),
                &["spec.rules[0].peer", "exactly one of"],
            ),
            (rule(json!({ "peer": { "group": "A" } })), &["spec.rules[0].peer.group"]),
            (
                rule(json!({ "peer": { "cidr": "10.0.0.1/8" } })),
                &["spec.rules[0].peer.cidr", "write 10.0.0.0/8"],
            ),
            (rule(json!({ "protocol": "tpc" })), &["spec.rules[0].protocol", "\"tpc\"", "1 to 255"]),
            (rule(json!({ "protocol": 256 })), &["spec.rules[0].protocol", "256"]),
            (rule(json!({ "protocol": 0 })), &["spec.rules[0].protocol"]),
            (
                rule(json!({ "port": 80 })),
                &["spec.rules[0].port", "only rules with protocol tcp, udp or sctp"],
            ),
            (
                rule(json!({ "port": 80, "protocol": "icmp" })),
                &["spec.rules[0].port", "only rules with protocol"],
            ),
            (rule(json!({ "port": 0, "protocol": "tcp" })), &["spec.rules[0].port", "1 to 65535"]),
            (rule(json!({ "port": "90-80", "protocol": "tcp" })), &["spec.rules[0].port", "\"90-80\""]),
            (rule(json!({ "port": 65536, "protocol": "tcp" })), &["spec.rules[0].port"]),
            (rule(json!({ "port": [80], "protocol": "tcp" })), &["spec.rules[0].port"]),
        ],
    );
    let twice = json!({ "id": 5, "direction": "in", "action": "deny" });
    refused(
        "Policy",
        &[(json!({ "rules": [twice, twice] }), &["spec.rules[1].id", "5 is the id of two rules"])],
    );
}

#[test]
fn d_protocol_numbers_with_ports_are_the_named_protocols() {
    let rules = json!([
        { "direction": "in", "protocol": 6, "port": "80-80", "action": "allow" },
        { "direction": "in", "protocol": "132", "action": "allow" },
        { "direction": "in", "protocol": 89, "action": "allow" },
    ]);
    let ClusterObject::Policy(policy) = read("Policy", json!({ "rules": rules })).unwrap() else { panic!() };
    assert_eq!(policy.rules[0].protocol, RuleProtocol::WithPorts(Protocol::Tcp));
    assert_eq!(policy.rules[0].ports, Some(PortRange::single(80)));
    assert_eq!(policy.rules[1].protocol, RuleProtocol::WithPorts(Protocol::Sctp));
    assert_eq!(policy.rules[2].protocol, RuleProtocol::Number(89));
    assert_eq!(policy.rules[2].action, RuleAction::Allow);
}

#[test]
fn d_profiles_have_units_and_limits() {
    let limits = json!({ "ingress": { "rate": "100M" }, "egress": { "rate": "1G", "burst": "64k" } });
    let ClusterObject::Profile(profile) = read("Profile", limits).unwrap() else { panic!() };
    let small = read("Profile", json!({ "ingress": { "rate": 9000 } })).unwrap().to_document();
    assert_eq!(small["spec"]["ingress"]["burst"], 131_072, "at least 16 KiB");
    assert_eq!(profile.ingress, Some(TrafficLimit { rate: 100_000_000, burst: 10_000_000 }));
    assert_eq!(profile.egress, Some(TrafficLimit { rate: 1_000_000_000, burst: 64_000 }));
    refused(
        "Profile",
        &[
            (json!({ "ingress": { "burst": 5 } }), &["spec.ingress.rate: is missing"]),
            (json!({ "ingress": { "rate": 999 } }), &["spec.ingress.rate", "999", "from 1000 to"]),
            (json!({ "ingress": { "rate": "5T" } }), &["spec.ingress.rate", "\"5T\""]),
            (json!({ "ingress": { "rate": -1 } }), &["spec.ingress.rate"]),
            (json!({ "ingress": { "rate": "99999999999999999999G" } }), &["spec.ingress.rate"]),
            (json!({ "egress": { "rate": "1G", "burst": "40G" } }), &["spec.egress.burst", "34359738359"]),
            (json!({ "egress": 5 }), &["spec.egress", "expected a mapping"]),
            (json!({ "dscp": 64 }), &["spec.dscp", "64", "0 to 63"]),
        ],
    );
}

#[test]
fn d_shares_are_checked() {
    let ClusterObject::Share(share) = read("Share", json!({})).unwrap() else { panic!() };
    assert_eq!(share.part, SharedPart::AllPods);
    refused(
        "Share",
        &[
            (json!({ "network": "a", "group": "b" }), &["spec.group", "two shares"]),
            (json!({ "with": ["blue"] }), &["spec.with[0]", "blue is the owner"]),
            (json!({ "with": ["green", "green"] }), &["spec.with[1]", "listed twice"]),
            (json!({ "ports": ["icmp"] }), &["spec.ports[0]", "\"icmp\"", "tcp/80"]),
            (json!({ "ports": ["tcp/0"] }), &["spec.ports[0]", "1 to 65535"]),
            (json!({ "ports": [80] }), &["spec.ports[0]", "expected a string"]),
        ],
    );
}

/// The value of a policy that a newer version of Podwire has written, with added fields at all levels.
fn with_added_fields() -> (ObjectId, Value) {
    let document = samples().remove(4);
    let object = ClusterObject::from_document(document).unwrap();
    let mut value: Value = serde_json::from_slice(&ObjectRecord::from(object.clone()).encode()).unwrap();
    value["policy"]["metadata"]["owner"] = "ops".into();
    value["policy"]["spec"]["log"] = json!({ "rate": 5 });
    value["policy"]["spec"]["rules"][1]["comment"] = "dns".into();
    value["policy"]["spec"]["rules"][2]["peer"]["exact"] = true.into();
    (object.id(), value)
}

#[test]
fn d_an_older_version_keeps_added_fields_when_it_rewrites_an_object() {
    let (id, value) = with_added_fields();
    let mut stored = ObjectRecord::decode(&id, value.to_string().as_bytes()).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&stored.encode()).unwrap(), value, "unchanged");

    let ClusterObject::Policy(policy) = &mut stored.object else { panic!() };
    policy.rules.remove(0);
    let rule = policy.rules.remove(1);
    policy.rules.insert(0, rule);
    policy.rules[1].priority = 50;
    let written: Value = serde_json::from_slice(&stored.encode()).unwrap();
    let spec = &written["policy"]["spec"];
    assert_eq!(spec["log"], json!({ "rate": 5 }));
    assert_eq!(written["policy"]["metadata"]["owner"], "ops");
    assert_eq!((&spec["rules"][1]["id"], &spec["rules"][1]["priority"]), (&json!(8), &json!(50)));
    assert_eq!(spec["rules"][1]["comment"], "dns", "it belongs to rule 8, which has another position now");
    assert_eq!(spec["rules"][0]["peer"], json!({ "network": "front", "exact": true }));

    let ClusterObject::Policy(policy) = &mut stored.object else { panic!() };
    policy.rules.clear();
    assert!(!String::from_utf8(stored.encode()).unwrap().contains("comment"), "removed with its rule");
}

#[test]
fn d_an_object_of_a_newer_schema_is_refused() {
    let (id, mut value) = with_added_fields();
    value["schema"] = 2.into();
    assert!(ObjectRecord::decode(&id, value.to_string().as_bytes()).unwrap_err().is_newer());
}

#[test]
fn d_an_invalid_stored_object_is_refused_with_its_field() {
    let (id, mut value) = with_added_fields();
    value["policy"]["spec"]["rules"][3]["priority"] = 500.into();
    let error = ObjectRecord::decode(&id, value.to_string().as_bytes()).unwrap_err();
    let DecodeError::Field { source, .. } = error else { panic!("{error}") };
    assert_eq!(source.field, "spec.rules[3].priority");

    let (id, mut value) = with_added_fields();
    value["policy"]["spec"]["rules"][3].as_object_mut().unwrap().remove("id");
    let error = ObjectRecord::decode(&id, value.to_string().as_bytes()).unwrap_err().to_string();
    assert_eq!(error, "a policy is invalid: spec.rules[3].id: is missing");

    let (_, value) = with_added_fields();
    let other = ObjectId::parse(ObjectKind::Policy, "blue", "other").unwrap();
    let error = ObjectRecord::decode(&other, value.to_string().as_bytes()).unwrap_err().to_string();
    assert!(error.contains("policy from-db of tenant blue, but the key is that of policy other"), "{error}");
}
