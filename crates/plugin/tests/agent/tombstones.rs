//! DEL without a reachable agent.

use std::fs;

use api::{Tombstone, Tombstones};
use serde_json::json;
use testkit::{Call, Pod, Verb};

use crate::common::{Host, with};
use crate::fake_agent::{FakeAgent, Reply, config, log_lines};
use crate::watch::refused_with;

fn list_tombstones(host: &Host) -> Vec<Tombstone> {
    Tombstones::new(&host.node.run_dir()).list().unwrap()
}

/// Removes the only tombstone, which must be for this pod, and returns its call.
fn take_only(host: &Host, pod: &Pod) -> api::CniCall {
    let tombstones = Tombstones::new(&host.node.run_dir());
    let tombstone = list_tombstones(host).pop().unwrap();
    let key = tombstone.key.clone().unwrap();
    assert_eq!(key.to_string(), format!("blue/{}/eth0", pod.id()));
    assert!(tombstones.exists(&key).unwrap());
    tombstones.remove(&tombstone).unwrap();
    assert!(tombstones.is_empty().unwrap());
    tombstone.call.unwrap()
}

#[test]
fn del_without_an_agent_writes_a_tombstone_with_the_request() {
    let host = Host::new("tombstone");
    let (pod, config) = (host.pod("a"), config(&host, &json!({})));
    let del = Call::pod(Verb::Del, &pod, &config);
    let outcome = host.plugin.call(&host.node, &del).unwrap();
    assert_eq!((outcome.ok().unwrap(), outcome.stdout.as_str()), (json!(null), ""));
    for word in ["no agent listens on", "tombstone", "podwire agent"] {
        assert!(outcome.stderr.contains(word), "{word}: {}", outcome.stderr);
    }
    let line = log_lines(&host).remove(0);
    let call = take_only(&host, &pod);
    assert_eq!(call.config.as_bytes(), del.stdin);
    assert_eq!(call.env["CNI_COMMAND"], "DEL");
    assert_eq!(call.env["CNI_CONTAINERID"], pod.id());
    let expected = json!(["DEL", "tombstone", true, call.request_id, pod.id()]);
    assert_eq!(
        json!(["command", "outcome", "agent", "requestId", "container"].map(|key| &line[key])),
        expected
    );
}

#[test]
fn del_without_a_valid_answer_writes_a_tombstone() {
    let host = Host::new("noanswer");
    let (pod, config) = (host.pod("a"), config(&host, &json!({})));
    for reply in [
        Reply::Raw(""),
        Reply::Raw("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"),
        Reply::Raw("220 smtp ready\r\n\r\n"),
        Reply::error(503, 11, "starting"),
        Reply::Status(404, String::new()),
        Reply::Status(403, String::new()),
        Reply::Status(418, "teapot".to_owned()),
        Reply::Status(200, "?".to_owned()),
    ] {
        let case = format!("{reply:?}");
        let agent = FakeAgent::new(&host.node, vec![reply]);
        host.del(&pod, &config);
        assert_eq!(agent.requests().len(), 1, "{case}: a DEL is not retried");
        let id = agent.requests()[0].call["requestId"].clone();
        assert_eq!(json!(take_only(&host, &pod).request_id), id, "{case}");
    }
}

#[test]
fn del_with_a_valid_answer_writes_no_tombstone() {
    let host = Host::new("answer");
    let (pod, config) = (host.pod("a"), config(&host, &json!({})));
    let _agent = FakeAgent::new(&host.node, vec![Reply::done(), Reply::error(500, 103, "link is stuck")]);
    host.del(&pod, &config);
    refused_with("500", &host.plugin.del(&pod, &config).unwrap(), (103, &["link is stuck", "some details"]));
    assert!(list_tombstones(&host).is_empty());
}

#[test]
fn each_attachment_has_at_most_one_tombstone() {
    let host = Host::new("keys");
    let config = config(&host, &json!({}));
    let (a, b) = (host.pod("a"), host.pod("b"));
    for pod in [&a, &a, &b] {
        host.del(pod, &config);
    }
    host.call_on(Verb::Del, (&a, "eth1"), &config).ok().unwrap();
    host.del(&a, &with(&config, &json!({"name": "red"})));
    let mut keys: Vec<_> =
        list_tombstones(&host).into_iter().map(|tombstone| tombstone.key.unwrap().to_string()).collect();
    keys.sort();
    let mut expected =
        [("blue", &a, "eth0"), ("blue", &b, "eth0"), ("blue", &a, "eth1"), ("red", &a, "eth0")]
            .map(|(network, pod, ifname)| format!("{network}/{}/{ifname}", pod.id()));
    expected.sort();
    assert_eq!(keys, expected);
}

/// 64 DELs for 40 attachments.
#[test]
fn parallel_dels_lose_no_tombstone() {
    let host = Host::new("parallel");
    let config = config(&host, &json!({}));
    let call = |number: u32| Call {
        container: Some(format!("c{}", number % 40)),
        ifname: Some("eth0".to_owned()),
        ..Call::network(Verb::Del, &config)
    };
    std::thread::scope(|scope| {
        for number in 0..64 {
            let (host, call) = (&host, call(number));
            scope.spawn(move || host.plugin.call(&host.node, &call).unwrap().ok().unwrap());
        }
    });
    let tombstones = list_tombstones(&host);
    assert!(
        tombstones.len() == 40 && tombstones.iter().all(|tombstone| tombstone.call.is_ok()),
        "{tombstones:?}"
    );
}

#[test]
fn an_unwritable_tombstone_fails_with_both_causes() {
    let host = Host::new("unwritable");
    let file = host.node.dir().join("file");
    fs::write(&file, "").unwrap();
    let (pod, config) = (host.pod("a"), config(&host, &json!({"runDir": file})));
    let words = ["cannot write a tombstone", file.to_str().unwrap(), "no agent listens on", "podwire agent"];
    refused_with("no directory", &host.plugin.del(&pod, &config).unwrap(), (11, &words));
}

/// The agent accepts the request and does not answer. The plugin waits 10 s, so this test only runs in `make soak`.
#[test]
fn del_to_an_agent_that_does_not_answer_times_out() {
    if std::env::var_os("PODWIRE_SOAK").is_none() {
        return;
    }
    let host = Host::new("silent");
    let (pod, config) = (host.pod("a"), config(&host, &json!({})));
    let _agent = FakeAgent::new(&host.node, vec![Reply::Silence]);
    let outcome = host.plugin.del(&pod, &config).unwrap();
    outcome.ok().unwrap();
    assert!(outcome.stderr.contains("did not answer within 10 s"), "{}", outcome.stderr);
    take_only(&host, &pod);
}
