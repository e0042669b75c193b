//! Writes a log that starts with a snapshot of the state. The log is complete before it gets its name.

use std::fs::File;
use std::path::Path;

use files::Replacement;

use super::fault::{EmbeddedFault, io_fault};
use super::record::{EmbeddedRecord, FORMAT, LineChecksum};
use super::state::EmbeddedState;

/// A new, open log with its length and the checksum of its last line.
pub(super) struct NewLog {
    pub(super) file: File,
    pub(super) end: u64,
    pub(super) chain: LineChecksum,
}

/// Replaces the log at `path`. The new log has no history up to the revision `compacted`. On a failure the old log is
/// unchanged.
pub(super) fn write(path: &Path, state: &EmbeddedState, compacted: u64) -> Result<NewLog, EmbeddedFault> {
    let head = EmbeddedRecord::Head { format: FORMAT, revision: state.revision, compacted };
    let leases =
        state.leases.iter().map(|(id, lease)| EmbeddedRecord::Lease { id: *id, lease: lease.clone() });
    let records = std::iter::once(head).chain(leases).chain(state.entries.values().map(EmbeddedRecord::from));
    let (mut lines, mut chain) = (Vec::new(), LineChecksum::default());
    for record in records {
        let (line, next) = chain.write(&record).map_err(io_fault("write", path))?;
        lines.extend(line);
        chain = next;
    }
    let file = files::replace_open(path, &lines, Replacement::DURABLE).map_err(io_fault("write", path))?;
    Ok(NewLog { file, end: lines.len() as u64, chain })
}
