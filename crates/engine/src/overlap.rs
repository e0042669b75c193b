//! Overlap of pod subnets with routes and addresses of this node that do not belong to the network. With two owners of one
//! subnet, packets go to the wrong owner, and an address may be assigned twice.
//!
//! [`ObservedNetworks::of`] lists objects of the kernel, and [`find`] compares them. A default route and other routes to more
//! than the subnet are no overlap, because the pods' routes are more specific. There is one exception: if the node is
//! connected to the larger subnet, its hosts or containers may have the addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use netconf::{Addresses, NetConf};
use netlink::{Address, Link, Route, RouteFilter, RouteMatch, RtSocket};
use types::{
    AttachMode, AttachmentKey, Code, Finding, IfName, NetworkName, PEER_PROTOCOL, ROUTE_PROTOCOL, Severity,
    TABLE_MAIN,
};

use crate::Error;
use crate::alias::{Alias, LinkMark};
use crate::bridge::is_marked;

/// RTPROT_KERNEL, the protocol of routes that come with an address.
const KERNEL_PROTOCOL: u8 = 2;

/// A network with the fields that the overlap check needs.
#[derive(Debug, Clone, Copy)]
pub struct NetworkExtent<'a> {
    pub name: &'a NetworkName,
    pub bridge: &'a IfName,
    pub subnets: &'a [IpNet],
}

/// Links, addresses and routes of the host.
#[derive(Debug, Default)]
pub struct ObservedNetworks {
    links: Vec<Link>,
    addresses: Vec<Address>,
    routes: Vec<Route>,
}

impl ObservedNetworks {
    /// Observes the host for networks with these subnets. There may be a million routes, so only those that overlap the subnets
    /// or an alternative are kept.
    pub fn of(host: &mut RtSocket, subnets: &[IpNet]) -> Result<Self, Error> {
        let nets: Vec<IpNet> =
            subnets.iter().flat_map(|subnet| candidates(subnet).chain([*subnet])).collect();
        let main = RouteFilter { table: Some(TABLE_MAIN), ..RouteFilter::default() };
        let is_relevant = |route: &Route| {
            let is_unmanaged = ![ROUTE_PROTOCOL, PEER_PROTOCOL].contains(&route.protocol);
            is_unmanaged && nets.iter().any(|net| is_overlap(route, net))
        };
        let routes = host.routes_where(main, is_relevant)?;
        Ok(Self { addresses: host.addresses(None)?, routes, links: host.links()? })
    }

    /// Whether pods of the network run on this node, according to the aliases of links.
    pub fn has_pods(&self, network: &NetworkName) -> bool {
        let dir_name = AttachmentKey::network_dir(network);
        self.links.iter().filter_map(Alias::of).any(|alias| alias.network == dir_name)
    }

    fn link(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|link| link.index == index)
    }

    /// Whether Podwire added an address to the link. The kernel reports this since Linux 5.18.
    fn has_managed_address(&self, link: u32) -> bool {
        self.addresses.iter().any(|address| address.link == link && address.protocol == Some(ROUTE_PROTOCOL))
    }
}

/// One link, route or network that overlaps a subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Overlap {
    subnet: IpNet,
    /// The link, the route if it has no single link, or the other network.
    object: String,
    kind: OverlapKind,
    /// Whether the overlapping object belongs to Podwire.
    is_managed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum OverlapKind {
    Address {
        address: IpNet,
        link: String,
    },
    Route {
        dst: IpNet,
        link: Option<String>,
    },
    /// A managed bridge of another network has a gateway in the subnet.
    Gateway {
        address: IpNet,
        bridge: String,
    },
    /// Another network of Podwire has a pod in the subnet.
    Pod {
        address: IpAddr,
        network: String,
    },
}

impl Overlap {
    /// Has no fix, because removing the other object could disconnect the node or pods of another program. An overlap with another
    /// network of Podwire is only degraded, because addresses are not assigned twice on one node.
    fn finding(&self, network: &NetworkName, has_pods: bool) -> Finding {
        let finding = Finding::new(Code::SubnetOverlap, &self.object, self.message(network));
        if has_pods || self.is_managed { finding.degraded() } else { finding }
    }

    fn message(&self, network: &NetworkName) -> String {
        let subnet = format!("subnet {} of network {network}", self.subnet);
        match &self.kind {
            OverlapKind::Address { address, link } => {
                format!("link {link} has address {address}, which is in {subnet}")
            }
            OverlapKind::Route { dst, link: Some(link) } => {
                format!("route {dst} over link {link} overlaps {subnet}")
            }
            OverlapKind::Route { dst, link: None } => format!("route {dst} overlaps {subnet}"),
            OverlapKind::Gateway { address, bridge } => {
                format!(
                    "bridge {bridge} of another network has gateway {address}, which is in {subnet}; give one of them another subnet"
                )
            }
            OverlapKind::Pod { address, network: other } => format!(
                "a pod of network {other} has address {address}, which is in {subnet}; give network {other} another subnet"
            ),
        }
    }
}

/// Findings for the operator: not ready if the network has no pods yet, else degraded.
pub fn findings(network: &NetworkExtent<'_>, observed: &ObservedNetworks) -> Vec<Finding> {
    let has_pods = observed.has_pods(network.name);
    find(network, observed).iter().map(|overlap| overlap.finding(network.name, has_pods)).collect()
}

/// Like [`findings`], for a network that is described by a CNI config. Another subnet is proposed for a network without pods.
pub fn findings_of_config(network: &NetworkExtent<'_>, observed: &ObservedNetworks) -> Vec<Finding> {
    let all = findings(network, observed).into_iter();
    all.map(|finding| with_proposal(finding, network, observed)).collect()
}

/// The finding for STATUS: overlap with another program, but not with another network of Podwire.
pub(crate) fn of_status(network: &NetworkExtent<'_>, observed: &ObservedNetworks) -> Option<Finding> {
    let overlap = find(network, observed).into_iter().find(|overlap| !overlap.is_managed)?;
    let finding = overlap.finding(network.name, observed.has_pods(network.name));
    Some(with_proposal(finding, network, observed))
}

fn with_proposal(finding: Finding, network: &NetworkExtent<'_>, observed: &ObservedNetworks) -> Finding {
    let alternative = match finding.severity {
        Severity::NotReady => alternative(network, observed),
        Severity::Degraded => None,
    };
    let Some(alternative) = alternative else { return finding };
    let subnets: Vec<String> = alternative.iter().map(ToString::to_string).collect();
    let proposal = format!("set \"subnet\": \"{}\" in the network's config", subnets.join(","));
    Finding { message: format!("{}; {proposal}", finding.message), ..finding }
}

/// All overlaps, one per object. Pure.
fn find(network: &NetworkExtent<'_>, observed: &ObservedNetworks) -> Vec<Overlap> {
    let all = addresses(network, observed).chain(routes(network, observed)).chain(pods(network, observed));
    let mut by_object: BTreeMap<String, Overlap> = BTreeMap::new();
    for overlap in all {
        by_object.entry(overlap.object.clone()).or_insert(overlap);
    }
    by_object.into_values().collect()
}

/// Whether the link belongs to the network: its bridge, host ends of pods, and tunnels, including one that lost its alias.
fn is_own(network: &NetworkExtent<'_>, observed: &ObservedNetworks, link: &Link) -> bool {
    let is_unmarked_tunnel =
        || link.alias.is_none() && link.vxlan.is_some() && observed.has_managed_address(link.index);
    link.name == network.bridge.as_str()
        || matches!(LinkMark::of(link), Some(LinkMark::HostEnd(_) | LinkMark::Tunnel(_)))
        || is_unmarked_tunnel()
}

fn addresses<'a>(
    network: &NetworkExtent<'a>,
    observed: &'a ObservedNetworks,
) -> impl Iterator<Item = Overlap> {
    let network = *network;
    observed.addresses.iter().filter_map(move |address| {
        let subnet = *network.subnets.iter().find(|subnet| subnet.contains(&address.addr.addr()))?;
        let link = observed.link(address.link).filter(|link| !is_own(&network, observed, link))?;
        let (address, name) = (address.addr, link.name.clone());
        let kind = match is_marked(link) {
            true => OverlapKind::Gateway { address, bridge: name },
            false => OverlapKind::Address { address, link: name },
        };
        Some(Overlap { subnet, object: format!("link {}", link.name), kind, is_managed: is_marked(link) })
    })
}

fn routes<'a>(network: &NetworkExtent<'a>, observed: &'a ObservedNetworks) -> impl Iterator<Item = Overlap> {
    let network = *network;
    observed.routes.iter().filter_map(move |route| {
        let dst = route.dst.trunc();
        let subnet = *network.subnets.iter().find(|subnet| is_overlap(route, subnet))?;
        let link = route.link.and_then(|index| observed.link(index));
        if link.is_some_and(|link| is_own(&network, observed, link)) {
            return None;
        }
        let is_managed = link.is_some_and(|link| LinkMark::of(link).is_some());
        let link = link.map(|link| link.name.clone());
        let object = link.as_ref().map_or_else(|| format!("route {dst}"), |link| format!("link {link}"));
        Some(Overlap { subnet, object, kind: OverlapKind::Route { dst, link }, is_managed })
    })
}

/// A route to a part of the subnet, or to a larger subnet to which the node is connected.
fn is_overlap(route: &Route, subnet: &IpNet) -> bool {
    let dst = route.dst.trunc();
    let is_connected = route.protocol == KERNEL_PROTOCOL && route.gateway.is_none();
    subnet.contains(&dst) || (is_connected && dst.contains(subnet))
}

/// The aliases of host ends contain network and addresses, also of networks with another run directory.
fn pods<'a>(network: &NetworkExtent<'a>, observed: &'a ObservedNetworks) -> impl Iterator<Item = Overlap> {
    let (network, dir_name) = (*network, AttachmentKey::network_dir(network.name));
    observed.links.iter().filter_map(move |link| {
        let alias = Alias::of(link).filter(|alias| alias.network != dir_name)?;
        let other = alias.network;
        let in_subnet = |address: IpAddr| {
            let subnet = *network.subnets.iter().find(|subnet| subnet.contains(&address))?;
            let kind = OverlapKind::Pod { address, network: other.to_owned() };
            Some(Overlap { subnet, object: format!("network {other}"), kind, is_managed: true })
        };
        alias.ips().find_map(in_subnet)
    })
}

/// The subnets of which Podwire assigns addresses, if the node routes packets for pods. Otherwise, for example on a bridge to a
/// physical network, routes and addresses of the node do not matter.
pub fn routed_subnets(conf: &NetConf) -> Vec<IpNet> {
    match &conf.addresses {
        Addresses::Own(pools) if conf.mode == AttachMode::Routed || conf.is_gateway => {
            pools.sets().iter().flat_map(ipam::RangeSet::ranges).map(ipam::Range::subnet).collect()
        }
        Addresses::Own(_) | Addresses::Delegated(_) | Addresses::Absent => Vec::new(),
    }
}

/// The addresses of an ADD and its network.
pub(crate) struct AddressQuery<'a> {
    pub(crate) conf: &'a NetConf,
    pub(crate) key: &'a AttachmentKey,
    /// The network's bridge, if it exists.
    pub(crate) bridge: Option<u32>,
    /// Pods of another run directory have addresses in the subnets.
    pub(crate) has_other_pods: bool,
}

/// An address that a pod cannot use.
pub(crate) struct Unusable {
    pub(crate) ip: IpAddr,
    pub(crate) reason: String,
}

/// Whether a pod can use its addresses.
pub(crate) enum Usability {
    Usable {
        /// Pods of other run directories may get the same addresses: see [`refuse_taken`].
        has_other_pods: bool,
    },
    Unusable(Unusable),
}

/// Finds the first address that the node has itself, routes to another link, or has assigned to a pod of another run directory.
/// It uses lookups, because lists of routes and links may be long. Links are listed only if a route uses a link of another
/// network of Podwire.
pub(crate) fn check(
    host: &mut RtSocket,
    query: &AddressQuery<'_>,
    ips: &[IpAddr],
) -> Result<Usability, Error> {
    let subnets = routed_subnets(query.conf);
    let (mut routed, mut has_other_pods) = (Vec::new(), query.has_other_pods);
    for &ip in ips {
        let Some(subnet) = subnets.iter().find(|subnet| subnet.contains(&ip)) else { continue };
        routed.push(ip);
        let Some(matched) = host.matched_route(ip)? else { continue };
        // Another pod has the address.
        has_other_pods |= matched.protocol == ROUTE_PROTOCOL && matched.dst == IpNet::from(ip);
        let Some(conflict) = conflict(&matched, subnet, query) else { continue };
        let link = matched.link.map(|index| host.link_at(index)).transpose()?.flatten();
        // Another network of Podwire with the same subnet uses the address only if one of its pods has it.
        if !matched.local && link.as_ref().and_then(LinkMark::of).is_some() {
            has_other_pods = true;
            continue;
        }
        let link = link.map_or_else(|| "several links".to_owned(), |link| format!("link {}", link.name));
        let reason = format!(
            "address {ip} is {conflict} ({} on {link}): use another subnet than {subnet}, or exclude it",
            matched.dst
        );
        return Ok(Usability::Unusable(Unusable { ip, reason }));
    }
    let has_other_pods = has_other_pods && !routed.is_empty();
    let taken = if has_other_pods { taken_by_another(host, query.key, &routed)? } else { None };
    Ok(taken.map_or(Usability::Usable { has_other_pods }, Usability::Unusable))
}

/// The first of these addresses that a pod of another run directory has.
fn taken_by_another(
    host: &mut RtSocket,
    own: &AttachmentKey,
    ips: &[IpAddr],
) -> Result<Option<Unusable>, Error> {
    Ok(host.links_best_effort()?.iter().find_map(|link| of_another_pod(link, own, ips)))
}

/// Called after the pod's link was created. Two concurrent ADDs check after their own link has an alias, so at least one detects
/// the other.
pub(crate) fn refuse_taken(host: &mut RtSocket, own: &AttachmentKey, ips: &[IpAddr]) -> Result<(), Error> {
    match taken_by_another(host, own, ips)? {
        Some(Unusable { ip, reason }) => Err(Error::AddressInUse { ip, reason }),
        None => Ok(()),
    }
}

/// Uses the alias of the host end, because the record may be in another run directory.
fn of_another_pod(link: &Link, own: &AttachmentKey, ips: &[IpAddr]) -> Option<Unusable> {
    let alias = Alias::of(link).filter(|alias| !alias.is_of(own))?;
    let ip = alias.ips().find(|ip| ips.contains(ip))?;
    let Alias { network, id, ifname, .. } = alias;
    let reason = format!(
        "address {ip} is in use by the pod of link {} ({network}/{id}/{ifname}), which has no record here: use another subnet, or the same runDir",
        link.name
    );
    Some(Unusable { ip, reason })
}

/// The reason why a pod cannot use an address, from the route that the kernel uses for it. Pure.
fn conflict(matched: &RouteMatch, subnet: &IpNet, query: &AddressQuery<'_>) -> Option<&'static str> {
    if matched.local {
        return Some("an address of this node");
    }
    let is_managed = [ROUTE_PROTOCOL, PEER_PROTOCOL].contains(&matched.protocol)
        || (query.bridge.is_some() && matched.link == query.bridge);
    let dst = matched.dst.trunc();
    let is_connected = matched.direct && matched.protocol == KERNEL_PROTOCOL && dst.contains(subnet);
    // The subnet may be this node's part of the cluster's. A route to the cluster through a gateway is for other nodes.
    let in_cluster = matched.direct && query.conf.cluster.iter().any(|net| net.contains(&dst));
    let overlaps = subnet.contains(&dst) || is_connected || in_cluster;
    (overlaps && !is_managed).then_some("routed to another link")
}

/// The subnets of a network, with overlapping ones replaced by free ones. None if no candidate is free. This is a proposal for
/// the operator.
pub fn alternative(network: &NetworkExtent<'_>, observed: &ObservedNetworks) -> Option<Vec<IpNet>> {
    let is_free = |subnets: &[IpNet]| find(&NetworkExtent { subnets, ..*network }, observed).is_empty();
    let replacement = |subnet: &IpNet| match is_free(&[*subnet]) {
        true => Some(*subnet),
        false => candidates(subnet).find(|candidate| is_free(&[*candidate])),
    };
    network.subnets.iter().map(replacement).collect()
}

/// Subnets next to the default subnets that common runtimes do not use.
fn candidates(subnet: &IpNet) -> impl Iterator<Item = IpNet> {
    let prefix = subnet.prefix_len();
    let bases: Vec<IpAddr> = match subnet {
        IpNet::V4(_) => {
            let usual = [83, 84, 86, 87, 80, 81, 82, 79, 78].map(|octet| [10, octet, 0, 0]);
            // For nodes that are connected to 10.0.0.0/8.
            let shared = [[100, 83, 0, 0], [100, 84, 0, 0]];
            usual.into_iter().chain(shared).map(IpAddr::from).collect()
        }
        IpNet::V6(_) => {
            let usual = (0x88..0x90).map(|part| [0xfd00, part, 0, 0, 0, 0, 0, 0]);
            usual.chain([[0xfd83, 0x88, 0, 0, 0, 0, 0, 0]]).map(IpAddr::from).collect()
        }
    };
    let min_prefix = if subnet.addr().is_ipv4() { 16 } else { 32 };
    bases
        .into_iter()
        .filter(move |_| prefix >= min_prefix)
        .filter_map(move |base| IpNet::new(base, prefix).ok())
}

#[cfg(test)]
mod tests;
