//! Which pod or node has an address, and the class of each address.

use std::collections::HashMap;
use std::net::IpAddr;

use types::NodeName;

use crate::class::ClassIndex;
use crate::element::ClassId;
use crate::world::{PodEntry, PodUid};

/// If several have the same address, the first in this order counts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AddressOwner {
    Node(NodeName),
    LocalPod(PodUid),
    Pod(PodUid),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AddressState {
    pub(crate) class: ClassIndex,
    /// It belongs to a local pod.
    pub(crate) is_own: bool,
}

/// Consecutive addresses that have no class of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AddressRange {
    pub(crate) first: IpAddr,
    pub(crate) last: IpAddr,
    pub(crate) class: ClassIndex,
    pub(crate) id: ClassId,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct AddressTable {
    /// The owners of each address, sorted.
    owners: HashMap<IpAddr, Vec<AddressOwner>>,
    pub(crate) states: HashMap<IpAddr, AddressState>,
    pub(crate) ranges: Vec<AddressRange>,
}

/// The addresses of a pod and the pod as their owner.
pub(crate) fn owned_by<'a>(
    pod: &'a PodEntry,
    local_node: &NodeName,
) -> impl Iterator<Item = (IpAddr, AddressOwner)> + use<'a> {
    let uid = PodUid::clone(&pod.uid);
    let owner = if pod.node == *local_node { AddressOwner::LocalPod(uid) } else { AddressOwner::Pod(uid) };
    let addresses = pod.addresses.iter().flatten().filter(|_| pod.is_subject());
    addresses.map(move |address| (*address, owner.clone()))
}

impl AddressTable {
    pub(crate) fn add_owner(&mut self, address: IpAddr, owner: AddressOwner) {
        let owners = self.owners.entry(address).or_default();
        if let Err(position) = owners.binary_search(&owner) {
            owners.insert(position, owner);
        }
    }

    pub(crate) fn remove_owner(&mut self, address: IpAddr, owner: &AddressOwner) {
        let Some(owners) = self.owners.get_mut(&address) else { return };
        owners.retain(|one| one != owner);
        if owners.is_empty() {
            self.owners.remove(&address);
        }
    }

    pub(crate) fn owner(&self, address: IpAddr) -> Option<&AddressOwner> {
        self.owners.get(&address)?.first()
    }

    /// All addresses with an owner.
    pub(crate) fn owned(&self) -> impl Iterator<Item = IpAddr> {
        self.owners.keys().copied()
    }
}
