//! Results of ADD in all versions, and failed ADDs.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use testkit::{Call, Verb, inspect};

use crate::common::{Host, host_link, ips, nets, with, with_previous};
use crate::watch::{BRIDGE, Watch, dual, refused_with};

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn set<'a>(names: &[&'a str]) -> BTreeSet<&'a str> {
    names.iter().copied().collect()
}

/// A config with settings that only newer versions have in their results.
fn full_config(host: &Host, version: &str) -> Value {
    host.config(&json!({
        "cniVersion": version, "mtu": 1400, "isGateway": true,
        "dns": {"nameservers": ["10.88.0.1"], "domain": "x.test", "search": ["y.test"], "options": ["ndots:2"]},
        "ipam": {"ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]], "routes": [
            {"dst": "0.0.0.0/0"}, {"dst": "::/0"},
            {"dst": "10.9.0.0/16", "gw": "10.88.0.1", "mtu": 1300, "advmss": 1200, "priority": 50, "table": 254, "scope": 0},
        ]},
    }))
}

#[test]
fn e10_results_of_0_1_and_0_2_have_one_address_per_family() {
    let host = Host::new("e10old");
    for (name, version) in [("a", "0.1.0"), ("b", "0.2.0")] {
        let (_pod, result) = host.attached(name, &full_config(&host, version));
        assert_eq!(result["cniVersion"], version);
        assert_eq!(keys(&result), set(&["cniVersion", "dns", "ip4", "ip6"]));
        for (family, gateway, default) in [("ip4", "10.88.0.1", "0.0.0.0/0"), ("ip6", "fd00:88::1", "::/0")] {
            let ip = &result[family];
            assert_eq!(keys(ip), set(&["ip", "gateway", "routes"]));
            assert_eq!(ip["gateway"], gateway);
            assert_eq!(ip["routes"][0], json!({"dst": default, "gw": gateway}));
        }
        assert_eq!(result["ip4"]["routes"][1], json!({"dst": "10.9.0.0/16", "gw": "10.88.0.1"}));
        assert_eq!(result["dns"]["domain"], "x.test");
    }
}

#[test]
fn e10_results_since_0_3_have_only_fields_of_their_version() {
    let host = Host::new("e10");
    let (link, ip, route) =
        (set(&["name", "mac"]), set(&["address", "gateway", "interface"]), set(&["dst", "gw"]));
    for (name, version) in [("a", "0.3.0"), ("b", "0.3.1"), ("c", "0.4.0"), ("d", "1.0.0"), ("e", "1.1.0")] {
        let (pod, result) = host.attached(name, &full_config(&host, version));
        assert_eq!(result["cniVersion"], version);
        assert_eq!(keys(&result), set(&["cniVersion", "dns", "interfaces", "ips", "routes"]), "{version}");
        let newest = version == "1.1.0";
        for (index, interface) in result["interfaces"].as_array().unwrap().iter().enumerate() {
            let mut expected = link.clone();
            expected.extend(newest.then_some("mtu"));
            expected.extend((index == 2).then_some("sandbox"));
            assert_eq!(keys(interface), expected, "{version}: {interface}");
        }
        for (address, family) in result["ips"].as_array().unwrap().iter().zip(["4", "6"]) {
            let mut expected = ip.clone();
            if version.starts_with("0.") {
                expected.insert("version");
                assert_eq!(address["version"], family, "{version}");
            }
            assert_eq!(keys(address), expected, "{version}: {address}");
        }
        let routes = result["routes"].as_array().unwrap();
        assert_eq!(routes.len(), 3, "{version}");
        let special = routes.iter().find(|r| r["dst"] == "10.9.0.0/16").unwrap();
        if newest {
            let expected = json!({"dst": "10.9.0.0/16", "gw": "10.88.0.1", "mtu": 1300, "advmss": 1200, "priority": 50,
                "table": 254, "scope": 0});
            assert_eq!(*special, expected);
            assert_eq!(result["interfaces"][2]["mtu"], 1400);
        } else {
            assert!(routes.iter().all(|r| keys(r) == route), "{version}: {routes:?}");
        }
        host.del(&pod, &with_previous(&full_config(&host, version), &result));
    }
}

/// The sandbox is the unchanged CNI_NETNS. All other fields of the interfaces match the kernel.
#[test]
fn e11_the_result_lists_bridge_host_end_and_pod_end() {
    let host = Host::new("e11");
    let config = dual(&host, &json!({"dns": {"nameservers": ["10.88.0.1"], "search": ["x.test"]}}));
    let pod = host.pod("a");
    let path = format!("/run/../run/netns//{}", pod.name());
    let add = Call { netns: Some(path.clone()), ..Call::pod(Verb::Add, &pod, &config) };
    let result = host.plugin.call(&host.node, &add).unwrap().ok().unwrap();
    let interfaces = result["interfaces"].as_array().unwrap();
    let names: Vec<_> = interfaces.iter().map(|i| i["name"].as_str().unwrap()).collect();
    assert_eq!(names, [BRIDGE, host_link(&result), "eth0"]);
    let sandboxes: Vec<_> = interfaces.iter().map(|i| i["sandbox"].as_str().unwrap_or_default()).collect();
    assert_eq!(sandboxes, ["", "", path.as_str()]);
    for (interface, ns) in interfaces.iter().zip([&*host.node, &host.node, &pod]) {
        let link = inspect::link(ns, interface["name"].as_str().unwrap()).unwrap();
        assert_eq!(
            (interface["mac"].as_str(), interface["mtu"].as_u64()),
            (link.mac.as_deref(), Some(link.mtu.into()))
        );
    }
    for ip in result["ips"].as_array().unwrap() {
        assert_eq!(ip["interface"], 2);
    }
    let addresses: Vec<_> =
        inspect::addresses(&pod, "eth0").unwrap().iter().map(|a| a.net.to_string()).collect();
    assert!(nets(&result).iter().all(|net| addresses.iter().any(|a| a == net)), "{result} {addresses:?}");
    assert_eq!(result["dns"], json!({"nameservers": ["10.88.0.1"], "search": ["x.test"]}));
}

#[test]
fn e11_dns_of_the_runtime_precedes_dns_of_the_network() {
    let host = Host::new("e11dns");
    let dns = json!({"servers": ["10.0.0.53"], "searches": ["pod.test"], "options": ["ndots:5"]});
    let config = dual(&host, &json!({"dns": {"nameservers": ["10.88.0.1"]}, "runtimeConfig": {"dns": dns}}));
    let (_pod, result) = host.attached("a", &config);
    let expected = json!({"nameservers": ["10.0.0.53"], "search": ["pod.test"], "options": ["ndots:5"]});
    assert_eq!(result["dns"], expected);
}

/// In a chain, Podwire appends its interfaces and addresses to the previous result.
#[test]
fn e11_a_previous_result_is_kept_and_extended() {
    let host = Host::new("e11chain");
    let before = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "net1", "mac": "02:00:00:00:00:01", "sandbox": "/x", "socketPath": "/s"}],
        "ips": [{"address": "192.0.2.5/24", "gateway": "192.0.2.1", "interface": 0}],
        "routes": [{"dst": "198.51.100.0/24", "gw": "192.0.2.1", "mtu": 1400}],
        "dns": {"nameservers": ["192.0.2.53"]},
    });
    let config = with_previous(&dual(&host, &json!({})), &before);
    let (pod, result) = host.attached("a", &config);
    assert_eq!(result["interfaces"][0], before["interfaces"][0]);
    assert_eq!(result["ips"][0], before["ips"][0]);
    assert_eq!(result["routes"][0], before["routes"][0]);
    assert_eq!(result["dns"], before["dns"]);
    assert_eq!(result["interfaces"].as_array().unwrap().len(), 4);
    let added = &result["ips"].as_array().unwrap()[1..];
    assert_eq!(added.len(), 2);
    for ip in added {
        let index = usize::try_from(ip["interface"].as_u64().unwrap()).unwrap();
        assert_eq!(result["interfaces"][index]["name"], "eth0");
    }
    host.del(&pod, &with_previous(&config, &result));
}

/// The kernel rejects one of the last steps of each ADD.
#[test]
fn b11_a_partially_failed_add_is_undone() {
    let host = Host::new("b11");
    let config = dual(&host, &json!({}));
    let ports = json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]});
    let (running, _) = host.attached("a", &with(&config, &json!({"runtimeConfig": ports})));
    let ranges = json!([[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]]);
    let route = |route: Value| json!({"subnet": null, "ipam": {"ranges": ranges, "routes": [route]}});
    let cases = [
        (
            "a scope that is invalid for a gateway",
            route(json!({"dst": "10.9.0.0/16", "gw": "10.88.0.1", "scope": 254})),
            "10.9.0.0/16",
        ),
        ("a gateway inside the pod", route(json!({"dst": "10.9.0.0/16", "gw": "127.0.0.1"})), "10.9.0.0/16"),
        ("no gateway for IPv6", route(json!({"dst": "fd09::/64", "gw": "ff02::1"})), "fd09::/64"),
        ("a host port in use", json!({"runtimeConfig": ports}), "8080"),
    ];
    for (number, (case, extra, word)) in cases.into_iter().enumerate() {
        let (pod, config) = (host.pod(&format!("p{number}")), with(&config, &extra));
        let watch = Watch::on(&host, &[&running, &pod]);
        refused_with(case, &host.plugin.add(&pod, &config).unwrap(), (103, &[word]));
        watch.expect_same(case);
        host.del(&pod, &config);
        watch.expect_same(&format!("DEL after {case}"));
    }
    let (_next, result) = host.attached("next", &config);
    assert_eq!(ips(&result).len(), 2);
}

/// In mode `routed`, another program may have a route to the requested address.
#[test]
fn b11_an_add_with_a_conflicting_host_route_is_undone() {
    let host = Host::new("b11routed");
    let config = dual(&host, &json!({"mode": "routed"}));
    let (running, first) = host.attached("a", &config);
    host.node.sh(&["ip", "link", "add", "other", "up", "type", "bridge"]).unwrap();
    for next in ["10.88.0.3/32", "fd00:88::3/128"] {
        host.node.sh(&["ip", "route", "add", next, "dev", "other"]).unwrap();
        let pod = host.pod(&next.replace(['.', ':', '/'], "-"));
        let watch = Watch::on(&host, &[&running, &pod]);
        let requested = next.split('/').next().unwrap();
        let call = Call { args: Some(format!("IP={requested}")), ..Call::pod(Verb::Add, &pod, &config) };
        refused_with(next, &host.plugin.call(&host.node, &call).unwrap(), (101, &[requested, "link other"]));
        watch.expect_same(next);
        host.del(&pod, &config);
        watch.expect_same("DEL");
        host.node.sh(&["ip", "route", "del", next, "dev", "other"]).unwrap();
        let result = host.plugin.call(&host.node, &call).unwrap().ok().unwrap();
        assert!(ips(&result).iter().all(|ip| !ips(&first).contains(ip)));
        host.del(&pod, &config);
    }
}
