//! What is in deploy/ is what a machine gets: checked with systemd's own eyes, where they are.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use agent::install::VARIABLES;

/// systemd's measure of exposure: 0 is none, 10 all. CAP_SYS_ADMIN and writable sysctls are what is left.
const MOST_EXPOSURE: f64 = 3.5;

fn deploy(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name)
}

fn unit() -> String {
    fs::read_to_string(deploy("podwire.service")).unwrap()
}

/// None: there is no systemd here.
fn analyze(arguments: &[&str]) -> Option<Output> {
    match Command::new("systemd-analyze").args(arguments).output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("systemd-analyze is not installed: the unit is not checked by it");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The unit with programs that exist here.
fn patched(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("podwire.service");
    let text = unit();
    assert!(text.contains("\nExecStart=/usr/local/bin/podwire agent\n"), "{text}");
    fs::write(&path, text.replace("/usr/local/bin/podwire", "/bin/true")).unwrap();
    path
}

fn both(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_unit_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let unit = patched(&folder);
    let Some(output) = analyze(&["verify", "--man=no", "--recursive-errors=one", unit.to_str().unwrap()])
    else {
        return;
    };
    let text = both(&output);
    // A mistake in a line is only a warning, and then the line does nothing.
    assert!(output.status.success() && !text.contains("podwire.service"), "{text}");
}

#[test]
fn the_unit_is_hardened() {
    let folder = tempfile::tempdir().unwrap();
    let unit = patched(&folder);
    let arguments = ["security", "--offline=yes", "--no-pager", unit.to_str().unwrap()];
    let Some(output) = analyze(&arguments) else { return };
    let text = both(&output);
    if !output.status.success() && text.contains("offline") {
        eprintln!("this systemd knows no --offline: exposure is not measured");
        return;
    }
    let words = text
        .lines()
        .rev()
        .find(|line| line.contains("Overall exposure level"))
        .unwrap_or_else(|| panic!("{text}"));
    let level = words.split_whitespace().find_map(|word| word.parse::<f64>().ok()).unwrap();
    println!("{}", words.trim());
    assert!(level <= MOST_EXPOSURE, "{text}");
}

/// What a pod's life depends on; each of these lines was somebody's outage.
#[test]
fn the_unit_keeps_what_running_pods_need() {
    let unit = unit();
    for line in [
        "RuntimeDirectoryPreserve=yes",
        "KillMode=mixed",
        "Restart=always",
        "StartLimitIntervalSec=0",
        "MountFlags=slave",
        "ProtectKernelTunables=no",
        "RestrictNamespaces=net",
        "WatchdogSec=120",
        "CapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_NET_ADMIN CAP_NET_BROADCAST CAP_SYS_ADMIN CAP_SYS_PTRACE",
    ] {
        assert!(unit.lines().any(|there| there == line), "{line}");
    }
}

#[test]
fn a7_the_readme_names_every_variable_of_the_template() {
    let text = fs::read_to_string(deploy("README.md")).unwrap();
    let named: Vec<&str> = text
        .lines()
        .filter_map(|line| {
            line.strip_prefix("| `{{ ").and_then(|rest| rest.split_once(" }}`")).map(|(name, _)| name)
        })
        .collect();
    assert_eq!(named, VARIABLES);
}
