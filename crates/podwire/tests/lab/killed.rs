//! Commands that are killed or interrupted. The next command must find a working lab.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use testkit::{DEADLINE, wait_until};

use crate::common::{Lab, has, texts};

fn spawn(lab: &Lab, args: &[&str]) -> Child {
    lab.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn pods_on_node(lab: &Lab, node: &str) -> usize {
    let text = lab.ok(&["exec", node, "--", "podwire", "pods", "-o", "json"]);
    let pods: serde_json::Value = serde_json::from_str(&text).unwrap();
    pods["attachments"].as_array().unwrap_or_else(|| panic!("{pods}")).len()
}

#[test]
fn a_pod_of_a_killed_command_is_removed() {
    let lab = Lab::new("podkill");
    lab.ok(&["up", "--nodes", "1"]);
    lab.ok(&["kill", "agent", "n1"]);
    let plugin = || lab.traces_of("CNI_CONTAINERID");
    // The plugin waits for the agent and survives its caller.
    let mut add = spawn(&lab, &["pod", "add", "n1"]);
    wait_until("the plugin", DEADLINE, || Ok(plugin() == 1)).unwrap();
    add.kill().unwrap();
    add.wait().unwrap();
    lab.ok(&["start", "agent", "n1"]);
    assert_eq!(plugin(), 0);
    assert_eq!(lab.namespaces().count(), 4, "underlay, etcd1, n1 and its first pod");
    has(&lab.ok(&["pod", "add", "n1"]), &["pod p2 on n1"]);
    wait_until("two pods on n1", DEADLINE, || Ok(pods_on_node(&lab, "n1") == 2)).unwrap();
    assert!(lab.run(&["test"]).status.success());
}

#[test]
fn an_interrupted_kill_of_a_node_can_be_repeated() {
    let lab = Lab::new("nodekill");
    lab.ok(&["up", "--nodes", "2"]);
    for (round, wait) in [1, 5, 10, 20, 40, 80].into_iter().enumerate() {
        for words in [["kill", "node", "n2"], ["start", "node", "n2"]] {
            let mut command = spawn(&lab, &words);
            let end = Instant::now() + Duration::from_millis(wait);
            while Instant::now() < end && command.try_wait().unwrap().is_none() {
                std::thread::yield_now();
            }
            command.kill().unwrap();
            command.wait().unwrap();
        }
        let is_up = || lab.json(&["status"])["nodes"][1]["link"] == "up";
        if is_up() {
            lab.ok(&["kill", "node", "n2"]);
        }
        has(&lab.fails(&["kill", "node", "n2"]), &["is already powered off"]);
        assert!(!lab.namespaces().any(|name| name.contains("-n2")), "round {round}");
        has(&lab.ok(&["pod", "add", "n1"]), &[&format!("pod p{} on n1", round + 3)]);
        lab.ok(&["start", "node", "n2"]);
        assert!(is_up() && lab.run(&["status"]).status.success());
        let pods = lab.json(&["status"])["pods"].as_array().unwrap().len();
        assert_eq!(pods, round + 3, "p2 is attached again");
    }
    wait_until("all pods to be reachable", DEADLINE, || {
        Ok(lab.run(&["test", "--timeout", "1"]).status.success())
    })
    .unwrap();
}

#[test]
fn an_interrupted_up_removes_everything() {
    // While namespaces are created, and while agents start.
    for (signal, label, namespace) in [(Signal::INT, "sigint", Some("-n3")), (Signal::TERM, "sigterm", None)]
    {
        let lab = Lab::new(label);
        let up = spawn(&lab, &["up", "--nodes", "12"]);
        let agent_log = lab.dir().join("n2/agent.log");
        wait_until("the creation to start", DEADLINE, || {
            let is_created = |suffix| lab.namespaces().any(|name| name.ends_with(suffix));
            Ok(namespace.is_some_and(is_created) || agent_log.exists())
        })
        .unwrap();
        kill_process(Pid::from_child(&up), signal).unwrap();
        let output = up.wait_with_output().unwrap();
        let (out, err) = texts(&output);
        assert_eq!(output.status.code(), Some(1), "{out}{err}");
        has(&err, &["everything was removed", "interrupted"]);
        assert_eq!(lab.traces(), [] as [String; 0]);
    }
}

#[test]
fn an_ended_process_is_reported_by_down() {
    let lab = Lab::new("ended");
    lab.ok(&["up", "--nodes", "2"]);
    lab.ok(&["kill", "agent", "n1"]);
    let pid = lab.json(&["status"])["nodes"][1]["pid"].as_i64().unwrap();
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    wait_until("the end of the agent", DEADLINE, || {
        Ok(lab.json(&["status"])["nodes"][1]["agent"] == "notRunning")
    })
    .unwrap();
    has(&lab.ok(&["down"]), &["removed: 1 process (1 process had already ended), 6 namespaces"]);
}
