//! DELs without a reachable agent: the plugin stores a tombstone, and the agent serves it before anything new is created.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{Call, DEADLINE, Pod, Snapshot, Verb, inspect, wait_until};

use crate::blocking_ipam::{BlockingIpam, RunningCall};
use crate::common::{Host, addresses_of, ips};

fn tombstones(host: &Host) -> Vec<String> {
    host.state_entries().into_iter().filter(|name| name.starts_with("tombstones/")).collect()
}

fn is_attached(pod: &Pod) -> bool {
    inspect::links(pod).unwrap().iter().any(|link| link.name == "eth0")
}

#[test]
fn tombstones_are_served_at_start_before_the_first_add() {
    let mut host = Host::new("tombstones");
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
    // This ADD already waits when the agent starts.
    let next = host.pod("next");
    let add = RunningCall::start(&host, Call::pod(Verb::Add, &next, &host.config(&json!({}))));
    host.agent.launch().unwrap();
    let result = add.outcome().ok().unwrap();
    assert!(tombstones(&host).is_empty());
    assert!(!pods.iter().any(|(pod, _)| is_attached(pod)), "an ADD was served before the tombstones");
    assert_eq!(host.state_entries().len(), 3, "{:?}", host.state_entries());
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
fn an_add_of_an_attachment_with_a_tombstone_succeeds() {
    let mut host = Host::new("tombadd");
    let (pod, first) = host.attached("a");
    host.agent.kill().unwrap();
    host.del(&pod);
    let add = RunningCall::start(&host, Call::pod(Verb::Add, &pod, &host.config(&json!({}))));
    host.agent.launch().unwrap();
    let second = add.outcome().ok().unwrap();
    assert_ne!(ips(&first), ips(&second));
    host.agent.wait_ready().unwrap();
    assert!(tombstones(&host).is_empty());
    assert_eq!(addresses_of(&pod, "eth0"), ips(&second).into_iter().collect());
    host.check(&pod, &second);
    // A restart does not remove the new attachment.
    host.agent.restart().unwrap();
    host.check(&pod, &second);
}

/// The agent does not answer (stopped by a signal), so the runtime's DEL becomes a tombstone while its ADD is in flight.
#[test]
fn a_tombstone_cancels_an_add_in_flight() {
    let host = Host::new("tombflight");
    let (ipam, pod) = (BlockingIpam::new(&host), host.pod("a"));
    let before = Snapshot::of(&host.node).unwrap();
    let add = ipam.spawn(&host, Verb::Add, &pod);
    ipam.wait_for(1);
    // The DEL is sent while no process listens on the socket.
    host.agent.signal(Signal::STOP).unwrap();
    let socket = host.agent.socket();
    fs::rename(&socket, socket.with_extension("moved")).unwrap();
    let deleted = ipam.call(&host, Verb::Del, &pod);
    deleted.ok().unwrap();
    assert!(deleted.stderr.contains("tombstone"), "{}", deleted.stderr);
    assert_eq!(tombstones(&host).len(), 1);
    ipam.unblock();
    host.agent.signal(Signal::CONT).unwrap();
    let error = add.outcome().error().unwrap();
    assert_eq!(error.code, 11, "{error:?}");
    wait_until("the tombstone to be served", DEADLINE, || Ok(tombstones(&host).is_empty())).unwrap();
    assert!(!is_attached(&pod));
    assert!(host.state_entries().is_empty(), "{:?}", host.state_entries());
    assert!(ipam.dels() >= 1, "its addresses were not released");
    // The bridge and the subnet's routes belong to the node and remain.
    let now = Snapshot::of(&host.node).unwrap();
    let new = before.difference(&now).new;
    let is_of_node = |line: &String| line.contains("delegated0") || line.contains("unreachable");
    assert!(new.iter().all(is_of_node), "{new:?}");
    // The same container can be added again.
    let second = ipam.call(&host, Verb::Add, &pod).ok().unwrap();
    assert_eq!(addresses_of(&pod, "eth0"), ips(&second).into_iter().collect());
}

/// A DEL that reaches the agent while an ADD of the same pod is in flight has the same effect. It ends the IPAM plugin of the
/// ADD, which would wait forever.
#[test]
fn a_del_cancels_an_add_in_flight() {
    // One worker per request class.
    let host = Host::with_flags("delflight", &["--workers", "3"]);
    let (ipam, pod) = (BlockingIpam::new(&host), host.pod("a"));
    let add = ipam.spawn(&host, Verb::Add, &pod);
    ipam.wait_for(1);
    let dels = [ipam.spawn(&host, Verb::Del, &pod), ipam.spawn(&host, Verb::Del, &pod)];
    for del in dels {
        let deleted = del.outcome();
        deleted.ok().unwrap();
        assert!(!deleted.stderr.contains("tombstone"), "{}", deleted.stderr);
    }
    let added = add.outcome();
    assert_eq!(added.error().unwrap().code, 11, "{added:?}");
    assert!(ipam.dels() >= 1, "its addresses were not released");
    assert!(host.agent.log().unwrap().contains("ADD cancelled"));
    assert!(!is_attached(&pod));
    assert!(host.state_entries().is_empty(), "{:?}", host.state_entries());
}

#[test]
fn an_unreadable_tombstone_is_put_aside_and_reported() {
    let mut host = Host::new("tombbroken");
    let dir = host.agent.run_dir().join("tombstones");
    let broken = |name: &str| {
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(name), "{ not a tombstone").unwrap();
    };
    // While the agent runs, and while it is stopped.
    broken("first");
    let exists = |name: &str| dir.join(name).exists();
    let mut status = Value::Null;
    // The file is moved before the status shows the condition.
    let reported = wait_until("the condition", DEADLINE, || {
        status = host.agent.get("/v1/status")?;
        let conditions = status["conditions"].to_string();
        Ok(["cannot be read", "rm ", "first"].iter().all(|part| conditions.contains(part)))
    });
    assert!(reported.is_ok() && !exists("first"), "{status}");
    let log = host.agent.log().unwrap();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("first")).collect();
    assert!(matches!(lines[..], [line] if line.contains("code=TombstoneRejected")), "{lines:#?}");
    host.agent.kill().unwrap();
    broken("second");
    host.agent.launch().unwrap();
    host.agent.wait_ready().unwrap();
    // An agent that is ready has processed all tombstones.
    assert!(!exists("second"));
    assert!(host.agent.get("/v1/status").unwrap()["conditions"].to_string().contains("second"));
    // It does not block an ADD.
    let (pod, _) = host.attached("a");
    host.del(&pod);
    let command = status["conditions"][0]["fix"].as_str().unwrap();
    host.node.sh(&["sh", "-c", command]).unwrap();
    wait_until("the end of the condition", DEADLINE, || {
        Ok(!host.agent.get("/v1/status")?["conditions"].to_string().contains("first"))
    })
    .unwrap();
}
