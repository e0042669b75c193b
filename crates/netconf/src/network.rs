//! The agent's networks: their settings, the blocks that this node owns, and their role in a request.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use cni::{AttachmentRequest, Dns, Error, ErrorCode, NetworkConfig};
use ipam::{Range, RangeSet};
use ipnet::IpNet;
use types::{AttachMode, IfName, NetworkId, NetworkName, Placement};

use crate::addresses::{self, Addresses, NetworkSource};
use crate::conf::{self, NetConf};
use crate::{is_dhcp, network_key};

/// The settings of a network, the same on every node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkSettings {
    /// The CNI network name of its pods.
    pub name: NetworkName,
    pub mode: AttachMode,
    pub bridge: IfName,
    /// At most one per family.
    pub subnets: Vec<IpNet>,
    /// None: the MTU of the bridge if it exists, else 1500.
    pub mtu: Option<u32>,
    /// None: no limit.
    pub connections_per_pod: Option<u32>,
    pub masquerade: bool,
}

impl NetworkSettings {
    /// The subnets, separated by commas as in configs.
    pub fn subnet_list(&self) -> String {
        comma_separated(&self.subnets)
    }
}

/// A list in the format of configs.
pub fn comma_separated<T: Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// A network on this node, validated and complete. [`Self::conf`] applies to pods with a config that contains only the
/// network's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// In the order of their claims.
    blocks: Vec<IpNet>,
    /// The whole network. All blocks are inside.
    subnets: Vec<IpNet>,
    conf: NetConf,
}

impl Network {
    /// `mtu` is the MTU of the node's links. The MTU in the settings has precedence.
    pub fn new(settings: &NetworkSettings, blocks: Vec<IpNet>, mtu: Option<u32>) -> Result<Self, Error> {
        let addresses = Addresses::Own(addresses::pools_of(&blocks)?);
        network_key::check(&settings.subnets)?;
        let conf = NetConf {
            mode: settings.mode,
            bridge: settings.bridge.clone(),
            mtu: conf::usable_mtu(settings.mtu.or(mtu), &addresses)?,
            is_gateway: true,
            is_default_gateway: true,
            ip_masq: settings.masquerade,
            hairpin: true,
            promisc: false,
            force_address: false,
            spoof_check: true,
            requested: Vec::new(),
            mac: None,
            routes: Vec::new(),
            cluster: conf::cluster(&addresses, &settings.subnets),
            addresses,
            dns: Dns::default(),
            ports: Vec::new(),
            bandwidth: None,
            placement: Placement::default(),
        };
        Ok(Self { blocks, subnets: settings.subnets.clone(), conf })
    }

    /// For a node that owns the whole network.
    pub fn whole(settings: &NetworkSettings) -> Result<Self, Error> {
        Self::new(settings, settings.subnets.clone(), None)
    }

    pub fn blocks(&self) -> &[IpNet] {
        &self.blocks
    }

    pub fn subnets(&self) -> &[IpNet] {
        &self.subnets
    }

    pub fn mtu(&self) -> Option<u32> {
        self.conf.mtu
    }

    pub fn conf(&self) -> &NetConf {
        &self.conf
    }

    /// The ranges of the blocks, one set per family.
    pub fn ranges(&self) -> &[RangeSet] {
        match &self.conf.addresses {
            Addresses::Own(pools) => pools.sets(),
            Addresses::Delegated(_) | Addresses::Absent => &[],
        }
    }

    /// The gateway of each block, in the order of the blocks. They are assigned to the node's gateway device.
    pub fn gateways(&self) -> impl Iterator<Item = IpAddr> {
        let ranges = || self.ranges().iter().flat_map(RangeSet::ranges);
        let is_in = |range: &Range, block: &IpNet| range.subnet().trunc() == block.trunc();
        let gateway = move |block: &IpNet| ranges().find(|range| is_in(range, block)).map(Range::gateway);
        self.blocks.iter().filter_map(gateway)
    }
}

/// All blocks that a node owns, per network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeAllocation {
    networks: BTreeMap<NetworkId, Arc<Network>>,
}

impl NodeAllocation {
    /// Only blocks of the default network.
    pub fn of_default(network: Arc<Network>) -> Self {
        Self { networks: BTreeMap::from([(NetworkId::default(), network)]) }
    }

    pub fn default_network(&self) -> Option<&Arc<Network>> {
        self.networks.get(&NetworkId::default())
    }

    /// The network that provides a placement's addresses: the named network if the node has blocks of it, else the default
    /// network.
    pub fn network_of(&self, placement: &Placement) -> Option<&Network> {
        self.networks.get(&placement.network).or_else(|| self.default_network()).map(Arc::as_ref)
    }

    /// The gateways of all networks. They are assigned to one device.
    pub fn gateways(&self) -> impl Iterator<Item = IpAddr> {
        self.networks.values().flat_map(|network| network.gateways())
    }
}

/// The agent's settings for the requests that it serves. [`NetConf::merge`] documents the precedence.
#[derive(Debug, Clone, Copy)]
pub struct NodeNetworks<'a> {
    /// The CNI network name of the agent's networks.
    pub name: &'a NetworkName,
    /// The mode for configs without `mode`, in every network.
    pub mode: AttachMode,
    /// Replaces the `runDir` of a config.
    pub run_dir: &'a Path,
    /// Err: the reason for a node without blocks.
    pub allocation: Result<&'a NodeAllocation, &'a str>,
}

impl<'a> NodeNetworks<'a> {
    pub(crate) fn source(
        &self,
        config: &NetworkConfig,
        placement: &Placement,
    ) -> Result<NetworkSource<'a>, Error> {
        if config.name != *self.name {
            return Ok(NetworkSource::OtherNetwork);
        }
        let no_addresses = |reason: &str| {
            Error::new(ErrorCode::TryAgainLater, format!("this node has no addresses to assign: {reason}"))
        };
        let network = self.allocation.map_err(no_addresses)?.network_of(placement);
        let network = network
            .ok_or_else(|| no_addresses(&format!("it has no block of network {}", placement.network)))?;
        Ok(NetworkSource::AgentNetwork(network))
    }

    /// The network that provides this pod's addresses from its blocks. None: the config has ranges or an IPAM plugin.
    pub fn network_for(&self, call: &AttachmentRequest) -> Option<&'a Network> {
        let placement = conf::placement_of(call).ok()?;
        let network = self.source(&call.config, &placement).ok()?.network()?;
        addresses::uses_agent_ranges(&call.config).then_some(network)
    }

    /// The mode for a config without `mode`. DHCP and layer 2 only work in mode `bridge`.
    pub(crate) fn mode_for(&self, addresses: &Addresses) -> AttachMode {
        match addresses {
            Addresses::Absent => AttachMode::Bridge,
            Addresses::Delegated(plugin) if is_dhcp(plugin) => AttachMode::Bridge,
            Addresses::Own(_) | Addresses::Delegated(_) => self.mode,
        }
    }
}
