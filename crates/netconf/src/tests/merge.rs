//! Precedence: the request's config over the agent's network over the defaults.

use std::path::Path;
use std::sync::Arc;

use cni::ErrorCode;
use serde_json::{Value, json};
use types::{AttachMode, NetworkId, NetworkRef};

use super::pools;
use crate::{
    Addresses, LocalPaths, NetConf, Network, NetworkSettings, NodeAllocation, NodeNetwork, NodeNetworks,
    unnamed_network,
};

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
            unnamed: None,
            allocation: Ok(&self.allocation),
        }
    }

    fn merge(&self, config: &Value) -> Result<NetConf, cni::Error> {
        NetConf::merge(&config_of(config), Some(&self.networks()))
    }
}

fn nets(texts: &[&str]) -> Vec<ipnet::IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
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

/// Networks of tenant `blue` beside the default one: `front` with blocks, and others that give no addresses.
fn agent_with_networks() -> Agent {
    let agent = agent();
    let settings = NetworkSettings {
        subnets: nets(&["10.20.0.0/16"]),
        mtu: Some(1300),
        masquerade: false,
        ..agent.settings.clone()
    };
    let front = Network::new(&settings, nets(&["10.20.7.0/24"]), Some(1400)).unwrap();
    let front = front.with_cluster(&nets(&["10.9.0.0/16", "fd00:9::/48"]));
    let named = |text: &str| NetworkRef::try_from(text.to_owned()).unwrap();
    let others = std::collections::BTreeMap::from([
        (named("blue.front"), NodeNetwork::Ready(Arc::new(front))),
        (named("blue.empty"), NodeNetwork::NoBlock),
        (
            named("blue.far"),
            NodeNetwork::OtherNodes(vec!["n7".try_into().unwrap(), "n8".try_into().unwrap()]),
        ),
    ]);
    Agent { allocation: agent.allocation.with_networks(others), ..agent }
}

#[test]
fn d_a_pod_gets_addresses_and_settings_of_its_network() {
    let agent = agent_with_networks();
    let in_front = json!({ "cniVersion": "1.1.0", "name": "podwire", "tenant": "blue", "network": "front" });
    let conf = agent.merge(&in_front).unwrap();
    assert_eq!((conf.placement.network.as_str(), pools(&conf).len()), ("front", 1));
    assert_eq!((conf.mtu, conf.ip_masq, conf.bridge.as_str()), (Some(1300), false, "pw0"));
    assert_eq!(conf.cluster, nets(&["10.9.0.0/16", "10.20.0.0/16", "fd00:9::/48"]));
    // CNI_ARGS select the network, too.
    let blue = json!({ "cniVersion": "1.1.0", "name": "podwire", "tenant": "blue" });
    let call = add(&blue, "podwire.io/network=front");
    let conf = NetConf::for_call(&call, Some(&agent.networks())).unwrap();
    assert_eq!((conf.placement.network.as_str(), conf.mtu), ("front", Some(1300)));
    assert_eq!(agent.networks().network_ref_for(&call).unwrap().to_string(), "blue.front");
    // Without a name: the network of the group or the tenant, which the agent has looked up.
    let call = add(&blue, "podwire.io/group=web");
    let unnamed = unnamed_network(&call).unwrap();
    assert_eq!((unnamed.0.as_str(), unnamed.1.unwrap().as_str()), ("blue", "web"));
    let front = "front".try_into().unwrap();
    let networks = NodeNetworks { unnamed: Some(&front), ..agent.networks() };
    assert_eq!(NetConf::for_call(&call, Some(&networks)).unwrap().placement.network, front);
    // A tenant without a network named default-net uses the default network.
    let conf = agent.merge(&blue).unwrap();
    assert_eq!(
        (conf.placement.network.as_str(), pools(&conf).len(), conf.mtu),
        ("default-net", 2, Some(1400))
    );
}

#[test]
fn d_a_network_without_addresses_on_the_node_is_refused_with_the_reason() {
    let agent = agent_with_networks();
    let refused = |network: &str, tenant: &str| {
        let config =
            json!({ "cniVersion": "1.1.0", "name": "podwire", "tenant": tenant, "network": network });
        let error = agent.merge(&config).unwrap_err();
        (error.code, error.msg)
    };
    let empty = "this node has no block of network empty of tenant blue yet".to_owned();
    assert_eq!(refused("empty", "blue"), (ErrorCode::TryAgainLater, empty));
    let far = "network far of tenant blue has pods only on these nodes: n7, n8".to_owned();
    assert_eq!(refused("far", "blue"), (ErrorCode::InvalidConfig, far));
    let unknown =
        "network frnt of tenant blue does not exist; there are: default-net, empty, far, front".to_owned();
    assert_eq!(refused("frnt", "blue"), (ErrorCode::InvalidConfig, unknown));
    let other = "network front of tenant red does not exist; there are: default-net".to_owned();
    assert_eq!(refused("front", "red"), (ErrorCode::InvalidConfig, other));
    // Until the store was read, only the default network is known.
    let named = json!({ "cniVersion": "1.1.0", "name": "podwire", "network": "blue" });
    let error = super::merge::agent().merge(&named).unwrap_err();
    assert_eq!(error.code, ErrorCode::TryAgainLater);
    assert!(error.msg.contains("has not read networks"), "{}", error.msg);
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
