//! podwire-cni executed as `loopback`, compared with the reference plugin of that name.

use std::os::unix::fs::symlink;

use serde_json::{Value, json};
use testkit::{Call, Ns, Outcome, Plugin, Pod, Verb};

use crate::common::{Host, with, with_previous};
use crate::watch::refused_with;

/// The config that containerd before 2.0 uses.
fn config(version: &str) -> Value {
    json!({"cniVersion": version, "name": "cni-loopback", "type": "loopback"})
}

fn podwire_loopback(host: &Host) -> Plugin {
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
fn loopback_is_up_after_add_and_down_after_del() {
    let host = Host::new("lo");
    let reference = testkit::reference_plugin("loopback").unwrap();
    let (podwire, pod) = (podwire_loopback(&host), host.pod("a"));
    for plugin in [&podwire, &reference] {
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

/// Except for two bugs of the reference plugin: it writes lists in 0.1 and 0.2, and no family in 0.3 and 0.4.
#[test]
fn e10_loopback_results_equal_those_of_the_reference_plugin() {
    let host = Host::new("loversions");
    let reference = testkit::reference_plugin("loopback").unwrap();
    let (podwire, pod) = (podwire_loopback(&host), host.pod("a"));
    for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0"] {
        let config = config(version);
        let mut expected = call(&reference, Verb::Add, &pod, &config).ok().unwrap();
        if version < "1" {
            expected["ips"][0]["version"] = json!("4");
            expected["ips"][1]["version"] = json!("6");
        }
        assert_eq!(call(&podwire, Verb::Add, &pod, &config).ok().unwrap(), expected, "{version}");
    }
    let newest = call(&podwire, Verb::Add, &pod, &config("1.1.0")).ok().unwrap();
    let mut expected = call(&reference, Verb::Add, &pod, &config("1.0.0")).ok().unwrap();
    expected["cniVersion"] = json!("1.1.0");
    assert_eq!(newest, expected);
    for version in ["0.1.0", "0.2.0"] {
        let result = call(&podwire, Verb::Add, &pod, &config(version)).ok().unwrap();
        assert_eq!((&result["ip4"]["ip"], &result["ip6"]["ip"]), (&json!("127.0.0.1/8"), &json!("::1/128")));
    }
}

#[test]
fn e11_loopback_in_a_chain_returns_the_previous_result() {
    let host = Host::new("lochain");
    let reference = testkit::reference_plugin("loopback").unwrap();
    let (podwire, pod) = (podwire_loopback(&host), host.pod("a"));
    let previous = json!({
        "cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "/x"}],
        "ips": [{"address": "10.0.0.2/24", "interface": 0}],
    });
    let config = with_previous(&config("1.0.0"), &previous);
    let expected = call(&reference, Verb::Add, &pod, &config).ok().unwrap();
    pod.sh(&["ip", "link", "set", "lo", "down"]).unwrap();
    assert_eq!(call(&podwire, Verb::Add, &pod, &config).ok().unwrap(), expected);
    assert!(is_up(&pod));
}

#[test]
fn loopback_check_fails_if_lo_is_down() {
    let host = Host::new("locheck");
    let (podwire, pod) = (podwire_loopback(&host), host.pod("a"));
    let result = call(&podwire, Verb::Add, &pod, &config("1.0.0")).ok().unwrap();
    let config = with_previous(&config("1.0.0"), &result);
    call(&podwire, Verb::Check, &pod, &config).ok().unwrap();
    pod.sh(&["ip", "link", "set", "lo", "down"]).unwrap();
    refused_with("down", &call(&podwire, Verb::Check, &pod, &config), (105, &["lo", "down"]));
}

#[test]
fn e14_loopback_del_succeeds_without_the_namespace() {
    let host = Host::new("logone");
    let (podwire, pod) = (podwire_loopback(&host), host.pod("a"));
    let config = config("1.0.0");
    let without = Call { ifname: Some("lo".into()), netns: None, ..Call::pod(Verb::Del, &pod, &config) };
    podwire.call(&host.node, &without).unwrap().ok().unwrap();
    pod.destroy_but_leave_file().unwrap();
    call(&podwire, Verb::Del, &pod, &config).ok().unwrap();
    refused_with(
        "ADD",
        &call(&podwire, Verb::Add, &pod, &config),
        (3, &[pod.netns_path().to_str().unwrap()]),
    );
}

/// A DEL that sets the node's own `lo` down would break all local connections.
#[test]
fn e8_loopback_does_not_change_the_nodes_own_link() {
    let host = Host::new("loown");
    let (podwire, pod) = (podwire_loopback(&host), host.pod("a"));
    let on_node = |verb| Call {
        ifname: Some("lo".to_owned()),
        netns: Some(host.node.path().display().to_string()),
        ..Call::pod(verb, &pod, &config("1.0.0"))
    };
    assert!(is_up(&host.node));
    podwire.call(&host.node, &on_node(Verb::Del)).unwrap().ok().unwrap();
    assert!(is_up(&host.node));
    refused_with("ADD", &podwire.call(&host.node, &on_node(Verb::Add)).unwrap(), (4, &["own namespace"]));
}

#[test]
fn loopback_answers_version_status_and_gc() {
    let host = Host::new("loverbs");
    let podwire = podwire_loopback(&host);
    let version = podwire.version(&host.node).unwrap().ok().unwrap();
    assert!(version["supportedVersions"].as_array().unwrap().contains(&json!("0.1.0")));
    let config = with(&config("1.1.0"), &json!({"agent": "/nowhere"}));
    podwire.status(&host.node, &config).unwrap().ok().unwrap();
    podwire.gc(&host.node, &config, &[]).unwrap().ok().unwrap();
}
