//! The same network for both plugins: the bridge is the gateway, pods have a default route through it, hairpin is on.

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use serde_json::{Map, Value, json};
use types::{AttachMode, IfName, NetworkName};

/// The newest CNI version that the packaged reference plugins support.
pub(crate) const CNI_VERSION: &str = "1.0.0";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stack {
    V4,
    Dual,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Masquerade {
    Off,
    On,
}

/// A network of the benchmark. Its number determines its name, bridge and subnets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BenchNetwork {
    pub(crate) number: u8,
    pub(crate) stack: Stack,
    pub(crate) masquerade: Masquerade,
}

impl BenchNetwork {
    pub(crate) const V4: Self = Self { number: 1, stack: Stack::V4, masquerade: Masquerade::Off };
    pub(crate) const DUAL: Self = Self { number: 2, stack: Stack::Dual, masquerade: Masquerade::Off };
    pub(crate) const MASQUERADED: Self = Self { number: 3, stack: Stack::Dual, masquerade: Masquerade::On };
    pub(crate) const FEW: Self = Self { number: 4, stack: Stack::Dual, masquerade: Masquerade::Off };
    pub(crate) const MANY: Self = Self { number: 5, stack: Stack::Dual, masquerade: Masquerade::Off };
    pub(crate) const RESIDENT: Self = Self { number: 6, stack: Stack::Dual, masquerade: Masquerade::Off };

    pub(crate) fn name(&self) -> Result<NetworkName> {
        Ok(NetworkName::try_from(self.name_text())?)
    }

    pub(crate) fn bridge(&self) -> Result<IfName> {
        Ok(IfName::try_from(format!("br{}", self.number))?)
    }

    pub(crate) fn subnets(&self) -> Result<Vec<IpNet>> {
        let texts = [format!("10.{}.0.0/16", 80 + self.number), format!("fd00:{}::/64", 80 + self.number)];
        let count = match self.stack {
            Stack::V4 => 1,
            Stack::Dual => 2,
        };
        texts[..count]
            .iter()
            .map(|text| text.parse().with_context(|| format!("{text} is not a subnet")))
            .collect()
    }

    /// The first address of each subnet, as both plugins use it.
    pub(crate) fn gateways(&self) -> Result<Vec<IpNet>> {
        let first = |net: IpNet| -> Result<IpNet> {
            let gateway: IpAddr = net.hosts().next().with_context(|| format!("{net} has no host"))?;
            Ok(IpNet::new(gateway, net.prefix_len())?)
        };
        self.subnets()?.into_iter().map(first).collect()
    }

    pub(crate) fn podwire(&self, mode: AttachMode, dir: &Path) -> Result<Value> {
        let mut config = self.common()?;
        config.insert("type".to_owned(), json!("podwire-cni"));
        config.insert("mode".to_owned(), json!(mode));
        config.insert("runDir".to_owned(), json!(dir.join("state")));
        config.insert("logFile".to_owned(), json!(dir.join("podwire.log")));
        config.insert("ipam".to_owned(), json!({"type": "podwire", "ranges": self.ranges()?}));
        Ok(Value::Object(config))
    }

    /// The same network through the agent, which uses the run directory of the standalone plugin.
    pub(crate) fn through_agent(&self, mode: AttachMode, dir: &Path) -> Result<Value> {
        let mut config = self.podwire(mode, dir)?;
        config["agent"] = json!(dir.join("state/agent.sock"));
        Ok(config)
    }

    pub(crate) fn reference(&self, dir: &Path) -> Result<Value> {
        let mut config = self.common()?;
        config.insert("type".to_owned(), json!("bridge"));
        config.insert(
            "ipam".to_owned(),
            json!({"type": "host-local", "dataDir": dir.join("ipam"), "ranges": self.ranges()?}),
        );
        Ok(Value::Object(config))
    }

    fn common(&self) -> Result<Map<String, Value>> {
        let entries = [
            ("cniVersion", json!(CNI_VERSION)),
            ("name", json!(self.name_text())),
            ("bridge", json!(self.bridge()?)),
            ("isGateway", json!(true)),
            ("isDefaultGateway", json!(true)),
            ("hairpinMode", json!(true)),
            ("ipMasq", json!(self.masquerade == Masquerade::On)),
        ];
        Ok(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    fn name_text(&self) -> String {
        format!("bench{}", self.number)
    }

    fn ranges(&self) -> Result<Value> {
        Ok(self.subnets()?.into_iter().map(|subnet| json!([{"subnet": subnet}])).collect())
    }
}
