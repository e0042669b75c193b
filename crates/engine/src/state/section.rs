//! The critical section of a network: its lock, and the mark that a killed holder leaves.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::file::{self, LOCK_TIMEOUT, StateError, io};
use super::network::NetworkState;
use super::repair::OrphanCheck;
use super::thread_lock::ThreadLockGuard;

/// The network's critical section. If it is dropped without `leave`, the mark stays, and the next process repairs the state.
pub(super) struct Section {
    file: File,
    path: PathBuf,
    /// Dropped after the file, because dropping the file releases the flock.
    _thread_lock: ThreadLockGuard,
}

impl Section {
    pub(super) fn leave(self) -> Result<(), StateError> {
        self.file.write_at(b"0", 0).map_err(io("unmark", &self.path)).map(drop)
    }
}

impl NetworkState {
    /// Enters the critical section. First repairs the state if a process was killed in it.
    pub(super) fn enter(&self) -> Result<Section, StateError> {
        let path = self.dir.join("lock");
        let busy = || StateError::Busy { path: path.clone(), waited: LOCK_TIMEOUT };
        let thread_lock = ThreadLockGuard::take(&path, LOCK_TIMEOUT).ok_or_else(busy)?;
        let file = files::open(&path, File::options().read(true).write(true)).map_err(io("open", &path))?;
        file::lock(&file, &path, LOCK_TIMEOUT)?;
        let mut mark = [0u8; 1];
        let read = file.read_at(&mut mark, 0).map_err(io("read", &path))?;
        if read == 1 && mark[0] == b'1' {
            self.repair(&OrphanCheck::FREE_NOTHING)?;
        }
        file.write_at(b"1", 0).map_err(io("mark", &path))?;
        Ok(Section { file, path, _thread_lock: thread_lock })
    }

    /// Repairs the state if a process was killed in the critical section. Every allocation and release does this too. This is
    /// for a caller that finds nothing to release.
    pub fn repair_if_marked(&self) -> Result<(), StateError> {
        let path = self.dir.join("lock");
        // Without a mark nothing is written, because a full or read-only file system would refuse it.
        match files::read(&path).map_err(io("read", &path))?.first() {
            Some(b'1') => self.enter()?.leave(),
            Some(_) | None => Ok(()),
        }
    }
}
