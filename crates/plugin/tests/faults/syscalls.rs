//! The plugin is killed at every one of its system calls, before and after it (every few in a normal run).

use serde_json::{Value, json};
use testkit::trace::{TraceOutcome, kill_at_syscall};
use testkit::{Call, Pod, Verb, soak};

use crate::common::{nets, with};
use crate::scene::{Scene, call};

/// Nodes that share the work: most of it is waiting for the kernel.
const LANES: u64 = 4;

fn stride() -> u64 {
    if soak() { 1 } else { 3 }
}

/// Runs `round` for the stops that are this lane's, until the plugin ends before it is killed.
fn in_lanes(label: &str, round: impl Fn(&Scene, &Pod, u64) -> TraceOutcome + Sync) {
    std::thread::scope(|scope| {
        for lane in 0..LANES {
            let round = &round;
            scope.spawn(move || {
                let scene = Scene::new(label, &json!({}));
                let pod = scene.host.pod("pod");
                let mut stop = 1 + lane * stride();
                while let TraceOutcome::Killed { .. } = round(&scene, &pod, stop) {
                    stop += LANES * stride();
                }
                assert!(stop > 100, "the plugin made {stop} stops: that is no {label}");
                scene.expect_neighbour(label);
            });
        }
    });
}

#[test]
fn c3_add_killed_at_any_system_call() {
    in_lanes("add", |scene, pod, stop| {
        let name = format!("c{stop}");
        let add = call(Verb::Add, (pod, &name), &scene.config);
        let end = kill_at_syscall(&scene.host.plugin, &scene.host.node, &add, stop).unwrap();
        let case = format!("ADD killed at stop {stop}: {end:?}");
        if let Some(result) = scene.add_or_there_already(&add, &case)
            && let Err(error) = scene.host.check_as((pod, &name), &scene.config, &result)
        {
            panic!("{case}: the second ADD is incomplete: {error:?}");
        }
        scene.del(&call(Verb::Del, (pod, &name), &scene.config), &case);
        scene.expect_as_before(&case);
        end
    });
}

/// Another pod asks for just these addresses. If it gets them they are its own: the DEL of the first one does no harm.
fn others_want_its_addresses(scene: &Scene, (first, its_del): (&Value, &Call), case: &str) {
    let config = with(&scene.config, &json!({"runtimeConfig": {"ips": nets(first)}}));
    let (pod, name) = (&scene.other, "heir");
    let outcome = scene.call(&call(Verb::Add, (pod, name), &config));
    if outcome.success() {
        let result = outcome.ok().unwrap();
        assert_eq!(nets(&result), nets(first), "{case}");
        scene.del(its_del, case);
        let checked = scene.host.check_as((pod, name), &config, &result);
        assert!(checked.is_ok(), "{case}: the heir lost something: {checked:?}");
    } else {
        assert_eq!(outcome.error().unwrap().code, 101, "{case}: {outcome:?}");
    }
    scene.del(&call(Verb::Del, (pod, name), &config), case);
}

#[test]
fn c5_del_killed_at_any_system_call() {
    in_lanes("del", |scene, pod, stop| {
        let name = format!("c{stop}");
        let (add, del) =
            (call(Verb::Add, (pod, &name), &scene.config), call(Verb::Del, (pod, &name), &scene.config));
        let added = scene.call(&add).ok().unwrap();
        let end = kill_at_syscall(&scene.host.plugin, &scene.host.node, &del, stop).unwrap();
        let case = format!("DEL killed at stop {stop}: {end:?}");
        // A runtime tries again. Before that, it may attach the pod anew, or others may want its addresses.
        match stop / stride() % 3 {
            0 => drop(scene.add_or_there_already(&add, &case)),
            1 => others_want_its_addresses(scene, (&added, &del), &case),
            _ => {}
        }
        scene.del(&del, &case);
        scene.expect_as_before(&case);
        end
    });
}

/// The interface that a killed DEL removed had the default routes, and the pod's other interface gets them.
#[test]
fn b12_a_del_killed_at_any_system_call_leaves_the_other_interface_its_default_routes() {
    in_lanes("routes", |scene, pod, stop| {
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
        let end = kill_at_syscall(&scene.host.plugin, &scene.host.node, &del, stop).unwrap();
        scene.del(&del, "DEL again");
        for family in ["-4", "-6"] {
            let routes = pod.sh(&["ip", family, "route", "show", "default"]).unwrap();
            assert!(routes.contains("dev eth1"), "DEL killed at stop {stop}: {end:?}: {routes}");
        }
        scene.del(&call(Verb::Del, "eth1", &second), "DEL of the other");
        end
    });
}

/// A hostile pod may have any number of routes when it gets a further interface.
#[test]
fn e9_an_add_makes_no_more_system_calls_for_a_pod_with_many_routes() {
    const ROUTES: u32 = 20_000;
    let scene = Scene::new("many", &json!({"mode": "routed"}));
    let pod = scene.host.pod("pod");
    let stops = |name: &str| {
        let add = call(Verb::Add, (&pod, name), &scene.config);
        let end = kill_at_syscall(&scene.host.plugin, &scene.host.node, &add, u64::MAX).unwrap();
        let TraceOutcome::Finished { syscalls, outcome } = end else { panic!("{end:?}") };
        outcome.ok().unwrap();
        scene.del(&call(Verb::Del, (&pod, name), &scene.config), name);
        syscalls
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
    // Some calls depend on time: on a busy machine an ADD polls more often. The answers of a list would take dozens each time.
    let many = ["many1", "many2", "many3", "many4"].map(stops);
    assert!(many.iter().any(|many| *many < few + 20), "{few} stops with few routes, {many:?} with many");
}
