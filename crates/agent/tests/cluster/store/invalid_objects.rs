//! Objects that another program wrote to the store and that are invalid.

use serde_json::{Value, json};
use testkit::{Agent, Outcome, Plan};

use super::{PREFIX, StoreClient, await_problem, up_with};
use crate::common::{TIMEOUT, await_that};

fn document(kind: &str, (tenant, name): (&str, &str), spec: &Value) -> Value {
    let metadata = match kind {
        "Tenant" => json!({ "name": name }),
        _ => json!({ "name": name, "tenant": tenant }),
    };
    json!({ "apiVersion": model::API_VERSION, "kind": kind, "metadata": metadata, "spec": spec })
}

fn change(agent: &Agent, documents: &[Value]) -> (u16, Value) {
    let apply: Vec<Value> = documents.iter().map(|body| json!({ "body": body })).collect();
    let answer = agent.client().post(api::OBJECTS, &json!({ "apply": apply }), TIMEOUT).unwrap();
    (answer.status, serde_json::from_slice(&answer.body).unwrap())
}

fn podwire(agent: &Agent, command: &str) -> Outcome {
    let words = command.split(' ').chain(["--run-dir", agent.run_dir().to_str().unwrap()]);
    agent.podwire(&words.collect::<Vec<_>>()).unwrap()
}

/// The subnets of network `front` that are in force.
fn subnets(agent: &Agent) -> Value {
    agent.get("/v1/objects/networks/blue/front").map_or(Value::Null, |mut it| it["spec"]["subnets"].take())
}

#[test]
fn d_an_invalid_object_in_the_store_is_shown_and_its_last_valid_version_stays_in_force() {
    let mut cluster = up_with("badobject", &Plan { nodes: 1, ..Plan::default() }, &["n1"]);
    let front = document("Network", ("blue", "front"), &json!({ "subnets": ["10.91.0.0/16"] }));
    let blue = [document("Tenant", ("", "blue"), &json!({})), front.clone()];
    let (status, answer) = change(cluster.agent("n1").unwrap(), &blue);
    assert_eq!(status, 200, "{answer}");
    let valid = json!(["10.91.0.0/16"]);
    await_that("the network", TIMEOUT, || subnets(cluster.agent("n1").unwrap()) == valid);

    let key = format!("{PREFIX}/networks/blue.front");
    let metadata = json!({ "name": "front", "tenant": "blue" });
    let spec = json!({ "subnets": ["10.91.0.0/16"], "mtu": 7 });
    let invalid = json!({ "schema": 2, "network": { "metadata": metadata, "spec": spec } }).to_string();
    StoreClient::of(&cluster).put(&key, invalid.as_bytes());
    // Not even a value of its own kind, and never valid before.
    StoreClient::of(&cluster).put(&format!("{PREFIX}/profiles/blue.gold"), b"not JSON");
    let reason = "spec.mtu: 7 is not allowed";
    let expect_shown = |agent: &Agent| {
        await_problem(agent, &["profiles/blue.gold", "not used"]);
        await_problem(agent, &["networks/blue.front", reason, "last valid version"]);
        for command in ["network ls", "network inspect front -t blue", "get networks -t blue"] {
            let shown = podwire(agent, command);
            assert_eq!(shown.status.code(), Some(1), "{shown:?}");
            assert!(shown.stdout.contains("10.91.0.0/16"), "{shown:?}");
            let problem = format!("network front of tenant blue: {reason}");
            let is_shown = shown.stderr.contains(&problem)
                && shown.stderr.contains("the last valid version is in force");
            assert!(is_shown, "{shown:?}");
        }
        assert!(podwire(agent, "status").stdout.contains("StoreValueUnreadable"));
        let list = agent.get(api::OBJECTS).unwrap();
        let problem = list["problems"].as_array().unwrap().iter().find(|it| it["name"] == "front").unwrap();
        assert_eq!(
            (&problem["field"], &problem["inForce"]),
            (&json!("spec.mtu"), &json!("lastValid")),
            "{problem}"
        );
        let gold = podwire(agent, "profile inspect gold -t blue");
        assert!(gold.stderr.contains("profile gold of tenant blue: a profile cannot be read"), "{gold:?}");
        assert!(gold.stderr.contains("no version of it is in force"), "{gold:?}");
        assert_eq!(subnets(agent), valid);
        // Changes are checked against the version that is in force.
        let overlap = document("Network", ("blue", "back"), &json!({ "subnets": ["10.91.128.0/17"] }));
        let (status, answer) = change(agent, &[overlap]);
        assert_eq!(status, 400, "{answer}");
        assert!(
            answer["error"]
                .as_str()
                .unwrap()
                .contains("overlaps 10.91.0.0/16 of network front of tenant blue")
        );
    };
    expect_shown(cluster.agent("n1").unwrap());
    // The agent reads its saved copy first, and then the invalid value.
    cluster.agent_mut("n1").unwrap().restart().unwrap();
    cluster.agent_mut("n1").unwrap().wait_ready().unwrap();
    expect_shown(cluster.agent("n1").unwrap());
    // Also without the store.
    cluster.etcd.members[0].kill().unwrap();
    cluster.agent_mut("n1").unwrap().restart().unwrap();
    await_that("the saved network", TIMEOUT, || subnets(cluster.agent("n1").unwrap()) == valid);
    cluster.etcd.members[0].start().unwrap();
    cluster.etcd.wait_healthy().unwrap();
    cluster.agent_mut("n1").unwrap().wait_ready().unwrap();
    expect_shown(cluster.agent("n1").unwrap());
    // `podwire apply` replaces the invalid value, and `podwire delete` removes the other one.
    let agent = cluster.agent("n1").unwrap();
    let (status, answer) = change(agent, &[front]);
    assert_eq!((status, &answer["steps"][0]["action"]), (200, &json!("update")), "{answer}");
    assert!(podwire(agent, "profile rm gold -t blue").success());
    await_that("no invalid object", TIMEOUT, || {
        !podwire(agent, "status").stdout.contains("StoreValueUnreadable")
    });
    assert!(podwire(agent, "get").success());
}
