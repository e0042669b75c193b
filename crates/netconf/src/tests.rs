use cni::{Error, ErrorCode, NetworkConfig};
use proptest::prelude::*;
use serde_json::{Value, json};
use types::AttachMode;

use crate::{Addresses, LocalPaths, Log, NetConf};

mod merge;
mod reference;

/// A config with the required keys and `extra`.
fn config(extra: Value) -> NetworkConfig {
    let mut all = json!({ "cniVersion": "1.1.0", "name": "n", "type": "podwire-cni" });
    let (Value::Object(all), Value::Object(extra)) = (&mut all, extra) else { panic!("objects") };
    all.extend(extra);
    NetworkConfig::from_slice(Value::Object(all.clone()).to_string().as_bytes()).unwrap()
}

fn parse(extra: Value) -> Result<NetConf, Error> {
    NetConf::parse(&config(extra))
}

fn pools(conf: &NetConf) -> Vec<Vec<String>> {
    match &conf.addresses {
        Addresses::Own(pools) => {
            pools.sets().iter().map(|s| s.ranges().iter().map(ipam::Range::name).collect()).collect()
        }
        Addresses::Delegated(plugin) => vec![vec![plugin.clone()]],
        Addresses::Absent => Vec::new(),
    }
}

fn placement(extra: Value, args: &str) -> Result<types::Placement, Error> {
    let config = config(extra);
    let env = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c"),
        ("CNI_NETNS", "/n"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_ARGS", args),
    ];
    let env = cni::Env::from_vars(env.map(|(name, value)| (name.into(), value.into())));
    match cni::Request::parse(&env, &config.raw).map_err(|failure| failure.error)? {
        cni::Request::Add(call) => NetConf::for_call(&call, None).map(|conf| conf.placement),
        other => panic!("{other:?}"),
    }
}

#[test]
fn b10_config_and_args_determine_the_placement() {
    let describe =
        |p: types::Placement| format!("{} {} {:?}", p.tenant, p.network, p.group.map(String::from));
    let base = json!({ "subnet": "10.88.0.0/24" });
    assert_eq!(describe(placement(base.clone(), "").unwrap()), "default default-net None");
    let named = json!({ "subnet": "10.88.0.0/24", "tenant": "blue", "network": "front", "group": "web" });
    assert_eq!(describe(placement(named.clone(), "").unwrap()), r#"blue front Some("web")"#);
    let args = "io.contiv.tenant=blue;io.contiv.network=back;io.contiv.net-group=db";
    assert_eq!(describe(placement(base.clone(), args).unwrap()), r#"blue back Some("db")"#);
    // CNI_ARGS can select network and group, but not another tenant.
    assert_eq!(describe(placement(named.clone(), args).unwrap()), r#"blue back Some("db")"#);
    let error = placement(named, "podwire.io/tenant=red").unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidEnvironment);
    assert!(error.msg.contains("red") && error.msg.contains("blue"), "{error}");
    // A CIDR in `network` is not the id of a network.
    let with_cidr = json!({ "subnet": "10.88.0.0/24", "network": "10.0.0.0/8" });
    assert_eq!(describe(placement(with_cidr, "").unwrap()), "default default-net None");
    assert_eq!(placement(base, "podwire.io/group=a b").unwrap_err().code, ErrorCode::InvalidConfig);
}

#[test]
fn the_agents_socket_is_a_path_or_true() {
    let paths = |agent: Value| LocalPaths::parse(&config(json!({"runDir": "/run/x", "agent": agent})));
    for off in [json!(null), json!(false), json!("")] {
        assert_eq!(paths(off).unwrap().agent, None);
    }
    assert_eq!(paths(json!(true)).unwrap().agent, Some("/run/x/agent.sock".into()));
    assert_eq!(paths(json!("/a/b.sock")).unwrap().agent, Some("/a/b.sock".into()));
    for bad in [json!("a.sock"), json!(1), json!({})] {
        assert_eq!(paths(bad).unwrap_err().code, ErrorCode::InvalidConfig);
    }
}

#[test]
fn c1_a_config_with_bridge_and_subnet_gets_a_default_route() {
    let conf =
        parse(json!({ "bridge": "hcni0", "network": "100.100.0.0/16", "subnet": "100.100.1.0/24" })).unwrap();
    assert_eq!(conf.bridge.as_str(), "hcni0");
    assert_eq!(conf.mode, AttachMode::Bridge);
    assert!(conf.is_gateway && conf.is_default_gateway && conf.hairpin && conf.spoof_check);
    assert!(!conf.ip_masq && !conf.promisc && !conf.force_address);
    assert_eq!(conf.mtu, None);
    assert_eq!(pools(&conf), [["100.100.1.1-100.100.1.254"]]);
    let cluster: Vec<String> = conf.cluster.iter().map(ToString::to_string).collect();
    assert_eq!(cluster, ["100.100.0.0/16", "100.100.1.0/24"]);
}

#[test]
fn several_subnets_of_one_family_form_one_set() {
    let conf = parse(json!({ "subnet": "10.1.0.0/24, 10.1.9.0/24,fd00:1::/64,10.1.7.0/24" })).unwrap();
    let Addresses::Own(pools) = &conf.addresses else { panic!("{conf:?}") };
    let sizes: Vec<usize> = pools.sets().iter().map(|set| set.ranges().len()).collect();
    assert_eq!(sizes, [3, 1]);
    assert!(
        parse(json!({ "subnet": "10.1.0.0/24,10.1.0.128/25" })).is_err(),
        "overlapping subnets were accepted"
    );
    assert!(parse(json!({ "subnet": "10.1.0.0/24,10.1.9.0/24", "gateway": "10.1.0.9" })).is_err());
}

#[test]
fn c1_a_network_that_is_not_a_cidr_is_an_id() {
    let conf = parse(json!({ "network": "blue", "subnet": "10.1.0.0/24" })).unwrap();
    assert_eq!(conf.cluster.len(), 1);
}

#[test]
fn c2_one_string_may_contain_a_subnet_of_each_family() {
    let conf = parse(json!({ "subnet": "10.88.0.0/29, fd00:88::/126" })).unwrap();
    assert_eq!(pools(&conf), [["10.88.0.1-10.88.0.6"], ["fd00:88::1-fd00:88::3"]]);
    let refused = parse(json!({ "subnet": "10.88.0.0/29,fd00::/64", "gateway": "10.88.0.1" })).unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidConfig);
    assert!(refused.msg.contains("gateway"), "{}", refused.msg);
}

#[test]
fn keys_of_host_local_have_the_same_meaning() {
    let conf = parse(json!({
        "isGateway": true,
        "ipam": {
            "type": "podwire",
            "ranges": [
                [{ "subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.20", "gateway": "10.1.0.254" },
                 { "subnet": "10.2.0.0/24" }],
                [{ "subnet": "fd00:1::/64", "exclude": ["fd00:1::/112", "10.0.0.0/8"] }],
            ],
            "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "10.9.1.2/16", "gw": "10.1.0.9", "mtu": 1300, "priority": 7 }],
        },
    }))
    .unwrap();
    assert_eq!(pools(&conf)[0], ["10.1.0.10-10.1.0.20", "10.2.0.1-10.2.0.254"]);
    assert!(!conf.is_default_gateway, "configured routes replace the default route");
    let routes = conf.pod_routes(&["10.1.0.11".parse().unwrap()]);
    assert_eq!(routes.len(), 2);
    assert_eq!(routes[1].dst.to_string(), "10.9.0.0/16");
    assert_eq!((routes[1].mtu, routes[1].priority), (Some(1300), Some(7)));
}

#[test]
fn c1_a_top_level_subnet_is_used_if_ipam_has_none() {
    let conf =
        parse(json!({ "subnet": "10.1.0.0/24", "ipam": { "routes": [{ "dst": "10.9.0.0/16" }] } })).unwrap();
    assert_eq!(pools(&conf), [["10.1.0.1-10.1.0.254"]]);
    let conf = parse(json!({ "subnet": "10.1.0.0/24", "ipam": { "subnet": "10.2.0.0/24" } })).unwrap();
    assert_eq!(pools(&conf), [["10.2.0.1-10.2.0.254"]]);
}

#[test]
fn a_default_route_in_another_table_does_not_replace_the_default_route() {
    let conf = parse(json!({ "isDefaultGateway": true, "ipam": {
        "subnet": "10.1.0.0/24", "routes": [{ "dst": "0.0.0.0/0", "table": 100 }] } }))
    .unwrap();
    assert_eq!(conf.pod_routes(&["10.1.0.2".parse().unwrap()]).len(), 2);
}

#[test]
fn a_pod_gets_a_default_route_per_address_family() {
    let conf = parse(json!({ "subnet": "10.1.0.0/24" })).unwrap();
    let both = ["10.1.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
    let dsts: Vec<String> = conf.pod_routes(&both).iter().map(|r| r.dst.to_string()).collect();
    assert_eq!(dsts, ["0.0.0.0/0", "::/0"]);
    assert_eq!(conf.pod_routes(&both[..1]).len(), 1);
}

#[test]
fn e6_keys_are_case_insensitive_and_null_is_absent() {
    let conf =
        parse(json!({ "BRIDGE": "br7", "IPMasq": true, "Subnet": "10.1.0.0/24", "mtu": null })).unwrap();
    assert_eq!(conf.bridge.as_str(), "br7");
    assert!(conf.ip_masq);
}

#[test]
fn e18_ip_ranges_of_the_runtime_precede_configured_ranges() {
    let conf = parse(json!({
        "runtimeConfig": { "ipRanges": [[{ "subnet": "10.5.0.0/24" }]] },
        "ipam": { "ranges": [[{ "subnet": "fd00:5::/64" }]] },
    }))
    .unwrap();
    assert_eq!(pools(&conf)[0], ["10.5.0.1-10.5.0.254"]);
    assert_eq!(pools(&conf).len(), 2);
}

#[test]
fn e19_an_external_ipam_type_is_delegated_with_reference_defaults() {
    let conf = parse(json!({ "ipam": { "type": "host-local", "subnet": "not validated" } })).unwrap();
    assert_eq!(pools(&conf), [["host-local"]]);
    assert!(!conf.is_gateway && !conf.is_default_gateway);
    for bad in ["../evil", "a/b", ".."] {
        assert_eq!(
            parse(json!({ "ipam": { "type": bad } })).unwrap_err().code,
            ErrorCode::InvalidConfig,
            "{bad}"
        );
    }
}

#[test]
fn b11_a_config_without_ipam_is_layer_2_only() {
    for ipam in [Value::Null, json!({}), json!({ "type": "" })] {
        // The reference plugin ignores these keys, too.
        let conf = parse(json!({ "ipam": ipam, "isDefaultGateway": true, "ipMasq": true })).unwrap();
        assert!(matches!(conf.addresses, Addresses::Absent), "{conf:?}");
        assert!(!conf.is_gateway && !conf.is_default_gateway && !conf.ip_masq, "{conf:?}");
    }
    let ports = json!({ "portMappings": [{ "hostPort": 80, "containerPort": 80, "protocol": "tcp" }] });
    for (refused, reason) in [
        (json!({ "mode": "routed" }), "mode"),
        (json!({ "runtimeConfig": ports }), "host ports"),
        (json!({ "ipam": { "type": "podwire" } }), "no addresses"),
        (json!({ "ipam": { "routes": [] } }), "no addresses"),
        (json!({ "ipam": { "type": "dhcp" }, "mode": "routed" }), "DHCP"),
    ] {
        let error = parse(refused.clone()).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidConfig, "{refused}");
        assert!(error.msg.contains(reason), "{refused}: {error}");
    }
    assert!(placement(json!({}), "IP=10.0.0.7").unwrap_err().msg.contains("requested"));
}

#[test]
fn b11_a_config_with_any_address_key_is_not_layer_2_only() {
    for (refused, reason) in [
        (json!({ "subnets": "10.1.0.0/24" }), "did you mean \"subnet\""),
        (json!({ "Subent": "10.1.0.0/24" }), "did you mean \"subnet\""),
        (json!({ "ipRanges": [[{ "subnet": "10.1.0.0/24" }]] }), "did you mean \"ranges\""),
        (json!({ "ipma": { "subnet": "10.1.0.0/24" } }), "did you mean \"ipam\""),
        (json!({ "subnet": "" }), "no addresses"),
        (json!({ "rangeStart": "10.1.0.7" }), "no addresses"),
        (json!({ "gateway": "10.1.0.1" }), "no addresses"),
        (json!({ "ranges": [] }), "no addresses"),
        (json!({ "ipam": { "subnets": "10.1.0.0/24" } }), "no addresses"),
        (json!({ "ipam": { "type": "", "subnet": "" } }), "no addresses"),
        (json!({ "ipam": { "rangeStart": "10.1.0.7" } }), "no addresses"),
    ] {
        let error = parse(refused.clone()).unwrap_err();
        assert!(error.code == ErrorCode::InvalidConfig && error.msg.contains(reason), "{refused}: {error}");
    }
    let layer2 = json!({ "isGateway": false, "ISDEFAULTGATEWAY": false, "network": "front", "mtu": 1400,
        "subnet": null, "IPAM": { "Type": "" }, "args": {}, "dns": {}, "capabilities": { "ipRanges": true } });
    assert!(matches!(parse(layer2).unwrap().addresses, Addresses::Absent));
}

#[test]
fn a_plugin_is_refused_as_its_own_ipam_plugin() {
    let own = json!({ "ipam": { "type": "podwire-cni" }, "subnet": "10.1.0.0/24" });
    let error = parse(own.clone()).unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidConfig);
    assert!(error.msg.contains("ipam.type") && error.msg.contains("podwire-cni"), "{error}");
    assert_eq!(crate::external_ipam(&config(own)), None, "DEL and GC must not run the plugin itself");
    let named = json!({ "type": "x", "ipam": { "type": "podwire-cni" } });
    assert_eq!(crate::external_ipam(&config(named)), Some("podwire-cni"));
}

#[test]
fn e7_unsupported_keys_are_refused_by_name() {
    for (key, value) in [
        ("vlan", json!(7)),
        ("vlanTrunk", json!([{ "id": 1 }])),
        ("portIsolation", json!(true)),
        ("disableContainerInterface", json!(true)),
        ("enabledad", json!(true)),
        ("ipMasqBackend", json!("iptables")),
    ] {
        let refused = parse(json!({ "subnet": "10.1.0.0/24", key: value.clone() })).unwrap_err();
        assert_eq!(refused.code, ErrorCode::UnsupportedField, "{key}");
        assert!(refused.msg.contains(key) && refused.msg.contains(&value.to_string()), "{}", refused.msg);
    }
    let off = json!({ "subnet": "10.1.0.0/24", "vlan": 0, "vlanTrunk": [], "portIsolation": false,
        "preserveDefaultVlan": true, "ipMasqBackend": "nftables", "macspoofchk": true });
    assert!(parse(off).is_ok());
}

#[test]
fn errors_for_invalid_values_name_the_allowed_values() {
    for (extra, code, text) in [
        (json!({ "ipam": { "routes": [] } }), ErrorCode::InvalidConfig, "subnet"),
        (json!({ "subnet": "10.1.0.5/24" }), ErrorCode::InvalidConfig, "10.1.0.0/24"),
        (json!({ "subnet": "10.1.0.0/31" }), ErrorCode::InvalidConfig, "/31"),
        (json!({ "subnet": "10.1.0.0/32" }), ErrorCode::InvalidConfig, "/32"),
        (json!({ "subnet": "ten" }), ErrorCode::InvalidConfig, types::DEFAULT_SUBNET_V4),
        (json!({ "subnet": 7 }), ErrorCode::Decode, "subnet"),
        (json!({ "subnet": "10.1.0.0/24", "mode": "mesh" }), ErrorCode::InvalidConfig, "routed"),
        (json!({ "subnet": "10.1.0.0/24", "mtu": 70000 }), ErrorCode::InvalidConfig, "65535"),
        (
            json!({ "subnet": "10.1.0.0/24", "bridge": "much-too-long-a-name" }),
            ErrorCode::InvalidConfig,
            "15 bytes",
        ),
        (
            json!({ "subnet": "10.1.0.0/24", "mode": "routed", "isGateway": false }),
            ErrorCode::InvalidConfig,
            "isGateway",
        ),
        (
            json!({ "ipam": { "ranges": [[{ "rangeStart": "10.0.0.1" }]] } }),
            ErrorCode::InvalidConfig,
            "ranges[0][0]",
        ),
        (
            json!({ "ipam": { "subnet": "10.0.0.0/24", "routes": [{}] } }),
            ErrorCode::InvalidConfig,
            "routes[0]",
        ),
        (
            json!({ "ipam": { "subnet": "10.0.0.0/24", "routes": [{ "dst": "0.0.0.0/0", "gw": "::1" }] } }),
            ErrorCode::InvalidConfig,
            "family",
        ),
        (
            json!({ "ipam": { "subnet": "10.0.0.0/24", "exclude": ["x"] } }),
            ErrorCode::InvalidConfig,
            "exclude[0]",
        ),
        (json!({ "subnet": "10.1.0.0/24", "ipMasq": "yes" }), ErrorCode::Decode, "ipMasq"),
        (
            json!({ "ipam": { "subnet": "10.1.0.0/24", "resolvConf": "/etc/resolv.conf" } }),
            ErrorCode::UnsupportedField,
            "ipam.resolvConf",
        ),
    ] {
        let refused = parse(extra.clone()).map(drop).unwrap_err();
        assert_eq!(refused.code, code, "{extra}: {}", refused.msg);
        assert!(refused.msg.contains(text), "{extra}: {}", refused.msg);
    }
}

#[test]
fn local_paths_follow_the_config() {
    let paths = |extra| LocalPaths::parse(&config(extra));
    let default = paths(json!({})).unwrap();
    assert_eq!(default.run_dir.to_str(), Some("/run/podwire"));
    assert_eq!(default.log, Log::File("/var/log/podwire-cni.log".into()));
    let named = paths(json!({ "runDir": "/a", "ipam": { "dataDir": "/b" }, "logFile": "" })).unwrap();
    assert_eq!((named.run_dir.to_str(), named.log), (Some("/a"), Log::None));
    assert_eq!(paths(json!({ "logFile": "journal" })).unwrap().log, Log::Journal);
    assert!(paths(json!({ "logFile": "Journal" })).unwrap_err().msg.contains("`journal`"));
    assert_eq!(paths(json!({ "ipam": { "dataDir": "/b" } })).unwrap().run_dir.to_str(), Some("/b/podwire"));
    let delegated = paths(json!({ "ipam": { "type": "host-local", "dataDir": "/b" } })).unwrap();
    assert_eq!(delegated.run_dir.to_str(), Some("/run/podwire"));
    assert_eq!(paths(json!({ "runDir": "relative" })).unwrap_err().code, ErrorCode::InvalidConfig);
    // For DEL and GC, errors in other keys are ignored.
    assert!(paths(json!({ "mtu": "wrong", "bridge": 7 })).is_ok());
}

/// Random JSON with the keys of configs.
fn any_config() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[0-9a-f:./]{0,20}".prop_map(Value::from),
        Just(json!("10.1.0.0/24")),
        Just(json!("fd00::/64")),
        ".{0,8}".prop_map(Value::from),
    ];
    let key = prop_oneof![
        Just("subnet"),
        Just("ipam"),
        Just("ranges"),
        Just("routes"),
        Just("dst"),
        Just("gw"),
        Just("exclude"),
        Just("bridge"),
        Just("mtu"),
        Just("mode"),
        Just("network"),
        Just("runDir"),
        Just("type"),
        Just("rangeStart"),
        Just("gateway"),
        Just("runtimeConfig"),
        Just("ipRanges"),
        Just("scope"),
    ];
    let tree = leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key.clone().prop_map(str::to_owned), inner, 0..5)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    });
    prop::collection::btree_map("[a-zA-Z]{1,6}|subnet|ipam|bridge|mode|mtu|network|runtimeConfig", tree, 0..6)
        .prop_map(|m| Value::Object(m.into_iter().collect()))
}

proptest! {
    /// No config causes a panic.
    #[test]
    fn any_config_is_parsed_or_refused_with_a_message(extra in any_config()) {
        let mut all = extra.as_object().cloned().unwrap_or_default();
        all.insert("cniVersion".to_owned(), json!("1.1.0"));
        all.insert("name".to_owned(), json!("n"));
        if let Ok(config) = NetworkConfig::from_slice(Value::Object(all).to_string().as_bytes()) {
            let _ = LocalPaths::parse(&config);
            match NetConf::parse(&config) {
                Ok(conf) => prop_assert_eq!(pools(&conf).is_empty(), matches!(conf.addresses, Addresses::Absent)),
                Err(error) => prop_assert!(!error.msg.is_empty()),
            }
        }
    }
}

#[test]
fn errors_for_special_subnets_name_key_and_value() {
    for subnet in [
        "0.0.0.0/8",
        "0.0.0.0/0",
        "127.0.0.0/16",
        "169.254.0.0/16",
        "224.0.0.0/24",
        "240.0.0.0/24",
        "255.255.255.0/24",
        "128.0.0.0/1",
        "::/64",
        "::ffff:10.0.0.0/112",
        "fe80::/64",
        "ff02::/64",
    ] {
        let good = "10.1.0.0/24";
        for (key, extra) in [
            ("subnet", json!({ "subnet": subnet })),
            ("subnet", json!({ "subnet": format!("{good},{subnet}") })),
            ("ipam", json!({ "ipam": { "subnet": subnet } })),
            (
                "ipam.ranges[1][0]",
                json!({ "ipam": { "ranges": [[{ "subnet": good }], [{ "subnet": subnet }]] } }),
            ),
            (
                "runtimeConfig.ipRanges[0][0]",
                json!({ "runtimeConfig": { "ipRanges": [[{ "subnet": subnet }]] } }),
            ),
            ("network", json!({ "subnet": good, "network": subnet })),
        ] {
            let error = parse(extra).unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidConfig, "{error}");
            assert!(error.msg.starts_with(&format!("{key}: ")) && error.msg.contains(subnet), "{error}");
        }
    }
}

#[test]
fn gateways_with_special_addresses_are_refused() {
    let with = |gateway: &str, subnet: &str| parse(json!({ "subnet": subnet, "gateway": gateway }));
    for gateway in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255"] {
        assert!(with(gateway, "10.1.0.0/24").unwrap_err().msg.contains(gateway));
    }
    for gateway in ["::", "::1", "ff02::1"] {
        assert!(with(gateway, "fd00::/64").unwrap_err().msg.contains(gateway));
    }
    // Link-local gateways are valid: pods reach them through an on-link route.
    assert!(with("169.254.1.1", "10.1.0.0/24").is_ok() && with("fe80::1", "fd00::/64").is_ok());
}

#[test]
fn lists_in_a_config_are_bounded() {
    let net = |n: usize| format!("10.{}.{}.0/24", n / 256, n % 256);
    let sets = |count| (0..count).map(|n| json!([{ "subnet": net(n) }])).collect::<Vec<_>>();
    let ranges = |count| json!([(0..count).map(|n| json!({ "subnet": net(n) })).collect::<Vec<_>>()]);
    let exclude = |count| vec!["10.0.0.9"; count];
    let routes = |count: usize| (0..count).map(|n| json!({ "dst": net(n) })).collect::<Vec<_>>();
    let ports = |count| vec![json!({ "hostPort": 80, "containerPort": 80 }); count];
    let networks = |count| vec!["10.0.0.0/8"; count].join(",");
    type Build<'a> = &'a dyn Fn(usize) -> Value;
    let cases: [(&str, usize, Build<'_>); 6] = [
        ("ipam.ranges: ", 16, &|n| json!({ "ipam": { "ranges": sets(n) } })),
        ("ipam.ranges[0]: ", 1024, &|n| json!({ "ipam": { "ranges": ranges(n) } })),
        ("subnet: ", 16_384, &|n| json!({ "subnet": "10.0.0.0/24", "exclude": exclude(n) })),
        ("ipam.routes: ", 256, &|n| json!({ "ipam": { "subnet": "10.0.0.0/24", "routes": routes(n) } })),
        (
            "runtimeConfig.portMappings: ",
            4096,
            &|n| json!({ "subnet": "10.0.0.0/24", "runtimeConfig": { "portMappings": ports(n) } }),
        ),
        ("network: ", 64, &|n| json!({ "subnet": "10.0.0.0/24", "network": networks(n) })),
    ];
    for (key, max, build) in cases {
        assert!(parse(build(max)).is_ok(), "{key} {:?}", parse(build(max)).err());
        let error = parse(build(max + 1)).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidConfig);
        let has_numbers = error.msg.contains(&max.to_string()) && error.msg.contains(&(max + 1).to_string());
        assert!(error.msg.starts_with(key) && has_numbers, "{error}");
    }
    // The limit applies to the sum of both keys.
    let both = json!({ "runtimeConfig": { "ipRanges": sets(16) }, "ipam": { "subnet": "10.200.0.0/24" } });
    assert!(parse(both).unwrap_err().msg.contains("17 range sets"));
}
