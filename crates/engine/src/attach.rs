//! ADD: the way of a pod. Read [`attach`] from top to bottom; every step before the record only looks (or asks another
//! IPAM plugin), every step after it is undone by [`detach::undo`] if a later one fails. The bridge and what makes the host
//! forward are the node's, not the pod's: they stay.

use std::net::IpAddr;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use cni::{Call, CniResult, Route as PodRoute};
use ipnet::IpNet;
use netconf::{Addresses, NetConf, Place, default_route};
use netlink::{Link, NetNs, RtSocket};
use types::{AttachMode, AttachmentKey, IfName, MIN_MTU_V6, Special};

use crate::bridge::{self, Bridge, Placed, Spec};
use crate::delegate::Delegate;
use crate::reconcile::subnet;
use crate::resident::{self, KnownBridge};
use crate::state::{
    Allocation, Attachment, Begin, Held, Network, Phase, PodAddress, PodName, SCHEMA, State, StateError,
    Wanted, Wiring,
};
use crate::sysctl::{self, Families, HostSettings};
use crate::wire::{self, Inside, Neighbours, Wire};
use crate::{Caller, Error, again, detach, firewall, gc, privileges, relearn, result, settle, shaping};

/// How often a foreign link may have the name that we would take, before we give up.
const SALTS: u8 = 8;
/// Addresses that an IPAM plugin may give one pod, as many as sets of ranges.
const MOST_GIVEN: usize = 16;

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
    let cookie = pod.netns_cookie()?;
    let site = Site { call, conf, key: &key, netns: &netns, cookie, mtu: bridge.mtu(conf), host_end, caller };
    let settings = HostSettings::open(caller.resident)?;
    let lease = Lease::take(&site)?;
    let begun = begin(&network, &site, &lease, &mut host).and_then(|begun| unshared(&state, &network, begun));
    let made = begun.and_then(|(held, neighbours)| {
        let mut kernel = Kernel { host: &mut host, pod: &mut pod, state: &state, bridge, settings };
        let (attachment, wired) = finish(held, neighbours, &site, &mut kernel)?;
        let bridge = bridge::as_it_is(&mut host, &wired.bridge);
        let answer =
            result::of_attachment(&attachment, &bridge, &wired.routes, call.config.prev_result.as_ref());
        Ok((result::with_dns(answer, &conf.dns, &attachment.wiring.dns), attachment))
    });
    match made {
        Ok(made) => {
            resident::spare_socket(caller.resident, host);
            Ok(made)
        }
        // The spec: an IPAM plugin whose ADD succeeded gets a DEL when the rest failed.
        Err(error) => match lease.give_back() {
            Ok(()) => Err(error),
            Err(also) => Err(Error::Several(vec![error, also])),
        },
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
    host_end: HostEnd,
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
}

/// The bridge as it was found.
enum Found {
    Known(KnownBridge),
    Link(Link),
    Nothing,
}

impl Found {
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
    bridge: Bridge,
    routes: Vec<PodRoute>,
}

/// Addresses that another plugin gave, or None where we give them ourselves.
struct Lease<'a> {
    from: Option<(Delegate<'a>, CniResult)>,
}

impl<'a> Lease<'a> {
    fn take(site: &Site<'a>) -> Result<Self, Error> {
        let Addresses::Delegated(plugin) = &site.conf.addresses else { return Ok(Self { from: None }) };
        let delegate = Delegate::find(plugin, &site.call.config, site.caller.delegates)?;
        // The spec: a delegate whose ADD failed gets a DEL before the failure is reported.
        let given = delegate.add().map_err(|error| match delegate.del() {
            Ok(()) => error,
            Err(also) => Error::Several(vec![error, also]),
        })?;
        if let Some(what) = unusable(&given) {
            delegate.del()?;
            return Err(Error::Delegate { name: plugin.clone(), what });
        }
        Ok(Self { from: Some((delegate, given)) })
    }

    fn result(&self) -> Option<&CniResult> {
        self.from.as_ref().map(|(_, result)| result)
    }

    fn give_back(&self) -> Result<(), Error> {
        self.from.as_ref().map_or(Ok(()), |(delegate, _)| delegate.del())
    }
}

/// Why a pod cannot have the addresses that another plugin gave. A link-local address is left to that plugin.
fn unusable(given: &CniResult) -> Option<String> {
    let special = |net: IpNet| Special::of(net.trunc()).filter(|kind| *kind != Special::LinkLocal);
    let refused = given.ips.iter().find_map(|ip| Some((ip.address, special(ip.address)?)));
    match (given.ips.len(), refused) {
        (0, _) => Some("gave no address".to_owned()),
        (count, _) if count > MOST_GIVEN => {
            Some(format!("gave {count} addresses; a pod gets at most {MOST_GIVEN}"))
        }
        (_, Some((address, kind))) => {
            Some(format!("gave {address}, but {kind} address cannot be a pod's, nor be in its subnet"))
        }
        (_, None) => None,
    }
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
    let plugin =
        netconf::foreign_ipam(&call.config).filter(|_| held.attachment().is_some_and(|a| a.delegated));
    detach::undo(held, Some(key), caller)?;
    // Its addresses came from there, and would not be given again.
    let Some(plugin) = plugin else { return Ok(None) };
    Delegate::find(plugin, &call.config, caller.delegates)?.del().map(|()| None)
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

/// Claims the addresses and writes the record.
fn begin(
    network: &Network,
    site: &Site<'_>,
    lease: &Lease<'_>,
    host: &mut RtSocket,
) -> Result<(Held, Neighbours), Error> {
    let requested: Vec<_> = site.conf.requested.iter().map(|r| (r.addr, r.prefix)).collect();
    let pools = match &site.conf.addresses {
        Addresses::Own(pools) => Some(pools),
        Addresses::Delegated(_) => None,
    };
    firewall::check_ports(&site.conf.ports, families_of(pools, lease))?;
    let wanted = Wanted { key: site.key, pools, requested: &requested, clean: &firewall::forget_flows };
    let mut neighbours = Neighbours::KnowNothing;
    let mut make = |given: &[Allocation]| {
        neighbours = neighbours_of(site.conf.mode, lease, given);
        decide(site, lease, given)
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

/// Which families the pod will have: every set of ranges gives an address.
fn families_of(pools: Option<&ipam::Pools>, lease: &Lease<'_>) -> Families {
    let ranges = pools.into_iter().flat_map(ipam::Pools::sets).flat_map(ipam::RangeSet::ranges);
    let own = ranges.map(ipam::Range::is_ipv4);
    let given = lease.result().into_iter().flat_map(|r| &r.ips).map(|ip| ip.address.addr().is_ipv4());
    let v4: Vec<bool> = own.chain(given).collect();
    Families { ipv4: v4.contains(&true), ipv6: v4.contains(&false) }
}

/// Two networks with one subnet would give one address to two pods, and the DEL of one would take the other's rules.
fn unshared(
    state: &State,
    network: &Network,
    (held, neighbours): (Held, Neighbours),
) -> Result<(Held, Neighbours), Error> {
    let ips: Vec<IpAddr> = held.attachment().into_iter().flat_map(Attachment::ips).collect();
    for other in state.networks()?.iter().filter(|other| other.name() != network.name()) {
        if let Some(ip) = ips.iter().find(|ip| other.is_claimed(**ip)) {
            let taken = format!(
                "address {ip} is in use in network {} of this node: give the two networks different subnets",
                other.name()
            );
            // Nothing is in the kernel yet. What it remembers of these addresses is the other pod's.
            held.release(&ips)?;
            return Err(Error::Cni(cni::Error::new(cni::Code::AddressTaken, taken)));
        }
    }
    Ok((held, neighbours))
}

/// Everything about the attachment, from the addresses it got.
fn decide(site: &Site<'_>, lease: &Lease<'_>, given: &[Allocation]) -> Attachment {
    let (conf, call) = (site.conf, site.call);
    let subnets = match lease.result() {
        Some(result) => delegated_addresses(result),
        None => given.iter().map(own_address).collect(),
    };
    let routed = conf.mode == AttachMode::Routed;
    let addresses: Vec<PodAddress> = subnets
        .iter()
        .map(|a| PodAddress {
            address: if routed { a.address.addr().into() } else { a.address },
            gateway: a.gateway,
        })
        .collect();
    let ips: Vec<_> = addresses.iter().map(|a| a.address.addr()).collect();
    let mut routes: Vec<PodRoute> = lease.result().map(|r| r.routes.clone()).unwrap_or_default();
    // A default route that the other plugin gave is the one.
    let ours = conf.pod_routes(&ips).into_iter().filter(|r| !routes.iter().any(|given| given.dst == r.dst));
    routes.extend(ours.collect::<Vec<_>>());
    if routed {
        routes.extend(subnet_routes(&subnets, &routes));
    }
    let gateways =
        if conf.is_gateway { subnets.iter().filter_map(gateway_net).collect() } else { Vec::new() };
    let mut cluster = conf.cluster.clone();
    // An IPAM plugin that gives single addresses says nothing of the subnet. With them every pod would have a cluster, and
    // a chain, of its own; that pods of this node are not outside is known anyway.
    let is_subnet = |net: &IpNet| net.prefix_len() < net.max_prefix_len();
    cluster.extend(
        subnets.iter().map(|a| a.address.trunc()).filter(|net| is_subnet(net) && !conf.cluster.contains(net)),
    );
    Attachment {
        schema: SCHEMA,
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
        delegated: lease.result().is_some(),
        masquerade_outside: conf.ip_masq.then_some(cluster),
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
            dns: lease.result().map(|r| r.dns.clone()).unwrap_or_default(),
        },
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
    }
}

/// What another IPAM plugin gives may have had any number of owners.
fn neighbours_of(mode: AttachMode, lease: &Lease<'_>, given: &[Allocation]) -> Neighbours {
    let used_before = lease.result().is_some() || given.iter().any(|a| a.used_before);
    match mode {
        AttachMode::Bridge if used_before => Neighbours::MayRemember,
        AttachMode::Bridge | AttachMode::Routed => Neighbours::KnowNothing,
    }
}

fn own_address(given: &Allocation) -> PodAddress {
    let address = IpNet::new(given.address, given.prefix_len).unwrap_or_else(|_| given.address.into());
    PodAddress { address, gateway: Some(given.gateway) }
}

/// An IPAM plugin need not name a gateway: then it is the first address of the subnet, as in the reference.
fn delegated_addresses(result: &CniResult) -> Vec<PodAddress> {
    let of = |ip: &cni::IpConfig| PodAddress {
        address: ip.address,
        gateway: ip.gateway.or_else(|| ip.address.hosts().next().filter(|first| *first != ip.address.addr())),
    };
    result.ips.iter().map(of).collect()
}

fn gateway_net(pod: &PodAddress) -> Option<IpNet> {
    pod.gateway.and_then(|gateway| IpNet::new(gateway, pod.address.prefix_len()).ok())
}

/// In mode `routed` a pod's own prefix is a single address: without a default route it still needs its subnet.
fn subnet_routes(subnets: &[PodAddress], routes: &[PodRoute]) -> Vec<PodRoute> {
    let has_default = |like: &IpNet| routes.iter().any(|r| r.dst == default_route(like.addr()).dst);
    subnets
        .iter()
        .filter(|a| !has_default(&a.address))
        .map(|a| PodRoute { dst: a.address.trunc(), ..default_route(a.address.addr()) })
        .collect()
}

fn pod_name(call: &Call) -> Option<PodName> {
    let (namespace, name) = (call.args.pod_namespace.clone()?, call.args.pod_name.clone()?);
    Some(PodName { namespace, name, uid: call.args.pod_uid.clone() })
}

/// The kernel's part, then ready. Whatever fails, nothing of it stays.
fn finish(
    mut held: Held,
    neighbours: Neighbours,
    site: &Site<'_>,
    kernel: &mut Kernel<'_>,
) -> Result<(Attachment, Wired), Error> {
    let Some(attachment) = held.attachment().cloned() else { unreachable!("the record was just written") };
    let ready = wire_up(&attachment, neighbours, site, kernel).and_then(|wired| {
        if (site.caller.cancelled)() {
            return Err(Error::Cancelled(site.key.clone()));
        }
        held.commit()?;
        Ok(wired)
    });
    match ready {
        Ok(wired) => Ok((attachment, wired)),
        Err(error) => match detach::undo(held, Some(site.key), site.caller) {
            Ok(()) => Err(error),
            Err(also) => Err(Error::Several(vec![error, also])),
        },
    }
}

fn wire_up(
    attachment: &Attachment,
    neighbours: Neighbours,
    site: &Site<'_>,
    kernel: &mut Kernel<'_>,
) -> Result<Wired, Error> {
    if let Some(index) = site.host_end.leftover {
        detach::delete_link(kernel.host, index)?;
    }
    let families = Families {
        ipv4: attachment.ips().any(|ip| ip.is_ipv4()),
        ipv6: attachment.ips().any(|ip| ip.is_ipv6()),
    };
    if families.ipv6 && attachment.mtu < MIN_MTU_V6 {
        return Err(Error::MtuTooSmall { mtu: attachment.mtu });
    }
    let (bridge, gateways) = bridge_for(attachment, families, site, kernel)?;
    // In force before the link exists: a pod is never unprotected.
    firewall::admit(attachment, kernel.state, site.caller.resident)?;
    let log = kernel.state.sysctls();
    let resident = site.caller.resident;
    let wire = Wire {
        attachment,
        bridge: &bridge,
        netns: site.netns,
        log: &log,
        neighbours,
        settings: &kernel.settings,
    };
    let placed = wire::make_pair(kernel.host, &wire, &gateways)?;
    for new in placed.iter().filter(|placed| placed.is_new_address) {
        bridge::resolve_conflicts(kernel.host, &bridge, site.conf, new)?;
        settle::wait_for_address(kernel.host, new.gateway.address.addr())?;
    }
    // An earlier version's address, with the kernel's route to its subnet: not in any later ADD.
    let is_earlier = |p: &&Placed| !p.is_new_address && p.is_new_route && bridge.is_ours();
    if attachment.mode == AttachMode::Routed {
        for earlier in placed.iter().filter(is_earlier) {
            subnet::remove_earlier(kernel.host, kernel.state, (&bridge, &earlier.gateway))?;
        }
    }
    if placed.iter().any(|placed| placed.is_new_address) {
        bridge::adopt(kernel.host, &bridge, &log)?;
    }
    let Inside { host_index, routes } = wire::set_up_inside(kernel.host, kernel.pod, &wire)?;
    if attachment.mode == AttachMode::Routed {
        wire::route_to_pod(kernel.host, attachment, host_index)?;
    }
    wire::let_loopback_in(attachment, &bridge, &log)?;
    shaping::apply(kernel.host, attachment, host_index)?;
    settle::wait(kernel.host, kernel.pod, attachment)?;
    wire::announce(kernel.pod, &wire)?;
    if let Some(resident) = resident {
        resident.remember_host_end(site.key, host_index);
        resident.remember_bridge(&bridge, attachment);
    }
    Ok(Wired { bridge, routes })
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
