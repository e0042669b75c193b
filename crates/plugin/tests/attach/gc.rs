//! GC: E16.

use serde_json::{Value, json};
use testkit::{Call, Pod, Snapshot, Verb, inspect, ping};

use crate::common::{DUAL, Host, MODES, host_link, v4, v6, with};

fn gc_with(host: &Host, config: &Value, list: &Value) -> testkit::Outcome {
    host.plugin.call(&host.node, &Call::network(Verb::Gc, &with_list(config, list))).unwrap()
}

/// `common::with` takes null for "not there"; here it is a value of its own.
fn with_list(config: &Value, lists: &Value) -> Value {
    let mut config = config.clone();
    for (key, value) in lists.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn is_attached(host: &Host, (pod, result): &(Pod, Value)) -> bool {
    let (inside, outside) = (inspect::link(pod, "eth0"), inspect::link(&host.node, host_link(result)));
    assert_eq!(inside.is_ok(), outside.is_ok(), "one end without the other");
    inside.is_ok()
}

fn listed(pods: &[&(Pod, Value)]) -> Value {
    pods.iter().map(|(pod, _)| json!({"containerID": pod.id(), "ifname": "eth0"})).collect()
}

#[test]
fn e16_gc_frees_what_is_not_listed_and_never_what_is() {
    for mode in MODES {
        let host = Host::new("e16");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode, "ipMasq": true}));
        let red =
            with(&config, &json!({"name": "red", "bridge": "pw1", "subnet": "10.99.0.0/24,fd00:99::/64"}));
        let kept = [host.attached("a", &config), host.attached("b", &config)];
        let others = host.attached("r", &red);
        let before = Snapshot::of(&host.node).unwrap();
        let stale: Vec<_> = (0..5).map(|n| host.attached(&format!("s{n}"), &config)).collect();
        // One of them vanished without a DEL, one shares its container's id with a living one.
        stale[0].0.destroy().unwrap();
        let second = host.call_on(
            Verb::Add,
            (&kept[0].0, "net1"),
            &with(&config, &json!({"isDefaultGateway": false})),
        );
        second.ok().unwrap();
        let list = json!({"cni.dev/valid-attachments": listed(&[&kept[0], &kept[1]])});
        assert_eq!(gc_with(&host, &config, &list).ok().unwrap(), Value::Null);
        before.expect_same(&host.node).unwrap();
        for (pod, result) in &kept {
            host.check(pod, &config, result).unwrap();
        }
        host.check(&others.0, &red, &others.1).unwrap();
        assert!(
            ping(&kept[0].0, v4(&kept[1].1), 1).unwrap().all()
                && ping(&kept[0].0, v6(&kept[1].1), 1).unwrap().all()
        );
        assert!(
            inspect::link(&kept[0].0, "net1").is_err(),
            "{mode}: another ifname of a listed container is not listed"
        );
    }
}

#[test]
fn e16_the_list_may_be_null_or_empty_and_have_either_name() {
    for (list, survives) in [
        (json!({"cni.dev/valid-attachments": null}), false),
        (json!({"cni.dev/valid-attachments": []}), false),
        (json!({"cni.dev/attachments": null}), false),
        (json!({"cni.dev/attachments": "LISTED"}), true),
        (json!({"cni.dev/valid-attachments": "LISTED"}), true),
        // One attachment too many is a small leak, one too few cuts off a running pod.
        (json!({"cni.dev/valid-attachments": [], "cni.dev/attachments": "LISTED"}), true),
    ] {
        let host = Host::new("e16-lists");
        let config = host.config(&json!({"subnet": DUAL}));
        let attached = host.attached("a", &config);
        let mut list = list;
        for value in list.as_object_mut().unwrap().values_mut().filter(|value| *value == "LISTED") {
            *value = listed(&[&attached]);
        }
        gc_with(&host, &config, &list).ok().unwrap();
        assert_eq!(is_attached(&host, &attached), survives, "{list}");
    }
}

#[test]
fn e16_a_list_that_is_absent_or_unreadable_is_refused_and_nothing_is_freed() {
    let host = Host::new("e16-refused");
    let config = host.config(&json!({"subnet": DUAL}));
    let attached = host.attached("a", &config);
    let before = Snapshot::of(&host.node).unwrap();
    for list in [
        json!({}),
        json!({"cni.dev/valid-attachments": [{"containerID": attached.0.id()}]}),
        json!({"cni.dev/valid-attachments": [{"containerID": "", "ifname": "eth0"}]}),
        json!({"cni.dev/valid-attachments": [7]}),
    ] {
        let error = gc_with(&host, &config, &list).error().unwrap();
        assert_eq!(error.code, 7, "{list}: {error:?}");
        assert!(error.msg.contains("cni.dev/valid-attachments"), "{list}: {}", error.msg);
    }
    before.expect_same(&host.node).unwrap();
    host.check(&attached.0, &config, &attached.1).unwrap();
}

#[test]
fn e16_links_that_no_record_knows_are_swept_but_not_those_of_others() {
    for mode in MODES {
        let host = Host::new("e16-orphan");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let red =
            with(&config, &json!({"name": "red", "bridge": "pw1", "subnet": "10.99.0.0/24,fd00:99::/64"}));
        let (kept, orphan, other) =
            (host.attached("a", &config), host.attached("o", &config), host.attached("r", &red));
        // A network whose name begins with ours is another network.
        let longer = with(&config, &json!({"name": "blue2", "bridge": "pw2", "subnet": "10.77.0.0/24"}));
        let longer_pod = host.attached("l", &longer);
        let record = format!("networks/blue/attachments/{}@eth0.ready", orphan.0.id());
        std::fs::remove_file(host.node.run_dir().join(record)).unwrap();
        let list = json!({"cni.dev/valid-attachments": listed(&[&kept])});
        gc_with(&host, &config, &list).ok().unwrap();
        assert!(!is_attached(&host, &orphan), "{mode}");
        for (attached, config) in [(&kept, &config), (&other, &red), (&longer_pod, &longer)] {
            host.check(&attached.0, config, &attached.1).unwrap();
        }
        // A listed link without a record is somebody's network, and stays.
        let record = format!("networks/blue/attachments/{}@eth0.ready", kept.0.id());
        std::fs::remove_file(host.node.run_dir().join(record)).unwrap();
        gc_with(&host, &config, &list).ok().unwrap();
        assert!(is_attached(&host, &kept), "{mode}");
    }
}

#[test]
fn e16_gc_carries_on_past_errors_and_reports_them() {
    for mode in MODES {
        let host = Host::new("e16-errors");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let kept = host.attached("a", &config);
        let before = Snapshot::of(&host.node).unwrap();
        let stale: Vec<_> = (0..4).map(|n| host.attached(&format!("s{n}"), &config)).collect();
        // A record that can neither be read nor removed.
        let stuck = host.node.run_dir().join("networks/blue/attachments/stuck@eth0.ready");
        std::fs::create_dir(&stuck).unwrap();
        let list = json!({"cni.dev/valid-attachments": listed(&[&kept])});
        let error = gc_with(&host, &config, &list).error().unwrap();
        assert!(error.msg.contains("stuck@eth0"), "{mode}: {error:?}");
        assert!(stale.iter().all(|attached| !is_attached(&host, attached)), "{mode}");
        before.expect_same(&host.node).unwrap();
        host.check(&kept.0, &config, &kept.1).unwrap();
    }
}

#[test]
fn e16_gc_of_a_network_that_never_was_does_nothing() {
    let host = Host::new("e16-never");
    let before = Snapshot::of(&host.node).unwrap();
    let config = host.config(&json!({"subnet": DUAL}));
    gc_with(&host, &config, &json!({"cni.dev/valid-attachments": null})).ok().unwrap();
    before.expect_same(&host.node).unwrap();
    // Only name, state and list matter: a config that was broken since must not keep the garbage.
    let broken = with(&config, &json!({"subnet": "nonsense", "mode": "nonsense"}));
    let attached = host.attached("a", &config);
    gc_with(&host, &broken, &json!({"cni.dev/valid-attachments": null})).ok().unwrap();
    assert!(!is_attached(&host, &attached));
}

/// A list is as old as its GC: what is added while it runs is not on it, and is not stale either.
#[test]
fn e16_pods_that_are_added_while_gc_runs_are_not_touched() {
    let host = Host::new("e16-during");
    let config = host.config(&json!({"subnet": DUAL}));
    let stale: Vec<_> = (0..24).map(|n| host.attached(&format!("s{n}"), &config)).collect();
    let added = std::thread::scope(|scope| {
        let gc = scope.spawn(|| gc_with(&host, &config, &json!({"cni.dev/valid-attachments": null})));
        let mut added = Vec::new();
        // GC has begun when the first stale link is gone.
        testkit::wait_until("GC to begin", testkit::DEADLINE, || {
            Ok(stale.iter().any(|(_, result)| inspect::link(&host.node, host_link(result)).is_err()))
        })
        .unwrap();
        while !gc.is_finished() {
            added.push(host.attached(&format!("n{}", added.len()), &config));
        }
        gc.join().unwrap().ok().unwrap();
        added
    });
    assert!(!added.is_empty());
    for (pod, result) in &added {
        assert!(host.check(pod, &config, result).is_ok(), "{} lost its network", pod.id());
    }
    assert!(!stale.iter().any(|pod| is_attached(&host, pod)));
}
