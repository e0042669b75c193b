//! The log: read once, and appended to by its owner.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use files::{Durability, optional};

use super::fault::{EmbeddedFault, io_fault};
use super::record::{EmbeddedRecord, LineChecksum, RecordedChange};
use super::snapshot;
use super::state::{EmbeddedState, Unfit};
use crate::error::Operation;
use crate::types::LeaseId;

/// A smaller log is not worth the trouble.
const WORTH_IT: u64 = 1 << 20;
/// So many times what lives is mostly dead.
const MOSTLY_DEAD: u64 = 4;

#[derive(Debug)]
pub(super) struct EmbeddedLog {
    path: PathBuf,
    file: File,
    /// Of the last good line.
    end: u64,
    /// Of the snapshot.
    base: u64,
    chain: LineChecksum,
    tail: Tail,
    /// Differs between stores that had the same directory one after the other.
    pub(super) generation: u64,
    pub(super) state: EmbeddedState,
}

/// What follows the last good line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tail {
    Nothing,
    /// Somebody was killed, or the power went, while it was written. It was never confirmed to anybody.
    Torn,
}

impl EmbeddedLog {
    /// Reads the log, or begins one.
    pub(super) fn open(dir: &Path, generation: u64) -> Result<Self, EmbeddedFault> {
        let path = dir.join("log");
        let opened = optional(files::open(&path, File::options().read(true).write(true)));
        let file = match opened.map_err(io_fault("open", &path))? {
            Some(file) => file,
            None => snapshot::write(&path, &EmbeddedState::empty(), 0)?.file,
        };
        let (chain, state) = (LineChecksum::default(), EmbeddedState::default());
        let mut log = Self { path, file, end: 0, base: 0, chain, tail: Tail::Nothing, generation, state };
        log.read()?;
        if log.state.revision == 0 {
            return Err(log.damaged("it has no beginning".to_owned()));
        }
        Ok(log)
    }

    /// Whether the file is still the log, with all that was written and nothing else.
    fn is_intact(&self) -> Result<bool, EmbeddedFault> {
        let failed = || io_fault("inspect", &self.path);
        let own = self.file.metadata().map_err(failed())?;
        let Some(named) = optional(fs::metadata(&self.path)).map_err(failed())? else { return Ok(false) };
        let is_whole = match self.tail {
            Tail::Nothing => named.len() == self.end,
            Tail::Torn => named.len() >= self.end,
        };
        Ok(is_whole && (own.dev(), own.ino()) == (named.dev(), named.ino()))
    }

    fn damaged(&self, problem: String) -> EmbeddedFault {
        EmbeddedFault::Damaged { path: self.path.clone(), offset: self.end, problem }
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
                Ok((record, chain)) => self.take(record, chain, length as u64 + 1)?,
                // A power cut leaves holes, which read as zeros. Only the last line can have been under way.
                Err(_) if after.is_empty() && line.contains(&0) => {
                    self.tail = Tail::Torn;
                    return Ok(());
                }
                Err(problem) => return Err(self.damaged(problem)),
            }
            rest = after;
        }
        Ok(())
    }

    fn take(
        &mut self,
        record: EmbeddedRecord,
        chain: LineChecksum,
        length: u64,
    ) -> Result<(), EmbeddedFault> {
        let is_snapshot = !matches!(record, EmbeddedRecord::Commit { .. });
        self.state.apply(record).map_err(|unfit| match unfit {
            Unfit::Newer(format) => EmbeddedFault::Newer { path: self.path.clone(), format },
            Unfit::Problem(problem) => self.damaged(problem),
        })?;
        self.end += length;
        self.chain = chain;
        if is_snapshot {
            self.base = self.end;
        }
        Ok(())
    }

    /// Writes a commit, and makes it so. If it fails, nothing of it stays.
    ///
    /// Leases end at the next boot: their records need not be flushed to the disk.
    pub(super) fn append(
        &mut self,
        steps: Vec<RecordedChange>,
        durability: Durability,
    ) -> Result<u64, EmbeddedFault> {
        // Before, not after: a watcher that is up to date misses nothing by it.
        self.rewrite_if_due()?;
        if self.tail == Tail::Torn {
            self.file.set_len(self.end).map_err(io_fault("cut", &self.path))?;
            self.tail = Tail::Nothing;
        }
        let revision = self.state.next_revision(&steps);
        let record = EmbeddedRecord::Commit { revision, steps };
        let (line, chain) = self.chain.write(&record).map_err(io_fault("write", &self.path))?;
        let written = self.file.write_all_at(&line, self.end).and_then(|()| match durability {
            Durability::Disk => self.file.sync_data(),
            Durability::Boot => Ok(()),
        });
        if let Err(error) = written {
            // If this fails, too, the next who writes cuts it; or, where it is whole, it has happened after all.
            if let Err(error) = self.file.set_len(self.end) {
                tracing::warn!("cannot cut {} back after a failure: {error}", self.path.display());
            }
            return Err(io_fault("write", &self.path)(error));
        }
        self.take(record, chain, line.len() as u64)?;
        Ok(revision)
    }

    /// Rewrites the log from memory if most of it is obsolete, or if another program removed or changed it.
    fn rewrite_if_due(&mut self) -> Result<(), EmbeddedFault> {
        let is_intact = self.is_intact()?;
        let is_long = self.end > WORTH_IT && self.end > MOSTLY_DEAD * self.base.max(self.state.size());
        if is_intact && !is_long {
            return Ok(());
        }
        if !is_intact {
            tracing::warn!(
                "log of the store was changed by another program; rewriting path={}",
                self.path.display()
            );
        }
        let written = match snapshot::write(&self.path, &self.state, self.state.revision) {
            Ok(written) => written,
            // A full disk: the old log may still have room for one more line. It may also have failed after the rename.
            Err(fault) if is_intact && self.is_intact()? => {
                let error = fault.into_error(Operation::new("compact", self.path.display().to_string()));
                tracing::warn!("{error}");
                return Ok(());
            }
            Err(fault) => return Err(fault),
        };
        self.state.forget_history();
        (self.file, self.end, self.base) = (written.file, written.end, written.end);
        (self.chain, self.tail) = (written.chain, Tail::Nothing);
        Ok(())
    }

    /// Removes what hung on leases that ran out.
    pub(super) fn end_leases(&mut self) -> Result<(), EmbeddedFault> {
        let mut over: Vec<LeaseId> = Vec::new();
        for (id, lease) in &self.state.leases {
            if lease.left()?.is_none() {
                over.push(*id);
            }
        }
        if over.is_empty() {
            return Ok(());
        }
        let steps = self.state.end_of(&over);
        self.append(steps, Durability::Disk)?;
        Ok(())
    }
}
