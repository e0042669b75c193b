//! The log: one line a request, bounded, and never in the way of a pod.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};
use testkit::{Call, Pod, Verb};

use crate::common::{Host, ips, with_previous};
use crate::watch::{dual, refused, wrapped};

const MIB: u64 = 1024 * 1024;

fn lines(host: &Host) -> Vec<Value> {
    let text = fs::read_to_string(host.node.log_file()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[track_caller]
fn about(line: &Value, command: &str, pod: &Pod) {
    let netns = pod.netns_path().display().to_string();
    let expected = json!([command, "blue", pod.id(), "eth0", netns]);
    assert_eq!(json!(["command", "network", "container", "ifname", "netns"].map(|key| &line[key])), expected);
}

#[test]
fn c7_b9_one_line_a_request_says_what_for_whom_and_how_it_went() {
    let host = Host::new("c7");
    let (pod, config) = (host.pod("a"), dual(&host, &json!({})));
    let result = host.add(&pod, &config);
    let refusal = refused("second ADD", &host.plugin.add(&pod, &config).unwrap());
    host.plugin.check(&pod, &config, &result).unwrap().ok().unwrap();
    host.del(&pod, &with_previous(&config, &result));
    host.plugin.gc(&host.node, &config, &[]).unwrap().ok().unwrap();
    host.plugin.status(&host.node, &config).unwrap().ok().unwrap();
    let lines = lines(&host);
    let outcomes: Vec<_> =
        lines.iter().map(|l| (l["command"].as_str().unwrap(), l["outcome"].as_str().unwrap())).collect();
    let expected =
        [("ADD", "ok"), ("ADD", "failed"), ("CHECK", "ok"), ("DEL", "ok"), ("GC", "ok"), ("STATUS", "ok")];
    assert_eq!(outcomes, expected);
    for (line, command) in lines.iter().zip(["ADD", "ADD", "CHECK", "DEL"]) {
        about(line, command, &pod);
    }
    assert_eq!(lines[0]["addresses"], json!(ips(&result)));
    assert_eq!(lines[3]["addresses"], json!(ips(&result)), "DEL says what became free");
    assert_eq!(lines[1]["code"], refusal.code);
    assert!(lines[1]["error"].as_str().unwrap().contains(&refusal.msg));
    assert_eq!((&lines[4]["network"], &lines[5]["network"]), (&json!("blue"), &json!("blue")));
    for line in &lines {
        assert!(line["ms"].as_f64().is_some_and(|ms| ms > 0.0), "{line}");
        assert!(line["time"].as_f64().is_some_and(|time| time > 1_700_000_000.0), "{line}");
    }
}

#[test]
fn b9_the_log_is_made_with_mode_0640() {
    let host = Host::new("b9mode");
    let open = wrapped(&host, "umask", "umask 0; exec \"$PLUGIN\"");
    open.status(&host.node, &dual(&host, &json!({}))).unwrap().ok().unwrap();
    let mode = fs::metadata(host.node.log_file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o640);
}

#[test]
fn c7_b9_a_log_that_cannot_be_written_never_fails_a_pod() {
    let host = Host::new("c7no");
    host.node.sh(&["mkfifo", &host.node.dir().join("pipe").display().to_string()]).unwrap();
    let dir = host.node.dir();
    let bad = [
        dir.join("no/such/directory/log"),
        dir.to_owned(),
        dir.join("pipe"),
        "/dev/full".into(),
        "/proc/1/x".into(),
    ];
    for (number, log) in bad.into_iter().enumerate() {
        let config = dual(&host, &json!({"logFile": log}));
        let (pod, case) = (host.pod(&format!("p{number}")), log.display());
        let add = host.plugin.add(&pod, &config).unwrap();
        let result = add.ok().unwrap();
        assert!(add.stderr.contains(&format!("cannot write the log {case}")), "{}", add.stderr);
        host.check(&pod, &config, &result).unwrap();
        host.del(&pod, &config);
    }
    let config = dual(&host, &json!({"logFile": ""}));
    let silent = host.plugin.status(&host.node, &config).unwrap();
    assert_eq!((silent.success(), silent.stderr.as_str()), (true, ""), "no log is asked for");
}

#[test]
fn b9_the_log_is_bounded() {
    let host = Host::new("b9size");
    let config = dual(&host, &json!({}));
    let (log, old) = (host.node.log_file(), host.node.log_file().with_extension("log.1"));
    let status = || host.plugin.status(&host.node, &config).unwrap().ok().unwrap();
    status();
    assert!(log.is_file() && !old.exists());
    // A hole is as long as text.
    for _ in 0..2 {
        File::options().write(true).open(&log).unwrap().set_len(8 * MIB).unwrap();
        status();
        assert!(!log.exists() && fs::metadata(&old).unwrap().len() > 8 * MIB, "the full one moved aside");
        status();
        assert_eq!(lines(&host).len(), 1, "and a new one begins");
    }
    assert!(fs::metadata(&old).unwrap().len() < 9 * MIB);
}

/// Lines of processes that run at the same moment do not mix.
#[test]
fn b9_parallel_lines_stay_whole() {
    let host = Host::new("b9parallel");
    let config = dual(&host, &json!({}));
    let call = Call::network(Verb::Status, &config);
    let running: Vec<_> = (0..16).map(|_| host.plugin.spawn(&host.node, &call).unwrap()).collect();
    for process in running {
        process.wait(testkit::DEADLINE).unwrap().ok().unwrap();
    }
    assert_eq!(lines(&host).len(), 16);
}

/// Where others can write, a link of that name may lead anywhere.
#[test]
fn a14_the_log_follows_no_symlink_and_no_pod_fails() {
    let host = Host::new("loglink");
    let (victim, link) = (host.node.dir().join("victim"), host.node.dir().join("link"));
    fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink(&victim, &link).unwrap();
    let config = dual(&host, &json!({"logFile": link}));
    let pod = host.pod("a");
    let add = host.plugin.add(&pod, &config).unwrap();
    add.ok().unwrap();
    assert!(add.stderr.contains("symlink") && add.stderr.contains(link.to_str().unwrap()), "{}", add.stderr);
    host.del(&pod, &config);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}
