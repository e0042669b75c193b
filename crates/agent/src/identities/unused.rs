//! Removal of values that no node will remove: identities without a pod, and pods of nodes that do not exist. Every node does this rarely,
//! because the node that wrote them may be gone, or have another name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{IdentityHash, KeyLayout};
use store::{Change, Compare};
use types::NodeName;

use super::local::PublishedPods;
use super::mirror::IdentityMirror;

/// Values of each kind that are removed at once. The next check removes others.
const MAX_REMOVED: usize = 50;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct UnusedValues {
    /// With the revisions of their values.
    pub(super) identities: BTreeMap<IdentityHash, u64>,
    pub(super) pods: BTreeSet<(NodeName, IpAddr)>,
}

/// A transaction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Removal {
    pub(super) compares: Vec<Compare>,
    pub(super) changes: Vec<Change>,
}

impl IdentityMirror {
    /// Identities without a pod, neither in the store nor among those that this node will publish, and pods of nodes without a record.
    pub(super) fn unused(&self, desired: &PublishedPods) -> UnusedValues {
        let mut used: BTreeSet<&IdentityHash> = self.used_identities().collect();
        used.extend(desired.values().map(|pod| &pod.record.identity));
        let unused = self.identities.iter().filter(|(hash, _)| !used.contains(hash));
        UnusedValues {
            identities: unused.map(|(hash, stored)| (hash.clone(), stored.revision)).collect(),
            pods: self.pods_of_missing_nodes().collect(),
        }
    }
}

impl UnusedValues {
    /// A value is removed if two checks in a row found it unused. If the node of an identity's new pod writes at the same moment, it
    /// observes the removal and writes the identity again.
    pub(super) fn removal(&self, before: &Self, layout: &KeyLayout) -> Removal {
        let is_same =
            |(hash, revision): &(&IdentityHash, &u64)| before.identities.get(*hash) == Some(*revision);
        let identities = self.identities.iter().filter(is_same).take(MAX_REMOVED);
        let mut removal = Removal::default();
        for (hash, revision) in identities {
            removal.compares.push(Compare::Revision(layout.identity(hash), *revision));
            removal.changes.push(Change::Delete(layout.identity(hash)));
        }
        let pods: Vec<_> = self.pods.intersection(&before.pods).take(MAX_REMOVED).collect();
        let nodes: BTreeSet<&NodeName> = pods.iter().map(|(node, _)| node).collect();
        removal.compares.extend(nodes.into_iter().map(|node| Compare::Absent(layout.node(node))));
        removal.changes.extend(pods.iter().map(|(node, address)| Change::Delete(layout.pod(node, *address))));
        removal
    }
}
