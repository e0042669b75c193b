//! Commands that are killed or interrupted: the next one finds a lab that works.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use testkit::{DEADLINE, wait_until};

use crate::common::{Lab, has, texts};

/// What agents may take to see a change, on a machine that is busy with other tests.
const SOON: Duration = DEADLINE;

fn begin(lab: &Lab, args: &[&str]) -> Child {
    lab.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn pods_on_node(lab: &Lab, node: &str) -> usize {
    let text = lab.ok(&["exec", node, "--", "podwire", "pods", "-o", "json"]);
    let pods: serde_json::Value = serde_json::from_str(&text).unwrap();
    pods["attachments"].as_array().unwrap_or_else(|| panic!("{pods}")).len()
}

#[test]
fn a_pod_that_nobody_waits_for_any_more_goes() {
    let lab = Lab::new("podkill");
    lab.ok(&["up", "--nodes", "1"]);
    lab.ok(&["kill", "agent", "n1"]);
    let plugin = || lab.traces_of("CNI_CONTAINERID");
    // The plugin waits for the agent, and lives on when its caller is killed.
    let mut add = begin(&lab, &["pod", "add", "n1"]);
    wait_until("the plugin", SOON, || Ok(plugin() == 1)).unwrap();
    add.kill().unwrap();
    add.wait().unwrap();
    lab.ok(&["start", "agent", "n1"]);
    assert_eq!(plugin(), 0);
    assert_eq!(lab.namespaces().count(), 4, "underlay, etcd1, n1 and its first pod");
    has(&lab.ok(&["pod", "add", "n1"]), &["pod p2 on n1"]);
    wait_until("two pods on n1", SOON, || Ok(pods_on_node(&lab, "n1") == 2)).unwrap();
    assert!(lab.run(&["test"]).status.success());
}

#[test]
fn a_node_that_was_half_killed_can_be_killed_and_started() {
    let lab = Lab::new("nodekill");
    lab.ok(&["up", "--nodes", "2"]);
    for (round, wait) in [1, 5, 10, 20, 40, 80].into_iter().enumerate() {
        for words in [["kill", "node", "n2"], ["start", "node", "n2"]] {
            let mut half = begin(&lab, &words);
            let end = Instant::now() + Duration::from_millis(wait);
            while Instant::now() < end && half.try_wait().unwrap().is_none() {
                std::thread::yield_now();
            }
            half.kill().unwrap();
            half.wait().unwrap();
        }
        let is_up = || lab.json(&["status"])["nodes"][1]["link"] == "up";
        if is_up() {
            lab.ok(&["kill", "node", "n2"]);
        }
        has(&lab.fails(&["kill", "node", "n2"]), &["is killed already"]);
        assert!(!lab.namespaces().any(|name| name.contains("-n2")), "round {round}");
        has(&lab.ok(&["pod", "add", "n1"]), &[&format!("pod p{} on n1", round + 3)]);
        lab.ok(&["start", "node", "n2"]);
        assert!(is_up() && lab.run(&["status"]).status.success());
        let pods = lab.json(&["status"])["pods"].as_array().unwrap().len();
        assert_eq!(pods, round + 3, "p2 is back");
    }
    wait_until("all to be reached", SOON, || Ok(lab.run(&["test", "--timeout", "1"]).status.success()))
        .unwrap();
}

#[test]
fn an_up_that_is_interrupted_leaves_nothing() {
    // While hosts are made, and while agents start.
    for (signal, label, word) in [(Signal::INT, "sigint", "-n3"), (Signal::TERM, "sigterm", "agents")] {
        let lab = Lab::new(label);
        let up = begin(&lab, &["up", "--nodes", "12"]);
        let agents = lab.dir().join("n2/agent.log");
        wait_until("it to be under way", SOON, || {
            Ok(lab.namespaces().any(|name| name.ends_with(word)) || agents.exists())
        })
        .unwrap();
        kill_process(Pid::from_child(&up), signal).unwrap();
        let output = up.wait_with_output().unwrap();
        let (out, err) = texts(&output);
        assert_eq!(output.status.code(), Some(1), "{out}{err}");
        has(&err, &["nothing of it is left", "interrupted"]);
        assert_eq!(lab.traces(), [] as [String; 0]);
    }
}

#[test]
fn a_process_that_ended_by_itself_is_told() {
    let lab = Lab::new("ended");
    lab.ok(&["up", "--nodes", "2"]);
    lab.ok(&["kill", "agent", "n1"]);
    let pid = lab.json(&["status"])["nodes"][1]["pid"].as_i64().unwrap();
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    wait_until("its end", SOON, || Ok(lab.json(&["status"])["nodes"][1]["agent"] == "notRunning")).unwrap();
    has(&lab.ok(&["down"]), &["is removed: 1 process (1 process had ended before), 6 namespaces"]);
}
