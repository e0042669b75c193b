//! Output in 80 columns with names, addresses and IDs of maximum length. `Host::run` measures every line.

use serde_json::{Value, json};
use testkit::{Call, DEADLINE, Pod, Verb, wait_until};

use crate::common::{Host, has};

/// A name of 63 characters, the maximum length of a DNS label.
fn long_name(label: &str) -> String {
    format!("{label}-{}", "x".repeat(62 - label.len()))
}

/// A pod with two interfaces and long names. Its host ports are on addresses that the node does not have.
fn add(host: &Host, config: &Value, label: &str) -> Pod {
    let pod = host.node.pod(label).unwrap();
    for (ifname, port) in [("eth0", 8080), ("eth1-long-name0", 8081)] {
        let map =
            |ip: &str| json!({ "hostPort": port, "containerPort": 80, "protocol": "tcp", "hostIP": ip });
        let mut config = config.clone();
        config["runtimeConfig"] =
            json!({ "portMappings": [map("198.51.100.7"), map("2001:db8:1234:5678:9abc:def0:1234:5678")] });
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={}",
            long_name("ns"),
            long_name("pod")
        );
        let call = Call {
            container: Some(id(label)),
            ifname: Some(ifname.to_owned()),
            args: Some(args),
            ..Call::pod(Verb::Add, &pod, &config)
        };
        host.plugin.call(&host.node, &call).unwrap().ok().unwrap();
    }
    pod
}

/// A container ID of 64 digits.
fn id(label: &str) -> String {
    format!("{:x}", label.as_bytes()[0]).repeat(32)
}

/// Creates many kinds of faults at the same time.
fn create_faults(host: &Host, pod: &Pod) {
    pod.sh(&["ip", "link", "set", "eth0", "address", "02:00:00:00:00:99"]).unwrap();
    let table = "table inet a-table-of-another-program { chain forward { type filter hook forward priority 0; policy drop; }; }";
    for line in [
        "sysctl -w net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0".to_owned(),
        format!("nft '{table}'"),
        "ip link add another-program type bridge; ip link set another-program up".to_owned(),
        "ip route add 10.50.0.128/25 dev another-program".to_owned(),
    ] {
        host.node.sh(&["sh", "-c", &line]).unwrap();
    }
}

#[test]
fn every_command_fits_80_columns_on_a_standalone_node() {
    let host = Host::new("narrow-alone");
    let mut config = host.standalone();
    config["subnet"] = json!("10.50.0.0/24,fd00:1234:5678:9abc:def0:1234:5678:0/112");
    config["name"] = json!(long_name("network"));
    let (a, _b) = (add(&host, &config, "a"), host.node.pod("b").unwrap());
    let table = host.ask(&["pods"]).stdout;
    has(&table, &["fd00:1234:5678:9abc:def0:1234:5678:2", "IF"]);
    assert!(host.ask(&["attachment", "show", &format!("{}/eth0", id("a"))]).success());
    create_faults(&host, &a);
    // The condition names every element of the pod with its complete ID.
    host.node.sh(&["nft", "flush", "set", "inet", "podwire", "pods4"]).unwrap();
    has(&host.ask(&["status"]).stdout, &["DEGRADED", "PodMacChanged"]);
    let doctor = host.ask(&["doctor"]).stdout;
    has(&doctor, &["FirewallDrift", "PodMacChanged attachment ", "ForwardingDisabled", "SubnetOverlap"]);
    assert!(!doctor.contains(&id("a")), "{doctor}");
    host.ask(&["attachment", "show", &format!("{}/eth0", id("a"))]);
    has(&host.ask(&["cleanup"]).stdout, &["2 attachments of "]);
    assert_eq!(host.ask(&["status"]).status.code(), Some(3));
}

#[test]
fn every_command_fits_80_columns_with_an_agent() {
    let host = Host::new("narrow-agent");
    let runtime = host.runtime();
    let flags = [
        "--node",
        &long_name("node"),
        "--network-subnet",
        "10.50.0.0/24,fd00:1234:5678:9abc:def0:1234:5678:0/112",
    ];
    let mut agent = host.agent(&[&runtime.agent_flags()[..], &flags, &["--reconcile-seconds", "1"]].concat());
    let a = add(&host, &agent.config(&json!({})), "a");
    wait_until("the node in the store", DEADLINE, || Ok(host.ask(&["nodes"]).success())).unwrap();
    for args in [&["pods"][..], &["nodes"], &["routes"], &["blocks"], &["status"], &["install"]] {
        let outcome = host.ask(args);
        assert!(outcome.success(), "{args:?}: {outcome:?}");
    }
    create_faults(&host, &a);
    host.node.sh(&["ip", "route", "flush", "proto", "112"]).unwrap();
    wait_until("the conditions and a repair", DEADLINE, || {
        let page = host.ask(&["status"]).stdout;
        Ok(["REPAIRED", "PodMacChanged", "PodTrafficDropped"].iter().all(|word| page.contains(word)))
    })
    .unwrap();
    has(&host.ask(&["doctor"]).stdout, &["PodMacChanged attachment podwire/616161616161/eth0: "]);
    agent.kill().unwrap();
    for args in [&["pods"][..], &["status"], &["doctor"], &["cleanup"], &["pods"], &["status"]] {
        host.ask(args);
    }
}
