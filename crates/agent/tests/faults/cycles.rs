//! Many cycles of ADD and DEL: memory, open files, links, addresses and records end where they began.

use std::time::Instant;

use testkit::{DEADLINE, Pod, Snapshot, Verb, wait_until};

use crate::common::Host;
use crate::load::rounds;
use crate::raw::{Size, about, ask, json};

const AT_ONCE: usize = 8;

fn cycles(host: &Host, pods: &[Pod], count: usize) {
    std::thread::scope(|scope| {
        for pod in pods {
            scope.spawn(move || {
                let client = host.agent.client();
                for _ in 0..count / pods.len() {
                    for verb in [Verb::Add, Verb::Del] {
                        let answer = ask(&client, &about(host, verb, (pod, "eth0")));
                        assert_eq!(answer.status, 200, "{}", json(&answer));
                    }
                }
            });
        }
    });
}

#[test]
fn a_thousand_cycles_leave_nothing() {
    let host = Host::new("cycles");
    let pods: Vec<Pod> = (0..AT_ONCE).map(|n| host.pod(&format!("p{n}"))).collect();
    let count = rounds(1000, 10_000);
    // As many before: what the allocator keeps grows for some thousands, as now and then more is under way at once than ever
    // before. Whatever grows with every cycle grows as much again.
    cycles(&host, &pods, count);
    let (size, before, held) = (Size::of(&host), Snapshot::of(&host.node).unwrap(), host.held());
    let started = Instant::now();
    cycles(&host, &pods, count);
    println!("{count} cycles in {:?}", started.elapsed());
    assert_eq!(host.held(), held);
    before.wait_for_same(&host.node, DEADLINE).unwrap();
    let status = host.agent.get("/v1/status").unwrap();
    for block in status["network"]["blocks"].as_array().unwrap() {
        assert_eq!(block["used"], 0, "{block}");
    }
    assert_eq!(status["attachments"], serde_json::json!({"ready": 0, "pending": 0, "unreadable": 0}));
    wait_until("files to be closed", DEADLINE, || Ok(Size::of(&host).files <= size.files + 4)).unwrap();
    let after = Size::of(&host);
    println!("before {size:?}, after {after:?}");
    assert!(after.rss_kib <= size.rss_kib + 1024, "before {size:?}, after {after:?}");
}
