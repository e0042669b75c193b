//! Pods and nodes of the cluster.

use std::collections::BTreeSet;

use super::{ChangeCause, PolicyThread};
use crate::policies::remote::Reuse;

/// Addresses that are applied at once. A listing of a large cluster has many, and ADDs must not wait for all of them.
pub(super) const REMOTE_CHANGES: usize = 1_000;

impl PolicyThread {
    /// Applies changes of other nodes and their pods. If there are more than `limit`, the thread is woken for the others.
    pub(super) fn follow_remote(&mut self, limit: usize) {
        let changes = self.parts.policies.take_remote(limit);
        if changes.is_empty() {
            return;
        }
        let (changes, reuse) = self.remote.update(changes);
        let cause = match reuse {
            Reuse::None => ChangeCause::Pods,
            Reuse::OtherIdentity => ChangeCause::Identities,
        };
        self.apply(changes, &BTreeSet::new(), cause);
    }
}
