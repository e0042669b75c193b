//! Nodes, claims, pods and identities of the store, as the policies of this node need them. Pure.
//!
//! Values may arrive in any order. A pod of another node is known when four values are: its record, its identity, the record of its node,
//! and the claim of that node for the block of the address. So a wrong record cannot classify addresses of other nodes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipam::block_gateway;
use ipnet::IpNet;
use model::objects::Identity;
use model::{
    BlockLayout, DecodeError, IdentityHash, KeyLayout, MAX_ADDRESSES, NodeRecord, Object as _, PodRecord,
    check_address,
};
use types::{Digest, NodeName};

use crate::peers::inputs::{ClaimedBlock, RecordUpdate, StoreListing};

/// A pod of another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemotePod {
    pub(crate) node: NodeName,
    pub(crate) record: Arc<PodRecord>,
    /// Pods with equal properties share it.
    pub(crate) identity: Arc<Identity>,
}

/// Addresses and nodes that changed. None: no pod is known, or the node was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RemoteChanges {
    pub(crate) pods: BTreeMap<IpAddr, Option<RemotePod>>,
    /// All addresses of the node.
    pub(crate) nodes: BTreeMap<NodeName, Option<Vec<IpAddr>>>,
}

impl RemoteChanges {
    pub(crate) fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.nodes.is_empty()
    }

    /// Later changes replace earlier ones of the same address or node.
    pub(crate) fn merge(&mut self, later: Self) {
        self.pods.extend(later.pods);
        self.nodes.extend(later.nodes);
    }

    /// Removes and returns all nodes and at most this number of pods.
    pub(crate) fn take(&mut self, limit: usize) -> Self {
        let first = match self.pods.keys().nth(limit).copied() {
            None => std::mem::take(&mut self.pods),
            Some(next) => {
                let rest = self.pods.split_off(&next);
                std::mem::replace(&mut self.pods, rest)
            }
        };
        Self { pods: first, nodes: std::mem::take(&mut self.nodes) }
    }
}

/// A key in one of the two directories.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum IdentityKey {
    Identity(IdentityHash),
    Pod(NodeName, IpAddr),
}

impl IdentityKey {
    pub(super) fn of(layout: &KeyLayout, key: &str) -> Option<Self> {
        let identity = layout.identity_of(key).map(Self::Identity);
        identity.or_else(|| layout.pod_of(key).map(|(node, address)| Self::Pod(node, address)))
    }
}

#[derive(Debug, Clone)]
pub(super) struct StoredIdentity {
    /// None if the value cannot be read.
    pub(super) identity: Option<Arc<Identity>>,
    /// The hash of the value. It may differ from that of the key if the value cannot be read.
    pub(super) value: IdentityHash,
    pub(super) revision: u64,
}

/// A record that the store has for a pod of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OwnRecord {
    Known(Arc<PodRecord>),
    /// The value has this digest.
    Unreadable(Digest),
    /// From an earlier run. The store may still have it.
    Unlisted,
    /// A newer version wrote it, so it is never overwritten.
    Newer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnChanged {
    Yes,
    No,
}

#[derive(Debug)]
pub(crate) struct IdentityMirror {
    own: NodeName,
    block_layouts: Vec<BlockLayout>,
    /// The published addresses of the other nodes.
    nodes: BTreeMap<NodeName, Vec<IpAddr>>,
    owners: BTreeMap<IpNet, NodeName>,
    /// How many claims have each prefix length, for IPv4 (true) and IPv6.
    lengths: BTreeMap<(bool, u8), usize>,
    /// The records of other nodes' pods. Several nodes may have a record for an address, but only one of them owns its block.
    pods: BTreeMap<IpAddr, Vec<(NodeName, Arc<PodRecord>)>>,
    pub(super) own_pods: BTreeMap<IpAddr, OwnRecord>,
    own_changed: OwnChanged,
    pub(super) identities: HashMap<IdentityHash, StoredIdentity>,
    /// Addresses with a record whose identity is missing.
    waiting: BTreeSet<IpAddr>,
    changed_pods: BTreeSet<IpAddr>,
    changed_nodes: BTreeSet<NodeName>,
}

impl IdentityMirror {
    /// No node has an address in a subnet of these networks.
    pub(crate) fn new(own: NodeName, block_layouts: Vec<BlockLayout>) -> Self {
        Self {
            own,
            block_layouts,
            nodes: BTreeMap::new(),
            owners: BTreeMap::new(),
            lengths: BTreeMap::new(),
            pods: BTreeMap::new(),
            own_pods: BTreeMap::new(),
            own_changed: OwnChanged::No,
            identities: HashMap::new(),
            waiting: BTreeSet::new(),
            changed_pods: BTreeSet::new(),
            changed_nodes: BTreeSet::new(),
        }
    }

    /// The changes since the last call.
    pub(crate) fn take_changes(&mut self) -> RemoteChanges {
        let pods = std::mem::take(&mut self.changed_pods);
        let nodes = std::mem::take(&mut self.changed_nodes);
        for address in &pods {
            let is_waiting = self.record_of(*address).is_some_and(|(_, record)| {
                self.identities.get(&record.identity).is_none_or(|stored| stored.identity.is_none())
            });
            if is_waiting {
                self.waiting.insert(*address);
            } else {
                self.waiting.remove(address);
            }
        }
        RemoteChanges {
            pods: pods.into_iter().map(|address| (address, self.pod(address))).collect(),
            nodes: nodes.into_iter().map(|node| (node.clone(), self.addresses(&node))).collect(),
        }
    }

    /// The addresses for which the store has a record of this node. None if they are the same as at the last call.
    pub(super) fn take_own(&mut self) -> Option<HashSet<IpAddr>> {
        match std::mem::replace(&mut self.own_changed, OwnChanged::No) {
            OwnChanged::Yes => Some(self.own_pods.keys().copied().collect()),
            OwnChanged::No => None,
        }
    }

    /// Restores a record of this node from an earlier run. The store may still have it.
    pub(super) fn restore_own(&mut self, address: IpAddr) {
        self.own_pods.insert(address, OwnRecord::Unlisted);
        self.own_changed = OwnChanged::Yes;
    }

    /// The pod with this address, if everything about it is known.
    pub(super) fn pod(&self, address: IpAddr) -> Option<RemotePod> {
        let (node, record) = self.record_of(address)?;
        let identity = self.identities.get(&record.identity)?.identity.as_ref()?;
        Some(RemotePod { node: node.clone(), record: Arc::clone(record), identity: Arc::clone(identity) })
    }

    /// The record of the node that owns the block of the address.
    fn record_of(&self, address: IpAddr) -> Option<(&NodeName, &Arc<PodRecord>)> {
        let records = self.pods.get(&address)?;
        let owner = self.owner(address).filter(|owner| self.nodes.contains_key(*owner))?;
        records.iter().find(|(node, _)| node == owner).map(|(node, record)| (node, record))
    }

    /// All addresses with a record.
    pub(super) fn addresses_of_pods(&self) -> impl Iterator<Item = IpAddr> {
        self.pods.keys().copied()
    }

    pub(super) fn pods_of_missing_nodes(&self) -> impl Iterator<Item = (NodeName, IpAddr)> {
        let is_missing = |node: &NodeName| !self.nodes.contains_key(node);
        self.pods.iter().flat_map(move |(address, records)| {
            let missing = records.iter().map(|(node, _)| node).filter(move |node| is_missing(node));
            missing.map(|node| (node.clone(), *address))
        })
    }

    /// The identities that any record names.
    pub(super) fn used_identities(&self) -> impl Iterator<Item = &IdentityHash> {
        let own = self.own_pods.values().filter_map(|record| match record {
            OwnRecord::Known(record) => Some(&record.identity),
            OwnRecord::Unreadable(_) | OwnRecord::Unlisted | OwnRecord::Newer => None,
        });
        own.chain(self.pods.values().flatten().map(|(_, record)| &record.identity))
    }

    fn owner(&self, address: IpAddr) -> Option<&NodeName> {
        let of_family = self.lengths.keys().filter(|(is_v4, _)| *is_v4 == address.is_ipv4());
        of_family
            .filter_map(|(_, length)| IpNet::new(address, *length).ok())
            .find_map(|net| self.owners.get(&net.trunc()))
    }

    /// The published addresses of a node, the gateways of its blocks, and the address of its tunnel devices.
    fn addresses(&self, node: &NodeName) -> Option<Vec<IpAddr>> {
        let mut addresses = self.nodes.get(node)?.clone();
        addresses.retain(|address| check_address(&self.block_layouts, *address).is_ok());
        for (block, _) in self.owners.iter().filter(|(_, owner)| *owner == node) {
            addresses.extend(block_gateway(block));
            // Tunnel devices have the first address of an IPv4 block.
            addresses.extend(Some(block.network()).filter(IpAddr::is_ipv4));
        }
        addresses.sort_unstable();
        addresses.dedup();
        Some(addresses)
    }

    /// Nodes and claims of a listing. Unreadable values do not change the known ones.
    pub(crate) fn list_nodes(&mut self, listing: &StoreListing) {
        let listed: BTreeSet<&NodeName> = listing.nodes.iter().map(|node| &node.record.name).collect();
        let is_gone = |name: &&NodeName| !listed.contains(name) && !listing.unreadable.contains(*name);
        let gone: Vec<NodeName> = self.nodes.keys().filter(is_gone).cloned().collect();
        gone.iter().for_each(|name| self.remove_node(name));
        listing.nodes.iter().for_each(|node| self.set_node(&node.record));
        let claimed: BTreeSet<IpNet> = listing.claims.iter().map(|claim| claim.block.trunc()).collect();
        let free: Vec<IpNet> = self.owners.keys().filter(|block| !claimed.contains(block)).copied().collect();
        free.into_iter().for_each(|block| self.set_claim(block, None));
        for ClaimedBlock { block, owner } in &listing.claims {
            if let Some(owner) = owner {
                self.set_claim(*block, Some(owner));
            }
        }
    }

    pub(crate) fn update_node(&mut self, update: &RecordUpdate) {
        match update {
            RecordUpdate::All(listing) => self.list_nodes(listing),
            RecordUpdate::Node(node) => self.set_node(&node.record),
            RecordUpdate::Gone(name) => self.remove_node(name),
            RecordUpdate::Claim(ClaimedBlock { block, owner }) => self.set_claim(*block, owner.as_ref()),
            RecordUpdate::Networks(block_layouts) => self.set_block_layouts(block_layouts),
        }
    }

    /// An address of a node may be in a subnet of a new network, or may no longer be in one.
    fn set_block_layouts(&mut self, block_layouts: &[BlockLayout]) {
        if self.block_layouts != block_layouts {
            self.block_layouts = block_layouts.to_vec();
            self.changed_nodes.extend(self.nodes.keys().cloned());
        }
    }

    pub(super) fn set_node(&mut self, record: &NodeRecord) {
        if record.name == self.own {
            return;
        }
        let addresses = record.addresses.iter().take(MAX_ADDRESSES).copied().collect();
        let before = self.nodes.insert(record.name.clone(), addresses);
        if before.as_ref() != self.nodes.get(&record.name) {
            self.changed_nodes.insert(record.name.clone());
        }
        if before.is_none() {
            self.change_pods_of(&record.name);
        }
    }

    pub(super) fn remove_node(&mut self, name: &NodeName) {
        if self.nodes.remove(name).is_some() {
            self.changed_nodes.insert(name.clone());
            self.change_pods_of(name);
        }
    }

    /// Pods are known only while their node is.
    fn change_pods_of(&mut self, node: &NodeName) {
        let is_of_node =
            |records: &[(NodeName, Arc<PodRecord>)]| records.iter().any(|(name, _)| name == node);
        let changed = self.pods.iter().filter(|(_, records)| is_of_node(records));
        self.changed_pods.extend(changed.map(|(address, _)| *address));
    }

    pub(super) fn set_claim(&mut self, block: IpNet, owner: Option<&NodeName>) {
        let block = block.trunc();
        let before = match owner {
            Some(owner) => self.owners.insert(block, owner.clone()),
            None => self.owners.remove(&block),
        };
        if before.as_ref() == owner {
            return;
        }
        let count = self.lengths.entry((block.addr().is_ipv4(), block.prefix_len())).or_default();
        match (&before, owner) {
            (None, Some(_)) => *count += 1,
            (Some(_), None) => *count = count.saturating_sub(1),
            (Some(_), Some(_)) | (None, None) => {}
        }
        self.lengths.retain(|_, count| *count > 0);
        self.changed_nodes.extend(before.iter().chain(owner).filter(|node| **node != self.own).cloned());
        let inside = self.pods.range(block.network()..=block.broadcast());
        self.changed_pods.extend(inside.map(|(address, _)| *address));
    }

    /// Removes all values that a listing does not have.
    pub(super) fn retain(&mut self, listed: &BTreeSet<IdentityKey>) {
        let identities = self.identities.keys().cloned().map(IdentityKey::Identity);
        let own = self.own_pods.keys().map(|address| IdentityKey::Pod(self.own.clone(), *address));
        let others = self.pods.iter().flat_map(|(address, records)| {
            records.iter().map(|(node, _)| IdentityKey::Pod(node.clone(), *address))
        });
        let gone: Vec<IdentityKey> =
            identities.chain(own).chain(others).filter(|key| !listed.contains(key)).collect();
        gone.iter().for_each(|key| self.delete(key));
    }

    /// Sets a value of the store.
    pub(super) fn put(&mut self, key: &IdentityKey, value: &[u8], revision: u64) -> Result<(), DecodeError> {
        match key {
            IdentityKey::Identity(hash) => self.put_identity(hash, value, revision),
            IdentityKey::Pod(node, address) => {
                let record = PodRecord::decode(value).map(Arc::new);
                if *node == self.own {
                    let own = match &record {
                        Ok(record) => OwnRecord::Known(Arc::clone(record)),
                        Err(error) if error.is_newer() => OwnRecord::Newer,
                        Err(_) => OwnRecord::Unreadable(Digest::of_bytes(value)),
                    };
                    self.own_pods.insert(*address, own);
                    self.own_changed = OwnChanged::Yes;
                } else {
                    self.set_record(node, *address, record.as_ref().ok());
                }
                record.map(drop)
            }
        }
    }

    fn put_identity(&mut self, hash: &IdentityHash, value: &[u8], revision: u64) -> Result<(), DecodeError> {
        if let Some(known) = self.identities.get_mut(hash).filter(|known| known.identity.is_some()) {
            // The hash is that of the value, so another value is not readable.
            Identity::of_stored(hash, value)?;
            known.revision = revision;
            return Ok(());
        }
        let identity = Identity::of_stored(hash, value).map(Arc::new);
        let stored = StoredIdentity {
            identity: identity.as_ref().ok().cloned(),
            value: IdentityHash::of(value),
            revision,
        };
        self.identities.insert(hash.clone(), stored);
        self.changed_pods.extend(&self.waiting);
        identity.map(drop)
    }

    /// An unreadable record is none.
    pub(super) fn set_record(&mut self, node: &NodeName, address: IpAddr, record: Option<&Arc<PodRecord>>) {
        let records = self.pods.entry(address).or_default();
        let known = records.iter().position(|(name, _)| name == node);
        let is_same = match (known.and_then(|at| records.get(at)), record) {
            (Some((_, known)), Some(record)) => known == record,
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if !is_same {
            known.into_iter().for_each(|at| drop(records.swap_remove(at)));
            records.extend(record.map(|record| (node.clone(), Arc::clone(record))));
            self.changed_pods.insert(address);
        }
        if records.is_empty() {
            self.pods.remove(&address);
        }
    }

    pub(super) fn delete(&mut self, key: &IdentityKey) {
        match key {
            IdentityKey::Pod(node, address) if *node == self.own => {
                self.own_pods.remove(address);
                self.own_changed = OwnChanged::Yes;
            }
            IdentityKey::Pod(node, address) => self.set_record(node, *address, None),
            IdentityKey::Identity(hash) => {
                self.identities.remove(hash);
                let has_users = |records: &[(NodeName, Arc<PodRecord>)]| {
                    records.iter().any(|(_, record)| record.identity == *hash)
                };
                let users = self.pods.iter().filter(|(_, records)| has_users(records));
                self.changed_pods.extend(users.map(|(address, _)| *address));
            }
        }
    }
}
