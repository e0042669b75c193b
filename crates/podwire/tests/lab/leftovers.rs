//! Incomplete labs: they are refused, replaced or removed.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::json;
use testkit::{DEADLINE, wait_until};

use crate::common::{Lab, has};

#[test]
fn names_are_unique_and_invalid_arguments_create_nothing() {
    let lab = Lab::new("twice");
    lab.ok(&["up", "--nodes", "1", "--pods", "0"]);
    has(&lab.fails(&["up"]), &["is already up", &lab.command_line("down"), "with --name NAME"]);
    has(&lab.fails(&["test"]), &["has no pods", &lab.command_line("pod add n1")]);
    let other = Lab::new("other");
    for (args, word) in [
        (&["up", "--nodes", "0"][..], "1 to 200 nodes"),
        (&["up", "--nodes", "2", "--subnets", "3"], "1 to 2 subnets, not 3"),
        (&["up", "--etcd-members", "2"], "1 or 3 etcd members"),
        (&["up", "--pods", "5000"], "up to 1000 pods"),
    ] {
        has(&other.misused(args), &[word]);
        assert_eq!(other.traces(), [] as [String; 0], "{args:?}");
    }
    for args in [&["status"][..], &["cut", "n1"]] {
        has(&other.fails(args), &["there is no lab"]);
        assert_eq!(other.traces(), [] as [String; 0], "{args:?}");
    }
    has(&other.ok(&["down"]), &["there is no lab"]);
    let invalid =
        Command::new(env!("CARGO_BIN_EXE_podwire")).args(["lab", "up", "--name", "a/b"]).output().unwrap();
    assert!(!invalid.status.success());
}

#[test]
fn a_failed_up_removes_everything() {
    let lab = Lab::new("fails");
    let output = lab.command(&["up", "--nodes", "2"]).env("PODWIRE_CNI", "/bin/false").output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    has(&stderr, &["cannot create lab", "everything was removed", "cannot attach pod"]);
    assert_eq!(lab.traces(), [] as [String; 0]);
}

#[test]
fn the_next_up_replaces_a_killed_one() {
    let lab = Lab::new("killed");
    let mut up = lab.command(&["up", "--nodes", "20", "--pods", "0"]).stdout(Stdio::null()).spawn().unwrap();
    wait_until("the first nodes", DEADLINE, || Ok(lab.namespaces().count() > 4)).unwrap();
    up.kill().unwrap();
    up.wait().unwrap();
    has(&lab.fails(&["status"]), &["is incomplete", &lab.command_line("down")]);
    assert_eq!(lab.listed(), (json!(20), json!("unfinished")));
    let output = lab.ok(&["up", "--nodes", "1"]);
    has(&output, &["removing an incomplete lab first", "Up in"]);
    assert_eq!(lab.json(&["status"])["nodes"].as_array().unwrap().len(), 1);
    assert_eq!(lab.namespaces().count(), 4, "underlay, etcd1, n1 and its pod");
    lab.ok(&["down"]);
    assert_eq!(lab.traces(), [] as [String; 0]);
}

#[test]
fn a_lab_of_an_earlier_boot_is_replaced() {
    let lab = Lab::new("boot");
    lab.ok(&["up", "--nodes", "1"]);
    let file = lab.dir().join("lab.json");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let text = fs::read_to_string(&file).unwrap().replace(boot.trim(), "another");
    fs::write(&file, text).unwrap();
    has(&lab.fails(&["status"]), &["before the last boot"]);
    assert_eq!(lab.listed(), (json!(1), json!("stale")));
    has(&lab.ok(&["up", "--nodes", "1"]), &["Up in"]);
    lab.ok(&["down"]);
    assert_eq!(lab.traces(), [] as [String; 0]);
}

#[test]
fn down_removes_incomplete_labs() {
    let lab = Lab::new("half");
    lab.ok(&["up", "--nodes", "2"]);
    // A process in a pod, a missing namespace and an unreadable state file.
    let mut inside = lab.command(&["exec", "p1", "--", "sleep", "600"]).spawn().unwrap();
    wait_until("the command in the pod", DEADLINE, || {
        Ok(fs::read_to_string(format!("/proc/{}/comm", inside.id()))?.trim() == "sleep")
    })
    .unwrap();
    let missing = format!("pwlab-{}-n2", lab.name());
    assert!(Command::new("ip").args(["netns", "del", &missing]).status().unwrap().success());
    let file = lab.dir().join("lab.json");
    let complete = fs::read(&file).unwrap();
    fs::write(&file, &complete[..complete.len() / 2]).unwrap();
    has(&lab.fails(&["status"]), &["is corrupt", &lab.command_line("down")]);
    assert_eq!(lab.listed(), (json!(null), json!("unreadable")));
    // Only the state file has the agent of the missing namespace.
    fs::write(&file, complete).unwrap();
    lab.ok(&["down"]);
    assert!(!inside.wait().unwrap().success());
    assert_eq!(lab.traces(), [] as [String; 0]);
    // Without a directory.
    lab.ok(&["up", "--nodes", "1"]);
    remove_directory(&lab);
    // An agent that still runs may create its directory again, so the lab is either orphaned or incomplete.
    has(&lab.ok(&["up", "--nodes", "1"]), &[": removing ", " first\n", "Up in"]);
    remove_directory(&lab);
    has(&lab.ok(&["down"]), &["removed: 2 processes"]);
    assert_eq!(lab.listed(), (json!(null), json!(null)), "a removed lab is not listed");
    assert_eq!(lab.traces(), [] as [String; 0]);
}

/// Retried until the lab is listed without a directory, because processes of the lab write into it and may create it again.
fn remove_directory(lab: &Lab) {
    wait_until("the removal of the directory", DEADLINE, || {
        let removed = fs::remove_dir_all(lab.dir());
        Ok(removed.is_ok() && lab.listed() == (json!(null), json!("orphaned")))
    })
    .unwrap();
}
