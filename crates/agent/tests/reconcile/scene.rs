//! A node with an agent that waits for events, two pods and a host outside; and how long a repair takes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{CableEnd, DEADLINE, Node, Ns, Pod, Snapshot, ping, wait_until};

use crate::common::{Host, MODES, host_link, ips};

/// For every wait of these tests.
pub(crate) const SOON: Duration = DEADLINE;
/// So that only events can be the cause of a repair.
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
    /// How it was before the first damage.
    sound: OnceLock<Picture>,
}

/// What there is on the node and in both pods. Numbers and MACs that the kernel or chance gives are left out.
pub(crate) type Picture = [BTreeSet<String>; 3];

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
        Self { a: (a, result), b, out, host, mode, sound: OnceLock::new() }
    }

    pub(crate) fn node(&self) -> &Ns {
        &self.host.node
    }

    /// The host end of pod a.
    pub(crate) fn host_end(&self) -> &str {
        host_link(&self.a.1)
    }

    /// Runs a command of these words on the node.
    #[track_caller]
    pub(crate) fn run(&self, line: &str) {
        run(self.node(), line);
    }

    /// Whether a command of these words succeeds.
    pub(crate) fn run_quietly(&self, line: &str) -> bool {
        let words: Vec<&str> = line.split_whitespace().collect();
        self.node().run(&words, b"").unwrap().success()
    }

    /// None where something went while it was looked at.
    pub(crate) fn picture(&self) -> Option<Picture> {
        Some([picture(self.node())?, picture(&self.a.0)?, picture(&self.b.0)?])
    }

    /// A picture after which nothing comes by itself: the kernel finishes IPv6 addresses in a worker of its own.
    pub(crate) fn settled(&self) -> Picture {
        let mut last = self.picture();
        wait_until("the kernel to be done", DEADLINE, || {
            let before = std::mem::replace(&mut last, self.picture());
            Ok(last.is_some() && before == last)
        })
        .unwrap();
        last.unwrap()
    }

    /// What is not as it was; for the message of a test that fails.
    pub(crate) fn difference(&self, before: &Picture) -> String {
        self.picture().map_or("no picture".to_owned(), |now| compare(before, &now))
    }

    pub(crate) fn repairs(&self) -> u64 {
        self.host.agent.get("/v1/status").unwrap()["reconcile"]["repairs"].as_u64().unwrap()
    }

    /// Does the damage and waits until everything is as it was and works.
    #[track_caller]
    pub(crate) fn repairs_after(&self, what: &str, damage: impl FnOnce()) {
        let (before, count) = (self.sound.get_or_init(|| self.settled()), self.repairs());
        damage();
        let repaired = wait_until(what, SOON, || Ok(self.repairs() > count));
        assert!(repaired.is_ok(), "{}, {what}: nothing was repaired", self.mode);
        // To look at everything takes longer than the repair, and the kernel finishes IPv6 in a worker of its own.
        let mut difference = String::new();
        let back = wait_until(what, DEADLINE, || {
            difference = self.difference(before);
            Ok(difference.is_empty())
        });
        assert!(back.is_ok(), "{}, {what}: {difference}", self.mode);
        self.expect_works(what);
    }

    /// Pod to pod and to the outside, node to pod.
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

/// Most of a test's time is waiting: both modes wait together.
pub(crate) fn in_both_modes(test: impl Fn(&'static str) + Sync) {
    std::thread::scope(|scope| {
        for mode in MODES {
            let test = &test;
            scope.spawn(move || test(mode));
        }
    });
}

/// A host outside that is wired to the node, and knows of no pods.
pub(crate) fn outside(host: &Host) -> Node {
    let out = host.lab.node("out").unwrap();
    let here = CableEnd { ns: &host.node, dev: "up0", addresses: &["192.0.2.1/24", "2001:db8::1/64"] };
    let there = CableEnd { ns: &out, dev: "eth0", addresses: &["192.0.2.2/24", "2001:db8::2/64"] };
    host.lab.wire(&here, &there).unwrap();
    out
}

#[track_caller]
pub(crate) fn run(ns: &Ns, line: &str) {
    ns.sh(&line.split_whitespace().collect::<Vec<_>>()).unwrap();
}

/// Without the numbers of links, and without the MAC of a bridge and what follows from it.
pub(crate) fn picture(ns: &Ns) -> Option<BTreeSet<String>> {
    let snapshot = Snapshot::of(ns).ok()?;
    let lines = snapshot.lines().filter(|line| !line.contains(" fe80:"));
    Some(
        lines.map(|line| if line.starts_with("link ") { link_line(line) } else { line.to_owned() }).collect(),
    )
}

fn link_line(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let is_bridge = words.get(3) == Some(&"bridge");
    let chance =
        |place: usize| is_bridge && place > 0 && (words[place] == "mac" || words[place - 1] == "mac");
    let kept = (0..words.len()).filter(|place| *place != 1 && !chance(*place));
    kept.map(|place| words[place]).collect::<Vec<_>>().join(" ")
}

fn compare(before: &Picture, now: &Picture) -> String {
    let mut differences = Vec::new();
    for (before, now) in before.iter().zip(now) {
        differences.extend(before.difference(now).map(|line| format!("\n- {line}")));
        differences.extend(now.difference(before).map(|line| format!("\n+ {line}")));
    }
    differences.concat()
}
