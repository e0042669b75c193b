//! A pod's namespace goes while its ADD is under way.

use std::collections::BTreeSet;

use serde_json::json;
use testkit::{Call, DEADLINE, Pod, Snapshot, Verb, inspect, wait_until};

use crate::common::{Host, MODES, with};
use crate::gate::Gate;

/// Whatever the ADD says: nothing of the pod stays after its DEL, and others are served.
#[test]
fn a_namespace_that_vanishes_in_the_middle_of_add_leaves_nothing() {
    let host = Host::new("vanish");
    let gate = Gate::new(&host);
    // The bridge of the gated network is the node's, and stays.
    let (first, others) = (host.pod("first"), host.attached("other"));
    gate.open();
    gate.call(&host, Verb::Add, &first).ok().unwrap();
    gate.call(&host, Verb::Del, &first).ok().unwrap();
    gate.close();
    let before = Snapshot::of(&host.node).unwrap();
    let held = host.held();
    let pod = host.pod("gone");
    let adding = gate.spawn(&host, Verb::Add, &pod);
    gate.wait_for(2);
    pod.destroy().unwrap();
    gate.open();
    adding.outcome();
    gate.call(&host, Verb::Del, &pod).ok().unwrap();
    wait_until("the attachment to be collected", DEADLINE, || Ok(host.held() == held))
        .unwrap_or_else(|e| panic!("{e}: {:?}; {}", host.held(), host.agent.log().unwrap()));
    before.wait_for_same(&host.node, DEADLINE).unwrap();
    host.del(&others.0);
}

/// The record of the pod stays as pending, and rounds leave it alone. Nothing else of the pod is left on the node.
#[track_caller]
fn expect_pending(host: &Host, pod: &Pod) {
    let record = format!("gated/attachments/{}@eth0.pending", pod.id());
    let status = || host.agent.get("/v1/status").unwrap();
    let is_retired = || {
        let has_link = inspect::links(&host.node)?.iter().any(|link| link.name.starts_with("pw"));
        Ok(host.held().contains(&record) && !has_link)
    };
    wait_until("the record to be pending", DEADLINE, is_retired)
        .unwrap_or_else(|e| panic!("{e}: {:?}; {}", host.held(), host.agent.log().unwrap()));
    let rounds = || status()["reconcile"]["rounds"].as_u64().unwrap();
    let two_rounds = || {
        let before = rounds();
        wait_until("two more rounds", DEADLINE, || Ok(rounds() > before + 1)).unwrap();
    };
    // The one that removed the pod is over then.
    two_rounds();
    let repairs = status()["reconcile"]["repairs"].clone();
    two_rounds();
    let status = status();
    assert_eq!(status["reconcile"]["repairs"], repairs, "{}", host.agent.log().unwrap());
    assert_eq!(status["attachments"]["pending"], json!(1), "{status}");
    assert_eq!(status["conditions"], json!([]));
    assert_eq!(host.held(), BTreeSet::from([record]));
}

/// The agent knows no config of the network, so it cannot call the IPAM plugin.
#[test]
fn b11_gc_gives_the_addresses_of_a_pod_that_vanished_back_to_the_ipam_plugin() {
    for mode in MODES {
        let host = Host::with_flags("vanishleased", &["--reconcile-seconds", "1"]);
        let (mut gate, pod) = (Gate::new(&host), host.pod("gone"));
        gate.config = with(&gate.config, &json!({ "mode": mode }));
        gate.open();
        gate.call(&host, Verb::Add, &pod).ok().unwrap();
        pod.destroy().unwrap();
        expect_pending(&host, &pod);
        assert_eq!(gate.dels(), 0, "{mode}");
        let config = with(&gate.config, &json!({"cni.dev/valid-attachments": []}));
        host.plugin.call(&host.node, &Call::network(Verb::Gc, &config)).unwrap().ok().unwrap();
        assert_eq!((gate.dels(), host.held()), (1, BTreeSet::new()), "{mode}");
        let environment = gate.environment(Verb::Del);
        assert!(environment.contains(&format!("CNI_CONTAINERID={}\n", pod.id())), "{environment}");
    }
}

#[test]
fn b11_an_agent_that_is_killed_while_the_ipam_plugin_works_leaves_no_address_behind() {
    for verb in [Verb::Del, Verb::Add] {
        let mut host = Host::with_flags("killleased", &["--reconcile-seconds", "1"]);
        let (gate, pod) = (Gate::new(&host), host.pod("a"));
        let add = gate.spawn(&host, Verb::Add, &pod);
        gate.wait_for(1);
        host.agent.kill().unwrap();
        gate.open();
        // The plugin finds no agent, and gives up after some seconds.
        add.outcome().error().unwrap();
        host.agent.launch().unwrap();
        host.agent.wait_ready().unwrap();
        expect_pending(&host, &pod);
        assert_eq!(gate.dels(), 0);
        gate.call(&host, verb, &pod).ok().unwrap();
        assert_eq!(gate.dels(), 1, "{verb:?}");
        gate.call(&host, Verb::Del, &pod).ok().unwrap();
        assert_eq!(host.held(), BTreeSet::new());
    }
}
