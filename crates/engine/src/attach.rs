//! ADD: the way of a pod. Read [`attach`] from top to bottom. Steps before the record change nothing; every step after it
//! is undone by [`detach::undo`] if a later one fails. The bridge and what makes the host forward are the node's, not the
//! pod's: they stay. Another IPAM plugin is asked in the middle (see [`crate::lease`]).

mod claim;
pub(crate) mod decide;
pub(crate) mod kernel;

use std::net::IpAddr;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use cni::{AttachmentRequest, CniResult, PodRoute};
use netconf::{Addresses, LocalPaths, NetConf};
use netlink::{Family, NetNs, RtSocket};
use types::{AttachMode, AttachmentKey, IfName};

pub(crate) use self::claim::refuse_shared;
use self::claim::{Claimed, Skipped, claim_usable_addresses, give_way};
use self::kernel::{AttachKernel, AttachedInterface, FoundBridge, make_interface, set_up};
use crate::bridge::{self, Bridge};
use crate::delegate::Delegate;
use crate::lease::{self, Lease};
use crate::state::{Attachment, NetworkState, NodeState, RecordPhase, RunDirs, SysctlLog};
use crate::sysctl::{ForwardedFamilies, HostSettings};
use crate::wire::Wire;
use crate::{Caller, Error, alias, detach, kernel_cache, overlap, privileges, relearn, replay, result};

/// How often a foreign link may have the name that we would take, before we give up.
const SALTS: u8 = 8;

pub(crate) fn attach(
    call: &AttachmentRequest,
    conf: &NetConf,
    place: &LocalPaths,
    caller: &Caller<'_>,
) -> Result<(CniResult, Attachment), Error> {
    privileges::check()?;
    let key = call.key();
    let netns = open_namespace(call)?;
    let state = NodeState::open(&place.run_dir)?;
    let network = relearn::network(&state, &key.network, Some(conf))?;
    if let Some(attachment) = clear_the_way(&network, &key, call, caller)? {
        let answer = replay::answer(&attachment, call, conf)?;
        return Ok((answer, attachment));
    }
    let mut pod = RtSocket::open_in(&netns)?;
    if pod.index_of(&key.ifname)?.is_some() {
        let netns = netns_path(call).to_owned();
        return Err(Error::LinkExists { ifname: key.ifname, netns });
    }
    let mut host = kernel_cache::socket(caller.kernel_cache)?;
    let bridge = find_bridge(&mut host, conf, caller)?;
    let context = AttachContext {
        call,
        conf,
        key: &key,
        netns: &netns,
        cookie: pod.netns_cookie()?,
        mtu: bridge.mtu(conf),
        bridge_index: bridge.index(),
        host_end: find_host_end(&mut host, &key)?,
        defaults: default_routes(&mut pod, conf.mode)?,
        settings: HostSettings::open(caller.kernel_cache)?,
        log: state.sysctls(),
        run_dirs: match caller.kernel_cache {
            // Its ADDs look up routes only.
            Some(_) => None,
            None => Some(RunDirs::new(host.netns_cookie()?, state.dir())),
        },
        now: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        caller,
    };
    let lease = Lease::new(delegate_of(conf, call, caller)?);
    let mut kernel = AttachKernel { host: &mut host, pod: &mut pod, state: &state, bridge, lease };
    let mut skipped = Skipped::default();
    let AttachResult { attachment, bridge, routes } = loop {
        let claimed = claim_usable_addresses(&network, &context, &mut kernel, &mut skipped)?;
        match finish(claimed, &context, &mut kernel) {
            Err(Error::AddressInUse { ip, why }) => skipped.add(ip, why, conf)?,
            other => break other?,
        }
        kernel.bridge = find_bridge(kernel.host, conf, caller)?;
    };
    let bridge = bridge::as_it_is(&mut host, &bridge);
    let answer = result::of_attachment(&attachment, &bridge, &routes, call.config.prev_result.as_ref());
    kernel_cache::spare_socket(caller.kernel_cache, host);
    Ok((result::with_dns(answer, &conf.dns, &attachment.wiring.dns), attachment))
}

fn delegate_of<'a>(
    conf: &NetConf,
    call: &'a AttachmentRequest,
    caller: &Caller<'_>,
) -> Result<Option<Delegate<'a>>, Error> {
    match &conf.addresses {
        Addresses::Delegated(plugin) => Delegate::find(plugin, &call.config, caller.delegates).map(Some),
        Addresses::Own(_) | Addresses::Absent => Ok(None),
    }
}

/// What is known about one attach before anything is changed for it.
pub(crate) struct AttachContext<'a> {
    pub(crate) call: &'a AttachmentRequest,
    pub(crate) conf: &'a NetConf,
    pub(crate) key: &'a AttachmentKey,
    netns: &'a NetNs,
    cookie: u64,
    mtu: u32,
    bridge_index: Option<u32>,
    host_end: HostEnd,
    /// Of which families another interface of the pod has the default route.
    defaults: ForwardedFamilies,
    pub(crate) settings: HostSettings<'a>,
    pub(crate) log: SysctlLog,
    /// Where processes with other run directories are found.
    run_dirs: Option<RunDirs>,
    /// Seconds since 1970.
    now: u64,
    pub(crate) caller: &'a Caller<'a>,
}

impl AttachContext<'_> {
    pub(crate) fn wire<'w>(&'w self, attachment: &'w Attachment, bridge: &'w Bridge) -> Wire<'w> {
        Wire { attachment, bridge, netns: self.netns, log: &self.log, settings: &self.settings }
    }
}

/// The name that the host end will have.
struct HostEnd {
    name: IfName,
    /// A link that has this name and the alias of this key. Once this process has the record, no record knows that link. Until
    /// then it may belong to another process that attaches the same pod.
    leftover: Option<u32>,
}

/// What was made, as far as the answer tells it.
pub(crate) struct AttachResult {
    attachment: Attachment,
    bridge: Bridge,
    routes: Vec<PodRoute>,
}

pub(crate) fn netns_path(call: &AttachmentRequest) -> &str {
    call.netns.as_deref().unwrap_or_default()
}

fn open_namespace(call: &AttachmentRequest) -> Result<NetNs, Error> {
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
    network: &NetworkState,
    key: &AttachmentKey,
    call: &AttachmentRequest,
    caller: &Caller<'_>,
) -> Result<Option<Attachment>, Error> {
    let Some(held) = network.find(key)? else { return Ok(None) };
    if held.phase() == RecordPhase::Ready {
        let is_same = |a: &&Attachment| a.request.is_some() && a.request.as_ref() == caller.request;
        let made_by_this_run = held.attachment().filter(is_same).cloned();
        return made_by_this_run.map(Some).ok_or_else(|| Error::AlreadyAttached(key.clone()));
    }
    // Its addresses came from there, and would not be given again.
    let plugin =
        netconf::external_ipam(&call.config).filter(|_| held.attachment().is_none_or(|a| a.delegated));
    let delegate = plugin.map(|plugin| Delegate::find(plugin, &call.config, caller.delegates)).transpose()?;
    detach::undo_with(held, Some(key), caller, delegate.as_ref()).map(|()| None)
}

fn find_bridge(host: &mut RtSocket, conf: &NetConf, caller: &Caller<'_>) -> Result<FoundBridge, Error> {
    if let Some(known) = caller.kernel_cache.map(|r| r.bridge(host, conf)).transpose()?.flatten() {
        return Ok(FoundBridge::Known(known));
    }
    Ok(host.link(&conf.bridge)?.map_or(FoundBridge::Nothing, FoundBridge::Link))
}

/// A name for the host end that nobody else has.
fn find_host_end(host: &mut RtSocket, key: &AttachmentKey) -> Result<HostEnd, Error> {
    for salt in 0..SALTS {
        let name = key.host_link(salt);
        let Some(index) = host.index_of(&name)? else { return Ok(HostEnd { name, leftover: None }) };
        if host.link_at(index)?.is_some_and(|link| alias::is_of(&link, key)) {
            return Ok(HostEnd { name, leftover: Some(index) });
        }
    }
    let name = key.host_link(0);
    Err(Error::NotAvailable(format!("link {name} and {SALTS} others are taken by somebody else")))
}

/// Only the subnet routes of mode `routed` depend on it. By lookups: a hostile pod may have any number of routes.
fn default_routes(pod: &mut RtSocket, mode: AttachMode) -> Result<ForwardedFamilies, Error> {
    match mode {
        AttachMode::Routed => Ok(ForwardedFamilies {
            ipv4: pod.default_route(Family::V4)?.is_some(),
            ipv6: pod.default_route(Family::V6)?.is_some(),
        }),
        AttachMode::Bridge => Ok(ForwardedFamilies { ipv4: false, ipv6: false }),
    }
}

/// The kernel's part, then ready. Whatever fails, nothing of it stays.
fn finish(
    claimed: Claimed,
    context: &AttachContext<'_>,
    kernel: &mut AttachKernel<'_>,
) -> Result<AttachResult, Error> {
    let mut claimed = claimed;
    let ready = wire_up(&mut claimed, context, kernel).and_then(|wired| {
        if (context.caller.cancelled)() {
            return Err(Error::Cancelled(context.key.clone()));
        }
        claimed.held.commit()?;
        Ok(wired)
    });
    ready.map_err(|error| {
        let undone = if matches!(error, Error::AddressInUse { .. }) {
            give_way(claimed.held, kernel.host)
        } else {
            kernel.lease.undo(claimed.held, context.key, context.caller)
        };
        match undone {
            Ok(()) => error,
            Err(also) => Error::Several(vec![error, also]),
        }
    })
}

fn wire_up(
    claimed: &mut Claimed,
    context: &AttachContext<'_>,
    kernel: &mut AttachKernel<'_>,
) -> Result<AttachResult, Error> {
    let Claimed { held, neighbours, has_others } = claimed;
    let Some(attachment) = held.attachment().cloned() else { unreachable!("the record was just written") };
    let bridge = make_interface(&attachment, context, kernel)?;
    // In any case, because it registers the run directory.
    let has_other_dirs = context.run_dirs.as_ref().is_some_and(RunDirs::has_others);
    if *has_others || has_other_dirs {
        let ips: Vec<IpAddr> = attachment.ips().collect();
        overlap::refuse_taken(kernel.host, context.key, &ips)?;
    }
    let interface = match attachment.delegated {
        false => AttachedInterface { attachment, bridge, neighbours: *neighbours },
        true => lease::obtain_addresses(held, (attachment, bridge), context, kernel)?,
    };
    set_up(interface, context, kernel)
}
