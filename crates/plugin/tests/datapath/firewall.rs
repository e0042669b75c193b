//! Podwire's nftables tables: chains of removed networks, repair of flushed tables, and address conflicts.

use serde_json::{Value, json};
use testkit::{Call, DEADLINE, Snapshot, Verb};

use crate::common::{DUAL, Host, MODES, ips, v4, with};
use crate::probes::{BOTH, NODE, OUT, Transport, ip, observed_source, outside};

/// The number of chains of masqueraded networks.
fn network_chains(host: &Host) -> usize {
    let ruleset = host.node.sh(&["nft", "list", "ruleset"]).unwrap();
    ruleset.lines().filter(|line| line.starts_with("\tchain net-")).count()
}

fn network(host: &Host, number: usize) -> Value {
    host.config(&json!({"name": format!("net{number}"), "bridge": format!("pw{number}"), "ipMasq": true,
        "subnet": format!("10.{number}.0.0/24,fd00:{number}::/64")}))
}

#[test]
fn f5_chains_of_networks_without_pods_are_removed() {
    let host = Host::new("f5-chains");
    let out = outside(&host, &[]);
    let in_use = host.config(&json!({"subnet": DUAL, "ipMasq": true}));
    let (pod, _) = host.attached("running", &in_use);
    for number in 1..=12 {
        let config = network(&host, number);
        let (pod, _) = host.attached(&format!("p{number}"), &config);
        host.del(&pod, &config);
        assert!(network_chains(&host) <= 5, "after {number}: only a few unused chains may remain");
    }
    // The chain of another network may belong to an agent, so a GC only removes the chain of its own network.
    for number in 1..=12 {
        host.plugin.gc(&host.node, &network(&host, number), &[]).unwrap().ok().unwrap();
    }
    host.plugin.gc(&host.node, &in_use, &[(pod.id(), "eth0")]).unwrap().ok().unwrap();
    assert_eq!(network_chains(&host), 1, "expected only the chain of the network with a pod");
    assert_eq!(observed_source(&pod, &out, ip(OUT[0])), ip(NODE[0]));
    // The next ADD creates a removed chain again.
    let (late, _) = host.attached("late", &network(&host, 3));
    assert_eq!(observed_source(&late, &out, ip(OUT[1])), ip(NODE[1]));
}

/// An IPAM plugin that assigns 10.88.0.2/32, then .3/32 and so on, like the plugins of some clouds.
const SINGLE_ADDRESS_IPAM: &str = r#"#!/bin/sh
[ "$CNI_COMMAND" = ADD ] || exit 0
n=$(($(cat "${0%/*}/count" 2>/dev/null || echo 1) + 1))
echo $n >"${0%/*}/count"
echo "{\"cniVersion\": \"1.1.0\", \"ips\": [{\"address\": \"10.88.0.$n/32\", \"gateway\": \"10.88.0.1\"}, {\"address\": \"fd00:88::$n/128\", \"gateway\": \"fd00:88::1\"}]}"
"#;

#[test]
fn e19_pods_with_host_prefixes_share_a_chain() {
    let host = Host::new("e19-singles");
    let dir = host.node.dir().join("cni");
    std::fs::create_dir(&dir).unwrap();
    let path = dir.join("singles").display().to_string();
    let write = format!("cat >{path} && chmod 755 {path}");
    assert!(host.node.run(&["sh", "-c", &write], SINGLE_ADDRESS_IPAM.as_bytes()).unwrap().success());
    let config = host.config(&json!({"ipam": {"type": "singles"}, "mode": "routed", "ipMasq": true}));
    let cni_path = ("CNI_PATH".to_owned(), dir.display().to_string());
    for name in ["a", "b", "c"] {
        let pod = host.pod(name);
        let call = Call { env: vec![cni_path.clone()], ..Call::pod(Verb::Add, &pod, &config) };
        host.plugin.call(&host.node, &call).unwrap().ok().unwrap();
        assert_eq!(network_chains(&host), 1, "{name}");
    }
}

fn published(config: &Value, port: u16) -> Value {
    let ports = [json!({"hostPort": port, "containerPort": 80, "protocol": "tcp"})];
    with(config, &json!({"runtimeConfig": {"portMappings": ports}}))
}

#[test]
fn pain15_the_next_add_restores_all_pods_after_a_flush() {
    for mode in MODES {
        let host = Host::new("flush");
        let out = outside(&host, &[]);
        let blue = host.config(&json!({"subnet": DUAL, "mode": mode, "ipMasq": true}));
        let red =
            with(&blue, &json!({"name": "red", "bridge": "pw1", "subnet": "10.99.0.0/24,fd00:99::/64"}));
        let first = published(&blue, 8080);
        let (a, ra) = host.attached("a", &first);
        let (r, rr) = host.attached("r", &red);
        let (removed, _) = host.attached("removed", &blue);
        host.node.sh(&["nft", "flush", "ruleset"]).unwrap();
        host.del(&removed, &blue);
        host.check(&a, &first, &ra).expect_err("CHECK succeeds after the flush");
        // The new pod must not get the host port of a restored pod.
        let late = host.pod("late");
        let error = host.refused(&late, &published(&blue, 8080));
        assert!(error.msg.contains("8080") && error.msg.contains(&v4(&ra).to_string()), "{mode}: {error:?}");
        host.add(&late, &blue);
        host.check(&a, &first, &ra).unwrap();
        host.check(&r, &red, &rr).unwrap();
        let _echo = Transport::Tcp.serve(&a, (v4(&ra), 80).into());
        let source = Transport::Tcp.probe(&out, (ip(NODE[0]), 8080).into(), DEADLINE);
        assert_eq!(source, Some(ip(OUT[0])), "{mode}");
        for pod in [&a, &r] {
            assert_eq!(observed_source(pod, &out, ip(OUT[1])), ip(NODE[1]), "{mode}");
        }
        host.plugin.status(&host.node, &blue).unwrap().ok().unwrap();
    }
}

/// A wrapper of nft that lists the sets with the pods' sources right after the first transaction.
const NFT_WRAPPER: &str = r#"#!/bin/sh
PATH=$PATH:/usr/sbin:/sbin:/usr/local/sbin
PATH=${PATH#*:}
nft "$@" || exit
[ -e "${0%/*}/after" ] || { nft list set inet podwire source4; nft list set inet podwire source6; } >"${0%/*}/after"
"#;

#[test]
fn f7_rules_of_another_version_are_replaced_without_losing_pods() {
    for verb in [Verb::Add, Verb::Status] {
        let host = Host::new("f7-version");
        let config = host.config(&json!({"subnet": DUAL, "mode": "routed", "ipMasq": true}));
        let red = with(
            &config,
            &json!({"name": "red", "bridge": "pw1", "subnet": "10.99.0.0/24,fd00:99::/64", "mode": "bridge"}),
        );
        let running = ["a", "b"].map(|name| host.attached(name, &config));
        let (neighbour, on_bridge) = host.attached("r", &red);
        // The tables of an older version, which had different sets.
        let old = "flush chain inet podwire from-pod; flush chain inet podwire from-pod6; \
            flush chain inet podwire from-pod-icmp6; delete set inet podwire source4; \
            delete set inet podwire source6; delete element inet podwire revision { 1 }; \
            add element inet podwire revision { 1 : 0x7 }";
        host.node.sh(&["nft", old]).unwrap();
        let dir = host.node.dir().join("wrapper");
        std::fs::create_dir(&dir).unwrap();
        let path = dir.join("nft").display().to_string();
        let write = format!("cat >{path} && chmod 755 {path}");
        assert!(host.node.run(&["sh", "-c", &write], NFT_WRAPPER.as_bytes()).unwrap().success());
        let search_path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
        let late = host.pod("late");
        let env = vec![("PATH".to_owned(), search_path)];
        let call = Call { env, ..Call::pod(verb, &late, &config) };
        let outcome = host.plugin.call(&host.node, &call).unwrap();
        match verb {
            Verb::Add => drop(outcome.ok().unwrap()),
            _ => assert_eq!(outcome.error().unwrap().code, 51),
        }
        let after = std::fs::read_to_string(dir.join("after")).unwrap();
        for (pod, result) in &running {
            for ip in ips(result) {
                assert!(after.contains(&format!(" . {ip} . ")), "{verb:?}: {ip} in {after}");
            }
            host.check(pod, &config, result).unwrap();
        }
        host.check(&neighbour, &red, &on_bridge).unwrap();
    }
}

#[test]
fn e17_status_is_51_after_a_flush_and_repairs_the_tables() {
    for mode in MODES {
        let host = Host::new("e17flush");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode, "ipMasq": true}));
        let (pod, result) = host.attached("a", &config);
        let status = || host.plugin.status(&host.node, &config).unwrap();
        status().ok().unwrap();
        host.node.sh(&["nft", "flush", "ruleset"]).unwrap();
        let error = status().error().unwrap();
        assert_eq!(error.code, 51, "{mode}: {error:?}");
        assert!(error.msg.contains("podwire") && error.msg.contains("repaired"), "{mode}: {error:?}");
        // A runtime sends no ADD after 51, so STATUS itself repairs the tables.
        status().ok().unwrap();
        host.check(&pod, &config, &result).unwrap();
        // Flushed rules of a single chain are repaired, too.
        host.node.sh(&["nft", "flush", "chain", "inet", "podwire", "nat-postrouting"]).unwrap();
        let error = status().error().unwrap();
        assert_eq!((error.code, error.details.as_str()), (51, "FirewallDrift"), "{mode}: {error:?}");
        status().ok().unwrap();
        host.check(&pod, &config, &result).unwrap();
    }
}

#[test]
fn e18_a_host_ip_of_a_family_without_pod_address_is_refused() {
    for (subnet, host_ip, pod_family) in [
        ("fd00:88::/64", "192.0.2.1", "IPv6"),
        ("10.88.0.0/24", "2001:db8::1", "IPv4"),
        ("fd00:88::/64", "0.0.0.0", "IPv6"),
    ] {
        let host = Host::new("hostport-family");
        let before = Snapshot::of(&host.node).unwrap();
        let ports = BOTH.map(|transport| {
            let protocol = format!("{transport:?}").to_lowercase();
            json!({"hostPort": 8080, "containerPort": 80, "protocol": protocol, "hostIP": host_ip})
        });
        let config = host.config(&json!({"subnet": subnet, "runtimeConfig": {"portMappings": ports}}));
        let pod = host.pod("a");
        let error = host.refused(&pod, &config);
        assert_eq!(error.code, 7, "{host_ip}: {error:?}");
        for word in ["8080", host_ip, pod_family] {
            assert!(error.msg.contains(word), "{word} is not in {error:?}");
        }
        before.expect_same(&host.node).unwrap();
    }
}

#[test]
fn two_networks_with_the_same_subnet_share_no_address() {
    for mode in MODES {
        let host = Host::new("twice");
        let blue = host.config(&json!({"subnet": DUAL, "mode": mode, "ipMasq": true}));
        let (a, ra) = host.attached("a", &blue);
        let red = with(&blue, &json!({"name": "red", "bridge": "pw1"}));
        let pod = host.pod("r");
        let before = Snapshot::of(&host.node).unwrap();
        let error = host.refused(&pod, &red);
        assert_eq!(error.code, 101, "{mode}: {error:?}");
        assert!(
            error.msg.contains(&ips(&ra)[0].to_string()) && error.msg.contains("blue"),
            "{mode}: {error:?}"
        );
        before.expect_same(&host.node).unwrap();
        host.del(&pod, &red);
        host.check(&a, &blue, &ra).unwrap();
        // After the first pod is removed, its address can be assigned.
        host.del(&a, &blue);
        host.add(&pod, &red);
    }
}
