//! Short runs of `podwire-soak`: without findings, and with planted findings. Needs root and etcd.

#![expect(clippy::unwrap_used, reason = "a test stops at the first error, also in helper functions")]

use std::process::{Command, Output};

fn soak(args: &[&str]) -> (Output, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_podwire-soak")).args(args).output().unwrap();
    let text =
        format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output, text)
}

#[test]
fn a_short_soak_has_no_findings() {
    let (output, text) = soak(&["--seconds", "15", "--workers", "3"]);
    assert!(output.status.success(), "{text}");
    for done in ["ADDs\n", "DELs\n", "agents killed", "hostile frames: Spoof", "hostile configs: Configs"] {
        assert!(text.contains(done), "{done} is missing in\n{text}");
    }
}

#[test]
fn all_planted_objects_are_found() {
    let (output, text) = soak(&["--seconds", "5", "--workers", "1", "--plant", "--only", "spoof"]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for found in [
        "address given twice",
        "hostile datagram delivered: Planted",
        "a listener received nothing legal",
        "records, claims or tombstones are left",
        "+ link planted",
        "203.0.113.0/24",
        "elements in set pods4",
        "a namespace is left or lost",
        "a process is left",
    ] {
        assert!(text.contains(found), "{found} is not among\n{text}");
    }
}
