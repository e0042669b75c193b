//! Text from a pod's author in the agent's log and on a terminal.

use serde_json::{Value, json};
use testkit::{Call, Verb};

use crate::common::Host;

/// A line break that forges a line, a window title, a clear screen in both forms, a bidirectional override.
const HOSTILE: &str = "a\nINFO ADD ok forged\r\u{1b}]0 owned\u{7}\u{1b}[2J\u{9b}2J\u{202e}\u{7f}b";

fn is_harmless(text: &str) -> bool {
    !text.contains(|c: char| (c.is_control() && c != '\n') || ('\u{202a}'..='\u{202e}').contains(&c))
}

#[test]
fn hostile_pod_names_reach_neither_log_nor_terminal() {
    let host = Host::new("hostile");
    let pod = host.pod("a");
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={HOSTILE};K8S_POD_UID={HOSTILE}");
    let call = |verb| Call { args: Some(args.clone()), ..Call::pod(verb, &pod, &host.config(&json!({}))) };
    host.plugin.call(&host.node, &call(Verb::Add)).unwrap().ok().unwrap();
    // A second ADD is refused: the error and the pod's name are logged, too.
    host.plugin.call(&host.node, &call(Verb::Add)).unwrap().error().unwrap();
    let run_dir = host.agent.run_dir().to_str().unwrap();
    for args in [&["pods"][..], &["attachment", "show", pod.id()], &["status"]] {
        let shown = host.agent.podwire(&[args, &["--run-dir", run_dir]].concat()).unwrap();
        assert!(is_harmless(&shown.stdout) && is_harmless(&shown.stderr), "{args:?}: {shown:?}");
        assert!(!shown.stdout.lines().any(|line| line.starts_with("INFO")), "{args:?}: {shown:?}");
        let json = host.agent.podwire(&[args, &["-o", "json", "--run-dir", run_dir]].concat()).unwrap();
        assert!(is_harmless(&json.stdout), "{args:?}: {json:?}");
        let value: Value = serde_json::from_str(&json.stdout).unwrap();
        if args[0] == "pods" {
            assert_eq!(value["attachments"][0]["record"]["pod"]["name"], HOSTILE, "JSON keeps the value");
        }
    }
    host.plugin.call(&host.node, &call(Verb::Del)).unwrap().ok().unwrap();
    let log = host.agent.log().unwrap();
    assert!(is_harmless(&log) && log.contains("forged"), "{log}");
    assert!(log.lines().all(|line| line.starts_with("20")), "every line begins with its time: {log}");
    // The plugin's own log: JSON, one line a request.
    let log = std::fs::read_to_string(host.agent.run_dir().with_extension("cni.log")).unwrap();
    assert!(is_harmless(&log), "{log}");
    let pods: Vec<Value> =
        log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["pod"].take()).collect();
    assert_eq!(
        pods,
        [
            json!(format!("shop/{HOSTILE}")),
            json!(format!("shop/{HOSTILE}")),
            json!(format!("shop/{HOSTILE}"))
        ]
    );
}
