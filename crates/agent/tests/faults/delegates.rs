//! An IPAM plugin that the agent runs in the plugin's place.

use std::time::{Duration, Instant};

use api::Tombstones;
use serde_json::json;
use testkit::{DEADLINE, Pod, Verb, inspect, wait_until};
use types::AttachmentKey;

use crate::common::Host;
use crate::gate::Gate;
use crate::raw::{about, passed_on};

/// Much less than anybody waits who waits for a delegate.
const SOON: Duration = Duration::from_secs(5);

fn key(network: &str, pod: &Pod) -> AttachmentKey {
    AttachmentKey {
        network: network.try_into().unwrap(),
        container: pod.id().try_into().unwrap(),
        ifname: "eth0".try_into().unwrap(),
    }
}

/// Its pod is gone already, and its DEL was left: nobody else waits for that, the keeper neither.
#[test]
fn a_delegate_that_hangs_holds_nobody_else() {
    let host = Host::new("delegatehangs");
    let (gate, hanging) = (Gate::new(&host), host.pod("a"));
    let ((other, _), next) = (host.attached("b"), host.pod("c"));
    let stones = Tombstones::new(host.agent.run_dir());
    let add = gate.spawn(&host, Verb::Add, &hanging);
    gate.wait_for(1);
    let its_key = key("gated", &hanging);
    stones.leave(&passed_on(&gate.of(Verb::Del, &hanging)), &its_key).unwrap();
    let started = Instant::now();
    host.add(&next);
    let valid = [(other.id(), "eth0"), (next.id(), "eth0")];
    host.plugin.gc(&host.node, &host.config(&json!({})), &valid).unwrap().ok().unwrap();
    // This one is for the keeper.
    let others_key = key("podwire", &other);
    stones.leave(&about(&host, Verb::Del, (&other, "eth0")), &others_key).unwrap();
    wait_until("another tombstone to be served", SOON, || Ok(!stones.exists(&others_key)?)).unwrap();
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    assert!(!add.is_over() && stones.exists(&its_key).unwrap());
    assert!(inspect::link(&other, "eth0").is_err());
    let status = host.agent.get("/v1/status").unwrap();
    assert_eq!(status["problems"], json!([]), "it only waits");
    gate.open();
    assert_eq!(add.outcome().error().unwrap().code, 11);
    wait_until("its own tombstone to be served", Duration::from_secs(2), || Ok(!stones.exists(&its_key)?))
        .unwrap();
    wait_until("nothing to be left of it", DEADLINE, || {
        Ok(!host.held().iter().any(|name| name.contains("gated")))
    })
    .unwrap();
    assert!(inspect::link(&hanging, "eth0").is_err());
}

/// The spec: a delegate gets the environment of who delegates. The agent's own is none of its business.
#[test]
fn a_delegate_gets_the_variables_of_the_request() {
    let host = Host::new("delegate");
    let (gate, pod) = (Gate::new(&host), host.pod("a"));
    gate.open();
    gate.call(&host, Verb::Add, &pod).ok().unwrap();
    gate.call(&host, Verb::Del, &pod).ok().unwrap();
    for verb in [Verb::Add, Verb::Del] {
        let environment = gate.environment(verb);
        let wanted = [
            format!("CNI_COMMAND={}", verb.as_str()),
            format!("CNI_CONTAINERID={}", pod.id()),
            format!("CNI_NETNS={}", pod.netns_path().display()),
            "CNI_IFNAME=eth0".to_owned(),
        ];
        for line in &wanted {
            assert!(environment.lines().any(|has| has == line), "{line} is missing in:\n{environment}");
        }
        assert!(environment.lines().any(|line| line.starts_with("CNI_PATH=")), "{environment}");
    }
}
