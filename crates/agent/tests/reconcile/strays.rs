//! What is marked as ours and nobody's goes; what is another's stays.

use std::fs;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::json;
use testkit::{Snapshot, inspect, wait_until};

use crate::common::{Host, host_link, ips, with};
use crate::scene::{BY_EVENTS, SOON, in_both_modes, picture, run};

const BY_TIMER: [&str; 2] = ["--reconcile-seconds", "1"];

fn host(label: &str, mode: &str, when: [&str; 2]) -> Host {
    Host::with_flags(label, &["--network-mode", mode, when[0], when[1]])
}

fn has_link(host: &Host, name: &str) -> bool {
    inspect::links(&host.node).unwrap().iter().any(|link| link.name == name)
}

/// A record that was removed is written anew; but an address has one owner.
#[test]
fn a_link_whose_address_another_pod_has_goes_and_those_of_others_stay() {
    let host = host("stray", "routed", BY_TIMER);
    let (_pod, result) = host.attached("a");
    let taken = format!("podwire:podwire/ghost/eth0 {}/32", ips(&result)[0]);
    let links = [
        ("pwstray", taken.as_str()),
        ("pwother", "podwire:other/ghost/eth0 10.99.9.9/16"),
        ("pwplain", "not ours"),
        ("pwbare", "x"),
    ];
    for (name, alias) in links {
        run(&host.node, &format!("ip link add {name} type veth peer name {name}p"));
        host.node.sh(&["ip", "link", "set", name, "alias", alias]).unwrap();
    }
    wait_until("the stray to go", SOON, || Ok(!has_link(&host, "pwstray"))).unwrap();
    for name in ["pwother", "pwplain", "pwbare"] {
        assert!(has_link(&host, name), "{name}");
    }
    let told = "link pwstray of podwire/ghost@eth0 removed: no record knows it";
    wait_until("the stray to be told", SOON, || Ok(host.agent.log()?.contains(told))).unwrap();
}

/// Without its records the agent does not know whose link it is.
#[test]
fn a_link_stays_while_the_directory_of_records_is_a_file() {
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
        wait_until("a round", SOON, || Ok(is_reported() || is_removed())).unwrap();
        assert!(!is_removed(), "{mode}: {}", host.agent.log().unwrap());
        wait_until("not ready", SOON, || Ok(!host.agent.is_ready())).unwrap();
        let config = host.config(&json!({}));
        let error = host.plugin.status(&host.node, &config).unwrap().error().unwrap();
        assert!(error.code == 50 && error.details.starts_with("RunDirUnusable"), "{mode}: {error:?}");
        exchange();
        wait_until("ready", SOON, || Ok(host.agent.is_ready())).unwrap();
        assert!(!is_removed() && !host.agent.log().unwrap().contains("no record knows it"), "{mode}");
        host.plugin.check(&pod, &config, &result).unwrap().ok().unwrap();
    });
}

/// A network of another run directory, wired by the plugin alone, in the same namespace.
#[test]
fn what_belongs_to_another_run_directory_is_left_alone() {
    in_both_modes(|mode| {
        let host = host("directories", mode, BY_TIMER);
        let ours = host.attached("ours");
        let blue = json!({"name": "blue", "bridge": "pw0", "subnet": "10.99.0.0/24,fd00:99::/64", "ipMasq": true,
            "mode": mode, "runDir": host.node.dir().join("other"), "agent": null});
        let blue = with(&host.config(&json!({})), &blue);
        let pod = host.pod("theirs");
        let theirs = host.plugin.add(&pod, &blue).unwrap().ok().unwrap();
        let (before, inside) = (Snapshot::of(&host.node).unwrap(), Snapshot::of(&pod).unwrap());
        let status = |key: &str| host.agent.get("/v1/status").unwrap()["reconcile"][key].as_u64().unwrap();
        let (rounds, repairs) = (status("rounds"), status("repairs"));
        wait_until("two rounds", SOON, || Ok(status("rounds") > rounds + 1)).unwrap();
        assert_eq!(status("repairs"), repairs, "{mode}: {}", host.agent.log().unwrap());
        before.expect_same(&host.node).unwrap();
        inside.expect_same(&pod).unwrap();
        // A repair of ours takes nothing of theirs.
        run(&host.node, "nft flush chain inet podwire nat-postrouting");
        wait_until("the repair", SOON, || Ok(status("repairs") > repairs)).unwrap();
        before.wait_for_same(&host.node, SOON).unwrap();
        assert!(has_link(&host, host_link(&theirs)) && has_link(&host, host_link(&ours.1)));
    });
}

/// Two run directories may have networks of the same name. A link whose record is in the other one is no stray.
#[test]
fn a_pod_of_the_same_network_in_another_run_directory_is_not_adopted() {
    in_both_modes(|mode| {
        let host = host("twins", mode, BY_TIMER);
        let _own = host.attached("own");
        let other = json!({"bridge": "other0", "subnet": "10.98.0.0/24,fd00:98::/64", "mode": mode,
            "runDir": host.node.dir().join("other"), "agent": null});
        let config = with(&host.config(&json!({})), &other);
        let pod = host.pod("theirs");
        let held = host.held();
        let result = host.plugin.add(&pod, &config).unwrap().ok().unwrap();
        let rounds = || host.agent.get("/v1/status").unwrap()["reconcile"]["rounds"].as_u64().unwrap();
        let before = rounds();
        wait_until("two rounds", SOON, || Ok(rounds() > before + 1)).unwrap();
        assert_eq!(host.held(), held, "{mode}: {}", host.agent.log().unwrap());
        host.plugin.check(&pod, &config, &result).unwrap().ok().unwrap();
        host.plugin.del(&pod, &config).unwrap().ok().unwrap();
        // Without a record anywhere a link of the network is a stray again.
        run(&host.node, "ip link add pwghost type veth peer name pwghostp");
        run(&host.node, "ip link set pwghost alias podwire:podwire/ghost/eth0");
        wait_until("the link to be adopted or removed", SOON, || {
            Ok(!has_link(&host, "pwghost") || host.held() != held)
        })
        .unwrap();
    });
}

/// Left by somebody who was killed in the middle: nobody holds it.
#[test]
fn a_pending_record_is_undone() {
    in_both_modes(|mode| {
        let mut host = host("pending", mode, BY_EVENTS);
        let (node, held) = (picture(&host.node), host.held());
        let (pod, result) = host.attached("a");
        host.agent.kill().unwrap();
        let records = host.agent.run_dir().join("networks/podwire/attachments");
        let ready = fs::read_dir(&records).unwrap().next().unwrap().unwrap().path();
        fs::rename(&ready, ready.with_extension("pending")).unwrap();
        host.agent.launch().unwrap();
        host.agent.wait_ready().unwrap();
        assert_eq!(host.held(), held, "{mode}");
        wait_until("the kernel to be done", SOON, || Ok(picture(&host.node) == node)).unwrap();
        assert!(host.agent.log().unwrap().contains("cut off in the middle, was undone"), "{mode}");
        // The pod can be attached again, also under the same addresses.
        let wanted: Vec<String> = ips(&result).iter().map(ToString::to_string).collect();
        let again = host.add_with(&pod, &json!({"runtimeConfig": {"ips": wanted}}));
        assert_eq!(ips(&again), ips(&result), "{mode}");
    });
}
