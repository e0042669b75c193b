//! A lock file that a process holds until it exits. It contains a description of the holder.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::dir::{check_dir, create_dir};
use crate::open::{open, read_text};

/// Retries if the file is removed between open and lock.
const ATTEMPTS: usize = 16;
/// After a process was killed, a child between fork and exec may still hold the lock for a moment.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause between attempts while the lock is held.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {}: {source}", path.display())]
pub struct LockFailed {
    pub operation: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

/// The outcome of [`LockFile::take`].
#[derive(Debug)]
pub enum Attempt {
    Locked(LockFile),
    /// Another process holds the lock. Contains its description.
    Held(String),
}

/// The kernel releases the lock when this is dropped or the process exits.
#[derive(Debug)]
pub struct LockFile {
    file: File,
    path: PathBuf,
}

impl LockFile {
    /// Creates the directory if it does not exist. `holder` describes this process to other processes.
    pub fn take(dir: &Path, name: &str, holder: &str) -> Result<Attempt, LockFailed> {
        let deadline = Instant::now() + RELEASE_TIMEOUT;
        let mut attempts = 0;
        while attempts < ATTEMPTS {
            match Self::try_take(dir, name, holder) {
                Ok(Attempt::Held(_)) if Instant::now() < deadline => {
                    std::thread::sleep(RETRY_INTERVAL);
                    continue;
                }
                // The file was removed before it was locked: the next process would lock a different file.
                Ok(Attempt::Locked(lock)) if lock.is_lost() => {}
                // The directory was removed after it was created.
                Err(LockFailed { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                attempt => return attempt,
            }
            attempts += 1;
        }
        let source = io::Error::other("another process keeps removing it");
        Err(LockFailed { operation: "lock", path: dir.join(name), source })
    }

    fn try_take(dir: &Path, name: &str, holder: &str) -> Result<Attempt, LockFailed> {
        let failed = |operation, path: &Path| {
            let path = path.to_owned();
            move |source| LockFailed { operation, path, source }
        };
        create_dir(dir).map_err(failed("create", dir))?;
        check_dir(dir).map_err(|error| failed("use", dir)(io::Error::other(error)))?;
        let path = dir.join(name);
        let mut options = File::options();
        let file = open(&path, options.create(true).read(true).write(true).truncate(false).mode(0o600));
        let file = file.map_err(failed("open", &path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(Attempt::Held(holder_in(&path))),
            Err(errno) => return Err(failed("lock", &path)(errno.into())),
        }
        // The description is only used in messages, so a full disk must not fail the lock.
        let _ = file.set_len(0).and_then(|()| file.write_all_at(holder.as_bytes(), 0));
        Ok(Attempt::Locked(Self { file, path }))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file or its directory was removed. Another process could then take the lock, too.
    pub fn is_lost(&self) -> bool {
        let own = self.file.metadata().map(|m| (m.dev(), m.ino())).ok();
        let named = fs::metadata(&self.path).map(|m| (m.dev(), m.ino())).ok();
        named.is_none() || named != own
    }

    /// The description of the process that holds this lock, if any. Creates no file.
    pub fn holder(path: &Path) -> Option<String> {
        let file = open(path, File::options().read(true)).ok()?;
        let locked = flock(&file, FlockOperation::NonBlockingLockShared);
        (locked == Err(Errno::WOULDBLOCK)).then(|| holder_in(path))
    }

    /// Removes all other lock files in this directory that no process holds. Errors are ignored: such files are harmless.
    pub fn remove_abandoned(&self) {
        let entries = self.path.parent().and_then(|dir| fs::read_dir(dir).ok()).into_iter().flatten();
        for path in entries.flatten().map(|entry| entry.path()).filter(|path| *path != self.path) {
            let Ok(file) = open(&path, File::options().read(true)) else { continue };
            let other = Self { file, path };
            if flock(&other.file, FlockOperation::NonBlockingLockExclusive).is_ok() && !other.is_lost() {
                let _ = fs::remove_file(&other.path);
            }
        }
    }
}

/// For messages only: the holder may have changed since the lock was tried.
fn holder_in(path: &Path) -> String {
    read_text(path).unwrap_or_default().trim().to_owned()
}
