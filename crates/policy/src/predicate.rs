//! Conditions on peers, evaluated once per class and shared by all rules with the same condition.

use std::collections::HashMap;
use std::sync::Arc;

use ipnet::IpNet;
use model::{Labels, Selector};
use types::{GroupName, NetworkId, TenantName};

use crate::class::{ClassIndex, ClassKey, Classes, PeerKind, PodClass};
use crate::world::World;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Predicate {
    /// Pods with a namespace.
    Pods {
        namespaces: NamespaceCondition,
        pods: Selector,
    },
    /// Addresses inside a block, except those in smaller blocks.
    Block {
        cidr: IpNet,
        except: Vec<IpNet>,
    },
    /// Nodes, also the subject's own.
    Nodes(Selector),
    Group(TenantName, GroupName),
    Network(TenantName, NetworkId),
    /// All pods of a tenant.
    Tenant(TenantName),
    /// Pods of these tenants.
    Tenants(Vec<TenantName>),
    /// Pods of all tenants except this one.
    OtherTenants(TenantName),
    Outside,
    OwnNode,
    OtherNodes,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum NamespaceCondition {
    Named(String),
    Matching(Selector),
}

impl Predicate {
    pub(crate) fn matches(&self, key: &ClassKey, namespaces: &Namespaces<'_>) -> bool {
        let pod = |condition: &dyn Fn(&PodClass) -> bool| key.pod().is_some_and(condition);
        match self {
            Self::Pods { namespaces: condition, pods } => pod(&|pod| {
                let is_in = |name: &String| condition.matches(name, namespaces);
                pod.namespace.as_ref().is_some_and(is_in) && pods.matches(&pod.labels)
            }),
            Self::Block { cidr, except } => {
                let is_inside = |part: &IpNet| {
                    cidr.trunc().contains(part) && !except.iter().any(|net| net.trunc().contains(part))
                };
                key.cidrs.iter().any(is_inside)
            }
            Self::Nodes(selector) => match &key.kind {
                PeerKind::Node { is_own: _, labels } => selector.matches(labels),
                PeerKind::Pod(_) | PeerKind::Outside | PeerKind::Unknown => false,
            },
            Self::Group(tenant, group) => {
                pod(&|pod| pod.tenant == *tenant && pod.group.as_ref() == Some(group))
            }
            Self::Network(tenant, network) => pod(&|pod| pod.tenant == *tenant && pod.network == *network),
            Self::Tenant(tenant) => pod(&|pod| pod.tenant == *tenant),
            Self::Tenants(tenants) => pod(&|pod| tenants.contains(&pod.tenant)),
            Self::OtherTenants(tenant) => pod(&|pod| pod.tenant != *tenant),
            Self::Outside => key.kind == PeerKind::Outside,
            Self::OwnNode => matches!(key.kind, PeerKind::Node { is_own: true, labels: _ }),
            Self::OtherNodes => matches!(key.kind, PeerKind::Node { is_own: false, labels: _ }),
        }
    }
}

impl NamespaceCondition {
    fn matches(&self, name: &str, namespaces: &Namespaces<'_>) -> bool {
        match self {
            Self::Named(own) => own == name,
            Self::Matching(selector) => selector.matches(namespaces.labels(name)),
        }
    }
}

/// The labels of namespaces. A namespace that does not exist has none.
pub(crate) struct Namespaces<'a>(pub(crate) &'a World);

static NO_LABELS: Labels = Labels::new();

impl Namespaces<'_> {
    pub(crate) fn labels(&self, name: &str) -> &Labels {
        self.0.namespaces.get(name).unwrap_or(&NO_LABELS)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PredicateIndex(u32);

impl PredicateIndex {
    fn position(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug, Clone)]
struct PredicateEntry {
    predicate: Arc<Predicate>,
    users: usize,
    /// One bit per class.
    classes: Vec<u64>,
}

/// The predicates of all rules that are compiled, with the classes that each matches.
#[derive(Debug, Clone, Default)]
pub(crate) struct Predicates {
    entries: Vec<Option<PredicateEntry>>,
    free: Vec<PredicateIndex>,
    by_predicate: HashMap<Arc<Predicate>, PredicateIndex>,
}

impl Predicates {
    /// Adds a user.
    pub(crate) fn acquire(
        &mut self,
        predicate: &Predicate,
        classes: &Classes,
        namespaces: &Namespaces<'_>,
    ) -> PredicateIndex {
        if let Some(index) = self.by_predicate.get(predicate).copied() {
            if let Some(entry) = self.entries[index.position()].as_mut() {
                entry.users += 1;
            }
            return index;
        }
        let predicate = Arc::new(predicate.clone());
        let mut entry = PredicateEntry { predicate: Arc::clone(&predicate), users: 1, classes: Vec::new() };
        for (class, known) in classes.iter() {
            entry.set(class, predicate.matches(&known.key, namespaces));
        }
        let index = self.insert(entry);
        self.by_predicate.insert(predicate, index);
        index
    }

    fn insert(&mut self, entry: PredicateEntry) -> PredicateIndex {
        if let Some(index) = self.free.pop() {
            self.entries[index.position()] = Some(entry);
            return index;
        }
        self.entries.push(Some(entry));
        PredicateIndex(u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX))
    }

    pub(crate) fn release(&mut self, index: PredicateIndex) {
        let Some(entry) = self.entries[index.position()].as_mut() else { return };
        entry.users -= 1;
        if entry.users == 0 {
            let predicate = Arc::clone(&entry.predicate);
            self.by_predicate.remove(&predicate);
            self.entries[index.position()] = None;
            self.free.push(index);
        }
    }

    /// Evaluates all predicates for a class that is new or whose namespace has other labels.
    pub(crate) fn evaluate(&mut self, class: ClassIndex, key: &ClassKey, namespaces: &Namespaces<'_>) {
        for entry in self.entries.iter_mut().flatten() {
            let is_match = entry.predicate.matches(key, namespaces);
            entry.set(class, is_match);
        }
    }

    pub(crate) fn is_match(&self, index: PredicateIndex, class: ClassIndex) -> bool {
        self.entries[index.position()].as_ref().is_some_and(|entry| entry.contains(class))
    }

    pub(crate) fn matches_key(
        &self,
        index: PredicateIndex,
        key: &ClassKey,
        namespaces: &Namespaces<'_>,
    ) -> bool {
        let entry = self.entries[index.position()].as_ref();
        entry.is_some_and(|entry| entry.predicate.matches(key, namespaces))
    }
}

impl PredicateEntry {
    fn set(&mut self, class: ClassIndex, is_match: bool) {
        let (word, bit) = (class.position() / 64, 1 << (class.position() % 64));
        if is_match {
            if self.classes.len() <= word {
                self.classes.resize(word + 1, 0);
            }
            self.classes[word] |= bit;
        } else if let Some(word) = self.classes.get_mut(word) {
            *word &= !bit;
        }
    }

    fn contains(&self, class: ClassIndex) -> bool {
        let word = self.classes.get(class.position() / 64).copied().unwrap_or(0);
        word & (1 << (class.position() % 64)) != 0
    }
}
