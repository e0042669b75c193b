//! Plugin calls as a runtime makes them, and kills at every point. Uses the reference plugins. Needs root.

#![expect(clippy::unwrap_used, reason = "a test stops at the first error, also in helper functions")]

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::trace::{SyscallPhase, TraceOutcome, kill_at_syscall};
use testkit::{Call, DEADLINE, Lab, Node, Plugin, Snapshot, Verb, inspect, with_prev_result};

fn bridge_config(node: &Node) -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "testnet", "type": "bridge", "bridge": "br0", "isGateway": true,
        "ipam": {"type": "host-local", "dataDir": node.run_dir(), "ranges": [
            [{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]
        ], "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}
    })
}

/// Another process writes the script. A descriptor of this process could be inherited by a child that another test starts,
/// and a file that is open for writing cannot be executed.
fn script(node: &Node, text: &str) -> Plugin {
    let path = node.dir().join("script");
    let write = format!("cat >{0} && chmod 755 {0}", path.display());
    assert!(node.run(&["sh", "-c", &write], format!("#!/bin/sh\n{text}\n").as_bytes()).unwrap().success());
    Plugin { path }
}

fn program(path: &str) -> Plugin {
    Plugin { path: path.into() }
}

#[test]
fn the_reference_bridge_adds_checks_and_deletes() {
    let lab = Lab::new("bridge").unwrap();
    let node = lab.node("n1").unwrap();
    let (a, b) = (node.pod("a").unwrap(), node.pod("b").unwrap());
    let (bridge, config) = (testkit::reference_plugin("bridge").unwrap(), bridge_config(&node));
    let result = bridge.add(&a, &config).unwrap().ok().unwrap();
    assert_eq!(result["ips"][0]["address"], "10.88.0.2/24");
    assert_eq!(inspect::link(&a, "eth0").unwrap().kind(), Some("veth"));
    let default = inspect::routes(&a, inspect::Family::V4).unwrap().into_iter().find(|r| r.dst == "default");
    assert_eq!(default.unwrap().gateway, Some("10.88.0.1".parse().unwrap()));
    bridge.check(&a, &config, &result).unwrap().ok().unwrap();

    let before = Snapshot::of(&node).unwrap();
    let second = bridge.add(&b, &config).unwrap().ok().unwrap();
    assert!(testkit::ping(&b, "10.88.0.2".parse().unwrap(), 1).unwrap().all());
    let changed = before.expect_same(&node).unwrap_err().to_string();
    assert!(changed.contains("+ link") && changed.contains("veth"), "{changed}");
    let config_of_b = with_prev_result(&config, &second).unwrap();
    assert_eq!(bridge.del(&b, &config_of_b).unwrap().ok().unwrap(), Value::Null);
    before.wait_for_same(&node, DEADLINE).unwrap();
    assert!(inspect::link(&b, "eth0").is_err());
}

#[test]
fn errors_of_a_plugin_are_returned() {
    let lab = Lab::new("errors").unwrap();
    let node = lab.node("n1").unwrap();
    let pod = node.pod("a").unwrap();
    let bridge = testkit::reference_plugin("bridge").unwrap();
    let outcome =
        bridge.call(&node, &Call { ifname: None, ..Call::pod(Verb::Add, &pod, &json!({})) }).unwrap();
    let error = outcome.error().unwrap();
    assert!(error.code > 0 && error.msg.contains("CNI_IFNAME"), "{error:?}");
    assert!(outcome.ok().is_err());
    let versions = bridge.version(&node).unwrap().ok().unwrap();
    assert!(versions["supportedVersions"].as_array().unwrap().contains(&json!("1.0.0")));
    assert!(versions["supportedVersions"].as_array().unwrap().len() > 3);
}

#[test]
fn the_environment_contains_only_cni_variables_and_path() {
    let lab = Lab::new("env").unwrap();
    let node = lab.node("n1").unwrap();
    let pod = node.pod("a").unwrap();
    let call = Call {
        args: Some("K=v".into()),
        env: vec![("CNI_NETNS_OVERRIDE".into(), "1".into())],
        ..Call::pod(Verb::Add, &pod, &json!({}))
    };
    let outcome = program("/usr/bin/env").call(&node, &call).unwrap();
    let mut keys: Vec<_> = outcome.stdout.lines().map(|line| line.split_once('=').unwrap().0).collect();
    keys.sort_unstable();
    let expected = [
        "CNI_ARGS",
        "CNI_COMMAND",
        "CNI_CONTAINERID",
        "CNI_IFNAME",
        "CNI_NETNS",
        "CNI_NETNS_OVERRIDE",
        "CNI_PATH",
        "PATH",
    ];
    assert_eq!(keys, expected);
    assert!(outcome.stdout.contains("CNI_PATH=/usr/lib/cni:/usr/bin\n"), "{}", outcome.stdout);
    let status = program("/usr/bin/env").status(&node, &json!({})).unwrap();
    assert!(!status.stdout.contains("CNI_CONTAINERID") && status.stdout.contains("CNI_COMMAND=STATUS"));
}

#[test]
fn the_plugin_runs_in_the_nodes_namespace_and_gets_the_config() {
    let lab = Lab::new("inside").unwrap();
    let node = lab.node("n1").unwrap();
    node.sh(&["ip", "link", "add", "mark", "type", "bridge"]).unwrap();
    let links = script(&node, "ip -o link").version(&node).unwrap().stdout;
    assert!(links.contains("mark"), "{links}");
    let echoed =
        program("/bin/cat").gc(&node, &json!({"name": "n"}), &[("c1", "eth0")]).unwrap().ok().unwrap();
    assert_eq!(echoed["cni.dev/valid-attachments"], json!([{"containerID": "c1", "ifname": "eth0"}]));
}

#[test]
fn a_delayed_kill_hits_the_plugin_and_waits_for_its_children() {
    let lab = Lab::new("killed").unwrap();
    let node = lab.node("n1").unwrap();
    let call = Call::network(Verb::Status, &json!({}));
    let late = node.dir().join("late");
    // The background process outlives its killed parent. The call must wait for it.
    let text = format!("(sleep 0.5; echo x >{}) & while :; do :; done", late.display());
    let after = Duration::from_millis(100);
    let outcome = testkit::call_killed_after(&script(&node, &text), &node, &call, after).unwrap();
    assert!(outcome.killed() && late.exists());
    let after = Duration::from_secs(20);
    let outcome = testkit::call_killed_after(&program("/bin/true"), &node, &call, after).unwrap();
    assert!(outcome.success());
}

#[test]
fn a_spawned_plugin_can_be_killed() {
    let lab = Lab::new("spawn").unwrap();
    let node = lab.node("n1").unwrap();
    let call = Call::network(Verb::Status, &json!({}));
    let running = script(&node, "exec sleep 60").spawn(&node, &call).unwrap();
    assert!(Path::new(&format!("/proc/{}", running.pid())).exists());
    running.kill().unwrap();
    assert!(running.wait(DEADLINE).unwrap().killed());
    let running = script(&node, "exec sleep 60").spawn(&node, &call).unwrap();
    let error = running.wait(Duration::from_millis(50)).unwrap_err().to_string();
    assert!(error.contains("did not exit within 50ms"), "{error}");
}

#[test]
fn cat_can_be_killed_at_every_stop() {
    let lab = Lab::new("trace").unwrap();
    let node = lab.node("n1").unwrap();
    let (cat, call) = (program("/bin/cat"), Call::network(Verb::Status, &json!({"name": "n"})));
    let TraceOutcome::Finished { stops, outcome } = kill_at_syscall(&cat, &node, &call, u64::MAX).unwrap()
    else {
        panic!("the program was killed")
    };
    assert_eq!(outcome.ok().unwrap(), json!({"name": "n"}));
    assert!(stops > 20, "{stops}");
    let mut phases = Vec::new();
    for n in 1..=stops {
        match kill_at_syscall(&cat, &node, &call, n).unwrap() {
            TraceOutcome::Killed { at } => phases.push(at.phase),
            TraceOutcome::Finished { stops, .. } => {
                panic!("exited after {stops} stops, expected a kill at {n}")
            }
        }
    }
    let entries = phases.iter().filter(|phase| **phase == SyscallPhase::Entry).count();
    assert!(entries.abs_diff(phases.len() - entries) <= 1, "entries and exits are not paired: {phases:?}");
    assert!(matches!(kill_at_syscall(&cat, &node, &call, stops + 1).unwrap(), TraceOutcome::Finished { .. }));
    assert!(kill_at_syscall(&cat, &node, &call, 0).is_err());
}

/// The script creates three directories and is killed at each of its stops. A later stop never leaves fewer directories.
#[test]
fn a_kill_at_an_exit_happens_after_the_effect() {
    let lab = Lab::new("effect").unwrap();
    let node = lab.node("n1").unwrap();
    let call = Call::network(Verb::Status, &json!({}));
    let mkdir = script(&node, "for d in a b c; do mkdir \"${0%/*}/$d\" || exit 1; done");
    let created = || ["a", "b", "c"].iter().filter(|d| node.dir().join(d).is_dir()).count();
    let mut counts = Vec::new();
    for n in 1.. {
        let end = kill_at_syscall(&mkdir, &node, &call, n).unwrap();
        counts.push(created());
        for d in ["a", "b", "c"] {
            let _ = std::fs::remove_dir(node.dir().join(d));
        }
        if let TraceOutcome::Finished { outcome, .. } = end {
            assert!(outcome.success());
            break;
        }
    }
    assert!(counts.is_sorted(), "{counts:?}");
    counts.dedup();
    assert_eq!(counts, [0, 1, 2, 3]);
}

#[test]
fn threads_are_traced_and_exit_codes_returned() {
    let lab = Lab::new("threads").unwrap();
    let node = lab.node("n1").unwrap();
    let pod = node.pod("a").unwrap();
    let (bridge, config) = (testkit::reference_plugin("bridge").unwrap(), bridge_config(&node));
    let add = Call::pod(Verb::Add, &pod, &config);
    // A Go program with several threads, signals and a child process.
    let TraceOutcome::Finished { stops, outcome } = kill_at_syscall(&bridge, &node, &add, u64::MAX).unwrap()
    else {
        panic!("the program was killed")
    };
    assert_eq!(outcome.ok().unwrap()["ips"][0]["address"], "10.88.0.2/24");
    bridge.del(&pod, &config).unwrap().ok().unwrap();
    for n in [1, 2, stops / 4, stops / 2, stops / 2 + 1] {
        let end = kill_at_syscall(&bridge, &node, &add, n).unwrap();
        assert!(matches!(end, TraceOutcome::Killed { .. }), "{n} of {stops}: {end:?}");
        bridge.del(&pod, &config).unwrap().ok().unwrap();
    }
    let fails = script(&node, "exit 7");
    let TraceOutcome::Finished { outcome, .. } = kill_at_syscall(&fails, &node, &add, u64::MAX).unwrap()
    else {
        panic!("the program was killed")
    };
    assert_eq!(outcome.status.code(), Some(7));
}

/// System calls that the traced program below makes in a second thread.
const CALLS_IN_THREAD: u64 = 5000;

#[test]
#[ignore = "helper of system_calls_of_all_threads_are_counted"]
fn child_that_works_in_a_thread() {
    std::thread::spawn(|| (0..CALLS_IN_THREAD).for_each(|_| drop(std::fs::metadata("/")))).join().unwrap();
}

#[test]
fn system_calls_of_all_threads_are_counted() {
    let lab = Lab::new("count").unwrap();
    let node = lab.node("n1").unwrap();
    let call = Call::network(Verb::Status, &json!({}));
    let exe = std::env::current_exe().unwrap();
    let text = format!("exec {} --exact child_that_works_in_a_thread --ignored", exe.display());
    let threaded = script(&node, &text);
    let TraceOutcome::Finished { stops, outcome } =
        kill_at_syscall(&threaded, &node, &call, u64::MAX).unwrap()
    else {
        panic!("the program was killed")
    };
    assert!(outcome.success() && outcome.stdout.contains("1 passed"), "{outcome:?}");
    assert!(stops > 2 * CALLS_IN_THREAD, "entries and exits of the thread are missing: {stops}");
    // Kill while the second thread is working: the whole process is killed, not only the thread.
    let end = kill_at_syscall(&threaded, &node, &call, stops - CALLS_IN_THREAD).unwrap();
    assert!(matches!(end, TraceOutcome::Killed { .. }), "{end:?}");
}

/// The tracer must not reap children that other threads wait for.
#[test]
fn tracing_does_not_reap_other_children() {
    let lab = Lab::new("children").unwrap();
    let node = lab.node("n1").unwrap();
    let call = Call::network(Verb::Status, &json!({}));
    let mut own = std::process::Command::new("/bin/sh").args(["-c", "exit 5"]).spawn().unwrap();
    let end = Instant::now() + DEADLINE;
    for n in 1..20 {
        kill_at_syscall(&program("/bin/true"), &node, &call, n).unwrap();
        assert!(Instant::now() < end);
    }
    assert_eq!(own.wait().unwrap().code(), Some(5));
}
