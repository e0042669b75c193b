//! kill -9 of the agent at random times under load, and in the middle of an ADD.

use std::time::{Duration, Instant};

use serde_json::json;
use testkit::{Call, DEADLINE, Pod, Random, Snapshot, Verb, wait_until};

use crate::blocking_ipam::RunningCall;
use crate::common::{Host, addresses_of, ips};
use crate::load::{Done, Load, Scene, THREADS, rounds};

fn pause(random: &mut Random, max: Duration) {
    std::thread::sleep(Duration::from_micros(random.below(max.as_micros() as u64)));
}

fn kills_under_load(mode: &str, kills: usize) {
    let mut random = Random::new(mode);
    let mut host = Host::with_flags("kills", &["--network-mode", mode]);
    let mut scene = Scene::new(&host);
    let load = Load::new(&host, 8);
    let started = Instant::now();
    let Done { cycles, permanent_pods } = load.during(|load| {
        for number in 0..kills {
            pause(&mut random, Duration::from_millis(80));
            host.agent.kill().unwrap();
            pause(&mut random, Duration::from_millis(10));
            host.agent.launch().unwrap();
            // One of three agents is killed before or right after it is ready.
            if random.below(3) > 0 {
                host.agent.wait_ready().unwrap();
            }
            // The plugin waits 10 s for an agent. On a busy host, agents with a short life serve no request in that time.
            if number % 4 == 3 {
                let before = load.cycles();
                wait_until("successful calls", DEADLINE, || Ok(load.cycles() >= before + THREADS)).unwrap();
            }
        }
        host.agent.wait_ready().unwrap();
    });
    println!("{mode}: {kills} kills, {cycles} cycles in {:?}", started.elapsed());
    assert!(cycles > kills / 10, "only {cycles} cycles succeeded");
    scene.expect_no_loss();
    scene.expect_only(&host, &permanent_pods);
    scene.expect_cleanup(&host, &permanent_pods);
}

#[test]
fn f1_pods_survive_kills_of_the_agent_under_load_in_mode_routed() {
    kills_under_load("routed", rounds(30, 500));
}

#[test]
fn f1_pods_survive_kills_of_the_agent_under_load_in_mode_bridge() {
    kills_under_load("bridge", rounds(10, 500));
}

/// The time of an undisturbed ADD.
fn usual_time(host: &Host, pod: &Pod) -> Duration {
    let time_of_add = |_| {
        let added = host.plugin.add(pod, &host.config(&json!({}))).unwrap();
        host.del(pod);
        added.elapsed
    };
    (0..5).map(time_of_add).min().unwrap()
}

/// An ADD in progress is pending when its agent is killed. The plugin repeats it with the same request ID.
#[test]
fn b8_the_plugin_retries_an_add_after_a_kill_of_the_agent() {
    let mut random = Random::new("pending");
    let mut host = Host::new("pending");
    let (pod, config) = (host.pod("a"), host.config(&json!({})));
    let usual = usual_time(&host, &pod);
    let before = Snapshot::of(&host.node).unwrap();
    let kills = rounds(80, 500);
    let (mut pending, mut ready) = (0, 0);
    for round in 0..kills {
        let add = RunningCall::start(&host, Call::pod(Verb::Add, &pod, &config));
        pause(&mut random, usual * 5 / 4);
        host.agent.kill().unwrap();
        let state_entries = host.state_entries();
        pending += usize::from(state_entries.iter().any(|name| name.ends_with(".pending")));
        ready += usize::from(state_entries.iter().any(|name| name.ends_with(".ready")));
        host.agent.launch().unwrap();
        let outcome = add.outcome();
        let result = outcome.ok().unwrap_or_else(|e| panic!("round {round}: {e:#}"));
        assert_eq!(addresses_of(&pod, "eth0"), ips(&result).into_iter().collect(), "round {round}");
        host.agent.wait_ready().unwrap();
        assert_eq!(host.state_entries().len(), 3, "round {round}: {:?}", host.state_entries());
        host.check(&pod, &result);
        host.del(&pod);
    }
    println!("{kills} kills, {pending} of them during the ADD, {ready} after it");
    assert!(pending > 0, "no agent was killed during an ADD");
    assert!(host.state_entries().is_empty(), "{:?}", host.state_entries());
    before.wait_for_same(&host.node, DEADLINE).unwrap();
}
