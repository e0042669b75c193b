//! The run directory is lost, belongs to an earlier boot, or is locked by a stopped process.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::IpAddr;

use serde_json::{Value, json};
use testkit::{Call, DEADLINE, Pod, Snapshot, Verb, wait_until};

use crate::common::{DUAL, Host, MODES, host_link, ips};
use crate::scene::{Scene, call, files, network_dir};

/// A node with three pods and without a run directory.
fn without_run_dir(label: &str, config: &Value) -> (Host, Value, Vec<(Pod, Value)>) {
    let host = Host::new(label);
    let config = crate::common::with(&host.config(&json!({"subnet": DUAL, "ipMasq": true})), config);
    let pods = (0..3).map(|number| host.attached(&format!("p{number}"), &config)).collect();
    fs::remove_dir_all(host.node.run_dir()).unwrap();
    (host, config, pods)
}

#[test]
fn c3_addresses_of_running_pods_survive_the_loss_of_the_run_directory() {
    for mode in MODES {
        let (host, config, pods) = without_run_dir("lost", &json!({"mode": mode}));
        let (new, result) = host.attached("new", &config);
        let in_use: BTreeSet<IpAddr> = pods.iter().flat_map(|(_, result)| ips(result)).collect();
        let is_reused = ips(&result).iter().any(|ip| in_use.contains(ip));
        assert!(!is_reused, "{mode}: an address was assigned twice: {result}");
        // The recovered attachments pass CHECK, a second ADD is refused, and GC removes those that are not listed.
        for (pod, result) in &pods {
            host.check(pod, &config, result).unwrap_or_else(|e| panic!("{mode}: {e:?}"));
            assert_eq!(host.refused(pod, &config).code, 102, "{mode}");
        }
        host.del(&pods[0].0, &config);
        host.plugin
            .gc(&host.node, &config, &[(new.id(), "eth0"), (pods[1].0.id(), "eth0")])
            .unwrap()
            .ok()
            .unwrap();
        host.check(&pods[1].0, &config, &pods[1].1).unwrap();
        host.check(&new, &config, &result).unwrap();
        let remaining = files(&host);
        assert_eq!(remaining.len(), 2 * 3, "{mode}: {remaining:?}");
        let links = host.node.sh(&["ip", "link"]).unwrap();
        assert!(!links.contains(host_link(&pods[0].1)) && !links.contains(host_link(&pods[2].1)), "{links}");
    }
}

/// Links and nftables elements are removed although only the kernel has information about the pods.
#[test]
fn b7_del_and_gc_without_the_run_directory_remove_everything() {
    for mode in MODES {
        let scene = Scene::new("lost", &json!({"mode": mode}));
        let (pod, _) = scene.host.attached("a", &scene.config);
        let (unlisted, _) = scene.host.attached("b", &scene.config);
        fs::remove_dir_all(scene.host.node.run_dir()).unwrap();
        scene.host.del(&pod, &scene.config);
        fs::remove_dir_all(scene.host.node.run_dir()).unwrap();
        scene.gc();
        scene.expect_as_before(mode);
        // DEL also succeeds without any remaining state.
        for pod in [&pod, &unlisted, &scene.unaffected] {
            scene.host.del(pod, &scene.config);
        }
        assert_eq!(files(&scene.host), BTreeSet::new());
        fs::remove_dir_all(scene.host.node.run_dir()).unwrap();
        scene.host.del(&pod, &scene.config);
        assert!(!scene.host.node.run_dir().exists(), "{mode}: the DEL created a run directory");
    }
}

/// The link alias has a digest of the long id. The id cannot be recovered, but DEL computes the same digest.
#[test]
fn c3_long_container_ids_survive_the_loss_of_the_run_directory() {
    let host = Host::new("long");
    let config = host.config(&json!({"subnet": DUAL}));
    let (pod, other) = (host.pod("a"), host.pod("b"));
    let name = "x".repeat(200);
    let add = host.plugin.call(&host.node, &call(Verb::Add, (&pod, &name), &config)).unwrap().ok().unwrap();
    fs::remove_dir_all(host.node.run_dir()).unwrap();
    let result = host.add(&other, &config);
    let is_reused = ips(&result).iter().any(|ip| ips(&add).contains(ip));
    assert!(!is_reused, "an address was assigned twice: {result}");
    host.plugin.call(&host.node, &call(Verb::Del, (&pod, &name), &config)).unwrap().ok().unwrap();
    assert_eq!(files(&host).len(), 3, "{:?}", files(&host));
    assert!(!host.node.sh(&["ip", "link"]).unwrap().contains(host_link(&add)));
}

/// If the run directory is on a disk, it survives a reboot.
#[test]
fn c3_the_state_of_an_earlier_boot_is_discarded() {
    let host = Host::new("boot");
    let config = host.config(&json!({"subnet": DUAL, "ipMasq": true}));
    let initial = Snapshot::of(&host.node).unwrap();
    let pods: Vec<(Pod, Value)> =
        (0..3).map(|number| host.attached(&format!("p{number}"), &config)).collect();
    // A reboot has these effects on the kernel.
    pods.iter().for_each(|(pod, _)| pod.destroy().unwrap());
    host.node.sh(&["ip", "link", "del", "pw0"]).unwrap();
    host.node.sh(&["nft", "flush", "ruleset"]).unwrap();
    wait_until("the links to be removed", DEADLINE, || Ok(Snapshot::of(&host.node)? == initial)).unwrap();
    fs::write(host.node.run_dir().join("boot"), "00000000-0000-0000-0000-000000000000\n").unwrap();

    // A DEL of a pod from before the reboot succeeds.
    host.del(&pods[0].0, &config);
    let (pod, result) = host.attached("new", &config);
    assert_eq!(ips(&result), ips(&pods[0].1), "allocation does not start at the first address");
    assert_eq!(files(&host).len(), 3, "{:?}", files(&host));
    host.check(&pod, &config, &result).unwrap();
    host.del(&pod, &config);
    assert_eq!(files(&host), BTreeSet::new());
}

/// A plugin that is stopped with SIGSTOP keeps its locks. Other calls must report this instead of blocking.
#[test]
fn e7_a_lock_that_is_not_released_is_reported_with_code_11() {
    let scene = Scene::new("stopped", &json!({}));
    let (pod, late) = (scene.host.pod("pod"), scene.host.pod("late"));
    let result = scene.host.add(&pod, &scene.config);
    let dir = network_dir(&scene.host);
    let record = dir.join(format!("attachments/{}@eth0.ready", pod.id()));
    let locks: Vec<File> = [dir.join("lock"), record].iter().map(|path| File::open(path).unwrap()).collect();
    locks.iter().for_each(|file| file.lock().unwrap());

    let calls =
        [(Verb::Add, &late), (Verb::Del, &pod)].map(|(verb, pod)| Call::pod(verb, pod, &scene.config));
    let outcomes = std::thread::scope(|scope| {
        let threads = calls.each_ref().map(|call| scope.spawn(|| scene.call(call)));
        threads.map(|thread| thread.join().unwrap())
    });
    for outcome in outcomes {
        let error = outcome.error().unwrap();
        assert_eq!(error.code, 11, "{error:?}");
        assert!(error.msg.contains("was locked") && error.details.contains("stopped"), "{error:?}");
    }

    drop(locks);
    scene.host.check(&pod, &scene.config, &result).unwrap();
    scene.host.del(&pod, &scene.config);
    scene.expect_as_before("after the locks were released");
}
