//! The log: read up to its end, and appended to. All of this happens under the lock.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::fault::{Fault, io_fault};
use super::file;
use super::record::{Chain, Record, Step};
use super::snapshot;
use super::state::{State, Unfit};
use crate::error::Operation;
use crate::types::LeaseId;

/// A smaller log is not worth the trouble.
const WORTH_IT: u64 = 1 << 20;
/// So many times what lives is mostly dead.
const MOSTLY_DEAD: u64 = 4;

#[derive(Debug)]
pub(super) struct Log {
    dir: PathBuf,
    path: PathBuf,
    file: File,
    /// Of the last good line.
    end: u64,
    /// Of the snapshot.
    base: u64,
    chain: Chain,
    tail: Tail,
    pub(super) state: State,
}

/// What follows the last good line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tail {
    Nothing,
    /// Somebody was killed, or the power went, while it was written. It was never confirmed to anybody.
    Torn,
}

/// What is there to be done about a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// On the disk before it is confirmed.
    Durable,
    /// For leases: they do not outlive the boot anyhow.
    Boot,
}

impl Log {
    /// What was read before, if it is still the log, with what was appended since; else all of it.
    pub(super) fn refresh(known: Option<Self>, dir: &Path) -> Result<Self, Fault> {
        let path = dir.join("log");
        if let Some(mut known) = known
            && known.is_current()?
        {
            known.read_on()?;
            return Ok(known);
        }
        let file = match file::open(&path)? {
            Some(file) => file,
            None => snapshot::write(dir, &State::empty(), 0)?.file,
        };
        let (chain, state) = (Chain::default(), State::default());
        let mut log =
            Self { dir: dir.to_owned(), path, file, end: 0, base: 0, chain, tail: Tail::Nothing, state };
        log.read_on()?;
        if log.state.revision == 0 {
            return Err(log.damaged("it has no beginning".to_owned()));
        }
        Ok(log)
    }

    /// Is our file still the one with the name?
    fn is_current(&self) -> Result<bool, Fault> {
        let ours = self.file.metadata().map_err(io_fault("look at", &self.path))?;
        match fs::metadata(&self.path) {
            Ok(named) => {
                let same = (ours.dev(), ours.ino()) == (named.dev(), named.ino());
                Ok(same && named.len() >= self.end)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(io_fault("look at", &self.path)(error)),
        }
    }

    fn damaged(&self, problem: String) -> Fault {
        Fault::Damaged { path: self.path.clone(), offset: self.end, problem }
    }

    fn read_on(&mut self) -> Result<(), Fault> {
        let length = self.file.metadata().map_err(io_fault("look at", &self.path))?.len();
        self.tail = Tail::Nothing;
        if length == self.end {
            return Ok(());
        }
        let size = usize::try_from(length.saturating_sub(self.end)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; size];
        self.file.read_exact_at(&mut bytes, self.end).map_err(io_fault("read", &self.path))?;
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

    fn take(&mut self, record: Record, chain: Chain, length: u64) -> Result<(), Fault> {
        let is_snapshot = !matches!(record, Record::Commit { .. });
        self.state.apply(record).map_err(|unfit| match unfit {
            Unfit::Newer(format) => Fault::Newer { path: self.path.clone(), format },
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
    pub(super) fn append(&mut self, steps: Vec<Step>, keep: Keep) -> Result<u64, Fault> {
        // Before, not after: a watcher that is up to date misses nothing by it.
        self.compact_if_due()?;
        if self.tail == Tail::Torn {
            self.file.set_len(self.end).map_err(io_fault("cut", &self.path))?;
            self.tail = Tail::Nothing;
        }
        let revision = self.state.next_revision(&steps);
        let record = Record::Commit { revision, steps };
        let (line, chain) = self.chain.write(&record).map_err(io_fault("write", &self.path))?;
        let written = self.file.write_all_at(&line, self.end).and_then(|()| match keep {
            Keep::Durable => self.file.sync_data(),
            Keep::Boot => Ok(()),
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

    fn compact_if_due(&mut self) -> Result<(), Fault> {
        if self.end <= WORTH_IT || self.end <= MOSTLY_DEAD * self.base.max(self.state.size()) {
            return Ok(());
        }
        let written = match snapshot::write(&self.dir, &self.state, self.state.revision) {
            Ok(written) => written,
            // A full disk: the old log may still have room for one more line.
            Err(fault) if self.is_current()? => {
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
    pub(super) fn end_leases(&mut self) -> Result<(), Fault> {
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
        self.append(steps, Keep::Durable)?;
        Ok(())
    }
}
