//! A node with an agent that waits for events, two pods and an external host.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{CableEnd, DEADLINE, Node, Ns, Pod, Snapshot, ping, wait_until};

use crate::common::{Host, MODES, host_link, ips};

/// The timeout of all waits in these tests.
pub(crate) const TIMEOUT: Duration = DEADLINE;
/// A long interval, so that only events can cause a repair.
pub(crate) const BY_EVENTS: [&str; 2] = ["--reconcile-seconds", "3600"];
pub(crate) const BRIDGE: &str = "podwire0";
pub(crate) const NODE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
pub(crate) const OUT: [&str; 2] = ["192.0.2.2", "2001:db8::2"];
pub(crate) const GATEWAYS: [&str; 2] = ["10.83.0.1", "fd00:88::1"];

pub(crate) struct Scene {
    pub(crate) host: Host,
    pub(crate) out: Node,
    /// Published as hostPort 8080.
    pub(crate) a: (Pod, Value),
    pub(crate) b: (Pod, Value),
    pub(crate) mode: &'static str,
    /// The state before the first drift.
    initial: OnceLock<ObservedState>,
}

/// The kernel state of the node and of both pods, without indexes and random MACs.
pub(crate) type ObservedState = [BTreeSet<String>; 3];

impl Scene {
    pub(crate) fn new(label: &str, mode: &'static str) -> Self {
        Self::with_flags(label, mode, &BY_EVENTS)
    }

    pub(crate) fn with_flags(label: &str, mode: &'static str, flags: &[&str]) -> Self {
        let flags: Vec<&str> = ["--network-mode", mode].iter().chain(flags).copied().collect();
        let host = Host::with_flags(label, &flags);
        let out = outside(&host);
        let a = host.pod("a");
        let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
        let result = host.add_with(&a, &json!({"runtimeConfig": {"portMappings": ports}}));
        let b = host.attached("b");
        Self { a: (a, result), b, out, host, mode, initial: OnceLock::new() }
    }

    pub(crate) fn node(&self) -> &Ns {
        &self.host.node
    }

    /// The host end of pod a.
    pub(crate) fn host_end(&self) -> &str {
        host_link(&self.a.1)
    }

    /// Runs a command on the node. The line is split at whitespace.
    #[track_caller]
    pub(crate) fn run(&self, line: &str) {
        run(self.node(), line);
    }

    /// Runs a command on the node and returns whether it succeeded.
    pub(crate) fn run_quietly(&self, line: &str) -> bool {
        let words: Vec<&str> = line.split_whitespace().collect();
        self.node().run(&words, b"").unwrap().success()
    }

    /// None if an object was removed during the listing.
    pub(crate) fn observe(&self) -> Option<ObservedState> {
        Some([observe(self.node())?, observe(&self.a.0)?, observe(&self.b.0)?])
    }

    /// The state after it stopped changing: the kernel completes IPv6 addresses asynchronously.
    pub(crate) fn settled(&self) -> ObservedState {
        let mut last = self.observe();
        wait_until("the kernel state to settle", DEADLINE, || {
            let before = std::mem::replace(&mut last, self.observe());
            Ok(last.is_some() && before == last)
        })
        .unwrap();
        last.unwrap()
    }

    /// The changes since `before`, for assertion messages.
    pub(crate) fn difference(&self, before: &ObservedState) -> String {
        self.observe().map_or("cannot observe the state".to_owned(), |now| compare(before, &now))
    }

    pub(crate) fn repairs(&self) -> u64 {
        self.host.agent.get("/v1/status").unwrap()["reconcile"]["repairs"].as_u64().unwrap()
    }

    /// Causes drift, and waits until the initial state is restored and works.
    #[track_caller]
    pub(crate) fn repairs_after(&self, what: &str, cause_drift: impl FnOnce()) {
        let (before, count) = (self.initial.get_or_init(|| self.settled()), self.repairs());
        cause_drift();
        let repaired = wait_until(what, TIMEOUT, || Ok(self.repairs() > count));
        assert!(repaired.is_ok(), "{}, {what}: nothing was repaired", self.mode);
        // Listing takes longer than the repair, and the kernel completes IPv6 addresses asynchronously.
        let mut difference = String::new();
        let restored = wait_until(what, DEADLINE, || {
            difference = self.difference(before);
            Ok(difference.is_empty())
        });
        assert!(restored.is_ok(), "{}, {what}: {difference}", self.mode);
        self.expect_works(what);
    }

    /// Checks pod to pod, pod to the external host, and node to pod.
    #[track_caller]
    pub(crate) fn expect_works(&self, what: &str) {
        let outside = OUT.iter().map(|text| text.parse().unwrap());
        for to in ips(&self.b.1).into_iter().chain(outside) {
            self.expect_ping((&self.a.0, to), what);
        }
        for to in ips(&self.a.1) {
            self.expect_ping((self.node(), to), what);
        }
    }

    #[track_caller]
    fn expect_ping(&self, (from, to): (&Ns, IpAddr), what: &str) {
        let mode = self.mode;
        assert!(ping(from, to, 1).unwrap().all(), "{mode}, {what}: {} does not reach {to}", from.name());
    }
}

/// Runs the test for both modes in parallel, because most of its time is waiting.
pub(crate) fn in_both_modes(test: impl Fn(&'static str) + Sync) {
    std::thread::scope(|scope| {
        for mode in MODES {
            let test = &test;
            scope.spawn(move || test(mode));
        }
    });
}

/// An external host that is connected to the node and has no routes to pods.
pub(crate) fn outside(host: &Host) -> Node {
    let out = host.lab.node("out").unwrap();
    let node_end = CableEnd { ns: &host.node, dev: "up0", addresses: &["192.0.2.1/24", "2001:db8::1/64"] };
    let out_end = CableEnd { ns: &out, dev: "eth0", addresses: &["192.0.2.2/24", "2001:db8::2/64"] };
    host.lab.wire(&node_end, &out_end).unwrap();
    out
}

#[track_caller]
pub(crate) fn run(ns: &Ns, line: &str) {
    ns.sh(&line.split_whitespace().collect::<Vec<_>>()).unwrap();
}

/// The kernel state without link indexes and link-local addresses, and without the MAC of a bridge.
pub(crate) fn observe(ns: &Ns) -> Option<BTreeSet<String>> {
    let snapshot = Snapshot::of(ns).ok()?;
    let lines = snapshot.lines().filter(|line| !line.contains(" fe80:"));
    Some(
        lines.map(|line| if line.starts_with("link ") { link_line(line) } else { line.to_owned() }).collect(),
    )
}

fn link_line(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let is_bridge = words.get(3) == Some(&"bridge");
    let is_random = |position: usize| {
        is_bridge && position > 0 && (words[position] == "mac" || words[position - 1] == "mac")
    };
    let positions = (0..words.len()).filter(|position| *position != 1 && !is_random(*position));
    positions.map(|position| words[position]).collect::<Vec<_>>().join(" ")
}

fn compare(before: &ObservedState, now: &ObservedState) -> String {
    let mut differences = Vec::new();
    for (before, now) in before.iter().zip(now) {
        differences.extend(before.difference(now).map(|line| format!("\n- {line}")));
        differences.extend(now.difference(before).map(|line| format!("\n+ {line}")));
    }
    differences.concat()
}
