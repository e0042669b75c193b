//! Records and claims that another program changed. DEL and GC must still remove all nftables elements of the pod. Otherwise its
//! host port could not be reused, or would be forwarded to the next pod with the same address.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use testkit::trace::{TraceOutcome, kill_at_syscall};
use testkit::{Pod, Verb, is_soak};

use crate::common::{MODES, ips, with};
use crate::scene::{Scene, call, network_dir, ports_and_limits};

/// Replaces a file by a new one with this content, like an editor.
fn replace(path: &Path, content: &[u8]) {
    let temp = path.with_extension("temp");
    fs::write(&temp, content).unwrap();
    fs::rename(&temp, path).unwrap();
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

/// Expects that the addresses of `first` can be assigned without its host port, and that the host port can be published again.
fn expect_free(scene: &Scene, first: &Value, case: &str) {
    let (next, same_address) = (scene.host.pod("next"), scene.host.pod("same"));
    let requesting = with(&scene.config, &json!({"runtimeConfig": {"ips": ips(first)}}));
    scene.host.add(&same_address, &requesting);
    let rules = scene.host.node.sh(&["nft", "list", "ruleset"]).unwrap();
    assert!(
        !rules.contains(". 8080 :"),
        "{case}: the host port is forwarded to the next pod with the address"
    );
    scene.host.del(&same_address, &requesting);
    let publishing = with(&scene.config, &ports_and_limits());
    scene.host.add(&next, &publishing);
    scene.host.del(&next, &publishing);
    scene.expect_as_before(case);
}

#[test]
fn a8_del_with_an_unreadable_record_removes_the_host_port() {
    let newer = json!({"schema": 99, "something": "new"}).to_string();
    for mode in MODES {
        for content in [newer.as_str(), "", "{\"schema\":1,\"net", "null"] {
            let scene = Scene::new("newer", &json!({"mode": mode}));
            let pod = scene.host.pod("a");
            let result = scene.host.add(&pod, &with(&scene.config, &ports_and_limits()));
            replace(&record(&scene, &pod), content.as_bytes());
            scene.host.del(&pod, &scene.config);
            let case = format!("{mode}, {content:?}");
            scene.expect_as_before(&case);
            expect_free(&scene, &result, &case);
        }
    }
}

#[test]
fn a8_gc_with_unreadable_record_and_copied_claims_removes_everything() {
    for mode in MODES {
        let scene = Scene::new("newergc", &json!({"mode": mode}));
        let pod = scene.host.pod("a");
        let result = scene.host.add(&pod, &with(&scene.config, &ports_and_limits()));
        copy_claims(&scene, &result);
        replace(&record(&scene, &pod), b"{\"schema\": 7}");
        scene.gc();
        scene.expect_as_before(mode);
        expect_free(&scene, &result, mode);
    }
}

#[test]
fn a8_del_with_copied_claims_releases_the_addresses() {
    for mode in MODES {
        let scene = Scene::new("copied", &json!({"mode": mode}));
        let pod = scene.host.pod("a");
        let result = scene.host.add(&pod, &with(&scene.config, &ports_and_limits()));
        copy_claims(&scene, &result);
        scene.host.del(&pod, &scene.config);
        scene.expect_as_before(mode);
        expect_free(&scene, &result, mode);
    }
}

#[test]
fn a8_add_refuses_and_keeps_a_record_of_a_newer_version() {
    let scene = Scene::new("newerkept", &json!({}));
    let pod = scene.host.pod("a");
    let result = scene.host.add(&pod, &scene.config);
    let (path, newer) = (record(&scene, &pod), json!({"schema": 99}).to_string());
    replace(&path, newer.as_bytes());
    // This content of the lock marks a killed process, so that the next call repairs the state.
    fs::write(network_dir(&scene.host).join("lock"), "1").unwrap();
    let (other, other_result) = scene.host.attached("b", &scene.config);
    let is_unique = ips(&other_result).iter().all(|ip| !ips(&result).contains(ip));
    assert!(is_unique, "an address was assigned twice: {other_result}");
    assert_eq!(scene.host.refused(&pod, &scene.config).code, 102);
    assert_eq!(fs::read_to_string(&path).unwrap(), newer);
    scene.host.del(&other, &scene.config);
    scene.host.del(&pod, &scene.config);
    scene.expect_as_before("a newer record");
}

/// Link, elements and claims are removed in several steps, and no record stores the progress.
#[test]
fn a8_del_without_record_can_be_killed_at_any_system_call() {
    let stride = if is_soak() { 1 } else { 11 };
    let scene = Scene::new("orphans", &json!({"mode": "routed"}));
    let pod = scene.host.pod("pod");
    let mut stop = 1;
    loop {
        let name = format!("c{stop}");
        let publishing = with(&scene.config, &ports_and_limits());
        let (add, del) =
            (call(Verb::Add, (&pod, &name), &publishing), call(Verb::Del, (&pod, &name), &scene.config));
        scene.call(&add).ok().unwrap();
        fs::remove_file(network_dir(&scene.host).join(format!("attachments/{name}@eth0.ready"))).unwrap();
        let trace = kill_at_syscall(&scene.host.plugin, &scene.host.node, &del, stop).unwrap();
        let case = format!("DEL without a record killed at stop {stop}: {trace:?}");
        scene.del(&del, &case);
        // GC removes claims without a record.
        scene.gc();
        scene.expect_as_before(&case);
        match trace {
            TraceOutcome::Killed { .. } => stop += stride,
            _ => break,
        }
    }
    assert!(stop > 100, "the DEL had only {stop} stops");
    scene.expect_unaffected("orphans");
}
