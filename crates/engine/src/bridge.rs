//! The bridge: found or made, repaired, with the gateway's addresses. In mode `routed` it has no ports and still carries
//! the gateway.

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

/// What a veth and a new bridge have where nobody says otherwise.
const DEFAULT_MTU: u32 = 1500;

/// The bridge as the pod path found it: enough to attach to it and to report it.
#[derive(Debug, Clone)]
pub(crate) struct Bridge {
    pub(crate) name: IfName,
    pub(crate) index: u32,
    pub(crate) mac: Option<Mac>,
    maker: Maker,
}

/// A bridge of ours has had a MAC of its own from the start. Another one takes that of a port until it is given one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Maker {
    Us,
    OtherOwner,
}

/// The bridge that is wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spec<'a> {
    pub(crate) name: &'a IfName,
    /// None: as it is, or the default.
    pub(crate) mtu: Option<u32>,
    pub(crate) promisc: bool,
}

/// What the bridge's MTU is or will be.
pub(crate) fn mtu(conf: &NetConf, found: Option<&Link>) -> u32 {
    conf.mtu.or(found.map(|link| link.mtu)).unwrap_or(DEFAULT_MTU)
}

impl Bridge {
    pub(crate) fn is_ours(&self) -> bool {
        self.maker == Maker::Us
    }

    pub(crate) fn owner<'a>(&self, log: &'a SysctlLog) -> LinkOwner<'a> {
        match self.maker {
            Maker::Us => LinkOwner::Us,
            Maker::OtherOwner => LinkOwner::OtherOwner(log),
        }
    }
}

/// Makes of the link that was found (or not) the bridge that is wanted. Costs nothing when all is right.
pub(crate) fn ensure(host: &mut RtSocket, spec: &Spec<'_>, found: Option<Link>) -> Result<Bridge, Error> {
    let link = match found {
        Some(link) => link,
        None => create(host, spec)?,
    };
    if link.kind.as_deref() != Some("bridge") {
        return Err(not_a_bridge(host, spec.name, link));
    }
    let mtu = spec.mtu.unwrap_or(link.mtu);
    let wrong_promisc = spec.promisc && !link.promisc;
    // Also on somebody else's bridge, where the config asks for it. Not put back by cleanup: whatever else uses the bridge
    // may rely on it by then.
    if !link.up || link.mtu != mtu || wrong_promisc {
        host.run(&Op::SetLink(SetLink {
            up: Some(true),
            mtu: Some(mtu),
            promisc: wrong_promisc.then_some(true),
            ..SetLink::of(LinkRef::Index(link.index))
        }))?;
    }
    let maker = if is_marked(&link) { Maker::Us } else { Maker::OtherOwner };
    Ok(Bridge { name: spec.name.clone(), index: link.index, mac: link.mac, maker })
}

pub(crate) fn is_marked(link: &Link) -> bool {
    LinkMark::of(link) == Some(LinkMark::Bridge)
}

/// Made under a name of its own and then renamed: nobody sees the bridge half made, and our mark never gets on one that
/// somebody else made at the same moment.
fn create(host: &mut RtSocket, spec: &Spec<'_>) -> Result<Link, Error> {
    let (name, prefix, random) = (spec.name, draft_prefix(spec.name), random());
    let draft = draft_name(&prefix, &random)?;
    let mtu = spec.mtu.unwrap_or(DEFAULT_MTU);
    // The kernel lets a bridge's MTU follow its smallest port until it was changed once: made with another value and
    // then set, it stays (F8).
    let other = if mtu == types::MIN_MTU_V6 { DEFAULT_MTU } else { types::MIN_MTU_V6 };
    let mac = new_mac(name, &random);
    let answers = host.run_all(&[
        Op::AddBridge(AddBridge { name: &draft, mac, mtu: other, up: false }),
        Op::SetLink(SetLink {
            mtu: Some(mtu),
            alias: Some(BRIDGE_ALIAS),
            ..SetLink::of(LinkRef::Name(&draft))
        }),
    ])?;
    for answer in answers {
        match answer {
            // Swept away by one who was faster.
            Err(e) if e.is_missing() => {}
            other => other?,
        }
    }
    sysctl::refuse_advertisements(&draft, LinkOwner::Us)?;
    publish(host, &draft, name)?;
    remove_drafts(host, &prefix)?;
    // Gone again already: whoever removes it wants something else than we do.
    host.link(name)?
        .ok_or_else(|| Error::NotAvailable(format!("bridge {name} was removed while it was set up")))
}

/// Gives the new bridge its name, unless somebody else's has it by now.
fn publish(host: &mut RtSocket, draft: &IfName, name: &IfName) -> Result<(), Error> {
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

/// The bridge is there now: those that others began to make are of no use, whether they were killed or are just slower.
fn remove_drafts(host: &mut RtSocket, prefix: &str) -> Result<(), Error> {
    let is_draft = |link: &Link| link.name.starts_with(prefix) && is_marked(link);
    // A draft that is missing from the list is removed when a bridge is made again.
    for draft in host.links_if_busy()?.into_iter().filter(is_draft) {
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

/// A MAC of its own does not change when ports come and go. Random, as bridges of the same name on other nodes may be on
/// the same wire.
fn new_mac(name: &IfName, random: &str) -> Mac {
    Mac::local(Digest::of(&["bridge mac", name.as_str(), random]).first5())
}

/// A gateway address of a bridge, for pods of one attach mode.
///
/// Pods on the bridge are reached through a route to the gateway's subnet. Routed pods have routes of their own, and the
/// rest of the subnet is unreachable: packets to an address that no pod has are refused at once, and make no neighbour
/// entry. Where both kinds of pods share a subnet, the route over the bridge has the better metric.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gateway {
    pub(crate) bridge: u32,
    pub(crate) address: IpNet,
    pub(crate) mode: AttachMode,
}

/// Of the unreachable route to a gateway's subnet. Every other route to the same subnet is better.
const UNREACHABLE_METRIC: u32 = 0x7fff_ffff;
/// Of the kernel's own routes to subnets of IPv6 addresses.
const SUBNET_METRIC_V6: u32 = 256;
/// The kernel's own routes.
const PROTOCOL_KERNEL: u8 = 2;

impl Gateway {
    /// The address, then the route to its subnet. What is there already answers "exists".
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

    /// None for a subnet of a single address.
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

    /// Does this route lead to the gateway's subnet over the bridge? Such a route was made by the kernel with the address,
    /// or by [`Gateway::ops`].
    pub(crate) fn is_over_bridge(&self, route: &Route) -> bool {
        route.dst == self.address.trunc()
            && route.link == Some(self.bridge)
            && matches!(route.protocol, PROTOCOL_KERNEL | ROUTE_PROTOCOL)
    }
}

fn unreachable_route(subnet: IpNet) -> Route {
    Route { kind: RouteKind::Unreachable, priority: Some(UNREACHABLE_METRIC), ..Route::to(subnet) }
}

/// The subnets that are unreachable but for the routes of pods.
pub(crate) fn unreachable_subnets(host: &mut RtSocket) -> Result<Vec<IpNet>, Error> {
    let ours = RouteFilter { protocol: Some(ROUTE_PROTOCOL), ..RouteFilter::default() };
    Ok(host.unreachable_routes(ours)?.into_iter().map(|route| route.dst).collect())
}

/// Removes the unreachable routes of subnets without a gateway; returns their subnets. The routes are listed before the
/// addresses: a gateway is put on its bridge before its route is made.
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

/// Whether a link has a gateway. The kernel has an IPv6 address once, whatever its prefix length.
pub(crate) fn carries(addresses: &[netlink::Address], gateway: &IpNet) -> bool {
    addresses.iter().any(|address| match gateway {
        IpNet::V4(_) => address.addr == *gateway,
        IpNet::V6(_) => address.addr.addr() == gateway.addr(),
    })
}

/// Puts one gateway on the bridge. One that is there already is fine.
pub(crate) fn put_gateway(
    host: &mut RtSocket,
    bridge: &Bridge,
    gateway: &Gateway,
    log: &SysctlLog,
) -> Result<Placed, Error> {
    let answers = host.run_all(&gateway.ops())?;
    added(host, (bridge, log), gateway, answers)
}

/// A gateway that is on its bridge, and what [`Gateway::ops`] changed for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placed {
    pub(crate) gateway: Gateway,
    pub(crate) is_new_address: bool,
    pub(crate) is_new_route: bool,
}

/// What came of [`Gateway::ops`]. If it fails, the route is not left behind.
pub(crate) fn added(
    host: &mut RtSocket,
    (bridge, log): (&Bridge, &SysctlLog),
    gateway: &Gateway,
    answers: Vec<Result<(), netlink::Error>>,
) -> Result<Placed, Error> {
    let is_new_route = matches!(answers.get(1), Some(Ok(())));
    match added_address(host, (bridge, log), gateway, answers) {
        Ok(is_new_address) => Ok(Placed { gateway: *gateway, is_new_address, is_new_route }),
        Err(error) if is_new_route => match remove_subnet_route(host, gateway) {
            Ok(()) => Err(error),
            Err(also) => Err(Error::Several(vec![error, also])),
        },
        Err(error) => Err(error),
    }
}

fn added_address(
    host: &mut RtSocket,
    (bridge, log): (&Bridge, &SysctlLog),
    gateway: &Gateway,
    answers: Vec<Result<(), netlink::Error>>,
) -> Result<bool, Error> {
    let mut answers = answers.into_iter();
    let is_new = match answers.next().unwrap_or(Ok(())) {
        Ok(()) => true,
        Err(e) if e.is_exists() => false,
        // The kernel's word for a link on which IPv6 is switched off. Asked only now: it is rare.
        Err(e) if e.is_permission() && gateway.address.addr().is_ipv6() => {
            sysctl::enable_ipv6(&bridge.name, bridge.owner(log))?;
            answers = host.run_all(&gateway.ops())?.into_iter();
            match answers.next().unwrap_or(Ok(())) {
                // Another pod's ADD did the same.
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

/// The first time that we put a gateway on somebody else's bridge: it gets what one of ours has had from the start. Its
/// MAC would otherwise follow its ports, and pods would send to one that is gone. Cleanup leaves that MAC: it is the one
/// that the bridge had, and the kernel has no way to let it follow the ports again.
pub(crate) fn adopt(host: &mut RtSocket, bridge: &Bridge, log: &SysctlLog) -> Result<(), Error> {
    match bridge.maker {
        Maker::Us => Ok(()),
        Maker::OtherOwner => {
            let mac = mac_of(host, bridge);
            host.run(&Op::SetLink(SetLink { mac, ..SetLink::of(LinkRef::Index(bridge.index)) }))?;
            sysctl::refuse_advertisements(&bridge.name, bridge.owner(log))
        }
    }
}

/// The bridge as it is now, for the result.
pub(crate) fn as_it_is(host: &mut RtSocket, bridge: &Bridge) -> Bridge {
    Bridge { mac: mac_of(host, bridge), ..bridge.clone() }
}

fn mac_of(host: &mut RtSocket, bridge: &Bridge) -> Option<Mac> {
    match bridge.maker {
        Maker::Us => bridge.mac,
        // Not worth failing a pod that is ready.
        Maker::OtherOwner => {
            host.link_at(bridge.index).ok().flatten().and_then(|link| link.mac).or(bridge.mac)
        }
    }
}

/// After a gateway was put on the bridge for the first time: is there an address in the way? The reference refuses
/// that too, unless `forceAddress` says to replace it.
pub(crate) fn resolve_conflicts(
    host: &mut RtSocket,
    bridge: &Bridge,
    conf: &NetConf,
    placed: &Placed,
) -> Result<(), Error> {
    let gateway = placed.gateway.address;
    let overlaps = |other: IpNet| other.contains(&gateway.trunc()) || gateway.contains(&other.trunc());
    for address in host.addresses(Some(bridge.index))? {
        let found = address.addr;
        if found.addr() == gateway.addr() || !overlaps(found) || is_link_local(found.addr()) {
            continue;
        }
        if !conf.force_address {
            remove_gateway(host, placed)?;
            return Err(Error::ForeignAddress { bridge: bridge.name.clone(), found, wanted: gateway });
        }
        host.run(&Op::DelAddress { link: bridge.index, addr: found })?;
        // The kernel removes an address together with the one before it of the same subnet.
        host.run(&Op::AddAddress(placed.gateway.add_address(Mode::Replace)))?;
    }
    Ok(())
}

/// Removes a gateway that was just placed. Its route may be more specific than that of another address on the bridge.
pub(crate) fn remove_gateway(host: &mut RtSocket, placed: &Placed) -> Result<(), Error> {
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

    /// Cleanup would delete a bridge with our mark.
    #[test]
    fn a_bridge_that_somebody_else_made_at_the_same_moment_gets_no_mark() {
        let lab = Lab::new("lost").unwrap();
        let node = lab.node("n").unwrap();
        node.sh(&["ip", "link", "add", "pw0", "mtu", "1400", "type", "bridge"]).unwrap();
        let before = testkit::Snapshot::of(&node).unwrap();
        assert_eq!(create_in(&node).alias, None);
        before.expect_same(&node).unwrap();
    }

    #[test]
    fn what_a_killed_one_began_to_make_goes_and_the_mark_is_there_from_the_start() {
        let lab = Lab::new("draft").unwrap();
        let node = lab.node("n").unwrap();
        let prefix = draft_prefix(&IfName::try_from("pw0").unwrap());
        for (name, alias) in [("abc", BRIDGE_ALIAS), ("def", "another's")] {
            let name = format!("{prefix}{name}");
            node.sh(&["ip", "link", "add", &name, "type", "bridge"]).unwrap();
            node.sh(&["ip", "link", "set", &name, "alias", alias]).unwrap();
        }
        let link = create_in(&node);
        assert_eq!((link.alias.as_deref(), link.mtu), (Some(BRIDGE_ALIAS), DEFAULT_MTU));
        assert_eq!(names(&node), ["lo".to_owned(), format!("{prefix}def"), "pw0".to_owned()]);
    }
}
