//! CNI STATUS, `podwire status` and `podwire doctor` report the same conditions.

use std::fs;

use serde_json::{Value, json};
use testkit::{DEADLINE, Plugin, Pod, ping, wait_until};

use crate::common::{Host, plugin_config};

struct Scene {
    host: Host,
    config: Value,
    pods: Vec<Pod>,
}

impl Scene {
    /// An installed network with pods.
    fn new(label: &str, mode: &str, subnets: [&str; 2], pods: usize) -> Self {
        let host = Host::new(label);
        let network = ["--standalone", "--mode", mode, "--bridge", "pw-test0", "--subnet", subnets[0]];
        let outcome = host.install(&[&network[..], &["--subnet", subnets[1]]].concat());
        assert!(outcome.success(), "{outcome:?}");
        let mut config = plugin_config(&host.runtime().config("10-podwire.conflist"), &host.node);
        // The first version with STATUS.
        config["cniVersion"] = json!("1.1.0");
        let mut scene = Self { host, config, pods: Vec::new() };
        for number in 0..pods {
            let pod = scene.host.node.pod(&format!("p{number}")).unwrap();
            scene.host.plugin.add(&pod, &scene.config).unwrap().ok().unwrap();
            scene.pods.push(pod);
        }
        scene.expect_ready();
        scene
    }

    fn sh(&self, line: &str) {
        self.host.node.sh(&["sh", "-c", line]).unwrap();
    }

    /// Readiness and codes of `podwire status`. `podwire doctor` must report the same codes.
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

    /// Error code and condition of CNI STATUS. The code is 0 if STATUS succeeds.
    fn cni_status(&self) -> (u32, String) {
        let outcome = self.host.plugin.status(&self.host.node, &self.config).unwrap();
        if outcome.success() {
            return (0, String::new());
        }
        let error = outcome.error().unwrap();
        (error.code, error.details.split(':').next().unwrap().to_owned())
    }

    /// Runs the fix of a condition.
    fn paste_fix(&self, code: &str) {
        let status: Value = serde_json::from_str(&self.host.ask(&["status", "-o", "json"]).stdout).unwrap();
        let all = status["conditions"].as_array().unwrap();
        let fix = all.iter().find(|one| one["code"] == code).and_then(|one| one["fix"].as_str()).unwrap();
        let path = self.host.tool.parent().unwrap().display();
        // `podwire doctor` exits with 1 if it finds another problem.
        self.sh(&format!("PATH={path}:$PATH; {fix} >/dev/null || test $? = 1"));
    }

    /// Changes the installed config file.
    fn configure(&mut self, key: &str, value: &Value) {
        let path = self.host.runtime().conf.join("10-podwire.conflist");
        let mut list: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        list["cniVersion"] = json!("1.1.0");
        for config in [&mut list["plugins"][0], &mut self.config] {
            config[key] = value.clone();
        }
        fs::write(&path, list.to_string()).unwrap();
    }

    fn expect_ready(&self) {
        assert_eq!(self.reported(), (true, vec![]));
        assert_eq!(self.cni_status(), (0, String::new()));
    }

    /// STATUS is called last, because it repairs.
    fn expect(&self, code: &str, answer: u32) {
        assert_eq!(self.reported(), (answer != 50, vec![code.to_owned()]), "{code}");
        assert_eq!(self.cni_status(), (answer, code.to_owned()));
    }
}

const DUAL: [&str; 2] = ["10.50.0.0/24", "fd00:50::/64"];

#[test]
fn a1_all_outputs_agree_before_the_first_pod() {
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
            scene.expect_ready();
        }
    }
}

#[test]
fn a1_all_outputs_agree_with_running_pods() {
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
            ("ip link set pw-test0 down", "true", "BridgeDown"),
            ("ip link set pw-test0 down; ip link set pw-test0 up", "true", "GatewayMissing"),
            ("ip addr del 10.50.0.1/24 dev pw-test0", "true", "GatewayMissing"),
            ("ip addr del fd00:50::1/64 dev pw-test0", "true", "GatewayMissing"),
        ] {
            scene.sh(act);
            scene.expect(code, 51);
            scene.sh(undo);
            scene.expect_ready();
        }
        scene.sh("ip link del pw-test0");
        scene.expect("BridgeMissing", 51);
    }
}

#[test]
fn a1_all_outputs_report_exhausted_addresses() {
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
            scene.expect_ready();
        }
    }
}

/// A runtime starts no pods after an error of STATUS, so problems of single pods must not fail STATUS.
#[test]
fn a1_problems_of_single_pods_do_not_fail_cni_status() {
    for mode in ["routed", "bridge"] {
        let scene = Scene::new("bad", mode, DUAL, 3);
        let records = scene.host.node.run_dir().join("networks/podwire/attachments");
        let mut paths: Vec<_> = fs::read_dir(records).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        fs::write(&paths[0], "invalid").unwrap();
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

/// The kernel removes the IPv6 addresses of a link that is set down.
#[test]
fn f2_the_fix_of_a_bridge_restores_its_gateways_in_both_families() {
    for mode in ["routed", "bridge"] {
        let scene = Scene::new("gateways", mode, DUAL, 1);
        for (act, code) in [
            ("ip link set pw-test0 down", "BridgeDown"),
            ("ip link set pw-test0 down; ip link set pw-test0 up", "GatewayMissing"),
            ("ip addr del 10.50.0.1/24 dev pw-test0", "GatewayMissing"),
            ("ip addr del fd00:50::1/64 dev pw-test0", "GatewayMissing"),
        ] {
            scene.sh(act);
            assert_eq!(scene.reported(), (true, vec![code.to_owned()]), "{mode}: {act}");
            scene.paste_fix(code);
            scene.expect_ready();
            for gateway in ["10.50.0.1", "fd00:50::1"] {
                let address = gateway.parse().unwrap();
                wait_until(gateway, DEADLINE, || Ok(ping(&scene.pods[0], address, 1)?.all()))
                    .unwrap_or_else(|e| panic!("{mode}: {act}: {e:#}"));
            }
        }
    }
}

/// A link can have an IPv6 address only once, so the gateway cannot be added with another prefix length.
#[test]
fn f2_an_ipv6_gateway_with_another_prefix_length_is_not_missing() {
    for mode in ["routed", "bridge"] {
        let scene = Scene::new("prefix", mode, DUAL, 1);
        let bridge = scene.config["bridge"].as_str().unwrap();
        scene.sh(&format!("ip -6 addr flush dev {bridge} to fd00:50::1"));
        scene.sh(&format!("ip -6 addr add fd00:50::1/72 dev {bridge} nodad"));
        scene.expect_ready();
    }
}

#[test]
fn f1_pods_in_another_mode_are_reported_until_restarted() {
    for (before, after) in [("bridge", "routed"), ("routed", "bridge")] {
        let mut scene = Scene::new("modes", before, DUAL, 1);
        scene.configure("mode", &json!(after));
        assert_eq!(scene.reported(), (true, vec!["PodModeDiffers".to_owned()]));
        scene.host.plugin.status(&scene.host.node, &scene.config).unwrap().ok().unwrap();
        let status: Value = serde_json::from_str(&scene.host.ask(&["status", "-o", "json"]).stdout).unwrap();
        let message = status["conditions"][0]["message"].as_str().unwrap();
        let text = format!("attached in mode {after}, but 1 pod is in mode {before}");
        assert!(message.contains(&text) && message.ends_with(scene.pods[0].id()), "{message}");
        scene.host.plugin.del(&scene.pods[0], &scene.config).unwrap().ok().unwrap();
        scene.host.plugin.add(&scene.pods[0], &scene.config).unwrap().ok().unwrap();
        scene.expect_ready();
    }
}

/// The defaults of both have the same network, subnets and run directory, but another mode.
#[test]
fn f1_an_agent_reports_standalone_pods_in_another_mode() {
    let host = Host::new("handover");
    let outcome = host.install(&["--standalone"]);
    assert!(outcome.success(), "{outcome:?}");
    let config = plugin_config(&host.runtime().config("10-podwire.conflist"), &host.node);
    let earlier = host.node.pod("earlier").unwrap();
    host.plugin.add(&earlier, &config).unwrap().ok().unwrap();
    // The condition must end before the next timed reconcile.
    let agent = host.agent(&["--no-install", "--reconcile-seconds", "3600"]);
    let config = agent.config(&json!({}));
    let later = host.node.pod("later").unwrap();
    host.plugin.add(&later, &config).unwrap().ok().unwrap();
    for (command, list) in [("status", "conditions"), ("doctor", "checks")] {
        let shown: Value = serde_json::from_str(&host.ask(&[command, "-o", "json"]).stdout).unwrap();
        let all = shown[list].as_array().unwrap();
        let found: Vec<&Value> = all.iter().filter(|one| one["code"] == "PodModeDiffers").collect();
        assert_eq!((found.len(), &found[0]["severity"]), (1, &json!("degraded")), "{shown}");
        assert!(found[0]["message"].as_str().unwrap().ends_with(earlier.id()), "{shown}");
    }
    // A runtime starts no pods after an error.
    host.plugin.status(&host.node, &config).unwrap().ok().unwrap();
    host.plugin.del(&earlier, &config).unwrap().ok().unwrap();
    host.plugin.add(&earlier, &config).unwrap().ok().unwrap();
    let has_none = || Ok(agent.get(api::STATUS)?["conditions"] == json!([]));
    wait_until("the end of the condition", DEADLINE, has_none).unwrap();
}

/// The configured mode decides, not the mode of the newest pod.
#[test]
fn f1_an_agent_without_a_block_reports_the_mode_of_pods() {
    let host = Host::new("blockless");
    let outcome = host.install(&["--standalone"]);
    assert!(outcome.success(), "{outcome:?}");
    let config = plugin_config(&host.runtime().config("10-podwire.conflist"), &host.node);
    let earlier = host.node.pod("earlier").unwrap();
    host.plugin.add(&earlier, &config).unwrap().ok().unwrap();
    let mut agent =
        host.idle_agent(&["--no-install", "--store", "etcd", "--etcd-endpoints", "http://127.0.0.1:9"]);
    agent.launch().unwrap();
    let conditions = || {
        let status = agent.get(api::STATUS).ok()?;
        let code = |one: &Value| one["code"].as_str().unwrap_or_default().to_owned();
        Some(status["conditions"].as_array()?.iter().map(code).collect::<Vec<String>>())
    };
    wait_until("the condition without a block", DEADLINE, || {
        let codes = conditions().unwrap_or_default();
        Ok(["BlockMissing", "PodModeDiffers"].iter().all(|code| codes.iter().any(|one| one == code)))
    })
    .unwrap();
}

/// F2: STATUS of the other network, or `podwire doctor --repair`, repairs the other bridge.
#[test]
fn f2_cni_status_repairs_only_the_bridge_of_its_network() {
    let host = Host::new("twonets");
    let config = |name: &str, number: u8| {
        let mut config = host.standalone();
        config["name"] = json!(name);
        config["bridge"] = json!(format!("pw-{name}0"));
        config["subnet"] = json!(format!("10.5{number}.0.0/24,fd00:5{number}::/64"));
        config
    };
    let (a, b) = (config("a", 1), config("b", 2));
    let pods = [(&a, "pa"), (&b, "pb")].map(|(config, name)| {
        let pod = host.node.pod(name).unwrap();
        host.plugin.add(&pod, config).unwrap().ok().unwrap();
        pod
    });
    let is_up = |bridge: &str| {
        let shown = host.node.run(&["ip", "-o", "link", "show", bridge], b"").unwrap().stdout;
        shown.split(['<', '>', ',']).any(|flag| flag == "UP")
    };
    for bridge in ["pw-a0", "pw-b0"] {
        host.node.sh(&["ip", "link", "set", bridge, "down"]).unwrap();
    }
    let error = host.plugin.status(&host.node, &a).unwrap().error().unwrap();
    assert!(error.msg.contains("repaired just now"), "{error:?}");
    assert_eq!((is_up("pw-a0"), is_up("pw-b0")), (true, false));
    host.ask(&["doctor", "--repair"]);
    assert_eq!((is_up("pw-a0"), is_up("pw-b0")), (true, true));
    drop(pods);
}

/// No runtime of the test node has a configuration, as with podman.
#[test]
fn f6_a_missing_installed_plugin_is_reported() {
    let scene = Scene::new("noplugin", "bridge", DUAL, 1);
    fs::remove_file(scene.host.runtime().bin.join("podwire-cni")).unwrap();
    assert_eq!(scene.reported(), (false, vec!["InstallIncomplete".to_owned()]));
    scene.paste_fix("InstallIncomplete");
    scene.expect_ready();
}

#[test]
fn f7_all_outputs_report_an_unavailable_ipam_plugin() {
    let mut scene = Scene::new("ipam", "bridge", DUAL, 0);
    scene.configure("ipam", &json!({"type": "late-ipam"}));
    // Its directory is in CNI_PATH.
    let bin = scene.host.runtime().bin;
    scene.host.plugin = Plugin { path: bin.join("podwire-cni") };
    scene.expect("IpamUnavailable", 50);
    let script = |answer: &str| {
        let text = format!("#!/bin/sh\ncat >/dev/null\n{answer}\n");
        let write = format!("cat >{0} && chmod 755 {0}", bin.join("late-ipam").display());
        assert!(scene.host.node.run(&["sh", "-c", &write], text.as_bytes()).unwrap().success());
    };
    script(r#"echo '{"code": 50, "msg": "not yet"}'; exit 1"#);
    scene.expect("IpamUnavailable", 50);
    script(r#"echo '{"code": 51, "msg": "slow"}'; exit 1"#);
    scene.expect("IpamUnavailable", 51);
    script("exit 0");
    scene.expect_ready();
}

#[test]
fn f7_all_outputs_report_a_run_directory_of_another_program() {
    let scene = Scene::new("other", "bridge", DUAL, 0);
    let run_dir = scene.host.node.run_dir();
    fs::remove_dir_all(&run_dir).unwrap();
    fs::create_dir_all(run_dir.join("networks")).unwrap();
    fs::write(run_dir.join("networks/other"), "").unwrap();
    scene.expect("RunDirUnusable", 50);
    fs::remove_dir_all(&run_dir).unwrap();
    scene.expect_ready();
}

/// The agent finds such networks in the configs of the runtime's directory.
#[test]
fn f7_an_agent_reports_a_missing_ipam_plugin() {
    let host = Host::new("agentipam");
    let (runtime, delegates) = (host.runtime(), host.node.dir().join("delegates"));
    let more = ["--reconcile-seconds", "1", "--delegate-directories", delegates.to_str().unwrap()];
    let agent = host.agent(&[&runtime.agent_flags()[..], &more].concat());
    let config = agent.config(&json!({"name": "other", "bridge": "other0", "ipam": {"type": "static"}}));
    fs::write(runtime.conf.join("20-other.conf"), config.to_string()).unwrap();
    let found = || -> Vec<Value> {
        let status = agent.get(api::STATUS).unwrap();
        let all = status["conditions"].as_array().unwrap().clone();
        all.into_iter().filter(|one| one["code"] == "IpamUnavailable").collect()
    };
    wait_until("the condition", DEADLINE, || Ok(!found().is_empty())).unwrap();
    // Only degraded, because pods of the agent's network can be started.
    assert_eq!(found()[0]["severity"], "degraded");
    let doctor: Value = serde_json::from_str(&host.ask(&["doctor", "-o", "json"]).stdout).unwrap();
    assert!(
        doctor["checks"].as_array().unwrap().iter().any(|one| one["code"] == "IpamUnavailable"),
        "{doctor}"
    );
    let error = host.plugin.status(&host.node, &config).unwrap().error().unwrap();
    assert_eq!((error.code, error.details.as_str()), (50, "IpamUnavailable"), "{error:?}");
    let static_plugin = delegates.join("static");
    let write =
        format!("mkdir {1} && cat >{0} && chmod 755 {0}", static_plugin.display(), delegates.display());
    assert!(host.node.run(&["sh", "-c", &write], b"#!/bin/sh\ncat >/dev/null\n").unwrap().success());
    wait_until("its end", DEADLINE, || Ok(found().is_empty())).unwrap();
    host.plugin.status(&host.node, &config).unwrap().ok().unwrap();
}
