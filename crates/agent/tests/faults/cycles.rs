//! Many cycles of ADD and DEL leak no memory, files, links, addresses or records.

use std::time::Instant;

use testkit::{DEADLINE, Pod, Snapshot, Verb, wait_until};

use crate::common::Host;
use crate::load::rounds;
use crate::raw::{ProcessUsage, interface_call, json, post_call};

const CONCURRENT: usize = 8;

fn cycles(host: &Host, pods: &[Pod], count: usize) {
    std::thread::scope(|scope| {
        for pod in pods {
            scope.spawn(move || {
                let client = host.agent.client();
                for _ in 0..count / pods.len() {
                    for verb in [Verb::Add, Verb::Del] {
                        let answer = post_call(&client, &interface_call(host, verb, (pod, "eth0")));
                        assert_eq!(answer.status, 200, "{}", json(&answer));
                    }
                }
            });
        }
    });
}

#[test]
fn a_thousand_cycles_leak_nothing() {
    let host = Host::new("cycles");
    let pods: Vec<Pod> = (0..CONCURRENT).map(|n| host.pod(&format!("p{n}"))).collect();
    let count = rounds(1000, 10_000);
    // A first run of the same length: the allocator's memory grows during some thousand cycles with the peak of concurrent
    // requests. A leak grows with every cycle and is visible in the second run.
    cycles(&host, &pods, count);
    let (size, before, state_entries) =
        (ProcessUsage::of(&host), Snapshot::of(&host.node).unwrap(), host.state_entries());
    let started = Instant::now();
    cycles(&host, &pods, count);
    println!("{count} cycles in {:?}", started.elapsed());
    assert_eq!(host.state_entries(), state_entries);
    before.wait_for_same(&host.node, DEADLINE).unwrap();
    let status = host.agent.get("/v1/status").unwrap();
    for block in status["network"]["blocks"].as_array().unwrap() {
        assert_eq!(block["used"], 0, "{block}");
    }
    assert_eq!(status["attachments"], serde_json::json!({"ready": 0, "pending": 0, "unreadable": 0}));
    wait_until("files to be closed", DEADLINE, || Ok(ProcessUsage::of(&host).files <= size.files + 4))
        .unwrap();
    let after = ProcessUsage::of(&host);
    println!("before {size:?}, after {after:?}");
    assert!(after.rss_kib <= size.rss_kib + 1024, "before {size:?}, after {after:?}");
}
