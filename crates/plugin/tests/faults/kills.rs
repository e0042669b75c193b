//! SIGKILL at a random time of an ADD or DEL, followed by a call that a runtime may make next.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Call, Pod, Random, Verb, is_soak};

use crate::common::{MODES, ips, with};
use crate::scene::{Scene, call, ports_and_limits};

/// The first call after the kill.
#[derive(Debug, Clone, Copy)]
enum NextCall {
    Add,
    Del,
    Gc,
}

/// The container of one round. Each round has a new container id in the same namespace.
struct Victim<'a> {
    scene: &'a Scene,
    pod: &'a Pod,
    name: String,
    config: Value,
}

impl Victim<'_> {
    fn call(&self, verb: Verb) -> Call {
        call(verb, (self.pod, &self.name), &self.config)
    }

    /// Kills the call after `permille` thousandths of its usual duration. Returns a description.
    fn kill(&self, verb: Verb, (usual, permille): (Duration, u64)) -> String {
        let after = usual * u32::try_from(permille).unwrap() / 1000;
        let plugin = &self.scene.host.plugin;
        let node = &self.scene.host.node;
        let outcome = testkit::call_killed_after(plugin, node, &self.call(verb), after).unwrap();
        let end = if outcome.killed() { "killed" } else { "finished" };
        format!("{} of {} {end} after {after:?}", verb.as_str(), self.name)
    }

    fn recover(&self, next: NextCall, case: &str) {
        match next {
            NextCall::Add => {
                if let Some(result) = self.scene.add_unless_attached(&self.call(Verb::Add), case) {
                    let in_use = self.scene.unaffected_ips();
                    let is_reused = ips(&result).iter().any(|ip| in_use.contains(ip));
                    assert!(!is_reused, "{case}: an address was assigned twice");
                    let checked = self.scene.host.check_as((self.pod, &self.name), &self.config, &result);
                    assert!(checked.is_ok(), "{case}: incomplete: {checked:?}");
                }
                self.scene.del(&self.call(Verb::Del), case);
            }
            NextCall::Del => self.scene.del(&self.call(Verb::Del), case),
            NextCall::Gc => self.scene.gc(),
        }
    }
}

fn usual_times(scene: &Scene, pod: &Pod) -> (Duration, Duration) {
    let config = with(&scene.config, &ports_and_limits());
    let add = scene.call(&call(Verb::Add, (pod, "usual"), &config));
    let del = scene.call(&call(Verb::Del, (pod, "usual"), &config));
    assert!(add.success() && del.success(), "{add:?} {del:?}");
    (add.elapsed, del.elapsed)
}

fn run_rounds(mode: &str, rounds: u64) {
    let mut random = Random::new(mode);
    let scene = Scene::new(mode, &json!({"mode": mode}));
    let pod = scene.host.pod("pod");
    let (usual_add, usual_del) = usual_times(&scene, &pod);
    for round in 0..rounds {
        let mut config = with(&scene.config, &json!({"ipMasq": random.coin()}));
        if random.coin() {
            config = with(&config, &ports_and_limits());
        }
        let victim = Victim { scene: &scene, pod: &pod, name: format!("c{round}"), config };
        let next_call = random.pick(&[NextCall::Add, NextCall::Del, NextCall::Gc]);
        let permille = random.below(1100);
        let case = if random.coin() {
            victim.kill(Verb::Add, (usual_add, permille))
        } else {
            scene.call(&victim.call(Verb::Add)).ok().unwrap();
            victim.kill(Verb::Del, (usual_del, permille))
        };
        let case = format!("{mode}, round {round}: {case}, then {next_call:?}");
        victim.recover(next_call, &case);
        scene.expect_as_before(&case);
    }
    scene.expect_unaffected(mode);
}

#[test]
fn c3_kills_at_random_times_leave_no_state() {
    let rounds = if is_soak() { 500 } else { 50 };
    std::thread::scope(|scope| {
        let threads = MODES.map(|mode| scope.spawn(move || run_rounds(mode, rounds / 2)));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
