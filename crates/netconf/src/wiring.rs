use std::net::IpAddr;

use cni::json::Obj;
use cni::{Args, Bandwidth, Call, Code, Config, Dns, Error, PortMapping, RequestedIp, Route};
use ipam::{Pools, RangeSet};
use ipnet::IpNet;
use types::{AttachMode, IfName, MAX_MTU, MIN_MTU_V4, MIN_MTU_V6, Mac, Placement, Special};

use crate::addresses::{Addresses, is_dhcp, none_to_give};
use crate::routes::{self, default_route};
use crate::{at_most, invalid, refuse};

/// The reference plugin's default, kept so that its configs mean the same.
pub const DEFAULT_BRIDGE: &str = "cni0";

/// Each host port is an element of the firewall, and part of the record.
const MOST_PORTS: usize = 4096;
/// CIDRs in `network`.
const MOST_NETWORKS: usize = 64;

/// A network as a request describes it, complete: every default is filled in.
#[derive(Debug, Clone)]
pub struct NetConf {
    pub mode: AttachMode,
    pub bridge: IfName,
    /// None: the bridge's own if it is there, else 1500.
    pub mtu: Option<u32>,
    /// The bridge carries the gateway address, and the host forwards.
    pub is_gateway: bool,
    /// The pod's default routes go through the gateway, whatever `routes` says.
    pub is_default_gateway: bool,
    pub ip_masq: bool,
    pub hairpin: bool,
    pub promisc: bool,
    /// An address of the bridge that overlaps the gateway's subnet but is another one is replaced, not refused.
    pub force_address: bool,
    /// A pod can only use the addresses and the MAC it was given.
    pub spoof_check: bool,
    pub addresses: Addresses,
    pub requested: Vec<RequestedIp>,
    pub mac: Option<Mac>,
    pub routes: Vec<Route>,
    /// Where pod traffic is never masqueraded: the network's subnets and, in seed style, `network`.
    pub cluster: Vec<IpNet>,
    pub dns: Dns,
    pub ports: Vec<PortMapping>,
    pub bandwidth: Option<Bandwidth>,
    /// Whose the pods are; a call may say more.
    pub placement: Placement,
}

impl NetConf {
    /// What an ADD or CHECK of one pod asks for.
    pub fn for_call(call: &Call) -> Result<Self, Error> {
        let mut conf = Self::parse(&call.config)?;
        conf.requested = call.requested_ips();
        if matches!(conf.addresses, Addresses::Absent) && !conf.requested.is_empty() {
            return Err(none_to_give("; an address was requested for the pod"));
        }
        conf.mac = call.requested_mac();
        conf.placement = placement(&call.config, &call.args)?;
        Ok(conf)
    }

    /// The network without a pod, as STATUS looks at it.
    pub fn parse(config: &Config) -> Result<Self, Error> {
        let top = config.obj();
        let ipam = top.obj("ipam")?;
        refuse::unsupported(&top, ipam.as_ref())?;
        let addresses = Addresses::parse(config)?;
        let routes = match &ipam {
            Some(ipam) if matches!(addresses, Addresses::Own(_)) => routes::parse_all(ipam)?,
            Some(_) | None => Vec::new(),
        };
        let own = matches!(addresses, Addresses::Own(_));
        at_most(MOST_PORTS, "runtimeConfig.portMappings", config.runtime.port_mappings.len())?;
        let mode = parse_mode(&top)?;
        bridge_only(mode, &addresses)?;
        // Without addresses there is nothing to route, masquerade or publish. The reference ignores the first two, too.
        let has_addresses = !matches!(addresses, Addresses::Absent);
        if !has_addresses && !config.runtime.port_mappings.is_empty() {
            return Err(none_to_give("; host ports lead to an address of the pod"));
        }
        // Ours to decide when we give the addresses: a pod without a way out is nobody's wish. With another IPAM plugin
        // the reference's defaults hold.
        let is_gateway = top.bool("isGateway")?;
        let default_gateway = top.bool("isDefaultGateway")?;
        let is_default_gateway =
            has_addresses && default_gateway.unwrap_or(own && routes.is_empty() && is_gateway != Some(false));
        let promisc = top.bool("promiscMode")?.unwrap_or(false);
        if mode == AttachMode::Routed && is_gateway == Some(false) {
            return Err(invalid(
                "isGateway",
                "mode \"routed\" needs the gateway; remove isGateway or set it to true",
            ));
        }
        Ok(Self {
            mode,
            bridge: parse_bridge(&top)?,
            mtu: parse_mtu(&top, &addresses)?,
            is_gateway: has_addresses
                && (is_gateway.unwrap_or(own) || is_default_gateway || mode == AttachMode::Routed),
            is_default_gateway,
            ip_masq: top.bool("ipMasq")?.unwrap_or(false) && has_addresses,
            hairpin: parse_hairpin(&top, promisc)?,
            promisc,
            force_address: top.bool("forceAddress")?.unwrap_or(false),
            spoof_check: top.bool("spoofCheck")?.or(top.bool("macspoofchk")?).unwrap_or(true),
            requested: Vec::new(),
            mac: None,
            routes,
            cluster: parse_cluster(&top, &addresses)?,
            dns: config.result_dns().clone(),
            ports: config.runtime.port_mappings.clone(),
            bandwidth: config.runtime.bandwidth,
            placement: placement(config, &Args::default())?,
            addresses,
        })
    }

    /// The routes a pod with these addresses gets: the config's, and the default routes where they are asked for.
    pub fn pod_routes(&self, pod: &[IpAddr]) -> Vec<Route> {
        let mut routes = self.routes.clone();
        if self.is_default_gateway {
            for address in pod {
                let default = default_route(*address);
                if !routes.iter().any(|r| r.dst == default.dst && routes::is_in_main(r)) {
                    routes.push(default);
                }
            }
        }
        // A route of a family that the pod does not have cannot be set.
        routes.retain(|r| pod.iter().any(|a| a.is_ipv4() == r.dst.addr().is_ipv4()));
        routes
    }
}

/// Tenant, network and group. The tenant is the config's to say: what a pod brings along chooses only within it.
fn placement(config: &Config, args: &Args) -> Result<Placement, Error> {
    let top = config.obj();
    let tenant = top.nonempty("tenant")?;
    if let (Some(tenant), Some(other)) = (tenant, args.tenant.as_deref())
        && tenant != other
    {
        return Err(Error::new(
            Code::InvalidEnvironment,
            format!("CNI_ARGS: tenant {other} is not {tenant}, whose network {} is", config.name),
        ));
    }
    // The seed's `network` is a CIDR; one that is none is a name.
    let is_name = |text: &&str| !text.split(',').any(|part| part.trim().parse::<IpNet>().is_ok());
    let network = args.network.as_deref().or(top.nonempty("network")?.filter(is_name));
    let group = args.group.as_deref().or(top.nonempty("group")?);
    Placement::parse(tenant.or(args.tenant.as_deref()), network, group)
        .map_err(|e| invalid("tenant, network or group", e))
}

fn parse_mode(top: &Obj<'_>) -> Result<AttachMode, Error> {
    match top.str("mode")? {
        None | Some("" | "bridge") => Ok(AttachMode::Bridge),
        Some("routed") => Ok(AttachMode::Routed),
        Some(other) => Err(invalid("mode", format_args!("{other:?} must be \"bridge\" or \"routed\""))),
    }
}

/// A routed pod is reached by its address, and is alone on its link: no DHCP server is there.
fn bridge_only(mode: AttachMode, addresses: &Addresses) -> Result<(), Error> {
    match (mode, addresses) {
        (AttachMode::Routed, Addresses::Absent) => {
            Err(none_to_give("; a network without addresses (layer 2 only) needs \"mode\": \"bridge\""))
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

/// With both, pods would get what they send to their neighbours twice; the reference refuses that too.
fn parse_hairpin(top: &Obj<'_>, promisc: bool) -> Result<bool, Error> {
    match top.bool("hairpinMode")? {
        Some(true) if promisc => {
            Err(invalid("hairpinMode", "cannot be true together with promiscMode; remove one of them"))
        }
        Some(hairpin) => Ok(hairpin),
        None => Ok(!promisc),
    }
}

fn parse_bridge(top: &Obj<'_>) -> Result<IfName, Error> {
    let name = top.str("bridge")?.filter(|n| !n.is_empty()).unwrap_or(DEFAULT_BRIDGE);
    IfName::try_from(name).map_err(|e| invalid("bridge", e))
}

/// Too small for IPv6 is found out here and not later: the kernel takes all IPv6 off a bridge that is made so small.
fn parse_mtu(top: &Obj<'_>, addresses: &Addresses) -> Result<Option<u32>, Error> {
    let has_ipv6 =
        |pools: &Pools| pools.sets().iter().flat_map(RangeSet::ranges).any(|r| r.gateway().is_ipv6());
    let least = match addresses {
        Addresses::Own(pools) if has_ipv6(pools) => MIN_MTU_V6,
        Addresses::Own(_) | Addresses::Delegated(_) | Addresses::Absent => MIN_MTU_V4,
    };
    match top.u32("mtu")? {
        None | Some(0) => Ok(None),
        Some(mtu) if (least..=MAX_MTU).contains(&mtu) => Ok(Some(mtu)),
        Some(mtu) => Err(invalid(
            "mtu",
            format_args!("{mtu} must be {least} to {MAX_MTU} (with IPv6 {MIN_MTU_V6} or more)"),
        )),
    }
}

/// Our ranges' subnets, and the seed's `network`: the cluster's CIDR of which `subnet` is this node's part. A `network`
/// that is no CIDR is a name (see [`placement`]).
fn parse_cluster(top: &Obj<'_>, addresses: &Addresses) -> Result<Vec<IpNet>, Error> {
    let mut cluster: Vec<IpNet> = match addresses {
        Addresses::Own(pools) => {
            pools.sets().iter().flat_map(RangeSet::ranges).map(|r| r.subnet().trunc()).collect()
        }
        Addresses::Delegated(_) | Addresses::Absent => Vec::new(),
    };
    let texts = top.str("network")?.unwrap_or_default().split(',');
    let named: Vec<IpNet> = texts.filter_map(|text| text.trim().parse().ok()).collect();
    at_most(MOST_NETWORKS, "network", named.len())?;
    for net in named {
        if let Some(kind) = Special::of(net) {
            return Err(invalid("network", format_args!("{net} includes {kind} address, which no pod has")));
        }
        cluster.push(net.trunc());
    }
    cluster.sort();
    cluster.dedup();
    Ok(cluster)
}
