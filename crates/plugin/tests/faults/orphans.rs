//! Records and claims that are not as Podwire wrote them: no firewall element outlives its pod because of it, so that a host
//! port is free for the next pod, and never leads to the next holder of an address.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use testkit::trace::{TraceOutcome, kill_at_syscall};
use testkit::{Pod, Verb, soak};

use crate::common::{MODES, ips, with};
use crate::scene::{Scene, call, network_dir, wishes};

/// Another file with this content, as an editor or another version writes it.
fn replace(path: &Path, content: &[u8]) {
    let beside = path.with_extension("beside");
    fs::write(&beside, content).unwrap();
    fs::rename(&beside, path).unwrap();
}

fn record(scene: &Scene, pod: &Pod) -> std::path::PathBuf {
    network_dir(&scene.host).join(format!("attachments/{}@eth0.ready", pod.id()))
}

fn copy_claims(scene: &Scene, result: &Value) {
    for ip in ips(result) {
        let claim = network_dir(&scene.host).join(format!("addresses/{ip}"));
        replace(&claim, &fs::read(&claim).unwrap());
    }
}

/// The next pod publishes the same port, and another one has the same addresses.
fn expect_free(scene: &Scene, first: &Value, case: &str) {
    let (next, heir) = (scene.host.pod("next"), scene.host.pod("heir"));
    let wanted = with(&scene.config, &json!({"runtimeConfig": {"ips": ips(first)}}));
    scene.host.add(&heir, &wanted);
    let rules = scene.host.node.sh(&["nft", "list", "ruleset"]).unwrap();
    assert!(!rules.contains(". 8080 :"), "{case}: a port leads to the next holder of the address");
    scene.host.del(&heir, &wanted);
    let publishing = with(&scene.config, &wishes());
    scene.host.add(&next, &publishing);
    scene.host.del(&next, &publishing);
    scene.expect_as_before(case);
}

#[test]
fn a8_del_with_an_unreadable_record_leaves_no_host_port() {
    let newer = json!({"schema": 99, "something": "new"}).to_string();
    for mode in MODES {
        for content in [newer.as_str(), "", "{\"schema\":1,\"net", "null"] {
            let scene = Scene::new("newer", &json!({"mode": mode}));
            let pod = scene.host.pod("a");
            let result = scene.host.add(&pod, &with(&scene.config, &wishes()));
            replace(&record(&scene, &pod), content.as_bytes());
            scene.host.del(&pod, &scene.config);
            let case = format!("{mode}, {content:?}");
            scene.expect_as_before(&case);
            expect_free(&scene, &result, &case);
        }
    }
}

#[test]
fn a8_gc_with_an_unreadable_record_and_copied_claims_leaves_nothing() {
    for mode in MODES {
        let scene = Scene::new("newergc", &json!({"mode": mode}));
        let pod = scene.host.pod("a");
        let result = scene.host.add(&pod, &with(&scene.config, &wishes()));
        copy_claims(&scene, &result);
        replace(&record(&scene, &pod), b"{\"schema\": 7}");
        scene.gc();
        scene.expect_as_before(mode);
        expect_free(&scene, &result, mode);
    }
}

#[test]
fn a8_del_with_copied_claims_gives_the_addresses_back() {
    for mode in MODES {
        let scene = Scene::new("copied", &json!({"mode": mode}));
        let pod = scene.host.pod("a");
        let result = scene.host.add(&pod, &with(&scene.config, &wishes()));
        copy_claims(&scene, &result);
        scene.host.del(&pod, &scene.config);
        scene.expect_as_before(mode);
        expect_free(&scene, &result, mode);
    }
}

#[test]
fn a8_a_newer_record_is_refused_and_left_as_it_is() {
    let scene = Scene::new("newerkept", &json!({}));
    let pod = scene.host.pod("a");
    let result = scene.host.add(&pod, &scene.config);
    let (path, newer) = (record(&scene, &pod), json!({"schema": 99}).to_string());
    replace(&path, newer.as_bytes());
    // A kill in the critical section makes the next call repair.
    fs::write(network_dir(&scene.host).join("lock"), "1").unwrap();
    let (other, others) = scene.host.attached("b", &scene.config);
    assert!(ips(&others).iter().all(|ip| !ips(&result).contains(ip)), "a second owner of {others}");
    assert_eq!(scene.host.refused(&pod, &scene.config).code, 102);
    assert_eq!(fs::read_to_string(&path).unwrap(), newer);
    scene.host.del(&other, &scene.config);
    scene.host.del(&pod, &scene.config);
    scene.expect_as_before("a newer record");
}

/// Link, elements and claims go in several steps, and no record says which are done.
#[test]
fn a8_del_without_a_record_killed_at_any_system_call() {
    let stride = if soak() { 1 } else { 11 };
    let scene = Scene::new("strays", &json!({"mode": "routed"}));
    let pod = scene.host.pod("pod");
    let mut stop = 1;
    loop {
        let name = format!("c{stop}");
        let publishing = with(&scene.config, &wishes());
        let (add, del) =
            (call(Verb::Add, (&pod, &name), &publishing), call(Verb::Del, (&pod, &name), &scene.config));
        scene.call(&add).ok().unwrap();
        fs::remove_file(network_dir(&scene.host).join(format!("attachments/{name}@eth0.ready"))).unwrap();
        let end = kill_at_syscall(&scene.host.plugin, &scene.host.node, &del, stop).unwrap();
        let case = format!("DEL without a record killed at stop {stop}: {end:?}");
        scene.del(&del, &case);
        // The claims go with the next look at all of them.
        scene.gc();
        scene.expect_as_before(&case);
        match end {
            TraceOutcome::Killed { .. } => stop += stride,
            _ => break,
        }
    }
    assert!(stop > 100, "the plugin made {stop} stops: that is no DEL");
    scene.expect_neighbour("strays");
}
