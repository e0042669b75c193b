//! Records of a newer version, copied claims, and firewall elements without a pod are kept, repaired or reported.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testkit::{DEADLINE, Pod, wait_until};

use crate::common::{Host, ips};
use crate::scene::{in_both_modes, observe};

fn host(label: &str, mode: &str) -> Host {
    Host::with_flags(label, &["--network-mode", mode, "--reconcile-seconds", "1"])
}

fn with_host_port() -> Value {
    json!({"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}})
}

fn network(host: &Host) -> PathBuf {
    host.agent.run_dir().join("networks/podwire")
}

fn record(host: &Host, pod: &Pod) -> PathBuf {
    network(host).join(format!("attachments/{}@eth0.ready", pod.id()))
}

/// Replaces a file by a new one with this content.
fn replace(path: &Path, content: &[u8]) {
    let temp = path.with_file_name(".temp");
    fs::write(&temp, content).unwrap();
    fs::rename(&temp, path).unwrap();
}

fn conditions(host: &Host) -> Vec<Value> {
    host.agent.get("/v1/status").unwrap()["conditions"].as_array().cloned().unwrap_or_default()
}

fn rounds(host: &Host) -> u64 {
    host.agent.get("/v1/status").unwrap()["reconcile"]["rounds"].as_u64().unwrap()
}

/// Waits for the end of two rounds that start after the call.
fn wait_for_rounds(host: &Host) {
    let before = rounds(host);
    wait_until("two rounds", DEADLINE, || Ok(rounds(host) > before + 2)).unwrap();
}

#[test]
fn a8_a_newer_record_is_kept_and_its_del_removes_everything() {
    in_both_modes(|mode| {
        let mut host = host("newer", mode);
        let (before, state_entries) = (observe(&host.node), host.state_entries());
        let pod = host.pod("a");
        let result = host.add_with(&pod, &with_host_port());
        host.agent.kill().unwrap();
        let (path, newer) = (record(&host, &pod), json!({"schema": 99, "new": true}).to_string());
        replace(&path, newer.as_bytes());
        host.agent.launch().unwrap();
        host.agent.wait_ready().unwrap();
        let is_newer_record =
            |condition: &Value| condition["message"].as_str().unwrap().contains("newer version of Podwire");
        wait_until("the record to be reported", DEADLINE, || {
            Ok(conditions(&host).iter().any(is_newer_record))
        })
        .unwrap();
        wait_for_rounds(&host);
        assert_eq!(fs::read_to_string(&path).unwrap(), newer, "{mode}: the record was overwritten");
        // Its addresses stay reserved, and its elements are kept.
        let (other, other_result) = host.attached("b");
        assert!(ips(&other_result).iter().all(|ip| !ips(&result).contains(ip)), "{mode}: {other_result}");
        let orphans = conditions(&host)
            .iter()
            .filter(|condition| condition.to_string().contains("no pod should have"))
            .count();
        assert_eq!(orphans, 0, "{mode}: {:?}", conditions(&host));
        host.del(&other);
        host.del(&pod);
        assert_eq!(host.state_entries(), state_entries, "{mode}");
        wait_until("the kernel state to be restored", DEADLINE, || Ok(observe(&host.node) == before))
            .unwrap();
        host.add_with(&other, &with_host_port());
    });
}

/// A record is recovered from the alias of the link, which does not contain host ports. The firewall elements must stay.
#[test]
fn recovery_of_a_record_keeps_its_host_ports_in_the_firewall() {
    in_both_modes(|mode| {
        let mut host = host("recovered", mode);
        let pod = host.pod("a");
        let result = host.add_with(&pod, &with_host_port());
        host.agent.kill().unwrap();
        fs::remove_dir_all(network(&host)).unwrap();
        host.agent.launch().unwrap();
        host.agent.wait_ready().unwrap();
        wait_until("the record", DEADLINE, || Ok(record(&host, &pod).exists())).unwrap();
        wait_for_rounds(&host);
        for (map, ip) in ["hostport4_any", "hostport6_any"].into_iter().zip(ips(&result)) {
            let text = host.node.sh(&["nft", "list", "map", "inet", "podwire", map]).unwrap();
            assert!(text.contains(&format!("tcp . 8080 : {ip} . 80")), "{mode}: {text}");
        }
    });
}

#[test]
fn a8_copied_claims_become_links_and_orphaned_claims_are_removed() {
    let host = host("copied", "routed");
    let (pod, result) = host.attached("a");
    let claim = network(&host).join(format!("addresses/{}", ips(&result)[0]));
    replace(&claim, &fs::read(&claim).unwrap());
    fs::write(network(&host).join("addresses/10.83.0.99"), "{}").unwrap();
    let inode = |path: &Path| fs::metadata(path).map(|meta| meta.ino()).ok();
    let is_repaired = || {
        let is_link = inode(&claim) == inode(&record(&host, &pod));
        Ok(is_link && !network(&host).join("addresses/10.83.0.99").exists())
    };
    wait_until("the claims to be repaired", DEADLINE, is_repaired).unwrap();
    host.check(&pod, &result);
}

#[test]
fn a8_the_host_port_of_an_orphaned_claim_is_removed() {
    let host = host("portless", "routed");
    let (_pod, _) = host.attached("a");
    let element = "inet podwire hostport4_any { tcp . 9999 : 10.83.0.99 . 80 }";
    host.node.sh(&["nft", &format!("add element {element}")]).unwrap();
    fs::write(network(&host).join("addresses/10.83.0.99"), "{}").unwrap();
    let list = || host.node.sh(&["nft", "list", "map", "inet", "podwire", "hostport4_any"]);
    wait_until("the removal of the port", DEADLINE, || Ok(!list()?.contains("9999"))).unwrap();
    // The claim is removed last, so that the address is not allocated before.
    let claim = network(&host).join("addresses/10.83.0.99");
    wait_until("the removal of the claim", DEADLINE, || Ok(!claim.exists())).unwrap();
}

#[test]
fn a8_elements_without_a_pod_are_reported_with_a_fix() {
    in_both_modes(|mode| {
        let host = host("surplus", mode);
        let pod = host.pod("a");
        host.add_with(&pod, &with_host_port());
        wait_for_rounds(&host);
        assert_eq!(conditions(&host), [] as [Value; 0], "{mode}");
        let element = "inet podwire hostport4_any { tcp . 9999 : 10.83.0.99 . 80 }";
        host.node.sh(&["nft", &format!("add element {element}")]).unwrap();
        let reported = || {
            conditions(&host)
                .into_iter()
                .find(|condition| condition["message"].as_str().unwrap().contains("tcp . 9999 to 10.83.0.99"))
        };
        wait_until("the condition", DEADLINE, || Ok(reported().is_some())).unwrap();
        let command = reported().unwrap()["fix"].as_str().unwrap().to_owned();
        host.node.sh(&["sh", "-c", &command]).unwrap();
        wait_until("the end of the condition", DEADLINE, || Ok(conditions(&host).is_empty())).unwrap();
    });
}
