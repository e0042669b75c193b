//! The agent's names in the world: its socket, its lock, and other agents beside it.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use testkit::{Agent, DEADLINE, Plugin, Pod, Snapshot, inspect, ping, wait_until};

use crate::common::{Host, held, ips, take_away};

/// Waits until the agent answers on its socket again.
#[track_caller]
fn back(agent: &Agent) {
    wait_until("the socket to be back", DEADLINE, || Ok(agent.is_ready())).unwrap();
}

#[test]
fn a_deleted_socket_is_created_again() {
    let host = Host::new("socket");
    for round in 0..3 {
        fs::remove_file(host.agent.socket()).unwrap();
        back(&host.agent);
        let (pod, _) = host.attached(&format!("p{round}"));
        host.del(&pod);
    }
    assert!(host.agent.log().unwrap().contains("removed or replaced"));
}

/// The runtime does not notice: the plugin waits for the agent, and a DEL finds another way.
#[test]
fn an_add_right_after_the_socket_went_succeeds() {
    let host = Host::new("nosocket");
    fs::remove_file(host.agent.socket()).unwrap();
    let (pod, _) = host.attached("a");
    fs::remove_file(host.agent.socket()).unwrap();
    host.del(&pod);
    let gone = || Ok(host.held().is_empty() && inspect::link(&pod, "eth0").is_err());
    wait_until("the pod to go", DEADLINE, gone).unwrap();
}

#[test]
fn a14_a_file_in_the_place_of_the_socket_is_reported_and_stays() {
    let host = Host::new("foreign");
    let socket = host.agent.socket();
    let wait_for_reports = |times: usize| {
        let says = || Ok(host.agent.log()?.matches("is not a socket of this user").count() >= times);
        wait_until("the file to be reported", DEADLINE, says).unwrap();
    };
    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "not a socket").unwrap();
    wait_for_reports(1);
    assert_eq!(fs::read_to_string(&socket).unwrap(), "not a socket");
    fs::rename(&socket, socket.with_extension("moved")).unwrap();
    back(&host.agent);
    // Renamed over it in one step.
    let other = socket.with_extension("other");
    fs::write(&other, "").unwrap();
    fs::rename(&other, &socket).unwrap();
    wait_for_reports(2);
    fs::remove_file(&socket).unwrap();
    back(&host.agent);
    let (pod, _) = host.attached("a");
    host.del(&pod);
}

#[test]
fn a_second_agent_in_one_run_directory_refuses_and_names_the_first() {
    let host = Host::new("second");
    let (pod, result) = host.attached("a");
    let mut second = Agent::new(&host.node, &["--no-install"]).unwrap();
    second.launch().unwrap();
    let pid = host.agent.pid().unwrap().to_string();
    let says = || Ok(second.log()?.contains("another agent"));
    wait_until("the second agent to refuse", DEADLINE, says).unwrap();
    wait_until("its end", DEADLINE, || second.has_ended()).unwrap();
    let log = second.log().unwrap();
    let line = log.lines().find(|line| line.contains("another agent")).unwrap();
    for word in [pid.as_str(), "--run-dir", host.agent.run_dir().to_str().unwrap()] {
        assert!(line.contains(word), "{word}: {line}");
    }
    // The first one is as it was: it has its socket and its pod.
    assert_eq!(host.agent.get("/v1/status").unwrap()["pid"].to_string(), pid);
    host.check(&pod, &result);
}

/// A node that no other node can join works without its store, and reports it. An agent with a margin ends.
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
    let asks_for_restart = |line: &str| line.ends_with("restart the agent when the cause is removed");
    let mut alone = Agent::in_dir(&host.node, &host.node.dir().join("alone"), &flags).unwrap();
    alone.launch().unwrap();
    wait_until("the condition", DEADLINE, || {
        let Ok(status) = alone.get("/v1/status") else { return Ok(false) };
        let conditions = status["conditions"].as_array().unwrap().clone();
        let failed = conditions.iter().find(|condition| condition["code"] == "StoreFailed");
        let is_complete = |message: &str| names_holder(message) && asks_for_restart(message);
        Ok(failed.is_some_and(|condition| is_complete(condition["message"].as_str().unwrap())))
    })
    .unwrap();
    alone.stop().unwrap();
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
    theirs: (Pod, Value),
    ours: (Pod, Value),
}

impl Pair {
    fn new(label: &str, mode: &str) -> Self {
        let host = Host::with_flags(label, &["--network-mode", mode]);
        let ours = host.attached("ours");
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
        let mut pair = Self { theirs: (host.pod("theirs"), Value::Null), host, other, ours };
        pair.other.launch().unwrap();
        pair.other.wait_ready().unwrap();
        let config = pair.config();
        pair.theirs.1 = pair.host.plugin.add(&pair.theirs.0, &config).unwrap().ok().unwrap();
        if mode == "bridge" {
            pair.settle();
        }
        pair
    }

    /// The kernel gives a bridge its link-local address some time after its first port carries; before that it does not
    /// ask for IPv6 neighbours from it.
    fn settle(&self) {
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

    /// A whole round of each.
    fn rounds(&mut self) {
        for agent in [&mut self.host.agent, &mut self.other] {
            agent.restart().unwrap();
        }
    }

    /// Also what is not reached without the firewall's elements: a pod's own address is let through, others are not.
    #[track_caller]
    fn expect_both(&self, case: &str) {
        self.host.check(&self.ours.0, &self.ours.1);
        let plugin: &Plugin = &self.host.plugin;
        let checked = plugin.check(&self.theirs.0, &self.config(), &self.theirs.1).unwrap();
        assert!(checked.success(), "{case}: {checked:?}");
        for (from, to) in [(&self.ours, &self.theirs), (&self.theirs, &self.ours)] {
            for ip in ips(&to.1) {
                assert!(ping(&from.0, ip, 1).unwrap().all(), "{case}: {} does not reach {ip}", from.0.name());
            }
        }
    }
}

fn side_by_side(mode: &str) {
    let mut pair = Pair::new("two", mode);
    pair.expect_both("at first");
    let before = Snapshot::of(&pair.host.node).unwrap();
    pair.rounds();
    before.wait_for_same(&pair.host.node, DEADLINE).unwrap();
    pair.expect_both("after restarts");
    // Each repairs its own; the tables are both's.
    pair.host.node.sh(&["nft", "flush", "ruleset"]).unwrap();
    before.wait_for_same(&pair.host.node, DEADLINE).unwrap();
    pair.expect_both("after a flush");
    pair.other.kill().unwrap();
    pair.host.node.sh(&["nft", "flush", "ruleset"]).unwrap();
    pair.host.agent.restart().unwrap();
    pair.other.launch().unwrap();
    pair.other.wait_ready().unwrap();
    before.wait_for_same(&pair.host.node, DEADLINE).unwrap();
    pair.expect_both("after a flush while one was away");
    // GC of one network with nobody alive in it.
    let gone = pair.host.plugin.gc(&pair.host.node, &pair.host.config(&json!({})), &[]).unwrap();
    gone.ok().unwrap();
    assert!(inspect::link(&pair.ours.0, "eth0").is_err());
    let checked = pair.host.plugin.check(&pair.theirs.0, &pair.config(), &pair.theirs.1).unwrap();
    assert!(checked.success(), "GC of one network harmed the other: {checked:?}");
    // The directory of one is lost: it relearns its own pods, and takes none of the other's.
    pair.host.add(&pair.ours.0);
    take_away(pair.host.agent.run_dir());
    let knows = |dir: &Path| held(dir).iter().filter(|f| f.contains("/attachments/")).count();
    wait_until("the lost directory to be relearnt", DEADLINE, || Ok(knows(pair.host.agent.run_dir()) == 1))
        .unwrap();
    assert_eq!(knows(pair.other.run_dir()), 1);
    pair.rounds();
    assert_eq!((knows(pair.host.agent.run_dir()), knows(pair.other.run_dir())), (1, 1));
    let checked = pair.host.plugin.check(&pair.theirs.0, &pair.config(), &pair.theirs.1).unwrap();
    assert!(checked.success(), "{checked:?}");
}

#[test]
fn two_agents_side_by_side_in_mode_routed() {
    side_by_side("routed");
}

#[test]
fn two_agents_side_by_side_in_mode_bridge() {
    side_by_side("bridge");
}
