//! The kernel's part of an ADD: bridge, guard, pair, gateways, and the inside of the pod.

use ipnet::IpNet;
use netconf::NetConf;
use netlink::{Link, RtSocket};
use types::{AttachMode, MIN_MTU_V6};

use super::decide::families;
use super::{AttachContext, AttachResult};
use crate::bridge::{self, Bridge, Placed, Spec};
use crate::kernel_cache::KnownBridge;
use crate::lease::Lease;
use crate::reconcile::subnet;
use crate::state::{Attachment, NodeState};
use crate::sysctl::{self, ForwardedFamilies};
use crate::wire::{self, Inside, Neighbours};
use crate::{Error, detach, firewall, layer2, settle, shaping};

/// What an ADD works on.
pub(crate) struct AttachKernel<'a> {
    pub(crate) host: &'a mut RtSocket,
    pub(crate) pod: &'a mut RtSocket,
    pub(crate) state: &'a NodeState,
    pub(crate) bridge: FoundBridge,
    pub(crate) lease: Lease<'a>,
}

/// The bridge as it was found.
pub(crate) enum FoundBridge {
    Known(KnownBridge),
    Link(Link),
    Nothing,
}

impl FoundBridge {
    pub(super) fn index(&self) -> Option<u32> {
        match self {
            Self::Known(known) => Some(known.bridge.index),
            Self::Link(link) => Some(link.index),
            Self::Nothing => None,
        }
    }

    pub(super) fn mtu(&self, conf: &NetConf) -> u32 {
        match self {
            Self::Known(known) => known.mtu,
            Self::Link(link) => bridge::mtu(conf, Some(link)),
            Self::Nothing => bridge::mtu(conf, None),
        }
    }
}

/// An interface that exists, and what it is to have.
pub(crate) struct AttachedInterface {
    pub(crate) attachment: Attachment,
    pub(crate) bridge: Bridge,
    pub(crate) neighbours: Neighbours,
}

/// The pair, guarded, and the gateways on the bridge.
pub(super) fn make_interface(
    attachment: &Attachment,
    context: &AttachContext<'_>,
    kernel: &mut AttachKernel<'_>,
) -> Result<Bridge, Error> {
    if let Some(index) = context.host_end.leftover {
        detach::delete_link(kernel.host, index)?;
    }
    let families = usable_families(attachment)?;
    let (bridge, gateways) = bridge_for(attachment, families, context, kernel)?;
    // In force before the link exists: a pod is never unprotected.
    firewall::add_pod(attachment, kernel.state, context.caller.kernel_cache, context.caller.warn)?;
    let placed = wire::make_pair(kernel.host, &context.wire(attachment, &bridge), &gateways)?;
    layer2::refuse_sharing(kernel.host, attachment.addressing, &bridge, &placed)?;
    settle_gateways(&placed, &bridge, context, kernel)?;
    Ok(bridge)
}

pub(crate) fn usable_families(attachment: &Attachment) -> Result<ForwardedFamilies, Error> {
    let families = families(attachment.ips().map(|ip| ip.is_ipv4()));
    if families.ipv6 && attachment.mtu < MIN_MTU_V6 {
        return Err(Error::MtuTooSmall { mtu: attachment.mtu });
    }
    Ok(families)
}

pub(crate) fn settle_gateways(
    placed: &[Placed],
    bridge: &Bridge,
    context: &AttachContext<'_>,
    kernel: &mut AttachKernel<'_>,
) -> Result<(), Error> {
    for new in placed.iter().filter(|placed| placed.is_new_address) {
        bridge::resolve_conflicts(kernel.host, bridge, context.conf, new)?;
        settle::wait_for_address(kernel.host, new.gateway.address.addr())?;
    }
    // An earlier version's address, with the kernel's route to its subnet: not in any later ADD.
    let is_earlier = |p: &&Placed| !p.is_new_address && p.is_new_route && bridge.is_ours();
    if context.conf.mode == AttachMode::Routed {
        for earlier in placed.iter().filter(is_earlier) {
            subnet::remove_earlier(kernel.host, kernel.state, (bridge, &earlier.gateway))?;
        }
    }
    if placed.iter().any(|placed| placed.is_new_address) {
        bridge::adopt(kernel.host, bridge, &context.log)?;
    }
    Ok(())
}

/// Everything that is on the interface.
pub(super) fn set_up(
    made: AttachedInterface,
    context: &AttachContext<'_>,
    kernel: &mut AttachKernel<'_>,
) -> Result<AttachResult, Error> {
    let AttachedInterface { attachment, bridge, neighbours } = made;
    let wire = context.wire(&attachment, &bridge);
    let Inside { host_index, routes } = wire::set_up_inside(kernel.host, kernel.pod, &wire, neighbours)?;
    if attachment.mode == AttachMode::Routed {
        wire::route_to_pod(kernel.host, &attachment, host_index)?;
    }
    wire::let_loopback_in(&attachment, &bridge, &context.log)?;
    shaping::apply(kernel.host, &attachment, host_index)?;
    settle::wait(kernel.host, kernel.pod, &attachment)?;
    wire::announce(kernel.pod, &attachment, neighbours)?;
    if let Some(kernel_cache) = context.caller.kernel_cache {
        kernel_cache.remember_host_end(context.key, host_index);
        kernel_cache.remember_bridge(&bridge, &attachment);
    }
    Ok(AttachResult { attachment, bridge, routes })
}

/// The bridge, made or repaired if need be, and the gateways that it may lack.
fn bridge_for(
    attachment: &Attachment,
    families: ForwardedFamilies,
    context: &AttachContext<'_>,
    kernel: &mut AttachKernel<'_>,
) -> Result<(Bridge, Vec<IpNet>), Error> {
    let gateways = &attachment.wiring.gateways;
    let found = match std::mem::replace(&mut kernel.bridge, FoundBridge::Nothing) {
        FoundBridge::Known(known)
            if gateways.iter().all(|gateway| known.gateways.get(gateway) == Some(&attachment.mode)) =>
        {
            return Ok((known.bridge, Vec::new()));
        }
        FoundBridge::Known(known) => kernel.host.link(&known.bridge.name)?,
        FoundBridge::Link(link) => Some(link),
        FoundBridge::Nothing => None,
    };
    let spec = Spec { name: &context.conf.bridge, mtu: context.conf.mtu, promisc: context.conf.promisc };
    let bridge = bridge::ensure(kernel.host, &spec, found)?;
    if context.conf.is_gateway {
        sysctl::enable_forwarding(kernel.host, &context.log, families, &context.settings)?;
    }
    Ok((bridge, gateways.clone()))
}
