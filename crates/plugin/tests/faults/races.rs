//! Many at once: different containers never meet, and of two that want the same thing one gets it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Call, Outcome, Pod, Random, Verb, inspect, ping, soak};

use crate::common::{MODES, ips, with};
use crate::scene::{Scene, call, files, wishes};

const CONTAINERS: usize = 32;
const AT_ONCE: usize = 16;

/// Runs `work` for each of them, so many at a time.
fn side_by_side<T: Sync, R: Send>(all: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, done) = (Mutex::new(all.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(item) = next.lock().unwrap().next() else { break };
                    let result = work(item);
                    done.lock().unwrap().push(result);
                }
            });
        }
    });
    done.into_inner().unwrap()
}

#[test]
fn e12_many_containers_at_once() {
    for mode in MODES {
        let scene = Scene::new("many", &json!({"mode": mode}));
        let limits = json!({"runtimeConfig": {"bandwidth": wishes()["runtimeConfig"]["bandwidth"]}});
        let pods: Vec<(Pod, Value)> = (0..CONTAINERS)
            .map(|number| {
                let more = if number % 4 == 0 { limits.clone() } else { json!({}) };
                (scene.host.pod(&format!("p{number}")), with(&scene.config, &more))
            })
            .collect();
        let results = side_by_side(&pods, |(pod, config)| scene.host.add(pod, config));
        let mut taken: BTreeSet<IpAddr> = scene.neighbours_ips().into_iter().collect();
        for ip in results.iter().flat_map(ips) {
            assert!(taken.insert(ip), "{mode}: {ip} was given twice");
        }
        assert_eq!(taken.len(), 2 * (CONTAINERS + 1));
        side_by_side(&pods, |(pod, config)| scene.host.del(pod, config));
        scene.expect_as_before(mode);
        scene.expect_neighbour(mode);
    }
}

/// Both at once, the second one so much later.
fn both(scene: &Scene, [first, second]: [&Call; 2], pause: Duration) -> [Outcome; 2] {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            std::thread::sleep(pause);
            scene.call(second)
        });
        [scene.call(first), other.join().unwrap()]
    })
}

#[test]
fn b8_of_two_adds_of_one_attachment_exactly_one_wins_and_works() {
    let rounds = if soak() { 500 } else { 48 };
    let scene = Scene::new("two-adds", &json!({}));
    let mut random = Random::new("two adds");
    let pod = scene.host.pod("pod");
    let gateway: IpAddr = "10.88.0.1".parse().unwrap();
    for round in 0..rounds {
        let name = format!("c{round}");
        let add = call(Verb::Add, (&pod, &name), &scene.config);
        let outcomes = both(&scene, [&add, &add], Duration::from_micros(random.below(2000)));
        let (won, lost): (Vec<&Outcome>, Vec<&Outcome>) = outcomes.iter().partition(|o| o.success());
        assert_eq!((won.len(), lost.len()), (1, 1), "round {round}: {outcomes:?}");
        let error = lost[0].error().unwrap();
        assert!([11, 102].contains(&error.code), "round {round}: {error:?}");
        let result = won[0].ok().unwrap();
        let checked = scene.host.check_as((&pod, &name), &scene.config, &result);
        assert!(
            checked.is_ok(),
            "round {round}: the winner's is incomplete: {checked:?}; the other got {error:?}"
        );
        assert!(ping(&pod, gateway, 1).unwrap().all(), "round {round}: no way to the gateway");
        scene.del(&call(Verb::Del, (&pod, &name), &scene.config), &name);
    }
    scene.expect_as_before("after two ADDs");
}

/// A runtime that lost timeout sends a DEL while its ADD still runs.
#[test]
fn b8_an_add_and_a_del_at_once_end_with_all_or_nothing() {
    let rounds = if soak() { 300 } else { 30 };
    let scene = Scene::new("add-del", &json!({}));
    let mut random = Random::new("add and del");
    let pod = scene.host.pod("pod");
    let (mut stayed, mut went) = (0, 0);
    for round in 0..rounds {
        let name = format!("c{round}");
        let (add, del) =
            (call(Verb::Add, (&pod, &name), &scene.config), call(Verb::Del, (&pod, &name), &scene.config));
        let pause = Duration::from_micros(random.below(8000));
        let [added, deleted] = both(&scene, [&add, &del], pause);
        let case = format!("round {round}, {pause:?} apart");
        assert!(deleted.success(), "{case}: {deleted:?}");
        let result = added.ok().unwrap_or_else(|e| panic!("{case}: a DEL must not break an ADD: {e:#}"));
        let recorded = files(&scene.host).iter().any(|file| file.contains(&name));
        let has_link = inspect::links(&pod).unwrap().iter().any(|link| link.name == "eth0");
        assert_eq!(recorded, has_link, "{case}: the record and the kernel disagree");
        if recorded {
            let checked = scene.host.check_as((&pod, &name), &scene.config, &result);
            assert!(checked.is_ok(), "{case}: half an attachment is left: {checked:?}");
            stayed += 1;
        } else {
            scene.expect_as_before(&case);
            went += 1;
        }
        scene.del(&del, &case);
        scene.expect_as_before(&case);
    }
    println!("the DEL came too early {stayed} times, and took the attachment away {went} times");
}
