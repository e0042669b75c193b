use serde_json::{Value, json};

use super::{add, assert_refused};
use types::Protocol;

use crate::{Bandwidth, Error, ErrorCode, PortMapping, RuntimeConfig};

fn runtime(value: &Value) -> Result<RuntimeConfig, Error> {
    add(&json!({ "runtimeConfig": value })).map(|call| call.config.runtime)
}

#[track_caller]
fn assert_runtime_refused(value: &Value, texts: &[&str]) {
    assert_refused(&json!({ "runtimeConfig": value }), ErrorCode::InvalidConfig, texts);
}

#[test]
fn e18_all_keys_of_the_conventions_are_parsed() {
    let runtime = runtime(&json!({
        "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "udp", "hostIP": "192.0.2.1" }],
        "bandwidth": { "ingressRate": 1, "ingressBurst": 2, "egressRate": 3, "egressBurst": 4 },
        "ips": ["10.0.0.5", "fd00::5/64"],
        "mac": "02:42:ac:11:00:02",
        "ipRanges": [[{ "subnet": "10.0.0.0/24" }]],
        "aliases": ["db"],
        "cgroupPath": "/kubepods/x",
    }))
    .unwrap();
    let mapping = runtime.port_mappings[0];
    assert_eq!((mapping.host_port, mapping.container_port, mapping.protocol), (8080, 80, Protocol::Udp));
    assert_eq!(mapping.host_ip, Some("192.0.2.1".parse().unwrap()));
    let limits = Bandwidth { ingress_rate: 1, ingress_burst: 2, egress_rate: 3, egress_burst: 4 };
    assert_eq!(runtime.bandwidth, Some(limits));
    assert_eq!((runtime.ips[0].prefix, runtime.ips[1].prefix), (None, Some(64)));
    assert_eq!(runtime.mac.unwrap().to_string(), "02:42:ac:11:00:02");
    assert_eq!(runtime.ip_ranges, Some(json!([[{ "subnet": "10.0.0.0/24" }]])));
    assert_eq!(
        (runtime.aliases, runtime.cgroup_path.as_deref()),
        (vec!["db".to_owned()], Some("/kubepods/x"))
    );
}

#[test]
fn e18_ports_without_a_host_port_are_ignored() {
    let runtime = runtime(&json!({ "portMappings": [
        { "hostPort": 0, "containerPort": 80 },
        { "containerPort": 80 },
        { "hostPort": 1, "containerPort": 65535 },
        { "hostPort": 2, "containerPort": 1, "protocol": "", "hostIP": "" },
        { "hostPort": 3, "containerPort": 1, "protocol": "TCP", "hostIP": "::1" },
        { "hostPort": 4, "containerPort": 1, "protocol": "Sctp", "hostIP": "0.0.0.0" },
        { "HostPort": 5, "ContainerPort": 1, "hostip": "::ffff:192.0.2.1" },
    ] }))
    .unwrap();
    let ip = |text: &str| Some(text.parse().unwrap());
    let fields = |m: &PortMapping| (m.host_ip, m.host_port, m.container_port, m.protocol);
    assert_eq!(
        runtime.port_mappings.iter().map(fields).collect::<Vec<_>>(),
        [
            (None, 1, 65535, Protocol::Tcp),
            (None, 2, 1, Protocol::Tcp),
            (ip("::1"), 3, 1, Protocol::Tcp),
            (ip("0.0.0.0"), 4, 1, Protocol::Sctp),
            (ip("192.0.2.1"), 5, 1, Protocol::Tcp),
        ]
    );
}

#[test]
fn e18_invalid_port_mappings_are_refused() {
    for (mapping, texts) in [
        (json!({ "hostPort": 65536, "containerPort": 80 }), ["hostPort", "65536"]),
        (json!({ "hostPort": -1, "containerPort": 80 }), ["hostPort", "-1"]),
        (json!({ "hostPort": 1.5, "containerPort": 80 }), ["hostPort", "1.5"]),
        (json!({ "hostPort": 80, "containerPort": 0 }), ["containerPort", "found 0"]),
        (json!({ "hostPort": 80, "containerPort": 70000 }), ["containerPort", "70000"]),
        (json!({ "hostPort": 80 }), ["containerPort", "missing"]),
        (json!({ "hostPort": 80, "containerPort": 80, "protocol": "icmp" }), ["protocol", "icmp"]),
        (json!({ "hostPort": 80, "containerPort": 80, "hostIP": "host" }), ["hostIP", "\"host\""]),
    ] {
        let path = format!("runtimeConfig.portMappings[1].{}", texts[0]);
        let good = json!({ "hostPort": 80, "containerPort": 80 });
        assert_runtime_refused(&json!({ "portMappings": [good, mapping] }), &[&path, texts[1]]);
    }
    assert_refused(
        &json!({ "runtimeConfig": { "portMappings": [{ "hostPort": "80" }] } }),
        ErrorCode::Decode,
        &["runtimeConfig.portMappings[0].hostPort: expected a whole number, found \"80\""],
    );
}

#[test]
fn e18_bandwidth_of_the_runtime_precedes_the_config() {
    let limits = |extra: Value| add(&extra).unwrap().config.runtime.bandwidth;
    let limit_of = |rate: u64| json!({ "ingressRate": rate, "ingressBurst": rate });
    let ingress =
        |rate| Some(Bandwidth { ingress_rate: rate, ingress_burst: rate, egress_rate: 0, egress_burst: 0 });
    assert_eq!(
        limits(json!({ "runtimeConfig": { "bandwidth": limit_of(1) }, "bandwidth": limit_of(2) })),
        ingress(1)
    );
    assert_eq!(limits(json!({ "bandwidth": limit_of(2), "ingressRate": 3, "ingressBurst": 3 })), ingress(2));
    assert_eq!(limits(json!({ "ingressRate": 3, "ingressBurst": 3 })), ingress(3));
    assert_eq!(
        limits(json!({ "runtimeConfig": { "bandwidth": limit_of(0) }, "bandwidth": limit_of(2) })),
        ingress(2)
    );
    assert_eq!(limits(json!({ "runtimeConfig": { "bandwidth": {} } })), None);
    assert_eq!(limits(json!({ "runtimeConfig": { "bandwidth": limit_of(0) }, "bandwidth": {} })), None);
    // The burst that CRI-O sends.
    let largest = u64::from(u32::MAX) * 8 - 1;
    assert_eq!(limits(json!({ "bandwidth": limit_of(largest) })), ingress(largest));
}

#[test]
fn e18_invalid_bandwidth_limits_are_refused() {
    for (limits, texts) in [
        (json!({ "ingressRate": 5 }), ["bandwidth.ingressRate is 5", "ingressBurst"]),
        (json!({ "egressBurst": 5 }), ["bandwidth.egressBurst is 5", "egressRate"]),
        (json!({ "egressRate": -5 }), ["bandwidth.egressRate", "-5"]),
        (
            json!({ "egressRate": 5, "egressBurst": 34_359_738_360_u64 }),
            ["bandwidth.egressBurst", "34359738360"],
        ),
    ] {
        assert_runtime_refused(&json!({ "bandwidth": limits }), &texts);
        assert_refused(&json!({ "bandwidth": limits }), ErrorCode::InvalidConfig, &texts);
    }
    assert_refused(
        &json!({ "bandwidth": { "unshapedSubnets": ["10.0.0.0/8"] } }),
        ErrorCode::UnsupportedField,
        &["bandwidth.unshapedSubnets[0]", "10.0.0.0/8"],
    );
    assert!(add(&json!({ "bandwidth": { "unshapedSubnets": [], "shapedSubnets": [] } })).is_ok());
}

#[test]
fn e18_invalid_requested_addresses_and_macs_are_refused() {
    for bad in ["", "x", "10.0.0.256", "10.0.0.5/33", "10.0.0.5/", "fd00::5/129", "::ffff:10.0.0.5/64"] {
        assert_runtime_refused(&json!({ "ips": ["10.0.0.4", bad] }), &["runtimeConfig.ips[1]", bad]);
    }
    for bad in ["x", "01:00:5e:00:00:01", "00:00:00:00:00:00"] {
        assert_runtime_refused(&json!({ "mac": bad }), &["runtimeConfig.mac", bad]);
    }
    assert_eq!(runtime(&json!({ "mac": "" })).unwrap().mac, None);
    let mapped = runtime(&json!({ "ips": ["::ffff:10.0.0.5", "::ffff:10.0.0.6/120"] })).unwrap().ips;
    let shown: Vec<_> = mapped.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["10.0.0.5", "10.0.0.6/24"]);
}
