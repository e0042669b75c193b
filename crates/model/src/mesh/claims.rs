//! Indexes the records that name a block, a MAC or an address. The record that the store created first has priority. So all
//! nodes get the same result, independent of the order of events, and a later record cannot take anything over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use types::NodeName;

/// A record, and the revision at which the store created it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holder<'a> {
    pub(super) created: u64,
    pub(super) name: &'a Arc<NodeName>,
}

/// An index of values that should have one holder each.
#[derive(Debug, Clone)]
pub(super) struct Holders<K> {
    /// One set for all values: almost all have a single holder, and a set for each would need much more memory. `None` sorts
    /// before all names and is the start of a range.
    holders: BTreeSet<(K, u64, Option<Arc<NodeName>>)>,
}

impl<K> Default for Holders<K> {
    fn default() -> Self {
        Self { holders: BTreeSet::new() }
    }
}

impl<K: Ord + Copy> Holders<K> {
    pub(super) fn add(&mut self, key: K, holder: Holder<'_>) {
        self.holders.insert((key, holder.created, Some(Arc::clone(holder.name))));
    }

    pub(super) fn remove(&mut self, key: K, holder: Holder<'_>) {
        self.holders.remove(&(key, holder.created, Some(Arc::clone(holder.name))));
    }

    /// The holders in the order in which their records were created.
    pub(super) fn holders(&self, key: K) -> impl Iterator<Item = &Arc<NodeName>> {
        let from = self.holders.range((key, 0, None)..);
        from.take_while(move |(other, ..)| *other == key).filter_map(|(_, _, name)| name.as_ref())
    }

    /// The values with several holders.
    pub(super) fn disputed(&self) -> BTreeMap<K, Vec<&NodeName>> {
        let mut disputed: BTreeMap<K, Vec<&NodeName>> = BTreeMap::new();
        let mut last = None;
        for (key, _, name) in &self.holders {
            let Some(name) = name else { continue };
            if let Some((_, first)) = last.filter(|(other, _)| other == key) {
                disputed.entry(*key).or_insert_with(|| vec![first]).push(name);
            } else {
                last = Some((*key, &**name));
            }
        }
        disputed
    }
}
