//! A DEL that nobody could take, end to end: left by the plugin, served by the agent before anything new is made.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{Call, DEADLINE, Pod, Snapshot, Verb, inspect, wait_until};

use crate::common::{Host, addresses_of, ips};
use crate::gate::{Calling, Gate};

fn tombstones(host: &Host) -> Vec<String> {
    host.held().into_iter().filter(|name| name.starts_with("tombstones/")).collect()
}

fn is_attached(pod: &Pod) -> bool {
    inspect::links(pod).unwrap().iter().any(|link| link.name == "eth0")
}

#[test]
fn dels_while_the_agent_is_down_are_served_at_its_start_before_the_first_add() {
    let mut host = Host::new("stones");
    let before = {
        let (first, _) = host.attached("first");
        host.del(&first);
        Snapshot::of(&host.node).unwrap()
    };
    let pods: Vec<_> = (0..4).map(|n| host.attached(&format!("p{n}"))).collect();
    host.agent.kill().unwrap();
    for (pod, _) in &pods {
        let outcome = host.plugin.del(pod, &host.config(&json!({}))).unwrap();
        outcome.ok().unwrap();
        assert!(is_attached(pod));
    }
    assert_eq!(tombstones(&host).len(), 4);
    // This ADD waits for the agent already when it starts. It finds nothing of the others.
    let next = host.pod("next");
    let add = Calling::start(&host, Call::pod(Verb::Add, &next, &host.config(&json!({}))));
    host.agent.launch().unwrap();
    let result = add.outcome().ok().unwrap();
    assert!(tombstones(&host).is_empty());
    assert!(!pods.iter().any(|(pod, _)| is_attached(pod)), "an ADD was served before the tombstones");
    assert_eq!(host.held().len(), 3, "{:?}", host.held());
    assert_eq!(addresses_of(&next, "eth0"), ips(&result).into_iter().collect());
    let log = host.agent.log().unwrap();
    assert_eq!(
        log.lines().filter(|line| line.contains("tombstone") && line.contains("DEL ok")).count(),
        4,
        "{log}"
    );
    host.del(&next);
    before.wait_for_same(&host.node, DEADLINE).unwrap();
}

#[test]
fn an_add_of_a_key_that_has_a_tombstone_works() {
    let mut host = Host::new("stoneadd");
    let (pod, first) = host.attached("a");
    host.agent.kill().unwrap();
    host.del(&pod);
    let add = Calling::start(&host, Call::pod(Verb::Add, &pod, &host.config(&json!({}))));
    host.agent.launch().unwrap();
    let second = add.outcome().ok().unwrap();
    assert_ne!(ips(&first), ips(&second));
    host.agent.wait_ready().unwrap();
    assert!(tombstones(&host).is_empty());
    assert_eq!(addresses_of(&pod, "eth0"), ips(&second).into_iter().collect());
    host.check(&pod, &second);
    // And it is not taken away by a later look at what was drained.
    host.agent.restart().unwrap();
    host.check(&pod, &second);
}

/// The agent does not answer (stopped by a signal), so the runtime's DEL becomes a tombstone while its ADD is in flight.
#[test]
fn a_tombstone_cancels_an_add_in_flight() {
    let host = Host::new("stoneflight");
    let (gate, pod) = (Gate::new(&host), host.pod("a"));
    let before = Snapshot::of(&host.node).unwrap();
    let add = gate.spawn(&host, Verb::Add, &pod);
    gate.wait_for(1);
    // Nobody listens for a moment: that is when the DEL comes.
    host.agent.signal(Signal::STOP).unwrap();
    let socket = host.agent.socket();
    fs::rename(&socket, socket.with_extension("away")).unwrap();
    let deleted = gate.call(&host, Verb::Del, &pod);
    deleted.ok().unwrap();
    assert!(deleted.stderr.contains("tombstone"), "{}", deleted.stderr);
    assert_eq!(tombstones(&host).len(), 1);
    gate.open();
    host.agent.signal(Signal::CONT).unwrap();
    let error = add.outcome().error().unwrap();
    assert_eq!(error.code, 11, "{error:?}");
    wait_until("the tombstone to be served", DEADLINE, || Ok(tombstones(&host).is_empty())).unwrap();
    assert!(!is_attached(&pod));
    assert!(host.held().is_empty(), "{:?}", host.held());
    assert!(gate.dels() >= 1, "its addresses were not given back");
    // The bridge and the subnet's routes are the node's, and stay.
    let now = Snapshot::of(&host.node).unwrap();
    let new = before.difference(&now).new;
    let is_nodes = |line: &String| line.contains("gated0") || line.contains("unreachable");
    assert!(new.iter().all(is_nodes), "{new:?}");
    // The same container may come again.
    let again = gate.call(&host, Verb::Add, &pod).ok().unwrap();
    assert_eq!(addresses_of(&pod, "eth0"), ips(&again).into_iter().collect());
}

/// A DEL that reaches the agent while the ADD of the same pod is in flight does the same. The IPAM plugin of the ADD, which
/// would wait for ever, is ended.
#[test]
fn a_del_cancels_an_add_in_flight() {
    // One worker a lane.
    let host = Host::with_flags("delflight", &["--workers", "3"]);
    let (gate, pod) = (Gate::new(&host), host.pod("a"));
    let add = gate.spawn(&host, Verb::Add, &pod);
    gate.wait_for(1);
    let dels = [gate.spawn(&host, Verb::Del, &pod), gate.spawn(&host, Verb::Del, &pod)];
    for del in dels {
        let deleted = del.outcome();
        deleted.ok().unwrap();
        assert!(!deleted.stderr.contains("tombstone"), "{}", deleted.stderr);
    }
    let added = add.outcome();
    assert_eq!(added.error().unwrap().code, 11, "{added:?}");
    assert!(gate.dels() >= 1, "its addresses were not given back");
    assert!(host.agent.log().unwrap().contains("ADD cancelled"));
    assert!(!is_attached(&pod));
    assert!(host.held().is_empty(), "{:?}", host.held());
}

#[test]
fn a_tombstone_that_cannot_be_read_is_put_aside_and_told() {
    let mut host = Host::new("stonebroken");
    let dir = host.agent.run_dir().join("tombstones");
    let broken = |name: &str| {
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(name), "{ this is no tombstone").unwrap();
    };
    // While it runs, and while it is down.
    broken("first");
    let is_there = |name: &str| dir.join(name).exists();
    let mut status = Value::Null;
    // The file is moved before the status shows it.
    let reported = wait_until("the problem to be reported", DEADLINE, || {
        status = host.agent.get("/v1/status")?;
        let problem = status["conditions"].to_string();
        Ok(["cannot be read", "rm ", "first"].iter().all(|part| problem.contains(part)))
    });
    assert!(reported.is_ok() && !is_there("first"), "{status}");
    let log = host.agent.log().unwrap();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("first")).collect();
    assert!(matches!(lines[..], [line] if line.contains("code=TombstoneRejected")), "{lines:#?}");
    host.agent.kill().unwrap();
    broken("second");
    host.agent.launch().unwrap();
    host.agent.wait_ready().unwrap();
    // An agent that is ready has processed all tombstones.
    assert!(!is_there("second"));
    assert!(host.agent.get("/v1/status").unwrap()["conditions"].to_string().contains("second"));
    // It is nobody's obstacle.
    let (pod, _) = host.attached("a");
    host.del(&pod);
    let command = status["conditions"][0]["fix"].as_str().unwrap();
    host.node.sh(&["sh", "-c", command]).unwrap();
    wait_until("the problem to be gone", DEADLINE, || {
        Ok(!host.agent.get("/v1/status")?["conditions"].to_string().contains("first"))
    })
    .unwrap();
}
