//! The state directory is lost, is of another boot, or is in somebody's hands who does not move.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::IpAddr;

use serde_json::{Value, json};
use testkit::{Call, DEADLINE, Pod, Snapshot, Verb, wait_until};

use crate::common::{DUAL, Host, MODES, host_link, ips};
use crate::scene::{Scene, call, files, network_dir};

/// Pods that run, and the state directory that is gone.
fn bereft(label: &str, config: &Value) -> (Host, Value, Vec<(Pod, Value)>) {
    let host = Host::new(label);
    let config = crate::common::with(&host.config(&json!({"subnet": DUAL, "ipMasq": true})), config);
    let pods = (0..3).map(|number| host.attached(&format!("p{number}"), &config)).collect();
    fs::remove_dir_all(host.node.run_dir()).unwrap();
    (host, config, pods)
}

#[test]
fn c3_addresses_of_pods_that_live_are_not_given_again_when_the_state_directory_is_lost() {
    for mode in MODES {
        let (host, config, pods) = bereft("lost", &json!({"mode": mode}));
        let (new, result) = host.attached("new", &config);
        let taken: BTreeSet<IpAddr> = pods.iter().flat_map(|(_, result)| ips(result)).collect();
        assert!(!ips(&result).iter().any(|ip| taken.contains(ip)), "{mode}: a second owner of {result}");
        // Known again: complete, refused a second time, and collected when they are not listed.
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
        let left = files(&host);
        assert_eq!(left.len(), 2 * 3, "{mode}: {left:?}");
        let links = host.node.sh(&["ip", "link"]).unwrap();
        assert!(!links.contains(host_link(&pods[0].1)) && !links.contains(host_link(&pods[2].1)), "{links}");
    }
}

/// As soon as a pod goes its links and its entries in the firewall go, also if nobody knows of it but the kernel.
#[test]
fn b7_del_and_gc_after_the_state_directory_is_lost_leave_nothing() {
    for mode in MODES {
        let scene = Scene::new("lost", &json!({"mode": mode}));
        let (pod, _) = scene.host.attached("a", &scene.config);
        let (unlisted, _) = scene.host.attached("b", &scene.config);
        fs::remove_dir_all(scene.host.node.run_dir()).unwrap();
        scene.host.del(&pod, &scene.config);
        fs::remove_dir_all(scene.host.node.run_dir()).unwrap();
        scene.gc();
        scene.expect_as_before(mode);
        // Again, when there is nothing any more.
        for pod in [&pod, &unlisted, &scene.neighbour] {
            scene.host.del(pod, &scene.config);
        }
        assert_eq!(files(&scene.host), BTreeSet::new());
        fs::remove_dir_all(scene.host.node.run_dir()).unwrap();
        scene.host.del(&pod, &scene.config);
        assert!(!scene.host.node.run_dir().exists(), "{mode}: a DEL of nothing made a state directory");
    }
}

/// An id that does not fit into a link's alias is there as a digest: nobody can tell the name, but DEL finds it.
#[test]
fn c3_a_long_container_id_keeps_its_address_when_the_state_directory_is_lost() {
    let host = Host::new("long");
    let config = host.config(&json!({"subnet": DUAL}));
    let (pod, other) = (host.pod("a"), host.pod("b"));
    let name = "x".repeat(200);
    let add = host.plugin.call(&host.node, &call(Verb::Add, (&pod, &name), &config)).unwrap().ok().unwrap();
    fs::remove_dir_all(host.node.run_dir()).unwrap();
    let result = host.add(&other, &config);
    assert!(!ips(&result).iter().any(|ip| ips(&add).contains(ip)), "a second owner of {result}");
    host.plugin.call(&host.node, &call(Verb::Del, (&pod, &name), &config)).unwrap().ok().unwrap();
    assert_eq!(files(&host).len(), 3, "{:?}", files(&host));
    assert!(!host.node.sh(&["ip", "link"]).unwrap().contains(host_link(&add)));
}

/// Where /run is a disk, the directory outlives the machine's networks.
#[test]
fn c3_the_state_of_another_boot_is_dropped() {
    let host = Host::new("boot");
    let config = host.config(&json!({"subnet": DUAL, "ipMasq": true}));
    let fresh = Snapshot::of(&host.node).unwrap();
    let pods: Vec<(Pod, Value)> =
        (0..3).map(|number| host.attached(&format!("p{number}"), &config)).collect();
    // What a reboot does to the kernel.
    pods.iter().for_each(|(pod, _)| pod.destroy().unwrap());
    host.node.sh(&["ip", "link", "del", "pw0"]).unwrap();
    host.node.sh(&["nft", "flush", "ruleset"]).unwrap();
    wait_until("the links to go", DEADLINE, || Ok(Snapshot::of(&host.node)? == fresh)).unwrap();
    fs::write(host.node.run_dir().join("boot"), "00000000-0000-0000-0000-000000000000\n").unwrap();

    // A DEL from before the boot finds nothing, and is fine.
    host.del(&pods[0].0, &config);
    let (pod, result) = host.attached("new", &config);
    assert_eq!(ips(&result), ips(&pods[0].1), "the range begins anew");
    assert_eq!(files(&host).len(), 3, "{:?}", files(&host));
    host.check(&pod, &config, &result).unwrap();
    host.del(&pod, &config);
    assert_eq!(files(&host), BTreeSet::new());
}

/// A plugin that was stopped (SIGSTOP) keeps its locks: the others say so, and do not hang.
#[test]
fn e7_a_lock_that_nobody_gives_back_is_try_again_later() {
    let scene = Scene::new("stopped", &json!({}));
    let (pod, late) = (scene.host.pod("pod"), scene.host.pod("late"));
    let result = scene.host.add(&pod, &scene.config);
    let dir = network_dir(&scene.host);
    let record = dir.join(format!("attachments/{}@eth0.ready", pod.id()));
    let held: Vec<File> = [dir.join("lock"), record].iter().map(|path| File::open(path).unwrap()).collect();
    held.iter().for_each(|file| file.lock().unwrap());

    let calls =
        [(Verb::Add, &late), (Verb::Del, &pod)].map(|(verb, pod)| Call::pod(verb, pod, &scene.config));
    let outcomes = std::thread::scope(|scope| {
        let both = calls.each_ref().map(|call| scope.spawn(|| scene.call(call)));
        both.map(|one| one.join().unwrap())
    });
    for outcome in outcomes {
        let error = outcome.error().unwrap();
        assert_eq!(error.code, 11, "{error:?}");
        assert!(error.msg.contains("stayed locked") && error.details.contains("stopped"), "{error:?}");
    }

    drop(held);
    scene.host.check(&pod, &scene.config, &result).unwrap();
    scene.host.del(&pod, &scene.config);
    scene.expect_as_before("after the locks were given back");
}
