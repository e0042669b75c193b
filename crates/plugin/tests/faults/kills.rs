//! kill -9 at a random moment of an ADD or a DEL; then whatever a runtime may try next.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Call, Pod, Random, Verb, soak};

use crate::common::{MODES, ips, with};
use crate::scene::{Scene, call, wishes};

/// What comes after the kill.
#[derive(Debug, Clone, Copy)]
enum Next {
    AddAgain,
    Del,
    Gc,
}

/// A pod of one round: a container of its own name each time, in a namespace that stays.
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

    /// So long after its start, in parts of a thousand of what it takes undisturbed.
    fn kill(&self, verb: Verb, (usual, part): (Duration, u64)) -> String {
        let after = usual * u32::try_from(part).unwrap() / 1000;
        let plugin = &self.scene.host.plugin;
        let node = &self.scene.host.node;
        let outcome = testkit::call_killed_after(plugin, node, &self.call(verb), after).unwrap();
        let how = if outcome.killed() { "killed" } else { "ended" };
        format!("{} of {} {how} after {after:?}", verb.as_str(), self.name)
    }

    fn go_on(&self, next: Next, case: &str) {
        match next {
            Next::AddAgain => {
                if let Some(result) = self.scene.add_or_there_already(&self.call(Verb::Add), case) {
                    let taken = self.scene.neighbours_ips();
                    assert!(!ips(&result).iter().any(|ip| taken.contains(ip)), "{case}: a second owner");
                    let checked = self.scene.host.check_as((self.pod, &self.name), &self.config, &result);
                    assert!(checked.is_ok(), "{case}: incomplete: {checked:?}");
                }
                self.scene.del(&self.call(Verb::Del), case);
            }
            Next::Del => self.scene.del(&self.call(Verb::Del), case),
            Next::Gc => self.scene.gc(),
        }
    }
}

fn usual_times(scene: &Scene, pod: &Pod) -> (Duration, Duration) {
    let config = with(&scene.config, &wishes());
    let add = scene.call(&call(Verb::Add, (pod, "usual"), &config));
    let del = scene.call(&call(Verb::Del, (pod, "usual"), &config));
    assert!(add.success() && del.success(), "{add:?} {del:?}");
    (add.elapsed, del.elapsed)
}

fn rounds_on(mode: &str, rounds: u64) {
    let mut random = Random::new(mode);
    let scene = Scene::new(mode, &json!({"mode": mode}));
    let pod = scene.host.pod("pod");
    let (usual_add, usual_del) = usual_times(&scene, &pod);
    for round in 0..rounds {
        let mut config = with(&scene.config, &json!({"ipMasq": random.coin()}));
        if random.coin() {
            config = with(&config, &wishes());
        }
        let victim = Victim { scene: &scene, pod: &pod, name: format!("c{round}"), config };
        let next = random.pick(&[Next::AddAgain, Next::Del, Next::Gc]);
        let part = random.below(1100);
        let case = if random.coin() {
            victim.kill(Verb::Add, (usual_add, part))
        } else {
            scene.call(&victim.call(Verb::Add)).ok().unwrap();
            victim.kill(Verb::Del, (usual_del, part))
        };
        let case = format!("{mode}, round {round}: {case}, then {next:?}");
        victim.go_on(next, &case);
        scene.expect_as_before(&case);
    }
    scene.expect_neighbour(mode);
}

#[test]
fn c3_kills_at_random_moments_leave_nothing() {
    let rounds = if soak() { 500 } else { 50 };
    std::thread::scope(|scope| {
        let lanes = MODES.map(|mode| scope.spawn(move || rounds_on(mode, rounds / 2)));
        lanes.into_iter().for_each(|lane| lane.join().unwrap());
    });
}
