//! The blocks of a node, per network.

use std::collections::BTreeMap;
use std::fmt;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use types::NetworkRef;

/// All blocks that a node owns, per network, in the order in which they were claimed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BlockAllocation(BTreeMap<NetworkRef, Vec<IpNet>>);

impl BlockAllocation {
    /// Blocks of the default network only.
    pub fn of_default(blocks: Vec<IpNet>) -> Self {
        blocks.into_iter().map(|block| (NetworkRef::default(), block)).collect()
    }

    /// The blocks of a network.
    pub fn of(&self, network: &NetworkRef) -> &[IpNet] {
        self.0.get(network).map(Vec::as_slice).unwrap_or_default()
    }

    pub fn networks(&self) -> impl Iterator<Item = (&NetworkRef, &[IpNet])> {
        self.0.iter().map(|(network, blocks)| (network, blocks.as_slice()))
    }

    /// All blocks with their networks.
    pub fn entries(&self) -> impl Iterator<Item = (&NetworkRef, &IpNet)> {
        self.0.iter().flat_map(|(network, blocks)| blocks.iter().map(move |block| (network, block)))
    }

    /// All blocks.
    pub fn iter(&self) -> impl Iterator<Item = &IpNet> {
        self.0.values().flatten()
    }

    pub fn to_vec(&self) -> Vec<IpNet> {
        self.iter().copied().collect()
    }

    pub fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn contains(&self, block: &IpNet) -> bool {
        self.iter().any(|own| own == block)
    }

    pub fn add(&mut self, network: &NetworkRef, block: IpNet) {
        self.0.entry(network.clone()).or_default().push(block);
    }

    pub fn retain(&mut self, mut keeps: impl FnMut(&NetworkRef, &IpNet) -> bool) {
        for (network, blocks) in &mut self.0 {
            blocks.retain(|block| keeps(network, block));
        }
        self.0.retain(|_, blocks| !blocks.is_empty());
    }
}

impl FromIterator<(NetworkRef, IpNet)> for BlockAllocation {
    fn from_iter<T: IntoIterator<Item = (NetworkRef, IpNet)>>(entries: T) -> Self {
        let mut allocation = Self::default();
        entries.into_iter().for_each(|(network, block)| allocation.add(&network, block));
        allocation
    }
}

/// The blocks of the default network, then those of other networks with their names.
impl fmt::Display for BlockAllocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = self.of(&NetworkRef::default()).iter().map(ToString::to_string);
        let others = self.entries().filter(|(network, _)| !network.is_default());
        let others = others.map(|(network, block)| format!("{block} of {network}"));
        f.write_str(&default.chain(others).collect::<Vec<_>>().join(","))
    }
}
