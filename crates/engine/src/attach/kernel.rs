//! The kernel part of an ADD: bridge, anti-spoofing filter, veth pair, gateways and pod end.

use ipnet::IpNet;
use netconf::{BridgeMtu, NetConf};
use netlink::{Link, RtSocket};
use types::{AttachMode, MIN_MTU_V6};

use super::decide::families;
use super::{AttachContext, AttachResult};
use crate::bridge::{self, Bridge, PlacedGateway, Spec};
use crate::kernel_cache::CachedBridge;
use crate::lease::Lease;
use crate::reconcile::subnet;
use crate::state::{Attachment, NodeState};
use crate::sysctl::{self, ForwardedFamilies};
use crate::veth::{self, NeighbourCaches, PodEnd};
use crate::{Error, detach, dscp, firewall, layer2, policy, settle, shaping};

/// Sockets and state of one ADD.
pub(crate) struct AttachKernel<'a> {
    pub(crate) host: &'a mut RtSocket,
    pub(crate) pod: &'a mut RtSocket,
    pub(crate) state: &'a NodeState,
    pub(crate) bridge: BridgeLookup,
    pub(crate) lease: Lease<'a>,
}

/// The bridge before the ADD.
pub(crate) enum BridgeLookup {
    Cached(CachedBridge),
    Link(Link),
    Missing,
}

impl BridgeLookup {
    pub(super) fn index(&self) -> Option<u32> {
        match self {
            Self::Cached(cached) => Some(cached.bridge.index),
            Self::Link(link) => Some(link.index),
            Self::Missing => None,
        }
    }

    pub(super) fn mtu(&self, conf: &NetConf) -> u32 {
        match self {
            Self::Cached(cached) => conf.mtu.unwrap_or(cached.mtu),
            Self::Link(link) => bridge::mtu(conf, Some(link)),
            Self::Missing => bridge::mtu(conf, None),
        }
    }
}

/// An existing interface and its desired attachment.
pub(crate) struct AttachedInterface {
    pub(crate) attachment: Attachment,
    pub(crate) bridge: Bridge,
    pub(crate) neighbours: NeighbourCaches,
}

/// Creates the veth pair with its anti-spoofing filter, and adds the gateways to the bridge.
pub(super) fn create_interface(
    attachment: &Attachment,
    context: &AttachContext<'_>,
    kernel: &mut AttachKernel<'_>,
) -> Result<Bridge, Error> {
    if let Some(index) = context.host_end.leftover {
        detach::delete_link(kernel.host, index)?;
    }
    let families = usable_families(attachment)?;
    let (bridge, gateways) = bridge_for(attachment, families, context, kernel)?;
    // The filter is active before the link exists, so a pod is never unprotected.
    firewall::add_pod(attachment, kernel.state, context.caller.kernel_cache, context.caller.warn)?;
    let policies = context.caller.policies;
    let group = policy::add_pod(policies, attachment);
    dscp::add_pod(attachment, context.profile.as_ref(), (context.caller.kernel_cache, policies));
    let setup = context.veth_setup(attachment, &bridge);
    let placed = veth::create_pair(kernel.host, &setup, &gateways, group)?;
    policy::link_created(policies, attachment, group);
    layer2::refuse_shared_bridge(kernel.host, attachment.addressing, &bridge, &placed)?;
    finish_gateways(&placed, &bridge, context, kernel)?;
    Ok(bridge)
}

pub(crate) fn usable_families(attachment: &Attachment) -> Result<ForwardedFamilies, Error> {
    let families = families(attachment.ips().map(|ip| ip.is_ipv4()));
    if families.ipv6 && attachment.mtu < MIN_MTU_V6 {
        return Err(Error::MtuTooSmall { mtu: attachment.mtu });
    }
    Ok(families)
}

pub(crate) fn finish_gateways(
    placed: &[PlacedGateway],
    bridge: &Bridge,
    context: &AttachContext<'_>,
    kernel: &mut AttachKernel<'_>,
) -> Result<(), Error> {
    for new in placed.iter().filter(|placed| placed.is_new_address) {
        bridge::resolve_conflicts(kernel.host, bridge, context.conf, new)?;
        settle::wait_for_address(kernel.host, new.gateway.address.addr())?;
    }
    // An earlier version added the address with the kernel's route to its subnet. The first ADD removes that route.
    let is_earlier = |p: &&PlacedGateway| !p.is_new_address && p.is_new_route && bridge.is_managed();
    if context.conf.mode == AttachMode::Routed {
        for earlier in placed.iter().filter(is_earlier) {
            subnet::remove_earlier(kernel.host, kernel.state, (bridge, &earlier.gateway))?;
        }
    }
    if placed.iter().any(|placed| placed.is_new_address) {
        bridge::prepare_unmanaged(kernel.host, bridge, &context.log)?;
    }
    Ok(())
}

/// Configures addresses, routes and bandwidth limits of the interface.
pub(super) fn configure_interface(
    interface: AttachedInterface,
    context: &AttachContext<'_>,
    kernel: &mut AttachKernel<'_>,
) -> Result<AttachResult, Error> {
    let AttachedInterface { attachment, bridge, neighbours } = interface;
    let setup = context.veth_setup(&attachment, &bridge);
    let PodEnd { host_index, routes } = veth::configure_pod_end(kernel.host, kernel.pod, &setup, neighbours)?;
    if attachment.mode == AttachMode::Routed {
        veth::route_to_pod(kernel.host, &attachment, host_index)?;
    }
    veth::allow_loopback_clients(&attachment, &bridge, &context.log)?;
    shaping::apply(kernel.host, &attachment, host_index, context.profile.as_ref())?;
    settle::wait(kernel.host, kernel.pod, &attachment)?;
    veth::announce(kernel.pod, &attachment, neighbours)?;
    if let Some(kernel_cache) = context.caller.kernel_cache {
        kernel_cache.remember_host_end(context.key, host_index);
        kernel_cache.remember_bridge(&bridge, &attachment, context.conf.bridge_mtu);
    }
    Ok(AttachResult { attachment, bridge, routes })
}

/// Returns the bridge, created or repaired if needed, and the gateways that it may lack.
fn bridge_for(
    attachment: &Attachment,
    families: ForwardedFamilies,
    context: &AttachContext<'_>,
    kernel: &mut AttachKernel<'_>,
) -> Result<(Bridge, Vec<IpNet>), Error> {
    let gateways = &attachment.wiring.gateways;
    let link = match std::mem::replace(&mut kernel.bridge, BridgeLookup::Missing) {
        BridgeLookup::Cached(cached)
            if gateways.iter().all(|gateway| cached.gateways.get(gateway) == Some(&attachment.mode)) =>
        {
            return Ok((cached.bridge, Vec::new()));
        }
        BridgeLookup::Cached(cached) => kernel.host.link(&cached.bridge.name)?,
        BridgeLookup::Link(link) => Some(link),
        BridgeLookup::Missing => None,
    };
    let mtu = match context.conf.bridge_mtu {
        BridgeMtu::OfThisNetwork => context.conf.mtu,
        BridgeMtu::OfOtherNetwork => None,
    };
    let spec = Spec { name: &context.conf.bridge, mtu, promisc: context.conf.promisc };
    let bridge = bridge::ensure(kernel.host, &spec, link)?;
    if context.conf.is_gateway {
        sysctl::enable_forwarding(kernel.host, &context.log, families, &context.settings)?;
    }
    Ok((bridge, gateways.clone()))
}
