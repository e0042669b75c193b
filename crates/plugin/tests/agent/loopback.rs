//! podwire-cni under the name `loopback`, beside the reference's plugin of that name.

use std::os::unix::fs::symlink;

use serde_json::{Value, json};
use testkit::{Call, Ns, Outcome, Plugin, Pod, Verb};

use crate::common::{Host, with, with_previous};
use crate::watch::refused_with;

/// What containerd asks, before version 2.0.
fn config(version: &str) -> Value {
    json!({"cniVersion": version, "name": "cni-loopback", "type": "loopback"})
}

fn ours(host: &Host) -> Plugin {
    let path = host.lab.dir().join("loopback");
    symlink(&host.plugin.path, &path).unwrap();
    Plugin { path }
}

fn call(plugin: &Plugin, verb: Verb, pod: &Pod, config: &Value) -> Outcome {
    let call = Call { ifname: Some("lo".to_owned()), ..Call::pod(verb, pod, config) };
    plugin.call(pod.node(), &call).unwrap()
}

fn is_up(ns: &Ns) -> bool {
    let links = ns.json(&["ip", "-j", "link", "show", "dev", "lo"]).unwrap();
    links[0]["flags"].as_array().unwrap().contains(&json!("UP"))
}

#[test]
fn loopback_is_up_after_add_and_down_after_del_as_the_reference_does() {
    let host = Host::new("lo");
    let reference = testkit::reference_plugin("loopback").unwrap();
    let (ours, pod) = (ours(&host), host.pod("a"));
    for plugin in [&ours, &reference] {
        pod.sh(&["ip", "link", "set", "lo", "down"]).unwrap();
        call(plugin, Verb::Add, &pod, &config("1.0.0")).ok().unwrap();
        assert!(is_up(&pod));
        assert!(
            pod.sh(&["ping", "-c1", "-W2", "127.0.0.1"]).is_ok()
                && pod.sh(&["ping", "-c1", "-W2", "::1"]).is_ok()
        );
        assert_eq!(call(plugin, Verb::Del, &pod, &config("1.0.0")).ok().unwrap(), Value::Null);
        assert!(!is_up(&pod));
    }
}

/// The reference's own words, but for two mistakes of its: lists in 0.1 and 0.2, and no family in 0.3 and 0.4.
#[test]
fn e10_loopback_answers_as_the_reference_in_every_version() {
    let host = Host::new("loversions");
    let reference = testkit::reference_plugin("loopback").unwrap();
    let (ours, pod) = (ours(&host), host.pod("a"));
    for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0"] {
        let config = config(version);
        let mut expected = call(&reference, Verb::Add, &pod, &config).ok().unwrap();
        if version < "1" {
            expected["ips"][0]["version"] = json!("4");
            expected["ips"][1]["version"] = json!("6");
        }
        assert_eq!(call(&ours, Verb::Add, &pod, &config).ok().unwrap(), expected, "{version}");
    }
    let newest = call(&ours, Verb::Add, &pod, &config("1.1.0")).ok().unwrap();
    let mut expected = call(&reference, Verb::Add, &pod, &config("1.0.0")).ok().unwrap();
    expected["cniVersion"] = json!("1.1.0");
    assert_eq!(newest, expected);
    for version in ["0.1.0", "0.2.0"] {
        let result = call(&ours, Verb::Add, &pod, &config(version)).ok().unwrap();
        assert_eq!((&result["ip4"]["ip"], &result["ip6"]["ip"]), (&json!("127.0.0.1/8"), &json!("::1/128")));
    }
}

#[test]
fn e11_loopback_in_a_chain_passes_the_result_on() {
    let host = Host::new("lochain");
    let reference = testkit::reference_plugin("loopback").unwrap();
    let (ours, pod) = (ours(&host), host.pod("a"));
    let previous = json!({
        "cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "/x"}],
        "ips": [{"address": "10.0.0.2/24", "interface": 0}],
    });
    let config = with_previous(&config("1.0.0"), &previous);
    let expected = call(&reference, Verb::Add, &pod, &config).ok().unwrap();
    pod.sh(&["ip", "link", "set", "lo", "down"]).unwrap();
    assert_eq!(call(&ours, Verb::Add, &pod, &config).ok().unwrap(), expected);
    assert!(is_up(&pod));
}

#[test]
fn loopback_check_sees_a_link_that_is_down() {
    let host = Host::new("locheck");
    let (ours, pod) = (ours(&host), host.pod("a"));
    let result = call(&ours, Verb::Add, &pod, &config("1.0.0")).ok().unwrap();
    let config = with_previous(&config("1.0.0"), &result);
    call(&ours, Verb::Check, &pod, &config).ok().unwrap();
    pod.sh(&["ip", "link", "set", "lo", "down"]).unwrap();
    refused_with("down", &call(&ours, Verb::Check, &pod, &config), (105, &["lo", "down"]));
}

#[test]
fn e14_loopback_del_succeeds_without_the_namespace() {
    let host = Host::new("logone");
    let (ours, pod) = (ours(&host), host.pod("a"));
    let config = config("1.0.0");
    let without = Call { ifname: Some("lo".into()), netns: None, ..Call::pod(Verb::Del, &pod, &config) };
    ours.call(&host.node, &without).unwrap().ok().unwrap();
    pod.destroy_but_leave_file().unwrap();
    call(&ours, Verb::Del, &pod, &config).ok().unwrap();
    refused_with("ADD", &call(&ours, Verb::Add, &pod, &config), (3, &[pod.netns_path().to_str().unwrap()]));
}

/// Not the machine's own: a DEL would cut off everything that talks to itself.
#[test]
fn e8_loopback_leaves_the_nodes_own_link_alone() {
    let host = Host::new("loown");
    let (ours, pod) = (ours(&host), host.pod("a"));
    let on_node = |verb| Call {
        ifname: Some("lo".to_owned()),
        netns: Some(host.node.path().display().to_string()),
        ..Call::pod(verb, &pod, &config("1.0.0"))
    };
    assert!(is_up(&host.node));
    ours.call(&host.node, &on_node(Verb::Del)).unwrap().ok().unwrap();
    assert!(is_up(&host.node));
    refused_with("ADD", &ours.call(&host.node, &on_node(Verb::Add)).unwrap(), (4, &["own namespace"]));
}

#[test]
fn loopback_answers_the_other_verbs() {
    let host = Host::new("loverbs");
    let ours = ours(&host);
    let version = ours.version(&host.node).unwrap().ok().unwrap();
    assert!(version["supportedVersions"].as_array().unwrap().contains(&json!("0.1.0")));
    let config = with(&config("1.1.0"), &json!({"agent": "/nowhere"}));
    ours.status(&host.node, &config).unwrap().ok().unwrap();
    ours.gc(&host.node, &config, &[]).unwrap().ok().unwrap();
}
