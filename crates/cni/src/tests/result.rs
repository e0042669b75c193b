use serde_json::{Value, json};

use crate::{CniResult, Dns, ErrorCode, Interface, IpConfig, PodRoute, Version};

/// A result with every field, and with two addresses of one family.
fn full() -> CniResult {
    let ip = |address: &str, gateway: Option<&str>, interface| IpConfig {
        address: address.parse().unwrap(),
        gateway: gateway.map(|g| g.parse().unwrap()),
        interface,
    };
    let route =
        |dst: &str, gw: Option<&str>| PodRoute::new(dst.parse().unwrap(), gw.map(|g| g.parse().unwrap()));
    CniResult {
        interfaces: vec![
            Interface { name: "br0".into(), mac: Some("02:00:00:00:00:01".into()), ..Interface::default() },
            Interface {
                name: "eth0".into(),
                mac: Some("02:00:00:00:00:02".into()),
                mtu: Some(1450),
                sandbox: Some("/run/netns/x".into()),
                socket_path: Some("/run/s".into()),
                pci_id: Some("0000:00:01.0".into()),
            },
        ],
        ips: vec![
            ip("10.0.0.2/24", Some("10.0.0.1"), Some(1)),
            ip("fd00::2/64", Some("fd00::1"), Some(1)),
            ip("10.0.0.3/24", None, None),
        ],
        routes: vec![
            PodRoute {
                mtu: Some(1400),
                advmss: Some(1360),
                priority: Some(10),
                table: Some(100),
                scope: Some(0),
                ..route("0.0.0.0/0", Some("10.0.0.1"))
            },
            route("::/0", None),
        ],
        dns: Dns {
            nameservers: vec!["10.0.0.1".into()],
            domain: Some("d".into()),
            search: vec!["s".into()],
            options: vec!["o".into()],
        },
    }
}

fn dns() -> Value {
    json!({ "nameservers": ["10.0.0.1"], "domain": "d", "search": ["s"], "options": ["o"] })
}

#[test]
fn e10_results_have_the_format_of_0_1_and_0_2() {
    for version in [Version::V0_1_0, Version::V0_2_0] {
        let expected = json!({
            "cniVersion": version.as_str(),
            "ip4": { "ip": "10.0.0.2/24", "gateway": "10.0.0.1", "routes": [{ "dst": "0.0.0.0/0", "gw": "10.0.0.1" }] },
            "ip6": { "ip": "fd00::2/64", "gateway": "fd00::1", "routes": [{ "dst": "::/0" }] },
            "dns": dns(),
        });
        assert_eq!(full().to_json(version), expected);
    }
}

#[test]
fn e10_results_have_the_format_of_0_3_to_0_4() {
    for version in [Version::V0_3_0, Version::V0_3_1, Version::V0_4_0] {
        let expected = json!({
            "cniVersion": version.as_str(),
            "interfaces": [
                { "name": "br0", "mac": "02:00:00:00:00:01" },
                { "name": "eth0", "mac": "02:00:00:00:00:02", "sandbox": "/run/netns/x" },
            ],
            "ips": [
                { "version": "4", "address": "10.0.0.2/24", "gateway": "10.0.0.1", "interface": 1 },
                { "version": "6", "address": "fd00::2/64", "gateway": "fd00::1", "interface": 1 },
                { "version": "4", "address": "10.0.0.3/24" },
            ],
            "routes": [{ "dst": "0.0.0.0/0", "gw": "10.0.0.1" }, { "dst": "::/0" }],
            "dns": dns(),
        });
        assert_eq!(full().to_json(version), expected);
    }
}

#[test]
fn e10_results_have_the_format_of_1_0() {
    let expected = json!({
        "cniVersion": "1.0.0",
        "interfaces": [
            { "name": "br0", "mac": "02:00:00:00:00:01" },
            { "name": "eth0", "mac": "02:00:00:00:00:02", "sandbox": "/run/netns/x" },
        ],
        "ips": [
            { "address": "10.0.0.2/24", "gateway": "10.0.0.1", "interface": 1 },
            { "address": "fd00::2/64", "gateway": "fd00::1", "interface": 1 },
            { "address": "10.0.0.3/24" },
        ],
        "routes": [{ "dst": "0.0.0.0/0", "gw": "10.0.0.1" }, { "dst": "::/0" }],
        "dns": dns(),
    });
    assert_eq!(full().to_json(Version::V1_0_0), expected);
}

#[test]
fn e10_results_have_the_format_of_1_1() {
    let mut expected = full().to_json(Version::V1_0_0);
    expected["cniVersion"] = json!("1.1.0");
    expected["interfaces"][1]["mtu"] = json!(1450);
    expected["interfaces"][1]["socketPath"] = json!("/run/s");
    expected["interfaces"][1]["pciID"] = json!("0000:00:01.0");
    let route_fields = json!({ "mtu": 1400, "advmss": 1360, "priority": 10, "table": 100, "scope": 0 });
    for (key, value) in route_fields.as_object().unwrap() {
        expected["routes"][0][key] = value.clone();
    }
    assert_eq!(full().to_json(Version::V1_1_0), expected);
}

#[test]
fn e10_an_empty_result_has_version_and_dns() {
    for version in Version::ALL {
        let empty = CniResult::default().to_json(version);
        assert_eq!(empty, json!({ "cniVersion": version.as_str(), "dns": {} }));
        assert_eq!(CniResult::from_json(version, &empty), Ok(CniResult::default()));
    }
}

#[test]
fn e11_results_of_other_plugins_may_lack_any_field() {
    for (value, ips, routes) in [
        (json!({}), 0, 0),
        (json!({ "interfaces": null, "ips": null, "routes": null, "dns": null }), 0, 0),
        (json!({ "ips": [{}, null, { "address": "10.0.0.2/24", "interface": -1, "gateway": "" }] }), 1, 0),
        (json!({ "routes": [{}, null, { "dst": "10.0.0.0/8", "gw": "" }] }), 0, 1),
        (json!({ "ip4": { "ip": "10.0.0.2/24" } }), 1, 0),
        (json!({ "ip4": {}, "ip6": { "ip": "fd00::2/64", "routes": [{ "dst": "::/0" }] } }), 1, 1),
        (json!({ "IPs": [{ "Version": "4", "Address": "10.0.0.2/24", "Interface": 9 }] }), 1, 0),
    ] {
        for version in Version::ALL {
            let result = CniResult::from_json(version, &value).unwrap();
            assert_eq!((result.ips.len(), result.routes.len()), (ips, routes), "{version} {value}");
        }
    }
    let result =
        CniResult::from_json(Version::LATEST, &json!({ "interfaces": [null, {}, { "name": "a" }] })).unwrap();
    assert_eq!(result.interfaces.len(), 3, "addresses refer to interfaces by index");
    assert_eq!(result.interfaces[2].name, "a");
}

#[test]
fn e11_the_version_decides_between_two_formats() {
    let both = json!({ "ip4": { "ip": "10.0.0.2/24" }, "ips": [{ "address": "10.0.0.3/24" }] });
    let first = |version| CniResult::from_json(version, &both).unwrap().ips[0].address.to_string();
    assert_eq!(first(Version::V0_2_0), "10.0.0.2/24");
    assert_eq!(first(Version::V0_3_0), "10.0.0.3/24");
}

#[test]
fn e11_invalid_fields_of_results_are_refused() {
    for (value, code, message) in [
        (json!([]), ErrorCode::Decode, "expected an object, found a list"),
        (json!({ "ips": {} }), ErrorCode::Decode, "ips: expected a list, found an object"),
        (json!({ "ips": [7] }), ErrorCode::Decode, "ips[0]: expected an object, found 7"),
        (
            json!({ "ips": [{ "address": "10.0.0.2" }] }),
            ErrorCode::InvalidConfig,
            "ips[0].address: expected ",
        ),
        (
            json!({ "ips": [{ "address": "10.0.0.2/8", "gateway": "x" }] }),
            ErrorCode::InvalidConfig,
            "ips[0].gateway: expected ",
        ),
        (json!({ "routes": [{ "dst": "::/200" }] }), ErrorCode::InvalidConfig, "routes[0].dst: expected "),
        (json!({ "ip4": { "ip": "x" } }), ErrorCode::InvalidConfig, "ip4.ip: expected "),
        (
            json!({ "interfaces": [{ "name": 7 }] }),
            ErrorCode::Decode,
            "interfaces[0].name: expected a string, found 7",
        ),
    ] {
        let error = CniResult::from_json(Version::LATEST, &value).unwrap_err();
        assert_eq!(error.code, code, "{error}");
        assert!(error.msg.starts_with(message), "{error}");
    }
}

#[test]
fn e15_routes_keep_host_bits_and_compare_without_them() {
    let route = |dst: &str| PodRoute::new(dst.parse().unwrap(), None);
    assert_eq!(route("10.0.0.5/8"), route("10.9.9.9/8"));
    assert_ne!(route("10.0.0.0/8"), route("10.0.0.0/9"));
    assert_ne!(route("::/0"), route("0.0.0.0/0"));
    let result = CniResult { routes: vec![route("10.0.0.5/8")], ..CniResult::default() };
    assert_eq!(result.to_json(Version::LATEST)["routes"][0]["dst"], "10.0.0.5/8");
}
