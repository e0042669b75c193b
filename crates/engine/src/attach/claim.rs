//! Claims addresses for one attachment, and checks that no other object of the node uses them.

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
use crate::veth::NeighbourCaches;
use crate::{Caller, Error, alias, detach, firewall, gc};

/// Maximum number of addresses that are skipped for one pod because the node uses them otherwise.
const MAX_SKIPPED: usize = 256;

/// A pending record with its addresses.
pub(super) struct Claimed {
    pub(super) held: HeldAttachment,
    pub(super) neighbours: NeighbourCaches,
    /// Pods of other run directories may get the same addresses.
    pub(super) has_other_pods: bool,
}

/// Addresses with another owner on the node. They are not tried again for this pod.
#[derive(Default)]
pub(super) struct Skipped(Vec<IpAddr>);

impl Skipped {
    /// Fails if the address was requested, or if too many addresses were skipped.
    pub(super) fn add(&mut self, ip: IpAddr, reason: String, conf: &NetConf) -> Result<(), Error> {
        let is_requested = conf.requested.iter().any(|requested| requested.addr == ip);
        if is_requested || self.0.contains(&ip) || self.0.len() == MAX_SKIPPED {
            return Err(Error::AddressInUse { ip, reason });
        }
        self.0.push(ip);
        Ok(())
    }

    fn is_not_empty(&self) -> bool {
        !self.0.is_empty()
    }
}

/// Claims addresses that no other object of the node uses. Used addresses are released and, if they were not requested, the
/// next ones are tried. Addresses are assigned round robin.
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
        has_other_pods: skipped.is_not_empty(),
    };
    loop {
        let claimed = begin(network, context, kernel.host)?;
        let ips: Vec<IpAddr> = claimed.held.attachment().into_iter().flat_map(Attachment::ips).collect();
        let checked = refuse_shared(kernel.state, network, &ips)
            .and_then(|()| overlap::check(kernel.host, &query, &ips));
        if let Ok(Usability::Usable { has_other_pods }) = checked {
            return Ok(Claimed { has_other_pods, ..claimed });
        }
        // The kernel has no object of this pod yet. Its conntrack entries of these addresses belong to the other owner.
        claimed.held.release(&ips)?;
        if let Usability::Unusable(Unusable { ip, reason }) = checked? {
            skipped.add(ip, reason, context.conf)?;
            query.has_other_pods = true;
        }
    }
}

/// Undoes an attachment whose link exists if another pod got one of its addresses at the same time. Both pods detect the
/// conflict, so firewall elements of a shared address are removed only if the other pod does not exist any more.
pub(super) fn undo_conflict(
    held: HeldAttachment,
    host: &mut RtSocket,
    caller: &Caller<'_>,
) -> Result<(), Error> {
    let Some(attachment) = held.attachment() else { return Ok(()) };
    if let Some(index) = host.index_of(&attachment.host_link)? {
        detach::delete_link(host, index)?;
    }
    if let Some(policies) = caller.policies {
        policies.remove_pod(&attachment.key);
    }
    firewall::remove_link(attachment)?;
    let other_pods: Vec<IpAddr> = match host.links() {
        Ok(links) => links.iter().flat_map(alias::ips_of).collect(),
        // The other pod may exist.
        Err(netlink::Error::Interrupted { .. }) => attachment.ips().collect(),
        Err(error) => return Err(error.into()),
    };
    let (shared, own): (Vec<IpAddr>, Vec<IpAddr>) = attachment.ips().partition(|ip| other_pods.contains(ip));
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
        // Every range set provides one address.
        let ranges = pools.sets().iter().flat_map(ipam::RangeSet::ranges);
        firewall::check_ports(&context.conf.ports, families(ranges.map(ipam::Range::is_ipv4)))?;
    }
    let policies = context.caller.policies;
    let is_avoided = |ip| policies.is_some_and(|policies| policies.may_be_known_elsewhere(ip));
    let request = AllocationRequest {
        key: context.key,
        pools,
        requested: &requested,
        remove_conntrack: &firewall::remove_conntrack,
        is_avoided: &is_avoided,
    };
    let mut neighbours = NeighbourCaches::Clean;
    let mut new_record = |allocated: &[Allocation]| {
        neighbours = neighbours_of(context.conf.mode, allocated.iter().any(|a| a.used_before));
        decide(context, &allocated.iter().map(own_address).collect::<Vec<_>>(), None)
    };
    let begun = match network.begin(&request, &mut new_record) {
        // Containers that were removed without a DEL must not block their addresses.
        Err(StateError::Exhausted { .. } | StateError::Taken { .. })
            if gc::collect_dead(network, host, context.caller).is_ok_and(|collected| collected > 0) =>
        {
            network.begin(&request, &mut new_record)?
        }
        other => other?,
    };
    match begun {
        Begin::Started(held) => Ok(Claimed { held: *held, neighbours, has_other_pods: false }),
        Begin::Exists(RecordPhase::Ready) => Err(Error::AlreadyAttached(context.key.clone())),
        Begin::Exists(RecordPhase::Pending) => Err(Error::Cni(cni::Error::new(
            cni::ErrorCode::TryAgainLater,
            format!("another process is working on {}", context.key),
        ))),
    }
}

/// Two networks with the same subnet could assign an address twice. Then the DEL of one pod would remove the other's rules.
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
