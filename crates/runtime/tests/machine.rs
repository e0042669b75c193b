//! Tests of the harness: a machine is isolated from the host, and its processes exit with it.

#![expect(clippy::unwrap_used, reason = "a test stops at the first error, also in helper functions")]

use std::fs;

use runtime::{Machine, Service, Stop};
use testkit::{Lab, wait_until};

/// Number of host processes with this argument.
fn processes_with(word: &str) -> usize {
    let has_word = |path: std::path::PathBuf| {
        fs::read(path.join("cmdline")).is_ok_and(|line| line.split(|&b| b == 0).any(|w| w == word.as_bytes()))
    };
    fs::read_dir("/proc").unwrap().flatten().filter(|entry| has_word(entry.path())).count()
}

#[test]
fn processes_of_a_machine_are_killed_with_it() {
    let lab = Lab::new("machine-end").unwrap();
    let machine = Machine::new(&lab.node("n1").unwrap()).unwrap();
    // A duration that no other process on this host uses.
    let long = format!("{}.7", 1_000_000 + std::process::id());
    let mut service =
        Service::start(&machine, "orphans", &["sh", "-c", r#"setsid sleep "$0" & sleep "$0""#, &long])
            .unwrap();
    wait_until("both sleep processes", testkit::DEADLINE, || Ok(processes_with(&long) == 3 + 1)).unwrap();
    service.stop(Stop::Sigkill).unwrap();
    assert_eq!(processes_with(&long), 2, "a service's children were killed");
    drop(service);
    drop(machine);
    assert_eq!(processes_with(&long), 0);
}

#[test]
fn the_paths_of_a_machine_are_isolated() {
    let lab = Lab::new("machine-paths").unwrap();
    let node = lab.node("n1").unwrap();
    let machine = Machine::new(&node).unwrap();
    let mark = format!("{}-mark", lab.prefix());
    for directory in ["/run", "/etc", "/opt", "/var/lib", "/var/log"] {
        let inside = format!("{directory}/{mark}");
        machine.sh(&["touch", &inside]).unwrap();
        assert!(machine.path(&inside).exists(), "{inside}");
        assert!(!std::path::Path::new(&inside).exists(), "{inside}");
    }
    node.sh(&["ip", "link", "add", "mark0", "type", "bridge"]).unwrap();
    machine.sh(&["ip", "link", "show", "mark0"]).unwrap();
}
