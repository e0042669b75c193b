mod edit;
mod plan;

use serde_json::{Value, json};

use super::*;
use crate::document::API_VERSION;
use crate::object::Object as _;
use crate::placement::PlacementRequest;

fn body(kind: &str, tenant: &str, name: &str, spec: &Value) -> Value {
    let metadata = match kind {
        "Tenant" => json!({ "name": name }),
        _owned => json!({ "name": name, "tenant": tenant }),
    };
    json!({ "apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec })
}

fn object(kind: &str, tenant: &str, name: &str, spec: &Value) -> ClusterObject {
    ClusterObject::from_document(body(kind, tenant, name, spec)).unwrap()
}

fn id(kind: ObjectKind, tenant: &str, name: &str) -> ObjectId {
    ObjectId::parse(kind, tenant, name).unwrap()
}

fn empty() -> Catalog {
    let subnets = ["10.83.0.0/16", "fd00:88::/64"].map(|subnet| subnet.parse().unwrap());
    Catalog::new(TenantNetwork::default_net(subnets.into(), 8))
}

/// Tenant blue with networks, groups, a policy, a profile and a share for green.
fn catalog() -> Catalog {
    let mut catalog = empty();
    for object in [
        object("Tenant", "", "blue", &json!({})),
        object("Tenant", "", "green", &json!({})),
        object("Network", "blue", "front", &json!({ "subnets": ["10.1.0.0/16", "fd00:1::/64"] })),
        object("Network", "blue", "back", &json!({ "subnets": ["10.2.0.0/16"] })),
        object("Profile", "blue", "slow", &json!({ "egress": { "rate": "10M" } })),
        object("Group", "blue", "db", &json!({ "network": "back" })),
        object(
            "Policy",
            "blue",
            "to-db",
            &json!({ "rules": [{ "direction": "out", "peer": { "group": "db" }, "action": "deny" }] }),
        ),
        object(
            "Group",
            "blue",
            "web",
            &json!({ "network": "front", "pools": ["10.1.8.0/24"], "policies": ["to-db"], "profile": "slow" }),
        ),
        object("Share", "blue", "db", &json!({ "group": "db", "with": ["green"] })),
    ] {
        catalog.set(object, &[]).unwrap();
    }
    catalog
}

fn refused(catalog: &Catalog, object: ClusterObject) -> String {
    let mut copy = catalog.clone();
    let error = copy.set(object, &[]).unwrap_err().to_string();
    assert_eq!(copy, *catalog, "a refused change changes nothing");
    error
}

fn placement(tenant: &str, network: &str, group: Option<&str>) -> Placement {
    Placement::parse(Some(tenant), Some(network), group).unwrap()
}

#[test]
fn b10_tenant_default_and_its_network_always_exist() {
    let mut catalog = empty();
    for default in [id(ObjectKind::Tenant, "", "default"), id(ObjectKind::Network, "default", "default-net")]
    {
        assert!(catalog.get(&default).is_some());
        let error = catalog.remove(&default, &[]).unwrap_err().to_string();
        assert_eq!(error, format!("{default}: it exists in every cluster and cannot be removed"));
    }
    let changed = object("Tenant", "", "default", &json!({ "nodes": "deny" }));
    assert_eq!(catalog.set(changed, &[]).unwrap().action, StepAction::Update);
    catalog.forget(&id(ObjectKind::Tenant, "", "default"));
    assert_eq!(catalog, empty(), "without a value in the store it has its first form");
    assert_eq!(catalog.problems(), []);
}

#[test]
fn d_a_missing_reference_lists_what_exists() {
    let catalog = catalog();
    let rule = |peer: Value| json!({ "rules": [{ "direction": "in", "action": "allow", "peer": peer }] });
    for (object, expected) in [
        (
            object("Group", "blue", "x", &json!({ "network": "frnt" })),
            "group x of tenant blue: spec.network: network frnt of tenant blue does not exist; did you mean front?; the networks of tenant blue are: back, front",
        ),
        (
            object("Group", "blu", "x", &json!({ "network": "front" })),
            "group x of tenant blu: metadata.tenant: tenant blu does not exist; the tenants are: blue, default, green",
        ),
        (
            object("Group", "blue", "x", &json!({ "network": "default-net" })),
            "spec.network: network default-net of tenant blue does not",
        ),
        (
            object("Group", "blue", "x", &json!({ "network": "back", "policies": ["to-bd"] })),
            "spec.policies[0]: policy to-bd of tenant blue does not exist; did you mean to-db?",
        ),
        (
            object("Group", "blue", "x", &json!({ "network": "back", "profile": "fast" })),
            "spec.profile: profile fast of tenant blue does not exist; the profiles of tenant blue are: slow",
        ),
        (
            object("Policy", "blue", "x", &rule(json!({ "group": "wbe" }))),
            "spec.rules[0].peer.group: group wbe",
        ),
        (
            object("Policy", "green", "x", &rule(json!({ "network": "front" }))),
            "spec.rules[0].peer.network: network front of tenant green does not exist; there are no networks of tenant green",
        ),
        (
            object("Share", "blue", "x", &json!({ "with": ["grene"] })),
            "spec.with[0]: tenant grene does not exist",
        ),
        (object("Share", "blue", "x", &json!({ "network": "x" })), "spec.network: network x"),
        (object("Share", "blue", "x", &json!({ "group": "x" })), "spec.group: group x"),
        (
            object("Tenant", "", "blue", &json!({ "defaultNetwork": "x" })),
            "spec.defaultNetwork: network x of tenant blue",
        ),
        (object("Network", "x", "n", &json!({ "subnets": ["10.9.0.0/16"] })), "metadata.tenant: tenant x"),
        (object("Profile", "x", "n", &json!({})), "metadata.tenant: tenant x"),
    ] {
        let error = refused(&catalog, object);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn d_subnets_are_unique_across_all_tenants() {
    let catalog = catalog();
    for (subnet, expected) in [
        ("10.1.0.0/16", "spec.subnets[0]: 10.1.0.0/16 overlaps 10.1.0.0/16 of network front of tenant blue"),
        ("10.0.0.0/8", "spec.subnets[0]: 10.0.0.0/8 overlaps 10.2.0.0/16 of network back of tenant blue"),
        ("10.83.8.0/21", "overlaps 10.83.0.0/16 of network default-net of tenant default"),
        ("fd00:1::/48", "overlaps fd00:1::/64 of network front"),
    ] {
        let error = refused(&catalog, object("Network", "green", "n", &json!({ "subnets": [subnet] })));
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn d_pools_are_inside_their_network_and_do_not_overlap() {
    let catalog = catalog();
    let group = |pool: &str| object("Group", "blue", "x", &json!({ "network": "front", "pools": [pool] }));
    let error = refused(&catalog, group("10.2.0.0/24"));
    assert!(error.ends_with("spec.pools[0]: 10.2.0.0/24 is outside of network front of tenant blue, which has 10.1.0.0/16 and fd00:1::/64"), "{error}");
    let error = refused(&catalog, group("10.1.0.0/20"));
    assert!(
        error.ends_with("spec.pools[0]: 10.1.0.0/20 overlaps 10.1.8.0/24 of group web of tenant blue"),
        "{error}"
    );
    assert!(catalog.clone().set(group("fd00:1::8000/120"), &[]).is_ok());
    let moved = object("Network", "blue", "front", &json!({ "subnets": ["10.7.0.0/16"] }));
    let error = refused(&catalog, moved);
    assert!(
        error.ends_with("spec.subnets: 10.1.8.0/24, a pool of group web of tenant blue, would be outside"),
        "{error}"
    );
}

#[test]
fn d_objects_in_use_are_not_removed_and_the_error_lists_the_users() {
    let catalog = catalog();
    let pods =
        [placement("blue", "back", Some("db")), placement("green", "x", None), placement("green", "x", None)];
    for (kind, name, users) in [
        (ObjectKind::Network, "front", "group web of tenant blue"),
        (ObjectKind::Network, "back", "group db of tenant blue, 1 pod"),
        (ObjectKind::Group, "db", "policy to-db of tenant blue, share db of tenant blue, 1 pod"),
        (ObjectKind::Policy, "to-db", "group web of tenant blue"),
        (ObjectKind::Profile, "slow", "group web of tenant blue"),
        (ObjectKind::Tenant, "green", "share db of tenant blue, 2 pods"),
    ] {
        let id = id(kind, "blue", name);
        let mut copy = catalog.clone();
        let error = copy.remove(&id, &pods).unwrap_err().to_string();
        assert_eq!(error, format!("{id}: it is in use by {users}"));
        assert_eq!(copy, catalog);
    }
    let tenant = catalog.users(&id(ObjectKind::Tenant, "", "blue"), &pods);
    assert_eq!((tenant.len(), tenant.last().map(String::as_str)), (8, Some("1 pod")));
    let mut copy = catalog.clone();
    for (kind, name) in [(ObjectKind::Share, "db"), (ObjectKind::Group, "web"), (ObjectKind::Policy, "to-db")]
    {
        copy.remove(&id(kind, "blue", name), &pods).unwrap();
    }
    let error = copy.remove(&id(ObjectKind::Group, "blue", "wbe"), &pods).unwrap_err().to_string();
    assert_eq!(error, "group wbe of tenant blue: it does not exist; the groups of tenant blue are: db");
}

#[test]
fn d_a_network_or_group_with_pods_keeps_its_addresses() {
    let catalog = catalog();
    let pods = [placement("blue", "back", Some("db"))];
    for (object, expected) in [
        (
            object("Network", "blue", "back", &json!({ "subnets": ["10.3.0.0/16"] })),
            "spec.subnets: cannot be changed: network back of tenant blue is in use by 1 pod",
        ),
        (
            object("Network", "blue", "back", &json!({ "subnets": ["10.2.0.0/16"], "blockMargin": 9 })),
            "spec.blockMargin: cannot be changed",
        ),
        (
            object("Group", "blue", "db", &json!({ "network": "front" })),
            "spec.network: cannot be changed: group db",
        ),
    ] {
        assert!(catalog.clone().set(object.clone(), &[]).is_ok());
        let error = catalog.clone().set(object, &pods).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let mtu = object("Network", "blue", "back", &json!({ "subnets": ["10.2.0.0/16"], "mtu": 1400 }));
    assert!(catalog.clone().set(mtu, &pods).is_ok());
}

fn rules(catalog: &Catalog, name: &str) -> Vec<(u32, u8)> {
    let policy = catalog.policies().find(|policy| policy.name == name).unwrap();
    policy.rules.iter().map(|rule| (rule.id, rule.priority)).collect()
}

fn policy(name: &str, priorities: &[u8]) -> ClusterObject {
    let rule = |priority| json!({ "direction": "in", "priority": priority, "action": "deny" });
    let rules: Vec<Value> = priorities.iter().map(rule).collect();
    object("Policy", "blue", name, &json!({ "rules": rules }))
}

#[test]
fn d_rules_keep_their_ids_and_ids_are_never_used_again() {
    let mut catalog = catalog();
    assert_eq!(rules(&catalog, "to-db"), [(1, 1)]);
    let step = catalog.set(policy("a", &[5, 6]), &[]).unwrap();
    assert_eq!((step.action, step.counter), (StepAction::Create, Some(RuleCounter { next: 4 })));
    assert_eq!(rules(&catalog, "a"), [(2, 5), (3, 6)]);
    assert_eq!(catalog.set(policy("a", &[5, 6]), &[]).unwrap().action, StepAction::Keep);
    catalog.set(policy("a", &[7, 6, 6, 5]), &[]).unwrap();
    assert_eq!(rules(&catalog, "a"), [(4, 7), (3, 6), (5, 6), (2, 5)]);
    catalog.remove(&id(ObjectKind::Policy, "blue", "a"), &[]).unwrap();
    catalog.set(policy("a", &[5]), &[]).unwrap();
    assert_eq!(rules(&catalog, "a"), [(6, 5)]);

    let mut restarted = empty();
    restarted.observe_counter(RuleCounter::decode(&RuleCounter { next: 7 }.encode()).unwrap());
    restarted.set(object("Tenant", "", "blue", &json!({})), &[]).unwrap();
    restarted.set(policy("b", &[1]), &[]).unwrap();
    assert_eq!(rules(&restarted, "b"), [(7, 1)]);
}

#[test]
fn d_an_object_that_could_not_be_read_again_is_refused() {
    let error = refused(&catalog(), policy("a", &[5; 2_000]));
    assert!(error.contains("policy a of tenant blue: spec: is too large"), "{error}");
    let mut catalog = catalog();
    let step = catalog.set(policy("a", &[5; 1_000]), &[]).unwrap();
    let id = step.record.object.id();
    assert_eq!(catalog.observe(&id, &step.record.encode()), Ok(()));
}

#[test]
fn d_a_rule_id_of_another_policy_is_refused() {
    let catalog = catalog();
    let rule = |id: u32| json!({ "rules": [{ "id": id, "direction": "in", "action": "deny" }] });
    let error = refused(&catalog, object("Policy", "green", "x", &rule(1)));
    assert!(
        error.contains("spec.rules[0].id: 1 is the id of a rule of policy to-db of tenant blue"),
        "{error}"
    );
    let mut copy = catalog.clone();
    copy.set(object("Policy", "green", "x", &rule(90)), &[]).unwrap();
    copy.set(policy("y", &[1]), &[]).unwrap();
    assert_eq!(rules(&copy, "y"), [(91, 1)]);
    copy.set(object("Policy", "green", "x", &rule(u32::MAX)), &[]).unwrap();
    let error = refused(&copy, policy("z", &[1]));
    assert!(error.contains("no id is left"), "{error}");
}

#[test]
fn d_an_invalid_stored_value_leaves_the_last_valid_version_in_force() {
    let mut catalog = catalog();
    let web = id(ObjectKind::Group, "blue", "web");
    let before = catalog.get(&web).unwrap().clone();
    let mut value: Value = serde_json::from_slice(&before.encode()).unwrap();
    value["group"]["spec"]["pools"] = json!(["10.1.8.1/24"]);
    let error = catalog.observe(&web, value.to_string().as_bytes()).unwrap_err().to_string();
    assert!(error.contains("spec.pools[0]: 10.1.8.1/24 has bits behind the prefix"), "{error}");
    assert_eq!(catalog.get(&web), Some(&before));
    assert_eq!(catalog.invalid().count(), 1);

    let mut repaired = catalog.clone();
    assert_eq!(
        repaired.set(before.object.clone(), &[]).unwrap().action,
        StepAction::Update,
        "the store has another value"
    );
    assert_eq!(repaired.invalid().count(), 0);

    value["schema"] = 2.into();
    assert!(catalog.observe(&web, value.to_string().as_bytes()).unwrap_err().is_newer());
    let error = refused(&catalog, before.object.clone());
    assert!(error.contains("group web of tenant blue: it is not overwritten: schema version 2"), "{error}");
    assert!(catalog.remove(&web, &[]).unwrap_err().to_string().contains("not overwritten"));

    catalog.observe(&web, &before.encode()).unwrap();
    assert_eq!(catalog.invalid().count(), 0);
    let unreadable = id(ObjectKind::Group, "blue", "new");
    assert!(catalog.observe(&unreadable, b"{").is_err());
    assert!(catalog.get(&unreadable).is_none());
    catalog.remove(&unreadable, &[]).unwrap();
    assert_eq!(catalog.invalid().count(), 0);
}

#[test]
fn d_a_rewritten_object_keeps_the_fields_of_newer_versions() {
    let mut catalog = catalog();
    let web = id(ObjectKind::Group, "blue", "web");
    let mut value: Value = serde_json::from_slice(&catalog.get(&web).unwrap().encode()).unwrap();
    value["group"]["spec"]["color"] = "red".into();
    catalog.observe(&web, value.to_string().as_bytes()).unwrap();
    let step = catalog.set(object("Group", "blue", "web", &json!({ "network": "front" })), &[]).unwrap();
    let written: Value = serde_json::from_slice(&step.record.encode()).unwrap();
    assert_eq!(written["group"]["spec"], json!({ "network": "front", "color": "red" }));
}

#[test]
fn d_the_store_decides_what_exists_and_problems_are_listed() {
    let mut catalog = catalog();
    catalog.forget(&id(ObjectKind::Group, "blue", "db"));
    let overlapping = object("Network", "green", "n", &json!({ "subnets": ["10.2.0.0/16"] }));
    catalog.observe(&overlapping.id(), &ObjectRecord::from(overlapping.clone()).encode()).unwrap();
    let problems: Vec<String> = catalog.problems().iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 4, "{problems:#?}");
    for text in [
        "network back of tenant blue: spec.subnets[0]",
        "network n of tenant green",
        "policy to-db",
        "share db",
    ] {
        assert!(problems.iter().any(|problem| problem.contains(text)), "{text}: {problems:#?}");
    }
}

#[test]
fn b10_labels_place_a_pod_and_unknown_names_list_existing_ones() {
    let mut catalog = catalog();
    let ask = |tenant: &str, network: &str, group: &str| {
        let word = |word: &str| Some(word.to_owned()).filter(|word| !word.is_empty());
        PlacementRequest { tenant: word(tenant), network: word(network), group: word(group) }
    };
    for (request, expected) in [
        (ask("", "", ""), Placement::default()),
        (ask("blue", "", ""), placement("blue", "default-net", None)),
        (ask("blue", "front", ""), placement("blue", "front", None)),
        (ask("blue", "", "db"), placement("blue", "back", Some("db"))),
        (ask("blue", "back", "db"), placement("blue", "back", Some("db"))),
    ] {
        assert_eq!(catalog.resolve(&request), Ok(expected));
    }
    for (request, expected) in [
        (
            ask("bleu", "", ""),
            "tenant bleu does not exist; did you mean blue?; the tenants are: blue, default, green",
        ),
        (
            ask("", "front", ""),
            "network front of tenant default does not exist; the networks of tenant default are: default-net",
        ),
        (
            ask("blue", "front", "wbe"),
            "group wbe of tenant blue does not exist; the groups of tenant blue are: db, web",
        ),
        (
            ask("blue", "front", "db"),
            "group db of tenant blue is in network back, but the pod asks for network front",
        ),
        (ask("a b", "", ""), "tenant \"a b\" is invalid"),
    ] {
        let error = catalog.resolve(&request).unwrap_err().to_string();
        assert!(error.starts_with("the pod cannot be placed: ") && error.contains(expected), "{error}");
    }
    catalog.set(object("Tenant", "", "blue", &json!({ "defaultNetwork": "front" })), &[]).unwrap();
    assert_eq!(catalog.resolve(&ask("blue", "", "")), Ok(placement("blue", "front", None)));
    let web = placement("blue", "front", Some("web"));
    assert_eq!(catalog.profile_of(&web).map(|profile| profile.name.as_str()), Some("slow"));
    assert_eq!(catalog.profile_of(&placement("blue", "front", None)), None);
}
