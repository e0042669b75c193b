//! The run directories in use in one network namespace. Processes with different run directories do not see each other's claims.
//! While there are several, an ADD compares its addresses with the aliases of all links.
//!
//! `/run/podwire-locks/dirs-COOKIE/HASH` is a symlink to a run directory. A process adds its own after it created its pod's link,
//! and then lists the others. If two ADDs with different run directories run concurrently, at least one detects the other.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use types::Digest;

use super::RecordPhase;

/// The directory that processes with different run directories share: locks of networks, and the entries of run directories.
pub const LOCKS: &str = "/run/podwire-locks";
const PREFIX: &str = "dirs-";
/// Another process may remove the directory before this one adds its entry.
const ATTEMPTS: usize = 8;

/// The run directories of one network namespace.
#[derive(Debug)]
pub struct RunDirs {
    dir: PathBuf,
    own_name: String,
    run_dir: PathBuf,
}

impl RunDirs {
    /// `namespace` is the cookie of the network namespace.
    pub fn new(namespace: u64, run_dir: &Path) -> Self {
        Self::within(Path::new(LOCKS), namespace, run_dir)
    }

    fn within(locks: &Path, namespace: u64, run_dir: &Path) -> Self {
        Self {
            dir: locks.join(format!("{PREFIX}{namespace}")),
            own_name: Digest::of(&[&run_dir.to_string_lossy()]).base32(16),
            run_dir: run_dir.to_owned(),
        }
    }

    /// Whether another run directory is in use. True if this cannot be determined.
    pub(crate) fn has_other_run_dirs(&self) -> bool {
        self.find_other_run_dirs().unwrap_or(true)
    }

    fn find_other_run_dirs(&self) -> io::Result<bool> {
        let mut names = names(&self.dir)?;
        if !names.contains(&self.own_name) {
            self.register()?;
            names = self::names(&self.dir)?;
        }
        let mut other_names = names.iter().filter(|name| **name != self.own_name);
        Ok(other_names.any(|name| !remove_if_stale(&self.dir.join(name))))
    }

    /// Whether another run directory in use has the record of an attachment. `network` is the directory of its network, `stem` the
    /// stem of the record's file name. True if this cannot be determined.
    pub(crate) fn is_recorded_elsewhere(&self, network: &str, stem: &str) -> bool {
        let Ok(names) = names(&self.dir) else { return true };
        let other_names = names.iter().filter(|name| **name != self.own_name);
        let has_record = |name: &String| {
            let network = self.dir.join(name).join("networks").join(network);
            [RecordPhase::Ready, RecordPhase::Pending].iter().any(|phase| {
                let record = network.join("attachments").join(format!("{stem}{}", phase.suffix()));
                record.try_exists().unwrap_or(true)
            })
        };
        other_names.into_iter().any(has_record)
    }

    /// The agent calls this at its start, so that other processes check for its pods. Its own ADDs do not call
    /// [`Self::has_other_run_dirs`]: they only look up routes to their addresses.
    pub fn register(&self) -> io::Result<()> {
        let mut added = self.add();
        if added.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            self.remove_abandoned();
        }
        for _ in 0..ATTEMPTS {
            match added {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
                    added = self.add();
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),
                done => return done,
            }
        }
        added
    }

    fn add(&self) -> io::Result<()> {
        symlink(&self.run_dir, self.dir.join(&self.own_name))
    }

    /// Removes entries of namespaces if their run directories do not exist. Entries that cannot be removed do no harm.
    fn remove_abandoned(&self) {
        let locks = self.dir.parent().and_then(|locks| fs::read_dir(locks).ok());
        let entries = locks.into_iter().flatten().flatten().map(|entry| entry.path());
        let is_other_namespace = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
                && *path != self.dir
        };
        for dir in entries.filter(is_other_namespace) {
            for name in names(&dir).unwrap_or_default() {
                remove_if_stale(&dir.join(name));
            }
            // Fails if the directory is not empty.
            let _ = fs::remove_dir(&dir);
        }
    }

    /// Removes this run directory's entry.
    pub(crate) fn forget(&self) -> io::Result<()> {
        match fs::remove_file(self.dir.join(&self.own_name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        // Fails if the directory is not empty.
        let _ = fs::remove_dir(&self.dir);
        Ok(())
    }
}

fn names(dir: &Path) -> io::Result<Vec<String>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect(),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Removes the entry of a run directory that does not exist. Returns whether it was removed.
fn remove_if_stale(entry: &Path) -> bool {
    match fs::metadata(entry) {
        Err(error) if error.kind() == ErrorKind::NotFound => fs::remove_file(entry).is_ok(),
        Ok(_) | Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_directories_are_detected_per_namespace_while_they_exist() {
        let dir = tempfile::tempdir().unwrap();
        let locks = dir.path().join("locks");
        let of = |namespace: u64, name: &str| {
            let run_dir = dir.path().join(name);
            fs::create_dir_all(&run_dir).unwrap();
            RunDirs::within(&locks, namespace, &run_dir)
        };
        let (a, b, other_namespace) = (of(1, "a"), of(1, "b"), of(2, "c"));
        assert!(!a.has_other_run_dirs());
        assert!(!a.has_other_run_dirs(), "its own run directory does not count");
        assert!(!other_namespace.has_other_run_dirs());
        assert!(b.has_other_run_dirs() && a.has_other_run_dirs());
        let records = dir.path().join("a/networks/red/attachments");
        fs::create_dir_all(&records).unwrap();
        for phase in [".pending", ".ready"] {
            fs::write(records.join(format!("c1@eth0{phase}")), "").unwrap();
            assert!(b.is_recorded_elsewhere("red", "c1@eth0"), "{phase}");
            assert!(!a.is_recorded_elsewhere("red", "c1@eth0"), "its own record does not count");
            assert!(
                !b.is_recorded_elsewhere("blue", "c1@eth0") && !b.is_recorded_elsewhere("red", "c1@eth1")
            );
            fs::remove_file(records.join(format!("c1@eth0{phase}"))).unwrap();
        }
        assert!(!b.is_recorded_elsewhere("red", "c1@eth0"));
        fs::remove_dir_all(dir.path().join("a")).unwrap();
        assert!(!b.has_other_run_dirs(), "a removed run directory does not count");
        b.forget().unwrap();
        b.forget().unwrap();
        assert!(!locks.join("dirs-1").exists());
        // The first process in another namespace removes the entries of a namespace without run directories.
        fs::remove_dir(dir.path().join("c")).unwrap();
        assert!(!of(3, "d").has_other_run_dirs());
        assert!(!locks.join("dirs-2").exists());
        // An unreadable entry counts as another run directory.
        fs::write(locks.join("dirs-4"), "").unwrap();
        assert!(of(4, "e").has_other_run_dirs() && of(4, "e").is_recorded_elsewhere("red", "c1@eth0"));
    }
}
