//! The benchmark works and removes all its objects. The figures are not checked, because a test host is busy. Needs root.

#![expect(clippy::unwrap_used, reason = "a test stops at the first error, also in helper functions")]

use std::path::Path;
use std::process::Command;

use serde_json::Value;

#[test]
fn a_quick_run_succeeds_and_removes_all_objects() {
    if !Path::new(testkit::REFERENCE_DIR).join("bridge").is_file() {
        println!("skipped: there is no reference plugin in {}", testkit::REFERENCE_DIR);
        return;
    }
    let cases = ["ADD, dual stack", "DEL/s, agent, in parallel, v4", "start to ready"];
    let report = run(&["--only", "pods", "--pods", "2"], &cases);
    for row in report["rows"].as_array().unwrap() {
        assert!(row["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{row:#}");
    }
    for figure in report["footprint"].as_array().unwrap() {
        assert!(figure["value"].as_f64().is_some_and(|value| value >= 0.0), "{figure:#}");
    }
    let shares = report["shares"].as_array().unwrap();
    assert_eq!(shares.len(), 4, "{report:#}");
    assert!(shares.iter().all(|share| share["agent"].as_f64().is_some_and(|ms| ms > 0.0)), "{report:#}");
}

#[test]
fn a_quick_run_of_the_firewall_has_every_figure() {
    let cases = ["routed, 0 pods there: open, add pod", "bridge, all 6 pods: repair after a flush"];
    let report = run(&["--only", "firewall", "--pods", "3"], &cases);
    for times in report["times_ms"].as_array().unwrap() {
        let count = if times["case"].as_str().unwrap().contains(", all ") { 5 } else { 3 };
        assert!(times["count"] == count && times["p50"].as_f64().is_some_and(|ms| ms > 0.0), "{times:#}");
    }
}

#[test]
fn a_quick_run_of_many_nodes_has_every_figure() {
    let cases =
        ["100 routes", "one change among 100", "commit to route, p99", "20 joins at once", "VXLAN, IPv6"];
    let report = run(&["--only", "routes,scale,joins,traffic"], &cases);
    assert_eq!(report["rows"], Value::Array(vec![]), "other parts were measured: {report:#}");
    let lines = report["nodes"].as_array().unwrap();
    for line in lines {
        assert!(line["podwire"].as_f64().is_some_and(|figure| figure >= 0.0), "{line:#}");
    }
    let distinct = lines.iter().find(|line| line["case"].as_str().unwrap().starts_with("different blocks"));
    assert_eq!(distinct.unwrap()["podwire"], 20.0, "{distinct:?}");
}

/// Runs the benchmark and returns its report, which has no failures.
fn run(args: &[&str], cases: &[&str]) -> Value {
    let out = tempfile::tempdir().unwrap();
    let mut bench = Command::new(env!("CARGO_BIN_EXE_podwire-bench"));
    let bench = bench.args(["--quick", "--out"]).arg(out.path()).args(args).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&bench.stdout), String::from_utf8_lossy(&bench.stderr));
    assert!(bench.status.success(), "{stdout}\n{stderr}");
    for case in cases {
        assert!(stdout.contains(case), "{case} is missing in\n{stdout}");
    }
    let report = std::fs::read_to_string(out.path().join("latest.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["failures"], Value::Array(vec![]), "{report:#}");
    assert_eq!(report["left"], Value::Array(vec![]), "{report:#}");
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 2);
    report
}

/// Compares a build with itself. Checks that every figure exists, but not the verdicts, because the host is busy.
#[test]
fn a_baseline_run_compares_every_case() {
    let baseline = tempfile::tempdir().unwrap();
    for (name, program) in [
        ("podwire-cni", testkit::Plugin::podwire().unwrap().path),
        ("podwire", testkit::agent_program().unwrap()),
    ] {
        std::os::unix::fs::symlink(program, baseline.path().join(name)).unwrap();
    }
    let out = tempfile::tempdir().unwrap();
    let mut bench = Command::new(env!("CARGO_BIN_EXE_podwire-bench"));
    bench.args(["--quick", "--pods", "3", "--out"]).arg(out.path());
    let bench = bench.arg("--baseline").arg(baseline.path()).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&bench.stdout), String::from_utf8_lossy(&bench.stderr));
    assert!(bench.status.success(), "{stdout}\n{stderr}");
    let report = std::fs::read_to_string(out.path().join("compare-latest.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["failures"], Value::Array(vec![]), "{report:#}");
    assert_eq!(report["left"], Value::Array(vec![]), "{report:#}");
    let lines = report["lines"].as_array().unwrap();
    // 4 setups, 2 stacks, 6 figures; 2 transports, 2 families, 2 figures.
    assert_eq!(lines.len(), 48 + 8, "{report:#}");
    for line in lines {
        assert_ne!(line["verdict"], "unknown", "{line:#}");
        assert!(line["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{line:#}");
        assert!(stdout.contains(line["case"].as_str().unwrap()), "{line:#}");
    }
}

#[test]
fn a_baseline_without_binaries_is_rejected() {
    let empty = tempfile::tempdir().unwrap();
    let mut bench = Command::new(env!("CARGO_BIN_EXE_podwire-bench"));
    let bench = bench.arg("--baseline").arg(empty.path()).output().unwrap();
    let stderr = String::from_utf8_lossy(&bench.stderr);
    assert!(!bench.status.success() && stderr.contains("podwire-cni"), "{stderr}");
}

/// The plugin sleeps before each call, which exceeds any spread.
#[test]
fn a_slower_build_is_reported_as_worse() {
    let (baseline, slow, out) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (plugin, agent) = (testkit::Plugin::podwire().unwrap().path, testkit::agent_program().unwrap());
    std::os::unix::fs::symlink(&plugin, baseline.path().join("podwire-cni")).unwrap();
    std::os::unix::fs::symlink(&agent, baseline.path().join("podwire")).unwrap();
    let script = slow.path().join("podwire-cni");
    let write = format!(
        "printf '#!/bin/sh\\nsleep 0.2\\nexec {}\\n' >{1} && chmod 755 {1}",
        plugin.display(),
        script.display()
    );
    assert!(Command::new("sh").args(["-c", &write]).status().unwrap().success());
    let mut bench = Command::new(env!("CARGO_BIN_EXE_podwire-bench"));
    bench.args(["--quick", "--strict", "--only", "pods", "--pods", "1", "--out"]).arg(out.path());
    let bench = bench.arg("--baseline").arg(baseline.path()).env("PODWIRE_CNI", &script).output().unwrap();
    let report = std::fs::read_to_string(out.path().join("compare-latest.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    let adds = |line: &&Value| line["case"].as_str().unwrap().starts_with("ADD p50");
    for line in report["lines"].as_array().unwrap().iter().filter(adds) {
        assert_eq!(line["verdict"], "worse", "{line:#}");
    }
    assert_eq!(bench.status.code(), Some(1), "{}", String::from_utf8_lossy(&bench.stdout));
}
