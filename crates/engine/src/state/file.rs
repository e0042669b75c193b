//! File helpers: errors with path and operation, and locks with a timeout.

use std::fs::{File, TryLockError};
use std::io::{Error as IoError, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("cannot {op} {}", path.display())]
    Io { op: &'static str, path: PathBuf, source: IoError },
    #[error("{} was locked by another process for more than {waited:?}", path.display())]
    Busy { path: PathBuf, waited: Duration },
    #[error("no free address left in {ranges}: {in_use} of {capacity} in use")]
    Exhausted { ranges: String, in_use: u64, capacity: u64 },
    #[error("address {address} is already taken by {holder}")]
    Taken { address: std::net::IpAddr, holder: String },
    #[error("{} is not a state directory of Podwire: it contains {entry}; set runDir (with an agent: run_dir) to another directory", dir.display())]
    Unmanaged { dir: PathBuf, entry: String },
    #[error("cannot remove connections of former owners of {range} from the kernel: {reason}")]
    FormerOwner { range: String, reason: String },
    #[error("the state directory is not safe: {0}")]
    Unsafe(#[from] files::UnsafeDir),
    #[error("{} was written by a newer version of Podwire (schema {schema}) and is not overwritten", path.display())]
    Newer { path: PathBuf, schema: u32 },
    #[error(transparent)]
    Request(ipam::RequestError),
}

impl StateError {
    /// The message, including the error of the system call.
    pub fn with_cause(&self) -> String {
        match self {
            Self::Io { source, .. } => format!("{self}: {}", types::cause(source)),
            Self::Busy { .. }
            | Self::Exhausted { .. }
            | Self::Taken { .. }
            | Self::Unmanaged { .. }
            | Self::FormerOwner { .. }
            | Self::Unsafe(_)
            | Self::Newer { .. }
            | Self::Request(_) => self.to_string(),
        }
    }

    /// Whether the file system is full. The operator gets a specific message for it.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Io { source, .. } => {
                matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
            }
            Self::Busy { .. }
            | Self::Exhausted { .. }
            | Self::Taken { .. }
            | Self::Unmanaged { .. }
            | Self::FormerOwner { .. }
            | Self::Unsafe(_)
            | Self::Newer { .. }
            | Self::Request(_) => false,
        }
    }
}

/// For `map_err`: adds the operation and the path.
pub(super) fn io<'a>(op: &'static str, path: &'a Path) -> impl FnOnce(IoError) -> StateError + 'a {
    move |source| StateError::Io { op, path: path.to_owned(), source }
}

/// `Ok(None)` if the path does not exist. Unlike [`files::optional`], a path component that is not a directory is an error: its
/// former content is unknown and must not count as removed.
pub(super) fn optional<T>(result: Result<T, IoError>) -> Result<Option<T>, IoError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn remove_if_exists(path: &Path) -> Result<(), StateError> {
    optional(std::fs::remove_file(path)).map_err(io("remove", path)).map(drop)
}

/// Removes a file, or a directory with its content.
pub(super) fn remove_any(path: &Path) -> Result<(), StateError> {
    let Some(meta) = optional(std::fs::symlink_metadata(path)).map_err(io("inspect", path))? else {
        return Ok(());
    };
    let removed = if meta.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    removed.map_err(io("remove", path))
}

/// The names in a directory. Empty if it does not exist.
pub(super) fn list(dir: &Path) -> Result<Vec<std::ffi::OsString>, StateError> {
    let Some(entries) = optional(std::fs::read_dir(dir)).map_err(io("list", dir))? else {
        return Ok(Vec::new());
    };
    entries.map(|entry| entry.map(|e| e.file_name()).map_err(io("list", dir))).collect()
}

/// A lock is never held for longer than a kernel operation takes. A stopped holder must not block the node.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Takes an exclusive lock. flock(2) has no timeout, so it is tried repeatedly.
pub(super) fn lock(file: &File, path: &Path, timeout: Duration) -> Result<(), StateError> {
    let start = Instant::now();
    let mut pause = Duration::from_micros(20);
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(source)) => return Err(io("lock", path)(source)),
            Err(TryLockError::WouldBlock) if start.elapsed() >= timeout => {
                return Err(StateError::Busy { path: path.to_owned(), waited: timeout });
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(Duration::from_millis(2));
    }
}
