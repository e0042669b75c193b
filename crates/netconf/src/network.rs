//! The agent's networks: their settings, the blocks of them that this node owns, and the part that they have in a request.

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
use crate::wiring::{self, NetConf};
use crate::{is_dhcp, network_key};

/// The settings of a network, the same on every node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkSettings {
    /// The CNI network name of its pods.
    pub name: NetworkName,
    pub mode: AttachMode,
    pub bridge: IfName,
    /// One, or one for each family.
    pub subnets: Vec<IpNet>,
    /// None: the bridge's own if it is there, else 1500.
    pub mtu: Option<u32>,
    /// None: no limit.
    pub connections_per_pod: Option<u32>,
    pub masquerade: bool,
}

impl NetworkSettings {
    /// The subnets as configs write them.
    pub fn subnet_list(&self) -> String {
        comma_separated(&self.subnets)
    }
}

/// A list as configs write it.
pub fn comma_separated<T: Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// A network on this node. Valid and complete: pods that name nothing but the network get [`Self::conf`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// In the order in which they were claimed.
    blocks: Vec<IpNet>,
    /// The whole network, of which the blocks are a part.
    subnets: Vec<IpNet>,
    conf: NetConf,
}

impl Network {
    /// `mtu` is what the node's links carry. That of the settings has precedence.
    pub fn new(settings: &NetworkSettings, blocks: Vec<IpNet>, mtu: Option<u32>) -> Result<Self, Error> {
        let addresses = Addresses::Own(addresses::pools_of(&blocks)?);
        network_key::check(&settings.subnets)?;
        let conf = NetConf {
            mode: settings.mode,
            bridge: settings.bridge.clone(),
            mtu: wiring::usable_mtu(settings.mtu.or(mtu), &addresses)?,
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
            cluster: wiring::cluster(&addresses, &settings.subnets),
            addresses,
            dns: Dns::default(),
            ports: Vec::new(),
            bandwidth: None,
            placement: Placement::default(),
        };
        Ok(Self { blocks, subnets: settings.subnets.clone(), conf })
    }

    /// A node that owns the whole network.
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

    /// The ranges of the blocks, one set for each family.
    pub fn ranges(&self) -> &[RangeSet] {
        match &self.conf.addresses {
            Addresses::Own(pools) => pools.sets(),
            Addresses::Delegated(_) | Addresses::Absent => &[],
        }
    }

    /// The gateway of each block, in the order of the blocks. The node's gateway device carries them.
    pub fn gateways(&self) -> impl Iterator<Item = IpAddr> {
        let ranges = || self.ranges().iter().flat_map(RangeSet::ranges);
        let is_of = |range: &Range, block: &IpNet| range.subnet().trunc() == block.trunc();
        let gateway = move |block: &IpNet| ranges().find(|range| is_of(range, block)).map(Range::gateway);
        self.blocks.iter().filter_map(gateway)
    }
}

/// All blocks that a node owns, per network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeAllocation {
    networks: BTreeMap<NetworkId, Arc<Network>>,
}

impl NodeAllocation {
    /// The blocks of the default network, and of no other.
    pub fn of_default(network: Arc<Network>) -> Self {
        Self { networks: BTreeMap::from([(NetworkId::default(), network)]) }
    }

    pub fn default_network(&self) -> Option<&Arc<Network>> {
        self.networks.get(&NetworkId::default())
    }

    /// The network that a placement gets addresses from: the default network, unless the node has blocks of the named one.
    pub fn network_of(&self, placement: &Placement) -> Option<&Network> {
        self.networks.get(&placement.network).or_else(|| self.default_network()).map(Arc::as_ref)
    }

    /// The gateways of all networks: one device carries them.
    pub fn gateways(&self) -> impl Iterator<Item = IpAddr> {
        self.networks.values().flat_map(|network| network.gateways())
    }
}

/// The agent's part of the requests that it serves. [`NetConf::merge`] documents the precedence.
#[derive(Debug, Clone, Copy)]
pub struct NodeNetworks<'a> {
    /// The CNI network name of the agent's networks.
    pub name: &'a NetworkName,
    /// Of pods whose config states no mode, whatever their network.
    pub mode: AttachMode,
    /// The agent uses its own state only.
    pub run_dir: &'a Path,
    /// Err: the reason why this node owns no block.
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
        let none = |why: &str| {
            Error::new(ErrorCode::TryAgainLater, format!("this node has no addresses to give: {why}"))
        };
        let network = self.allocation.map_err(none)?.network_of(placement);
        let network =
            network.ok_or_else(|| none(&format!("it has no block of network {}", placement.network)))?;
        Ok(NetworkSource::AgentNetwork(network))
    }

    /// The network whose blocks give this pod its addresses. None: the config names ranges or an IPAM plugin of its own.
    pub fn network_for(&self, call: &AttachmentRequest) -> Option<&'a Network> {
        let placement = wiring::placement_of(call).ok()?;
        let network = self.source(&call.config, &placement).ok()?.network()?;
        addresses::leaves_ranges(&call.config).then_some(network)
    }

    /// The mode of a config that states none. DHCP and layer 2 work only in mode `bridge`.
    pub(crate) fn mode_for(&self, addresses: &Addresses) -> AttachMode {
        match addresses {
            Addresses::Absent => AttachMode::Bridge,
            Addresses::Delegated(plugin) if is_dhcp(plugin) => AttachMode::Bridge,
            Addresses::Own(_) | Addresses::Delegated(_) => self.mode,
        }
    }
}
