//! IPAM plugins that the agent runs on behalf of Podwire's plugin.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use api::Tombstones;
use serde_json::json;
use testkit::{Call, DEADLINE, Pod, REFERENCE_DIR, Verb, inspect, wait_until};
use types::AttachmentKey;

use crate::blocking_ipam::BlockingIpam;
use crate::common::{DELEGATES, Host, addresses_of, ips, with};
use crate::raw::{api_call, interface_call, json as json_of, post_call};

fn key(network: &str, pod: &Pod) -> AttachmentKey {
    AttachmentKey {
        network: network.try_into().unwrap(),
        container: pod.id().try_into().unwrap(),
        ifname: "eth0".try_into().unwrap(),
    }
}

/// Neither other requests nor the tombstone thread wait for an IPAM plugin. A tombstone of its own pod ends it.
#[test]
fn a_hanging_delegate_blocks_no_other_request() {
    let host = Host::new("delegatehangs");
    let (ipam, hanging) = (BlockingIpam::new(&host), host.pod("a"));
    let ((other, _), next) = (host.attached("b"), host.pod("c"));
    let tombstones = Tombstones::new(host.agent.run_dir());
    let add = ipam.spawn(&host, Verb::Add, &hanging);
    ipam.wait_for(1);
    host.add(&next);
    let valid = [(other.id(), "eth0"), (next.id(), "eth0")];
    host.plugin.gc(&host.node, &host.config(&json!({})), &valid).unwrap().ok().unwrap();
    // The reconciler serves this tombstone.
    let other_key = key("podwire", &other);
    tombstones.write(&interface_call(&host, Verb::Del, (&other, "eth0")), &other_key).unwrap();
    wait_until("another tombstone to be served", DEADLINE, || Ok(!tombstones.exists(&other_key)?)).unwrap();
    // The delegate still hangs.
    assert!(!add.is_finished());
    assert!(inspect::link(&other, "eth0").is_err());
    let status = host.agent.get("/v1/status").unwrap();
    assert_eq!(status["conditions"], json!([]), "a waiting request is no condition");
    let hanging_key = key("delegated", &hanging);
    tombstones.write(&api_call(&ipam.request(Verb::Del, &hanging)), &hanging_key).unwrap();
    assert_eq!(add.outcome().error().unwrap().code, 11);
    wait_until("the tombstone of the hanging ADD to be served", DEADLINE, || {
        Ok(!tombstones.exists(&hanging_key)?)
    })
    .unwrap();
    wait_until("its state to be removed", DEADLINE, || {
        Ok(!host.state_entries().iter().any(|name| name.contains("delegated")))
    })
    .unwrap();
    assert!(inspect::link(&hanging, "eth0").is_err());
}

/// The agent's environment may contain secrets, and CNI_PATH of the request is under the client's control.
#[test]
fn a_delegate_gets_only_the_variables_of_the_request() {
    let mut host = Host::new("delegate");
    host.agent.set_env(&[("SECRET".to_owned(), "of the agent".to_owned())]);
    host.agent.restart().unwrap();
    let (ipam, pod) = (BlockingIpam::new(&host), host.pod("a"));
    ipam.unblock();
    ipam.call(&host, Verb::Add, &pod).ok().unwrap();
    ipam.call(&host, Verb::Del, &pod).ok().unwrap();
    for verb in [Verb::Add, Verb::Del] {
        let environment = ipam.environment(verb);
        let variables: BTreeSet<&str> = environment.lines().collect();
        let expected = [
            format!("CNI_COMMAND={}", verb.as_str()),
            format!("CNI_CONTAINERID={}", pod.id()),
            format!("CNI_NETNS={}", pod.netns_path().display()),
            "CNI_IFNAME=eth0".to_owned(),
            format!("CNI_PATH={}", host.lab.dir().join(DELEGATES).display()),
            "CNI_PODWIRE_DELEGATED=1".to_owned(),
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        ];
        assert_eq!(variables, expected.iter().map(String::as_str).collect(), "{}", verb.as_str());
    }
}

/// The reference plugin from a directory in the agent's configuration. CNI_PATH is ignored.
#[test]
fn host_local_allocates_and_releases_addresses_through_the_agent() {
    let host = Host::with_flags("hostlocal", &["--delegate-directories", REFERENCE_DIR]);
    let leases = host.lab.dir().join("leases");
    let ranges = json!([[{"subnet": "10.66.0.0/24"}], [{"subnet": "fd00:66::/64"}]]);
    // The installed host-local does not support 1.1.0.
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
    assert_eq!(host.state_entries(), BTreeSet::new());
}

/// A script that creates a marker file, in a directory of the client.
fn client_program(host: &Host, name: &str) -> (PathBuf, PathBuf) {
    let dir = host.lab.dir().join("volume");
    let (program, marker) = (dir.join(name), dir.join("executed"));
    let write = format!(
        "mkdir -p {0} && printf '#!/bin/sh\ntouch {1}\n' >{2} && chmod 755 {2}",
        dir.display(),
        marker.display(),
        program.display()
    );
    host.node.sh(&["sh", "-c", &write]).unwrap();
    (dir, marker)
}

/// For example by a root process in a container that can connect to the socket and has a volume of the host.
#[test]
fn the_agent_runs_no_program_of_a_client() {
    let host = Host::new("chosen");
    let (running, previous) = host.attached("running");
    // An allowed name that the agent does not have, and a name that is not allowed.
    for name in ["host-local", "evil"] {
        let ((volume, marker), pod) = (client_program(&host, name), host.pod(name));
        let config = host.config(&json!({"name": "client", "bridge": "client0", "ipam": {"type": name}}));
        let valid = json!({"cni.dev/valid-attachments": [], "cni.dev/attachments": []});
        for call in [
            Call::pod(Verb::Add, &pod, &config),
            Call::pod(Verb::Del, &pod, &config),
            Call::pod(Verb::Check, &pod, &with(&config, &json!({"prevResult": previous}))),
            Call::network(Verb::Gc, &with(&config, &valid)),
            Call::network(Verb::Status, &config),
        ] {
            let call = Call { env: vec![("CNI_PATH".to_owned(), volume.display().to_string())], ..call };
            let answer = post_call(&host.agent.client(), &api_call(&call));
            let text = json_of(&answer).to_string();
            assert_eq!(answer.status, 500, "{name} {:?}: {text}", call.verb);
            assert!(text.contains(name) && text.contains("delegate."), "{name} {:?}: {text}", call.verb);
            assert!(!marker.exists(), "{name}: executed by {:?}", call.verb);
        }
        // A tombstone with the same call: Podwire's own part is served, and the failure is reported.
        let call = Call::pod(Verb::Del, &pod, &config);
        let call = Call { env: vec![("CNI_PATH".to_owned(), volume.display().to_string())], ..call };
        Tombstones::new(host.agent.run_dir()).write(&api_call(&call), &key("client", &pod)).unwrap();
        wait_until("the tombstone to be reported", DEADLINE, || {
            Ok(host.agent.get("/v1/status")?["conditions"].to_string().contains(name))
        })
        .unwrap();
        assert!(!marker.exists(), "{name}: executed by a tombstone");
        assert!(inspect::link(&pod, "eth0").is_err());
    }
    host.check(&running, &previous);
}

/// A request of a plugin that was run as a delegate is refused before it reaches the agent, and leaves no state.
#[test]
fn the_agent_refuses_podwire_as_its_own_ipam_plugin() {
    let host = Host::new("owndelegate");
    let (dir, plugin) = (host.lab.dir().join(DELEGATES), host.plugin.path.display());
    let create = format!(
        "mkdir {dir} && cp {plugin} {dir}/copy &&
         printf '#!/bin/sh\nexec {plugin}\n' >{dir}/through && chmod 755 {dir}/through",
        dir = dir.display()
    );
    host.node.sh(&["sh", "-c", &create]).unwrap();
    let pod = host.pod("a");
    let config = |name| host.config(&json!({"name": "own", "bridge": "own0", "ipam": {"type": name}}));
    for (name, is_recognized) in [("podwire-cni", true), ("copy", false), ("through", false)] {
        let config = config(name);
        let error = host.plugin.add(&pod, &config).unwrap().error().unwrap();
        assert_eq!(error.code, 7, "{name}: {error:?}");
        assert!(error.msg.contains("ipam.type"), "{name}: {error:?}");
        // The delegate refused the ADD, so it has nothing to release.
        assert_eq!(host.state_entries(), BTreeSet::new(), "{name}");
        let deleted = host.plugin.del(&pod, &config).unwrap();
        if is_recognized {
            deleted.ok().unwrap();
        } else {
            let error = deleted.error().unwrap();
            assert!(error.code == 7 && error.msg.contains("leads back to Podwire"), "{name}: {error:?}");
        }
        assert_eq!(host.state_entries(), BTreeSet::new(), "{name}");
    }
    // A plugin of another version does not know the variable and passes it on.
    let call = Call::pod(Verb::Del, &pod, &host.config(&json!({})));
    let marked = Call { env: vec![("CNI_PODWIRE_DELEGATED".to_owned(), "1".to_owned())], ..call };
    let answer = post_call(&host.agent.client(), &api_call(&marked));
    assert_eq!((answer.status, json_of(&answer)["code"].as_u64()), (500, Some(7)));
    assert_eq!(host.agent.get("/v1/status").unwrap()["conditions"], json!([]));
}
