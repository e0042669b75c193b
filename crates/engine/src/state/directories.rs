//! The run directories that are in use in one network namespace. Processes with different run directories know nothing of each
//! other's claims: while there are several, an ADD compares its addresses with the aliases of all links.
//!
//! `/run/podwire-locks/dirs-COOKIE/HASH` is a symlink to a run directory. A process adds its own when its pod's link exists, and
//! lists them afterwards: of two ADDs at the same time with different run directories, at least one finds the other.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use types::Digest;

use super::RecordPhase;

/// Does not depend on the run directory.
pub const LOCKS: &str = "/run/podwire-locks";
const PREFIX: &str = "dirs-";
/// Another process may remove the directory before an entry is in it.
const TRIES: usize = 8;

/// The run directories of one network namespace.
#[derive(Debug)]
pub struct RunDirs {
    dir: PathBuf,
    own: String,
    run_dir: PathBuf,
}

impl RunDirs {
    /// `namespace`: its cookie.
    pub fn new(namespace: u64, run_dir: &Path) -> Self {
        Self::within(Path::new(LOCKS), namespace, run_dir)
    }

    fn within(locks: &Path, namespace: u64, run_dir: &Path) -> Self {
        Self {
            dir: locks.join(format!("{PREFIX}{namespace}")),
            own: Digest::of(&[&run_dir.to_string_lossy()]).base32(16),
            run_dir: run_dir.to_owned(),
        }
    }

    /// Whether another run directory is in use. True if that cannot be known.
    pub(crate) fn has_others(&self) -> bool {
        self.find_others().unwrap_or(true)
    }

    fn find_others(&self) -> io::Result<bool> {
        let mut names = names(&self.dir)?;
        if !names.contains(&self.own) {
            self.register()?;
            names = self::names(&self.dir)?;
        }
        let mut others = names.iter().filter(|name| **name != self.own);
        Ok(others.any(|name| !removed_if_stale(&self.dir.join(name))))
    }

    /// Whether another run directory in use has the record of an attachment: `network` is the directory of its network, `stem`
    /// the start of the record's file name. True if that cannot be known.
    pub(crate) fn is_recorded_elsewhere(&self, network: &str, stem: &str) -> bool {
        let Ok(names) = names(&self.dir) else { return true };
        let others = names.iter().filter(|name| **name != self.own);
        let has_record = |name: &String| {
            let network = self.dir.join(name).join("networks").join(network);
            [RecordPhase::Ready, RecordPhase::Pending].iter().any(|phase| {
                let record = network.join("attachments").join(format!("{stem}{}", phase.suffix()));
                record.try_exists().unwrap_or(true)
            })
        };
        others.into_iter().any(has_record)
    }

    /// An agent does so when it starts: the ADDs of others find its pods. Its own ADDs look up routes only.
    pub fn register(&self) -> io::Result<()> {
        let mut added = self.add();
        if added.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            self.remove_abandoned();
        }
        for _ in 0..TRIES {
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
        symlink(&self.run_dir, self.dir.join(&self.own))
    }

    /// Removes the entries of namespaces whose run directories are gone. Entries that cannot be removed do no harm.
    fn remove_abandoned(&self) {
        let locks = self.dir.parent().and_then(|locks| fs::read_dir(locks).ok());
        let others = locks.into_iter().flatten().flatten().map(|entry| entry.path());
        let is_one = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
                && *path != self.dir
        };
        for dir in others.filter(is_one) {
            for name in names(&dir).unwrap_or_default() {
                removed_if_stale(&dir.join(name));
            }
            // Fails while an entry is left.
            let _ = fs::remove_dir(&dir);
        }
    }

    /// Removes this run directory's entry.
    pub(crate) fn forget(&self) -> io::Result<()> {
        match fs::remove_file(self.dir.join(&self.own)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        // Fails while another entry is left.
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

/// Removes the entry of a run directory that is gone.
fn removed_if_stale(entry: &Path) -> bool {
    match fs::metadata(entry) {
        Err(error) if error.kind() == ErrorKind::NotFound => fs::remove_file(entry).is_ok(),
        Ok(_) | Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_directories_find_each_other_only_in_one_namespace_and_only_while_they_exist() {
        let dir = tempfile::tempdir().unwrap();
        let locks = dir.path().join("locks");
        let of = |namespace: u64, name: &str| {
            let run_dir = dir.path().join(name);
            fs::create_dir_all(&run_dir).unwrap();
            RunDirs::within(&locks, namespace, &run_dir)
        };
        let (a, b, elsewhere) = (of(1, "a"), of(1, "b"), of(2, "c"));
        assert!(!a.has_others());
        assert!(!a.has_others(), "its own is no other");
        assert!(!elsewhere.has_others());
        assert!(b.has_others() && a.has_others());
        let records = dir.path().join("a/networks/red/attachments");
        fs::create_dir_all(&records).unwrap();
        for phase in [".pending", ".ready"] {
            fs::write(records.join(format!("c1@eth0{phase}")), "").unwrap();
            assert!(b.is_recorded_elsewhere("red", "c1@eth0"), "{phase}");
            assert!(!a.is_recorded_elsewhere("red", "c1@eth0"), "the record is its own");
            assert!(
                !b.is_recorded_elsewhere("blue", "c1@eth0") && !b.is_recorded_elsewhere("red", "c1@eth1")
            );
            fs::remove_file(records.join(format!("c1@eth0{phase}"))).unwrap();
        }
        assert!(!b.is_recorded_elsewhere("red", "c1@eth0"));
        fs::remove_dir_all(dir.path().join("a")).unwrap();
        assert!(!b.has_others(), "a run directory that is gone is none");
        b.forget().unwrap();
        b.forget().unwrap();
        assert!(!locks.join("dirs-1").exists());
        // The namespace of a run directory that is gone is removed by the first process of another one.
        fs::remove_dir(dir.path().join("c")).unwrap();
        assert!(!of(3, "d").has_others());
        assert!(!locks.join("dirs-2").exists());
        // What cannot be read may be another one.
        fs::write(locks.join("dirs-4"), "").unwrap();
        assert!(of(4, "e").has_others() && of(4, "e").is_recorded_elsewhere("red", "c1@eth0"));
    }
}
