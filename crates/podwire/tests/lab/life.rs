//! The life of a lab: pods that reach each other, and what happens to them.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use testkit::{DEADLINE, wait_until};

use crate::common::{Lab, has, texts};

/// What agents may take to see a change, on a machine that is busy with other tests.
const SOON: Duration = DEADLINE;

fn all_reach(lab: &Lab) -> bool {
    lab.run(&["test", "--timeout", "1"]).status.success()
}

fn machine() -> String {
    let out =
        |args: &[&str]| String::from_utf8(Command::new("ip").args(args).output().unwrap().stdout).unwrap();
    out(&["-br", "link"]) + &out(&["route"]) + &out(&["-6", "route"])
}

#[test]
fn three_nodes_from_up_to_down() {
    let lab = Lab::new("life");
    let before = machine();
    let said = lab.ok(&["up", "--nodes", "3"]);
    has(&said, &["3 nodes in 1 subnet, etcd with 1 member", "agents", "Up in", "test"]);
    assert_eq!(machine(), before, "the machine's own network is as it was");

    let picture = lab.ok(&["test"]);
    has(&picture, &["n1  n2  n3", "●", "direct route", "6 of 6 ways", "IPv4 and IPv6"]);
    let status = lab.ok(&["status"]);
    has(&status, &["n3", "10.199.1.3", "fd99:1::3", "ready", "etcd1", "leader", "p3"]);

    let p2 = lab.json(&["status"])["pods"][1].clone();
    for address in p2["addresses"].as_array().unwrap() {
        lab.ok(&["exec", "p1", "--", "ping", "-c1", "-W2", address.as_str().unwrap()]);
    }
    assert_eq!(lab.run(&["exec", "n1", "--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    has(&lab.ok(&["exec", "n2", "--", "podwire", "status"]), &["on n2: ready"]);

    has(&lab.ok(&["pod", "add", "n2", "web"]), &["pod web on n2"]);
    has(&lab.ok(&["pod", "add", "n2"]), &["pod p4 on n2"]);
    assert!(all_reach(&lab));
    has(&lab.ok(&["pod", "rm", "web"]), &["gone"]);
    has(&lab.fails(&["pod", "rm", "web"]), &["there is no pod web"]);
    has(&lab.fails(&["pod", "add", "n9"]), &["there is no node n9"]);

    has(&lab.ok(&["down"]), &["is removed: 4 processes, 9 namespaces"]);
    assert_eq!(lab.traces(), [] as [String; 0]);
    assert_eq!(machine(), before);
}

#[test]
fn faults_and_the_ways_back() {
    let lab = Lab::new("faults");
    lab.ok(&["up", "--nodes", "3", "--subnets", "2"]);
    has(&lab.ok(&["test"]), &["◆ VXLAN                        4", "● direct route                 2"]);

    lab.ok(&["kill", "agent", "n1"]);
    assert!(all_reach(&lab), "pods need no agent");
    has(&lab.fails(&["kill", "agent", "n1"]), &["is not running"]);
    let status = lab.json(&["status"]);
    assert_eq!(status["nodes"][0]["agent"], "notRunning");
    assert_eq!(lab.run(&["status"]).status.code(), Some(1));
    lab.ok(&["start", "agent", "n1"]);

    lab.ok(&["cut", "n2"]);
    let (picture, _) = texts(&lab.run(&["test", "--timeout", "1"]));
    has(&picture, &["✗ not reached                  4", "p1 → p2: IPv4"]);
    lab.ok(&["heal", "n2"]);
    wait_until("n2 to be reached", SOON, || Ok(all_reach(&lab))).unwrap();

    lab.ok(&["kill", "etcd"]);
    assert!(all_reach(&lab), "pods need no etcd");
    lab.ok(&["start", "etcd"]);

    lab.ok(&["kill", "node", "n3"]);
    assert_eq!(lab.json(&["status"])["pods"].as_array().unwrap().len(), 2);
    let output = lab.run(&["test"]);
    assert_eq!(output.status.code(), Some(1), "a killed node is a failure: {output:?}");
    has(&texts(&output).0, &["node n3 is down, and its pod p3 is not reached", &lab.hint("start node n3")]);
    let report = lab.json(&["test"]);
    assert_eq!(report["killedNodes"][0]["pods"][0], "p3");
    let paths = report["paths"].as_array().unwrap();
    let is_reached = |path: &Value| ["ipv4", "ipv6"].iter().all(|family| path[family]["state"] == "reached");
    assert!(paths.len() == 2 && paths.iter().all(is_reached), "those that are left: {report}");
    lab.ok(&["start", "node", "n3"]);
    wait_until("n3 to be reached", SOON, || Ok(all_reach(&lab))).unwrap();
    has(&lab.ok(&["logs", "n3"]), &["the agent starts"]);
    assert_eq!(lab.ok(&["logs", "etcd1", "-n", "1"]).lines().count(), 1);
    lab.ok(&["down"]);
    assert_eq!(lab.traces(), [] as [String; 0]);
}

/// The fix of a condition that `podwire status` and `podwire doctor` show in a node, as soon as both show it.
fn fix_of(lab: &Lab, node: &str, code: &str) -> String {
    let fix = |command: &str, list: &str| {
        let (out, _) = texts(&lab.run(&["exec", node, "--", "podwire", command, "-o", "json"]));
        let shown: Value = serde_json::from_str(&out).ok()?;
        let found = shown[list].as_array()?.iter().find(|one| one["code"] == code)?.clone();
        Some(found["fix"].as_str().unwrap_or_default().to_owned())
    };
    let mut shown = None;
    wait_until(code, SOON, || {
        shown = fix("status", "conditions").zip(fix("doctor", "checks"));
        Ok(shown.is_some())
    })
    .unwrap();
    let (status, doctor) = shown.unwrap();
    assert_eq!(status, doctor);
    status
}

/// In a shell of the machine that finds `podwire`.
fn paste(fix: &str) {
    let programs = std::path::Path::new(env!("CARGO_BIN_EXE_podwire")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let output = Command::new("sh").args(["-c", fix]).env("PATH", path).output().unwrap();
    assert!(output.status.success(), "{fix}: {output:?}");
}

#[test]
fn fixes_that_are_shown_in_a_node_work_when_pasted() {
    let lab = Lab::new("fixes");
    lab.ok(&["up", "--nodes", "2"]);
    let is_ready = |what: &str| {
        let is_whole = || {
            let shown = lab.run(&["exec", "n1", "--", "podwire", "status", "-o", "json"]);
            let status: Value = serde_json::from_str(&texts(&shown).0)?;
            Ok(status["ready"] == true && status["conditions"].as_array().is_some_and(Vec::is_empty))
        };
        wait_until(what, SOON, is_whole).unwrap();
    };

    lab.ok(&["kill", "agent", "n1"]);
    let fix = fix_of(&lab, "n1", "AgentUnreachable");
    assert_eq!(fix, lab.hint("start agent n1"));
    paste(&fix);
    is_ready("the agent that was killed");

    let pid = lab.json(&["status"])["nodes"][0]["pid"].to_string();
    assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
    let fix = fix_of(&lab, "n1", "AgentUnreachable");
    assert_eq!(fix, lab.hint("restart agent n1"));
    paste(&fix);
    is_ready("the agent that hung");

    let wanted = format!("{} && {}", lab.hint("start etcd"), lab.hint("heal n1"));
    for (fault, name) in [(&["kill", "etcd"], "etcd"), (&["cut", "n1"], "the link of n1")] {
        lab.ok(fault);
        let fix = fix_of(&lab, "n1", "StoreUnreachable");
        assert_eq!(fix, wanted);
        paste(&fix);
        is_ready(name);
    }
}

#[test]
fn a_lab_on_the_embedded_store() {
    let lab = Lab::new("embedded");
    lab.ok(&["up", "--nodes", "1", "--store", "embedded", "--pods", "3"]);
    let matrix = lab.json(&["test"]);
    assert_eq!(matrix["paths"].as_array().unwrap().len(), 6);
    assert!(all_reach(&lab));
    lab.ok(&["down"]);
}

#[test]
fn an_etcd_of_three_loses_one() {
    let lab = Lab::new("three");
    lab.ok(&["up", "--nodes", "2", "--etcd-members", "3"]);
    lab.ok(&["kill", "etcd", "etcd2"]);
    wait_until("a leader", SOON, || {
        let members = lab.json(&["status"])["etcd"].as_array().unwrap().clone();
        Ok(members.iter().any(|member| member["state"] == "leader") && members[1]["state"] == "notRunning")
    })
    .unwrap();
    assert!(all_reach(&lab));
    lab.ok(&["start", "etcd", "etcd2"]);
    assert!(lab.run(&["status"]).status.success());
    has(&lab.fails(&["kill", "etcd", "etcd9"]), &["etcd1 to etcd3"]);
}
