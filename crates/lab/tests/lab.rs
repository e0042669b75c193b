//! A lab removes all its objects, also after a panic or SIGKILL. Needs root.

#![expect(clippy::unwrap_used, reason = "a test stops at the first error, also in helper functions")]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use lab::{CableEnd, DEADLINE, Lab, inspect, wait_until};

/// Namespaces and directories with this name prefix.
fn objects_of(prefix: &str) -> Vec<PathBuf> {
    let directories = [Path::new("/run/netns").to_owned(), std::env::temp_dir()];
    let entries = directories.iter().flat_map(|directory| std::fs::read_dir(directory).unwrap().flatten());
    entries
        .map(|e| e.path())
        .filter(|p| p.file_name().unwrap().to_string_lossy().starts_with(prefix))
        .collect()
}

fn start_child(test: &str) -> (Child, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let prefix = lines.find_map(|line| line.unwrap().split_once("lab is ").map(|(_, name)| name.to_owned()));
    // Read until the child exits, because a closed pipe would make the child panic.
    std::thread::spawn(move || lines.count());
    (child, prefix.expect("the child prints the prefix of its lab"))
}

fn busy_lab() -> Lab {
    let lab = Lab::new("child").unwrap();
    let node = lab.node("n1").unwrap();
    node.pod("a").unwrap();
    std::fs::create_dir_all(node.run_dir()).unwrap();
    std::fs::write(node.log_file(), "text").unwrap();
    println!("lab is {}", lab.prefix());
    lab
}

#[test]
#[ignore = "helper of a_panic_removes_all_objects"]
fn child_that_panics() {
    let _lab = busy_lab();
    panic!("on purpose");
}

#[test]
#[ignore = "helper of objects_of_killed_runs_are_removed_by_the_next_lab"]
fn child_that_waits() {
    let _lab = busy_lab();
    // Returns when the parent exits.
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn namespaces_are_visible_to_ip_netns_and_removed_with_the_lab() {
    let lab = Lab::new("visible").unwrap();
    let prefix = lab.prefix().to_owned();
    let node = lab.node("n1").unwrap();
    let pod = node.pod("a").unwrap();
    for ns in [&*node, &*pod] {
        let out = Command::new("ip").args(["netns", "exec", ns.name(), "ip", "-o", "link"]).output().unwrap();
        let links = String::from_utf8(out.stdout).unwrap();
        assert!(links.contains("lo:") && links.contains("UP"), "{links}");
        assert_eq!(links.lines().count(), 1);
    }
    assert_ne!(node.cookie().unwrap(), pod.cookie().unwrap());
    assert!(node.dir().is_dir() && node.run_dir().starts_with(node.dir()));
    assert_eq!(objects_of(&prefix).len(), 3);
    drop(lab);
    assert_eq!(objects_of(&prefix), [] as [PathBuf; 0]);
    assert!(node.pod("late").unwrap_err().to_string().contains("is closed"));
}

#[test]
fn invalid_and_duplicate_names_are_rejected() {
    let lab = Lab::new("names").unwrap();
    lab.node("n1").unwrap();
    for bad in ["n1", "", "a/b", "..", "a b"] {
        assert!(lab.node(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn a_destroyed_pod_is_removed_and_can_be_recreated() {
    let lab = Lab::new("destroy").unwrap();
    let node = lab.node("n1").unwrap();
    let pod = node.pod("a").unwrap();
    node.sh(&["ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", pod.name()]).unwrap();
    pod.destroy().unwrap();
    assert!(!pod.netns_path().exists());
    // No process holds the namespace, so the kernel removes its links.
    wait_until("removal of the veth", DEADLINE, || Ok(inspect::links(&node)?.len() == 1)).unwrap();
    let recreated = node.pod("a").unwrap();
    assert_ne!(pod.id(), recreated.id());
    recreated.destroy_but_leave_file().unwrap();
    assert!(recreated.netns_path().is_file());
    assert!(recreated.enter(|| ()).is_err());
}

#[test]
fn a_panic_removes_all_objects() {
    let (mut child, prefix) = start_child("child_that_panics");
    assert!(!child.wait().unwrap().success());
    assert_eq!(objects_of(&prefix), [] as [PathBuf; 0]);
}

#[test]
fn objects_of_killed_runs_are_removed_by_the_next_lab() {
    let (mut child, prefix) = start_child("child_that_waits");
    let _other = Lab::new("early").unwrap();
    assert_eq!(objects_of(&prefix).len(), 3, "objects of a running process were removed");
    child.kill().unwrap();
    wait_until("the exit of the child", DEADLINE, || {
        Ok(std::fs::read_to_string(format!("/proc/{}/stat", child.id()))?.contains(") Z "))
    })
    .unwrap();
    // The child is a zombie and counts as dead. Several labs remove the same objects concurrently.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| Lab::new("sweeper").unwrap().node("n1").unwrap());
        }
    });
    child.wait().unwrap();
    assert_eq!(objects_of(&prefix), [] as [PathBuf; 0]);
}

#[test]
fn several_processes_create_labs_concurrently() {
    let mut children: Vec<_> = (0..4).map(|_| start_child("child_that_waits")).collect();
    for (child, prefix) in &children {
        assert_eq!(objects_of(prefix).len(), 3, "pid {}", child.id());
    }
    for (child, prefix) in &mut children {
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
        assert_eq!(objects_of(prefix), [] as [PathBuf; 0]);
    }
}

#[test]
fn errors_contain_stderr_and_closures_run_in_the_namespace() {
    let lab = Lab::new("sh").unwrap();
    let node = lab.node("n1").unwrap();
    let error = node.sh(&["ip", "link", "show", "nope"]).unwrap_err().to_string();
    assert!(error.contains("nope") && error.contains("does not exist"), "{error}");
    assert!(node.sh(&["no-such-program"]).is_err());
    assert_eq!(node.json(&["ip", "-j", "link"]).unwrap()[0]["ifname"], "lo");
    let inside = node.enter(|| std::fs::read_link("/proc/thread-self/ns/net").unwrap()).unwrap();
    assert_ne!(inside, std::fs::read_link("/proc/thread-self/ns/net").unwrap());
}

#[test]
fn a_wire_carries_both_families() {
    let lab = Lab::new("wire").unwrap();
    let (a, b) = (lab.node("a").unwrap(), lab.node("b").unwrap());
    let left = CableEnd { ns: &a, dev: "up0", addresses: &["192.0.2.1/24", "2001:db8::1/64"] };
    let right = CableEnd { ns: &b, dev: "up0", addresses: &["192.0.2.2/24", "2001:db8::2/64"] };
    lab.wire(&left, &right).unwrap();
    for to in ["192.0.2.2", "2001:db8::2"] {
        assert!(lab::ping(&a, to.parse().unwrap(), 2).unwrap().all(), "{to}");
    }
    let nets: Vec<_> = inspect::addresses(&a, "up0").unwrap().iter().map(|a| a.net.to_string()).collect();
    assert_eq!(nets, ["192.0.2.1/24", "2001:db8::1/64", "fe80::a/64"]);
    let other_lab = Lab::new("other").unwrap();
    assert!(other_lab.wire(&left, &right).unwrap_err().to_string().contains("does not belong to lab"));
    assert!(lab.wire(&left, &right).is_err(), "a duplicate link name was accepted");
}
