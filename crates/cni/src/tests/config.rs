use serde_json::json;

use super::{add, assert_refused, bytes, config, env_for};
use crate::{Dns, ErrorCode, NetworkConfig, Request, Version};

#[test]
fn e6_unknown_keys_are_ignored() {
    let call = add(&json!({
        "args": { "labels": [{ "key": "a" }], "cni": { "labels": [] } },
        "capabilities": { "portMappings": true },
        "runtimeConfig": { "infinibandGUID": "x", "somethingNew": { "a": [1] } },
        "dns": {}, "ipam": {}, "type": null, "prevResult": null, "unknownKey": [[]],
    }))
    .unwrap();
    assert!(call.config.dns.is_empty());
    assert_eq!((call.config.ipam_type, call.config.prev_result), (None, None));
    assert_eq!(call.config.plugin_type, "");
}

#[test]
fn e6_null_is_accepted_for_every_field() {
    for key in [
        "args",
        "capabilities",
        "runtimeConfig",
        "dns",
        "ipam",
        "prevResult",
        "type",
        "bandwidth",
        "ingressRate",
    ] {
        assert!(add(&json!({ key: null })).is_ok(), "{key}");
    }
    for key in ["portMappings", "bandwidth", "ips", "mac", "dns", "ipRanges", "aliases", "cgroupPath"] {
        assert!(add(&json!({ "runtimeConfig": { key: null } })).is_ok(), "{key}");
    }
    assert!(add(&json!({ "args": { "cni": null } })).is_ok());
    assert!(add(&json!({ "args": { "cni": { "ips": null, "mac": null } } })).is_ok());
    assert!(
        add(&json!({ "dns": { "nameservers": null, "domain": null, "search": null, "options": null } }))
            .is_ok()
    );
    assert!(add(&json!({ "ipam": { "type": null } })).is_ok());
}

#[test]
fn e6_keys_are_case_insensitive() {
    let stdin =
        json!({ "CniVersion": "0.4.0", "NAME": "net", "Type": "t", "IPAM": { "TYPE": "host-local" } });
    let Ok(Request::Add(call)) = Request::parse(&env_for("ADD"), &bytes(&stdin)) else { panic!("no ADD") };
    assert_eq!(call.config.version, Version::V0_4_0);
    assert_eq!((call.config.name.as_str(), call.config.plugin_type.as_str()), ("net", "t"));
    assert_eq!(call.config.ipam_type.as_deref(), Some("host-local"));
}

#[test]
fn e6_the_last_value_of_a_duplicate_key_wins() {
    let config = NetworkConfig::from_slice(br#"{"cniVersion":"1.1.0","name":"a","name":"b"}"#).unwrap();
    assert_eq!(config.name.as_str(), "b");
}

#[test]
fn e6_type_errors_name_the_path() {
    for (extra, message) in [
        (json!({ "type": 1 }), "type: expected a string, found 1"),
        (json!({ "ipam": "x" }), "ipam: expected an object, found \"x\""),
        (json!({ "ipam": { "type": [] } }), "ipam.type: expected a string, found a list"),
        (json!({ "dns": { "search": [7] } }), "dns.search[0]: expected a string, found 7"),
        (json!({ "args": { "cni": 7 } }), "args.cni: expected an object, found 7"),
        (json!({ "runtimeConfig": [] }), "runtimeConfig: expected an object, found a list"),
        (json!({ "prevResult": 7 }), "prevResult: expected an object, found 7"),
    ] {
        assert_refused(&extra, ErrorCode::Decode, &[message]);
    }
}

#[test]
fn e11_dns_of_the_runtime_precedes_dns_of_the_network() {
    let network = json!({ "nameservers": ["1.1.1.1"], "domain": "a", "search": ["b"], "options": ["c"] });
    let network_dns = Dns {
        nameservers: vec!["1.1.1.1".into()],
        domain: Some("a".into()),
        search: vec!["b".into()],
        options: vec!["c".into()],
    };
    let call = add(&json!({ "dns": network, "runtimeConfig": { "dns": {} } })).unwrap();
    assert_eq!(call.config.result_dns(), &network_dns);
    let runtime = json!({ "dns": { "servers": ["2.2.2.2"], "searches": ["x"], "options": ["y"] } });
    let call = add(&json!({ "dns": network, "runtimeConfig": runtime })).unwrap();
    let runtime_dns = Dns {
        nameservers: vec!["2.2.2.2".into()],
        domain: None,
        search: vec!["x".into()],
        options: vec!["y".into()],
    };
    assert_eq!(call.config.result_dns(), &runtime_dns);
}

#[test]
fn e11_prev_result_is_parsed_in_the_configs_version() {
    let old = json!({ "cniVersion": "0.2.0", "name": "n", "prevResult": { "ip4": { "ip": "10.0.0.2/24" } } });
    let config = NetworkConfig::from_slice(&bytes(&old)).unwrap();
    assert_eq!(config.prev_result.unwrap().ips[0].address.to_string(), "10.0.0.2/24");
    assert_refused(
        &json!({ "prevResult": { "ips": [{ "address": "10.0.0.2/24" }, { "address": "x" }] } }),
        ErrorCode::InvalidConfig,
        &["prevResult.ips[1].address", "\"x\""],
    );
}

#[test]
fn e19_a_delegate_gets_stdin_unchanged() {
    let stdin = b" {\"name\" : \"n\",\"cniVersion\":\"1.0.0\",  \"ipam\":{\"type\":\"dhcp\"}} \n";
    let config = NetworkConfig::from_slice(stdin).unwrap();
    assert_eq!((config.raw.as_slice(), config.ipam_type.as_deref()), (&stdin[..], Some("dhcp")));
}

#[test]
fn keys_of_the_plugin_are_available() {
    let call = add(&json!({ "bridge": "br0" })).unwrap();
    assert_eq!(call.config.obj().str("bridge").unwrap(), Some("br0"));
    assert_eq!(serde_json::Value::Object(call.config.map), config(&json!({ "bridge": "br0" })));
}
