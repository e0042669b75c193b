//! Labs that are half there: refused, replaced or removed, never left.

use std::fs;
use std::process::{Command, Stdio};

use testkit::{DEADLINE, wait_until};

use crate::common::{Lab, has};

#[test]
fn a_name_is_used_once_and_wrong_wishes_make_nothing() {
    let lab = Lab::new("twice");
    lab.ok(&["up", "--nodes", "1", "--pods", "0"]);
    has(&lab.fails(&["up"]), &["is up already", &lab.hint("down"), "with --name NAME"]);
    has(&lab.fails(&["test"]), &["has no pods", &lab.hint("pod add n1")]);
    let other = Lab::new("other");
    for (args, word) in [
        (&["up", "--nodes", "0"][..], "1 to 200 nodes"),
        (&["up", "--nodes", "2", "--subnets", "3"], "1 to 2 subnets, not 3"),
        (&["up", "--etcd-members", "2"], "1 or 3 members"),
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
    let wild =
        Command::new(env!("CARGO_BIN_EXE_podwire")).args(["lab", "up", "--name", "a/b"]).output().unwrap();
    assert!(!wild.status.success());
}

#[test]
fn an_up_that_fails_removes_what_it_made() {
    let lab = Lab::new("fails");
    let output = lab.command(&["up", "--nodes", "2"]).env("PODWIRE_CNI", "/bin/false").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    has(&said, &["could not be made, and nothing of it is left", "cannot attach pod"]);
    assert_eq!(lab.traces(), [] as [String; 0]);
}

#[test]
fn an_up_that_was_killed_is_replaced_by_the_next() {
    let lab = Lab::new("killed");
    let mut up = lab.command(&["up", "--nodes", "20", "--pods", "0"]).stdout(Stdio::null()).spawn().unwrap();
    wait_until("the first nodes", DEADLINE, || Ok(lab.namespaces().count() > 4)).unwrap();
    up.kill().unwrap();
    up.wait().unwrap();
    has(&lab.fails(&["status"]), &["is incomplete", &lab.hint("down")]);
    let said = lab.ok(&["up", "--nodes", "1"]);
    has(&said, &["what an earlier one left is removed first", "Up in"]);
    assert_eq!(lab.json(&["status"])["nodes"].as_array().unwrap().len(), 1);
    assert_eq!(lab.namespaces().count(), 4, "underlay, etcd1, n1 and its pod");
    lab.ok(&["down"]);
    assert_eq!(lab.traces(), [] as [String; 0]);
}

#[test]
fn a_lab_from_before_the_last_boot_is_replaced() {
    let lab = Lab::new("boot");
    lab.ok(&["up", "--nodes", "1"]);
    let file = lab.dir().join("lab.json");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let text = fs::read_to_string(&file).unwrap().replace(boot.trim(), "another");
    fs::write(&file, text).unwrap();
    has(&lab.fails(&["status"]), &["before the last boot"]);
    has(&lab.ok(&["up", "--nodes", "1"]), &["Up in"]);
    lab.ok(&["down"]);
    assert_eq!(lab.traces(), [] as [String; 0]);
}

#[test]
fn down_takes_away_whatever_is_left() {
    let lab = Lab::new("half");
    lab.ok(&["up", "--nodes", "2"]);
    // Somebody's shell inside, a namespace that is gone, a state that cannot be read.
    let mut inside = lab.command(&["exec", "p1", "--", "sleep", "600"]).spawn().unwrap();
    wait_until("the command inside", DEADLINE, || {
        Ok(fs::read_to_string(format!("/proc/{}/comm", inside.id()))?.trim() == "sleep")
    })
    .unwrap();
    let gone = format!("pwlab-{}-n2", lab.name());
    assert!(Command::new("ip").args(["netns", "del", &gone]).status().unwrap().success());
    let file = lab.dir().join("lab.json");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    has(&lab.fails(&["status"]), &["is damaged", &lab.hint("down")]);
    // The agent of the namespace that is gone is known from the state alone.
    fs::write(&file, whole).unwrap();
    lab.ok(&["down"]);
    assert!(!inside.wait().unwrap().success());
    assert_eq!(lab.traces(), [] as [String; 0]);
    // And without any directory.
    lab.ok(&["up", "--nodes", "1"]);
    remove_directory(&lab);
    has(&lab.ok(&["up", "--nodes", "1"]), &["an earlier one left", "Up in"]);
    remove_directory(&lab);
    has(&lab.ok(&["down"]), &["is removed: 2 processes"]);
    assert_eq!(lab.traces(), [] as [String; 0]);
}

/// Its processes write into it meanwhile.
fn remove_directory(lab: &Lab) {
    wait_until("the directory to go", DEADLINE, || Ok(fs::remove_dir_all(lab.dir()).is_ok())).unwrap();
}
