//! The records of this node's pods.

use std::collections::BTreeSet;
use std::path::Path;

use engine::state::{NodeState, RecordPhase, StateError};
use types::{AttachmentKey, NodeName};

use crate::policies::LocalPod;

/// The names of a record and its network in the run directory. An unreadable record has these, too.
pub(crate) type RecordName = (String, String);

pub(crate) fn record_name(key: &AttachmentKey) -> RecordName {
    (AttachmentKey::network_dir(&key.network), key.file_stem())
}

/// Pods with a record in one of these phases, and the names of all records.
pub(crate) fn local_pods(
    run_dir: &Path,
    node: &NodeName,
    phases: &[RecordPhase],
) -> Result<(Vec<LocalPod>, BTreeSet<RecordName>), StateError> {
    let (mut pods, mut recorded) = (Vec::new(), BTreeSet::new());
    let Some(state) = NodeState::open_existing(run_dir)? else { return Ok((pods, recorded)) };
    for network in state.networks()? {
        for listed in network.list()? {
            recorded.insert((network.name(), listed.stem.clone()));
            let Some(attachment) = listed.attachment else { continue };
            if phases.contains(&listed.phase) && !attachment.addresses.is_empty() {
                pods.push(LocalPod::of(node, &attachment));
            }
        }
    }
    Ok((pods, recorded))
}
