//! Kills the plugin before and after each of its system calls (every third stop in a normal run).

use serde_json::{Value, json};
use testkit::trace::{TraceOutcome, kill_at_syscall};
use testkit::{Call, Pod, Verb, is_soak};

use crate::common::{nets, with};
use crate::scene::{Scene, call};

/// Parallel nodes. Most of the time is spent waiting for the kernel.
const WORKERS: u64 = 4;

fn stride() -> u64 {
    if is_soak() { 1 } else { 3 }
}

/// Runs `round` for all stops, distributed over the workers, until the plugin finishes before it is killed.
fn for_each_stop(label: &str, round: impl Fn(&Scene, &Pod, u64) -> TraceOutcome + Sync) {
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let round = &round;
            scope.spawn(move || {
                let scene = Scene::new(label, &json!({}));
                let pod = scene.host.pod("pod");
                let mut stop = 1 + worker * stride();
                while let TraceOutcome::Killed { .. } = round(&scene, &pod, stop) {
                    stop += WORKERS * stride();
                }
                assert!(stop > 100, "{label} had only {stop} stops");
                scene.expect_unaffected(label);
            });
        }
    });
}

#[test]
fn c3_add_can_be_killed_at_any_system_call() {
    for_each_stop("add", |scene, pod, stop| {
        let name = format!("c{stop}");
        let add = call(Verb::Add, (pod, &name), &scene.config);
        let trace = kill_at_syscall(&scene.host.plugin, &scene.host.node, &add, stop).unwrap();
        let case = format!("ADD killed at stop {stop}: {trace:?}");
        if let Some(result) = scene.add_unless_attached(&add, &case)
            && let Err(error) = scene.host.check_as((pod, &name), &scene.config, &result)
        {
            panic!("{case}: the second ADD is incomplete: {error:?}");
        }
        scene.del(&call(Verb::Del, (pod, &name), &scene.config), &case);
        scene.expect_as_before(&case);
        trace
    });
}

/// Another pod requests the addresses of the first one. If it gets them, a repeated DEL of the first pod must not affect it.
fn request_same_addresses(scene: &Scene, (first, first_del): (&Value, &Call), case: &str) {
    let config = with(&scene.config, &json!({"runtimeConfig": {"ips": nets(first)}}));
    let (pod, name) = (&scene.other, "same");
    let outcome = scene.call(&call(Verb::Add, (pod, name), &config));
    if outcome.success() {
        let result = outcome.ok().unwrap();
        assert_eq!(nets(&result), nets(first), "{case}");
        scene.del(first_del, case);
        let checked = scene.host.check_as((pod, name), &config, &result);
        assert!(checked.is_ok(), "{case}: the second pod is incomplete: {checked:?}");
    } else {
        assert_eq!(outcome.error().unwrap().code, 101, "{case}: {outcome:?}");
    }
    scene.del(&call(Verb::Del, (pod, name), &config), case);
}

#[test]
fn c5_del_can_be_killed_at_any_system_call() {
    for_each_stop("del", |scene, pod, stop| {
        let name = format!("c{stop}");
        let (add, del) =
            (call(Verb::Add, (pod, &name), &scene.config), call(Verb::Del, (pod, &name), &scene.config));
        let added = scene.call(&add).ok().unwrap();
        let trace = kill_at_syscall(&scene.host.plugin, &scene.host.node, &del, stop).unwrap();
        let case = format!("DEL killed at stop {stop}: {trace:?}");
        // The runtime retries the DEL. Before that, the pod may be added again, or another pod may request its addresses.
        match stop / stride() % 3 {
            0 => drop(scene.add_unless_attached(&add, &case)),
            1 => request_same_addresses(scene, (&added, &del), &case),
            _ => {}
        }
        scene.del(&del, &case);
        scene.expect_as_before(&case);
        trace
    });
}

/// The removed interface had the default routes. The retried DEL must move them to the other interface.
#[test]
fn b12_a_killed_del_moves_the_default_routes_when_retried() {
    for_each_stop("routes", |scene, pod, stop| {
        let name = format!("c{stop}");
        let second = with(
            &scene.config,
            &json!({"name": "red", "bridge": "red0", "subnet": "10.99.0.0/24,fd00:99::/64"}),
        );
        let call = |verb, ifname: &str, config: &Value| Call {
            ifname: Some(ifname.to_owned()),
            ..call(verb, (pod, &name), config)
        };
        for (ifname, config) in [("eth0", &scene.config), ("eth1", &second)] {
            scene.call(&call(Verb::Add, ifname, config)).ok().unwrap();
        }
        let del = call(Verb::Del, "eth0", &scene.config);
        let trace = kill_at_syscall(&scene.host.plugin, &scene.host.node, &del, stop).unwrap();
        scene.del(&del, "retried DEL");
        for family in ["-4", "-6"] {
            let routes = pod.sh(&["ip", family, "route", "show", "default"]).unwrap();
            assert!(routes.contains("dev eth1"), "DEL killed at stop {stop}: {trace:?}: {routes}");
        }
        scene.del(&call(Verb::Del, "eth1", &second), "DEL of the other interface");
        trace
    });
}

/// A hostile pod may have any number of routes when another interface is added.
#[test]
fn e9_the_cost_of_add_does_not_depend_on_the_pods_routes() {
    const ROUTES: u32 = 20_000;
    let scene = Scene::new("many", &json!({"mode": "routed"}));
    let pod = scene.host.pod("pod");
    let stops = |name: &str| {
        let add = call(Verb::Add, (&pod, name), &scene.config);
        let trace = kill_at_syscall(&scene.host.plugin, &scene.host.node, &add, u64::MAX).unwrap();
        let TraceOutcome::Finished { stops, outcome } = trace else { panic!("{trace:?}") };
        outcome.ok().unwrap();
        scene.del(&call(Verb::Del, (&pod, name), &scene.config), name);
        stops
    };
    let few = stops("few");
    for words in ["link add net7 type veth peer name net8", "link set net7 up", "link set net8 up"] {
        pod.sh(&[&["ip"], words.split(' ').collect::<Vec<_>>().as_slice()].concat()).unwrap();
    }
    let routes: String = (0..ROUTES)
        .map(|n| {
            format!("route add 172.{}.{}.0/24 dev net7 table main metric {n}\n", 16 + n % 16, n / 16 % 256)
        })
        .collect();
    assert!(pod.run(&["ip", "-batch", "-"], routes.as_bytes()).unwrap().success());
    // The number of polls varies on a busy machine. Listing all routes would need dozens of additional system calls each time.
    let many = ["many1", "many2", "many3", "many4"].map(stops);
    assert!(many.iter().any(|many| *many < few + 20), "{few} stops with few routes, {many:?} with many");
}
