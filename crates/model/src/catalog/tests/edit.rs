//! Changes of single rules, new objects, removals of several objects, and values that cannot be read.

use super::*;

fn edit(add: &[Value], remove: &[u32]) -> PolicyEdit {
    let policy = id(ObjectKind::Policy, "blue", "to-db");
    PolicyEdit { policy, add: add.to_vec(), remove: remove.to_vec() }
}

fn apply(catalog: &mut Catalog, edit: &PolicyEdit) -> Vec<u32> {
    let document = catalog.edited(edit).unwrap();
    for step in catalog.plan(vec![document], &[]).unwrap() {
        catalog.set(step.record.object, &[]).unwrap();
    }
    catalog.policies().next().unwrap().rules.iter().map(|rule| rule.id).collect()
}

#[test]
fn d_rules_are_added_and_removed_without_a_change_of_others() {
    let mut catalog = catalog();
    let [web, any] = [json!({ "group": "web" }), json!("any")]
        .map(|peer| json!({ "direction": "in", "peer": peer, "action": "allow" }));
    assert_eq!(apply(&mut catalog, &edit(&[web.clone(), any], &[])), [1, 2, 3]);
    assert_eq!(apply(&mut catalog, &edit(&[], &[2])), [1, 3]);
    // The id of a removed rule is not used again.
    assert_eq!(apply(&mut catalog, &edit(&[web], &[])), [1, 3, 4]);
    assert_eq!(apply(&mut catalog, &edit(&[], &[1, 3, 4])), [] as [u32; 0]);
}

#[test]
fn d_edits_of_rules_that_cannot_be_made_are_refused_with_the_reason() {
    let mut catalog = catalog();
    let error = |catalog: &Catalog, edit: PolicyEdit| match catalog.edited(&edit) {
        Ok(document) => catalog.plan(vec![document], &[]).unwrap_err()[0].to_string(),
        Err(error) => error.to_string(),
    };
    let same = json!({ "direction": "out", "peer": { "group": "db" }, "action": "deny" });
    let mut with_id = same.clone();
    with_id["id"] = 7.into();
    let unknown = json!({ "direction": "out", "peer": { "group": "dbb" }, "action": "deny" });
    for (edit, expected) in [
        (edit(&[], &[9]), "policy to-db of tenant blue: it has no rule 9; its only rule is 1"),
        (edit(std::slice::from_ref(&same), &[]), "policy to-db of tenant blue: rule 1 is the same"),
        (edit(&[with_id], &[]), "the store assigns the id"),
        (
            edit(&[unknown], &[]),
            "spec.rules[1].peer.group: group dbb of tenant blue does not exist; the groups of tenant blue are: db, web",
        ),
        (
            edit(&[json!({ "direction": "up" })], &[]),
            "spec.rules[1].direction: \"up\" is not allowed: in or out",
        ),
        (
            PolicyEdit { policy: id(ObjectKind::Policy, "blue", "to-bd"), ..edit(&[], &[]) },
            "did you mean to-db?",
        ),
    ] {
        let found = error(&catalog, edit);
        assert!(found.contains(expected), "{found}");
    }
    // A value of another program is not replaced by the last valid version.
    let policy = id(ObjectKind::Policy, "blue", "to-db");
    catalog
        .observe(
            &policy,
            br#"{"schema":1,"policy":{"metadata":{"name":"to-db","tenant":"blue"},"spec":{"rules":1}}}"#,
        )
        .unwrap_err();
    let found = error(&catalog, edit(&[same], &[]));
    assert!(found.contains("spec.rules: 1 is not allowed") && found.contains("podwire apply"), "{found}");
}

#[test]
fn d_an_object_that_exists_is_not_created_again() {
    let mut catalog = catalog();
    let [web, new] = ["web", "new"].map(|name| id(ObjectKind::Group, "blue", name));
    assert_eq!(catalog.must_be_new(std::slice::from_ref(&new)), Ok(()));
    let errors = catalog.must_be_new(&[new.clone(), web]).unwrap_err();
    assert_eq!(errors.len(), 1);
    assert!(errors[0].to_string().contains("group web of tenant blue: it exists already"), "{}", errors[0]);
    catalog.observe(&new, b"{").unwrap_err();
    assert!(catalog.must_be_new(&[new]).is_err(), "a value that cannot be read is not replaced");
    assert!(catalog.must_be_new(&[ObjectId::tenant(&TenantName::default())]).is_err());
}

#[test]
fn d_objects_that_need_each_other_are_removed_together() {
    let mut catalog = catalog();
    // Tenant and network, group and policy.
    catalog.set(object("Tenant", "", "blue", &json!({ "defaultNetwork": "front" })), &[]).unwrap();
    let rule = json!({ "direction": "in", "peer": { "group": "web" }, "action": "deny" });
    catalog.set(object("Policy", "blue", "to-db", &json!({ "rules": [rule] })), &[]).unwrap();
    let blue: Vec<ObjectId> = catalog
        .records()
        .map(|(id, _)| id.clone())
        .filter(|id| id.tenant_name().as_str() == "blue")
        .collect();
    let pods = [placement("blue", "front", Some("web"))];
    assert!(catalog.removal_order(&blue, &pods).is_err());
    let order = catalog.removal_order(&blue, &[]).unwrap();
    assert_eq!(order.iter().collect::<BTreeSet<_>>(), blue.iter().collect());
    let position = |kind, name| order.iter().position(|it| *it == id(kind, "blue", name)).unwrap();
    assert!(position(ObjectKind::Share, "db") < position(ObjectKind::Group, "db"));
    assert!(position(ObjectKind::Group, "db") < position(ObjectKind::Network, "back"));
    // Not without one of them.
    let part = [id(ObjectKind::Group, "blue", "web"), id(ObjectKind::Share, "blue", "db")];
    let errors = catalog.removal_order(&part, &[]).unwrap_err();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].to_string().contains("in use by policy to-db of tenant blue"), "{}", errors[0]);
}

#[test]
fn d_an_unreadable_object_keeps_its_tenant_and_is_named_by_objects_that_need_it() {
    let mut catalog = catalog();
    let broken = id(ObjectKind::Policy, "green", "p");
    catalog.observe(&broken, b"{").unwrap_err();
    let error = catalog.clone().remove(&id(ObjectKind::Tenant, "", "green"), &[]).unwrap_err().to_string();
    assert!(error.contains("in use by policy p of tenant green, share db of tenant blue"), "{error}");
    catalog.set(object("Network", "green", "n", &json!({ "subnets": ["10.9.0.0/16"] })), &[]).unwrap();
    let group = object("Group", "green", "g", &json!({ "network": "n", "policies": ["p"] }));
    let error = catalog.set(group, &[]).unwrap_err().to_string();
    assert!(
        error.contains("spec.policies[0]: policy p of tenant green cannot be used: a policy cannot be read"),
        "{error}"
    );
    // A listing without it ends it.
    let listed: BTreeSet<ObjectId> = catalog.records().map(|(id, _)| id.clone()).collect();
    catalog.retain(&listed);
    assert_eq!(catalog.invalid().count(), 0);
}

#[test]
fn d_objects_apply_to_pods_by_name_or_through_their_group() {
    let catalog = catalog();
    let web = placement("blue", "front", Some("web"));
    let all: Vec<String> = catalog
        .records()
        .map(|(id, _)| id)
        .filter(|id| catalog.applies_to(id, &web))
        .map(|id| format!("{} {}", id.kind(), id.name()))
        .collect();
    assert_eq!(all, ["tenant blue", "network front", "profile slow", "group web", "policy to-db"]);
    let db = placement("blue", "back", Some("db"));
    assert!(catalog.applies_to(&id(ObjectKind::Share, "blue", "db"), &db));
    assert!(!catalog.applies_to(&id(ObjectKind::Policy, "blue", "to-db"), &db));
}
