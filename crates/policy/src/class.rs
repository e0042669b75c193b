//! Classes: sets of peers that no rule distinguishes.

use std::collections::HashMap;
use std::sync::Arc;

use ipnet::IpNet;
use model::Labels;
use model::objects::NamedPort;
use types::{Digest, GroupName, NetworkId, TenantName};

use crate::any_pod::AnyPod;
use crate::direction::PerDirection;
use crate::element::ClassId;
use crate::numbers::{Numbers, TenantSlots, class_space};
use crate::uses::OTHER_VALUE;

/// Everything that decides whether a rule matches a peer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ClassKey {
    pub(crate) kind: PeerKind,
    /// The smallest block in use that contains the address. For a node, those of all of its addresses.
    pub(crate) cidrs: Vec<IpNet>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum PeerKind {
    Pod(Arc<PodClass>),
    Node {
        is_own: bool,
        labels: Labels,
    },
    /// Outside of the cluster.
    Outside,
    /// Inside a network, without a record.
    Unknown,
}

/// The properties of a pod that rules read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PodClass {
    pub(crate) tenant: TenantName,
    pub(crate) network: NetworkId,
    pub(crate) group: Option<GroupName>,
    pub(crate) namespace: Option<String>,
    pub(crate) labels: Labels,
    pub(crate) ports: Vec<NamedPort>,
}

impl ClassKey {
    pub(crate) fn pod(&self) -> Option<&PodClass> {
        match &self.kind {
            PeerKind::Pod(pod) => Some(pod),
            PeerKind::Node { .. } | PeerKind::Outside | PeerKind::Unknown => None,
        }
    }

    pub(crate) fn ports(&self) -> &[NamedPort] {
        self.pod().map_or(&[], |pod| &pod.ports)
    }

    fn digest(&self) -> Digest {
        let mut words = Vec::new();
        match &self.kind {
            PeerKind::Pod(pod) => pod.push_words(&mut words),
            PeerKind::Node { is_own, labels } => {
                words.push(if *is_own { "own node" } else { "node" }.to_owned());
                push_labels(&mut words, labels);
            }
            PeerKind::Outside => words.push("world".to_owned()),
            PeerKind::Unknown => words.push("unknown".to_owned()),
        }
        words.extend(self.cidrs.iter().map(ToString::to_string));
        Digest::of(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

impl PodClass {
    fn push_words(&self, words: &mut Vec<String>) {
        words.extend(["pod", self.tenant.as_str(), self.network.as_str()].map(str::to_owned));
        words.extend(self.group.iter().map(|group| format!("group {group}")));
        words.extend(self.namespace.iter().map(|namespace| format!("namespace {namespace}")));
        push_labels(words, &self.labels);
        words.extend(self.ports.iter().map(|port| format!("{} {}/{}", port.name, port.protocol, port.port)));
    }
}

/// Omits values that no selector names, so that most classes keep their number when a key comes into use.
fn push_labels(words: &mut Vec<String>, labels: &Labels) {
    let named = labels.iter().filter(|(_, value)| *value != OTHER_VALUE);
    words.extend(named.map(|(key, value)| format!("{key}={value}")));
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ClassIndex(pub(crate) u32);

impl ClassIndex {
    pub(crate) fn position(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug, Clone)]
pub(crate) struct ClassEntry {
    pub(crate) id: ClassId,
    pub(crate) key: Arc<ClassKey>,
    /// The number of addresses and ranges.
    users: usize,
    pub(crate) any_pod: PerDirection<Option<Arc<AnyPod>>>,
}

/// All classes. A class without users is kept until [`Self::sweep`], so that its number is not reused in the same change.
#[derive(Debug, Clone, Default)]
pub(crate) struct Classes {
    entries: Vec<Option<ClassEntry>>,
    free: Vec<ClassIndex>,
    by_key: HashMap<Arc<ClassKey>, ClassIndex>,
    numbers: Numbers,
    /// Created since the last sweep.
    fresh: Vec<ClassIndex>,
    /// Lost their last user since the last sweep.
    idle: Vec<ClassIndex>,
}

impl Classes {
    /// Adds a user. None if no number is free.
    pub(crate) fn acquire(&mut self, key: ClassKey, slots: &mut TenantSlots) -> Option<ClassIndex> {
        if let Some(index) = self.by_key.get(&key).copied() {
            if let Some(entry) = self.get_mut(index) {
                entry.users += 1;
            }
            return Some(index);
        }
        let slot = match key.pod() {
            Some(pod) => slots.acquire(&pod.tenant)?,
            None => 0,
        };
        let Some(number) = self.numbers.take(&key.digest(), class_space(slot)) else {
            if let Some(pod) = key.pod() {
                slots.release(&pod.tenant);
            }
            return None;
        };
        let key = Arc::new(key);
        let entry = ClassEntry {
            id: ClassId(number),
            key: Arc::clone(&key),
            users: 1,
            any_pod: PerDirection::default(),
        };
        let index = self.insert(entry);
        self.by_key.insert(key, index);
        self.fresh.push(index);
        Some(index)
    }

    /// Gives a class a new key, if it is free and has the same number. The rules in force must match both keys alike.
    pub(crate) fn rename(&mut self, index: ClassIndex, key: &ClassKey) {
        let Some(entry) = self.entries.get_mut(index.position()).and_then(Option::as_mut) else { return };
        if *entry.key == *key || self.by_key.contains_key(key) || entry.key.digest() != key.digest() {
            return;
        }
        self.by_key.remove(&entry.key);
        entry.key = Arc::new(key.clone());
        self.by_key.insert(Arc::clone(&entry.key), index);
    }

    fn insert(&mut self, entry: ClassEntry) -> ClassIndex {
        if let Some(index) = self.free.pop() {
            self.entries[index.position()] = Some(entry);
            return index;
        }
        self.entries.push(Some(entry));
        ClassIndex(u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX))
    }

    pub(crate) fn release(&mut self, index: ClassIndex) {
        if let Some(entry) = self.get_mut(index) {
            entry.users -= 1;
            if entry.users == 0 {
                self.idle.push(index);
            }
        }
    }

    pub(crate) fn get(&self, index: ClassIndex) -> Option<&ClassEntry> {
        self.entries.get(index.position())?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: ClassIndex) -> Option<&mut ClassEntry> {
        self.entries.get_mut(index.position())?.as_mut()
    }

    /// Classes with users.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ClassIndex, &ClassEntry)> {
        self.entries.iter().zip(0..).filter_map(|(entry, index)| {
            entry.as_ref().filter(|entry| entry.users > 0).map(|entry| (ClassIndex(index), entry))
        })
    }

    pub(crate) fn take_fresh(&mut self) -> Vec<ClassIndex> {
        let fresh = std::mem::take(&mut self.fresh);
        fresh.into_iter().filter(|index| self.is_used(*index)).collect()
    }

    /// Classes without users. They may appear more than once.
    pub(crate) fn take_idle(&mut self) -> Vec<ClassIndex> {
        let idle = std::mem::take(&mut self.idle);
        idle.into_iter().filter(|index| self.get(*index).is_some() && !self.is_used(*index)).collect()
    }

    fn is_used(&self, index: ClassIndex) -> bool {
        self.get(index).is_some_and(|entry| entry.users > 0)
    }

    /// Forgets classes.
    pub(crate) fn sweep(&mut self, idle: &[ClassIndex], slots: &mut TenantSlots) {
        for index in idle {
            let Some(entry) = self.entries[index.position()].take() else { continue };
            self.by_key.remove(&entry.key);
            self.numbers.release(entry.id.0);
            if let Some(pod) = entry.key.pod() {
                slots.release(&pod.tenant);
            }
            self.free.push(*index);
        }
    }
}
