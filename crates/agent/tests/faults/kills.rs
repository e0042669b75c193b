//! kill -9 of the agent: at random moments under load, and in the middle of one ADD.

use std::time::{Duration, Instant};

use serde_json::json;
use testkit::{Call, DEADLINE, Pod, Random, Snapshot, Verb, wait_until};

use crate::common::{Host, addresses_of, ips};
use crate::gate::Calling;
use crate::load::{Done, Load, Scene, THREADS, rounds};

fn pause(random: &mut Random, most: Duration) {
    std::thread::sleep(Duration::from_micros(random.below(most.as_micros() as u64)));
}

fn killed_under_load(mode: &str, kills: usize) {
    let mut random = Random::new(mode);
    let mut host = Host::with_flags("kills", &["--network-mode", mode]);
    let mut scene = Scene::new(&host);
    let load = Load::new(&host, 8);
    let started = Instant::now();
    let Done { cycles, stayed } = load.during(|load| {
        for number in 0..kills {
            pause(&mut random, Duration::from_millis(80));
            host.agent.kill().unwrap();
            pause(&mut random, Duration::from_millis(10));
            host.agent.launch().unwrap();
            // Every third one dies before it is ready, or as soon as it is.
            if random.below(3) > 0 {
                host.agent.wait_ready().unwrap();
            }
            // The plugin waits 10 s for an agent. On a busy machine agents that live for a moment serve nothing in that time.
            if number % 4 == 3 {
                let before = load.cycles();
                wait_until("calls to get through", DEADLINE, || Ok(load.cycles() >= before + THREADS))
                    .unwrap();
            }
        }
        host.agent.wait_ready().unwrap();
    });
    println!("{mode}: {kills} kills, {cycles} cycles in {:?}", started.elapsed());
    assert!(cycles > kills / 10, "the load did not get through: {cycles} cycles");
    scene.expect_no_loss();
    scene.expect_only(&host, &stayed);
    scene.expect_nothing_left(&host, &stayed);
}

#[test]
fn f1_kills_of_the_agent_under_load_in_mode_routed() {
    killed_under_load("routed", rounds(30, 500));
}

#[test]
fn f1_kills_of_the_agent_under_load_in_mode_bridge() {
    killed_under_load("bridge", rounds(10, 500));
}

/// Of an ADD that nobody disturbs.
fn usual_time(host: &Host, pod: &Pod) -> Duration {
    let of_one = |_| {
        let added = host.plugin.add(pod, &host.config(&json!({}))).unwrap();
        host.del(pod);
        added.elapsed
    };
    (0..5).map(of_one).min().unwrap()
}

/// What is in the middle when its agent dies is pending; the plugin asks the next agent with the same request id.
#[test]
fn b8_an_add_whose_agent_is_killed_succeeds_through_the_plugins_own_retry() {
    let mut random = Random::new("pending");
    let mut host = Host::new("pending");
    let (pod, config) = (host.pod("a"), host.config(&json!({})));
    let usual = usual_time(&host, &pod);
    let before = Snapshot::of(&host.node).unwrap();
    let kills = rounds(80, 500);
    let (mut pending, mut ready) = (0, 0);
    for round in 0..kills {
        let add = Calling::start(&host, Call::pod(Verb::Add, &pod, &config));
        pause(&mut random, usual * 5 / 4);
        host.agent.kill().unwrap();
        let held = host.held();
        pending += usize::from(held.iter().any(|name| name.ends_with(".pending")));
        ready += usize::from(held.iter().any(|name| name.ends_with(".ready")));
        host.agent.launch().unwrap();
        let outcome = add.outcome();
        let result = outcome.ok().unwrap_or_else(|e| panic!("round {round}: {e:#}"));
        assert_eq!(addresses_of(&pod, "eth0"), ips(&result).into_iter().collect(), "round {round}");
        host.agent.wait_ready().unwrap();
        assert_eq!(host.held().len(), 3, "round {round}: {:?}", host.held());
        host.check(&pod, &result);
        host.del(&pod);
    }
    println!("{kills} kills, {pending} of them in the middle of the ADD, {ready} after it");
    assert!(pending > 0, "no kill met an ADD in the middle");
    assert!(host.held().is_empty(), "{:?}", host.held());
    before.wait_for_same(&host.node, DEADLINE).unwrap();
}
