//! ADD: the way of a pod. Read [`attach`] from top to bottom. Steps before the record change nothing; every step after it
//! is undone by [`detach::undo`] if a later one fails. The bridge and what makes the host forward are the node's, not the
//! pod's: they stay. Another IPAM plugin is asked in the middle (see [`crate::lease`]).

use std::net::IpAddr;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use cni::{Call, CniResult, Route as PodRoute};
use ipnet::IpNet;
use netconf::{Addresses, NetConf, Place, default_route};
use netlink::{Link, NetNs, RouteFilter, RtSocket};
use types::{AttachMode, AttachmentKey, IfName, MIN_MTU_V6};

use crate::bridge::{self, Bridge, Gateway, Placed, Spec};
use crate::delegate::Delegate;
use crate::lease::{self, Lease};
use crate::overlap::{self, Asked, Links, TABLE_MAIN, Unusable};
use crate::reconcile::subnet;
use crate::resident::{self, KnownBridge};
use crate::state::{
    Addressing, Allocation, Attachment, Begin, Held, Network, Phase, PodAddress, PodName, State, StateError,
    Wanted, Wiring,
};
use crate::sysctl::{self, Families, HostSettings};
use crate::wire::{self, Inside, Neighbours, Wire};
use crate::{
    Caller, Error, again, detach, firewall, gc, layer2, privileges, relearn, result, settle, shaping,
};

/// How often a foreign link may have the name that we would take, before we give up.
const SALTS: u8 = 8;
/// How many addresses that the node uses otherwise are skipped for one pod.
const SKIPPED: usize = 256;

pub(crate) fn attach(
    call: &Call,
    conf: &NetConf,
    place: &Place,
    caller: &Caller<'_>,
) -> Result<(CniResult, Attachment), Error> {
    privileges::check()?;
    let key = call.key();
    let netns = open_namespace(call)?;
    let state = State::open(&place.run_dir)?;
    let network = relearn::network(&state, &key.network, Some(conf))?;
    if let Some(attachment) = clear_the_way(&network, &key, call, caller)? {
        let answer = again::answer(&attachment, call, conf)?;
        return Ok((answer, attachment));
    }
    let mut pod = RtSocket::open_in(&netns)?;
    if pod.index_of(&key.ifname)?.is_some() {
        let netns = netns_path(call).to_owned();
        return Err(Error::LinkExists { ifname: key.ifname, netns });
    }
    let mut host = resident::socket(caller.resident)?;
    let bridge = find_bridge(&mut host, conf, caller)?;
    let host_end = find_host_end(&mut host, &key)?;
    let settings = HostSettings::open(caller.resident)?;
    let cookie = pod.netns_cookie()?;
    let (mtu, bridge_index) = (bridge.mtu(conf), bridge.index());
    let defaults = default_routes(&mut pod, conf.mode)?;
    let site =
        Site { call, conf, key: &key, netns: &netns, cookie, mtu, bridge_index, host_end, defaults, caller };
    let lease = Lease::new(delegate_of(conf, call, caller)?);
    let (held, neighbours) = begin_usable(&state, &network, &site, &mut host)?;
    let mut kernel = Kernel { host: &mut host, pod: &mut pod, state: &state, bridge, lease, settings };
    let wired = finish(held, neighbours, &site, &mut kernel)?;
    let Wired { attachment, bridge, routes } = wired;
    let bridge = bridge::as_it_is(&mut host, &bridge);
    let answer = result::of_attachment(&attachment, &bridge, &routes, call.config.prev_result.as_ref());
    resident::spare_socket(caller.resident, host);
    Ok((result::with_dns(answer, &conf.dns, &attachment.wiring.dns), attachment))
}

fn delegate_of<'a>(
    conf: &NetConf,
    call: &'a Call,
    caller: &Caller<'_>,
) -> Result<Option<Delegate<'a>>, Error> {
    match &conf.addresses {
        Addresses::Delegated(plugin) => Delegate::find(plugin, &call.config, caller.delegates).map(Some),
        Addresses::Own(_) | Addresses::Absent => Ok(None),
    }
}

/// What is known about one attach before anything is changed for it.
struct Site<'a> {
    call: &'a Call,
    conf: &'a NetConf,
    key: &'a AttachmentKey,
    netns: &'a NetNs,
    cookie: u64,
    mtu: u32,
    bridge_index: Option<u32>,
    host_end: HostEnd,
    /// Of which families another interface of the pod has the default route.
    defaults: Families,
    caller: &'a Caller<'a>,
}

/// The name that the host end will have.
struct HostEnd {
    name: IfName,
    /// A link that has this name and our mark. At most one process may have a record of this key: once that is us, the
    /// link is one that no record knows. Until then it may be the work of somebody who attaches the same pod right now.
    leftover: Option<u32>,
}

struct Kernel<'a> {
    host: &'a mut RtSocket,
    pod: &'a mut RtSocket,
    state: &'a State,
    bridge: Found,
    settings: HostSettings<'a>,
    lease: Lease<'a>,
}

/// The bridge as it was found.
enum Found {
    Known(KnownBridge),
    Link(Link),
    Nothing,
}

impl Found {
    fn index(&self) -> Option<u32> {
        match self {
            Self::Known(known) => Some(known.bridge.index),
            Self::Link(link) => Some(link.index),
            Self::Nothing => None,
        }
    }

    fn mtu(&self, conf: &NetConf) -> u32 {
        match self {
            Self::Known(known) => known.mtu,
            Self::Link(link) => bridge::mtu(conf, Some(link)),
            Self::Nothing => bridge::mtu(conf, None),
        }
    }
}

/// What was made, as far as the answer tells it.
struct Wired {
    attachment: Attachment,
    bridge: Bridge,
    routes: Vec<PodRoute>,
}

pub(crate) fn netns_path(call: &Call) -> &str {
    call.netns.as_deref().unwrap_or_default()
}

fn open_namespace(call: &Call) -> Result<NetNs, Error> {
    let path = netns_path(call);
    let netns = NetNs::open(Path::new(path))?;
    if !call.netns_override && netns.is_here()? {
        return Err(Error::OwnNamespace(path.to_owned()));
    }
    Ok(netns)
}

/// A ready attachment of this key is refused, unless the same run of the plugin made it: its answer got lost, and it is
/// returned. A pending one was left by somebody who was killed, and is undone.
fn clear_the_way(
    network: &Network,
    key: &AttachmentKey,
    call: &Call,
    caller: &Caller<'_>,
) -> Result<Option<Attachment>, Error> {
    let Some(held) = network.find(key)? else { return Ok(None) };
    if held.phase() == Phase::Ready {
        let is_same = |a: &&Attachment| a.request.is_some() && a.request.as_ref() == caller.request;
        let made_by_this_run = held.attachment().filter(is_same).cloned();
        return made_by_this_run.map(Some).ok_or_else(|| Error::AlreadyAttached(key.clone()));
    }
    // Its addresses came from there, and would not be given again.
    let plugin =
        netconf::foreign_ipam(&call.config).filter(|_| held.attachment().is_none_or(|a| a.delegated));
    let delegate = plugin.map(|plugin| Delegate::find(plugin, &call.config, caller.delegates)).transpose()?;
    detach::undo_with(held, Some(key), caller, delegate.as_ref()).map(|()| None)
}

fn find_bridge(host: &mut RtSocket, conf: &NetConf, caller: &Caller<'_>) -> Result<Found, Error> {
    if let Some(known) = caller.resident.map(|r| r.bridge(host, conf)).transpose()?.flatten() {
        return Ok(Found::Known(known));
    }
    Ok(host.link(&conf.bridge)?.map_or(Found::Nothing, Found::Link))
}

/// A name for the host end that nobody else has.
fn find_host_end(host: &mut RtSocket, key: &AttachmentKey) -> Result<HostEnd, Error> {
    for salt in 0..SALTS {
        let name = key.host_link(salt);
        let Some(index) = host.index_of(&name)? else { return Ok(HostEnd { name, leftover: None }) };
        let alias = host.link_at(index)?.and_then(|link| link.alias);
        if alias.is_some_and(|alias| detach::is_alias_of(&alias, key)) {
            return Ok(HostEnd { name, leftover: Some(index) });
        }
    }
    let name = key.host_link(0);
    Err(Error::NotAvailable(format!("link {name} and {SALTS} others are taken by somebody else")))
}

/// Claims addresses that nothing else of the node uses. Others are given back and, if they were not requested, the next ones
/// are tried: addresses are given round robin.
fn begin_usable(
    state: &State,
    network: &Network,
    site: &Site<'_>,
    host: &mut RtSocket,
) -> Result<(Held, Neighbours), Error> {
    let links = if site.caller.resident.is_some() { Links::ListIfOthers } else { Links::List };
    let asked = Asked { conf: site.conf, key: site.key, bridge: site.bridge_index, links };
    let mut skipped = Vec::new();
    loop {
        let (held, neighbours) = begin(network, site, host)?;
        let ips: Vec<IpAddr> = held.attachment().into_iter().flat_map(Attachment::ips).collect();
        let found = unshared(state, network, &ips).and_then(|()| overlap::unusable(host, &asked, &ips));
        if matches!(found, Ok(None)) {
            return Ok((held, neighbours));
        }
        // Nothing is in the kernel yet. What it remembers of these addresses belongs to the other owner.
        held.release(&ips)?;
        let Some(Unusable { ip, why }) = found? else { continue };
        let is_requested = site.conf.requested.iter().any(|requested| requested.addr == ip);
        if is_requested || skipped.contains(&ip) || skipped.len() == SKIPPED {
            return Err(Error::Cni(cni::Error::new(cni::Code::AddressTaken, why)));
        }
        skipped.push(ip);
    }
}

/// Claims the addresses and writes the record.
fn begin(network: &Network, site: &Site<'_>, host: &mut RtSocket) -> Result<(Held, Neighbours), Error> {
    let requested: Vec<_> = site.conf.requested.iter().map(|r| (r.addr, r.prefix)).collect();
    let pools = match &site.conf.addresses {
        Addresses::Own(pools) => Some(pools),
        Addresses::Delegated(_) | Addresses::Absent => None,
    };
    if let Some(pools) = pools {
        // Every set of ranges gives an address.
        let ranges = pools.sets().iter().flat_map(ipam::RangeSet::ranges);
        firewall::check_ports(&site.conf.ports, families(ranges.map(ipam::Range::is_ipv4)))?;
    }
    let wanted = Wanted { key: site.key, pools, requested: &requested, clean: &firewall::forget_flows };
    let mut neighbours = Neighbours::KnowNothing;
    let mut make = |given: &[Allocation]| {
        neighbours = neighbours_of(site.conf.mode, given.iter().any(|a| a.used_before));
        decide(site, &given.iter().map(own_address).collect::<Vec<_>>(), None)
    };
    let begun = match network.begin(&wanted, &mut make) {
        // Containers that vanished without a DEL must not keep their addresses for ever.
        Err(StateError::Exhausted { .. } | StateError::Taken { .. })
            if gc::collect_dead(network, host, site.caller).is_ok_and(|collected| collected > 0) =>
        {
            network.begin(&wanted, &mut make)?
        }
        other => other?,
    };
    match begun {
        Begin::Started(held) => Ok((*held, neighbours)),
        Begin::Exists(Phase::Ready) => Err(Error::AlreadyAttached(site.key.clone())),
        Begin::Exists(Phase::Pending) => Err(Error::Cni(cni::Error::new(
            cni::Code::TryAgainLater,
            format!("another process is working on {}", site.key),
        ))),
    }
}

/// The families of addresses; true stands for an IPv4 address.
fn families(v4: impl Iterator<Item = bool>) -> Families {
    let v4: Vec<bool> = v4.collect();
    Families { ipv4: v4.contains(&true), ipv6: v4.contains(&false) }
}

/// Two networks with one subnet would give one address to two pods, and the DEL of one would take the other's rules.
fn unshared(state: &State, network: &Network, ips: &[IpAddr]) -> Result<(), Error> {
    for other in state.networks()?.iter().filter(|other| other.name() != network.name()) {
        if let Some(ip) = ips.iter().find(|ip| other.is_claimed(**ip)) {
            let taken = format!(
                "address {ip} is in use in network {} of this node: give the two networks different subnets",
                other.name()
            );
            return Err(Error::Cni(cni::Error::new(cni::Code::AddressTaken, taken)));
        }
    }
    Ok(())
}

/// Everything about the attachment, from the addresses it got, and what another IPAM plugin said besides.
fn decide(site: &Site<'_>, subnets: &[PodAddress], given: Option<&CniResult>) -> Attachment {
    let (conf, call) = (site.conf, site.call);
    let routed = conf.mode == AttachMode::Routed;
    let addresses: Vec<PodAddress> = subnets
        .iter()
        .map(|a| PodAddress {
            address: if routed { a.address.addr().into() } else { a.address },
            gateway: a.gateway,
        })
        .collect();
    let ips: Vec<_> = addresses.iter().map(|a| a.address.addr()).collect();
    let mut routes: Vec<PodRoute> = given.map(|r| r.routes.clone()).unwrap_or_default();
    // A default route that the other plugin gave is the one.
    let ours = conf.pod_routes(&ips).into_iter().filter(|r| !routes.iter().any(|given| given.dst == r.dst));
    routes.extend(ours.collect::<Vec<_>>());
    if routed {
        routes.extend(subnet_routes(site, subnets, &routes));
    }
    let gateways =
        if conf.is_gateway { subnets.iter().filter_map(gateway_net).collect() } else { Vec::new() };
    let mut cluster = conf.cluster.clone();
    // With single addresses every pod would have a cluster, and a chain, of its own; that pods of this node are not outside is
    // known anyway.
    cluster.extend(
        subnets.iter().map(|a| a.address.trunc()).filter(|net| is_subnet(net) && !conf.cluster.contains(net)),
    );
    Attachment {
        schema: lease::addressing(conf).schema(),
        key: site.key.clone(),
        netns: netns_path(call).to_owned(),
        netns_cookie: Some(site.cookie),
        mode: conf.mode,
        bridge: conf.bridge.clone(),
        host_link: site.host_end.name.clone(),
        host_mac: site.key.host_mac(),
        pod_mac: conf.mac.unwrap_or_else(|| site.key.pod_mac()),
        mtu: site.mtu,
        addresses,
        delegated: matches!(conf.addresses, Addresses::Delegated(_)),
        ipam_plugin: lease::plugin(conf),
        addressing: lease::addressing(conf),
        masquerade_outside: (conf.ip_masq && !subnets.is_empty()).then_some(cluster),
        spoof_check: conf.spoof_check,
        ports: conf.ports.clone(),
        bandwidth: conf.bandwidth,
        pod: pod_name(call),
        placement: Some(conf.placement.clone()),
        request: site.caller.request.cloned(),
        wiring: Wiring {
            routes,
            gateways,
            hairpin: conf.hairpin,
            dns: given.map(|r| r.dns.clone()).unwrap_or_default(),
        },
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
    }
}

fn neighbours_of(mode: AttachMode, used_before: bool) -> Neighbours {
    match mode {
        AttachMode::Bridge if used_before => Neighbours::MayRemember,
        AttachMode::Bridge | AttachMode::Routed => Neighbours::KnowNothing,
    }
}

fn own_address(given: &Allocation) -> PodAddress {
    let address = IpNet::new(given.address, given.prefix_len).unwrap_or_else(|_| given.address.into());
    PodAddress { address, gateway: Some(given.gateway) }
}

fn gateway_net(pod: &PodAddress) -> Option<IpNet> {
    pod.gateway.and_then(|gateway| IpNet::new(gateway, pod.address.prefix_len()).ok())
}

/// In mode `routed` a pod's own prefix is a single address: without a default route it still needs its subnet. Where another
/// interface has the default route, answers to pods of this network would leave by that one, which drops them. With the
/// reference's `bridge` the subnet is on the interface; here the pods of other nodes have routes, too.
fn subnet_routes(site: &Site<'_>, subnets: &[PodAddress], routes: &[PodRoute]) -> Vec<PodRoute> {
    let has_default = |like: &IpNet| routes.iter().any(|r| r.dst == default_route(like.addr()).dst);
    let mut wanted: Vec<IpNet> = Vec::new();
    for net in subnets.iter().map(|a| a.address.trunc()) {
        let is_v4 = net.addr().is_ipv4();
        if if is_v4 { site.defaults.ipv4 } else { site.defaults.ipv6 } {
            let cluster = site.conf.cluster.iter().filter(|other| other.addr().is_ipv4() == is_v4);
            wanted.extend(cluster.chain([&net]).filter(|net| is_subnet(net)));
        } else if !has_default(&net) {
            wanted.push(net);
        }
    }
    wanted.sort();
    wanted.dedup();
    let is_covered = |net: &IpNet| wanted.iter().any(|other| other != net && other.contains(net));
    let is_given = |net: &IpNet| routes.iter().any(|r| r.dst == *net);
    let all = wanted.iter().filter(|net| !is_covered(net) && !is_given(net));
    all.map(|net| PodRoute { dst: *net, ..default_route(net.addr()) }).collect()
}

/// An IPAM plugin that gives single addresses says nothing of the subnet.
fn is_subnet(net: &IpNet) -> bool {
    net.prefix_len() < net.max_prefix_len()
}

/// Only the subnet routes of mode `routed` depend on it.
fn default_routes(pod: &mut RtSocket, mode: AttachMode) -> Result<Families, Error> {
    let routes = match mode {
        AttachMode::Routed => {
            pod.routes(RouteFilter { table: Some(TABLE_MAIN), ..RouteFilter::default() })?
        }
        AttachMode::Bridge => Vec::new(),
    };
    Ok(families(routes.iter().filter(|r| r.dst.prefix_len() == 0).map(|r| r.dst.addr().is_ipv4())))
}

fn pod_name(call: &Call) -> Option<PodName> {
    let (namespace, name) =
        (call.args.pod_namespace.clone().unwrap_or_default(), call.args.pod_name.clone()?);
    Some(PodName { namespace, name, uid: call.args.pod_uid.clone() })
}

/// The kernel's part, then ready. Whatever fails, nothing of it stays.
fn finish(
    mut held: Held,
    neighbours: Neighbours,
    site: &Site<'_>,
    kernel: &mut Kernel<'_>,
) -> Result<Wired, Error> {
    let ready = wire_up(&mut held, neighbours, site, kernel).and_then(|wired| {
        if (site.caller.cancelled)() {
            return Err(Error::Cancelled(site.key.clone()));
        }
        held.commit()?;
        Ok(wired)
    });
    ready.map_err(|error| match detach::undo_with(held, Some(site.key), site.caller, kernel.lease.asked()) {
        Ok(()) => error,
        Err(also) => Error::Several(vec![error, also]),
    })
}

fn wire_up(
    held: &mut Held,
    neighbours: Neighbours,
    site: &Site<'_>,
    kernel: &mut Kernel<'_>,
) -> Result<Wired, Error> {
    let Some(attachment) = held.attachment().cloned() else { unreachable!("the record was just written") };
    let bridge = make_interface(&attachment, site, kernel)?;
    if !attachment.delegated {
        return set_up(Interface { attachment, bridge, neighbours }, site, kernel);
    }
    bring_up(&attachment, &bridge, site, kernel)?;
    let given = kernel.lease.take(site.key, site.caller)?;
    let Some(given) = given else { unreachable!("a delegated attachment has a delegate") };
    let attachment = decide(site, &lease::addresses(&given), Some(&given));
    let ips: Vec<IpAddr> = attachment.ips().collect();
    firewall::check_ports(&site.conf.ports, families(ips.iter().map(IpAddr::is_ipv4)))?;
    unshared(kernel.state, held.network(), &ips)?;
    held.rewrite(attachment.clone())?;
    give_addresses(&attachment, &bridge, site, kernel)?;
    // What another IPAM plugin gives may have had any number of owners.
    let neighbours = neighbours_of(site.conf.mode, true);
    set_up(Interface { attachment, bridge, neighbours }, site, kernel)
}

/// An interface that exists, and what it is to have.
struct Interface {
    attachment: Attachment,
    bridge: Bridge,
    neighbours: Neighbours,
}

/// The pair, guarded, and the gateways on the bridge.
fn make_interface(
    attachment: &Attachment,
    site: &Site<'_>,
    kernel: &mut Kernel<'_>,
) -> Result<Bridge, Error> {
    if let Some(index) = site.host_end.leftover {
        detach::delete_link(kernel.host, index)?;
    }
    let families = usable_families(attachment)?;
    let (bridge, gateways) = bridge_for(attachment, families, site, kernel)?;
    // In force before the link exists: a pod is never unprotected.
    firewall::admit(attachment, kernel.state, site.caller.resident)?;
    let log = kernel.state.sysctls();
    let neighbours = Neighbours::KnowNothing;
    let wire = Wire {
        attachment,
        bridge: &bridge,
        netns: site.netns,
        log: &log,
        neighbours,
        settings: &kernel.settings,
    };
    let placed = wire::make_pair(kernel.host, &wire, &gateways)?;
    if attachment.addressing == Addressing::None {
        layer2::refuse_gateway(kernel.host, &bridge)?;
    }
    settle_gateways(&placed, &bridge, site, kernel)?;
    Ok(bridge)
}

fn usable_families(attachment: &Attachment) -> Result<Families, Error> {
    let families = families(attachment.ips().map(|ip| ip.is_ipv4()));
    if families.ipv6 && attachment.mtu < MIN_MTU_V6 {
        return Err(Error::MtuTooSmall { mtu: attachment.mtu });
    }
    Ok(families)
}

/// For another IPAM plugin: the interface without addresses, and able to send.
fn bring_up(
    attachment: &Attachment,
    bridge: &Bridge,
    site: &Site<'_>,
    kernel: &mut Kernel<'_>,
) -> Result<(), Error> {
    let log = kernel.state.sysctls();
    let (neighbours, settings) = (Neighbours::KnowNothing, &kernel.settings);
    let wire = Wire { attachment, bridge, netns: site.netns, log: &log, neighbours, settings };
    wire::set_up_inside(kernel.host, kernel.pod, &wire)?;
    settle::wait(kernel.host, kernel.pod, attachment)
}

/// What [`make_interface`] does for addresses that are known from the start.
fn give_addresses(
    attachment: &Attachment,
    bridge: &Bridge,
    site: &Site<'_>,
    kernel: &mut Kernel<'_>,
) -> Result<(), Error> {
    let families = usable_families(attachment)?;
    let log = kernel.state.sysctls();
    if site.conf.is_gateway {
        sysctl::enable_forwarding(kernel.host, &log, families, &kernel.settings)?;
    }
    firewall::admit(attachment, kernel.state, site.caller.resident)?;
    wire::mark_host_end(kernel.host, attachment, &kernel.settings)?;
    let mut placed = Vec::new();
    for &address in &attachment.wiring.gateways {
        let gateway = Gateway { bridge: bridge.index, address, mode: attachment.mode };
        placed.push(bridge::put_gateway(kernel.host, bridge, &gateway, &log)?);
    }
    settle_gateways(&placed, bridge, site, kernel)
}

fn settle_gateways(
    placed: &[Placed],
    bridge: &Bridge,
    site: &Site<'_>,
    kernel: &mut Kernel<'_>,
) -> Result<(), Error> {
    layer2::refuse_ports(kernel.host, bridge, placed)?;
    for new in placed.iter().filter(|placed| placed.is_new_address) {
        bridge::resolve_conflicts(kernel.host, bridge, site.conf, new)?;
        settle::wait_for_address(kernel.host, new.gateway.address.addr())?;
    }
    // An earlier version's address, with the kernel's route to its subnet: not in any later ADD.
    let is_earlier = |p: &&Placed| !p.is_new_address && p.is_new_route && bridge.is_ours();
    if site.conf.mode == AttachMode::Routed {
        for earlier in placed.iter().filter(is_earlier) {
            subnet::remove_earlier(kernel.host, kernel.state, (bridge, &earlier.gateway))?;
        }
    }
    if placed.iter().any(|placed| placed.is_new_address) {
        bridge::adopt(kernel.host, bridge, &kernel.state.sysctls())?;
    }
    Ok(())
}

/// Everything that is on the interface.
fn set_up(made: Interface, site: &Site<'_>, kernel: &mut Kernel<'_>) -> Result<Wired, Error> {
    let Interface { attachment, bridge, neighbours } = made;
    let (log, resident) = (kernel.state.sysctls(), site.caller.resident);
    let wire = Wire {
        attachment: &attachment,
        bridge: &bridge,
        netns: site.netns,
        log: &log,
        neighbours,
        settings: &kernel.settings,
    };
    let Inside { host_index, routes } = wire::set_up_inside(kernel.host, kernel.pod, &wire)?;
    if attachment.mode == AttachMode::Routed {
        wire::route_to_pod(kernel.host, &attachment, host_index)?;
    }
    wire::let_loopback_in(&attachment, &bridge, &log)?;
    shaping::apply(kernel.host, &attachment, host_index)?;
    settle::wait(kernel.host, kernel.pod, &attachment)?;
    wire::announce(kernel.pod, &wire)?;
    if let Some(resident) = resident {
        resident.remember_host_end(site.key, host_index);
        resident.remember_bridge(&bridge, &attachment);
    }
    Ok(Wired { attachment, bridge, routes })
}

/// The bridge, made or repaired if need be, and the gateways that it may lack.
fn bridge_for(
    attachment: &Attachment,
    families: Families,
    site: &Site<'_>,
    kernel: &mut Kernel<'_>,
) -> Result<(Bridge, Vec<IpNet>), Error> {
    let gateways = &attachment.wiring.gateways;
    let found = match std::mem::replace(&mut kernel.bridge, Found::Nothing) {
        Found::Known(known)
            if gateways.iter().all(|gateway| known.gateways.get(gateway) == Some(&attachment.mode)) =>
        {
            return Ok((known.bridge, Vec::new()));
        }
        Found::Known(known) => kernel.host.link(&known.bridge.name)?,
        Found::Link(link) => Some(link),
        Found::Nothing => None,
    };
    let spec = Spec { name: &site.conf.bridge, mtu: site.conf.mtu, promisc: site.conf.promisc };
    let bridge = bridge::ensure(kernel.host, &spec, found)?;
    if site.conf.is_gateway {
        sysctl::enable_forwarding(kernel.host, &kernel.state.sysctls(), families, &kernel.settings)?;
    }
    Ok((bridge, gateways.clone()))
}
