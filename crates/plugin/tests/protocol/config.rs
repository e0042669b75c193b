//! The network config: versions, case of keys, and ignored keys.

use serde_json::{Value, json};
use testkit::{Call, Verb};

use crate::common::{Host, ips, nets, with, with_previous};
use crate::watch::{Watch, dual, refused_with};

const VERBS: [Verb; 5] = [Verb::Add, Verb::Del, Verb::Check, Verb::Gc, Verb::Status];

#[test]
fn e5_invalid_and_unsupported_versions_are_refused() {
    let host = Host::new("e5");
    let pod = host.pod("a");
    let watch = Watch::on(&host, &[&pod]);
    let cases: [(Value, u32, &[&str]); 7] = [
        (json!("0.0.9"), 1, &["\"0.0.9\"", "0.1.0", "1.1.0"]),
        (json!("2.0.0"), 1, &["\"2.0.0\""]),
        (json!("1.1"), 1, &["\"1.1\""]),
        (json!("newest"), 1, &["\"newest\""]),
        (json!(1.1), 6, &["cniVersion", "1.1"]),
        (json!(["1.1.0"]), 6, &["cniVersion"]),
        (json!(true), 6, &["cniVersion"]),
    ];
    for (version, code, words) in cases {
        let config = dual(&host, &json!({"cniVersion": version}));
        for verb in VERBS {
            let outcome = host.plugin.call(&host.node, &Call::pod(verb, &pod, &config)).unwrap();
            refused_with(&format!("{} {version}", verb.as_str()), &outcome, (code, words));
        }
    }
    watch.expect_same("unsupported versions");
}

#[test]
fn e5_commands_that_a_version_does_not_define_are_code_1() {
    let host = Host::new("e5verbs");
    let pod = host.pod("a");
    let cases = [
        (Verb::Check, ["0.1.0", "0.2.0", "0.3.0", "0.3.1"].as_slice()),
        (Verb::Gc, &["0.1.0", "0.4.0", "1.0.0"]),
        (Verb::Status, &["0.1.0", "0.4.0", "1.0.0"]),
    ];
    for (verb, versions) in cases {
        for version in versions {
            let config = dual(&host, &json!({"cniVersion": version, "cni.dev/valid-attachments": []}));
            let outcome = host.plugin.call(&host.node, &Call::pod(verb, &pod, &config)).unwrap();
            refused_with(verb.as_str(), &outcome, (1, &["config version does not allow", verb.as_str()]));
            assert_eq!(
                outcome.json().unwrap()["cniVersion"],
                *version,
                "the error has another version than the request"
            );
        }
    }
}

#[test]
fn e5_an_absent_version_means_0_1_0() {
    let host = Host::new("e5absent");
    for (name, version) in [("a", None), ("b", Some("")), ("c", Some("0.1.0"))] {
        let mut config = dual(&host, &json!({"cniVersion": null}));
        if let Some(version) = version {
            config["cniVersion"] = json!(version);
        }
        let (_pod, result) = host.attached(name, &config);
        assert_eq!(result["cniVersion"], "0.1.0");
        assert!(result["ip4"]["ip"].is_string() && result["ip6"]["ip"].is_string(), "{result}");
    }
}

#[test]
fn e6_keys_are_case_insensitive() {
    let host = Host::new("e6case");
    let config = json!({
        "CNIVERSION": "1.0.0", "Name": "blue", "TYPE": "podwire-cni", "BRIDGE": "pw7", "Subnet": "10.7.0.0/24",
        "ISGATEWAY": true, "IpMASQ": true, "Mtu": 1400, "RUNdir": host.node.run_dir(),
        "LOGfile": host.node.log_file(), "DNS": {"NameServers": ["10.7.0.1"]},
        "RuntimeConfig": {"IPS": ["10.7.0.9"], "Mac": "02:11:22:33:44:55"},
    });
    let (pod, result) = host.attached("a", &config);
    assert_eq!(result["cniVersion"], "1.0.0");
    assert_eq!(result["interfaces"][0]["name"], "pw7");
    assert_eq!(result["interfaces"][2]["mac"], "02:11:22:33:44:55");
    assert_eq!(nets(&result), ["10.7.0.9/24"]);
    assert_eq!(result["dns"], json!({"nameservers": ["10.7.0.1"]}));
    assert_eq!(testkit::inspect::link(&pod, "eth0").unwrap().mtu, 1400);
    host.del(&pod, &config);
}

#[test]
fn e6_null_is_absent_in_every_field() {
    let host = Host::new("e6null");
    let pod = host.pod("a");
    // Without runDir and logFile: their defaults are paths of the host.
    let top = [
        "args",
        "bandwidth",
        "capabilities",
        "dns",
        "mtu",
        "mode",
        "network",
        "rangeStart",
        "rangeEnd",
        "gateway",
        "exclude",
        "isGateway",
        "isDefaultGateway",
        "ipMasq",
        "hairpinMode",
        "promiscMode",
        "forceAddress",
        "spoofCheck",
        "macspoofchk",
        "prevResult",
        "runtimeConfig",
        "vlan",
        "vlanTrunk",
        "agent",
        "ipam",
        "cniVersions",
    ];
    let mut config = dual(&host, &json!({}));
    for key in top {
        config[key] = Value::Null;
    }
    let result = host.plugin.add(&pod, &config).unwrap().ok().unwrap();
    assert_eq!(ips(&result).len(), 2);
    host.del(&pod, &config);
    config["dns"] = json!({"nameservers": null, "domain": null, "search": null, "options": null});
    config["args"] = json!({"cni": {"ips": null, "mac": null}});
    config["runtimeConfig"] = json!({
        "portMappings": null, "bandwidth": null, "ips": null, "mac": null, "dns": null, "ipRanges": null,
        "aliases": null, "cgroupPath": null,
    });
    config["ipam"] = json!({
        "type": null, "subnet": "10.88.0.0/24", "ranges": null, "routes": null, "rangeStart": null, "rangeEnd": null,
        "gateway": null, "exclude": null, "dataDir": null, "resolvConf": null,
    });
    let result = host.plugin.add(&pod, &config).unwrap().ok().unwrap();
    assert_eq!((ips(&result).len(), &result["dns"]), (1, &json!({})));
    host.plugin.check(&pod, &config, &result).unwrap().ok().unwrap();
    host.del(&pod, &config);
}

#[test]
fn e6_keys_for_other_plugins_are_ignored() {
    let host = Host::new("e6unknown");
    let config = dual(
        &host,
        &json!({
            "args": {"cni": {"labels": [{"key": "a", "value": "b"}]}, "other": [1]},
            "capabilities": {"portMappings": true, "io.kubernetes.cri.pod-annotations": true},
            "runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"a": "b"}, "infinibandGUID": "x", "deviceID": 5},
            "dns": {}, "cniVersions": ["1.0.0", "1.1.0"], "disableCheck": true, "disableGC": false,
            "x-vendor": {"deep": [{"er": null}]},
        }),
    );
    let (pod, result) = host.attached("a", &config);
    assert_eq!(result["dns"], json!({}));
    host.check(&pod, &config, &result).unwrap();
    host.plugin.status(&host.node, &config).unwrap().ok().unwrap();
    host.del(&pod, &with_previous(&config, &result));
}

#[test]
fn e7_error_objects_have_the_requests_version() {
    let host = Host::new("e7");
    let pod = host.pod("a");
    for version in ["0.1.0", "0.3.1", "1.0.0", "1.1.0"] {
        let config = with(&dual(&host, &json!({})), &json!({"cniVersion": version, "vlan": 5}));
        let outcome = host.plugin.add(&pod, &config).unwrap();
        refused_with(version, &outcome, (2, &["vlan", "5"]));
        assert_eq!(outcome.json().unwrap()["cniVersion"], version);
    }
    // If the version is unknown or not supported, the error has the newest supported version.
    for stdin in [
        b"{".to_vec(),
        json!({"cniVersion": "9.0.0", "name": "n", "logFile": host.node.log_file()}).to_string().into_bytes(),
    ] {
        let outcome =
            host.plugin.call(&host.node, &Call { stdin, ..Call::pod(Verb::Add, &pod, &json!({})) }).unwrap();
        assert_eq!(outcome.json().unwrap()["cniVersion"], "1.1.0");
    }
}
