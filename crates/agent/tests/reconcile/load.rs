//! Concurrent rounds and requests: neither removes objects that the other has just created.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use testkit::{Ns, wait_until};

use crate::common::{Host, MODES};
use crate::scene::{Scene, TIMEOUT};

const THREADS: usize = 8;
const PODS: usize = 100;
const PAUSE: Duration = Duration::from_millis(4);

/// Removes a managed object, a different one for each number. It may have been removed already.
fn remove_object(node: &Ns, number: usize, has_routes: bool) {
    let pick = |all: &str| {
        let lines: Vec<&str> = all.lines().collect();
        (!lines.is_empty()).then(|| lines[number % lines.len()].to_owned())
    };
    let list = |line: &str| {
        node.run(&line.split(' ').collect::<Vec<_>>(), b"").map(|outcome| outcome.stdout).unwrap_or_default()
    };
    let family = if number.is_multiple_of(2) { "-4" } else { "-6" };
    let line = match number % 3 {
        0 if has_routes => pick(&list(&format!("ip {family} route show proto 112")))
            .map(|route| format!("ip {family} route del {}", route.trim())),
        1 if has_routes => pick(&list(&format!("ip {family} neigh show nud permanent"))).and_then(|entry| {
            let words: Vec<&str> = entry.split(' ').collect();
            Some(format!("ip {family} neigh del {} dev {}", words.first()?, words.get(2)?))
        }),
        _ => {
            let (set, octets) = if family == "-4" { ("pods4", "10.83.0.") } else { ("pods6", "fd00:88::") };
            Some(format!("nft delete element inet podwire {set} {{ {octets}{} }}", number % 40 + 2))
        }
    };
    if let Some(line) = line {
        let _ = node.run(&line.split(' ').collect::<Vec<_>>(), b"");
    }
}

/// ADD and DEL of one pod. The error is the plugin's output.
fn add_and_del(host: &Host, number: usize) -> Result<(), String> {
    let (pod, config) = (host.pod(&format!("l{number}")), host.config(&json!({})));
    let added = host.plugin.add(&pod, &config).unwrap();
    let mut deleted = host.plugin.del(&pod, &config).unwrap();
    // If the kernel is too busy to answer in time, runtimes send the DEL again.
    for _ in 0..5 {
        if deleted.success() || !deleted.stdout.contains("the kernel did not answer") {
            break;
        }
        deleted = host.plugin.del(&pod, &config).unwrap();
    }
    pod.destroy().unwrap();
    match (added.success(), deleted.success()) {
        (true, true) => Ok(()),
        (false, _) => Err(format!("ADD: {}", added.stdout)),
        (true, false) => Err(format!("DEL: {}", deleted.stdout)),
    }
}

#[test]
fn rounds_and_requests_do_not_conflict() {
    for mode in MODES {
        let scene = Scene::new("conflict", mode);
        let before = scene.settled();
        let state_entries = scene.host.state_entries();
        let (next, is_done) = (AtomicUsize::new(0), AtomicBool::new(false));
        let failures: Mutex<BTreeMap<String, usize>> = Mutex::default();
        let failed = |failure: String| *failures.lock().unwrap().entry(failure).or_default() += 1;
        std::thread::scope(|scope| {
            let serve = || {
                for number in
                    std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed)).take_while(|n| *n < PODS)
                {
                    add_and_del(&scene.host, number).err().map(&failed);
                }
            };
            let workers: Vec<_> = (0..THREADS).map(|_| scope.spawn(serve)).collect();
            scope.spawn(|| {
                for number in 0.. {
                    if is_done.load(Ordering::Relaxed) {
                        return;
                    }
                    remove_object(scene.node(), number, mode == "routed");
                    std::thread::sleep(PAUSE);
                }
            });
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            is_done.store(true, Ordering::Relaxed);
        });
        assert_eq!(*failures.lock().unwrap(), BTreeMap::new(), "{mode}");
        wait_until("everything to be repaired", TIMEOUT, || {
            Ok(scene.host.state_entries() == state_entries && scene.observe().as_ref() == Some(&before))
        })
        .unwrap_or_else(|e| panic!("{mode}: {e:#}, {:?}", scene.difference(&before)));
        scene.expect_works("after the load");
        println!("{mode:6} {} repairs under load", scene.repairs());
        let log = scene.host.agent.log().unwrap();
        assert!(
            !log.contains("which has no record"),
            "{mode}: a DEL under way was removed as an orphan\n{log}"
        );
    }
}
