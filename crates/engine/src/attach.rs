//! ADD. Read [`attach`] from top to bottom. Steps before the record change nothing. Every step after it is undone by
//! [`detach::undo`] if a later one fails. The bridge and the forwarding sysctls belong to the node and are not undone. A
//! delegated IPAM plugin is called after the interface was created (see [`crate::lease`]).

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
use self::claim::{Claimed, Skipped, claim_usable_addresses, undo_conflict};
use self::kernel::{AttachKernel, AttachedInterface, BridgeLookup, configure_interface, create_interface};
use crate::bridge::{self, Bridge};
use crate::delegate::Delegate;
use crate::lease::{self, Lease};
use crate::policy::PodProfile;
use crate::state::{Attachment, NetworkState, NodeState, RecordPhase, RunDirs, SysctlLog};
use crate::sysctl::{ForwardedFamilies, HostSettings};
use crate::veth::VethSetup;
use crate::{
    Caller, Error, alias, detach, kernel_cache, overlap, policy, privileges, recover, replay, result, shaping,
};

/// Number of names to try for the host end if unmanaged links have them.
const NAME_ATTEMPTS: u8 = 8;

pub(crate) fn attach(
    call: &AttachmentRequest,
    conf: &NetConf,
    paths: &LocalPaths,
    caller: &Caller<'_>,
) -> Result<(CniResult, Attachment), Error> {
    privileges::check()?;
    let key = call.key();
    let netns = open_namespace(call)?;
    let state = NodeState::open(&paths.run_dir)?;
    if let Some(policies) = caller.policies {
        policies.check(&conf.placement, conf.mode)?;
    }
    let network = recover::network(&state, &key.network, Some(conf))?;
    if let Some(attachment) = resolve_existing_record(&network, &key, call, caller)? {
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
            // ADDs of the agent do not search for other run directories. They only look up routes to their addresses.
            Some(_) => None,
            None => Some(RunDirs::new(host.netns_cookie()?, state.dir())),
        },
        now: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        profile: policy::profile(caller.policies, Some(&conf.placement)),
        caller,
    };
    let lease = Lease::new(delegate_of(conf, call, caller)?);
    let mut kernel = AttachKernel { host: &mut host, pod: &mut pod, state: &state, bridge, lease };
    let mut skipped = Skipped::default();
    let AttachResult { attachment, bridge, routes } = loop {
        let claimed = claim_usable_addresses(&network, &context, &mut kernel, &mut skipped)?;
        match finish(claimed, &context, &mut kernel) {
            Err(Error::AddressInUse { ip, reason }) => skipped.add(ip, reason, conf)?,
            other => break other?,
        }
        kernel.bridge = find_bridge(kernel.host, conf, caller)?;
    };
    let bridge = bridge::refresh(&mut host, &bridge);
    let answer = result::of_attachment(&attachment, &bridge, &routes, call.config.prev_result.as_ref());
    kernel_cache::recycle_socket(caller.kernel_cache, host);
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

/// Inputs of one ADD, collected before anything is changed.
pub(crate) struct AttachContext<'a> {
    pub(crate) call: &'a AttachmentRequest,
    pub(crate) conf: &'a NetConf,
    pub(crate) key: &'a AttachmentKey,
    netns: &'a NetNs,
    cookie: u64,
    mtu: u32,
    bridge_index: Option<u32>,
    host_end: HostEnd,
    /// The families for which another interface of the pod has the default route.
    defaults: ForwardedFamilies,
    pub(crate) settings: HostSettings<'a>,
    pub(crate) log: SysctlLog,
    /// Lists processes with other run directories.
    run_dirs: Option<RunDirs>,
    /// Unix time in seconds.
    now: u64,
    /// None if it is not known.
    pub(crate) profile: Option<PodProfile>,
    pub(crate) caller: &'a Caller<'a>,
}

impl AttachContext<'_> {
    pub(crate) fn veth_setup<'s>(&'s self, attachment: &'s Attachment, bridge: &'s Bridge) -> VethSetup<'s> {
        VethSetup { attachment, bridge, netns: self.netns, log: &self.log, settings: &self.settings }
    }
}

/// The name for the host end.
struct HostEnd {
    name: IfName,
    /// An existing link with this name and the alias of this key. After this process created its record, the link has no
    /// record and is orphaned. Before, it may belong to another process that attaches the same pod.
    leftover: Option<u32>,
}

/// The objects of a successful ADD, for the CNI result.
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

/// Refuses a ready attachment of this key, except if the same plugin run created it: then its result was lost, and the
/// attachment is returned. A pending one was left by a killed process and is undone.
fn resolve_existing_record(
    network: &NetworkState,
    key: &AttachmentKey,
    call: &AttachmentRequest,
    caller: &Caller<'_>,
) -> Result<Option<Attachment>, Error> {
    let Some(held) = network.find(key)? else { return Ok(None) };
    if held.phase() == RecordPhase::Ready {
        let is_same = |a: &&Attachment| a.request.is_some() && a.request.as_ref() == caller.request;
        let created_by_this_run = held.attachment().filter(is_same).cloned();
        return created_by_this_run.map(Some).ok_or_else(|| Error::AlreadyAttached(key.clone()));
    }
    // A delegated plugin has to release the addresses. Otherwise it would not assign them again.
    let plugin =
        netconf::external_ipam(&call.config).filter(|_| held.attachment().is_none_or(|a| a.delegated));
    let delegate = plugin.map(|plugin| Delegate::find(plugin, &call.config, caller.delegates)).transpose()?;
    detach::undo_with(held, Some(key), caller, delegate.as_ref()).map(|()| None)
}

fn find_bridge(host: &mut RtSocket, conf: &NetConf, caller: &Caller<'_>) -> Result<BridgeLookup, Error> {
    if let Some(cached) = caller.kernel_cache.map(|r| r.bridge(host, conf)).transpose()?.flatten() {
        return Ok(BridgeLookup::Cached(cached));
    }
    Ok(host.link(&conf.bridge)?.map_or(BridgeLookup::Missing, BridgeLookup::Link))
}

/// Selects an unused name for the host end.
fn find_host_end(host: &mut RtSocket, key: &AttachmentKey) -> Result<HostEnd, Error> {
    for salt in 0..NAME_ATTEMPTS {
        let name = key.host_link(salt);
        let Some(index) = host.index_of(&name)? else { return Ok(HostEnd { name, leftover: None }) };
        if host.link_at(index)?.is_some_and(|link| alias::is_of(&link, key)) {
            return Ok(HostEnd { name, leftover: Some(index) });
        }
    }
    let name = key.host_link(0);
    Err(Error::NotAvailable(format!(
        "unmanaged links have the name {name} and {} alternatives",
        NAME_ATTEMPTS - 1
    )))
}

/// Only the subnet routes of mode `routed` need this. It uses lookups because a hostile pod may have any number of routes.
fn default_routes(pod: &mut RtSocket, mode: AttachMode) -> Result<ForwardedFamilies, Error> {
    match mode {
        AttachMode::Routed => Ok(ForwardedFamilies {
            ipv4: pod.default_route(Family::V4)?.is_some(),
            ipv6: pod.default_route(Family::V6)?.is_some(),
        }),
        AttachMode::Bridge => Ok(ForwardedFamilies { ipv4: false, ipv6: false }),
    }
}

/// Configures the kernel and makes the record ready. If a step fails, all steps are undone.
fn finish(
    claimed: Claimed,
    context: &AttachContext<'_>,
    kernel: &mut AttachKernel<'_>,
) -> Result<AttachResult, Error> {
    let mut claimed = claimed;
    let ready = configure(&mut claimed, context, kernel).and_then(|result| {
        if (context.caller.cancelled)() {
            return Err(Error::Cancelled(context.key.clone()));
        }
        claimed.held.commit()?;
        if let Some(policies) =
            context.caller.policies.filter(|_| shaping::may_have_limits(&result.attachment))
        {
            policies.profile_applied(&result.attachment, context.profile);
        }
        Ok(result)
    });
    ready.map_err(|error| {
        let undone = if matches!(error, Error::AddressInUse { .. }) {
            undo_conflict(claimed.held, kernel.host, context.caller)
        } else {
            kernel.lease.undo(claimed.held, context.key, context.caller)
        };
        match undone {
            Ok(()) => error,
            Err(also) => Error::Several(vec![error, also]),
        }
    })
}

fn configure(
    claimed: &mut Claimed,
    context: &AttachContext<'_>,
    kernel: &mut AttachKernel<'_>,
) -> Result<AttachResult, Error> {
    let Claimed { held, neighbours, has_other_pods } = claimed;
    let Some(attachment) = held.attachment().cloned() else { unreachable!("the record was just written") };
    let bridge = create_interface(&attachment, context, kernel)?;
    // Always called, because it registers the run directory.
    let has_other_dirs = context.run_dirs.as_ref().is_some_and(RunDirs::has_other_run_dirs);
    if *has_other_pods || has_other_dirs {
        let ips: Vec<IpAddr> = attachment.ips().collect();
        overlap::refuse_taken(kernel.host, context.key, &ips)?;
    }
    let interface = match attachment.delegated {
        false => AttachedInterface { attachment, bridge, neighbours: *neighbours },
        true => lease::obtain_addresses(held, (attachment, bridge), context, kernel)?,
    };
    configure_interface(interface, context, kernel)
}
