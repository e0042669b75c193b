//! Pods and nodes of the cluster.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{ChangeCause, PolicyThread};
use crate::policies::flows::AffectedFlows;
use crate::policies::remote::Reuse;

/// Addresses that are applied at once. A listing of a large cluster has many, and ADDs must not wait for all of them.
pub(super) const REMOTE_CHANGES: usize = 1_000;
/// How long after a change of identities the flows of their addresses are judged.
const REUSE_PAUSE: Duration = Duration::from_secs(1);

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

    pub(super) fn judge_reused(&mut self) {
        let reused = self.reused.take();
        if let Some(((_, affected), enforced)) = reused.zip(self.enforced.as_ref()) {
            self.flows.judge(enforced.engine(), affected);
        }
    }
}

/// Flows of addresses with another identity are judged together, because each time the flow thread gets a copy of the engine.
pub(super) fn judge_later(reused: &mut Option<(Instant, AffectedFlows)>, affected: AffectedFlows) {
    if affected == AffectedFlows::None {
        return;
    }
    let (at, earlier) = reused.unwrap_or((Instant::now() + REUSE_PAUSE, AffectedFlows::None));
    *reused = Some((at, affected.max(earlier)));
}
