//! Conditions that reconcile reports: their severity, and how long they last.

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};
use testkit::{Agent, DEADLINE, wait_until};

use crate::common::Host;
use crate::scene::{BY_EVENTS, in_both_modes};

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

/// How often a condition began, by the log.
fn begun(agent: &Agent, code: &str) -> usize {
    let (log, code) = (agent.log().unwrap(), format!("code={code} "));
    log.lines().filter(|line| line.contains("condition began") && line.contains(&code)).count()
}

fn wait_for(agent: &Agent, code: &str) {
    wait_until(code, DEADLINE, || Ok(!found(agent, code).is_empty())).unwrap();
}

fn wait_for_end(agent: &Agent, code: &str) {
    wait_until("the end of it", DEADLINE, || Ok(found(agent, code).is_empty())).unwrap();
}

#[test]
fn a1_drift_inside_a_pod_lasts_while_rounds_do_not_look_into_pods() {
    in_both_modes(|mode| {
        let host = Host::with_flags("a1shallow", &[&BY_EVENTS[..], &["--network-mode", mode]].concat());
        let (pod, _) = host.attached("a");
        let ipv6 = |value: &str| {
            let line = format!("echo {value} > /proc/sys/net/ipv6/conf/eth0/disable_ipv6");
            pod.sh(&["sh", "-c", &line]).unwrap();
        };
        // The kernel refuses the pod's address then.
        ipv6("1");
        wait_for(&host.agent, "RepairFailed");
        let repairs = || host.agent.get("/v1/status").unwrap()["reconcile"]["repairs"].as_u64().unwrap();
        for _ in 0..3 {
            let before = repairs();
            host.node.sh(&["ip", "link", "set", "podwire0", "down"]).unwrap();
            wait_until("a round of the node", DEADLINE, || Ok(repairs() > before)).unwrap();
            assert_eq!(found(&host.agent, "RepairFailed").len(), 1, "{mode}");
        }
        assert_eq!(begun(&host.agent, "RepairFailed"), 1, "{mode}: {}", host.agent.log().unwrap());
        ipv6("0");
        // The kernel says nothing of the setting.
        pod.sh(&["ip", "address", "add", "192.0.2.7/32", "dev", "eth0"]).unwrap();
        pod.sh(&["ip", "address", "del", "192.0.2.7/32", "dev", "eth0"]).unwrap();
        wait_for_end(&host.agent, "RepairFailed");
        // Nor does it outlive its pod.
        ipv6("1");
        wait_for(&host.agent, "RepairFailed");
        host.del(&pod);
        host.node.sh(&["ip", "link", "set", "podwire0", "down"]).unwrap();
        wait_for_end(&host.agent, "RepairFailed");
    });
}

#[test]
fn a1_a_round_that_fails_does_not_end_what_the_last_one_found() {
    let host = Host::with_flags("a1failed", &["--reconcile-seconds", "1"]);
    let (pod, _) = host.attached("a");
    pod.sh(&["sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6"]).unwrap();
    wait_for(&host.agent, "RepairFailed");
    let networks = host.agent.run_dir().join("networks");
    let aside = networks.with_extension("aside");
    std::fs::write(&aside, "").unwrap();
    let exchange = || renameat_with(CWD, &networks, CWD, &aside, RenameFlags::EXCHANGE).unwrap();
    exchange();
    wait_for(&host.agent, "StateUnusable");
    assert_eq!(found(&host.agent, "RepairFailed").len(), 1);
    exchange();
    wait_for_end(&host.agent, "StateUnusable");
    assert_eq!(found(&host.agent, "RepairFailed").len(), 1);
    assert_eq!(begun(&host.agent, "RepairFailed"), 1, "{}", host.agent.log().unwrap());
}
