//! Property tests: no input causes a panic, and output can be parsed again.

use std::ffi::OsString;
use std::net::IpAddr;
use std::os::unix::ffi::OsStringExt;

use ipnet::IpNet;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Map, Value, json};

use super::{bytes, env_for};
use crate::{
    Args, AttachmentRequest, CniResult, Command, Dns, Env, Interface, IpConfig, NetworkConfig, PodRoute,
    Request, RequestedIp, Var, Version,
};

/// Keys and values of the protocol, so that random input passes the first checks.
const WORDS: &[&str] = &[
    "cniVersion",
    "name",
    "prevResult",
    "runtimeConfig",
    "portMappings",
    "hostPort",
    "containerPort",
    "hostIP",
    "bandwidth",
    "ingressRate",
    "ingressBurst",
    "ips",
    "ip4",
    "ip6",
    "ip",
    "address",
    "gateway",
    "interface",
    "interfaces",
    "routes",
    "dst",
    "gw",
    "dns",
    "nameservers",
    "args",
    "cni",
    "mac",
    "ipam",
    "type",
    "mtu",
    "table",
    "cni.dev/valid-attachments",
    "cni.dev/attachments",
    "containerID",
    "ifname",
    "1.1.0",
    "0.2.0",
    "10.0.0.2/24",
    "fd00::1",
    "::ffff:10.0.0.1/100",
    "02:42:ac:11:00:02",
    "tcp",
    "net",
    "",
];

fn word() -> impl Strategy<Value = String> {
    prop_oneof![8 => select(WORDS).prop_map(str::to_owned), 1 => any::<String>()]
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0u32..70_000).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        word().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 48, 6, |inner| {
        let object =
            vec((word(), inner.clone()), 0..6).prop_map(|pairs| Value::Object(pairs.into_iter().collect()));
        prop_oneof![3 => object, 1 => vec(inner, 0..4).prop_map(Value::from)]
    })
}

fn any_env() -> impl Strategy<Value = Env> {
    let command = select(Command::ALL.to_vec()).prop_map(|c| c.as_str().as_bytes().to_vec());
    let id = "[a-z0-9/.]{0,17}".prop_map(String::into_bytes);
    let args = vec((word(), word()), 0..3).prop_map(|pairs| {
        pairs.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(";").into_bytes()
    });
    let value = prop_oneof![id, args, vec(any::<u8>(), 0..12)];
    // A request with CNI_PODWIRE_DELEGATED is refused before the other variables are read.
    let vars: Vec<Var> = Var::ALL.into_iter().filter(|var| *var != Var::Delegated).collect();
    (option::weighted(0.9, command), vec((select(vars), value), 0..9)).prop_map(|(command, vars)| {
        let command = command.map(|c| (Var::Command, c));
        let all = command.into_iter().chain(vars);
        Env::from_vars(all.map(|(var, value)| (var.name().into(), OsString::from_vec(value))))
    })
}

/// A config with many keys, to be corrupted byte by byte.
fn rich_config() -> Vec<u8> {
    bytes(&json!({
        "cniVersion": "1.1.0", "name": "net", "type": "t", "ipam": { "type": "x" },
        "runtimeConfig": {
            "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "::1" }],
            "bandwidth": { "ingressRate": 1, "ingressBurst": 2 }, "ips": ["10.0.0.5/24"], "mac": "02:42:ac:11:00:02",
        },
        "prevResult": {
            "interfaces": [{ "name": "eth0", "mtu": 1500 }], "ips": [{ "address": "10.0.0.2/24", "interface": 0 }],
            "routes": [{ "dst": "0.0.0.0/0", "gw": "10.0.0.1", "table": 7 }], "dns": { "search": ["a"] },
        },
        "cni.dev/valid-attachments": [{ "containerID": "a", "ifname": "eth0" }],
    }))
}

fn text() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9/:. é]{1,12}"
}

fn any_net() -> impl Strategy<Value = IpNet> {
    (any::<IpAddr>(), 0u8..=128).prop_map(|(addr, prefix)| {
        let max_prefix = if addr.is_ipv4() { 32 } else { 128 };
        IpNet::new(addr, prefix.min(max_prefix)).unwrap()
    })
}

prop_compose! {
    fn any_interface()(
        name in text(), mac in option::of(text()), mtu in option::of(1..u32::MAX), sandbox in option::of(text()),
        socket_path in option::of(text()), pci_id in option::of(text()),
    ) -> Interface {
        Interface { name, mac, mtu, sandbox, socket_path, pci_id }
    }
}

prop_compose! {
    fn any_route()(
        dst in any_net(), gw in option::of(any::<IpAddr>()), positive in vec(option::of(1..u32::MAX), 3),
        table in option::of(any::<u32>()), scope in option::of(any::<u32>()),
    ) -> PodRoute {
        PodRoute { dst, gw, mtu: positive[0], advmss: positive[1], priority: positive[2], table, scope }
    }
}

prop_compose! {
    fn any_ip()(
        address in any_net(), gateway in option::of(any::<IpAddr>()), interface in option::of(0usize..9),
    ) -> IpConfig {
        IpConfig { address, gateway, interface }
    }
}

prop_compose! {
    fn any_result()(
        interfaces in vec(any_interface(), 0..4), ips in vec(any_ip(), 0..4), routes in vec(any_route(), 0..4),
        lists in vec(vec(text(), 0..3), 3), domain in option::of(text()),
    ) -> CniResult {
        let [nameservers, search, options] = <[Vec<String>; 3]>::try_from(lists).unwrap();
        CniResult { interfaces, ips, routes, dns: Dns { nameservers, domain, search, options } }
    }
}

/// The part of a result that a version can represent.
fn representable(mut result: CniResult, version: Version) -> CniResult {
    if version < Version::V1_1_0 {
        for link in &mut result.interfaces {
            *link = Interface { mtu: None, socket_path: None, pci_id: None, ..link.clone() };
        }
        for route in &mut result.routes {
            *route = PodRoute::new(route.dst, route.gw);
        }
    }
    if version > Version::V0_2_0 {
        return result;
    }
    let is_v4 = |net: &IpNet| net.addr().is_ipv4();
    let mut old = CniResult { dns: result.dns, ..CniResult::default() };
    for family in [true, false] {
        if let Some(ip) = result.ips.iter().find(|ip| is_v4(&ip.address) == family) {
            old.ips.push(IpConfig { interface: None, ..ip.clone() });
            old.routes.extend(result.routes.iter().filter(|r| is_v4(&r.dst) == family).cloned());
        }
    }
    old
}

fn attachment_request(request: &Request) -> Option<&AttachmentRequest> {
    match request {
        Request::Add(call) | Request::Del(call) | Request::Check(call) => Some(call),
        Request::Gc(_) | Request::Status(_) | Request::Version(_) => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn b5_random_bytes_cause_no_panic(env in any_env(), stdin in vec(any::<u8>(), 0..200)) {
        if let Err(failure) = Request::parse(&env, &stdin) {
            prop_assert!(failure.to_json()["code"].as_u64() >= Some(1));
            prop_assert!(!failure.error.msg.is_empty());
        }
    }

    #[test]
    fn b5_random_json_causes_no_panic(
        env in any_env(), command in select(Command::ALL.to_vec()), extra in vec((word(), any_json()), 0..8),
    ) {
        let mut map: Map<String, Value> = extra.into_iter().collect();
        map.entry("cniVersion").or_insert("1.1.0".into());
        map.entry("name").or_insert("net".into());
        let stdin = bytes(&Value::Object(map));
        let _ = Request::parse(&env, &stdin);
        match Request::parse(&env_for(command.as_str()), &stdin) {
            Ok(request) => if let Some(call) = attachment_request(&request) {
                prop_assert_eq!(&call.config.raw, &stdin);
                call.requested_ips();
                call.requested_mac();
            },
            Err(failure) => prop_assert!(!failure.error.msg.is_empty()),
        }
    }

    #[test]
    fn b5_a_corrupted_config_causes_no_panic(
        command in select(Command::ALL.to_vec()), changes in vec((any::<Index>(), any::<u8>()), 0..4),
        end in option::of(any::<Index>()),
    ) {
        let mut stdin = rich_config();
        for (position, byte) in changes {
            let position = position.index(stdin.len());
            stdin[position] = byte;
        }
        if let Some(end) = end {
            stdin.truncate(end.index(stdin.len()));
        }
        let _ = Request::parse(&env_for(command.as_str()), &stdin);
    }

    #[test]
    fn b1_random_args_cause_no_panic(text in any::<String>(), pairs in vec((word(), any::<String>()), 0..4)) {
        let _ = Args::parse(&text);
        let joined: Vec<_> = pairs.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let _ = Args::parse(&joined.join(";"));
    }

    #[test]
    fn b1_args_of_kubelet_are_not_changed(namespace in "[a-z0-9-]{1,63}", name in "[a-z0-9.-]{1,253}", unknown in "[A-Z]{3,9}") {
        let text = format!("{unknown}=1;IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}");
        let args = Args::parse(&text).unwrap();
        prop_assert_eq!(args.pod_namespace, Some(namespace));
        prop_assert_eq!(args.pod_name, Some(name));
    }

    #[test]
    fn e5_only_known_versions_are_accepted(text in "[0-9.]{0,6}|\\PC*") {
        let known = Version::ALL.iter().any(|v| v.as_str() == text);
        prop_assert_eq!(Version::parse(&text).is_ok(), known);
    }

    #[test]
    fn e18_requested_addresses_round_trip(text in any::<String>(), net in any_net()) {
        let _ = text.parse::<RequestedIp>();
        if let Ok(ip) = net.to_string().parse::<RequestedIp>() {
            prop_assert_eq!(ip.to_string().parse::<RequestedIp>(), Ok(ip));
        }
    }

    #[test]
    fn e10_random_json_as_a_result_causes_no_panic(value in any_json(), version in select(Version::ALL.to_vec())) {
        if let Ok(result) = CniResult::from_json(version, &value) {
            let reparsed = CniResult::from_json(version, &result.to_json(version)).unwrap();
            prop_assert_eq!(reparsed.to_json(version), result.to_json(version));
        }
    }

    #[test]
    fn e10_results_round_trip_in_every_version(result in any_result()) {
        for version in Version::ALL {
            let read = CniResult::from_json(version, &result.to_json(version));
            prop_assert_eq!(read, Ok(representable(result.clone(), version)));
        }
    }

    #[test]
    fn e11_a_prev_result_in_a_config_is_not_changed(result in any_result(), version in select(Version::ALL.to_vec())) {
        let written = result.to_json(version);
        let stdin = json!({ "cniVersion": version.as_str(), "name": "n", "prevResult": written });
        let config = NetworkConfig::from_slice(&bytes(&stdin)).unwrap();
        prop_assert_eq!(config.prev_result.unwrap().to_json(version), written);
    }
}
