//! Who says that a block, a MAC or an address is his. Whose name sorts first has it: every node comes to the same result,
//! whatever it heard first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipnet::IpNet;
use types::NodeName;

/// Blocks, found by overlap.
#[derive(Debug, Clone, Default)]
pub(super) struct Claims {
    holders: Shared<IpNet>,
    /// How many claims there are of a prefix length: shorter ones are looked up by each length in use.
    lengths: BTreeMap<u8, usize>,
}

impl Claims {
    pub(super) fn add(&mut self, block: IpNet, name: &Arc<NodeName>) {
        if self.holders.add(block, name) {
            *self.lengths.entry(block.prefix_len()).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, block: IpNet, name: &Arc<NodeName>) {
        if self.holders.remove(block, name)
            && let Some(count) = self.lengths.get_mut(&block.prefix_len())
        {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&block.prefix_len());
            }
        }
    }

    /// All claims that have an address in common with this block.
    pub(super) fn overlapping(&self, block: IpNet) -> impl Iterator<Item = (IpNet, &Arc<NodeName>)> {
        let around = self
            .lengths
            .range(..block.prefix_len())
            .filter_map(move |(length, _)| IpNet::new(block.addr(), *length).ok())
            .map(|around| around.trunc())
            .flat_map(|around| self.holders.holders(around).map(move |name| (around, name)));
        let inside = self.holders.from(block).take_while(move |(other, _)| block.contains(other));
        around.chain(inside)
    }
}

/// Things that should have one holder each.
#[derive(Debug, Clone)]
pub(super) struct Shared<K> {
    /// One set for all, because nearly everything has one holder: a set for each would be most of the memory. No name
    /// sorts before every name: it is where a search begins.
    pairs: BTreeSet<(K, Option<Arc<NodeName>>)>,
}

impl<K> Default for Shared<K> {
    fn default() -> Self {
        Self { pairs: BTreeSet::new() }
    }
}

impl<K: Ord + Copy> Shared<K> {
    /// Is it new?
    pub(super) fn add(&mut self, key: K, name: &Arc<NodeName>) -> bool {
        self.pairs.insert((key, Some(Arc::clone(name))))
    }

    /// Was it there?
    pub(super) fn remove(&mut self, key: K, name: &Arc<NodeName>) -> bool {
        self.pairs.remove(&(key, Some(Arc::clone(name))))
    }

    fn from(&self, key: K) -> impl Iterator<Item = (K, &Arc<NodeName>)> {
        self.pairs.range((key, None)..).filter_map(|(key, name)| Some((*key, name.as_ref()?)))
    }

    /// The first that is held from one to another, both included.
    pub(super) fn first_between(&self, first: K, last: K) -> Option<K> {
        self.from(first).map(|(key, _)| key).next().filter(|key| *key <= last)
    }

    /// In the order of their names.
    pub(super) fn holders(&self, key: K) -> impl Iterator<Item = &Arc<NodeName>> {
        self.from(key).take_while(move |(other, _)| *other == key).map(|(_, name)| name)
    }

    /// What several hold.
    pub(super) fn disputed(&self) -> BTreeMap<K, Vec<&NodeName>> {
        let mut disputed: BTreeMap<K, Vec<&NodeName>> = BTreeMap::new();
        let mut last = None;
        for (key, name) in &self.pairs {
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
