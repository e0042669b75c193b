//! The bridge: it is found or created, repaired, and gets the gateway addresses. In mode `routed` it has no ports but still has
//! the gateways.

use std::net::IpAddr;

use ipnet::IpNet;
use netconf::NetConf;
use netlink::{
    AddAddress, AddBridge, Link, LinkRef, Mode, Op, Route, RouteFilter, RouteKind, RouteScope, RtSocket,
    SetLink,
};
use types::{AttachMode, Digest, IfName, Mac, ROUTE_PROTOCOL};

use crate::alias::{BRIDGE_ALIAS, LinkMark};
use crate::condition::not_a_bridge;
use crate::state::SysctlLog;
use crate::sysctl::{self, LinkOwner};
use crate::{Error, detach};

/// The MTU of a veth and a new bridge without a configured one.
const DEFAULT_MTU: u32 = 1500;

/// The bridge of an ADD, with the data that the CNI result needs.
#[derive(Debug, Clone)]
pub(crate) struct Bridge {
    pub(crate) name: IfName,
    pub(crate) index: u32,
    pub(crate) mac: Option<Mac>,
    creator: BridgeCreator,
}

/// A bridge that Podwire created has a fixed MAC. Another bridge follows the MACs of its ports until its MAC is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BridgeCreator {
    Podwire,
    OtherProgram,
}

/// The desired bridge.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spec<'a> {
    pub(crate) name: &'a IfName,
    /// None keeps the current MTU, or uses the default for a new bridge.
    pub(crate) mtu: Option<u32>,
    pub(crate) promisc: bool,
}

/// The current or future MTU of the bridge.
pub(crate) fn mtu(conf: &NetConf, link: Option<&Link>) -> u32 {
    conf.mtu.or(link.map(|link| link.mtu)).unwrap_or(DEFAULT_MTU)
}

impl Bridge {
    pub(crate) fn is_managed(&self) -> bool {
        self.creator == BridgeCreator::Podwire
    }

    pub(crate) fn owner<'a>(&self, log: &'a SysctlLog) -> LinkOwner<'a> {
        match self.creator {
            BridgeCreator::Podwire => LinkOwner::Podwire,
            BridgeCreator::OtherProgram => LinkOwner::Unmanaged(log),
        }
    }
}

/// Creates the bridge if `existing` is None, and repairs it. Sends nothing if the bridge is right.
pub(crate) fn ensure(host: &mut RtSocket, spec: &Spec<'_>, existing: Option<Link>) -> Result<Bridge, Error> {
    let link = match existing {
        Some(link) => link,
        None => create(host, spec)?,
    };
    if link.kind.as_deref() != Some("bridge") {
        return Err(not_a_bridge(host, spec.name, link));
    }
    let mtu = spec.mtu.unwrap_or(link.mtu);
    let wrong_promisc = spec.promisc && !link.promisc;
    // Unmanaged bridges are changed too if the config asks for it. Cleanup does not undo this, because other users of the bridge
    // may rely on it.
    if !link.up || link.mtu != mtu || wrong_promisc {
        host.run(&Op::SetLink(SetLink {
            up: Some(true),
            mtu: Some(mtu),
            promisc: wrong_promisc.then_some(true),
            ..SetLink::of(LinkRef::Index(link.index))
        }))?;
    }
    let creator = if is_marked(&link) { BridgeCreator::Podwire } else { BridgeCreator::OtherProgram };
    Ok(Bridge { name: spec.name.clone(), index: link.index, mac: link.mac, creator })
}

pub(crate) fn is_marked(link: &Link) -> bool {
    LinkMark::of(link) == Some(LinkMark::Bridge)
}

/// Creates the bridge with a temporary name and renames it. Other processes never see an incomplete bridge, and a bridge that
/// another program creates at the same time never gets Podwire's mark.
fn create(host: &mut RtSocket, spec: &Spec<'_>) -> Result<Link, Error> {
    let (name, prefix, random) = (spec.name, draft_prefix(spec.name), random());
    let draft = draft_name(&prefix, &random)?;
    let mtu = spec.mtu.unwrap_or(DEFAULT_MTU);
    // The kernel lets a bridge's MTU follow its smallest port until it is changed once. So the bridge is created with another
    // value, and the desired one is set afterwards (F8).
    let initial_mtu = if mtu == types::MIN_MTU_V6 { DEFAULT_MTU } else { types::MIN_MTU_V6 };
    let mac = new_mac(name, &random);
    let answers = host.run_all(&[
        Op::AddBridge(AddBridge { name: &draft, mac, mtu: initial_mtu, up: false }),
        Op::SetLink(SetLink {
            mtu: Some(mtu),
            alias: Some(BRIDGE_ALIAS),
            ..SetLink::of(LinkRef::Name(&draft))
        }),
    ])?;
    for answer in answers {
        match answer {
            // A faster process removed the draft.
            Err(e) if e.is_missing() => {}
            other => other?,
        }
    }
    sysctl::refuse_router_advertisements(&draft, LinkOwner::Podwire)?;
    rename_draft(host, &draft, name)?;
    remove_drafts(host, &prefix)?;
    // If the bridge is missing, another process removed it. Retrying would conflict with that process.
    host.link(name)?
        .ok_or_else(|| Error::NotAvailable(format!("bridge {name} was removed while it was configured")))
}

/// Gives the new bridge its name, unless another link has it.
fn rename_draft(host: &mut RtSocket, draft: &IfName, name: &IfName) -> Result<(), Error> {
    let Some(link) = host.link(draft)? else { return Ok(()) };
    match host.run(&Op::RenameLink { link: link.index, name }) {
        Ok(()) => Ok(()),
        Err(e) if e.is_exists() || e.is_missing() => Ok(()),
        Err(e) => {
            detach::delete_link(host, link.index)?;
            Err(e.into())
        }
    }
}

/// Removes drafts of other processes, whether these were killed or are slower. The bridge exists, so drafts are not needed.
fn remove_drafts(host: &mut RtSocket, prefix: &str) -> Result<(), Error> {
    let is_draft = |link: &Link| link.name.starts_with(prefix) && is_marked(link);
    // A draft that is missing from the list is removed when a bridge is created again.
    for draft in host.links_best_effort()?.into_iter().filter(is_draft) {
        detach::delete_link(host, draft.index)?;
    }
    Ok(())
}

fn draft_prefix(bridge: &IfName) -> String {
    format!("pwn{}", Digest::of(&["draft of bridge", bridge.as_str()]).base32(5))
}

fn draft_name(prefix: &str, random: &str) -> Result<IfName, Error> {
    let name = format!("{prefix}{}", Digest::of(&["draft", random]).base32(7));
    IfName::try_from(name).map_err(|e| Error::NotAvailable(format!("no name for a new bridge: {e}")))
}

fn random() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default()
}

/// A fixed MAC does not change when ports are added or removed. It is random, because bridges with the same name on other nodes
/// may be on the same link.
fn new_mac(name: &IfName, random: &str) -> Mac {
    Mac::local(Digest::of(&["bridge mac", name.as_str(), random]).first5())
}

/// A gateway address of a bridge, for pods of one attach mode.
///
/// Bridged pods are reached through a route to the gateway's subnet. Routed pods have host routes, and the rest of the subnet is
/// unreachable. Packets to an address without a pod are refused at once and create no neighbour entry. If pods of both modes
/// share a subnet, the route over the bridge has the better metric.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gateway {
    pub(crate) bridge: u32,
    pub(crate) address: IpNet,
    pub(crate) mode: AttachMode,
}

/// Metric of the unreachable route to a gateway's subnet. Every other route to the same subnet is better.
const UNREACHABLE_METRIC: u32 = 0x7fff_ffff;
/// Metric of the kernel's routes to subnets of IPv6 addresses.
const SUBNET_METRIC_V6: u32 = 256;
/// Protocol of the kernel's routes.
const PROTOCOL_KERNEL: u8 = 2;

impl Gateway {
    /// Adds the address, then the route to its subnet. Existing ones return "exists".
    pub(crate) fn ops(&self) -> Vec<Op<'static>> {
        let address = Op::AddAddress(self.add_address(Mode::Exclusive));
        let route = self.subnet_route().map(|route| Op::AddRoute { route, mode: Mode::Exclusive });
        [address].into_iter().chain(route).collect()
    }

    fn add_address(&self, mode: Mode) -> AddAddress {
        let broadcast = match self.address {
            IpNet::V4(v4) => Some(v4.broadcast()),
            IpNet::V6(_) => None,
        };
        let no_subnet_route = self.mode == AttachMode::Routed;
        AddAddress { link: self.bridge, addr: self.address, nodad: true, broadcast, no_subnet_route, mode }
    }

    /// None for a single-address subnet.
    pub(crate) fn subnet_route(&self) -> Option<Route> {
        let subnet = self.address.trunc();
        (subnet.prefix_len() < subnet.max_prefix_len()).then(|| match self.mode {
            AttachMode::Routed => unreachable_route(subnet),
            AttachMode::Bridge => Route {
                link: Some(self.bridge),
                scope: RouteScope::Link,
                src: Some(self.address.addr()).filter(IpAddr::is_ipv4),
                priority: subnet.addr().is_ipv6().then_some(SUBNET_METRIC_V6),
                ..Route::to(subnet)
            },
        })
    }

    /// Whether this is a route to the gateway's subnet over the bridge. The kernel adds such a route with the address, or
    /// [`Gateway::ops`] does.
    pub(crate) fn is_over_bridge(&self, route: &Route) -> bool {
        route.dst == self.address.trunc()
            && route.link == Some(self.bridge)
            && matches!(route.protocol, PROTOCOL_KERNEL | ROUTE_PROTOCOL)
    }
}

fn unreachable_route(subnet: IpNet) -> Route {
    Route { kind: RouteKind::Unreachable, priority: Some(UNREACHABLE_METRIC), ..Route::to(subnet) }
}

/// Subnets with an unreachable route, for which only pods have routes.
pub(crate) fn unreachable_subnets(host: &mut RtSocket) -> Result<Vec<IpNet>, Error> {
    let managed = RouteFilter { protocol: Some(ROUTE_PROTOCOL), ..RouteFilter::default() };
    Ok(host.unreachable_routes(managed)?.into_iter().map(|route| route.dst).collect())
}

/// Removes unreachable routes of subnets without a gateway, and returns the subnets. Routes are listed before addresses, because
/// a gateway is added before its route.
pub(crate) fn remove_stale_subnets(host: &mut RtSocket) -> Result<Vec<IpNet>, Error> {
    let mut stale = unreachable_subnets(host)?;
    if stale.is_empty() {
        return Ok(stale);
    }
    let addresses = host.addresses(None)?;
    stale.retain(|subnet| !addresses.iter().any(|address| address.addr.trunc() == *subnet));
    for subnet in &stale {
        match host.run(&Op::DelRoute(unreachable_route(*subnet))) {
            Err(e) if e.is_missing() => {}
            other => other?,
        }
    }
    Ok(stale)
}

/// Whether the addresses contain a gateway. The kernel stores an IPv6 address once, independent of its prefix length.
pub(crate) fn has_gateway(addresses: &[netlink::Address], gateway: &IpNet) -> bool {
    addresses.iter().any(|address| match gateway {
        IpNet::V4(_) => address.addr == *gateway,
        IpNet::V6(_) => address.addr.addr() == gateway.addr(),
    })
}

/// Adds one gateway to the bridge. An existing one is no error.
pub(crate) fn add_gateway(
    host: &mut RtSocket,
    bridge: &Bridge,
    gateway: &Gateway,
    log: &SysctlLog,
) -> Result<PlacedGateway, Error> {
    let answers = host.run_all(&gateway.ops())?;
    check_replies(host, (bridge, log), gateway, answers)
}

/// A gateway on its bridge, and the changes of [`Gateway::ops`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlacedGateway {
    pub(crate) gateway: Gateway,
    pub(crate) is_new_address: bool,
    pub(crate) is_new_route: bool,
}

/// Evaluates the replies to [`Gateway::ops`]. On failure, a new route is removed.
pub(crate) fn check_replies(
    host: &mut RtSocket,
    (bridge, log): (&Bridge, &SysctlLog),
    gateway: &Gateway,
    answers: Vec<Result<(), netlink::Error>>,
) -> Result<PlacedGateway, Error> {
    let is_new_route = matches!(answers.get(1), Some(Ok(())));
    match check_address_reply(host, (bridge, log), gateway, answers) {
        Ok(is_new_address) => Ok(PlacedGateway { gateway: *gateway, is_new_address, is_new_route }),
        Err(error) if is_new_route => match remove_subnet_route(host, gateway) {
            Ok(()) => Err(error),
            Err(also) => Err(Error::Several(vec![error, also])),
        },
        Err(error) => Err(error),
    }
}

fn check_address_reply(
    host: &mut RtSocket,
    (bridge, log): (&Bridge, &SysctlLog),
    gateway: &Gateway,
    answers: Vec<Result<(), netlink::Error>>,
) -> Result<bool, Error> {
    let mut answers = answers.into_iter();
    let is_new = match answers.next().unwrap_or(Ok(())) {
        Ok(()) => true,
        Err(e) if e.is_exists() => false,
        // The kernel returns EACCES if IPv6 is disabled on the link. This is rare, so it is not checked before.
        Err(e) if e.is_permission() && gateway.address.addr().is_ipv6() => {
            sysctl::enable_ipv6(&bridge.name, bridge.owner(log))?;
            answers = host.run_all(&gateway.ops())?.into_iter();
            match answers.next().unwrap_or(Ok(())) {
                // A concurrent ADD added it.
                Err(e) if e.is_exists() => {}
                other => other?,
            }
            true
        }
        Err(e) => return Err(e.into()),
    };
    for answer in answers {
        match answer {
            Err(e) if e.is_exists() => {}
            other => other?,
        }
    }
    Ok(is_new)
}

fn remove_subnet_route(host: &mut RtSocket, gateway: &Gateway) -> Result<(), Error> {
    match gateway.subnet_route().map_or(Ok(()), |route| host.run(&Op::DelRoute(route))) {
        Err(e) if e.is_missing() => Ok(()),
        other => Ok(other?),
    }
}

/// Called when the first gateway was added to an unmanaged bridge. The bridge gets a fixed MAC and ignores router
/// advertisements, like a managed one. Otherwise its MAC would follow its ports, and pods would send to an old MAC. Cleanup
/// keeps the MAC: the bridge had it before, and the kernel cannot let it follow the ports again.
pub(crate) fn prepare_unmanaged(host: &mut RtSocket, bridge: &Bridge, log: &SysctlLog) -> Result<(), Error> {
    match bridge.creator {
        BridgeCreator::Podwire => Ok(()),
        BridgeCreator::OtherProgram => {
            let mac = mac_of(host, bridge);
            host.run(&Op::SetLink(SetLink { mac, ..SetLink::of(LinkRef::Index(bridge.index)) }))?;
            sysctl::refuse_router_advertisements(&bridge.name, bridge.owner(log))
        }
    }
}

/// The bridge with its current MAC, for the CNI result.
pub(crate) fn refresh(host: &mut RtSocket, bridge: &Bridge) -> Bridge {
    Bridge { mac: mac_of(host, bridge), ..bridge.clone() }
}

fn mac_of(host: &mut RtSocket, bridge: &Bridge) -> Option<Mac> {
    match bridge.creator {
        BridgeCreator::Podwire => bridge.mac,
        // An error must not fail a pod that is ready.
        BridgeCreator::OtherProgram => {
            host.link_at(bridge.index).ok().flatten().and_then(|link| link.mac).or(bridge.mac)
        }
    }
}

/// Called after a gateway was added to the bridge for the first time. An overlapping address is refused, as by the reference
/// plugin, or replaced if `forceAddress` is set.
pub(crate) fn resolve_conflicts(
    host: &mut RtSocket,
    bridge: &Bridge,
    conf: &NetConf,
    placed: &PlacedGateway,
) -> Result<(), Error> {
    let gateway = placed.gateway.address;
    let overlaps = |other: IpNet| other.contains(&gateway.trunc()) || gateway.contains(&other.trunc());
    for address in host.addresses(Some(bridge.index))? {
        let existing = address.addr;
        if existing.addr() == gateway.addr() || !overlaps(existing) || is_link_local(existing.addr()) {
            continue;
        }
        if !conf.force_address {
            remove_gateway(host, placed)?;
            return Err(Error::ConflictingAddress { bridge: bridge.name.clone(), existing, gateway });
        }
        host.run(&Op::DelAddress { link: bridge.index, addr: existing })?;
        // The kernel removes secondary addresses of a subnet with the primary one, so the gateway is added again.
        host.run(&Op::AddAddress(placed.gateway.add_address(Mode::Replace)))?;
    }
    Ok(())
}

/// Removes a gateway that was just added. Its route could be more specific than the route of another address on the bridge.
pub(crate) fn remove_gateway(host: &mut RtSocket, placed: &PlacedGateway) -> Result<(), Error> {
    let Gateway { bridge, address, .. } = placed.gateway;
    host.run(&Op::DelAddress { link: bridge, addr: address })?;
    if placed.is_new_route { remove_subnet_route(host, &placed.gateway) } else { Ok(()) }
}

pub(crate) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testkit::{Lab, Ns, inspect};

    use super::*;

    fn create_in(node: &Ns) -> Link {
        let config = json!({"cniVersion": "1.1.0", "name": "blue", "type": "podwire-cni", "bridge": "pw0",
            "subnet": "10.88.0.0/24"});
        let config = cni::NetworkConfig::from_slice(config.to_string().as_bytes()).unwrap();
        let conf = NetConf::parse(&config).unwrap();
        let spec = Spec { name: &conf.bridge, mtu: None, promisc: false };
        node.enter(|| create(&mut RtSocket::open().unwrap(), &spec).unwrap()).unwrap()
    }

    fn names(node: &Ns) -> Vec<String> {
        inspect::links(node).unwrap().into_iter().map(|link| link.name).collect()
    }

    /// Cleanup would delete a bridge with Podwire's mark.
    #[test]
    fn a_bridge_created_concurrently_by_another_program_gets_no_mark() {
        let lab = Lab::new("lost").unwrap();
        let node = lab.node("n").unwrap();
        node.sh(&["ip", "link", "add", "pw0", "mtu", "1400", "type", "bridge"]).unwrap();
        let before = testkit::Snapshot::of(&node).unwrap();
        assert_eq!(create_in(&node).alias, None);
        before.expect_same(&node).unwrap();
    }

    #[test]
    fn a_new_bridge_has_its_mark_and_leftover_drafts_are_removed() {
        let lab = Lab::new("draft").unwrap();
        let node = lab.node("n").unwrap();
        let prefix = draft_prefix(&IfName::try_from("pw0").unwrap());
        for (name, alias) in [("abc", BRIDGE_ALIAS), ("def", "unmanaged")] {
            let name = format!("{prefix}{name}");
            node.sh(&["ip", "link", "add", &name, "type", "bridge"]).unwrap();
            node.sh(&["ip", "link", "set", &name, "alias", alias]).unwrap();
        }
        let link = create_in(&node);
        assert_eq!((link.alias.as_deref(), link.mtu), (Some(BRIDGE_ALIAS), DEFAULT_MTU));
        assert_eq!(names(&node), ["lo".to_owned(), format!("{prefix}def"), "pw0".to_owned()]);
    }
}
