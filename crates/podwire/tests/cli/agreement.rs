//! Without an agent CNI STATUS, `podwire status` and `podwire doctor` report the same conditions.

use std::fs;

use serde_json::{Value, json};
use testkit::Pod;

use crate::common::{Host, plugin_config};

struct Scene {
    host: Host,
    config: Value,
    pods: Vec<Pod>,
}

impl Scene {
    /// An installed network, and pods on it.
    fn new(label: &str, mode: &str, subnets: [&str; 2], pods: usize) -> Self {
        let host = Host::new(label);
        let network = ["--standalone", "--mode", mode, "--bridge", "pw-test0", "--subnet", subnets[0]];
        let outcome = host.install(&[&network[..], &["--subnet", subnets[1]]].concat());
        assert!(outcome.success(), "{outcome:?}");
        let mut config = plugin_config(&host.runtime().config("10-podwire.conflist"), &host.node);
        // STATUS came with this version.
        config["cniVersion"] = json!("1.1.0");
        let mut scene = Self { host, config, pods: Vec::new() };
        for number in 0..pods {
            let pod = scene.host.node.pod(&format!("p{number}")).unwrap();
            scene.host.plugin.add(&pod, &scene.config).unwrap().ok().unwrap();
            scene.pods.push(pod);
        }
        scene.expect_well();
        scene
    }

    fn sh(&self, line: &str) {
        self.host.node.sh(&["sh", "-c", line]).unwrap();
    }

    /// What `podwire status` and `podwire doctor` list, with readiness.
    fn reported(&self) -> (bool, Vec<String>) {
        let outcome = self.host.ask(&["status", "-o", "json"]);
        let status: Value = serde_json::from_str(&outcome.stdout).unwrap();
        let code = |one: &Value| one["code"].as_str().unwrap().to_owned();
        let codes: Vec<String> = status["conditions"].as_array().unwrap().iter().map(code).collect();
        let doctor: Value = serde_json::from_str(&self.host.ask(&["doctor", "-o", "json"]).stdout).unwrap();
        for code in &codes {
            assert!(
                doctor["checks"].as_array().unwrap().iter().any(|one| one["code"] == *code),
                "{code}: {doctor}"
            );
        }
        let is_ready = status["ready"] == true;
        assert_eq!(outcome.status.code(), Some(i32::from(!is_ready)), "{status}");
        (is_ready, codes)
    }

    /// 0 where STATUS succeeds.
    fn cni_status(&self) -> (u32, String) {
        let outcome = self.host.plugin.status(&self.host.node, &self.config).unwrap();
        if outcome.success() {
            return (0, String::new());
        }
        let error = outcome.error().unwrap();
        (error.code, error.details.split(':').next().unwrap().to_owned())
    }

    fn expect_well(&self) {
        assert_eq!(self.reported(), (true, vec![]));
        assert_eq!(self.cni_status(), (0, String::new()));
    }

    /// STATUS last: it repairs.
    fn expect(&self, code: &str, answer: u32) {
        assert_eq!(self.reported(), (answer != 50, vec![code.to_owned()]), "{code}");
        assert_eq!(self.cni_status(), (answer, code.to_owned()));
    }
}

const DUAL: [&str; 2] = ["10.50.0.0/24", "fd00:50::/64"];

#[test]
fn a1_before_the_first_pod_all_outputs_agree() {
    for mode in ["routed", "bridge"] {
        let scene = Scene::new("fresh", mode, DUAL, 0);
        for (act, undo, code) in [
            (
                "ip link add other type bridge; ip link set other up; ip addr add 10.50.0.9/24 dev other",
                "ip link del other",
                "SubnetOverlap",
            ),
            (
                "ip link add other type bridge; ip link set other up; ip addr add fd00:50::9/64 dev other nodad",
                "ip link del other",
                "SubnetOverlap",
            ),
            ("ip link add pw-test0 type veth peer name peer0", "ip link del pw-test0", "BridgeNameTaken"),
        ] {
            scene.sh(act);
            scene.expect(code, 50);
            scene.sh(undo);
            scene.expect_well();
        }
    }
}

#[test]
fn a1_with_running_pods_all_outputs_agree() {
    for mode in ["routed", "bridge"] {
        let scene = Scene::new("running", mode, DUAL, 1);
        for (act, undo, code) in [
            ("nft flush chain inet podwire nat-postrouting", "true", "FirewallDrift"),
            ("nft delete table inet podwire", "true", "FirewallDrift"),
            (
                "nft 'table inet strict { chain c { type filter hook forward priority 0; policy drop; }; }'",
                "nft delete table inet strict",
                "PodTrafficDropped",
            ),
            (
                "ip link add other type bridge; ip link set other up; ip addr add 10.50.0.9/32 dev other",
                "ip link del other",
                "SubnetOverlap",
            ),
            ("ip link set pw-test0 down", "ip link set pw-test0 up", "BridgeDown"),
        ] {
            scene.sh(act);
            scene.expect(code, 51);
            scene.sh(undo);
            scene.expect_well();
        }
        scene.sh("ip link del pw-test0");
        scene.expect("BridgeMissing", 51);
    }
}

#[test]
fn a1_a_network_without_free_addresses_is_not_ready_in_all_outputs() {
    for mode in ["routed", "bridge"] {
        for subnets in [["10.50.0.0/30", "fd00:50::/64"], ["10.50.0.0/24", "fd00:50::/126"]] {
            let mut scene = Scene::new("full", mode, subnets, 0);
            loop {
                let pod = scene.host.node.pod(&format!("p{}", scene.pods.len())).unwrap();
                let is_attached = scene.host.plugin.add(&pod, &scene.config).unwrap().success();
                scene.pods.push(pod);
                if !is_attached {
                    break;
                }
            }
            scene.expect("AddressesExhausted", 50);
            scene.host.plugin.del(&scene.pods[0], &scene.config).unwrap().ok().unwrap();
            scene.expect_well();
        }
    }
}

/// A runtime that gets an error from STATUS starts no pods: one pod must not keep it from that. The operator sees all.
#[test]
fn a1_one_bad_pod_hides_no_other_and_does_not_fail_cni_status() {
    for mode in ["routed", "bridge"] {
        let scene = Scene::new("bad", mode, DUAL, 3);
        let records = scene.host.node.run_dir().join("networks/podwire/attachments");
        let mut paths: Vec<_> = fs::read_dir(records).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        fs::write(&paths[0], "no record").unwrap();
        let mut newer: Value = serde_json::from_slice(&fs::read(&paths[1]).unwrap()).unwrap();
        newer["schema"] = json!(99);
        fs::write(&paths[1], newer.to_string()).unwrap();
        scene.pods[2].sh(&["ip", "link", "set", "dev", "eth0", "address", "02:00:00:00:00:77"]).unwrap();
        let (is_ready, codes) = scene.reported();
        assert!(is_ready, "{mode}");
        assert_eq!(codes, ["PodMacChanged", "RecordUnreadable", "RecordNewer"], "{mode}");
        assert_eq!(scene.cni_status(), (0, String::new()), "{mode}");
    }
}
