//! Rounds and requests at the same time: neither takes what the other just made.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use testkit::{Ns, wait_until};

use crate::common::{Host, MODES};
use crate::scene::{SOON, Scene};

const THREADS: usize = 8;
const PODS: usize = 100;
const PAUSE: Duration = Duration::from_millis(4);

/// Removes something of ours, another thing each time. It may be gone already.
fn vandalise(node: &Ns, number: usize, has_routes: bool) {
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

/// ADD and DEL of one pod. The error is what the plugin said.
fn come_and_go(host: &Host, number: usize) -> Result<(), String> {
    let (pod, config) = (host.pod(&format!("l{number}")), host.config(&json!({})));
    let added = host.plugin.add(&pod, &config).unwrap();
    let mut deleted = host.plugin.del(&pod, &config).unwrap();
    // A kernel that is too busy to answer in time: runtimes send the DEL again.
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
fn rounds_do_not_fight_with_requests() {
    for mode in MODES {
        let scene = Scene::new("fight", mode);
        let before = scene.settled();
        let held = scene.host.held();
        let (next, over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let failures: Mutex<BTreeMap<String, usize>> = Mutex::default();
        let failed = |what: String| *failures.lock().unwrap().entry(what).or_default() += 1;
        std::thread::scope(|scope| {
            let serve = || {
                for number in
                    std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed)).take_while(|n| *n < PODS)
                {
                    come_and_go(&scene.host, number).err().map(&failed);
                }
            };
            let workers: Vec<_> = (0..THREADS).map(|_| scope.spawn(serve)).collect();
            scope.spawn(|| {
                for number in 0.. {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    vandalise(scene.node(), number, mode == "routed");
                    std::thread::sleep(PAUSE);
                }
            });
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(*failures.lock().unwrap(), BTreeMap::new(), "{mode}");
        wait_until("everything to be right", SOON, || {
            Ok(scene.host.held() == held && scene.picture().as_ref() == Some(&before))
        })
        .unwrap_or_else(|e| panic!("{mode}: {e:#}, {:?}", scene.difference(&before)));
        scene.expect_works("after the fight");
        println!("{mode:6} {} repairs under load", scene.repairs());
        let log = scene.host.agent.log().unwrap();
        assert!(!log.contains("which has no record"), "{mode}: a DEL under way was taken for a stray\n{log}");
    }
}
