//! Addresses for one attachment: claimed, and checked against everything else on the node that may have them.

use std::net::IpAddr;

use netconf::{Addresses, NetConf};
use netlink::RtSocket;

use super::AttachContext;
use super::decide::{decide, families, neighbours_of, own_address};
use super::kernel::AttachKernel;
use crate::overlap::{self, AddressQuery, Unusable, Usability};
use crate::state::{
    Allocation, AllocationRequest, Attachment, Begin, HeldAttachment, NetworkState, NodeState, RecordPhase,
    StateError,
};
use crate::wire::Neighbours;
use crate::{Error, alias, detach, firewall, gc};

/// How many addresses that the node uses otherwise are skipped for one pod.
const SKIPPED: usize = 256;

/// A record that was begun, with its addresses.
pub(super) struct Claimed {
    pub(super) held: HeldAttachment,
    pub(super) neighbours: Neighbours,
    /// Pods of other run directories may get the same addresses.
    pub(super) has_others: bool,
}

/// Addresses that another owner on the node has. They are not tried again for this pod.
#[derive(Default)]
pub(super) struct Skipped(Vec<IpAddr>);

impl Skipped {
    /// Refuses the pod where the address was requested, or nothing else is left to try.
    pub(super) fn add(&mut self, ip: IpAddr, why: String, conf: &NetConf) -> Result<(), Error> {
        let is_requested = conf.requested.iter().any(|requested| requested.addr == ip);
        if is_requested || self.0.contains(&ip) || self.0.len() == SKIPPED {
            return Err(Error::AddressInUse { ip, why });
        }
        self.0.push(ip);
        Ok(())
    }

    fn has_some(&self) -> bool {
        !self.0.is_empty()
    }
}

/// Claims addresses that nothing else of the node uses. Others are given back and, if they were not requested, the next ones
/// are tried: addresses are given round robin.
pub(super) fn claim_usable_addresses(
    network: &NetworkState,
    context: &AttachContext<'_>,
    kernel: &mut AttachKernel<'_>,
    skipped: &mut Skipped,
) -> Result<Claimed, Error> {
    let mut query = AddressQuery {
        conf: context.conf,
        key: context.key,
        bridge: context.bridge_index,
        has_others: skipped.has_some(),
    };
    loop {
        let claimed = begin(network, context, kernel.host)?;
        let ips: Vec<IpAddr> = claimed.held.attachment().into_iter().flat_map(Attachment::ips).collect();
        let checked = refuse_shared(kernel.state, network, &ips)
            .and_then(|()| overlap::check(kernel.host, &query, &ips));
        if let Ok(Usability::Usable { has_others }) = checked {
            return Ok(Claimed { has_others, ..claimed });
        }
        // Nothing is in the kernel yet. What it remembers of these addresses belongs to the other owner.
        claimed.held.release(&ips)?;
        if let Usability::Unusable(Unusable { ip, why }) = checked? {
            skipped.add(ip, why, context.conf)?;
            query.has_others = true;
        }
    }
}

/// Undoes an attachment whose link exists, and of which another pod got an address at the same time. The firewall's elements
/// of the address are that pod's, too: they are removed only if it is gone, because both pods found each other.
pub(super) fn give_way(held: HeldAttachment, host: &mut RtSocket) -> Result<(), Error> {
    let Some(attachment) = held.attachment() else { return Ok(()) };
    if let Some(index) = host.index_of(&attachment.host_link)? {
        detach::delete_link(host, index)?;
    }
    firewall::remove_link(attachment)?;
    let others: Vec<IpAddr> = match host.links() {
        Ok(links) => links.iter().flat_map(alias::ips_of).collect(),
        // The other pod may be there.
        Err(netlink::Error::Interrupted { .. }) => attachment.ips().collect(),
        Err(error) => return Err(error.into()),
    };
    let (shared, own): (Vec<IpAddr>, Vec<IpAddr>) = attachment.ips().partition(|ip| others.contains(ip));
    firewall::sweep(&[], &own)?;
    Ok(held.release(&[shared, own].concat())?)
}

/// Claims the addresses and writes the record.
fn begin(network: &NetworkState, context: &AttachContext<'_>, host: &mut RtSocket) -> Result<Claimed, Error> {
    let requested: Vec<_> = context.conf.requested.iter().map(|r| (r.addr, r.prefix)).collect();
    let pools = match &context.conf.addresses {
        Addresses::Own(pools) => Some(pools.as_ref()),
        Addresses::Delegated(_) | Addresses::Absent => None,
    };
    if let Some(pools) = pools {
        // Every set of ranges gives an address.
        let ranges = pools.sets().iter().flat_map(ipam::RangeSet::ranges);
        firewall::check_ports(&context.conf.ports, families(ranges.map(ipam::Range::is_ipv4)))?;
    }
    let wanted =
        AllocationRequest { key: context.key, pools, requested: &requested, clean: &firewall::forget_flows };
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
        Begin::Started(held) => Ok(Claimed { held: *held, neighbours, has_others: false }),
        Begin::Exists(RecordPhase::Ready) => Err(Error::AlreadyAttached(context.key.clone())),
        Begin::Exists(RecordPhase::Pending) => Err(Error::Cni(cni::Error::new(
            cni::ErrorCode::TryAgainLater,
            format!("another process is working on {}", context.key),
        ))),
    }
}

/// Two networks with one subnet would give one address to two pods, and the DEL of one would take the other's rules.
pub(crate) fn refuse_shared(state: &NodeState, network: &NetworkState, ips: &[IpAddr]) -> Result<(), Error> {
    for other in state.networks()?.iter().filter(|other| other.name() != network.name()) {
        if let Some(ip) = ips.iter().find(|ip| other.is_claimed(**ip)) {
            let taken = format!(
                "address {ip} is in use in network {} of this node: give the two networks different subnets",
                other.name()
            );
            return Err(Error::Cni(cni::Error::new(cni::ErrorCode::AddressTaken, taken)));
        }
    }
    Ok(())
}
