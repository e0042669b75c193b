//! An IPAM plugin that the agent runs in the plugin's place.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use api::Tombstones;
use serde_json::json;
use testkit::{Call, DEADLINE, Pod, REFERENCE_DIR, Verb, inspect, wait_until};
use types::AttachmentKey;

use crate::common::{DELEGATES, Host, addresses_of, ips, with};
use crate::gate::Gate;
use crate::raw::{about, ask, json as json_of, passed_on};

fn key(network: &str, pod: &Pod) -> AttachmentKey {
    AttachmentKey {
        network: network.try_into().unwrap(),
        container: pod.id().try_into().unwrap(),
        ifname: "eth0".try_into().unwrap(),
    }
}

/// Neither other requests nor the thread that serves tombstones waits for an IPAM plugin. A tombstone of its own pod ends it.
#[test]
fn a_delegate_that_hangs_holds_no_other_request_and_is_ended_by_a_tombstone() {
    let host = Host::new("delegatehangs");
    let (gate, hanging) = (Gate::new(&host), host.pod("a"));
    let ((other, _), next) = (host.attached("b"), host.pod("c"));
    let stones = Tombstones::new(host.agent.run_dir());
    let add = gate.spawn(&host, Verb::Add, &hanging);
    gate.wait_for(1);
    host.add(&next);
    let valid = [(other.id(), "eth0"), (next.id(), "eth0")];
    host.plugin.gc(&host.node, &host.config(&json!({})), &valid).unwrap().ok().unwrap();
    // This one is for the reconciler.
    let others_key = key("podwire", &other);
    stones.leave(&about(&host, Verb::Del, (&other, "eth0")), &others_key).unwrap();
    wait_until("another tombstone to be served", DEADLINE, || Ok(!stones.exists(&others_key)?)).unwrap();
    // All of it happened while the delegate still hangs.
    assert!(!add.is_over());
    assert!(inspect::link(&other, "eth0").is_err());
    let status = host.agent.get("/v1/status").unwrap();
    assert_eq!(status["conditions"], json!([]), "it only waits");
    let its_key = key("gated", &hanging);
    stones.leave(&passed_on(&gate.of(Verb::Del, &hanging)), &its_key).unwrap();
    assert_eq!(add.outcome().error().unwrap().code, 11);
    wait_until("its own tombstone to be served", DEADLINE, || Ok(!stones.exists(&its_key)?)).unwrap();
    wait_until("nothing to be left of it", DEADLINE, || {
        Ok(!host.held().iter().any(|name| name.contains("gated")))
    })
    .unwrap();
    assert!(inspect::link(&hanging, "eth0").is_err());
}

/// The agent's own environment may hold secrets, and CNI_PATH is the client's.
#[test]
fn a_delegate_gets_the_variables_of_the_request_and_nothing_of_the_agents() {
    let mut host = Host::new("delegate");
    host.agent.set_env(&[("SECRET".to_owned(), "of the agent".to_owned())]);
    host.agent.restart().unwrap();
    let (gate, pod) = (Gate::new(&host), host.pod("a"));
    gate.open();
    gate.call(&host, Verb::Add, &pod).ok().unwrap();
    gate.call(&host, Verb::Del, &pod).ok().unwrap();
    for verb in [Verb::Add, Verb::Del] {
        let environment = gate.environment(verb);
        let has: BTreeSet<&str> = environment.lines().collect();
        let wanted = [
            format!("CNI_COMMAND={}", verb.as_str()),
            format!("CNI_CONTAINERID={}", pod.id()),
            format!("CNI_NETNS={}", pod.netns_path().display()),
            "CNI_IFNAME=eth0".to_owned(),
            format!("CNI_PATH={}", host.lab.dir().join(DELEGATES).display()),
            "CNI_PODWIRE_DELEGATED=1".to_owned(),
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        ];
        assert_eq!(has, wanted.iter().map(String::as_str).collect(), "{}", verb.as_str());
    }
}

/// The reference's own, from a directory of the agent's configuration, whatever CNI_PATH says.
#[test]
fn host_local_gives_addresses_through_the_agent_and_takes_them_back() {
    let host = Host::with_flags("hostlocal", &["--delegate-directories", REFERENCE_DIR]);
    let leases = host.lab.dir().join("leases");
    let ranges = json!([[{"subnet": "10.66.0.0/24"}], [{"subnet": "fd00:66::/64"}]]);
    // The installed host-local does not speak 1.1.0.
    let config = host
        .config(&json!({"cniVersion": "1.0.0", "name": "leased", "bridge": "leased0", "isGateway": true,
        "ipam": {"type": "host-local", "dataDir": leases, "ranges": ranges}}));
    let pod = host.pod("a");
    let call = |verb| {
        let env = vec![("CNI_PATH".to_owned(), "/nonexistent".to_owned())];
        host.plugin.call(&host.node, &Call { env, ..Call::pod(verb, &pod, &config) }).unwrap()
    };
    let result = call(Verb::Add).ok().unwrap();
    assert_eq!(addresses_of(&pod, "eth0"), ips(&result).into_iter().collect());
    let lease = |ip: &IpAddr| leases.join("leased").join(ip.to_string());
    assert!(ips(&result).len() == 2 && ips(&result).iter().all(|ip| lease(ip).exists()), "{result}");
    call(Verb::Del).ok().unwrap();
    assert!(!ips(&result).iter().any(|ip| lease(ip).exists()));
    assert_eq!(host.held(), BTreeSet::new());
}

/// A script that leaves a mark, in a directory that only the client knows.
fn of_the_client(host: &Host, name: &str) -> (PathBuf, PathBuf) {
    let dir = host.lab.dir().join("volume");
    let (program, mark) = (dir.join(name), dir.join("it-ran"));
    let write = format!(
        "mkdir -p {0} && printf '#!/bin/sh\ntouch {1}\n' >{2} && chmod 755 {2}",
        dir.display(),
        mark.display(),
        program.display()
    );
    host.node.sh(&["sh", "-c", &write]).unwrap();
    (dir, mark)
}

/// A root process in a container that reaches the socket, and has a volume of the host.
#[test]
fn the_agent_runs_no_program_that_a_client_chooses() {
    let host = Host::new("chosen");
    let (running, previous) = host.attached("running");
    // One that the agent may run, but has not; and one that it may not run at all.
    for name in ["host-local", "evil"] {
        let ((volume, mark), pod) = (of_the_client(&host, name), host.pod(name));
        let config = host.config(&json!({"name": "theirs", "bridge": "theirs0", "ipam": {"type": name}}));
        let valid = json!({"cni.dev/valid-attachments": [], "cni.dev/attachments": []});
        for call in [
            Call::pod(Verb::Add, &pod, &config),
            Call::pod(Verb::Del, &pod, &config),
            Call::pod(Verb::Check, &pod, &with(&config, &json!({"prevResult": previous}))),
            Call::network(Verb::Gc, &with(&config, &valid)),
            Call::network(Verb::Status, &config),
        ] {
            let call = Call { env: vec![("CNI_PATH".to_owned(), volume.display().to_string())], ..call };
            let answer = ask(&host.agent.client(), &passed_on(&call));
            let said = json_of(&answer).to_string();
            assert_eq!(answer.status, 500, "{name} {:?}: {said}", call.verb);
            assert!(said.contains(name) && said.contains("delegate."), "{name} {:?}: {said}", call.verb);
            assert!(!mark.exists(), "{name}: it ran on {:?}", call.verb);
        }
        // The same in a tombstone: its own part is done, and the rest is reported.
        let call = Call::pod(Verb::Del, &pod, &config);
        let call = Call { env: vec![("CNI_PATH".to_owned(), volume.display().to_string())], ..call };
        Tombstones::new(host.agent.run_dir()).leave(&passed_on(&call), &key("theirs", &pod)).unwrap();
        wait_until("the tombstone to be reported", DEADLINE, || {
            Ok(host.agent.get("/v1/status")?["conditions"].to_string().contains(name))
        })
        .unwrap();
        assert!(!mark.exists(), "{name}: it ran for a tombstone");
        assert!(inspect::link(&pod, "eth0").is_err());
    }
    host.check(&running, &previous);
}

/// Whatever runs the plugin again, its request is refused before it reaches the agent, and leaves nothing.
#[test]
fn the_agent_refuses_podwire_as_its_own_ipam_plugin() {
    let host = Host::new("owndelegate");
    let (dir, plugin) = (host.lab.dir().join(DELEGATES), host.plugin.path.display());
    let make = format!(
        "mkdir {dir} && cp {plugin} {dir}/copy &&
         printf '#!/bin/sh\nexec {plugin}\n' >{dir}/through && chmod 755 {dir}/through",
        dir = dir.display()
    );
    host.node.sh(&["sh", "-c", &make]).unwrap();
    let pod = host.pod("a");
    let config = |name| host.config(&json!({"name": "own", "bridge": "own0", "ipam": {"type": name}}));
    for (name, is_known) in [("podwire-cni", true), ("copy", false), ("through", false)] {
        let config = config(name);
        let error = host.plugin.add(&pod, &config).unwrap().error().unwrap();
        assert_eq!(error.code, 7, "{name}: {error:?}");
        assert!(error.msg.contains("ipam.type"), "{name}: {error:?}");
        // It refused the ADD, so that it has nothing to give back.
        assert_eq!(host.held(), BTreeSet::new(), "{name}");
        let deleted = host.plugin.del(&pod, &config).unwrap();
        if is_known {
            deleted.ok().unwrap();
        } else {
            let error = deleted.error().unwrap();
            assert!(error.code == 7 && error.msg.contains("leads back to Podwire"), "{name}: {error:?}");
        }
        assert_eq!(host.held(), BTreeSet::new(), "{name}");
    }
    // The plugin of another version does not know the mark, and passes it on.
    let call = Call::pod(Verb::Del, &pod, &host.config(&json!({})));
    let marked = Call { env: vec![("CNI_PODWIRE_DELEGATED".to_owned(), "1".to_owned())], ..call };
    let answer = ask(&host.agent.client(), &passed_on(&marked));
    assert_eq!((answer.status, json_of(&answer)["code"].as_u64()), (500, Some(7)));
    assert_eq!(host.agent.get("/v1/status").unwrap()["conditions"], json!([]));
}
