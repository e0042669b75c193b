//! Addresses that another IPAM plugin gives. As in the reference, it is asked when the pod's interface exists and is up: a
//! DHCP client sends through it.

use std::net::IpAddr;

use cni::CniResult;
use ipnet::IpNet;
use netconf::{Addresses, NetConf};
use types::{AttachmentKey, Special};

use crate::attach::decide::{decide, families, neighbours_of};
use crate::attach::kernel::{AttachKernel, AttachedInterface, settle_gateways, usable_families};
use crate::attach::{AttachContext, refuse_shared};
use crate::bridge::{self, Bridge, Gateway};
use crate::delegate::Delegate;
use crate::state::{Addressing, Attachment, HeldAttachment, PodAddress};
use crate::wire::{self, Neighbours};
use crate::{Caller, Error, detach, firewall, layer2, settle, sysctl};

/// Addresses that an IPAM plugin may give one pod, as many as sets of ranges.
const MOST_GIVEN: usize = 16;

/// What another IPAM plugin has of one attach.
pub(crate) struct Lease<'a> {
    delegate: Option<Delegate<'a>>,
    asked: DelegateOutcome,
}

/// What became of the plugin's ADD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DelegateOutcome {
    No,
    /// The plugin answered with an error: it has given no addresses.
    Refused,
    /// It gave addresses, or may have.
    Yes,
}

impl<'a> Lease<'a> {
    /// None: there is no other plugin.
    pub(crate) fn new(delegate: Option<Delegate<'a>>) -> Self {
        Self { delegate, asked: DelegateOutcome::No }
    }

    /// Asks for addresses. None: there is no plugin to ask. Ends soon after the caller cancels the ADD.
    pub(crate) fn take(
        &mut self,
        key: &AttachmentKey,
        caller: &Caller<'_>,
    ) -> Result<Option<CniResult>, Error> {
        let Some(delegate) = &self.delegate else { return Ok(None) };
        let answer = delegate.add(caller.cancelled);
        self.asked = if matches!(answer, Err(Error::Cni(_))) {
            DelegateOutcome::Refused
        } else {
            DelegateOutcome::Yes
        };
        let answer = answer.map_err(|error| match (caller.cancelled)() {
            true => Error::Cancelled(key.clone()),
            false => error,
        })?;
        let given = delegate.read(&answer)?;
        match unusable(&given) {
            Some(what) => Err(delegate.failed(what)),
            None => Ok(Some(given)),
        }
    }

    /// Undoes an attach. The spec: the plugin gets a DEL if its ADD or anything after it failed. One that refused its ADD has
    /// nothing to give back: the record does not wait for its DEL.
    pub(crate) fn undo(
        &self,
        held: HeldAttachment,
        key: &AttachmentKey,
        caller: &Caller<'_>,
    ) -> Result<(), Error> {
        match (&self.delegate, self.asked) {
            (Some(delegate), DelegateOutcome::Refused) => {
                let released = delegate.del();
                let undone = detach::undo(held, Some(key), caller);
                Error::collect(released.err().into_iter().chain(undone.err()).collect())
            }
            (delegate, DelegateOutcome::Yes) => detach::undo_with(held, Some(key), caller, delegate.as_ref()),
            (_, DelegateOutcome::No) | (None, DelegateOutcome::Refused) => {
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

/// The name of another IPAM plugin that gives the addresses.
pub(crate) fn plugin(conf: &NetConf) -> Option<String> {
    match &conf.addresses {
        Addresses::Delegated(plugin) => Some(plugin.clone()),
        Addresses::Own(_) | Addresses::Absent => None,
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

/// An IPAM plugin need not name a gateway: then it is the first address of the subnet, as in the reference.
pub(crate) fn addresses(result: &CniResult) -> Vec<PodAddress> {
    let of = |ip: &cni::IpConfig| PodAddress {
        address: ip.address,
        gateway: ip.gateway.or_else(|| ip.address.hosts().next().filter(|first| *first != ip.address.addr())),
    };
    result.ips.iter().map(of).collect()
}

/// Asks the plugin of a delegated attachment through its new interface, and gives the addresses to record, firewall, alias and
/// bridge.
pub(crate) fn obtain_addresses(
    held: &mut HeldAttachment,
    (attachment, bridge): (Attachment, Bridge),
    context: &AttachContext<'_>,
    kernel: &mut AttachKernel<'_>,
) -> Result<AttachedInterface, Error> {
    bring_up(&attachment, &bridge, context, kernel)?;
    let given = kernel.lease.take(context.key, context.caller)?;
    let Some(given) = given else { unreachable!("a delegated attachment has a delegate") };
    let attachment = decide(context, &addresses(&given), Some(&given));
    let ips: Vec<IpAddr> = attachment.ips().collect();
    firewall::check_ports(&context.conf.ports, families(ips.iter().map(IpAddr::is_ipv4)))?;
    refuse_shared(kernel.state, held.network(), &ips)?;
    held.rewrite(attachment.clone())?;
    give_addresses(&attachment, &bridge, context, kernel)?;
    // The addresses of another IPAM plugin may have had any number of owners.
    let neighbours = neighbours_of(context.conf.mode, true);
    Ok(AttachedInterface { attachment, bridge, neighbours })
}

/// The interface without addresses, and able to send.
fn bring_up(
    attachment: &Attachment,
    bridge: &Bridge,
    context: &AttachContext<'_>,
    kernel: &mut AttachKernel<'_>,
) -> Result<(), Error> {
    let wire = context.wire(attachment, bridge);
    wire::set_up_inside(kernel.host, kernel.pod, &wire, Neighbours::KnowNothing)?;
    settle::wait(kernel.host, kernel.pod, attachment)
}

/// What an ADD does at once for addresses that are known from the start.
fn give_addresses(
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
    wire::mark_host_end(kernel.host, attachment, &context.settings)?;
    let mut placed = Vec::new();
    for &address in &attachment.wiring.gateways {
        let gateway = Gateway { bridge: bridge.index, address, mode: attachment.mode };
        placed.push(bridge::put_gateway(kernel.host, bridge, &gateway, &context.log)?);
    }
    layer2::refuse_sharing(kernel.host, attachment.addressing, bridge, &placed)?;
    settle_gateways(&placed, bridge, context, kernel)
}
