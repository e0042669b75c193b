//! A file that says that the table of policies is this agent's. Another agent in the same network namespace may have applied it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const FILE: &str = "policies-enforced";

/// Exists from before the table is applied until it was removed.
#[derive(Debug)]
pub(super) struct TableMarker {
    path: PathBuf,
}

impl TableMarker {
    pub(super) fn new(run_dir: &Path) -> Self {
        Self { path: run_dir.join(FILE) }
    }

    pub(super) fn is_set(&self) -> io::Result<bool> {
        self.path.try_exists()
    }

    pub(super) fn set(&self) -> io::Result<()> {
        if self.is_set()? { Ok(()) } else { fs::write(&self.path, "") }
    }

    pub(super) fn clear(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_set_until_it_is_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let is_set = || TableMarker::new(dir.path()).is_set().unwrap();
        assert!(!is_set());
        for _ in 0..2 {
            TableMarker::new(dir.path()).set().unwrap();
            assert!(is_set());
        }
        for _ in 0..2 {
            TableMarker::new(dir.path()).clear().unwrap();
            assert!(!is_set());
        }
    }
}
