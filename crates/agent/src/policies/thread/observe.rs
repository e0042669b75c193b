//! The pods and addresses of this node, from records and the kernel.

use engine::state::RecordPhase;
use policy::WorldChange;

use super::PolicyThread;
use crate::identities::local_pods;

impl PolicyThread {
    /// Adds pods of records with these phases, and removes pods without a record. Updates this node's addresses.
    pub(super) fn sync(&mut self, phases: &[RecordPhase]) -> Vec<WorldChange> {
        let run_dir = &self.parts.config.run_dir;
        let records =
            local_pods(run_dir, self.parts.policies.node(), phases).map_err(|error| error.to_string());
        let addresses = self.kernel.node_addresses().map_err(|error| error.to_string());
        let (mut changes, mut errors) = (Vec::new(), Vec::new());
        let Some(enforced) = &mut self.enforced else { return changes };
        match records {
            Ok((pods, recorded)) => changes.extend(enforced.set_pods(pods, &recorded)),
            Err(error) => errors.push(format!("the records of pods cannot be read: {error}")),
        }
        match addresses {
            Ok(addresses) => changes.extend(enforced.set_addresses(addresses)),
            Err(error) => errors.push(format!("the node's addresses cannot be listed: {error}")),
        }
        errors.into_iter().for_each(|error| self.failed("the state of the node is not known", Some(error)));
        changes
    }
}
