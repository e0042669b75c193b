//! Faults that requests, kernel events or polled files reveal are reported by the next rounds, before the timer.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{Agent, DEADLINE, Lab, Node, wait_until};

use crate::common::Host;
use crate::scene::BY_EVENTS;

/// The number of rounds until a fault must be reported. It includes rounds that other events cause.
const ROUNDS: u64 = 6;
/// Longer than all delays before a round, and than the retry after a failed round.
const QUIET: Duration = Duration::from_millis(1500);

fn rounds(agent: &Agent) -> u64 {
    agent.get("/v1/status").unwrap()["reconcile"]["rounds"].as_u64().unwrap()
}

fn has(agent: &Agent, code: &str) -> bool {
    let answer = agent.client().get("/v1/status", DEADLINE).unwrap();
    let status: Value = serde_json::from_slice(&answer.body).unwrap();
    status["conditions"].as_array().unwrap().iter().any(|condition| condition["code"] == code)
}

/// Expects the condition to begin or to end within some rounds.
#[track_caller]
fn expect_soon(agent: &Agent, (code, expected): (&str, bool), before: u64) {
    wait_until(code, DEADLINE, || Ok(has(agent, code) == expected)).unwrap();
    let passed = rounds(agent) - before;
    assert!(passed <= ROUNDS, "{code} took {passed} rounds");
}

#[test]
fn events_report_the_start_and_end_of_an_overlap() {
    let host = Host::with_flags("overlapevent", &BY_EVENTS);
    let sh = |line: &str| host.node.sh(&["sh", "-c", line]).unwrap();
    sh("ip link add other type bridge; ip link set other up");
    host.attached("a");
    for [add, remove] in [
        ["ip address add 10.83.200.1/24 dev other", "ip address del 10.83.200.1/24 dev other"],
        ["ip address add fd00:88::9/128 dev other nodad", "ip address del fd00:88::9/128 dev other"],
        ["ip route add 10.83.7.0/24 dev other", "ip route del 10.83.7.0/24 dev other"],
        ["ip route add fd00:88:0:0:7::/80 dev other", "ip route del fd00:88:0:0:7::/80 dev other"],
    ] {
        for (line, is_overlap) in [(add, true), (remove, false)] {
            let before = rounds(&host.agent);
            sh(line);
            expect_soon(&host.agent, ("SubnetOverlap", is_overlap), before);
        }
    }
}

/// Waits until no event of the start requests another round.
fn settle(agent: &Agent) -> u64 {
    let mut last = (rounds(agent), Instant::now());
    wait_until("no more rounds", DEADLINE, || {
        let now = rounds(agent);
        if now != last.0 {
            last = (now, Instant::now());
        }
        Ok(last.1.elapsed() > QUIET)
    })
    .unwrap();
    last.0
}

#[test]
fn a_failed_request_causes_a_round() {
    let host = Host::with_flags("failedstatus", &BY_EVENTS);
    host.node.sh(&["ip", "link", "add", "taken", "type", "veth", "peer", "name", "peer"]).unwrap();
    let before = settle(&host.agent);
    let config = host.config(&json!({"bridge": "taken"}));
    assert!(!host.plugin.status(&host.node, &config).unwrap().success());
    wait_until("another round", DEADLINE, || Ok(rounds(&host.agent) > before)).unwrap();
}

/// An agent in its own mount namespace, where a test can hide files from it.
struct IsolatedAgent {
    agent: Agent,
    node: Node,
    _lab: Lab,
}

impl IsolatedAgent {
    fn new(label: &str, flags: impl Fn(&Node) -> Vec<String>) -> Self {
        let lab = Lab::new(label).unwrap();
        let node = lab.node("n1").unwrap();
        let flags = flags(&node);
        let flags: Vec<&str> = flags.iter().map(String::as_str).chain(BY_EVENTS).collect();
        let mut agent = Agent::new(&node, &flags).unwrap();
        let script = lab.dir().join("agent.sh");
        let text = format!("#!/bin/sh\nexec unshare --mount {} \"$@\"\n", agent.program().display());
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        agent.set_program(&script);
        agent.launch().unwrap();
        agent.wait_ready().unwrap();
        settle(&agent);
        Self { agent, node, _lab: lab }
    }

    /// Runs a command in the agent's mount namespace, which must not be the host's.
    fn sh(&self, line: &str) {
        let pid = self.agent.pid().unwrap().to_string();
        let mounts = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).unwrap();
        assert_ne!(mounts(&pid), mounts("self"));
        self.node.sh(&["nsenter", "--mount", "--target", &pid, "sh", "-c", line]).unwrap();
    }

    /// Runs each line, and expects the condition to exist or not to exist afterwards.
    #[track_caller]
    fn expect(&self, code: &str, lines: [(&str, bool); 2]) {
        for (line, expected) in lines {
            let before = rounds(&self.agent);
            self.sh(line);
            expect_soon(&self.agent, (code, expected), before);
            assert_eq!(self.agent.is_ready(), !expected, "{line}");
        }
    }
}

#[test]
fn removal_and_installation_of_nft_are_detected_by_polling() {
    let isolated = IsolatedAgent::new("nftgone", |_| vec!["--no-install".to_owned()]);
    let nft = fs::canonicalize("/usr/sbin/nft").unwrap();
    let (hide, show) =
        (format!("mount --bind /dev/null {}", nft.display()), format!("umount {}", nft.display()));
    isolated.expect("NftMissing", [(&hide, true), (&show, false)]);
}

#[test]
fn a_changed_plugin_directory_of_a_runtime_is_detected_by_polling() {
    let directory = |node: &Node, name: &str| node.dir().join(name).display().to_string();
    let isolated = IsolatedAgent::new("bindir", |node| {
        let (plugins, configs) = (directory(node, "bin"), directory(node, "net.d"));
        ["--install", "--install-plugin-dir", &plugins, "--install-config-dir", &configs]
            .map(str::to_owned)
            .to_vec()
    });
    let configs = directory(&isolated.node, "net.d");
    let change = format!(
        "mount -t tmpfs pwt /etc && mkdir /etc/containerd && cat >/etc/containerd/config.toml <<END\n\
         version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/nowhere\"\n\
         conf_dir = \"{configs}\"\nEND\n"
    );
    let restore = "rm /etc/containerd/config.toml";
    isolated.expect("InstallIncomplete", [(&change, true), (restore, false)]);
}
