//! Control characters from a pod's author in the agent's log and on a terminal.

use serde_json::{Value, json};
use testkit::{Call, Verb};

use crate::common::Host;

/// A line break that forges a log line, a window title, both forms of clear screen, and a bidirectional override.
const HOSTILE: &str = "a\nINFO ADD ok forged\r\u{1b}]0 owned\u{7}\u{1b}[2J\u{9b}2J\u{202e}\u{7f}b";

fn has_no_controls(text: &str) -> bool {
    !text.contains(|c: char| (c.is_control() && c != '\n') || ('\u{202a}'..='\u{202e}').contains(&c))
}

#[test]
fn control_characters_in_pod_names_are_escaped() {
    let host = Host::new("hostile");
    let pod = host.pod("a");
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={HOSTILE};K8S_POD_UID={HOSTILE}");
    let call = |verb| Call { args: Some(args.clone()), ..Call::pod(verb, &pod, &host.config(&json!({}))) };
    host.plugin.call(&host.node, &call(Verb::Add)).unwrap().ok().unwrap();
    // A second ADD is refused: the error and the pod's name are logged, too.
    host.plugin.call(&host.node, &call(Verb::Add)).unwrap().error().unwrap();
    let run_dir = host.agent.run_dir().to_str().unwrap();
    for args in [&["pods"][..], &["attachment", "show", pod.id()], &["status"]] {
        let output = host.agent.podwire(&[args, &["--run-dir", run_dir]].concat()).unwrap();
        assert!(has_no_controls(&output.stdout) && has_no_controls(&output.stderr), "{args:?}: {output:?}");
        assert!(!output.stdout.lines().any(|line| line.starts_with("INFO")), "{args:?}: {output:?}");
        let json = host.agent.podwire(&[args, &["-o", "json", "--run-dir", run_dir]].concat()).unwrap();
        assert!(has_no_controls(&json.stdout), "{args:?}: {json:?}");
        let value: Value = serde_json::from_str(&json.stdout).unwrap();
        if args[0] == "pods" {
            assert_eq!(value["attachments"][0]["record"]["pod"]["name"], HOSTILE, "JSON must keep the value");
        }
    }
    host.plugin.call(&host.node, &call(Verb::Del)).unwrap().ok().unwrap();
    let log = host.agent.log().unwrap();
    assert!(has_no_controls(&log) && log.contains("forged"), "{log}");
    assert!(log.lines().all(|line| line.starts_with("20")), "a line has no timestamp: {log}");
    // The plugin's log: one JSON object per request.
    let log = std::fs::read_to_string(host.agent.run_dir().with_extension("cni.log")).unwrap();
    assert!(has_no_controls(&log), "{log}");
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
