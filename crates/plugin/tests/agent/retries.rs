//! Retries while the agent is unreachable or not ready.

use std::time::Duration;

use serde_json::json;
use testkit::{Call, DEADLINE, Verb, wait_until, with_prev_result};

use crate::common::{Host, with};
use crate::fake_agent::{FakeAgent, Reply, config, log_lines, result};
use crate::watch::refused_with;

const INCOMPLETE: Reply = Reply::Raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"res");

#[test]
fn b8_a_retry_has_the_same_request_id() {
    let host = Host::new("b8id");
    let failures = [Reply::Raw(""), Reply::error(503, 11, "starting"), INCOMPLETE, Reply::Raw("HTTP/1.1 20")];
    let agent = FakeAgent::new(&host.node, [failures.as_slice(), &[Reply::result()]].concat());
    let (pod, config) = (host.pod("a"), config(&host, &json!({})));
    assert_eq!(host.add(&pod, &config), result());
    let requests = agent.requests();
    assert_eq!(requests.len(), 5);
    assert!(requests.iter().all(|request| request == &requests[0]), "requests differ: {requests:?}");
    let line = log_lines(&host).remove(0);
    assert_eq!((&line["attempts"], &line["requestId"]), (&json!(5), &requests[0].call["requestId"]));
}

#[test]
fn check_and_gc_are_retried() {
    let host = Host::new("retry");
    let (pod, config) = (host.pod("a"), config(&host, &json!({})));
    let agent = FakeAgent::new(&host.node, vec![INCOMPLETE, Reply::done(), INCOMPLETE, Reply::done()]);
    host.plugin.check(&pod, &config, &result()).unwrap().ok().unwrap();
    host.plugin.gc(&host.node, &config, &[]).unwrap().ok().unwrap();
    let ids: Vec<_> = agent.requests().iter().map(|request| request.call["requestId"].clone()).collect();
    assert!(ids[0] == ids[1] && ids[2] == ids[3] && ids[0] != ids[2], "{ids:?}");
}

/// The first agent stops after it received the request and removes its socket. The second agent answers.
#[test]
fn a_request_is_retried_while_the_agent_restarts() {
    let host = Host::new("restart");
    let (pod, config) = (host.pod("a"), config(&host, &json!({})));
    let first = FakeAgent::new(&host.node, vec![Reply::Raw("")]);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| host.add(&pod, &config));
        wait_until("the first request", DEADLINE, || Ok(!first.requests().is_empty())).unwrap();
        let id = first.requests()[0].call["requestId"].clone();
        drop(first);
        let second = FakeAgent::new(&host.node, vec![Reply::result()]);
        assert_eq!(running.join().unwrap(), result());
        assert_eq!(second.requests()[0].call["requestId"], id);
    });
}

/// The calls run in parallel, because each takes ten seconds.
#[test]
fn b4_requests_without_an_answer_fail_with_code_11() {
    let host = Host::new("b4none");
    let (pod, config) = (host.pod("a"), config(&host, &json!({})));
    let busy = Host::new("b4busy");
    let busy_config = crate::fake_agent::config(&busy, &json!({}));
    let _agent = FakeAgent::new(&busy.node, vec![Reply::error(503, 11, "the disk is full")]);
    let hung = Host::new("b4hung");
    let hung_config = crate::fake_agent::config(&hung, &json!({}));
    let _hung_agent = FakeAgent::new(&hung.node, vec![Reply::Silence]);
    let gc = with(&config, &json!({"cni.dev/valid-attachments": []}));
    let check = with_prev_result(&config, &result()).unwrap();
    let calls = [
        Call::pod(Verb::Add, &pod, &config),
        Call::pod(Verb::Check, &pod, &check),
        Call::network(Verb::Gc, &gc),
        Call::pod(Verb::Add, &pod, &busy_config),
        Call::pod(Verb::Add, &pod, &hung_config),
    ];
    let no_agent: &[&str] = &["no agent listens on", "agent.sock", "podwire agent", "tried"];
    std::thread::scope(|scope| {
        let (busy, hung): (&[&str], &[&str]) =
            (&["the disk is full", "tried"], &["did not answer within 10 s", "busy or stuck"]);
        for (call, words) in calls.iter().zip([no_agent, no_agent, no_agent, busy, hung]) {
            let host = &host;
            scope.spawn(move || {
                let outcome = host.plugin.call(&host.node, call).unwrap();
                refused_with(&format!("{words:?}"), &outcome, (11, words));
                assert!(outcome.elapsed >= Duration::from_secs(10), "{:?}", outcome.elapsed);
            });
        }
    });
    // Pauses grow from 5 ms to 200 ms.
    let attempts = log_lines(&host)[0]["attempts"].as_u64().unwrap();
    assert!((20..200).contains(&attempts), "{attempts} attempts");
}
