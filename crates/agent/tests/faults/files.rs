//! The agent's socket and lock, and several agents on one node.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use testkit::{Agent, DEADLINE, Plugin, Pod, Snapshot, inspect, ping, wait_until};

use crate::common::{Host, ips, remove_dir_atomically, state_entries};

/// Waits until the agent answers on its socket again.
#[track_caller]
fn wait_for_socket(agent: &Agent) {
    wait_until("the socket to be created again", DEADLINE, || Ok(agent.is_ready())).unwrap();
}

#[test]
fn a_deleted_socket_is_created_again() {
    let host = Host::new("socket");
    for round in 0..3 {
        fs::remove_file(host.agent.socket()).unwrap();
        wait_for_socket(&host.agent);
        let (pod, _) = host.attached(&format!("p{round}"));
        host.del(&pod);
    }
    assert!(host.agent.log().unwrap().contains("removed or replaced"));
}

/// The runtime does not notice: for an ADD the plugin waits for the agent, and a DEL can become a tombstone.
#[test]
fn requests_right_after_the_removal_of_the_socket_succeed() {
    let host = Host::new("nosocket");
    fs::remove_file(host.agent.socket()).unwrap();
    let (pod, _) = host.attached("a");
    fs::remove_file(host.agent.socket()).unwrap();
    host.del(&pod);
    let is_removed = || Ok(host.state_entries().is_empty() && inspect::link(&pod, "eth0").is_err());
    wait_until("the pod to be removed", DEADLINE, is_removed).unwrap();
}

#[test]
fn a14_a_file_at_the_path_of_the_socket_is_reported_and_kept() {
    let host = Host::new("socketfile");
    let socket = host.agent.socket();
    let wait_for_reports = |times: usize| {
        let is_logged = || Ok(host.agent.log()?.matches("is not a socket of this user").count() >= times);
        wait_until("the file to be reported", DEADLINE, is_logged).unwrap();
    };
    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "not a socket").unwrap();
    wait_for_reports(1);
    assert_eq!(fs::read_to_string(&socket).unwrap(), "not a socket");
    fs::rename(&socket, socket.with_extension("moved")).unwrap();
    wait_for_socket(&host.agent);
    // A file is renamed over the socket.
    let other = socket.with_extension("other");
    fs::write(&other, "").unwrap();
    fs::rename(&other, &socket).unwrap();
    wait_for_reports(2);
    fs::remove_file(&socket).unwrap();
    wait_for_socket(&host.agent);
    let (pod, _) = host.attached("a");
    host.del(&pod);
}

#[test]
fn a_second_agent_in_one_run_directory_fails_and_names_the_first() {
    let host = Host::new("second");
    let (pod, result) = host.attached("a");
    let mut second = Agent::new(&host.node, &["--no-install"]).unwrap();
    second.launch().unwrap();
    let pid = host.agent.pid().unwrap().to_string();
    let is_logged = || Ok(second.log()?.contains("another agent"));
    wait_until("the second agent to fail", DEADLINE, is_logged).unwrap();
    wait_until("the end of the second agent", DEADLINE, || second.has_ended()).unwrap();
    let log = second.log().unwrap();
    let line = log.lines().find(|line| line.contains("another agent")).unwrap();
    for word in [pid.as_str(), "--run-dir", host.agent.run_dir().to_str().unwrap()] {
        assert!(line.contains(word), "{word}: {line}");
    }
    // The first agent still has its socket and its pod.
    assert_eq!(host.agent.get("/v1/status").unwrap()["pid"].to_string(), pid);
    host.check(&pod, &result);
}

/// A single node works without its store and reports the failure. An agent of a cluster ends.
#[test]
fn a_second_agent_with_the_same_embedded_store_names_the_first() {
    let host = Host::new("owner");
    let (pod, result) = host.attached("a");
    let store = host.node.dir().join("lib/podwire/store");
    assert!(store.join("log").exists());
    let store_flag = format!("--store-dir={}", store.display());
    let flags = [
        "--no-install",
        &store_flag,
        "--network-name=other",
        "--network-bridge=other0",
        "--network-subnet=10.99.0.0/24",
    ];
    let holder = format!("process {}", host.agent.pid().unwrap());
    let names_holder = |line: &str| [&holder, "--store-dir"].iter().all(|word| line.contains(*word));
    let has_fix = |line: &str| line.ends_with("restart the agent when the cause is removed");
    let mut single = Agent::in_dir(&host.node, &host.node.dir().join("single"), &flags).unwrap();
    single.launch().unwrap();
    wait_until("the condition", DEADLINE, || {
        let Ok(status) = single.get("/v1/status") else { return Ok(false) };
        let conditions = status["conditions"].as_array().unwrap().clone();
        let failed = conditions.iter().find(|condition| condition["code"] == "StoreFailed");
        let is_complete = |message: &str| names_holder(message) && has_fix(message);
        Ok(failed.is_some_and(|condition| is_complete(condition["message"].as_str().unwrap())))
    })
    .unwrap();
    single.stop().unwrap();
    let flags = [&flags[..], &["--network-margin=4"]].concat();
    let mut second = Agent::in_dir(&host.node, &host.node.dir().join("second"), &flags).unwrap();
    second.launch().unwrap();
    wait_until("the second agent to end", DEADLINE, || second.has_ended()).unwrap();
    let log = second.log().unwrap();
    assert!(log.lines().any(names_holder), "{log}");
    host.check(&pod, &result);
}

/// Two agents in one namespace, each with a pod.
struct Pair {
    host: Host,
    other: Agent,
    second_pod: (Pod, Value),
    first_pod: (Pod, Value),
}

impl Pair {
    fn new(label: &str, mode: &str) -> Self {
        let host = Host::with_flags(label, &["--network-mode", mode]);
        let first_pod = host.attached("first");
        let flags = [
            "--no-install",
            "--network-mode",
            mode,
            "--network-name",
            "other",
            "--network-bridge",
            "other0",
            "--network-subnet",
            "10.99.0.0/24",
            "--network-subnet",
            "fd00:99::/64",
        ];
        let other = Agent::in_dir(&host.node, &host.node.dir().join("other"), &flags).unwrap();
        let mut pair = Self { second_pod: (host.pod("second"), Value::Null), host, other, first_pod };
        pair.other.launch().unwrap();
        pair.other.wait_ready().unwrap();
        let config = pair.config();
        pair.second_pod.1 = pair.host.plugin.add(&pair.second_pod.0, &config).unwrap().ok().unwrap();
        if mode == "bridge" {
            pair.wait_for_bridges();
        }
        pair
    }

    /// The kernel creates the link-local address of a bridge some time after its first port has a carrier. It solicits IPv6
    /// neighbours only from that address.
    fn wait_for_bridges(&self) {
        let usable = |bridge: &str| {
            let show = ["ip", "-6", "-j", "address", "show", "dev", bridge, "scope", "link", "-tentative"];
            Ok(self.host.node.sh(&show)?.contains("\"local\""))
        };
        for bridge in ["podwire0", "other0"] {
            wait_until("the bridge's link-local address", DEADLINE, || usable(bridge)).unwrap();
        }
    }

    fn config(&self) -> Value {
        self.other.config(&json!({"name": "other"}))
    }

    /// Runs a round of each agent, by a restart.
    fn rounds(&mut self) {
        for agent in [&mut self.host.agent, &mut self.other] {
            agent.restart().unwrap();
        }
    }

    /// Checks both pods and their connectivity, which depends on the firewall's elements.
    #[track_caller]
    fn expect_both(&self, case: &str) {
        self.host.check(&self.first_pod.0, &self.first_pod.1);
        let plugin: &Plugin = &self.host.plugin;
        let checked = plugin.check(&self.second_pod.0, &self.config(), &self.second_pod.1).unwrap();
        assert!(checked.success(), "{case}: {checked:?}");
        for (from, to) in [(&self.first_pod, &self.second_pod), (&self.second_pod, &self.first_pod)] {
            for ip in ips(&to.1) {
                assert!(ping(&from.0, ip, 1).unwrap().all(), "{case}: {} does not reach {ip}", from.0.name());
            }
        }
    }
}

fn two_agents(mode: &str) {
    let mut pair = Pair::new("two", mode);
    pair.expect_both("at first");
    let before = Snapshot::of(&pair.host.node).unwrap();
    pair.rounds();
    before.wait_for_same(&pair.host.node, DEADLINE).unwrap();
    pair.expect_both("after restarts");
    // Each agent repairs its own objects. The tables are shared.
    pair.host.node.sh(&["nft", "flush", "ruleset"]).unwrap();
    before.wait_for_same(&pair.host.node, DEADLINE).unwrap();
    pair.expect_both("after a flush");
    pair.other.kill().unwrap();
    pair.host.node.sh(&["nft", "flush", "ruleset"]).unwrap();
    pair.host.agent.restart().unwrap();
    pair.other.launch().unwrap();
    pair.other.wait_ready().unwrap();
    before.wait_for_same(&pair.host.node, DEADLINE).unwrap();
    pair.expect_both("after a flush while one agent was stopped");
    // GC of one network without valid attachments.
    let collected = pair.host.plugin.gc(&pair.host.node, &pair.host.config(&json!({})), &[]).unwrap();
    collected.ok().unwrap();
    assert!(inspect::link(&pair.first_pod.0, "eth0").is_err());
    let checked = pair.host.plugin.check(&pair.second_pod.0, &pair.config(), &pair.second_pod.1).unwrap();
    assert!(checked.success(), "GC of one network affected the other one: {checked:?}");
    // One run directory is removed: its agent recovers the records of its own pods only.
    pair.host.add(&pair.first_pod.0);
    remove_dir_atomically(pair.host.agent.run_dir());
    let records =
        |dir: &Path| state_entries(dir).iter().filter(|name| name.contains("/attachments/")).count();
    wait_until("the records to be recovered", DEADLINE, || Ok(records(pair.host.agent.run_dir()) == 1))
        .unwrap();
    assert_eq!(records(pair.other.run_dir()), 1);
    pair.rounds();
    assert_eq!((records(pair.host.agent.run_dir()), records(pair.other.run_dir())), (1, 1));
    let checked = pair.host.plugin.check(&pair.second_pod.0, &pair.config(), &pair.second_pod.1).unwrap();
    assert!(checked.success(), "{checked:?}");
}

#[test]
fn two_agents_on_one_node_work_in_mode_routed() {
    two_agents("routed");
}

#[test]
fn two_agents_on_one_node_work_in_mode_bridge() {
    two_agents("bridge");
}
