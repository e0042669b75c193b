//! The critical section of a network: the lock, and the mark that a killed holder leaves behind.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::file::{self, LOCK_TIMEOUT, StateError, io};
use super::gate::Pass;
use super::network::NetworkState;
use super::repair::Freeing;

/// The network's critical section; dropped without `leave`, it stays marked and the next one repairs.
pub(super) struct Section {
    file: File,
    path: PathBuf,
    /// Dropped after the file, whose lock goes with it.
    _pass: Pass,
}

impl Section {
    pub(super) fn leave(self) -> Result<(), StateError> {
        self.file.write_at(b"0", 0).map_err(io("unmark", &self.path)).map(drop)
    }
}

impl NetworkState {
    /// Enters the critical section; repairs first what a killed process left in it.
    pub(super) fn enter(&self) -> Result<Section, StateError> {
        let path = self.dir.join("lock");
        let busy = || StateError::Busy { path: path.clone(), waited: LOCK_TIMEOUT };
        let pass = Pass::take(&path, LOCK_TIMEOUT).ok_or_else(busy)?;
        let file = files::open(&path, File::options().read(true).write(true)).map_err(io("open", &path))?;
        file::lock(&file, &path, LOCK_TIMEOUT)?;
        let mut mark = [0u8; 1];
        let read = file.read_at(&mut mark, 0).map_err(io("read", &path))?;
        if read == 1 && mark[0] == b'1' {
            self.repair(&Freeing::NOTHING)?;
        }
        file.write_at(b"1", 0).map_err(io("mark", &path))?;
        Ok(Section { file, path, _pass: pass })
    }

    /// Repairs what a process left that was killed in the critical section. Every allocation and release does that; this is
    /// for a caller that finds nothing to release.
    pub fn settle(&self) -> Result<(), StateError> {
        let path = self.dir.join("lock");
        // Where nothing is marked nothing needs to be written, which a full or read-only disk would refuse.
        match files::read(&path).map_err(io("read", &path))?.first() {
            Some(b'1') => self.enter()?.leave(),
            Some(_) | None => Ok(()),
        }
    }
}
