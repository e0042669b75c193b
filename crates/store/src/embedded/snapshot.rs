//! A log begins with a snapshot of all that is, and is written whole before it gets its name.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;

use super::fault::{Fault, io_fault};
use super::file;
use super::record::{Chain, FORMAT, Record};
use super::state::State;

/// A new log, open, with its length and the checksum of its last line.
pub(super) struct Written {
    pub(super) file: File,
    pub(super) end: u64,
    pub(super) chain: Chain,
}

/// Takes the place of the log in this folder; what happened up to the revision `compacted` cannot be told from it. If it fails, the old log is as it was.
pub(super) fn write(dir: &Path, state: &State, compacted: u64) -> Result<Written, Fault> {
    let (new, path) = (dir.join("log.new"), dir.join("log"));
    let written = write_records(&new, state, compacted).and_then(|written| {
        fs::rename(&new, &path).map_err(io_fault("rename", &new))?;
        Ok(written)
    });
    match written {
        Ok(written) => {
            file::sync_folder(dir)?;
            Ok(written)
        }
        Err(fault) => {
            // On a full disk it is in the way; if it stays, the next snapshot overwrites it.
            if let Err(error) = fs::remove_file(&new) {
                tracing::debug!("cannot remove {}: {error}", new.display());
            }
            Err(fault)
        }
    }
}

fn write_records(path: &Path, state: &State, compacted: u64) -> Result<Written, Fault> {
    let head = Record::Head { format: FORMAT, revision: state.revision, compacted };
    let leases = state.leases.iter().map(|(id, lease)| Record::Lease { id: *id, lease: lease.clone() });
    let records = std::iter::once(head).chain(leases).chain(state.entries.values().map(Record::from));
    let mut out = BufWriter::new(file::create(path)?);
    let (mut end, mut chain) = (0, Chain::default());
    for record in records {
        let (line, next) = chain.write(&record).map_err(io_fault("write", path))?;
        out.write_all(&line).map_err(io_fault("write", path))?;
        end += line.len() as u64;
        chain = next;
    }
    let file = out.into_inner().map_err(|error| io_fault("write", path)(error.into_error()))?;
    file.sync_all().map_err(io_fault("write", path))?;
    Ok(Written { file, end, chain })
}
