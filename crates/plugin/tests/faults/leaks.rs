//! Pods come and go, again and again.

use serde_json::json;
use testkit::{Verb, soak};

use crate::common::{MODES, with};
use crate::scene::{Scene, call, wishes};

#[test]
fn c5_many_cycles_leak_nothing() {
    let cycles = if soak() { 1000 } else { 100 };
    let lane = |mode: &str| {
        let scene = Scene::new("cycles", &json!({"mode": mode}));
        let pod = scene.host.pod("pod");
        let everything = || scene.host.node.sh(&["find", scene.host.node.dir().to_str().unwrap()]).unwrap();
        let files = everything().lines().count();
        for cycle in 0..cycles / 2 {
            let wished = if cycle % 2 == 0 { wishes() } else { json!({}) };
            let config = with(&scene.config, &wished);
            let name = format!("c{cycle}");
            scene.call(&call(Verb::Add, (&pod, &name), &config)).ok().unwrap();
            scene.del(&call(Verb::Del, (&pod, &name), &config), &name);
        }
        scene.expect_as_before(mode);
        assert_eq!(everything().lines().count(), files, "{mode}: {}", everything());
        scene.expect_neighbour(mode);
    };
    std::thread::scope(|scope| {
        let lanes = MODES.map(|mode| scope.spawn(move || lane(mode)));
        lanes.into_iter().for_each(|lane| lane.join().unwrap());
    });
}
