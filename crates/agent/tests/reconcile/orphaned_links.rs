//! Orphaned links with Podwire's mark are removed. Links of other owners are kept.

use std::fs;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::json;
use testkit::{Snapshot, inspect, wait_until};

use crate::common::{Host, host_link, ips, with};
use crate::scene::{BY_EVENTS, TIMEOUT, in_both_modes, observe, run};

const BY_TIMER: [&str; 2] = ["--reconcile-seconds", "1"];

fn host(label: &str, mode: &str, when: [&str; 2]) -> Host {
    Host::with_flags(label, &["--network-mode", mode, when[0], when[1]])
}

fn has_link(host: &Host, name: &str) -> bool {
    inspect::links(&host.node).unwrap().iter().any(|link| link.name == name)
}

/// A removed record is written again, but an address has only one owner.
#[test]
fn an_orphaned_link_with_a_used_address_is_removed() {
    let host = host("orphan", "routed", BY_TIMER);
    let (_pod, result) = host.attached("a");
    let orphan = format!("podwire:podwire/ghost/eth0 {}/32", ips(&result)[0]);
    let links = [
        ("pwstray", orphan.as_str()),
        ("pwother", "podwire:other/ghost/eth0 10.99.9.9/16"),
        ("pwplain", "unmanaged"),
        ("pwbare", "x"),
    ];
    for (name, alias) in links {
        run(&host.node, &format!("ip link add {name} type veth peer name {name}p"));
        host.node.sh(&["ip", "link", "set", name, "alias", alias]).unwrap();
    }
    wait_until("the removal of the orphaned link", TIMEOUT, || Ok(!has_link(&host, "pwstray"))).unwrap();
    for name in ["pwother", "pwplain", "pwbare"] {
        assert!(has_link(&host, name), "{name}");
    }
    let message = "removed link pwstray of podwire/ghost@eth0, which has no record";
    wait_until("the orphaned link to be reported", TIMEOUT, || Ok(host.agent.log()?.contains(message)))
        .unwrap();
}

/// Without its records, the agent does not know the owner of a link.
#[test]
fn links_are_kept_while_records_cannot_be_read() {
    in_both_modes(|mode| {
        let host = host("norecords", mode, BY_TIMER);
        let (pod, result) = host.attached("a");
        let records = host.agent.run_dir().join("networks/podwire/attachments");
        let aside = host.node.dir().join("aside");
        fs::write(&aside, "").unwrap();
        let exchange = || renameat_with(CWD, &records, CWD, &aside, RenameFlags::EXCHANGE).unwrap();
        exchange();
        let is_reported = || host.agent.log().unwrap().contains("code=RunDirUnusable");
        let is_removed = || !has_link(&host, host_link(&result));
        wait_until("a round", TIMEOUT, || Ok(is_reported() || is_removed())).unwrap();
        assert!(!is_removed(), "{mode}: {}", host.agent.log().unwrap());
        wait_until("not ready", TIMEOUT, || Ok(!host.agent.is_ready())).unwrap();
        let config = host.config(&json!({}));
        let error = host.plugin.status(&host.node, &config).unwrap().error().unwrap();
        assert!(error.code == 50 && error.details.starts_with("RunDirUnusable"), "{mode}: {error:?}");
        exchange();
        wait_until("ready", TIMEOUT, || Ok(host.agent.is_ready())).unwrap();
        assert!(!is_removed() && !host.agent.log().unwrap().contains("which has no record"), "{mode}");
        host.plugin.check(&pod, &config, &result).unwrap().ok().unwrap();
    });
}

/// A network of another run directory in the same namespace, attached by the plugin without an agent.
#[test]
fn objects_of_another_run_directory_are_not_changed() {
    in_both_modes(|mode| {
        let host = host("directories", mode, BY_TIMER);
        let managed = host.attached("managed");
        let blue = json!({"name": "blue", "bridge": "pw0", "subnet": "10.99.0.0/24,fd00:99::/64", "ipMasq": true,
            "mode": mode, "runDir": host.node.dir().join("other"), "agent": null});
        let blue = with(&host.config(&json!({})), &blue);
        let pod = host.pod("unmanaged");
        let unmanaged = host.plugin.add(&pod, &blue).unwrap().ok().unwrap();
        let (before, inside) = (Snapshot::of(&host.node).unwrap(), Snapshot::of(&pod).unwrap());
        let status = |key: &str| host.agent.get("/v1/status").unwrap()["reconcile"][key].as_u64().unwrap();
        let (rounds, repairs) = (status("rounds"), status("repairs"));
        wait_until("two rounds", TIMEOUT, || Ok(status("rounds") > rounds + 1)).unwrap();
        assert_eq!(status("repairs"), repairs, "{mode}: {}", host.agent.log().unwrap());
        before.expect_same(&host.node).unwrap();
        inside.expect_same(&pod).unwrap();
        // A repair of managed objects does not remove unmanaged ones.
        run(&host.node, "nft flush chain inet podwire nat-postrouting");
        wait_until("the repair", TIMEOUT, || Ok(status("repairs") > repairs)).unwrap();
        before.wait_for_same(&host.node, TIMEOUT).unwrap();
        assert!(has_link(&host, host_link(&unmanaged)) && has_link(&host, host_link(&managed.1)));
    });
}

/// Two run directories may have networks of the same name. A link with a record in the other one is not orphaned.
#[test]
fn a_pod_of_another_run_directory_is_not_adopted() {
    in_both_modes(|mode| {
        let host = host("twins", mode, BY_TIMER);
        let _managed = host.attached("managed");
        let other = json!({"bridge": "other0", "subnet": "10.98.0.0/24,fd00:98::/64", "mode": mode,
            "runDir": host.node.dir().join("other"), "agent": null});
        let config = with(&host.config(&json!({})), &other);
        let pod = host.pod("unmanaged");
        let state_entries = host.state_entries();
        let result = host.plugin.add(&pod, &config).unwrap().ok().unwrap();
        let rounds = || host.agent.get("/v1/status").unwrap()["reconcile"]["rounds"].as_u64().unwrap();
        let before = rounds();
        wait_until("two rounds", TIMEOUT, || Ok(rounds() > before + 1)).unwrap();
        assert_eq!(host.state_entries(), state_entries, "{mode}: {}", host.agent.log().unwrap());
        host.plugin.check(&pod, &config, &result).unwrap().ok().unwrap();
        host.plugin.del(&pod, &config).unwrap().ok().unwrap();
        // Without a record in any run directory, a link of the network is orphaned.
        run(&host.node, "ip link add pwghost type veth peer name pwghostp");
        run(&host.node, "ip link set pwghost alias podwire:podwire/ghost/eth0");
        wait_until("the link to be adopted or removed", TIMEOUT, || {
            Ok(!has_link(&host, "pwghost") || host.state_entries() != state_entries)
        })
        .unwrap();
    });
}

/// A pending record of a killed process. No process holds its lock.
#[test]
fn a_pending_record_is_undone() {
    in_both_modes(|mode| {
        let mut host = host("pending", mode, BY_EVENTS);
        let (node, state_entries) = (observe(&host.node), host.state_entries());
        let (pod, result) = host.attached("a");
        host.agent.kill().unwrap();
        let records = host.agent.run_dir().join("networks/podwire/attachments");
        let ready = fs::read_dir(&records).unwrap().next().unwrap().unwrap().path();
        fs::rename(&ready, ready.with_extension("pending")).unwrap();
        host.agent.launch().unwrap();
        host.agent.wait_ready().unwrap();
        assert_eq!(host.state_entries(), state_entries, "{mode}");
        wait_until("the kernel to be done", TIMEOUT, || Ok(observe(&host.node) == node)).unwrap();
        assert!(host.agent.log().unwrap().contains("undid interrupted attachment"), "{mode}");
        // The pod can be attached again, also under the same addresses.
        let requested: Vec<String> = ips(&result).iter().map(ToString::to_string).collect();
        let second = host.add_with(&pod, &json!({"runtimeConfig": {"ips": requested}}));
        assert_eq!(ips(&second), ips(&result), "{mode}");
    });
}
