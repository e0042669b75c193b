//! GC (E16): removes attachments that are not listed, and orphaned links, of its own network only.

use serde_json::{Value, json};
use testkit::{Call, Pod, Snapshot, Verb, inspect, ping};

use crate::common::{DUAL, Host, MODES, host_link, v4, v6, with};

fn gc_with(host: &Host, config: &Value, list: &Value) -> testkit::Outcome {
    host.plugin.call(&host.node, &Call::network(Verb::Gc, &with_list(config, list))).unwrap()
}

/// Unlike `common::with`, this keeps keys with the value null.
fn with_list(config: &Value, lists: &Value) -> Value {
    let mut config = config.clone();
    for (key, value) in lists.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn is_attached(host: &Host, (pod, result): &(Pod, Value)) -> bool {
    let (inside, outside) = (inspect::link(pod, "eth0"), inspect::link(&host.node, host_link(result)));
    assert_eq!(inside.is_ok(), outside.is_ok(), "only one end of the link exists");
    inside.is_ok()
}

fn listed(pods: &[&(Pod, Value)]) -> Value {
    pods.iter().map(|(pod, _)| json!({"containerID": pod.id(), "ifname": "eth0"})).collect()
}

#[test]
fn e16_gc_removes_only_attachments_that_are_not_listed() {
    for mode in MODES {
        let host = Host::new("e16");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode, "ipMasq": true}));
        let red =
            with(&config, &json!({"name": "red", "bridge": "pw1", "subnet": "10.99.0.0/24,fd00:99::/64"}));
        let valid = [host.attached("a", &config), host.attached("b", &config)];
        let other_network = host.attached("r", &red);
        let before = Snapshot::of(&host.node).unwrap();
        let stale: Vec<_> = (0..5).map(|n| host.attached(&format!("s{n}"), &config)).collect();
        // One namespace was destroyed without a DEL. One attachment has the container id of a valid one.
        stale[0].0.destroy().unwrap();
        let second = host.call_on(
            Verb::Add,
            (&valid[0].0, "net1"),
            &with(&config, &json!({"isDefaultGateway": false})),
        );
        second.ok().unwrap();
        let list = json!({"cni.dev/valid-attachments": listed(&[&valid[0], &valid[1]])});
        assert_eq!(gc_with(&host, &config, &list).ok().unwrap(), Value::Null);
        before.expect_same(&host.node).unwrap();
        for (pod, result) in &valid {
            host.check(pod, &config, result).unwrap();
        }
        host.check(&other_network.0, &red, &other_network.1).unwrap();
        assert!(
            ping(&valid[0].0, v4(&valid[1].1), 1).unwrap().all()
                && ping(&valid[0].0, v6(&valid[1].1), 1).unwrap().all()
        );
        assert!(
            inspect::link(&valid[0].0, "net1").is_err(),
            "{mode}: an unlisted interface of a listed container was not removed"
        );
    }
}

#[test]
fn e16_gc_accepts_null_and_empty_lists_under_both_names() {
    for (list, survives) in [
        (json!({"cni.dev/valid-attachments": null}), false),
        (json!({"cni.dev/valid-attachments": []}), false),
        (json!({"cni.dev/attachments": null}), false),
        (json!({"cni.dev/attachments": "LISTED"}), true),
        (json!({"cni.dev/valid-attachments": "LISTED"}), true),
        // GC uses the union of both lists: a missing attachment would disconnect a running pod.
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
fn e16_gc_refuses_a_missing_or_invalid_list() {
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
fn e16_gc_removes_orphaned_links_of_its_own_network_only() {
    for mode in MODES {
        let host = Host::new("e16-orphan");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let red =
            with(&config, &json!({"name": "red", "bridge": "pw1", "subnet": "10.99.0.0/24,fd00:99::/64"}));
        let (valid, orphan, other) =
            (host.attached("a", &config), host.attached("o", &config), host.attached("r", &red));
        // The name of this network starts with the name of the first one.
        let longer = with(&config, &json!({"name": "blue2", "bridge": "pw2", "subnet": "10.77.0.0/24"}));
        let longer_pod = host.attached("l", &longer);
        let record = format!("networks/blue/attachments/{}@eth0.ready", orphan.0.id());
        std::fs::remove_file(host.node.run_dir().join(record)).unwrap();
        let list = json!({"cni.dev/valid-attachments": listed(&[&valid])});
        gc_with(&host, &config, &list).ok().unwrap();
        assert!(!is_attached(&host, &orphan), "{mode}");
        for (attached, config) in [(&valid, &config), (&other, &red), (&longer_pod, &longer)] {
            host.check(&attached.0, config, &attached.1).unwrap();
        }
        // A listed link without a record belongs to a running pod and is not removed.
        let record = format!("networks/blue/attachments/{}@eth0.ready", valid.0.id());
        std::fs::remove_file(host.node.run_dir().join(record)).unwrap();
        gc_with(&host, &config, &list).ok().unwrap();
        assert!(is_attached(&host, &valid), "{mode}");
    }
}

#[test]
fn e16_gc_continues_after_errors_and_reports_them() {
    for mode in MODES {
        let host = Host::new("e16-errors");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let valid = host.attached("a", &config);
        let before = Snapshot::of(&host.node).unwrap();
        let stale: Vec<_> = (0..4).map(|n| host.attached(&format!("s{n}"), &config)).collect();
        // This record can neither be read nor removed.
        let stuck = host.node.run_dir().join("networks/blue/attachments/stuck@eth0.ready");
        std::fs::create_dir(&stuck).unwrap();
        let list = json!({"cni.dev/valid-attachments": listed(&[&valid])});
        let error = gc_with(&host, &config, &list).error().unwrap();
        assert!(error.msg.contains("stuck@eth0"), "{mode}: {error:?}");
        assert!(stale.iter().all(|attached| !is_attached(&host, attached)), "{mode}");
        before.expect_same(&host.node).unwrap();
        host.check(&valid.0, &config, &valid.1).unwrap();
    }
}

#[test]
fn e16_gc_of_an_unknown_network_changes_nothing() {
    let host = Host::new("e16-never");
    let before = Snapshot::of(&host.node).unwrap();
    let config = host.config(&json!({"subnet": DUAL}));
    gc_with(&host, &config, &json!({"cni.dev/valid-attachments": null})).ok().unwrap();
    before.expect_same(&host.node).unwrap();
    // GC only uses name, run directory and list, so other invalid keys do not prevent it.
    let invalid = with(&config, &json!({"subnet": "nonsense", "mode": "nonsense"}));
    let attached = host.attached("a", &config);
    gc_with(&host, &invalid, &json!({"cni.dev/valid-attachments": null})).ok().unwrap();
    assert!(!is_attached(&host, &attached));
}

/// A pod that is added while GC runs is not in the list, but must not be removed.
#[test]
fn e16_gc_does_not_remove_pods_added_while_it_runs() {
    let host = Host::new("e16-during");
    let config = host.config(&json!({"subnet": DUAL}));
    let stale: Vec<_> = (0..24).map(|n| host.attached(&format!("s{n}"), &config)).collect();
    let added = std::thread::scope(|scope| {
        let gc = scope.spawn(|| gc_with(&host, &config, &json!({"cni.dev/valid-attachments": null})));
        let mut added = Vec::new();
        // GC has started when the first stale link is removed.
        testkit::wait_until("GC to start", testkit::DEADLINE, || {
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
