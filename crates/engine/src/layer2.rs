//! Pods without addresses (layer 2 only). The guard knows their MAC only, so they can answer ARP and neighbour solicitations
//! for every address. They share no bridge with a gateway of Podwire.
//!
//! Both sides check when their own part is in the kernel: of two at the same time, at least one finds the other.

use netlink::{Address, Link, RtSocket};
use types::ROUTE_PROTOCOL;

use crate::Error;
use crate::alias::Alias;
use crate::bridge::{self, Bridge, Placed};
use crate::state::Addressing;

/// Called when the pair of an attachment was made, and the gateways that its bridge lacked. Those are removed if it is refused.
pub(crate) fn refuse_sharing(
    host: &mut RtSocket,
    addressing: Addressing,
    bridge: &Bridge,
    placed: &[Placed],
) -> Result<(), Error> {
    match addressing {
        Addressing::None => refuse_gateway(host, bridge),
        Addressing::Assigned | Addressing::Dhcp => refuse_ports(host, bridge, placed),
    }
}

/// Called when the interface of a pod without addresses is a port of the bridge.
pub(crate) fn refuse_gateway(host: &mut RtSocket, bridge: &Bridge) -> Result<(), Error> {
    let addresses = host.addresses(Some(bridge.index))?;
    match addresses.iter().find(|address| is_gateway(address, bridge)) {
        Some(gateway) => Err(shared(bridge, format!("the gateway {}", gateway.addr))),
        None => Ok(()),
    }
}

/// Kernels before 5.18 do not keep the protocol of an address. There every address of a bridge that Podwire made counts, except
/// the kernel's own.
fn is_gateway(address: &Address, bridge: &Bridge) -> bool {
    match address.protocol {
        Some(protocol) => protocol == ROUTE_PROTOCOL,
        None => bridge.is_ours() && !bridge::is_link_local(address.addr.addr()),
    }
}

/// Called when gateways were placed on the bridge. The new ones are removed if it is refused.
pub(crate) fn refuse_ports(host: &mut RtSocket, bridge: &Bridge, placed: &[Placed]) -> Result<(), Error> {
    let new: Vec<&Placed> = placed.iter().filter(|placed| placed.is_new_address).collect();
    if new.is_empty() {
        return Ok(());
    }
    let is_port = |link: &Link| {
        let is_layer2 = |alias: Alias<'_>| alias.addressing == Addressing::None;
        link.master == Some(bridge.index) && Alias::of(link).is_some_and(is_layer2)
    };
    let Some(port) = host.links()?.into_iter().find(is_port) else { return Ok(()) };
    new.into_iter().try_for_each(|new| bridge::remove_gateway(host, new))?;
    Err(shared(bridge, format!("the port {} of such a pod", port.name)))
}

fn shared(bridge: &Bridge, what: String) -> Error {
    Error::SharedBridge { bridge: bridge.name.clone(), what }
}
