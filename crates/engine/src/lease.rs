//! Addresses from a delegated IPAM plugin. Like the reference plugin, Podwire calls it after the pod's interface is up, because
//! a DHCP client sends through it.

use std::net::IpAddr;

use cni::CniResult;
use ipnet::IpNet;
use netconf::{Addresses, NetConf};
use types::{AttachmentKey, Special};

use crate::attach::decide::{decide, families, neighbours_of};
use crate::attach::kernel::{AttachKernel, AttachedInterface, finish_gateways, usable_families};
use crate::attach::{AttachContext, refuse_shared};
use crate::bridge::{self, Bridge, Gateway};
use crate::delegate::Delegate;
use crate::policy::{self, LinkGroup};
use crate::state::{Addressing, Attachment, HeldAttachment, PodAddress};
use crate::veth::{self, NeighbourCaches};
use crate::{Caller, Error, detach, firewall, layer2, settle, sysctl};

/// Maximum number of addresses that an IPAM plugin may assign to one pod. It equals the maximum number of range sets.
const MAX_ADDRESSES: usize = 16;

/// The IPAM plugin of one ADD.
pub(crate) struct Lease<'a> {
    delegate: Option<Delegate<'a>>,
    outcome: DelegateOutcome,
}

/// The outcome of the plugin's ADD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DelegateOutcome {
    NotCalled,
    /// The plugin returned an error and assigned no addresses.
    Refused,
    /// The plugin assigned addresses, or may have.
    MayHaveAssigned,
}

impl<'a> Lease<'a> {
    /// `delegate` is None if Podwire assigns the addresses.
    pub(crate) fn new(delegate: Option<Delegate<'a>>) -> Self {
        Self { delegate, outcome: DelegateOutcome::NotCalled }
    }

    /// Requests addresses. None without a plugin. Returns soon after the caller cancels the ADD.
    pub(crate) fn request(
        &mut self,
        key: &AttachmentKey,
        caller: &Caller<'_>,
    ) -> Result<Option<CniResult>, Error> {
        let Some(delegate) = &self.delegate else { return Ok(None) };
        let answer = delegate.add(caller.cancelled);
        self.outcome = if matches!(answer, Err(Error::Cni(_))) {
            DelegateOutcome::Refused
        } else {
            DelegateOutcome::MayHaveAssigned
        };
        let answer = answer.map_err(|error| match (caller.cancelled)() {
            true => Error::Cancelled(key.clone()),
            false => error,
        })?;
        let result = delegate.read(&answer)?;
        match unusable(&result) {
            Some(reason) => Err(delegate.failed(reason)),
            None => Ok(Some(result)),
        }
    }

    /// Undoes an ADD. The CNI specification requires a DEL if the plugin's ADD or a later step failed. A plugin that refused its
    /// ADD has no addresses to release, so the record is removed even if its DEL fails.
    pub(crate) fn undo(
        &self,
        held: HeldAttachment,
        key: &AttachmentKey,
        caller: &Caller<'_>,
    ) -> Result<(), Error> {
        match (&self.delegate, self.outcome) {
            (Some(delegate), DelegateOutcome::Refused) => {
                let released = delegate.del();
                let undone = detach::undo(held, Some(key), caller);
                Error::collect(released.err().into_iter().chain(undone.err()).collect())
            }
            (delegate, DelegateOutcome::MayHaveAssigned) => {
                detach::undo_with(held, Some(key), caller, delegate.as_ref())
            }
            (_, DelegateOutcome::NotCalled) | (None, DelegateOutcome::Refused) => {
                detach::undo(held, Some(key), caller)
            }
        }
    }
}

pub(crate) fn addressing(conf: &NetConf) -> Addressing {
    match &conf.addresses {
        Addresses::Absent => Addressing::None,
        Addresses::Delegated(plugin) if netconf::is_dhcp(plugin) => Addressing::Dhcp,
        Addresses::Own(_) | Addresses::Delegated(_) => Addressing::Assigned,
    }
}

/// The name of the delegated IPAM plugin.
pub(crate) fn plugin(conf: &NetConf) -> Option<String> {
    match &conf.addresses {
        Addresses::Delegated(plugin) => Some(plugin.clone()),
        Addresses::Own(_) | Addresses::Absent => None,
    }
}

/// The reason why a pod cannot use the plugin's addresses. Link-local addresses are accepted.
fn unusable(result: &CniResult) -> Option<String> {
    let special = |net: IpNet| Special::of(net.trunc()).filter(|kind| *kind != Special::LinkLocal);
    let refused = result.ips.iter().find_map(|ip| Some((ip.address, special(ip.address)?)));
    match (result.ips.len(), refused) {
        (0, _) => Some("returned no address".to_owned()),
        (count, _) if count > MAX_ADDRESSES => {
            Some(format!("returned {count} addresses; a pod gets at most {MAX_ADDRESSES}"))
        }
        (_, Some((address, kind))) => {
            Some(format!("returned {address}, but {kind} address is not usable for a pod or its subnet"))
        }
        (_, None) => None,
    }
}

/// If the IPAM plugin names no gateway, it is the first address of the subnet, as with the reference plugin.
pub(crate) fn addresses(result: &CniResult) -> Vec<PodAddress> {
    let pod_address = |ip: &cni::IpConfig| PodAddress {
        address: ip.address,
        gateway: ip.gateway.or_else(|| ip.address.hosts().next().filter(|first| *first != ip.address.addr())),
    };
    result.ips.iter().map(pod_address).collect()
}

/// Requests addresses from the plugin through the new interface, and adds them to record, firewall, alias and bridge.
pub(crate) fn obtain_addresses(
    held: &mut HeldAttachment,
    (attachment, bridge): (Attachment, Bridge),
    context: &AttachContext<'_>,
    kernel: &mut AttachKernel<'_>,
) -> Result<AttachedInterface, Error> {
    bring_up(&attachment, &bridge, context, kernel)?;
    let result = kernel.lease.request(context.key, context.caller)?;
    let Some(result) = result else { unreachable!("a delegated attachment has a delegate") };
    let attachment = decide(context, &addresses(&result), Some(&result));
    let ips: Vec<IpAddr> = attachment.ips().collect();
    firewall::check_ports(&context.conf.ports, families(ips.iter().map(IpAddr::is_ipv4)))?;
    refuse_shared(kernel.state, held.network(), &ips)?;
    held.rewrite(attachment.clone())?;
    apply_addresses(&attachment, &bridge, context, kernel)?;
    // An address from an IPAM plugin may have had other owners before.
    let neighbours = neighbours_of(context.conf.mode, true);
    Ok(AttachedInterface { attachment, bridge, neighbours })
}

/// Sets the interface up without addresses, so that the plugin can send through it.
fn bring_up(
    attachment: &Attachment,
    bridge: &Bridge,
    context: &AttachContext<'_>,
    kernel: &mut AttachKernel<'_>,
) -> Result<(), Error> {
    let setup = context.veth_setup(attachment, bridge);
    veth::configure_pod_end(kernel.host, kernel.pod, &setup, NeighbourCaches::Clean)?;
    settle::wait(kernel.host, kernel.pod, attachment)
}

/// Performs the steps that an ADD without a delegated plugin performs when it creates the interface.
fn apply_addresses(
    attachment: &Attachment,
    bridge: &Bridge,
    context: &AttachContext<'_>,
    kernel: &mut AttachKernel<'_>,
) -> Result<(), Error> {
    let families = usable_families(attachment)?;
    if context.conf.is_gateway {
        sysctl::enable_forwarding(kernel.host, &context.log, families, &context.settings)?;
    }
    firewall::add_pod(attachment, kernel.state, context.caller.kernel_cache, context.caller.warn)?;
    let policies = context.caller.policies;
    policy::add_pod(policies, attachment);
    veth::mark_host_end(kernel.host, attachment, &context.settings)?;
    // The link was created without addresses.
    policy::link_created(policies, attachment, LinkGroup::CLOSED);
    let mut placed = Vec::new();
    for &address in &attachment.wiring.gateways {
        let gateway = Gateway { bridge: bridge.index, address, mode: attachment.mode };
        placed.push(bridge::add_gateway(kernel.host, bridge, &gateway, &context.log)?);
    }
    layer2::refuse_shared_bridge(kernel.host, attachment.addressing, bridge, &placed)?;
    finish_gateways(&placed, bridge, context, kernel)
}
