//! One agent per run folder: the file `agent.lock`, locked as long as the agent lives.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("cannot {operation} {}: {source}", path.display())]
    Io { operation: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "another agent (process {holder}) works in {}: stop it, or give this one a run folder of its own (--run-dir)",
        dir.display()
    )]
    Taken { dir: PathBuf, holder: String },
}

/// Given back by the kernel when this process ends, however it ends.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Makes the folder if it is not there.
    pub(crate) fn take(run_dir: &Path) -> Result<Self, LockError> {
        let failed = |operation, path: &Path| {
            let path = path.to_owned();
            move |source| LockError::Io { operation, path, source }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(run_dir).map_err(failed("make", run_dir))?;
        let path = run_dir.join("agent.lock");
        let mut options = File::options();
        let file = options.create(true).read(true).write(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(failed("open", &path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                // Only for the message; it may have changed by now.
                let holder = fs::read_to_string(&path).unwrap_or_default().trim().to_owned();
                return Err(LockError::Taken { dir: run_dir.to_owned(), holder });
            }
            Err(errno) => return Err(failed("lock", &path)(errno.into())),
        }
        // Who holds it, for people and for the message above. A full disk is no reason not to start.
        let _ =
            file.set_len(0).and_then(|()| file.write_all_at(std::process::id().to_string().as_bytes(), 0));
        Ok(Self { file, path })
    }

    /// Somebody removed the file or the whole folder: another agent could start beside us.
    pub(crate) fn is_lost(&self) -> bool {
        let ours = self.file.metadata().map(|m| (m.dev(), m.ino())).ok();
        let named = fs::metadata(&self.path).map(|m| (m.dev(), m.ino())).ok();
        named.is_none() || named != ours
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_agent_is_told_who_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let lock = Lock::take(&run).unwrap();
        let error = Lock::take(&run).unwrap_err().to_string();
        assert!(error.contains(&std::process::id().to_string()) && error.contains("--run-dir"), "{error}");
        drop(lock);
        Lock::take(&run).unwrap();
    }

    #[test]
    fn a_removed_folder_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let lock = Lock::take(&run).unwrap();
        assert!(!lock.is_lost());
        fs::remove_dir_all(&run).unwrap();
        assert!(lock.is_lost());
        let again = Lock::take(&run).unwrap();
        assert!(lock.is_lost() && !again.is_lost());
    }
}
