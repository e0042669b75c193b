//! Parallel calls: different containers are independent, and one of two calls for the same attachment succeeds.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Call, Outcome, Pod, Random, Verb, inspect, is_soak, ping};

use crate::common::{MODES, ips, with};
use crate::scene::{Scene, call, files, ports_and_limits};

const CONTAINERS: usize = 32;
const THREADS: usize = 16;

/// Runs `work` for each item, on `THREADS` threads.
fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, results) = (Mutex::new(items.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let Some(item) = next.lock().unwrap().next() else { break };
                    let result = work(item);
                    results.lock().unwrap().push(result);
                }
            });
        }
    });
    results.into_inner().unwrap()
}

#[test]
fn e12_parallel_containers_get_unique_addresses() {
    for mode in MODES {
        let scene = Scene::new("many", &json!({"mode": mode}));
        let limits =
            json!({"runtimeConfig": {"bandwidth": ports_and_limits()["runtimeConfig"]["bandwidth"]}});
        let pods: Vec<(Pod, Value)> = (0..CONTAINERS)
            .map(|number| {
                let extra = if number % 4 == 0 { limits.clone() } else { json!({}) };
                (scene.host.pod(&format!("p{number}")), with(&scene.config, &extra))
            })
            .collect();
        let results = in_parallel(&pods, |(pod, config)| scene.host.add(pod, config));
        let mut assigned: BTreeSet<IpAddr> = scene.unaffected_ips().into_iter().collect();
        for ip in results.iter().flat_map(ips) {
            assert!(assigned.insert(ip), "{mode}: {ip} was assigned twice");
        }
        assert_eq!(assigned.len(), 2 * (CONTAINERS + 1));
        in_parallel(&pods, |(pod, config)| scene.host.del(pod, config));
        scene.expect_as_before(mode);
        scene.expect_unaffected(mode);
    }
}

/// Runs two calls in parallel. The second one starts after `delay`.
fn race(scene: &Scene, [first, second]: [&Call; 2], delay: Duration) -> [Outcome; 2] {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            std::thread::sleep(delay);
            scene.call(second)
        });
        [scene.call(first), thread.join().unwrap()]
    })
}

#[test]
fn b8_exactly_one_of_two_parallel_adds_succeeds() {
    let rounds = if is_soak() { 500 } else { 48 };
    let scene = Scene::new("two-adds", &json!({}));
    let mut random = Random::new("two adds");
    let pod = scene.host.pod("pod");
    let gateway: IpAddr = "10.88.0.1".parse().unwrap();
    for round in 0..rounds {
        let name = format!("c{round}");
        let add = call(Verb::Add, (&pod, &name), &scene.config);
        let outcomes = race(&scene, [&add, &add], Duration::from_micros(random.below(2000)));
        let (succeeded, failed): (Vec<&Outcome>, Vec<&Outcome>) = outcomes.iter().partition(|o| o.success());
        assert_eq!((succeeded.len(), failed.len()), (1, 1), "round {round}: {outcomes:?}");
        let error = failed[0].error().unwrap();
        assert!([11, 102].contains(&error.code), "round {round}: {error:?}");
        let result = succeeded[0].ok().unwrap();
        let checked = scene.host.check_as((&pod, &name), &scene.config, &result);
        assert!(
            checked.is_ok(),
            "round {round}: the attachment is incomplete: {checked:?}; error of the other ADD: {error:?}"
        );
        assert!(ping(&pod, gateway, 1).unwrap().all(), "round {round}: the gateway is unreachable");
        scene.del(&call(Verb::Del, (&pod, &name), &scene.config), &name);
    }
    scene.expect_as_before("after two ADDs");
}

/// After a timeout, a runtime sends a DEL while its ADD still runs.
#[test]
fn b8_parallel_add_and_del_leave_a_complete_attachment_or_none() {
    let rounds = if is_soak() { 300 } else { 30 };
    let scene = Scene::new("add-del", &json!({}));
    let mut random = Random::new("add and del");
    let pod = scene.host.pod("pod");
    let (mut attached, mut removed) = (0, 0);
    for round in 0..rounds {
        let name = format!("c{round}");
        let (add, del) =
            (call(Verb::Add, (&pod, &name), &scene.config), call(Verb::Del, (&pod, &name), &scene.config));
        let delay = Duration::from_micros(random.below(8000));
        let [added, deleted] = race(&scene, [&add, &del], delay);
        let case = format!("round {round}, DEL after {delay:?}");
        assert!(deleted.success(), "{case}: {deleted:?}");
        let result = added.ok().unwrap_or_else(|e| panic!("{case}: the DEL made the ADD fail: {e:#}"));
        let has_record = files(&scene.host).iter().any(|file| file.contains(&name));
        let has_link = inspect::links(&pod).unwrap().iter().any(|link| link.name == "eth0");
        assert_eq!(has_record, has_link, "{case}: the record and the kernel differ");
        if has_record {
            let checked = scene.host.check_as((&pod, &name), &scene.config, &result);
            assert!(checked.is_ok(), "{case}: the attachment is incomplete: {checked:?}");
            attached += 1;
        } else {
            scene.expect_as_before(&case);
            removed += 1;
        }
        scene.del(&del, &case);
        scene.expect_as_before(&case);
    }
    println!("DEL before the ADD: {attached} rounds; DEL after the ADD: {removed} rounds");
}
