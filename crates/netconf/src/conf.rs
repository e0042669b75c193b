use std::net::IpAddr;

use cni::json::Obj;
use cni::{
    Args, AttachmentRequest, Bandwidth, Dns, Error, ErrorCode, NetworkConfig, PodRoute, PortMapping,
    RequestedIp,
};
use ipam::{Pools, Range, RangeSet};
use ipnet::IpNet;
use types::{
    AttachMode, GroupName, IfName, MAX_MTU, MIN_MTU_V4, MIN_MTU_V6, Mac, NetworkId, Placement, TenantName,
};

use crate::addresses::{Addresses, NetworkSource, external_ipam, is_dhcp, missing_ranges, uses_agent_ranges};
use crate::network_key::NetworkKey;
use crate::routes::{self, default_route};
use crate::unsupported::refuse_unsupported;
use crate::{Network, NodeNetworks, at_most, invalid};

/// The default of the reference bridge plugin.
pub const DEFAULT_BRIDGE: &str = "cni0";

/// Limit, because each host port is an nftables element and part of the record.
const MAX_PORTS: usize = 4096;

/// The network whose MTU the bridge has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BridgeMtu {
    OfThisNetwork,
    /// Several networks have their gateways on the bridge, and another one determines its MTU.
    OfOtherNetwork,
}

/// The network settings of a request, with all defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetConf {
    pub mode: AttachMode,
    pub bridge: IfName,
    /// None: the MTU of the bridge if it exists, else 1500.
    pub mtu: Option<u32>,
    pub bridge_mtu: BridgeMtu,
    /// The bridge has the gateway address, and the host forwards.
    pub is_gateway: bool,
    /// The pod gets default routes through the gateway, in addition to `routes`.
    pub is_default_gateway: bool,
    pub ip_masq: bool,
    pub hairpin: bool,
    pub promisc: bool,
    /// Replaces a different address of the bridge that overlaps the gateway's subnet. Otherwise such an address is an error.
    pub force_address: bool,
    /// A pod can only send from its assigned addresses and MAC.
    pub spoof_check: bool,
    pub addresses: Addresses,
    pub requested: Vec<RequestedIp>,
    pub mac: Option<Mac>,
    pub routes: Vec<PodRoute>,
    /// Pod traffic inside these CIDRs is not masqueraded.
    pub cluster: Vec<IpNet>,
    pub dns: Dns,
    pub ports: Vec<PortMapping>,
    pub bandwidth: Option<Bandwidth>,
    pub placement: Placement,
}

impl NetConf {
    /// The settings for an ADD or CHECK of one pod.
    pub fn for_call(call: &AttachmentRequest, node: Option<&NodeNetworks<'_>>) -> Result<Self, Error> {
        let mut conf = Self::build(&call.config, &call.args, node)?;
        conf.requested = call.requested_ips();
        if matches!(conf.addresses, Addresses::Absent) && !conf.requested.is_empty() {
            return Err(missing_ranges("; an address was requested for the pod"));
        }
        conf.mac = call.requested_mac();
        Ok(conf)
    }

    /// The settings of a network without an agent.
    pub fn parse(config: &NetworkConfig) -> Result<Self, Error> {
        Self::merge(config, None)
    }

    /// The settings of a network, independent of a pod. Precedence, for each setting:
    ///
    /// 1. The request's config. Keys are case-insensitive, and null counts as absent.
    /// 2. The agent's network, if the config has its CNI network name: mode, bridge, MTU, masquerade and CIDRs. Its blocks
    ///    provide the addresses, unless the config has ranges or an IPAM plugin. Configs of other networks only inherit the
    ///    agent's mode, and only if the mode supports their addresses.
    /// 3. The defaults of the reference plugin.
    pub fn merge(config: &NetworkConfig, node: Option<&NodeNetworks<'_>>) -> Result<Self, Error> {
        Self::build(config, &Args::default(), node)
    }

    fn build(config: &NetworkConfig, args: &Args, node: Option<&NodeNetworks<'_>>) -> Result<Self, Error> {
        let top = config.obj();
        let ipam = top.obj("ipam")?;
        // Another IPAM plugin reads its own keys.
        refuse_unsupported(&top, ipam.as_ref().filter(|_| external_ipam(config).is_none()))?;
        let key = NetworkKey::parse(&top)?;
        let unnamed = node.and_then(|node| node.unnamed);
        let placement = placement(config, args, (key.as_ref(), unnamed))?;
        let source = node.map_or(Ok(NetworkSource::Standalone), |node| node.source(config, &placement))?;
        let network = source.network();
        let addresses = Addresses::merge(config, source, placement.group.as_ref())?;
        let routes = match &ipam {
            Some(ipam) if matches!(addresses, Addresses::Own(_)) => routes::parse_all(ipam)?,
            Some(_) | None => Vec::new(),
        };
        let uses_own_ipam = matches!(addresses, Addresses::Own(_));
        at_most(MAX_PORTS, "runtimeConfig.portMappings", config.runtime.port_mappings.len())?;
        let mode = match (parse_mode(&top)?, node) {
            (Some(mode), _) => mode,
            (None, Some(node)) => node.mode_for(&addresses),
            (None, None) => AttachMode::Bridge,
        };
        check_mode(mode, &addresses)?;
        // Without addresses, gateway and masquerade settings are ignored as in the reference plugin. Host ports are refused.
        let has_addresses = !matches!(addresses, Addresses::Absent);
        if !has_addresses && !config.runtime.port_mappings.is_empty() {
            return Err(missing_ranges("; host ports need an address of the pod"));
        }
        // If Podwire assigns the addresses, pods get a default route by default. With an external IPAM plugin, the defaults of
        // the reference plugin apply.
        let is_gateway = top.bool("isGateway")?;
        let default_gateway = top.bool("isDefaultGateway")?;
        let is_default_gateway = has_addresses
            && default_gateway.unwrap_or(uses_own_ipam && routes.is_empty() && is_gateway != Some(false));
        let promisc = top.bool("promiscMode")?.unwrap_or(false);
        if mode == AttachMode::Routed && is_gateway == Some(false) {
            return Err(invalid(
                "isGateway",
                "mode \"routed\" needs the gateway; remove isGateway or set it to true",
            ));
        }
        let masquerade = top.bool("ipMasq")?.or(network.map(|network| network.conf().ip_masq));
        let cidrs = match &key {
            Some(NetworkKey::Cidrs(cidrs)) => cidrs.as_slice(),
            Some(NetworkKey::Id(_)) | None => network.map(Network::cluster).unwrap_or_default(),
        };
        let cluster = match (&key, network) {
            // All pods of the agent's networks have the same list, so that they share a chain.
            (Some(NetworkKey::Id(_)) | None, Some(network)) if uses_agent_ranges(config) => {
                network.conf().cluster.clone()
            }
            (Some(_) | None, _) => cluster(&addresses, cidrs),
        };
        Ok(Self {
            mode,
            bridge: parse_bridge(&top, network)?,
            bridge_mtu: network.map_or(BridgeMtu::OfThisNetwork, |network| network.conf().bridge_mtu),
            mtu: usable_mtu(top.u32("mtu")?.or(network.and_then(Network::mtu)), &addresses)?,
            is_gateway: has_addresses
                && (is_gateway.unwrap_or(uses_own_ipam) || is_default_gateway || mode == AttachMode::Routed),
            is_default_gateway,
            ip_masq: masquerade.unwrap_or(false) && has_addresses,
            hairpin: parse_hairpin(&top, promisc)?,
            promisc,
            force_address: top.bool("forceAddress")?.unwrap_or(false),
            spoof_check: top.bool("spoofCheck")?.or(top.bool("macspoofchk")?).unwrap_or(true),
            requested: Vec::new(),
            mac: None,
            routes,
            cluster,
            dns: config.result_dns().clone(),
            ports: config.runtime.port_mappings.clone(),
            bandwidth: config.runtime.bandwidth,
            placement,
            addresses,
        })
    }

    /// The routes of a pod with these addresses: the configured routes and, with `is_default_gateway`, the default routes.
    pub fn pod_routes(&self, pod: &[IpAddr]) -> Vec<PodRoute> {
        let mut routes = self.routes.clone();
        if self.is_default_gateway {
            for address in pod {
                let default = default_route(*address);
                if !routes.iter().any(|r| r.dst == default.dst && routes::is_in_main(r)) {
                    routes.push(default);
                }
            }
        }
        // The kernel rejects routes of a family without an address.
        routes.retain(|r| pod.iter().any(|a| a.is_ipv4() == r.dst.addr().is_ipv4()));
        routes
    }
}

/// `unnamed` is the network of a pod that names none.
pub(crate) fn placement_of(
    call: &AttachmentRequest,
    unnamed: Option<&NetworkId>,
) -> Result<Placement, Error> {
    placement(&call.config, &call.args, (NetworkKey::parse(&call.config.obj())?.as_ref(), unnamed))
}

/// The tenant and the group of a pod whose config and CNI_ARGS name no network. Its network is that of the group, or the default
/// one of the tenant.
pub fn unnamed_network(call: &AttachmentRequest) -> Option<(TenantName, Option<GroupName>)> {
    let is_named = call.args.network.is_some()
        || matches!(NetworkKey::parse(&call.config.obj()), Ok(Some(NetworkKey::Id(_))));
    let placement = if is_named { None } else { placement_of(call, None).ok() };
    placement.map(|Placement { tenant, network: _, group }| (tenant, group))
}

/// Tenant, network and group. CNI_ARGS can set network and group, but cannot change the tenant of the config.
fn placement(
    config: &NetworkConfig,
    args: &Args,
    (key, unnamed): (Option<&NetworkKey>, Option<&NetworkId>),
) -> Result<Placement, Error> {
    let top = config.obj();
    let tenant = top.nonempty("tenant")?;
    if let (Some(tenant), Some(other)) = (tenant, args.tenant.as_deref())
        && tenant != other
    {
        return Err(Error::new(
            ErrorCode::InvalidEnvironment,
            format!("CNI_ARGS: tenant {other} differs from tenant {tenant} of network {}", config.name),
        ));
    }
    let config_network = match key {
        Some(NetworkKey::Id(id)) => Some(id.as_str()),
        Some(NetworkKey::Cidrs(_)) | None => unnamed.map(NetworkId::as_str),
    };
    let group = args.group.as_deref().or(top.nonempty("group")?);
    Placement::parse(tenant.or(args.tenant.as_deref()), args.network.as_deref().or(config_network), group)
        .map_err(|e| invalid("tenant, network or group", e))
}

/// None if the config has no mode.
fn parse_mode(top: &Obj<'_>) -> Result<Option<AttachMode>, Error> {
    match top.str("mode")? {
        None => Ok(None),
        Some("" | "bridge") => Ok(Some(AttachMode::Bridge)),
        Some("routed") => Ok(Some(AttachMode::Routed)),
        Some(other) => Err(invalid("mode", format_args!("{other:?} must be \"bridge\" or \"routed\""))),
    }
}

/// Routed pods need an address for their host route, and no DHCP server is on their link.
fn check_mode(mode: AttachMode, addresses: &Addresses) -> Result<(), Error> {
    match (mode, addresses) {
        (AttachMode::Routed, Addresses::Absent) => {
            Err(missing_ranges("; a network without addresses (layer 2 only) needs \"mode\": \"bridge\""))
        }
        (AttachMode::Routed, Addresses::Delegated(plugin)) if is_dhcp(plugin) => Err(invalid(
            "ipam.type",
            format_args!(
                "{plugin:?} needs \"mode\": \"bridge\": no DHCP server can answer on the link of a routed pod"
            ),
        )),
        (AttachMode::Bridge | AttachMode::Routed, _) => Ok(()),
    }
}

/// Hairpin and promiscuous mode together would deliver packets twice. The reference plugin refuses both, too.
fn parse_hairpin(top: &Obj<'_>, promisc: bool) -> Result<bool, Error> {
    match top.bool("hairpinMode")? {
        Some(true) if promisc => {
            Err(invalid("hairpinMode", "cannot be true together with promiscMode; remove one of them"))
        }
        Some(hairpin) => Ok(hairpin),
        None => Ok(!promisc),
    }
}

fn parse_bridge(top: &Obj<'_>, network: Option<&Network>) -> Result<IfName, Error> {
    let name = match (top.str("bridge")?, network) {
        (None, Some(network)) => return Ok(network.conf().bridge.clone()),
        (None | Some(""), _) => DEFAULT_BRIDGE,
        (Some(name), _) => name,
    };
    IfName::try_from(name).map_err(|e| invalid("bridge", e))
}

/// 0 means the MTU of the bridge. An MTU that is too small for IPv6 is refused, because the kernel would remove all IPv6
/// addresses from the bridge.
pub(crate) fn usable_mtu(mtu: Option<u32>, addresses: &Addresses) -> Result<Option<u32>, Error> {
    let has_ipv6 =
        |pools: &Pools| pools.sets().iter().flat_map(RangeSet::ranges).any(|r| r.gateway().is_ipv6());
    let min = match addresses {
        Addresses::Own(pools) if has_ipv6(pools) => MIN_MTU_V6,
        Addresses::Own(_) | Addresses::Delegated(_) | Addresses::Absent => MIN_MTU_V4,
    };
    match mtu {
        None | Some(0) => Ok(None),
        Some(mtu) if (min..=MAX_MTU).contains(&mtu) => Ok(Some(mtu)),
        Some(mtu) => Err(invalid(
            "mtu",
            format_args!("{mtu} must be {min} to {MAX_MTU} (with IPv6 {MIN_MTU_V6} or more)"),
        )),
    }
}

/// The subnets of Podwire's ranges and the CIDRs of the whole network.
pub(crate) fn cluster(addresses: &Addresses, cidrs: &[IpNet]) -> Vec<IpNet> {
    let ranges = match addresses {
        Addresses::Own(pools) => pools.sets(),
        Addresses::Delegated(_) | Addresses::Absent => &[],
    };
    let subnets = ranges.iter().flat_map(RangeSet::ranges).map(Range::subnet);
    let mut cluster: Vec<IpNet> = subnets.chain(cidrs.iter().copied()).map(|net| net.trunc()).collect();
    cluster.sort();
    cluster.dedup();
    cluster
}
