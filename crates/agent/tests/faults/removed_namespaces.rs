//! Pod namespaces that are removed during an ADD.

use std::collections::BTreeSet;

use serde_json::json;
use testkit::{Call, DEADLINE, Pod, Snapshot, Verb, inspect, wait_until};

use crate::blocking_ipam::BlockingIpam;
use crate::common::{Host, MODES, with};

/// With any result of the ADD, the DEL removes all state of the pod.
#[test]
fn a_namespace_removed_during_add_leaves_no_state() {
    let host = Host::new("removed");
    let ipam = BlockingIpam::new(&host);
    // The bridge of the delegated network belongs to the node and remains.
    let (first, other) = (host.pod("first"), host.attached("other"));
    ipam.unblock();
    ipam.call(&host, Verb::Add, &first).ok().unwrap();
    ipam.call(&host, Verb::Del, &first).ok().unwrap();
    ipam.block();
    let before = Snapshot::of(&host.node).unwrap();
    let state_entries = host.state_entries();
    let pod = host.pod("removed");
    let adding = ipam.spawn(&host, Verb::Add, &pod);
    ipam.wait_for(2);
    pod.destroy().unwrap();
    ipam.unblock();
    adding.outcome();
    ipam.call(&host, Verb::Del, &pod).ok().unwrap();
    wait_until("the attachment to be collected", DEADLINE, || Ok(host.state_entries() == state_entries))
        .unwrap_or_else(|e| panic!("{e}: {:?}; {}", host.state_entries(), host.agent.log().unwrap()));
    before.wait_for_same(&host.node, DEADLINE).unwrap();
    host.del(&other.0);
}

/// The record of the pod stays pending, and rounds do not change it. The node has no other state of the pod.
#[track_caller]
fn expect_pending(host: &Host, pod: &Pod) {
    let record = format!("delegated/attachments/{}@eth0.pending", pod.id());
    let status = || host.agent.get("/v1/status").unwrap();
    let is_pending = || {
        let has_link = inspect::links(&host.node)?.iter().any(|link| link.name.starts_with("pw"));
        Ok(host.state_entries().contains(&record) && !has_link)
    };
    wait_until("the record to be pending", DEADLINE, is_pending)
        .unwrap_or_else(|e| panic!("{e}: {:?}; {}", host.state_entries(), host.agent.log().unwrap()));
    let rounds = || status()["reconcile"]["rounds"].as_u64().unwrap();
    let two_rounds = || {
        let before = rounds();
        wait_until("two more rounds", DEADLINE, || Ok(rounds() > before + 1)).unwrap();
    };
    // The round that removed the pod's objects has ended then.
    two_rounds();
    let repairs = status()["reconcile"]["repairs"].clone();
    two_rounds();
    let status = status();
    assert_eq!(status["reconcile"]["repairs"], repairs, "{}", host.agent.log().unwrap());
    assert_eq!(status["attachments"]["pending"], json!(1), "{status}");
    assert_eq!(status["conditions"], json!([]));
    assert_eq!(host.state_entries(), BTreeSet::from([record]));
}

/// The agent has no config of the network, so it cannot call the IPAM plugin.
#[test]
fn b11_gc_releases_delegated_addresses_of_a_removed_pod() {
    for mode in MODES {
        let host = Host::with_flags("vanishleased", &["--reconcile-seconds", "1"]);
        let (mut ipam, pod) = (BlockingIpam::new(&host), host.pod("removed"));
        ipam.config = with(&ipam.config, &json!({ "mode": mode }));
        ipam.unblock();
        ipam.call(&host, Verb::Add, &pod).ok().unwrap();
        pod.destroy().unwrap();
        expect_pending(&host, &pod);
        assert_eq!(ipam.dels(), 0, "{mode}");
        let config = with(&ipam.config, &json!({"cni.dev/valid-attachments": []}));
        host.plugin.call(&host.node, &Call::network(Verb::Gc, &config)).unwrap().ok().unwrap();
        assert_eq!((ipam.dels(), host.state_entries()), (1, BTreeSet::new()), "{mode}");
        let environment = ipam.environment(Verb::Del);
        assert!(environment.contains(&format!("CNI_CONTAINERID={}\n", pod.id())), "{environment}");
    }
}

#[test]
fn b11_a_kill_during_the_ipam_plugin_leaks_no_address() {
    for verb in [Verb::Del, Verb::Add] {
        let mut host = Host::with_flags("killleased", &["--reconcile-seconds", "1"]);
        let (ipam, pod) = (BlockingIpam::new(&host), host.pod("a"));
        let add = ipam.spawn(&host, Verb::Add, &pod);
        ipam.wait_for(1);
        host.agent.kill().unwrap();
        ipam.unblock();
        // The plugin finds no agent and fails after some seconds.
        add.outcome().error().unwrap();
        host.agent.launch().unwrap();
        host.agent.wait_ready().unwrap();
        expect_pending(&host, &pod);
        assert_eq!(ipam.dels(), 0);
        ipam.call(&host, verb, &pod).ok().unwrap();
        assert_eq!(ipam.dels(), 1, "{verb:?}");
        ipam.call(&host, Verb::Del, &pod).ok().unwrap();
        assert_eq!(host.state_entries(), BTreeSet::new());
    }
}
