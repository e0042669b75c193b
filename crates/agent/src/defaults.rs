//! What the agent adds to a request: the config that runtimes hold names the network, and the agent knows the rest.

use std::path::Path;
use std::sync::Arc;

use cni::{Config, Request};
use ipnet::IpNet;
use serde_json::{Map, Value, json};
use types::NetworkName;

use crate::share::Shares;

/// The key under which this node's blocks stand in a config.
const SUBNET: &str = "subnet";

#[derive(Debug)]
pub(crate) struct Defaults {
    network: NetworkName,
    run_dir: Value,
    /// What this node has of the network.
    shares: Arc<Shares>,
    /// For a node that never had a share.
    values: Map<String, Value>,
}

impl Defaults {
    /// `values` in the words of a network config: `mode`, `bridge`, `subnet`, …
    pub(crate) fn new(
        network: NetworkName,
        run_dir: &Path,
        values: Map<String, Value>,
        shares: Arc<Shares>,
    ) -> Self {
        let run_dir = run_dir.to_string_lossy().into_owned().into();
        Self { network, run_dir, shares, values }
    }

    /// The blocks in a config that came from here, and not from whoever wrote it.
    pub(crate) fn filled_blocks(&self, config: &Config) -> Option<Vec<IpNet>> {
        let written: Map<String, Value> = serde_json::from_slice(&config.raw).ok()?;
        if written.keys().any(|key| key.eq_ignore_ascii_case(SUBNET) || key.eq_ignore_ascii_case("ipam")) {
            return None;
        }
        let text = config.map.get(SUBNET).and_then(Value::as_str)?;
        text.split(',').map(|block| block.parse().ok()).collect()
    }

    /// Does a config have the blocks there are now, wherever it has them from?
    pub(crate) fn is_current(&self, config: &Config) -> bool {
        let share = self.shares.last();
        let values = share.as_deref().map_or(&self.values, |share| &share.values);
        values.get(SUBNET) == config.map.get(SUBNET)
    }

    /// Gives such a config the blocks there are now.
    pub(crate) fn refill(&self, config: &mut Config) {
        let share = self.shares.last();
        let values = share.as_deref().map_or(&self.values, |share| &share.values);
        if let Some(blocks) = values.get(SUBNET) {
            config.map.insert(SUBNET.to_owned(), blocks.clone());
        }
    }

    pub(crate) fn fill(&self, request: &mut Request) {
        match request {
            Request::Add(call) | Request::Del(call) | Request::Check(call) => {
                self.fill_config(&mut call.config);
            }
            Request::Gc(gc) => self.fill_config(&mut gc.config),
            Request::Status(config) => self.fill_config(config),
            Request::Version(_) => {}
        }
    }

    fn fill_config(&self, config: &mut Config) {
        let is_ours = config.name == self.network;
        // Whoever has another plugin for addresses wants none of ours.
        let ipam = netconf::foreign_ipam(config);
        let wants_addresses = ipam.is_none();
        let is_layer2 = wants_addresses && !is_ours && is_layer2_only(config);
        // The mode of these can only be the default of a config.
        let is_bridge = is_layer2 || ipam.is_some_and(netconf::is_dhcp);
        let share = self.shares.last();
        let values = share.as_deref().map_or(&self.values, |share| &share.values);
        for (key, value) in values {
            let is_wanted = match key.as_str() {
                "mode" => !is_bridge,
                SUBNET => is_ours && wants_addresses,
                _ => is_ours,
            };
            if is_wanted && config.obj().get(key).is_none() {
                config.map.insert(key.clone(), value.clone());
            }
        }
        if wants_addresses && !is_layer2 && config.obj().get("ipam").is_none() {
            // Refused where no subnet is known, in every mode: the name of the network may be misspelt.
            config.map.insert("ipam".to_owned(), json!({ "type": "podwire" }));
        }
        // This spelling wins over all others: the agent works on its own state and no other.
        config.map.insert("runDir".to_owned(), self.run_dir.clone());
    }
}

/// Whether a config of another network is for layer 2 only: it names no addresses, and has a bridge, a mode or an empty `ipam`
/// of its own. One that has nothing but a name means the agent's network, and is misspelt.
fn is_layer2_only(config: &Config) -> bool {
    let describes = ["bridge", "mode", "ipam"].iter().any(|key| config.obj().get(key).is_some());
    describes && netconf::is_without_addresses(config)
}

#[cfg(test)]
mod tests {
    use netconf::{Addresses, NetConf, Place};
    use types::AttachMode;

    use super::*;

    fn defaults() -> Defaults {
        defaults_of("routed")
    }

    fn defaults_of(mode: &str) -> Defaults {
        let values = json!({ "mode": mode, "bridge": "pw0", "subnet": "10.9.0.0/24,fd00:9::/64",
                             "mtu": 1400, "ipMasq": true });
        let Value::Object(values) = values else { unreachable!() };
        Defaults::new(
            "podwire".try_into().unwrap(),
            Path::new("/run/agent-7"),
            values,
            Arc::new(Shares::none("", Vec::new())),
        )
    }

    fn filled(config: &Value) -> Config {
        filled_by(&defaults(), config)
    }

    fn filled_by(defaults: &Defaults, config: &Value) -> Config {
        let mut request = Request::Status(Config::from_slice(config.to_string().as_bytes()).unwrap());
        defaults.fill(&mut request);
        match request {
            Request::Status(config) => config,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_config_that_only_names_our_network_gets_all() {
        let config = filled(&json!({ "cniVersion": "1.1.0", "name": "podwire", "type": "podwire-cni" }));
        let conf = NetConf::parse(&config).unwrap();
        assert_eq!((conf.mode, conf.bridge.as_str(), conf.mtu), (AttachMode::Routed, "pw0", Some(1400)));
        assert!(conf.ip_masq);
        let Addresses::Own(pools) = &conf.addresses else { panic!("{conf:?}") };
        assert_eq!(pools.sets().len(), 2);
        assert_eq!(Place::parse(&config).unwrap().run_dir, Path::new("/run/agent-7"));
    }

    #[test]
    fn what_the_config_says_stays_whatever_its_case() {
        let config =
            filled(&json!({ "cniVersion": "1.1.0", "name": "podwire", "Mode": "bridge", "MTU": 1300,
                                     "subnet": "10.77.0.0/24", "ipmasq": false }));
        let conf = NetConf::parse(&config).unwrap();
        assert_eq!((conf.mode, conf.mtu, conf.ip_masq), (AttachMode::Bridge, Some(1300), false));
        assert_eq!(conf.cluster, ["10.77.0.0/24".parse().unwrap()]);
    }

    #[test]
    fn another_network_gets_the_mode_and_nothing_else() {
        let config = filled(&json!({ "cniVersion": "1.1.0", "name": "storage", "subnet": "10.77.0.0/24" }));
        let conf = NetConf::parse(&config).unwrap();
        assert_eq!((conf.mode, conf.bridge.as_str(), conf.mtu), (AttachMode::Routed, "cni0", None));
        assert!(!conf.ip_masq);
    }

    #[test]
    fn the_run_dir_is_always_the_agents() {
        for (key, dir) in [("runDir", "/tmp/x"), ("rundir", "/tmp/x"), ("RUNDIR", "")] {
            let config = filled(&json!({ "cniVersion": "1.1.0", "name": "storage", key: dir,
                                         "ipam": { "dataDir": "/tmp/y" } }));
            assert_eq!(Place::parse(&config).unwrap().run_dir, Path::new("/run/agent-7"), "{key}");
        }
    }

    #[test]
    fn b11_a_misspelt_network_is_not_taken_for_one_without_addresses() {
        for mode in ["routed", "bridge"] {
            let named = json!({ "cniVersion": "1.1.0", "name": "podwrie", "type": "podwire-cni" });
            let error = NetConf::parse(&filled_by(&defaults_of(mode), &named)).unwrap_err();
            assert!(error.msg.contains("no addresses") && error.msg.contains(r#""ipam": {}"#), "{error}");
        }
    }

    #[test]
    fn b11_a_layer_2_only_config_of_the_reference_is_accepted_whatever_the_agents_mode() {
        for mode in ["routed", "bridge"] {
            for (key, value) in [("bridge", json!("br1")), ("ipam", json!({})), ("mode", json!("bridge"))] {
                let config = json!({ "cniVersion": "1.0.0", "name": "wire", "type": "bridge", key: value });
                let conf = NetConf::parse(&filled_by(&defaults_of(mode), &config)).unwrap();
                assert!(matches!(conf.addresses, Addresses::Absent), "{mode} {key}: {conf:?}");
                assert_eq!(conf.mode, AttachMode::Bridge, "{mode} {key}");
            }
            // A misspelt key asks for addresses, and the agent's own network always has some.
            let misspelt =
                json!({ "cniVersion": "1.0.0", "name": "wire", "bridge": "br1", "subnets": "10.7.0.0/24" });
            assert!(NetConf::parse(&filled_by(&defaults_of(mode), &misspelt)).is_err(), "{mode}");
            let own = json!({ "cniVersion": "1.0.0", "name": "podwire", "bridge": "br1", "ipam": {} });
            let conf = NetConf::parse(&filled_by(&defaults_of(mode), &own)).unwrap();
            assert!(matches!(conf.addresses, Addresses::Own(_)), "{mode}: {conf:?}");
        }
    }

    #[test]
    fn a_foreign_ipam_plugin_keeps_its_say() {
        let config = filled(&json!({ "cniVersion": "1.1.0", "name": "podwire", "ipam": { "type": "dhcp" } }));
        assert!(config.obj().get("subnet").is_none());
        let conf = NetConf::parse(&config).unwrap();
        assert_eq!(conf.mode, AttachMode::Bridge, "the only mode with DHCP");
        assert!(matches!(conf.addresses, Addresses::Delegated(plugin) if plugin == "dhcp"));
    }
}
