//! Many cycles of ADD and DEL.

use serde_json::json;
use testkit::{Verb, is_soak};

use crate::common::{MODES, with};
use crate::scene::{Scene, call, ports_and_limits};

#[test]
fn c5_many_cycles_leak_nothing() {
    let cycles = if is_soak() { 1000 } else { 100 };
    let run = |mode: &str| {
        let scene = Scene::new("cycles", &json!({"mode": mode}));
        let pod = scene.host.pod("pod");
        let all_files = || scene.host.node.sh(&["find", scene.host.node.dir().to_str().unwrap()]).unwrap();
        let files = all_files().lines().count();
        for cycle in 0..cycles / 2 {
            let extra = if cycle % 2 == 0 { ports_and_limits() } else { json!({}) };
            let config = with(&scene.config, &extra);
            let name = format!("c{cycle}");
            scene.call(&call(Verb::Add, (&pod, &name), &config)).ok().unwrap();
            scene.del(&call(Verb::Del, (&pod, &name), &config), &name);
        }
        scene.expect_as_before(mode);
        assert_eq!(all_files().lines().count(), files, "{mode}: {}", all_files());
        scene.expect_unaffected(mode);
    };
    std::thread::scope(|scope| {
        let threads = MODES.map(|mode| scope.spawn(move || run(mode)));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
