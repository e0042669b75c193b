//! Addresses for one attachment: claimed, and checked against everything else on the node that may have them.

use std::net::IpAddr;

use netconf::Addresses;
use netlink::RtSocket;

use super::AttachContext;
use super::decide::{decide, families, neighbours_of, own_address};
use crate::overlap::{self, AddressQuery, Links, Unusable};
use crate::state::{Allocation, Attachment, Begin, Held, Network, Phase, State, StateError, Wanted};
use crate::wire::Neighbours;
use crate::{Error, firewall, gc};

/// How many addresses that the node uses otherwise are skipped for one pod.
const SKIPPED: usize = 256;

/// A record that was begun, with its addresses.
pub(super) struct Claimed {
    pub(super) held: Held,
    pub(super) neighbours: Neighbours,
}

/// Claims addresses that nothing else of the node uses. Others are given back and, if they were not requested, the next ones
/// are tried: addresses are given round robin.
pub(super) fn claim_usable_addresses(
    state: &State,
    network: &Network,
    context: &AttachContext<'_>,
    host: &mut RtSocket,
) -> Result<Claimed, Error> {
    let links = if context.caller.resident.is_some() { Links::ListIfOthers } else { Links::List };
    let query = AddressQuery { conf: context.conf, key: context.key, bridge: context.bridge_index, links };
    let mut skipped = Vec::new();
    loop {
        let claimed = begin(network, context, host)?;
        let ips: Vec<IpAddr> = claimed.held.attachment().into_iter().flat_map(Attachment::ips).collect();
        let found = refuse_shared(state, network, &ips).and_then(|()| overlap::unusable(host, &query, &ips));
        if matches!(found, Ok(None)) {
            return Ok(claimed);
        }
        // Nothing is in the kernel yet. What it remembers of these addresses belongs to the other owner.
        claimed.held.release(&ips)?;
        let Some(Unusable { ip, why }) = found? else { continue };
        let is_requested = context.conf.requested.iter().any(|requested| requested.addr == ip);
        if is_requested || skipped.contains(&ip) || skipped.len() == SKIPPED {
            return Err(Error::Cni(cni::Error::new(cni::Code::AddressTaken, why)));
        }
        skipped.push(ip);
    }
}

/// Claims the addresses and writes the record.
fn begin(network: &Network, context: &AttachContext<'_>, host: &mut RtSocket) -> Result<Claimed, Error> {
    let requested: Vec<_> = context.conf.requested.iter().map(|r| (r.addr, r.prefix)).collect();
    let pools = match &context.conf.addresses {
        Addresses::Own(pools) => Some(pools),
        Addresses::Delegated(_) | Addresses::Absent => None,
    };
    if let Some(pools) = pools {
        // Every set of ranges gives an address.
        let ranges = pools.sets().iter().flat_map(ipam::RangeSet::ranges);
        firewall::check_ports(&context.conf.ports, families(ranges.map(ipam::Range::is_ipv4)))?;
    }
    let wanted = Wanted { key: context.key, pools, requested: &requested, clean: &firewall::forget_flows };
    let mut neighbours = Neighbours::KnowNothing;
    let mut make = |given: &[Allocation]| {
        neighbours = neighbours_of(context.conf.mode, given.iter().any(|a| a.used_before));
        decide(context, &given.iter().map(own_address).collect::<Vec<_>>(), None)
    };
    let begun = match network.begin(&wanted, &mut make) {
        // Containers that vanished without a DEL must not keep their addresses for ever.
        Err(StateError::Exhausted { .. } | StateError::Taken { .. })
            if gc::collect_dead(network, host, context.caller).is_ok_and(|collected| collected > 0) =>
        {
            network.begin(&wanted, &mut make)?
        }
        other => other?,
    };
    match begun {
        Begin::Started(held) => Ok(Claimed { held: *held, neighbours }),
        Begin::Exists(Phase::Ready) => Err(Error::AlreadyAttached(context.key.clone())),
        Begin::Exists(Phase::Pending) => Err(Error::Cni(cni::Error::new(
            cni::Code::TryAgainLater,
            format!("another process is working on {}", context.key),
        ))),
    }
}

/// Two networks with one subnet would give one address to two pods, and the DEL of one would take the other's rules.
pub(crate) fn refuse_shared(state: &State, network: &Network, ips: &[IpAddr]) -> Result<(), Error> {
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
