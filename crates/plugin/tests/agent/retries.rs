//! An agent that is away for a moment, and one that stays away.

use std::time::Duration;

use serde_json::json;
use testkit::{Call, DEADLINE, Verb, wait_until, with_prev_result};

use crate::common::{Host, with};
use crate::standin::{Reply, Standin, config, log_lines, result};
use crate::watch::refused_with;

/// Half an answer.
const CUT: Reply = Reply::Raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"res");

#[test]
fn b8_a_retry_carries_the_same_id() {
    let host = Host::new("b8id");
    let away = [Reply::Raw(""), Reply::error(503, 11, "starting"), CUT, Reply::Raw("HTTP/1.1 20")];
    let agent = Standin::new(&host.node, [away.as_slice(), &[Reply::result()]].concat());
    let (pod, config) = (host.pod("a"), config(&host, &json!({})));
    assert_eq!(host.add(&pod, &config), result());
    let asked = agent.asked();
    assert_eq!(asked.len(), 5);
    assert!(asked.iter().all(|other| other == &asked[0]), "the very same request: {asked:?}");
    let line = log_lines(&host).remove(0);
    assert_eq!((&line["attempts"], &line["requestId"]), (&json!(5), &asked[0].call["requestId"]));
}

#[test]
fn check_and_gc_try_again_too() {
    let host = Host::new("retry");
    let (pod, config) = (host.pod("a"), config(&host, &json!({})));
    let agent = Standin::new(&host.node, vec![CUT, Reply::done(), CUT, Reply::done()]);
    host.plugin.check(&pod, &config, &result()).unwrap().ok().unwrap();
    host.plugin.gc(&host.node, &config, &[]).unwrap().ok().unwrap();
    let ids: Vec<_> = agent.asked().iter().map(|asked| asked.call["requestId"].clone()).collect();
    assert!(ids[0] == ids[1] && ids[2] == ids[3] && ids[0] != ids[2], "{ids:?}");
}

/// The first agent ends after it was asked; the socket is gone; the second one answers.
#[test]
fn an_agent_that_restarts_is_waited_for() {
    let host = Host::new("restart");
    let (pod, config) = (host.pod("a"), config(&host, &json!({})));
    let first = Standin::new(&host.node, vec![Reply::Raw("")]);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| host.add(&pod, &config));
        wait_until("the first request", DEADLINE, || Ok(!first.asked().is_empty())).unwrap();
        let id = first.asked()[0].call["requestId"].clone();
        drop(first);
        let second = Standin::new(&host.node, vec![Reply::result()]);
        assert_eq!(running.join().unwrap(), result());
        assert_eq!(second.asked()[0].call["requestId"], id);
    });
}

/// Ten seconds, for all verbs at once.
#[test]
fn b4_no_answer_is_try_again_later() {
    let host = Host::new("b4none");
    let (pod, config) = (host.pod("a"), config(&host, &json!({})));
    let busy = Host::new("b4busy");
    let busy_config = crate::standin::config(&busy, &json!({}));
    let _agent = Standin::new(&busy.node, vec![Reply::error(503, 11, "the disk is full")]);
    let gc = with(&config, &json!({"cni.dev/valid-attachments": []}));
    let check = with_prev_result(&config, &result()).unwrap();
    let calls = [
        Call::pod(Verb::Add, &pod, &config),
        Call::pod(Verb::Check, &pod, &check),
        Call::network(Verb::Gc, &gc),
        Call::pod(Verb::Add, &pod, &busy_config),
    ];
    let away: &[&str] = &["no agent listens on", "agent.sock", "podwire agent", "tried"];
    std::thread::scope(|scope| {
        for (call, words) in calls.iter().zip([away, away, away, &["the disk is full", "tried"]]) {
            let host = &host;
            scope.spawn(move || {
                let outcome = host.plugin.call(&host.node, call).unwrap();
                refused_with(&format!("{words:?}"), &outcome, (11, words));
                assert!(outcome.elapsed >= Duration::from_secs(10), "{:?}", outcome.elapsed);
            });
        }
    });
    // Pauses that grow to 200 ms: not thousands of attempts, and not a handful.
    let attempts = log_lines(&host)[0]["attempts"].as_u64().unwrap();
    assert!((20..200).contains(&attempts), "{attempts} attempts");
}
