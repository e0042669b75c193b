//! DEL while nobody can be asked.

use std::fs;

use api::{Tombstone, Tombstones};
use serde_json::json;
use testkit::{Call, Pod, Verb};

use crate::common::{Host, with};
use crate::standin::{Reply, Standin, config, log_lines};
use crate::watch::refused_with;

fn left(host: &Host) -> Vec<Tombstone> {
    Tombstones::new(&host.node.run_dir()).list().unwrap()
}

/// Exactly one, for this pod; it is taken away again.
fn take(host: &Host, pod: &Pod) -> api::CniCall {
    let tombstones = Tombstones::new(&host.node.run_dir());
    let tombstone = left(host).pop().unwrap();
    let key = tombstone.key.clone().unwrap();
    assert_eq!(key.to_string(), format!("blue/{}/eth0", pod.id()));
    assert!(tombstones.exists(&key).unwrap());
    tombstones.remove(&tombstone).unwrap();
    assert!(tombstones.is_empty().unwrap());
    tombstone.call.unwrap()
}

#[test]
fn del_without_an_agent_leaves_a_tombstone_that_is_the_call() {
    let host = Host::new("stone");
    let (pod, config) = (host.pod("a"), config(&host, &json!({})));
    let del = Call::pod(Verb::Del, &pod, &config);
    let outcome = host.plugin.call(&host.node, &del).unwrap();
    assert_eq!((outcome.ok().unwrap(), outcome.stdout.as_str()), (json!(null), ""));
    for word in ["no agent listens on", "tombstone", "podwire agent"] {
        assert!(outcome.stderr.contains(word), "{word}: {}", outcome.stderr);
    }
    let line = log_lines(&host).remove(0);
    let call = take(&host, &pod);
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
fn whatever_is_no_answer_of_the_agent_leaves_a_tombstone() {
    let host = Host::new("stones");
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
        let agent = Standin::new(&host.node, vec![reply]);
        host.del(&pod, &config);
        assert_eq!(agent.asked().len(), 1, "{case}: a DEL is tried once");
        let id = agent.asked()[0].call["requestId"].clone();
        assert_eq!(json!(take(&host, &pod).request_id), id, "{case}");
    }
}

#[test]
fn an_answer_of_the_agent_leaves_none() {
    let host = Host::new("stoneless");
    let (pod, config) = (host.pod("a"), config(&host, &json!({})));
    let _agent = Standin::new(&host.node, vec![Reply::done(), Reply::error(500, 103, "link is stuck")]);
    host.del(&pod, &config);
    refused_with("500", &host.plugin.del(&pod, &config).unwrap(), (103, &["link is stuck", "look there"]));
    assert!(left(&host).is_empty());
}

#[test]
fn one_key_has_one_tombstone_and_others_have_theirs() {
    let host = Host::new("stonekeys");
    let config = config(&host, &json!({}));
    let (a, b) = (host.pod("a"), host.pod("b"));
    for pod in [&a, &a, &b] {
        host.del(pod, &config);
    }
    host.call_on(Verb::Del, (&a, "eth1"), &config).ok().unwrap();
    host.del(&a, &with(&config, &json!({"name": "red"})));
    let mut keys: Vec<_> =
        left(&host).into_iter().map(|tombstone| tombstone.key.unwrap().to_string()).collect();
    keys.sort();
    let mut expected =
        [("blue", &a, "eth0"), ("blue", &b, "eth0"), ("blue", &a, "eth1"), ("red", &a, "eth0")]
            .map(|(network, pod, ifname)| format!("{network}/{}/{ifname}", pod.id()));
    expected.sort();
    assert_eq!(keys, expected);
}

/// 64 at once, some of them of one key.
#[test]
fn parallel_dels_lose_none() {
    let host = Host::new("stonecrowd");
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
    let tombstones = left(&host);
    assert!(
        tombstones.len() == 40 && tombstones.iter().all(|tombstone| tombstone.call.is_ok()),
        "{tombstones:?}"
    );
}

#[test]
fn a_tombstone_that_cannot_be_written_is_try_again_later_with_both_causes() {
    let host = Host::new("stonefull");
    let file = host.node.dir().join("file");
    fs::write(&file, "").unwrap();
    let (pod, config) = (host.pod("a"), config(&host, &json!({"runDir": file})));
    let words = ["cannot leave a tombstone", file.to_str().unwrap(), "no agent listens on", "podwire agent"];
    refused_with("no directory", &host.plugin.del(&pod, &config).unwrap(), (11, &words));
}

/// The agent takes the call and says nothing. It takes 20 s, so only in `make soak`.
#[test]
fn a_silent_agent_is_left_after_a_while() {
    if std::env::var_os("PODWIRE_SOAK").is_none() {
        return;
    }
    let host = Host::new("stonesilent");
    let (pod, config) = (host.pod("a"), config(&host, &json!({})));
    let _agent = Standin::new(&host.node, vec![Reply::Silence]);
    let outcome = host.plugin.del(&pod, &config).unwrap();
    outcome.ok().unwrap();
    assert!(outcome.stderr.contains("did not answer within 20 s"), "{}", outcome.stderr);
    take(&host, &pod);
}
