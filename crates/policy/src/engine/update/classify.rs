//! Assigns a class to each address of a pod or node, and to each range of other addresses.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use model::objects::Identity;

use crate::address::{AddressOwner, AddressRange, AddressState};
use crate::cidr::partition;
use crate::class::{ClassIndex, ClassKey, PeerKind, PodClass};
use crate::direction::DIRECTIONS;
use crate::dirty::Dirty;
use crate::element::PolicyElement;
use crate::elements;
use crate::engine::PolicyEngine;
use crate::journal::Journal;

/// The classes of identities that many pods share.
type PodClasses = HashMap<*const Identity, Arc<PodClass>>;

impl PolicyEngine {
    pub(super) fn classify_addresses(&mut self, dirty: &Dirty, is_all: bool, journal: &mut Journal) {
        let mut known = PodClasses::new();
        let owned: Vec<_> = if is_all { self.addresses.owned().collect() } else { Vec::new() };
        let addresses = dirty.addresses.iter().copied().chain(owned);
        let keys: Vec<_> =
            addresses.map(|address| (address, self.address_key(address, &mut known))).collect();
        if is_all {
            self.rename_classes(&keys, &dirty.addresses);
        }
        for (address, key) in keys {
            let new = key.and_then(|(key, is_own)| {
                let class = self.classes.acquire(key, &mut self.slots)?;
                Some(AddressState { class, is_own })
            });
            let old = match new {
                Some(new) => self.addresses.states.insert(address, new),
                None => self.addresses.states.remove(&address),
            };
            if let Some(old) = old {
                self.classes.release(old.class);
            }
            if old != new {
                self.record_address(address, (old, new), journal);
            }
        }
    }

    /// The key of the class, and whether the address belongs to a local pod.
    fn address_key(&self, address: IpAddr, known: &mut PodClasses) -> Option<(ClassKey, bool)> {
        let owner = self.addresses.owner(address)?;
        let is_own = matches!(owner, AddressOwner::LocalPod(_));
        let key = match owner {
            AddressOwner::Node(name) => {
                self.uses.node_class(self.world.nodes.get(name)?, *name == self.world.local_node)
            }
            AddressOwner::LocalPod(uid) | AddressOwner::Pod(uid) => {
                let identity = &self.world.pods.get(uid)?.identity;
                let new = || Arc::new(self.uses.pod_class(identity));
                let class = known.entry(Arc::as_ptr(identity)).or_insert_with(new);
                let cidrs = self.uses.smallest_cidr(address);
                ClassKey { kind: PeerKind::Pod(Arc::clone(class)), cidrs }
            }
        };
        Some((key, is_own))
    }

    /// Renames classes of which all addresses get the same new key, so that they keep their elements. Keys change if label keys, named
    /// ports or blocks come into use or go out of use. Classes of changed pods and nodes are excluded, because rules may distinguish
    /// their old and new keys.
    fn rename_classes(&mut self, keys: &[(IpAddr, Option<(ClassKey, bool)>)], dirty: &BTreeSet<IpAddr>) {
        let mut targets: HashMap<ClassIndex, Option<&ClassKey>> = HashMap::new();
        for (address, key) in keys {
            let Some(state) = self.addresses.states.get(address) else { continue };
            let key = key.as_ref().map(|(key, _)| key).filter(|_| !dirty.contains(address));
            let target = targets.entry(state.class).or_insert(key);
            if *target != key {
                *target = None;
            }
        }
        for (class, key) in targets {
            if let Some(key) = key {
                self.classes.rename(class, key);
            }
        }
    }

    fn record_address(
        &self,
        address: IpAddr,
        (old, new): (Option<AddressState>, Option<AddressState>),
        journal: &mut Journal,
    ) {
        let class_of = |state: AddressState| self.classes.get(state.class).map(|class| class.id);
        if let Some(class) = old.and_then(class_of) {
            journal.remove(PolicyElement::Address { address, class });
        }
        if let Some(class) = new.and_then(class_of) {
            journal.set(PolicyElement::Address { address, class });
        }
        let is_own = |state: Option<AddressState>| state.is_some_and(|state| state.is_own);
        match (is_own(old), is_own(new)) {
            (true, false) => journal.remove(PolicyElement::OwnAddress { address }),
            (false, true) => journal.set(PolicyElement::OwnAddress { address }),
            (true, true) | (false, false) => {}
        }
    }

    /// Computes the ranges of addresses that belong to no pod and no node.
    pub(super) fn divide_ranges(&mut self, journal: &mut Journal) {
        let mut ranges: Vec<AddressRange> = Vec::new();
        for part in partition(&self.uses.cidrs, &self.networks) {
            let kind = if part.is_in_network { PeerKind::Unknown } else { PeerKind::Outside };
            let key = ClassKey { kind, cidrs: part.cidr.into_iter().collect() };
            let Some(class) = self.classes.acquire(key, &mut self.slots) else { continue };
            match ranges.last_mut() {
                // Parts are adjacent, so equal classes of one family can be merged.
                Some(last) if last.class == class && last.last.is_ipv4() == part.first.is_ipv4() => {
                    last.last = part.last;
                    self.classes.release(class);
                }
                Some(_) | None => {
                    let Some(entry) = self.classes.get(class) else { continue };
                    ranges.push(AddressRange { first: part.first, last: part.last, class, id: entry.id });
                }
            }
        }
        let old = std::mem::replace(&mut self.addresses.ranges, ranges);
        for range in &old {
            self.classes.release(range.class);
            journal.remove(range.element());
        }
        for range in &self.addresses.ranges {
            journal.set(range.element());
        }
    }

    /// Removes the elements of classes without addresses, except those of profiles without pods.
    pub(super) fn remove_classes(&mut self, idle: &[ClassIndex], journal: &mut Journal) {
        for index in idle {
            let Some(class) = self.classes.get(*index) else { continue };
            for direction in DIRECTIONS {
                let old = class.any_pod[direction].as_ref().map(|any_pod| &any_pod.entries);
                journal.replace_entries(old, None, elements::of_any_pod(direction, class.id));
            }
            for profile in self.profiles.iter_mut() {
                for direction in DIRECTIONS {
                    let old = profile.sides[direction].pairs.replace(*index, None);
                    let to_element = elements::of_pair(direction, profile.numbers, class.id);
                    journal.replace_entries(old.as_ref(), None, to_element);
                }
            }
        }
    }
}

impl AddressRange {
    fn element(&self) -> PolicyElement {
        PolicyElement::Addresses { first: self.first, last: self.last, class: self.id }
    }
}
