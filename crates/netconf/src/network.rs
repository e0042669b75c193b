//! The agent's networks: their settings, the blocks that this node owns, and their role in a request.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use cni::{AttachmentRequest, Dns, Error, ErrorCode, NetworkConfig};
use ipam::{Range, RangeSet};
use ipnet::IpNet;
use types::{
    AttachMode, DEFAULT_NETWORK, GroupName, IfName, NetworkId, NetworkName, NetworkRef, NodeName, Placement,
};

use crate::addresses::{self, Addresses, NetworkSource};
use crate::conf::{self, BridgeMtu, NetConf};
use crate::pools::PooledAddresses;
use crate::{GroupPools, is_dhcp, network_key};

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
    /// The subnets of all networks. Traffic to them is not masqueraded.
    cluster: Vec<IpNet>,
    /// None: no group has pools.
    pools: Option<(GroupPools, PooledAddresses)>,
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
            bridge_mtu: BridgeMtu::OfThisNetwork,
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
        Ok(Self {
            blocks,
            subnets: settings.subnets.clone(),
            cluster: settings.subnets.clone(),
            pools: None,
            conf,
        })
    }

    /// Traffic to these CIDRs of other networks is not masqueraded either.
    pub fn with_cluster(mut self, cidrs: &[IpNet]) -> Self {
        if cidrs.iter().all(|cidr| self.subnets.contains(cidr)) {
            return self;
        }
        self.cluster = [&self.subnets, cidrs].concat();
        self.cluster.sort();
        self.cluster.dedup();
        // Without the blocks, which are inside of the subnets: all networks have the same list.
        self.conf.cluster.clone_from(&self.cluster);
        self
    }

    /// Reserves the pools of groups.
    pub fn with_pools(self, pools: GroupPools) -> Result<Self, Error> {
        if pools.values().all(Vec::is_empty) {
            return Ok(self);
        }
        let pooled = PooledAddresses::new(&self.subnets, &self.blocks, &pools)?;
        Ok(Self { pools: Some((pools, pooled)), ..self })
    }

    /// The addresses for a pod of this group.
    pub(crate) fn addresses_for(&self, group: Option<&GroupName>) -> Result<Addresses, Error> {
        match &self.pools {
            Some((_, pooled)) => pooled.of(group).cloned(),
            None => Ok(self.conf.addresses.clone()),
        }
    }

    /// The pools that provide the addresses of a group. Empty: it gets addresses like pods without a group.
    pub fn pools_of(&self, group: Option<&GroupName>) -> &[IpNet] {
        let pools = self.pools.as_ref().zip(group).and_then(|((pools, _), group)| pools.get(group));
        pools.map(Vec::as_slice).unwrap_or_default()
    }

    /// The default network determines the MTU of the bridge.
    pub fn on_shared_bridge(mut self) -> Self {
        self.conf.bridge_mtu = BridgeMtu::OfOtherNetwork;
        self
    }

    /// The subnets of all networks.
    pub fn cluster(&self) -> &[IpNet] {
        &self.cluster
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

/// A network of the cluster, on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeNetwork {
    /// The node has a block of each subnet.
    Ready(Arc<Network>),
    /// A block is claimed when the first pod needs one.
    NoBlock,
    /// Only these nodes can have pods in it.
    OtherNodes(Vec<NodeName>),
    /// In attach mode `bridge`, all pods share the default network.
    ModeBridge,
    /// It cannot be used, and why.
    Invalid(String),
}

/// All networks of the cluster, with the blocks that this node owns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeAllocation {
    networks: BTreeMap<NetworkRef, NodeNetwork>,
    /// Whether networks other than the default one are known.
    has_objects: bool,
}

impl NodeAllocation {
    /// Only the default network. Other networks are not known yet.
    pub fn of_default(network: Arc<Network>) -> Self {
        let networks = BTreeMap::from([(NetworkRef::default(), NodeNetwork::Ready(network))]);
        Self { networks, has_objects: false }
    }

    /// With all other networks of the cluster.
    pub fn with_networks(mut self, others: BTreeMap<NetworkRef, NodeNetwork>) -> Self {
        self.networks.retain(|network, _| network.is_default());
        self.networks.extend(others.into_iter().filter(|(network, _)| !network.is_default()));
        Self { has_objects: true, ..self }
    }

    pub fn default_network(&self) -> Option<&Arc<Network>> {
        self.ready(&NetworkRef::default())
    }

    /// A network of which this node has blocks.
    pub fn ready(&self, network: &NetworkRef) -> Option<&Arc<Network>> {
        match self.networks.get(network)? {
            NodeNetwork::Ready(network) => Some(network),
            NodeNetwork::NoBlock
            | NodeNetwork::OtherNodes(_)
            | NodeNetwork::ModeBridge
            | NodeNetwork::Invalid(_) => None,
        }
    }

    /// All networks of which this node has blocks.
    pub fn networks(&self) -> impl Iterator<Item = (&NetworkRef, &Arc<Network>)> {
        self.networks.keys().filter_map(|network| Some((network, self.ready(network)?)))
    }

    /// The network that provides a placement's addresses. A tenant without a network named `default-net` uses the default network.
    pub fn network_ref_of(&self, placement: &Placement) -> NetworkRef {
        let named = NetworkRef::new(&placement.tenant, &placement.network);
        let is_shared = placement.network == NetworkId::default() && !self.networks.contains_key(&named);
        if is_shared { NetworkRef::default() } else { named }
    }

    /// The network that provides a placement's addresses, or why there is none.
    fn network_of(&self, placement: &Placement) -> Result<&Arc<Network>, Error> {
        let wanted = self.network_ref_of(placement);
        let NetworkRef { tenant, network } = &wanted;
        let later = |message: String| Error::new(ErrorCode::TryAgainLater, message);
        match self.networks.get(&wanted) {
            Some(NodeNetwork::Ready(network)) => Ok(network),
            Some(NodeNetwork::NoBlock) => {
                Err(later(format!("this node has no block of network {network} of tenant {tenant} yet")))
            }
            Some(NodeNetwork::OtherNodes(nodes)) => {
                let nodes = nodes.iter().map(NodeName::as_str).collect::<Vec<_>>().join(", ");
                Err(Error::new(
                    ErrorCode::InvalidConfig,
                    format!("network {network} of tenant {tenant} has pods only on these nodes: {nodes}"),
                ))
            }
            Some(NodeNetwork::ModeBridge) => Err(Error::new(
                ErrorCode::InvalidConfig,
                format!(
                    "network {network} of tenant {tenant} needs attach mode routed: in mode bridge, all pods share the \
                     default network"
                ),
            )),
            Some(NodeNetwork::Invalid(reason)) => {
                Err(later(format!("network {network} of tenant {tenant} cannot be used: {reason}")))
            }
            None if !self.has_objects => {
                Err(later("the agent has not read networks from the store yet".to_owned()))
            }
            None => {
                let own = self.networks.keys().filter(|other| other.tenant == *tenant);
                let mut names: Vec<&str> = own.map(|other| other.network.as_str()).collect();
                names.push(DEFAULT_NETWORK);
                names.sort_unstable();
                names.dedup();
                let message = format!(
                    "network {network} of tenant {tenant} does not exist; there are: {}",
                    names.join(", ")
                );
                Err(Error::new(ErrorCode::InvalidConfig, message))
            }
        }
    }

    /// The gateways of all networks. They are assigned to one device.
    pub fn gateways(&self) -> impl Iterator<Item = IpAddr> {
        // Those of the default network first: packets of the node have them as source.
        let default = self.default_network();
        let others = self.networks().filter(|(network, _)| !network.is_default()).map(|(_, network)| network);
        default.into_iter().chain(others).flat_map(|network| network.gateways())
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
    /// The network of a pod whose config and CNI_ARGS name none. None: the default network.
    pub unnamed: Option<&'a NetworkId>,
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
        self.allocation
            .map_err(no_addresses)?
            .network_of(placement)
            .map(|network| NetworkSource::AgentNetwork(network))
    }

    /// The network that provides this pod's addresses from its blocks. None: the config has ranges or an IPAM plugin.
    pub fn network_for(&self, call: &AttachmentRequest) -> Option<&'a Network> {
        let placement = conf::placement_of(call, self.unnamed).ok()?;
        let network = self.source(&call.config, &placement).ok()?.network()?;
        addresses::uses_agent_ranges(&call.config).then_some(network)
    }

    /// The network of this pod, if the agent's networks provide its addresses.
    pub fn network_ref_for(&self, call: &AttachmentRequest) -> Option<NetworkRef> {
        let placement = conf::placement_of(call, self.unnamed).ok()?;
        let is_provided = call.config.name == *self.name && addresses::uses_agent_ranges(&call.config);
        is_provided.then(|| self.allocation.ok().map(|allocation| allocation.network_ref_of(&placement)))?
    }

    /// The pools that provide the addresses of this pod. Empty: any addresses of its network.
    pub fn pools_for(&self, call: &AttachmentRequest) -> &'a [IpNet] {
        let placement = conf::placement_of(call, self.unnamed).ok();
        let network = self.network_for(call).zip(placement);
        network.map(|(network, placement)| network.pools_of(placement.group.as_ref())).unwrap_or_default()
    }

    /// Whether a block of this network is claimed when a pod needs one.
    pub fn lacks_block_of(&self, network: &NetworkRef) -> bool {
        let found = self.allocation.ok().and_then(|allocation| allocation.networks.get(network));
        found.is_some_and(|found| *found == NodeNetwork::NoBlock)
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
