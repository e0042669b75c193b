//! Conditions that reconcile reports: their severity, and how long they last.

use serde_json::{Value, json};
use testkit::{Agent, DEADLINE, wait_until};

use crate::common::Host;

/// The conditions of this code, in status.
fn found(agent: &Agent, code: &str) -> Vec<Value> {
    let status = agent.get("/v1/status").unwrap();
    let all = status["conditions"].as_array().unwrap().clone();
    all.into_iter().filter(|one| one["code"] == code).collect()
}

#[test]
fn a3_a_pod_that_cannot_be_repaired_does_not_keep_others_from_starting() {
    let host = Host::with_flags("a3pod", &["--reconcile-seconds", "1"]);
    let config = json!({
        "cniVersion": "1.1.0", "name": "other", "type": "podwire-cni", "mode": "bridge", "bridge": "other0",
        "subnet": "10.7.0.0/24,fd00:7::/64", "runDir": host.agent.run_dir(),
        "agent": host.config(&json!({}))["agent"], "logFile": host.node.log_file(),
    });
    host.plugin.add(&host.pod("a"), &config).unwrap().ok().unwrap();
    let replace = ["sh", "-c", "ip link del other0; ip link add other0 type veth peer name other1"];
    wait_until("a link of another kind", DEADLINE, || Ok(host.node.run(&replace, b"")?.success())).unwrap();
    wait_until("the condition", DEADLINE, || Ok(!found(&host.agent, "BridgeNameTaken").is_empty())).unwrap();
    let rounds = || host.agent.get("/v1/status").unwrap()["reconcile"]["rounds"].as_u64().unwrap();
    let before = rounds();
    // Also the repair of the pod fails in each of them.
    wait_until("two more rounds", DEADLINE, || Ok(rounds() > before + 1)).unwrap();
    let shown = found(&host.agent, "BridgeNameTaken");
    assert_eq!((shown.len(), &shown[0]["severity"]), (1, &json!("Degraded")), "{shown:?}");
    assert!(host.agent.is_ready(), "{shown:?}");
    host.attached("b");
}
