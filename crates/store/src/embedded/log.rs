//! The append-only log of the embedded store. The process that holds the lock reads it once and then appends to it.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use files::{Durability, optional};

use super::fault::{EmbeddedFault, io_fault};
use super::record::{EmbeddedRecord, LineChecksum, RecordedChange};
use super::snapshot;
use super::state::{ApplyError, EmbeddedState};
use crate::error::Operation;
use crate::types::LeaseId;

/// Smaller logs are not compacted.
const MIN_COMPACTION_SIZE: u64 = 1 << 20;
/// A log that is this many times larger than its live entries is compacted.
const GARBAGE_FACTOR: u64 = 4;

#[derive(Debug)]
pub(super) struct EmbeddedLog {
    path: PathBuf,
    file: File,
    /// The end of the last valid line.
    end: u64,
    /// The end of the snapshot.
    base: u64,
    chain: LineChecksum,
    tail: Tail,
    /// Changes when the directory is replaced, that is, when it contains a different store.
    pub(super) generation: u64,
    pub(super) state: EmbeddedState,
}

/// The data after the last valid line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tail {
    Clean,
    /// An incomplete line of a write that was interrupted by a kill or a power failure. It was never acknowledged.
    Torn,
}

impl EmbeddedLog {
    /// Reads the log, or creates it.
    pub(super) fn open(dir: &Path, generation: u64) -> Result<Self, EmbeddedFault> {
        let path = dir.join("log");
        let opened = optional(files::open(&path, File::options().read(true).write(true)));
        let file = match opened.map_err(io_fault("open", &path))? {
            Some(file) => file,
            None => snapshot::write(&path, &EmbeddedState::empty(), 0)?.file,
        };
        let (chain, state) = (LineChecksum::default(), EmbeddedState::default());
        let mut log = Self { path, file, end: 0, base: 0, chain, tail: Tail::Clean, generation, state };
        log.read()?;
        if log.state.revision == 0 {
            return Err(log.corrupt("the header is missing".to_owned()));
        }
        Ok(log)
    }

    /// Whether the path still refers to the open file, and the file contains only the written data.
    fn is_intact(&self) -> Result<bool, EmbeddedFault> {
        let failed = || io_fault("inspect", &self.path);
        let own = self.file.metadata().map_err(failed())?;
        let Some(current) = optional(fs::metadata(&self.path)).map_err(failed())? else { return Ok(false) };
        let has_expected_length = match self.tail {
            Tail::Clean => current.len() == self.end,
            Tail::Torn => current.len() >= self.end,
        };
        Ok(has_expected_length && (own.dev(), own.ino()) == (current.dev(), current.ino()))
    }

    fn corrupt(&self, problem: String) -> EmbeddedFault {
        EmbeddedFault::Corrupt { path: self.path.clone(), offset: self.end, problem }
    }

    fn read(&mut self) -> Result<(), EmbeddedFault> {
        let length = self.file.metadata().map_err(io_fault("inspect", &self.path))?.len();
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        self.file.read_exact_at(&mut bytes, 0).map_err(io_fault("read", &self.path))?;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let Some(length) = rest.iter().position(|byte| *byte == b'\n') else {
                self.tail = Tail::Torn;
                return Ok(());
            };
            let (line, after) = (&rest[..length], &rest[length + 1..]);
            match self.chain.read(line) {
                Ok((record, chain)) => self.apply(record, chain, length as u64 + 1)?,
                // A power failure leaves holes, which read as zeros. Only the last line can be incomplete.
                Err(_) if after.is_empty() && line.contains(&0) => {
                    self.tail = Tail::Torn;
                    return Ok(());
                }
                Err(problem) => return Err(self.corrupt(problem)),
            }
            rest = after;
        }
        Ok(())
    }

    fn apply(
        &mut self,
        record: EmbeddedRecord,
        chain: LineChecksum,
        length: u64,
    ) -> Result<(), EmbeddedFault> {
        let is_snapshot = !matches!(record, EmbeddedRecord::Commit { .. });
        self.state.apply(record).map_err(|error| match error {
            ApplyError::Newer(format) => EmbeddedFault::Newer { path: self.path.clone(), format },
            ApplyError::Problem(problem) => self.corrupt(problem),
        })?;
        self.end += length;
        self.chain = chain;
        if is_snapshot {
            self.base = self.end;
        }
        Ok(())
    }

    /// Appends and applies a commit. If the write fails, it is undone.
    ///
    /// Leases expire at the next boot, so their records are not flushed to disk.
    pub(super) fn append(
        &mut self,
        steps: Vec<RecordedChange>,
        durability: Durability,
    ) -> Result<u64, EmbeddedFault> {
        // Compacts before the write, so that a watch that is up to date misses no event.
        self.rewrite_if_due()?;
        if self.tail == Tail::Torn {
            self.file.set_len(self.end).map_err(io_fault("truncate", &self.path))?;
            self.tail = Tail::Clean;
        }
        let revision = self.state.next_revision(&steps);
        let record = EmbeddedRecord::Commit { revision, steps };
        let (line, chain) = self.chain.write(&record).map_err(io_fault("write", &self.path))?;
        let written = self.file.write_all_at(&line, self.end).and_then(|()| match durability {
            Durability::Disk => self.file.sync_data(),
            Durability::Boot => Ok(()),
        });
        if let Err(error) = written {
            // If this fails, too, the next write truncates the line. If the line is complete, the commit has happened.
            if let Err(error) = self.file.set_len(self.end) {
                tracing::warn!(path = %self.path.display(), %error, "cannot truncate the store's log after a failed write");
            }
            return Err(io_fault("write", &self.path)(error));
        }
        self.apply(record, chain, line.len() as u64)?;
        Ok(revision)
    }

    /// Rewrites the log from memory if most of it is obsolete, or if another program removed or changed it.
    fn rewrite_if_due(&mut self) -> Result<(), EmbeddedFault> {
        let is_intact = self.is_intact()?;
        let is_long =
            self.end > MIN_COMPACTION_SIZE && self.end > GARBAGE_FACTOR * self.base.max(self.state.size());
        if is_intact && !is_long {
            return Ok(());
        }
        if !is_intact {
            tracing::warn!(path = %self.path.display(), "another program changed the store's log; rewriting it");
        }
        let written = match snapshot::write(&self.path, &self.state, self.state.revision) {
            Ok(written) => written,
            // On a full disk the old log may still have space for a line. The failure may also come after the rename.
            Err(fault) if is_intact && self.is_intact()? => {
                let error = fault.into_error(Operation::new("compact", self.path.display().to_string()));
                tracing::warn!(%error, "cannot compact the store's log; appending to it");
                return Ok(());
            }
            Err(fault) => return Err(fault),
        };
        self.state.forget_history();
        (self.file, self.end, self.base) = (written.file, written.end, written.end);
        (self.chain, self.tail) = (written.chain, Tail::Clean);
        Ok(())
    }

    /// Removes expired leases and their keys.
    pub(super) fn expire_leases(&mut self) -> Result<(), EmbeddedFault> {
        let mut expired: Vec<LeaseId> = Vec::new();
        for (id, lease) in &self.state.leases {
            if lease.remaining()?.is_none() {
                expired.push(*id);
            }
        }
        if expired.is_empty() {
            return Ok(());
        }
        let steps = self.state.expiry_changes(&expired);
        self.append(steps, Durability::Disk)?;
        Ok(())
    }
}
