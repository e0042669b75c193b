//! The pods and addresses of this node, from records and the kernel.

use std::collections::BTreeSet;

use engine::state::{NodeState, RecordPhase, StateError};
use policy::WorldChange;

use super::PolicyThread;
use crate::policies::enforced::RecordName;
use crate::policies::pods::LocalPod;

impl PolicyThread {
    /// Adds pods of records with these phases, and removes pods without a record. Updates this node's addresses.
    pub(super) fn sync(&mut self, phases: &[RecordPhase]) -> Vec<WorldChange> {
        let records = self.records(phases).map_err(|error| error.to_string());
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

    /// Pods with a record in one of these phases, and all records.
    pub(super) fn records(
        &self,
        phases: &[RecordPhase],
    ) -> Result<(Vec<LocalPod>, BTreeSet<RecordName>), StateError> {
        let (mut pods, mut recorded) = (Vec::new(), BTreeSet::new());
        let Some(state) = NodeState::open_existing(&self.parts.config.run_dir)? else {
            return Ok((pods, recorded));
        };
        for network in state.networks()? {
            for listed in network.list()? {
                recorded.insert((network.name(), listed.stem.clone()));
                let Some(attachment) = listed.attachment else { continue };
                if phases.contains(&listed.phase) && !attachment.addresses.is_empty() {
                    pods.push(LocalPod::of(self.parts.policies.node(), &attachment));
                }
            }
        }
        Ok((pods, recorded))
    }
}
