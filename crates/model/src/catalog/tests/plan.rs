use proptest::prelude::*;
use serde_json::{Value, json};

use super::{body, catalog, empty, object, rules};
use crate::document::Document;
use crate::{ClusterObject, StepAction};

fn documents(list: &[Value]) -> Vec<Document> {
    let document = |(i, body): (usize, &Value)| Document { origin: format!("f:{i}"), body: body.clone() };
    list.iter().enumerate().map(document).collect()
}

fn world() -> Vec<Value> {
    vec![
        body("Share", "red", "s", &json!({ "group": "b", "with": ["pink"] })),
        body(
            "Policy",
            "red",
            "to-a",
            &json!({ "rules": [{ "direction": "in", "peer": { "group": "a" }, "action": "deny" }] }),
        ),
        body("Group", "red", "a", &json!({ "network": "n", "policies": ["to-b"], "profile": "p" })),
        body("Group", "red", "b", &json!({ "network": "n", "policies": ["to-a"] })),
        body(
            "Policy",
            "red",
            "to-b",
            &json!({ "rules": [{ "direction": "in", "peer": { "group": "b" }, "action": "deny" }] }),
        ),
        body("Profile", "red", "p", &json!({ "dscp": 46 })),
        body("Network", "red", "n", &json!({ "subnets": ["10.9.0.0/16"] })),
        body("Tenant", "", "pink", &json!({})),
        body("Tenant", "", "red", &json!({ "defaultNetwork": "n" })),
    ]
}

#[test]
fn d_a_plan_orders_documents_that_refer_to_each_other() {
    let start = catalog();
    for documents in [documents(&world()), documents(&world().into_iter().rev().collect::<Vec<_>>())] {
        let steps = start.plan(documents, &[]).unwrap();
        let mut state = start.clone();
        for step in &steps {
            state.set(step.record.object.clone(), &[]).unwrap();
            assert_eq!(state.problems(), [], "after {step}");
        }
        for body in world() {
            let object = ClusterObject::from_document(body).unwrap();
            let found = state.get(&object.id()).unwrap().object.clone();
            let ClusterObject::Policy(_) = object else {
                assert_eq!(found, object);
                continue;
            };
            assert!(matches!(found, ClusterObject::Policy(policy) if policy.rules[0].id > 1));
        }
        let kept = state.plan(self::documents(&world()), &[]).unwrap();
        assert!(kept.iter().all(|step| step.action == StepAction::Keep), "{kept:#?}");
        assert_eq!(kept.len(), world().len());
    }
}

#[test]
fn d_the_steps_of_a_plan_print_themselves() {
    let list = [
        body("Tenant", "", "red", &json!({ "defaultNetwork": "n" })),
        body("Network", "red", "n", &json!({ "subnets": ["10.9.0.0/16"] })),
    ];
    let steps = empty().plan(documents(&list), &[]).unwrap();
    let texts: Vec<String> = steps.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["create tenant red", "create network n of tenant red", "update tenant red"]);
}

#[test]
fn d_a_plan_reports_all_errors_with_their_documents_and_changes_nothing() {
    let list = [
        body("Group", "blue", "x", &json!({ "network": "nope" })),
        json!({ "kind": "Group" }),
        body("Tenant", "", "red", &json!({})),
        body("Tenant", "", "red", &json!({})),
        body("Network", "red", "n", &json!({ "subnets": ["10.1.4.0/22"], "blockMargin": 4 })),
        body("Group", "red", "Y", &json!({ "network": "n" })),
        body("Group", "red", "z", &json!({ "network": "n", "pool": [] })),
    ];
    let errors = catalog().plan(documents(&list), &[]).unwrap_err();
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    for expected in [
        "f:0: group x of tenant blue: spec.network: network nope",
        "f:1: apiVersion: is missing",
        "f:3: tenant red: it is described twice; the first description is f:2",
        "f:4: network n of tenant red: spec.subnets[0]: 10.1.4.0/22 overlaps",
        "f:5: metadata.name: \"Y\"",
        "f:6: group z of tenant red: spec.pool: unknown field; did you mean \"pools\"?",
    ] {
        assert!(texts.iter().any(|text| text.starts_with(expected)), "{expected}: {texts:#?}");
    }
    assert_eq!(texts.len(), 6, "{texts:#?}");
}

#[test]
fn d_a_plan_frees_addresses_before_it_uses_them() {
    let list = [
        body("Network", "blue", "a", &json!({ "subnets": ["10.2.0.0/16"] })),
        body("Network", "blue", "back", &json!({ "subnets": ["10.3.0.0/16"] })),
    ];
    let steps = catalog().plan(documents(&list), &[]).unwrap();
    assert_eq!(steps[0].to_string(), "update network back of tenant blue");
    let swapped = [
        body("Network", "blue", "other", &json!({ "subnets": ["10.2.0.0/16"] })),
        body("Network", "blue", "back", &json!({ "subnets": ["10.5.0.0/16"] })),
    ];
    let mut state = catalog();
    state.set(object("Network", "blue", "other", &json!({ "subnets": ["10.5.0.0/16"] })), &[]).unwrap();
    let errors = state.plan(documents(&swapped), &[]).unwrap_err();
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert!(
        texts[0].contains("overlaps") && texts[0].ends_with("in two steps"),
        "one step cannot exchange them: {texts:#?}"
    );
}

#[test]
fn d_a_plan_without_an_order_ends_with_an_error() {
    let network = |name: &str, subnet: &str| body("Network", "blue", name, &json!({ "subnets": [subnet] }));
    let mut state = catalog();
    state.set(ClusterObject::from_document(network("other", "10.5.0.0/16")).unwrap(), &[]).unwrap();
    let list = [
        body("Tenant", "", "blue", &json!({ "defaultNetwork": "new" })),
        network("new", "10.2.128.0/17"),
        network("back", "10.5.0.0/17"),
        network("other", "10.2.0.0/17"),
    ];
    let errors = state.plan(documents(&list), &[]).unwrap_err();
    assert_eq!(errors.len(), 4, "{errors:#?}");
    assert!(errors.iter().all(|error| error.to_string().ends_with("in two steps")), "{errors:#?}");
}

#[test]
fn d_ids_in_documents_are_not_given_to_other_rules_of_the_plan() {
    let rule = |id: Value| json!({ "rules": [{ "id": id, "direction": "in", "action": "deny" }] });
    let list =
        [body("Policy", "blue", "a", &rule(Value::Null)), body("Policy", "blue", "b", &rule(json!(2)))];
    let steps = catalog().plan(documents(&list), &[]).unwrap();
    let mut state = catalog();
    for step in &steps {
        state.accept(step);
    }
    assert_eq!((rules(&state, "a"), rules(&state, "b")), (vec![(3, 1)], vec![(2, 1)]));
    assert!(steps.iter().all(|step| step.counter.is_some()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn d_documents_in_any_order_have_the_same_result(list in Just(world()).prop_shuffle()) {
        let mut state = catalog();
        for step in state.plan(documents(&list), &[]).unwrap() {
            state.set(step.record.object.clone(), &[]).unwrap();
            prop_assert_eq!(state.problems(), []);
        }
        let again = state.plan(documents(&list), &[]).unwrap();
        prop_assert!(again.iter().all(|step| step.action == StepAction::Keep));
    }
}
