//! A lab from creation to removal, with faults.

use std::process::Command;

use serde_json::Value;
use testkit::{DEADLINE, wait_until};

use crate::common::{Lab, has, texts};

fn all_reachable(lab: &Lab) -> bool {
    lab.run(&["test", "--timeout", "1"]).status.success()
}

fn host_network() -> String {
    let out =
        |args: &[&str]| String::from_utf8(Command::new("ip").args(args).output().unwrap().stdout).unwrap();
    out(&["-br", "link"]) + &out(&["route"]) + &out(&["-6", "route"])
}

#[test]
fn a_lab_of_three_nodes_works_and_is_removed() {
    let lab = Lab::new("life");
    let before = host_network();
    let output = lab.ok(&["up", "--nodes", "3"]);
    has(&output, &["3 nodes in 1 subnet, etcd with 1 member", "agents", "Up in", "test"]);
    assert_eq!(host_network(), before, "the network of the host is unchanged");

    let matrix = lab.ok(&["test"]);
    has(&matrix, &["n1  n2  n3", "●", "direct route", "6 of 6 pod-to-pod paths", "IPv4 and IPv6"]);
    let status = lab.ok(&["status"]);
    has(&status, &["n3", "10.199.1.3", "fd99:1::3", "ready", "etcd1", "leader", "p3"]);

    let table = lab.ok(&["ls"]);
    let words: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(words[0] == ["LAB", "NODES", "STATE"] && words.contains(&vec![lab.name(), "3", "up"]), "{table}");
    let status = lab.on_terminal("status");
    has(&status, &["\x1b[32mup\x1b[0m", "\x1b[32mready\x1b[0m", "\x1b[32mleader\x1b[0m"]);
    let is_narrow = |line: &str| line.replace("\x1b[32m", "").replace("\x1b[0m", "").chars().count() <= 60;
    assert!(status.lines().all(is_narrow), "{status}");
    has(&lab.on_terminal("test"), &["\x1b[32m●\x1b[0m"]);

    let p2 = lab.json(&["status"])["pods"][1].clone();
    for address in p2["addresses"].as_array().unwrap() {
        lab.ok(&["exec", "p1", "ping", "-c1", "-W2", address.as_str().unwrap()]);
    }
    assert_eq!(lab.run(&["exec", "n1", "sh", "-c", "exit 7"]).status.code(), Some(7));
    has(&lab.ok(&["exec", "n2", "podwire", "status"]), &["on n2: ready"]);

    has(&lab.ok(&["pod", "add", "n2", "web"]), &["pod web on n2"]);
    has(&lab.ok(&["pod", "add", "n2"]), &["pod p4 on n2"]);
    assert!(all_reachable(&lab));
    has(&lab.ok(&["pod", "rm", "web"]), &["pod web removed"]);
    has(&lab.fails(&["pod", "rm", "web"]), &["there is no pod web"]);
    has(&lab.fails(&["pod", "add", "n9"]), &["there is no node n9"]);

    has(&lab.ok(&["down"]), &["removed: 4 processes, 9 namespaces"]);
    assert_eq!(lab.traces(), [] as [String; 0]);
    assert_eq!(host_network(), before);
}

#[test]
fn faults_are_shown_and_can_be_undone() {
    let lab = Lab::new("faults");
    lab.ok(&["up", "--nodes", "3", "--subnets", "2"]);
    has(&lab.ok(&["test"]), &["◆ VXLAN                        4", "● direct route                 2"]);

    lab.ok(&["kill", "agent", "n1"]);
    assert!(all_reachable(&lab), "pods need no agent");
    has(&lab.fails(&["kill", "agent", "n1"]), &["is not running"]);
    let status = lab.json(&["status"]);
    assert_eq!(status["nodes"][0]["agent"], "notRunning");
    assert_eq!(lab.run(&["status"]).status.code(), Some(1));
    lab.ok(&["start", "agent", "n1"]);

    lab.ok(&["cut", "n2"]);
    let (matrix, _) = texts(&lab.run(&["test", "--timeout", "1"]));
    has(&matrix, &["✗ not reachable                4", "p1 → p2: IPv4"]);
    lab.ok(&["heal", "n2"]);
    wait_until("n2 to be reachable", DEADLINE, || Ok(all_reachable(&lab))).unwrap();

    let restart = lab.command_line("restart agent n1");
    has(&lab.fails(&["start", "agent", "n1"]), &["the agent of n1 is already running", &restart]);
    // Commands that only read do not wait for another one that changes the lab.
    let change = std::fs::File::open(lab.dir().join("lock")).unwrap();
    change.lock().unwrap();
    lab.ok(&["exec", "n1", "true"]);
    lab.ok(&["logs", "n1"]);
    assert_eq!(lab.json(&["status"])["nodes"].as_array().unwrap().len(), 3);
    drop(change);

    let etcd = lab.json(&["status"])["etcd"][0]["pid"].to_string();
    assert!(Command::new("kill").args(["-STOP", &etcd]).status().unwrap().success());
    let [kill, start] = ["kill etcd", "start etcd"].map(|args| lab.command_line(args));
    has(
        &lab.fails(&["start", "etcd"]),
        &[&format!("etcd1 runs but does not answer; restart it with: {kill} && {start}")],
    );
    lab.ok(&["kill", "etcd"]);
    assert!(all_reachable(&lab), "pods need no etcd");
    lab.ok(&["start", "etcd"]);

    lab.ok(&["kill", "node", "n3"]);
    assert_eq!(lab.json(&["status"])["pods"].as_array().unwrap().len(), 2);
    let output = lab.run(&["test"]);
    assert_eq!(output.status.code(), Some(1), "a killed node is a failure: {output:?}");
    has(
        &texts(&output).0,
        &["node n3 is down, and its pod p3 is not reachable", &lab.command_line("start node n3")],
    );
    let report = lab.json(&["test"]);
    assert_eq!(report["killedNodes"][0]["pods"][0], "p3");
    let paths = report["paths"].as_array().unwrap();
    let is_reached = |path: &Value| ["ipv4", "ipv6"].iter().all(|family| path[family]["state"] == "reached");
    assert!(paths.len() == 2 && paths.iter().all(is_reached), "paths of the other nodes: {report}");
    let wanted = format!("n3 is powered off; start it with: {}", lab.command_line("start node n3"));
    has(&lab.fails(&["exec", "n3", "ip", "link"]), &[&wanted]);
    lab.ok(&["start", "node", "n3"]);
    wait_until("n3 to be reachable", DEADLINE, || Ok(all_reachable(&lab))).unwrap();
    has(&lab.ok(&["logs", "n3"]), &["agent starting"]);
    assert_eq!(lab.ok(&["logs", "etcd1", "-n", "1"]).lines().count(), 1);
    lab.ok(&["down"]);
    assert_eq!(lab.traces(), [] as [String; 0]);
}

/// The fix of a condition in a node, as soon as both `podwire status` and `podwire doctor` show it.
fn fix_of(lab: &Lab, node: &str, code: &str) -> String {
    let fix = |command: &str, list: &str| {
        let (out, _) = texts(&lab.run(&["exec", node, "podwire", command, "-o", "json"]));
        let shown: Value = serde_json::from_str(&out).ok()?;
        let found = shown[list].as_array()?.iter().find(|one| one["code"] == code)?.clone();
        Some(found["fix"].as_str().unwrap_or_default().to_owned())
    };
    let mut shown = None;
    wait_until(code, DEADLINE, || {
        shown = fix("status", "conditions").zip(fix("doctor", "checks"));
        Ok(shown.is_some())
    })
    .unwrap();
    let (status, doctor) = shown.unwrap();
    assert_eq!(status, doctor);
    status
}

/// Runs a fix in a shell of the host with `podwire` in PATH.
fn paste(fix: &str) {
    let programs = std::path::Path::new(env!("CARGO_BIN_EXE_podwire")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let output = Command::new("sh").args(["-c", fix]).env("PATH", path).output().unwrap();
    assert!(output.status.success(), "{fix}: {output:?}");
}

#[test]
fn fixes_in_a_node_work_in_a_shell_of_the_host() {
    let lab = Lab::new("fixes");
    lab.ok(&["up", "--nodes", "2"]);
    let wait_for_ready = |name: &str| {
        let is_ready = || {
            let shown = lab.run(&["exec", "n1", "podwire", "status", "-o", "json"]);
            let status: Value = serde_json::from_str(&texts(&shown).0)?;
            Ok(status["ready"] == true && status["conditions"].as_array().is_some_and(Vec::is_empty))
        };
        wait_until(name, DEADLINE, is_ready).unwrap();
    };

    lab.ok(&["kill", "agent", "n1"]);
    let fix = fix_of(&lab, "n1", "AgentUnreachable");
    assert_eq!(fix, lab.command_line("start agent n1"));
    for command in ["status", "nodes"] {
        let (out, err) = texts(&lab.run(&["exec", "n1", "podwire", command]));
        has(&(out.clone() + &err), &[&format!("start it with `{}`", lab.command_line("start agent n1"))]);
        assert!(!out.contains("journalctl") && !err.contains("journalctl"), "{out}{err}");
    }
    paste(&fix);
    wait_for_ready("the killed agent");

    let pid = lab.json(&["status"])["nodes"][0]["pid"].to_string();
    assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
    let fix = fix_of(&lab, "n1", "AgentUnreachable");
    assert_eq!(fix, lab.command_line("restart agent n1"));
    paste(&fix);
    wait_for_ready("the stopped agent");
    // The configuration of runtimes is a file of the machine, not of the node.
    let doctor = lab.ok(&["exec", "n1", "podwire", "doctor"]);
    has(&doctor, &["skipped: this is a node of a lab", "no container runtime uses a lab node"]);

    let [start, heal, restart] =
        ["start node n2", "heal n2", "restart agent n2"].map(|args| lab.command_line(args));
    let wanted = format!("{start} || ({heal} && {restart})");
    for (fault, name) in
        [(&["kill", "node", "n2"], "the killed node"), (&["kill", "agent", "n2"], "the killed peer")]
    {
        lab.ok(fault);
        let fix = fix_of(&lab, "n1", "PeerAway");
        assert_eq!(fix, wanted);
        paste(&fix);
        wait_for_ready(name);
    }

    lab.ok(&["exec", "n1", "ip", "link", "set", "dev", "eth0", "down"]);
    let fix = fix_of(&lab, "n1", "NodeAddressMissing");
    assert_eq!(fix, lab.command_line("heal n1"));
    // The kernel has also removed addresses and routes.
    paste(&fix);
    wait_for_ready("the link of n1");

    let wanted = format!("{} && {}", lab.command_line("start etcd"), lab.command_line("heal n1"));
    for (fault, name) in [(&["kill", "etcd"], "etcd"), (&["cut", "n1"], "the link of n1")] {
        lab.ok(fault);
        let fix = fix_of(&lab, "n1", "StoreUnreachable");
        assert_eq!(fix, wanted);
        paste(&fix);
        wait_for_ready(name);
    }
}

#[test]
fn a_lab_works_with_the_embedded_store() {
    let lab = Lab::new("embedded");
    lab.ok(&["up", "--nodes", "1", "--store", "embedded", "--pods", "3"]);
    let matrix = lab.json(&["test"]);
    assert_eq!(matrix["paths"].as_array().unwrap().len(), 6);
    assert!(all_reachable(&lab));
    lab.ok(&["down"]);
}

/// Also after a power loss of the node, and after a failed ADD.
#[test]
fn d_pods_of_a_lab_have_a_tenant_and_a_group() {
    let lab = Lab::new("placed");
    lab.ok(&["up", "--nodes", "1", "--store", "embedded", "--pods", "0"]);
    lab.ok(&["exec", "n1", "podwire", "group", "create", "web", "--network", "default-net"]);
    lab.ok(&["exec", "n1", "podwire", "tenant", "create", "blue"]);
    has(
        &lab.fails(&["pod", "add", "n1", "p1", "--group", "wbe"]),
        &["group wbe of tenant default does not exist"],
    );
    let placement = |pod: &str| {
        let (out, _) = texts(&lab.run(&["exec", "n1", "podwire", "pods", "-o", "wide"]));
        let row = out.lines().find(|line| line.contains(pod)).unwrap_or_default();
        row.split_whitespace().find(|word| word.matches('/').count() == 2).unwrap_or_default().to_owned()
    };
    lab.ok(&["pod", "add", "n1", "p1"]);
    lab.ok(&["pod", "add", "n1", "web", "--group", "web"]);
    let expected = ["default/default-net/-", "default/default-net/web"];
    assert_eq!(["lab/p1", "lab/web"].map(placement), expected);
    lab.ok(&["kill", "node", "n1"]);
    lab.ok(&["start", "node", "n1"]);
    assert_eq!(["lab/p1", "lab/web"].map(placement), expected);
    lab.ok(&["pod", "rm", "web"]);
    lab.ok(&["pod", "add", "n1", "web"]);
    assert_eq!(placement("lab/web"), expected[0]);
    lab.ok(&["down"]);
}

#[test]
fn a_lab_works_without_one_of_three_etcd_members() {
    let lab = Lab::new("three");
    lab.ok(&["up", "--nodes", "2", "--etcd-members", "3"]);
    lab.ok(&["kill", "etcd", "etcd2"]);
    wait_until("a leader", DEADLINE, || {
        let members = lab.json(&["status"])["etcd"].as_array().unwrap().clone();
        Ok(members.iter().any(|member| member["state"] == "leader") && members[1]["state"] == "notRunning")
    })
    .unwrap();
    assert!(all_reachable(&lab));
    lab.ok(&["start", "etcd", "etcd2"]);
    assert!(lab.run(&["status"]).status.success());
    has(&lab.fails(&["kill", "etcd", "etcd9"]), &["etcd1 to etcd3"]);
}
