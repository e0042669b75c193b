//! Pods of tenants whose objects do not exist, for example because the tenant was removed while a pod of it started. Policies are
//! enforced while there is one, so that it is separated from the pods of other tenants.

use engine::state::RecordPhase;
use tracing::warn;

use super::PolicyThread;
use crate::identities::local_pods;
use crate::policies::enforced::Enforced;
use crate::policies::pods::LocalPod;

impl PolicyThread {
    /// Begins or ends enforcement if no object decides about it.
    pub(super) fn follow_tenants(&mut self) {
        if self.restricts {
            return;
        }
        match (self.enforced.is_some(), self.has_tenant_pods()) {
            (false, true) => self.begin_for_pods(),
            (true, false) => {
                self.end();
                self.report();
            }
            (true, true) | (false, false) => {}
        }
    }

    pub(super) fn begin_for_pods(&mut self) {
        let Some(objects) = self.objects.clone().filter(|_| self.obstacle().is_none()) else { return };
        self.begin(&objects);
        self.report();
    }

    /// Whether a known pod is in another tenant than `default`. Pods of this node are known while policies are enforced.
    pub(super) fn has_tenant_pods(&self) -> bool {
        self.remote.has_tenant_pods() || self.enforced.as_ref().is_some_and(Enforced::has_tenant_pods)
    }

    /// The same for the records of an earlier agent.
    pub(super) fn has_tenant_records(&self) -> bool {
        let (run_dir, node) = (&self.parts.config.run_dir, self.parts.policies.node());
        match local_pods(run_dir, node, &[RecordPhase::Ready, RecordPhase::Pending]) {
            Ok((pods, _)) => pods.iter().any(LocalPod::needs_policies),
            Err(error) => {
                // The condition of the reconciler says so, too.
                warn!(%error, "the tenants of pods are not known");
                false
            }
        }
    }
}
