//! Requested settings of a pod: addresses, MAC, DNS, MTU and routes (E18). `datapath` tests host ports and bandwidth.

use std::net::IpAddr;

use serde_json::{Value, json};
use testkit::inspect::{self, Family};
use testkit::{Call, Verb};

use crate::common::{DUAL, Host, MODES, host_link, ips, v4, with, words};

fn parsed(ips: [&str; 2]) -> [IpAddr; 2] {
    ips.map(|ip| ip.parse().unwrap())
}

const MAC: &str = "02:11:22:33:44:55";

/// The same request in CNI_ARGS, in `args.cni` and in `runtimeConfig`.
fn request_variants(key: &str, value: &Value, text: &str) -> [(&'static str, Option<String>, Value); 3] {
    let arg = if key == "mac" { "MAC" } else { "IP" };
    [
        ("CNI_ARGS", Some(format!("IgnoreUnknown=1;{arg}={text};K8S_POD_NAME=web")), json!({})),
        ("args.cni", None, json!({"args": {"cni": {key: value}}})),
        ("runtimeConfig", None, json!({"runtimeConfig": {key: value}})),
    ]
}

#[test]
fn e18_a_mac_can_be_requested_through_three_sources() {
    for mode in MODES {
        for (source, args, extra) in request_variants("mac", &json!(MAC), MAC) {
            let host = Host::new("e18-mac");
            let config = host.config(&with(&json!({"subnet": DUAL, "mode": mode}), &extra));
            let pod = host.pod("a");
            let call = Call { args, ..Call::pod(Verb::Add, &pod, &config) };
            let result = host.plugin.call(&host.node, &call).unwrap().ok().unwrap();
            assert_eq!(result["interfaces"][2]["mac"], MAC, "{mode} {source}");
            assert_eq!(inspect::link(&pod, "eth0").unwrap().mac.as_deref(), Some(MAC), "{mode} {source}");
            host.check(&pod, &config, &result).unwrap();
        }
    }
}

#[test]
fn e18_addresses_can_be_requested_through_three_sources() {
    for mode in MODES {
        for (source, args, extra) in request_variants("ips", &json!(["10.88.0.42"]), "10.88.0.42") {
            let host = Host::new("e18-ip");
            let config = host.config(&with(&json!({"subnet": DUAL, "mode": mode}), &extra));
            let pod = host.pod("a");
            let call = Call { args: args.clone(), ..Call::pod(Verb::Add, &pod, &config) };
            let result = host.plugin.call(&host.node, &call).unwrap().ok().unwrap();
            // The other family is allocated automatically.
            assert_eq!(ips(&result), parsed(["10.88.0.42", "fd00:88::2"]), "{mode} {source}");
            let other = host.pod("b");
            let call = Call { args, ..Call::pod(Verb::Add, &other, &config) };
            let error = host.plugin.call(&host.node, &call).unwrap().error().unwrap();
            assert_eq!(error.code, 101, "{mode} {source}: {error:?}");
            assert!(
                error.msg.contains("10.88.0.42") && error.msg.contains(pod.id()),
                "the error does not name address and holder: {}",
                error.msg
            );
        }
        let host = Host::new("e18-both");
        let both =
            json!({"subnet": DUAL, "mode": mode, "runtimeConfig": {"ips": ["10.88.0.9/24", "fd00:88::9"]}});
        let (_, result) = host.attached("a", &host.config(&both));
        assert_eq!(ips(&result), parsed(["10.88.0.9", "fd00:88::9"]));
    }
}

#[test]
fn e18_an_address_that_is_not_allocatable_is_refused() {
    let host = Host::new("e18-refused");
    for address in ["10.88.0.1", "10.88.0.0", "10.88.0.255", "10.99.0.2", "fd00:99::2"] {
        let config = host.config(&json!({"subnet": DUAL, "runtimeConfig": {"ips": [address]}}));
        let error = host.refused(&host.pod(&address.replace([':', '.'], "-")), &config);
        assert_eq!(error.code, 7, "{address}: {error:?}");
        assert!(error.msg.contains(address), "{address}: {}", error.msg);
    }
}

#[test]
fn e18_dns_of_the_runtime_precedes_dns_of_the_config() {
    let host = Host::new("e18-dns");
    let network_dns = json!({"nameservers": ["192.0.2.1"], "domain": "blue.local", "search": ["a.local"], "options": ["ndots:2"]});
    let config = host.config(&json!({"subnet": DUAL, "dns": network_dns}));
    let (_, result) = host.attached("a", &config);
    assert_eq!(result["dns"], network_dns);
    let runtime = json!({"servers": ["192.0.2.53"], "searches": ["pod.local"], "options": ["ndots:5"]});
    let (_, result) = host.attached("b", &with(&config, &json!({"runtimeConfig": {"dns": runtime}})));
    assert_eq!(
        result["dns"],
        json!({"nameservers": ["192.0.2.53"], "search": ["pod.local"], "options": ["ndots:5"]})
    );
    let (_, result) = host.attached("c", &with(&config, &json!({"dns": {}})));
    assert_eq!(result["dns"], json!({}));
}

#[test]
fn e18_ip_ranges_of_the_runtime_are_used() {
    for mode in MODES {
        let host = Host::new("e18-ranges");
        let ranges = json!([
            [{"subnet": "10.77.0.0/24", "rangeStart": "10.77.0.50", "gateway": "10.77.0.254"}],
            [{"subnet": "fd00:77::/64", "rangeStart": "fd00:77::50"}]
        ]);
        let config = host.config(&json!({"mode": mode, "runtimeConfig": {"ipRanges": ranges}}));
        let (pod, result) = host.attached("a", &config);
        assert_eq!(ips(&result), parsed(["10.77.0.50", "fd00:77::50"]), "{mode}");
        assert_eq!(result["ips"][0]["gateway"], "10.77.0.254");
        let default =
            inspect::routes(&pod, Family::V4).unwrap().into_iter().find(|r| r.dst == "default").unwrap();
        assert_eq!(default.gateway, Some("10.77.0.254".parse().unwrap()), "{mode}");
        host.check(&pod, &config, &result).unwrap();
    }
}

#[test]
fn e18_unused_runtime_settings_are_ignored() {
    let host = Host::new("e18-unused");
    let config = host.config(&json!({
        "subnet": DUAL,
        "capabilities": {"portMappings": true, "aliases": true},
        "runtimeConfig": {
            "aliases": ["web", "www"], "cgroupPath": "/kubepods/pod1", "infinibandGUID": "x", "deviceID": null,
            "portMappings": [], "bandwidth": {}, "ips": null, "mac": null,
        },
    }));
    let (pod, result) = host.attached("a", &config);
    host.check(&pod, &config, &result).unwrap();
}

#[test]
fn e18_bridge_host_end_pod_and_result_have_the_mtu() {
    for mode in MODES {
        for (requested, expected) in [
            (json!(1400), 1400),
            (json!(9000), 9000),
            (json!(1280), 1280),
            (json!(0), 1500),
            (json!(null), 1500),
        ] {
            let host = Host::new("mtu");
            let config = host.config(&json!({"subnet": DUAL, "mode": mode, "mtu": requested}));
            let (pod, result) = host.attached("a", &config);
            let mtu = |ns, link: &str| inspect::link(ns, link).unwrap().mtu;
            let mtus = [mtu(&host.node, "pw0"), mtu(&host.node, host_link(&result)), mtu(&pod, "eth0")];
            assert_eq!(mtus, [expected; 3], "{mode} {requested}");
            for interface in result["interfaces"].as_array().unwrap() {
                assert_eq!(interface["mtu"], expected, "{mode} {requested}");
            }
        }
    }
}

#[test]
fn e18_routes_are_added_with_all_attributes() {
    for mode in MODES {
        let host = Host::new("routes");
        let config = host.config(&json!({"mode": mode, "ipam": {
            "ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]],
            "routes": [
                {"dst": "0.0.0.0/0"},
                {"dst": "192.0.2.0/24", "gw": "10.88.0.7", "mtu": 1300, "advmss": 1200, "priority": 77},
                {"dst": "198.51.100.0/24", "table": 100},
                {"dst": "2001:db8::/32", "gw": "fd00:88::7", "mtu": 1350, "priority": 78},
                {"dst": "2001:db8:1::/48", "table": 101},
                {"dst": "203.0.113.0/24", "scope": 253},
            ],
        }}));
        let (pod, result) = host.attached("a", &config);
        let shown =
            |line: &str| pod.sh(&words(line)).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        for (line, attributes) in [
            ("ip route show 0.0.0.0/0", &["via 10.88.0.1"][..]),
            ("ip route show 192.0.2.0/24", &["via 10.88.0.7", "metric 77", "mtu 1300", "advmss 1200"]),
            ("ip route show table 100", &["198.51.100.0/24 via 10.88.0.1"]),
            ("ip -6 route show 2001:db8::/32", &["via fd00:88::7", "metric 78", "mtu 1350"]),
            ("ip -6 route show table 101", &["2001:db8:1::/48 via fd00:88::1"]),
            ("ip route show 203.0.113.0/24", &["dev eth0", "scope link"]),
        ] {
            let output = shown(line);
            assert!(attributes.iter().all(|text| output.contains(text)), "{mode} `{line}`: {output:?}");
        }
        // The configured routes have no default route for IPv6.
        assert_eq!(shown("ip -6 route show default"), "", "{mode}");
        let routes = result["routes"].as_array().unwrap();
        let route_to = |dst: &str| routes.iter().find(|route| route["dst"] == dst).unwrap();
        let expected =
            json!({"dst": "192.0.2.0/24", "gw": "10.88.0.7", "mtu": 1300, "advmss": 1200, "priority": 77});
        assert_eq!(route_to("192.0.2.0/24"), &expected, "{mode}");
        assert_eq!(route_to("198.51.100.0/24")["table"], 100, "{mode}");
        host.check(&pod, &config, &result).unwrap();
        pod.sh(&words("ip route flush table 100")).unwrap();
        let error = host.check(&pod, &config, &result).unwrap_err();
        assert!(error.msg.contains("198.51.100.0/24"), "{mode}: {}", error.msg);
    }
}

#[test]
fn e15_check_detects_routes_with_another_table_or_metric() {
    let host = Host::new("e15-table");
    let config = host.config(&json!({"ipam": {
        "ranges": [[{"subnet": "10.88.0.0/24"}]],
        "routes": [{"dst": "198.51.100.0/24", "table": 100}, {"dst": "192.0.2.0/24", "priority": 77}],
    }}));
    let (pod, result) = host.attached("a", &config);
    for (lines, destination) in [
        (["ip route flush table 100", "ip route add 198.51.100.0/24 via 10.88.0.1"], "198.51.100.0/24"),
        (["ip route del 192.0.2.0/24", "ip route add 192.0.2.0/24 via 10.88.0.1 metric 5"], "192.0.2.0/24"),
    ] {
        for line in lines {
            pod.sh(&words(line)).unwrap();
        }
        let error = host.check(&pod, &config, &result).expect_err(destination);
        assert!(error.msg.contains(destination), "{}", error.msg);
    }
    assert_eq!(v4(&result).to_string(), "10.88.0.2");
}
