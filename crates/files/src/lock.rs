//! A lock file that a process holds for as long as it lives. It contains what the holder wrote about itself.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::dir::{check_dir, create_dir};
use crate::open::{open, read_text};

/// How often a file that is removed between open and lock is opened again.
const ATTEMPTS: usize = 16;
/// A program that a killed process was about to start holds its locks until it runs.
const RELEASE: Duration = Duration::from_secs(1);
/// How often a lock that is held is tried meanwhile.
const PAUSE: Duration = Duration::from_millis(20);

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
    /// By another process, which wrote this about itself.
    Held(String),
}

/// The kernel releases the lock when this is dropped or the process ends.
#[derive(Debug)]
pub struct LockFile {
    file: File,
    path: PathBuf,
}

impl LockFile {
    /// Makes the directory if it does not exist. `holder`: how this process is named to others.
    pub fn take(dir: &Path, name: &str, holder: &str) -> Result<Attempt, LockFailed> {
        let deadline = Instant::now() + RELEASE;
        let mut attempts = 0;
        while attempts < ATTEMPTS {
            match Self::try_take(dir, name, holder) {
                Ok(Attempt::Held(_)) if Instant::now() < deadline => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                // Removed before it was locked: the next process would lock another file.
                Ok(Attempt::Locked(lock)) if lock.is_lost() => {}
                // The directory was removed after it was made.
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
        create_dir(dir).map_err(failed("make", dir))?;
        check_dir(dir).map_err(|error| failed("use", dir)(io::Error::other(error)))?;
        let path = dir.join(name);
        let mut options = File::options();
        let file = open(&path, options.create(true).read(true).write(true).truncate(false).mode(0o600));
        let file = file.map_err(failed("open", &path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(Attempt::Held(named_in(&path))),
            Err(errno) => return Err(failed("lock", &path)(errno.into())),
        }
        // For messages only. A full disk is no reason not to start.
        let _ = file.set_len(0).and_then(|()| file.write_all_at(holder.as_bytes(), 0));
        Ok(Attempt::Locked(Self { file, path }))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file or its directory was removed: another process could take the lock too.
    pub fn is_lost(&self) -> bool {
        let own = self.file.metadata().map(|m| (m.dev(), m.ino())).ok();
        let named = fs::metadata(&self.path).map(|m| (m.dev(), m.ino())).ok();
        named.is_none() || named != own
    }

    /// The process that holds this lock, if one does. Makes nothing.
    pub fn holder(path: &Path) -> Option<String> {
        let file = open(path, File::options().read(true)).ok()?;
        let free = flock(&file, FlockOperation::NonBlockingLockShared);
        (free == Err(Errno::WOULDBLOCK)).then(|| named_in(path))
    }

    /// Removes the other lock files of this directory that no process holds. One that cannot be removed is harmless.
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

/// Only for messages; it may have changed by now.
fn named_in(path: &Path) -> String {
    read_text(path).unwrap_or_default().trim().to_owned()
}
