//! Removal of identities that no pod has. Every node does this rarely, because the node that wrote one may not exist any more.

use std::collections::{BTreeMap, BTreeSet};

use model::IdentityHash;

use super::local::PublishedPods;
use super::mirror::IdentityMirror;

/// Identities that are removed at once. The next check removes others.
pub(super) const MAX_REMOVED: usize = 100;

/// Unused identities with the revisions of their values.
pub(super) type UnusedIdentities = BTreeMap<IdentityHash, u64>;

impl IdentityMirror {
    /// Identities without a pod, neither in the store nor among those that this node will publish.
    pub(super) fn unused(&self, desired: &PublishedPods) -> UnusedIdentities {
        let mut used: BTreeSet<&IdentityHash> = self.used_identities().collect();
        used.extend(desired.values().map(|pod| &pod.record.identity));
        let unused = self.identities.iter().filter(|(hash, _)| !used.contains(hash));
        unused.map(|(hash, stored)| (hash.clone(), stored.revision)).collect()
    }
}

/// An identity is removed if two checks in a row found it unused and unchanged. If its node writes a pod at the same moment, that node
/// observes the removal and writes the identity again.
pub(super) fn removable(before: &UnusedIdentities, now: &UnusedIdentities) -> Vec<(IdentityHash, u64)> {
    let is_same = |(hash, revision): &(&IdentityHash, &u64)| before.get(*hash) == Some(*revision);
    let removable = now.iter().filter(is_same).take(MAX_REMOVED);
    removable.map(|(hash, revision)| (hash.clone(), *revision)).collect()
}
