//! Pods without addresses (layer 2 only). The anti-spoofing filter knows only their MAC, so they can answer ARP and neighbour
//! solicitations for every address. They must not share a bridge with a gateway of Podwire.
//!
//! Both kinds of attachment check after their own change is in the kernel. If two run concurrently, at least one detects the
//! other.

use netlink::{Address, Link, RtSocket};
use types::ROUTE_PROTOCOL;

use crate::Error;
use crate::alias::Alias;
use crate::bridge::{self, Bridge, PlacedGateway};
use crate::state::Addressing;

/// Called after the veth pair and the missing gateways of the bridge were created. On refusal, new gateways are removed.
pub(crate) fn refuse_shared_bridge(
    host: &mut RtSocket,
    addressing: Addressing,
    bridge: &Bridge,
    placed: &[PlacedGateway],
) -> Result<(), Error> {
    match addressing {
        Addressing::None => refuse_gateway(host, bridge),
        Addressing::Assigned | Addressing::Dhcp => refuse_ports(host, bridge, placed),
    }
}

/// Called after the interface of a pod without addresses became a bridge port.
pub(crate) fn refuse_gateway(host: &mut RtSocket, bridge: &Bridge) -> Result<(), Error> {
    let addresses = host.addresses(Some(bridge.index))?;
    match addresses.iter().find(|address| is_gateway(address, bridge)) {
        Some(gateway) => Err(shared(bridge, format!("the gateway {}", gateway.addr))),
        None => Ok(()),
    }
}

/// Kernels before 5.18 do not store the protocol of an address. On these, every address of a managed bridge counts, except
/// link-local addresses of the kernel.
fn is_gateway(address: &Address, bridge: &Bridge) -> bool {
    match address.protocol {
        Some(protocol) => protocol == ROUTE_PROTOCOL,
        None => bridge.is_managed() && !bridge::is_link_local(address.addr.addr()),
    }
}

/// Called after gateways were added to the bridge. On refusal, the new ones are removed.
pub(crate) fn refuse_ports(
    host: &mut RtSocket,
    bridge: &Bridge,
    placed: &[PlacedGateway],
) -> Result<(), Error> {
    let new: Vec<&PlacedGateway> = placed.iter().filter(|placed| placed.is_new_address).collect();
    if new.is_empty() {
        return Ok(());
    }
    let is_port = |link: &Link| {
        let is_layer2 = |alias: Alias<'_>| alias.addressing == Addressing::None;
        link.master == Some(bridge.index) && Alias::of(link).is_some_and(is_layer2)
    };
    let Some(port) = host.links()?.into_iter().find(is_port) else { return Ok(()) };
    new.into_iter().try_for_each(|new| bridge::remove_gateway(host, new))?;
    Err(shared(bridge, format!("the port {} of a pod without addresses", port.name)))
}

fn shared(bridge: &Bridge, conflict: String) -> Error {
    Error::SharedBridge { bridge: bridge.name.clone(), conflict }
}
