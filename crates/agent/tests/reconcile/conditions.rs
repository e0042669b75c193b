//! Severity and duration of conditions that reconcile rounds report.

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};
use testkit::{Agent, DEADLINE, Lab, wait_until};

use crate::common::Host;
use crate::scene::{BY_EVENTS, in_both_modes};

/// The conditions of this code in the status.
fn conditions(agent: &Agent, code: &str) -> Vec<Value> {
    let status = agent.get("/v1/status").unwrap();
    let all = status["conditions"].as_array().unwrap().clone();
    all.into_iter().filter(|condition| condition["code"] == code).collect()
}

#[test]
fn a3_a_pod_that_cannot_be_repaired_does_not_block_new_pods() {
    let host = Host::with_flags("a3pod", &["--reconcile-seconds", "1"]);
    let config = json!({
        "cniVersion": "1.1.0", "name": "other", "type": "podwire-cni", "mode": "bridge", "bridge": "other0",
        "subnet": "10.7.0.0/24,fd00:7::/64", "runDir": host.agent.run_dir(),
        "agent": host.config(&json!({}))["agent"], "logFile": host.node.log_file(),
    });
    host.plugin.add(&host.pod("a"), &config).unwrap().ok().unwrap();
    let replace = ["sh", "-c", "ip link del other0; ip link add other0 type veth peer name other1"];
    wait_until("a link of another kind", DEADLINE, || Ok(host.node.run(&replace, b"")?.success())).unwrap();
    wait_until("the condition", DEADLINE, || Ok(!conditions(&host.agent, "BridgeNameTaken").is_empty()))
        .unwrap();
    let rounds = || host.agent.get("/v1/status").unwrap()["reconcile"]["rounds"].as_u64().unwrap();
    let before = rounds();
    // The repair of the pod also fails in each round.
    wait_until("two more rounds", DEADLINE, || Ok(rounds() > before + 1)).unwrap();
    let reported = conditions(&host.agent, "BridgeNameTaken");
    assert_eq!((reported.len(), &reported[0]["severity"]), (1, &json!("degraded")), "{reported:?}");
    assert!(host.agent.is_ready(), "{reported:?}");
    host.attached("b");
}

/// How often a condition began, according to the log.
fn times_begun(agent: &Agent, code: &str) -> usize {
    let (log, code) = (agent.log().unwrap(), format!("code={code} "));
    log.lines().filter(|line| line.contains("condition began") && line.contains(&code)).count()
}

fn wait_for(agent: &Agent, code: &str) {
    wait_until(code, DEADLINE, || Ok(!conditions(agent, code).is_empty())).unwrap();
}

fn wait_for_end(agent: &Agent, code: &str) {
    wait_until("the end of the condition", DEADLINE, || Ok(conditions(agent, code).is_empty())).unwrap();
}

#[test]
fn a1_a_condition_inside_a_pod_lasts_while_rounds_skip_pods() {
    in_both_modes(|mode| {
        let host = Host::with_flags("a1shallow", &[&BY_EVENTS[..], &["--network-mode", mode]].concat());
        let (pod, _) = host.attached("a");
        let ipv6 = |value: &str| {
            let line = format!("echo {value} > /proc/sys/net/ipv6/conf/eth0/disable_ipv6");
            pod.sh(&["sh", "-c", &line]).unwrap();
        };
        // The kernel then refuses the pod's address.
        ipv6("1");
        wait_for(&host.agent, "RepairFailed");
        // Rounds report their failures for other objects. With the same object, their message would replace this one.
        let object = conditions(&host.agent, "RepairFailed")[0]["object"].to_string();
        assert!(object.contains("/eth0 (inside)"), "{object}");
        let repairs = || host.agent.get("/v1/status").unwrap()["reconcile"]["repairs"].as_u64().unwrap();
        for _ in 0..3 {
            let before = repairs();
            host.node.sh(&["ip", "link", "set", "podwire0", "down"]).unwrap();
            wait_until("a round of the node", DEADLINE, || Ok(repairs() > before)).unwrap();
            assert_eq!(conditions(&host.agent, "RepairFailed").len(), 1, "{mode}");
        }
        assert_eq!(times_begun(&host.agent, "RepairFailed"), 1, "{mode}: {}", host.agent.log().unwrap());
        ipv6("0");
        // The kernel sends no event for this setting, so another change triggers a round.
        pod.sh(&["ip", "address", "add", "192.0.2.7/32", "dev", "eth0"]).unwrap();
        pod.sh(&["ip", "address", "del", "192.0.2.7/32", "dev", "eth0"]).unwrap();
        wait_for_end(&host.agent, "RepairFailed");
        // The condition ends with its pod.
        ipv6("1");
        wait_for(&host.agent, "RepairFailed");
        host.del(&pod);
        host.node.sh(&["ip", "link", "set", "podwire0", "down"]).unwrap();
        wait_for_end(&host.agent, "RepairFailed");
    });
}

#[test]
fn a1_a_failed_round_does_not_end_conditions() {
    let host = Host::with_flags("a1failed", &["--reconcile-seconds", "1"]);
    let (pod, _) = host.attached("a");
    pod.sh(&["sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6"]).unwrap();
    wait_for(&host.agent, "RepairFailed");
    let networks = host.agent.run_dir().join("networks");
    let aside = networks.with_extension("aside");
    std::fs::write(&aside, "").unwrap();
    let exchange = || renameat_with(CWD, &networks, CWD, &aside, RenameFlags::EXCHANGE).unwrap();
    exchange();
    wait_for(&host.agent, "RunDirUnusable");
    assert_eq!(conditions(&host.agent, "RepairFailed").len(), 1);
    exchange();
    wait_for_end(&host.agent, "RunDirUnusable");
    assert_eq!(conditions(&host.agent, "RepairFailed").len(), 1);
    assert_eq!(times_begun(&host.agent, "RepairFailed"), 1, "{}", host.agent.log().unwrap());
}

#[test]
fn a1_readable_records_end_the_condition_without_a_query() {
    let host = Host::with_flags("a1records", &["--reconcile-seconds", "1"]);
    host.attached("a");
    let addresses = host.agent.run_dir().join("networks/podwire/addresses");
    // A symlink to itself cannot be listed.
    let aside = host.node.dir().join("aside");
    std::os::unix::fs::symlink(&addresses, &aside).unwrap();
    let exchange = || renameat_with(CWD, &addresses, CWD, &aside, RenameFlags::EXCHANGE).unwrap();
    exchange();
    wait_until("the condition", DEADLINE, || Ok(times_begun(&host.agent, "RunDirUnusable") == 1)).unwrap();
    exchange();
    let has_ended = |line: &str| line.contains("condition ended") && line.contains("code=RunDirUnusable");
    wait_until("the end of the condition", DEADLINE, || Ok(host.agent.log()?.lines().any(has_ended)))
        .unwrap();
}

#[test]
fn a2_a_node_without_free_addresses_is_not_ready_in_all_reports() {
    in_both_modes(|mode| {
        // Two addresses for pods in one of the families.
        for subnets in ["10.9.0.0/29,fd00:9::/64", "10.9.0.0/24,fd00:9::/125"] {
            let flags = ["--reconcile-seconds", "1", "--network-mode", mode, "--network-subnet", subnets];
            let host = Host::with_flags("a2full", &flags);
            let config = host.config(&json!({}));
            let mut pods = Vec::new();
            let refused = loop {
                let pod = host.pod(&format!("p{}", pods.len()));
                match host.plugin.add(&pod, &config).unwrap() {
                    added if added.success() => pods.push(pod),
                    refused => break refused.error().unwrap(),
                }
            };
            assert!(refused.msg.contains("10.9.0.0") || refused.msg.contains("fd00:9::"), "{refused:?}");
            wait_until("not ready", DEADLINE, || Ok(!host.agent.is_ready())).unwrap();
            let status = host.agent.get("/v1/status").unwrap();
            assert_eq!(status["ready"], false, "{mode}: {status}");
            let reported = conditions(&host.agent, "AddressesExhausted");
            assert_eq!(reported[0]["object"], "network podwire", "{mode}: {reported:?}");
            let metrics = host.agent.metrics().unwrap();
            assert!(
                metrics.contains("podwire_conditions{code=\"AddressesExhausted\",severity=\"notReady\"} 1\n"),
                "{metrics}"
            );
            let error = host.plugin.status(&host.node, &config).unwrap().error().unwrap();
            assert!(error.code == 50 && error.details.starts_with("AddressesExhausted"), "{error:?}");
            // An ADD is not refused because of the condition. It searches for a free address.
            let second = host.refused(&host.pod("second"));
            assert_eq!((second.code, &second.msg), (refused.code, &refused.msg), "{mode}");
            host.del(&pods.remove(0));
            host.attached("next");
            host.del(&pods.remove(0));
            wait_until("ready", DEADLINE, || Ok(host.agent.is_ready())).unwrap();
            host.plugin.status(&host.node, &config).unwrap().ok().unwrap();
        }
    });
}

#[test]
fn a4_readiness_follows_free_addresses_without_a_round() {
    in_both_modes(|mode| {
        for subnets in ["10.9.0.0/29,fd00:9::/64", "10.9.0.0/24,fd00:9::/125"] {
            let flags = [&BY_EVENTS[..], &["--network-mode", mode, "--network-subnet", subnets]].concat();
            let host = Host::with_flags("a4full", &flags);
            let config = host.config(&json!({}));
            let mut pods = Vec::new();
            loop {
                let pod = host.pod(&format!("p{}", pods.len()));
                if !host.plugin.add(&pod, &config).unwrap().success() {
                    break;
                }
                pods.push(pod);
            }
            assert!(!host.agent.is_ready(), "{mode}: a request was refused");
            host.del(&pods.remove(0));
            assert!(host.agent.is_ready(), "{mode}: an address is free");
        }
    });
}

#[test]
fn a3_the_usage_of_unreadable_records_is_unknown() {
    let host = Host::with_flags("a3unknown", &BY_EVENTS);
    host.attached("a");
    let addresses = host.agent.run_dir().join("networks/podwire/addresses");
    let aside = host.node.dir().join("aside");
    std::os::unix::fs::symlink(&addresses, &aside).unwrap();
    let exchange = || renameat_with(CWD, &addresses, CWD, &aside, RenameFlags::EXCHANGE).unwrap();
    let usage = || {
        let status = host.agent.get("/v1/status").unwrap();
        (status["attachments"].clone(), status["network"]["blocks"].clone())
    };
    let known = usage();
    assert_eq!((&known.0["ready"], &known.1[0]["used"]), (&json!(1), &json!(1)));
    exchange();
    let (attachments, blocks) = usage();
    assert_eq!(
        (attachments, &blocks[0]["used"], &blocks[1]["free"]),
        (Value::Null, &Value::Null, &Value::Null)
    );
    assert_eq!(blocks[0]["block"], known.1[0]["block"]);
    assert_eq!(conditions(&host.agent, "RunDirUnusable").len(), 1);
    let metrics = host.agent.metrics().unwrap();
    assert!(
        !metrics.contains("podwire_attachments{") && !metrics.contains("podwire_addresses{"),
        "{metrics}"
    );
    // The query requested a round, which reports the condition.
    wait_until("the log", DEADLINE, || Ok(times_begun(&host.agent, "RunDirUnusable") == 1)).unwrap();
    exchange();
    assert_eq!(usage(), known);
}

#[test]
fn a9_a_connection_limit_that_is_not_in_force_is_reported() {
    let lab = Lab::new("a9limit").unwrap();
    let node = lab.node("n1").unwrap();
    let failing = node.dir().join("failing");
    std::fs::create_dir_all(&failing).unwrap();
    let (program, path) = (failing.join("nft"), failing.display());
    // Fails for the table of the limit while the file `on` exists.
    let script = format!(
        "#!/bin/sh\ncat >{path}/text\n[ -e {path}/on ] && grep -q podwire-limit {path}/text && exit 1\n\
         exec /usr/sbin/nft \"$@\" <{path}/text\n"
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(failing.join("on"), "").unwrap();
    let flags = ["--no-install", "--reconcile-seconds", "1", "--network-connections-per-pod", "16"];
    let mut agent = Agent::new(&node, &flags).unwrap();
    agent.set_env(&[("PATH".to_owned(), format!("{path}:{}", std::env::var("PATH").unwrap()))]);
    agent.launch().unwrap();
    agent.wait_ready().unwrap();
    wait_for(&agent, "RepairFailed");
    let reported = conditions(&agent, "RepairFailed");
    assert_eq!(
        (reported.len(), &reported[0]["object"]),
        (1, &json!("table podwire-limit-podwire")),
        "{reported:?}"
    );
    assert!(reported[0]["message"].as_str().unwrap().starts_with("cannot limit the connections of pods: "));
    std::fs::remove_file(failing.join("on")).unwrap();
    wait_for_end(&agent, "RepairFailed");
    node.sh(&["nft", "list", "table", "inet", "podwire-limit-podwire"]).unwrap();
    assert_eq!(times_begun(&agent, "RepairFailed"), 1);
}

#[test]
fn a10_a_lock_that_cannot_be_restored_is_reported() {
    let host = Host::with_flags("a10lock", &BY_EVENTS);
    let lock = host.agent.run_dir().join("agent.lock");
    std::fs::remove_file(&lock).unwrap();
    // The agent may create the file again first.
    wait_until("a directory at the path of the lock", DEADLINE, || {
        let _ = std::fs::remove_file(&lock);
        Ok(std::fs::create_dir(&lock).is_ok())
    })
    .unwrap();
    wait_for(&host.agent, "RunDirUnusable");
    let reported = conditions(&host.agent, "RunDirUnusable");
    let object = format!("file {}", lock.display());
    assert_eq!((reported.len(), reported[0]["object"].as_str()), (1, Some(object.as_str())), "{reported:?}");
    assert!(reported[0]["severity"] == "degraded" && host.agent.is_ready(), "{reported:?}");
    std::fs::remove_dir(&lock).unwrap();
    wait_for_end(&host.agent, "RunDirUnusable");
    assert!(lock.is_file());
}

#[test]
fn a1_the_mode_of_the_etcd_key_is_rechecked() {
    let dir = tempfile::tempdir().unwrap();
    let [ca, cert, key] = ["ca", "cert", "the key"].map(|name| {
        let path = dir.path().join(name);
        std::fs::write(&path, "").unwrap();
        path.to_str().unwrap().to_owned()
    });
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let lab = Lab::new("a1key").unwrap();
    let node = lab.node("n1").unwrap();
    let etcd = ["--etcd-endpoints", "https://127.0.0.1:1", "--etcd-ca", &ca, "--etcd-cert", &cert];
    let more = ["--no-install", "--reconcile-seconds", "1", "--store", "etcd", "--etcd-key", &key];
    let mut agent = Agent::new(&node, &[&etcd[..], &more].concat()).unwrap();
    agent.launch().unwrap();
    wait_until("an answer", DEADLINE, || Ok(agent.get("/v1/status").is_ok())).unwrap();
    for _ in 0..2 {
        wait_for(&agent, "EtcdKeyExposed");
        let fix = conditions(&agent, "EtcdKeyExposed")[0]["fix"].as_str().unwrap().to_owned();
        node.sh(&["sh", "-c", &fix]).unwrap();
        wait_for_end(&agent, "EtcdKeyExposed");
        std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    }
}
