use serde_json::{Value, json};
use testkit::{Call, Verb};

use crate::common::{Host, group_web, has};

fn kernel_checks(host: &Host, attachment: &str) -> Vec<(String, String)> {
    let outcome = host.ask(&["attachment", "show", attachment, "-o", "json"]);
    let json: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let found: Vec<(String, String)> =
        json["kernel"].as_array().unwrap().iter().map(|f| (text(&f["state"]), text(&f["object"]))).collect();
    let is_missing = found.iter().any(|(state, _)| state == "missing");
    assert_eq!(outcome.status.code(), Some(i32::from(is_missing)), "{}{}", outcome.stdout, outcome.stderr);
    found
}

#[test]
fn an_attachment_is_shown_with_record_and_kernel_state() {
    for mode in ["routed", "bridge"] {
        let host = Host::new("show");
        let agent = host.agent(&["--no-install", "--network-mode", mode]);
        let pod = host.node.pod("a").unwrap();
        // Mode bridge has no groups.
        let group = if mode == "routed" { "web" } else { "" };
        host.apply(&[group_web()]);
        host.plugin.add(&pod, &agent.config(&json!({ "group": group }))).unwrap().ok().unwrap();
        let outcome = host.ask(&["attachment", "show", &pod.id()[..pod.id().len() - 2]]);
        assert!(outcome.success(), "{}", outcome.stderr);
        let netns = pod.netns_path().display().to_string();
        let wanted = [
            pod.id(),
            "10.83.0.2/",
            "fd00:88::2/",
            "via 10.83.0.1",
            group,
            mode,
            &netns,
            "spoof check  on",
            "KERNEL",
        ];
        has(&outcome.stdout, &wanted);
        assert!(
            !outcome.stdout.contains("MISSING") && !outcome.stdout.contains("unknown"),
            "{}",
            outcome.stdout
        );
        let all = kernel_checks(&host, pod.id());
        assert!(all.len() >= 10 && all.iter().all(|(state, _)| state == "ok"), "{mode}: {all:?}");

        // Without the agent the address is not restored during the check.
        drop(agent);
        pod.sh(&["ip", "addr", "del", "10.83.0.2/16", "dev", "eth0"])
            .or_else(|_| pod.sh(&["ip", "addr", "del", "10.83.0.2/32", "dev", "eth0"]))
            .unwrap();
        let missing: Vec<String> = kernel_checks(&host, pod.id())
            .into_iter()
            .filter(|(state, _)| state == "missing")
            .map(|(_, object)| object)
            .collect();
        assert!(missing.iter().any(|object| object.starts_with("address 10.83.0.2/")), "{mode}: {missing:?}");
        assert!(!missing.iter().any(|object| object.contains("fd00:88::2")), "{mode}: {missing:?}");
        pod.destroy().unwrap();
        has(&host.ask(&["attachment", "show", pod.id()]).stdout, &["MISSING  namespace "]);
    }
}

#[test]
fn a_pod_or_a_unique_prefix_selects_an_attachment() {
    let host = Host::new("prefix");
    let (one, two) = (host.node.pod("a").unwrap(), host.node.pod("b").unwrap());
    let add = |pod, container: &str, ifname: &str| {
        let call = Call::pod(Verb::Add, pod, &host.standalone());
        let call = Call { container: Some(container.to_owned()), ifname: Some(ifname.to_owned()), ..call };
        host.plugin.call(&host.node, &call).unwrap().ok().unwrap();
    };
    add(&one, "abc1", "eth0");
    add(&one, "abc1", "eth1");
    add(&two, "abc12", "eth0");
    let call = Call {
        args: Some("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=abc".to_owned()),
        ..Call::pod(Verb::Add, &two, &host.standalone())
    };
    let call = Call { container: Some("def".to_owned()), ifname: Some("eth2".to_owned()), ..call };
    host.plugin.call(&host.node, &call).unwrap().ok().unwrap();
    let show = |attachment: &str| host.ask(&["attachment", "show", attachment]);
    // The name of a pod has precedence over the first characters of an ID.
    for pod in ["abc", "shop/abc", "abc/eth2", "shop/abc/eth2"] {
        has(&show(pod).stdout, &["container    def\n", "interface    eth2", "pod          shop/abc"]);
    }
    has(&show("ab").stderr, &["is ambiguous", "abc1/eth0", "abc1/eth1", "abc12/eth0", "ID/IFNAME"]);
    has(&show("abc12").stdout, &["container    abc12"]);
    // An exact ID has precedence over a prefix.
    let outcome = show("abc1/eth0");
    has(&outcome.stdout, &["container    abc1\n", "interface    eth0"]);
    has(&show("abc1/eth1").stdout, &["interface    eth1"]);
    let none = show("xyz");
    assert!(!none.success());
    has(&none.stderr, &["\"xyz\"", "'podwire pods -o wide'"]);
}

/// In both modes, with and without an agent.
#[test]
fn b16_host_ports_and_bandwidth_limits_are_shown() {
    for (mode, standalone) in [("routed", false), ("bridge", false), ("routed", true), ("bridge", true)] {
        let host = Host::new("rates");
        let agent = (!standalone).then(|| host.agent(&["--no-install", "--network-mode", mode]));
        let mut config = agent.as_ref().map_or_else(|| host.standalone(), |agent| agent.config(&json!({})));
        config["mode"] = json!(mode);
        let port = |port: u16, ip: Option<&str>| json!({ "hostPort": port, "containerPort": 80, "protocol": "tcp", "hostIP": ip.unwrap_or_default() });
        config["runtimeConfig"] = json!({
            "portMappings": [port(8080, Some("127.0.0.1")), port(8081, Some("2001:db8::7")), port(8082, None)],
            "bandwidth": { "ingressRate": 10_000_000, "ingressBurst": 1_500_000 },
        });
        let pod = host.node.pod("a").unwrap();
        host.plugin.add(&pod, &config).unwrap().ok().unwrap();
        let shown = host.ask(&["attachment", "show", pod.id()]).stdout;
        has(&shown, &["127.0.0.1:8080/tcp to 80", "[2001:db8::7]:8081/tcp to 80", "*:8082/tcp to 80"]);
        has(&shown, &["receives up to 10 Mbit/s, burst 1500 kbit", "sends without limit"]);
    }
}
