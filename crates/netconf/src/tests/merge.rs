//! Precedence: the request's config over the agent's network over the defaults.

use std::path::Path;
use std::sync::Arc;

use cni::ErrorCode;
use serde_json::{Value, json};
use types::{AttachMode, NetworkId};

use super::pools;
use crate::{Addresses, LocalPaths, NetConf, Network, NetworkSettings, NodeAllocation, NodeNetworks};

const BLOCKS: [&str; 2] = ["10.9.0.0/24", "fd00:9::/64"];

struct Agent {
    settings: NetworkSettings,
    allocation: NodeAllocation,
}

impl Agent {
    fn new(mode: AttachMode, blocks: &[&str]) -> Self {
        let nets = |all: &[&str]| all.iter().map(|net| net.parse().unwrap()).collect();
        let settings = NetworkSettings {
            name: "podwire".try_into().unwrap(),
            mode,
            bridge: "pw0".try_into().unwrap(),
            subnets: nets(&["10.9.0.0/16", "fd00:9::/48"]),
            mtu: None,
            connections_per_pod: None,
            masquerade: true,
        };
        let network = Network::new(&settings, nets(blocks), Some(1400)).unwrap();
        Self { allocation: NodeAllocation::of_default(Arc::new(network)), settings }
    }

    fn networks(&self) -> NodeNetworks<'_> {
        NodeNetworks {
            name: &self.settings.name,
            mode: self.settings.mode,
            run_dir: Path::new("/run/agent-7"),
            allocation: Ok(&self.allocation),
        }
    }

    fn merge(&self, config: &Value) -> Result<NetConf, cni::Error> {
        NetConf::merge(&config_of(config), Some(&self.networks()))
    }
}

fn config_of(config: &Value) -> cni::NetworkConfig {
    cni::NetworkConfig::from_slice(config.to_string().as_bytes()).unwrap()
}

fn add(config: &Value, args: &str) -> cni::AttachmentRequest {
    let env = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c"),
        ("CNI_NETNS", "/n"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_ARGS", args),
    ];
    let env = cni::Env::from_vars(env.map(|(name, value)| (name.into(), value.into())));
    match cni::Request::parse(&env, config.to_string().as_bytes()).unwrap() {
        cni::Request::Add(call) => call,
        other => panic!("{other:?}"),
    }
}

fn agent() -> Agent {
    Agent::new(AttachMode::Routed, &BLOCKS)
}

fn merged(config: &Value) -> NetConf {
    agent().merge(config).unwrap()
}

#[test]
fn a_config_with_only_the_agents_name_gets_all_its_settings() {
    for mode in [AttachMode::Routed, AttachMode::Bridge] {
        let agent = Agent::new(mode, &BLOCKS);
        let config = json!({ "cniVersion": "1.1.0", "name": "podwire", "type": "podwire-cni" });
        let conf = agent.merge(&config).unwrap();
        assert_eq!((conf.mode, conf.bridge.as_str(), conf.mtu), (mode, "pw0", Some(1400)));
        assert!(conf.ip_masq);
        assert_eq!(pools(&conf).len(), 2, "one set per family");
        assert_eq!(Some(&conf), agent.allocation.default_network().map(|network| network.conf()));
        let paths = LocalPaths::merge(&config_of(&config), Some(&agent.networks())).unwrap();
        assert_eq!(paths.run_dir, Path::new("/run/agent-7"));
    }
}

#[test]
fn the_agents_network_equals_the_same_settings_in_a_config() {
    let all = json!({ "cniVersion": "1.1.0", "name": "podwire", "mode": "routed", "bridge": "pw0", "mtu": 1400,
                      "subnet": BLOCKS.join(","), "network": "10.9.0.0/16,fd00:9::/48", "ipMasq": true });
    let standalone = NetConf::parse(&config_of(&all)).unwrap();
    assert_eq!(agent().allocation.default_network().unwrap().conf(), &standalone);
    assert_eq!(merged(&all), standalone);
}

#[test]
fn settings_of_the_request_have_precedence_in_any_case() {
    let conf = merged(&json!({ "cniVersion": "1.1.0", "name": "podwire", "Mode": "bridge", "MTU": 1300,
                               "BRIDGE": "br7", "subnet": "10.77.0.0/24", "ipmasq": false, "Network": "10.77.0.0/16" }));
    assert_eq!((conf.mode, conf.bridge.as_str()), (AttachMode::Bridge, "br7"));
    assert_eq!((conf.mtu, conf.ip_masq), (Some(1300), false));
    assert_eq!(conf.cluster, ["10.77.0.0/16".parse().unwrap(), "10.77.0.0/24".parse().unwrap()]);
    let null = merged(
        &json!({ "cniVersion": "1.1.0", "name": "podwire", "mode": null, "mtu": null, "subnet": null }),
    );
    assert_eq!((null.mode, null.mtu, pools(&null).len()), (AttachMode::Routed, Some(1400), 2));
    let empty =
        merged(&json!({ "cniVersion": "1.1.0", "name": "podwire", "mode": "", "mtu": 0, "bridge": "" }));
    assert_eq!((empty.mode, empty.mtu, empty.bridge.as_str()), (AttachMode::Bridge, None, "cni0"));
    let other = json!({ "cniVersion": "1.1.0", "name": "podwire", "subnet": "10.77.0.0/24" });
    assert_eq!(
        merged(&other).cluster,
        ["10.9.0.0/16", "10.77.0.0/24", "fd00:9::/48"].map(|net| net.parse().unwrap())
    );
}

#[test]
fn range_keys_without_a_subnet_limit_the_agents_blocks() {
    let ranges = json!({ "cniVersion": "1.1.0", "name": "podwire", "rangeStart": "10.9.0.50" });
    assert!(agent().merge(&ranges).unwrap_err().msg.contains("ambiguous with several subnets"));
    let conf = Agent::new(AttachMode::Routed, &BLOCKS[..1]).merge(&ranges).unwrap();
    let Addresses::Own(own) = &conf.addresses else { panic!("{conf:?}") };
    assert_eq!(own.sets()[0].capacity(), 254 - 49);
    let exclude = json!({ "cniVersion": "1.1.0", "name": "podwire", "exclude": ["10.9.0.128/25"] });
    let Addresses::Own(own) = merged(&exclude).addresses else { panic!() };
    assert_eq!(own.sets()[0].capacity(), 126);
}

#[test]
fn another_network_only_inherits_the_agents_mode() {
    let conf = merged(&json!({ "cniVersion": "1.1.0", "name": "storage", "subnet": "10.77.0.0/24" }));
    assert_eq!((conf.mode, conf.bridge.as_str(), conf.mtu), (AttachMode::Routed, "cni0", None));
    assert!(!conf.ip_masq);
    assert_eq!(conf.cluster, ["10.77.0.0/24".parse().unwrap()]);
}

#[test]
fn requests_to_an_agent_use_its_run_directory() {
    for (key, dir) in [("runDir", "/tmp/x"), ("rundir", "/tmp/x"), ("RUNDIR", "")] {
        let config =
            json!({ "cniVersion": "1.1.0", "name": "storage", key: dir, "ipam": { "dataDir": "/tmp/y" } });
        let paths = LocalPaths::merge(&config_of(&config), Some(&agent().networks())).unwrap();
        assert_eq!(paths.run_dir, Path::new("/run/agent-7"), "{key}");
    }
}

#[test]
fn b11_a_misspelt_network_name_is_not_layer_2_only() {
    for mode in [AttachMode::Routed, AttachMode::Bridge] {
        let named = json!({ "cniVersion": "1.1.0", "name": "podwrie", "type": "podwire-cni" });
        let error = Agent::new(mode, &BLOCKS).merge(&named).unwrap_err();
        assert!(error.msg.contains("no addresses") && error.msg.contains(r#""ipam": {}"#), "{error}");
    }
}

#[test]
fn b11_reference_layer_2_configs_are_accepted_in_every_agent_mode() {
    for mode in [AttachMode::Routed, AttachMode::Bridge] {
        let agent = Agent::new(mode, &BLOCKS);
        for (key, value) in [("bridge", json!("br1")), ("ipam", json!({})), ("mode", json!("bridge"))] {
            let config = json!({ "cniVersion": "1.0.0", "name": "wire", "type": "bridge", key: value });
            let conf = agent.merge(&config).unwrap();
            assert!(matches!(conf.addresses, Addresses::Absent), "{mode} {key}: {conf:?}");
            assert_eq!(conf.mode, AttachMode::Bridge, "{mode} {key}");
        }
        // A misspelt address key is refused. The agent's own network always has addresses.
        let misspelt =
            json!({ "cniVersion": "1.0.0", "name": "wire", "bridge": "br1", "subnets": "10.7.0.0/24" });
        assert!(agent.merge(&misspelt).is_err(), "{mode}");
        let own = json!({ "cniVersion": "1.0.0", "name": "podwire", "bridge": "br1", "ipam": {} });
        let conf = agent.merge(&own).unwrap();
        assert!(matches!(conf.addresses, Addresses::Own(_)), "{mode}: {conf:?}");
    }
}

#[test]
fn an_external_ipam_plugin_assigns_addresses_in_the_agents_network() {
    let conf = merged(&json!({ "cniVersion": "1.1.0", "name": "podwire", "ipam": { "type": "dhcp" } }));
    assert_eq!(conf.mode, AttachMode::Bridge, "DHCP needs mode bridge");
    assert!(matches!(&conf.addresses, Addresses::Delegated(plugin) if plugin == "dhcp"));
    assert_eq!(
        (conf.bridge.as_str(), conf.ip_masq),
        ("pw0", true),
        "bridge and masquerade of the agent's network"
    );
    assert_eq!(conf.cluster, ["10.9.0.0/16".parse().unwrap(), "fd00:9::/48".parse().unwrap()]);
    let conf = merged(&json!({ "cniVersion": "1.1.0", "name": "podwire", "ipam": { "type": "static" } }));
    assert_eq!(conf.mode, AttachMode::Routed);
}

/// An id in `network` selects a placement and does not change the CIDRs of the cluster.
#[test]
fn b10_a_network_id_keeps_the_agents_cidrs() {
    let named = json!({ "cniVersion": "1.1.0", "name": "podwire", "network": "blue" });
    let conf = merged(&named);
    assert_eq!(conf.placement.network.as_str(), "blue");
    assert_eq!(conf.cluster, merged(&json!({ "cniVersion": "1.1.0", "name": "podwire" })).cluster);
    let conf = NetConf::for_call(&add(&named, "podwire.io/network=red"), Some(&agent().networks())).unwrap();
    assert_eq!((conf.placement.network.as_str(), pools(&conf).len()), ("red", 2));
}

#[test]
fn a_node_without_a_block_refuses_only_the_agents_network() {
    let agent = agent();
    let networks = NodeNetworks { allocation: Err("this node has no block yet"), ..agent.networks() };
    let own = config_of(&json!({ "cniVersion": "1.1.0", "name": "podwire" }));
    let error = NetConf::merge(&own, Some(&networks)).unwrap_err();
    assert_eq!(error.code, ErrorCode::TryAgainLater);
    assert_eq!(error.msg, "this node has no addresses to assign: this node has no block yet");
    assert_eq!(LocalPaths::merge(&own, Some(&networks)).unwrap().run_dir, Path::new("/run/agent-7"));
    let other = config_of(&json!({ "cniVersion": "1.1.0", "name": "storage", "subnet": "10.7.0.0/24" }));
    assert!(NetConf::merge(&other, Some(&networks)).is_ok());
}

#[test]
fn only_configs_without_ranges_use_the_nodes_blocks() {
    let agent = agent();
    for (key, value, is_used) in [
        ("mtu", json!(1400), true),
        ("ipam", json!({}), true),
        ("ipam", json!({ "routes": [{ "dst": "10.1.0.0/16" }] }), true),
        ("exclude", json!(["10.9.0.7"]), true),
        ("SUBNET", json!("10.7.0.0/24"), false),
        ("ipam", json!({ "subnet": "10.7.0.0/24" }), false),
        ("runtimeConfig", json!({ "ipRanges": [[{ "subnet": "10.7.0.0/24" }]] }), false),
        ("ipam", json!({ "type": "host-local" }), false),
        ("name", json!("storage"), false),
    ] {
        let mut config = json!({ "cniVersion": "1.1.0", "name": "podwire" });
        config[key] = value;
        let network =
            agent.networks().network_for(&add(&config, "")).map(|network| network.blocks().to_vec());
        let blocks = BLOCKS.map(|block| block.parse().unwrap());
        assert_eq!(network, is_used.then(|| blocks.to_vec()), "{config}");
    }
}

#[test]
fn an_allocation_has_the_gateway_of_every_block_in_order() {
    let agent = Agent::new(AttachMode::Routed, &["10.9.3.0/24", "fd00:9:0:1::/64", "10.9.4.0/24"]);
    let gateways: Vec<String> = agent.allocation.gateways().map(|ip| ip.to_string()).collect();
    assert_eq!(gateways, ["10.9.3.1", "fd00:9:0:1::1", "10.9.4.1"]);
}

#[test]
fn invalid_settings_of_the_agents_network_are_refused() {
    let good = agent().settings;
    let refused = |settings: &NetworkSettings| Network::whole(settings).unwrap_err().msg;
    let special = NetworkSettings { subnets: vec!["127.0.0.0/8".parse().unwrap()], ..good.clone() };
    assert!(refused(&special).contains("loopback"), "{}", refused(&special));
    let small = NetworkSettings { mtu: Some(1000), ..good.clone() };
    assert!(refused(&small).starts_with("mtu: 1000 must be 1280"), "{}", refused(&small));
    assert!(Network::new(&good, Vec::new(), None).is_err(), "a network without blocks was accepted");
    assert_eq!(NetworkId::default().as_str(), types::DEFAULT_NETWORK);
}
