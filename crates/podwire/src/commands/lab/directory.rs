//! Directories of labs. The lock in a directory serialises commands on the same lab.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use lab::SavedLab;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::hint;
use crate::exit::Usage;
use crate::print;

/// Not in /run, which is a tmpfs: an etcd member needs more than 100 MB.
const BASE: &str = "/var/lib/podwire-lab";
const LOCK: &str = "lock";
/// Longer than any command holds the lock.
const TIMEOUT: Duration = Duration::from_secs(120);
/// A command that waits longer says so.
const NOTE: Duration = Duration::from_secs(1);
/// Another command may remove the empty base directory while a lab is created in it.
const ATTEMPTS: usize = 10;

/// A lab that is locked for this process.
#[derive(Debug)]
pub(super) struct LockedLab {
    pub(super) saved: SavedLab,
    _lock: File,
}

/// The result of creating the directory of a lab.
#[derive(Debug)]
pub(super) enum CreateResult {
    Created(LockedLab),
    /// A lab with this name exists.
    Exists,
}

/// A lab by name. It need not exist.
pub(super) fn saved_lab(name: &str) -> Result<SavedLab> {
    let program = std::env::current_exe().context("cannot determine the path of this program")?;
    Ok(SavedLab::new(name, &Path::new(BASE).join(name), &program)
        .map_err(|error| Usage(error.to_string()))?)
}

/// Names of all labs that have a directory or a namespace.
pub(super) fn lab_names() -> Result<Vec<String>> {
    let mut names = SavedLab::names_in_kernel()?;
    match fs::read_dir(BASE) {
        Ok(entries) => {
            names.extend(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()));
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(e).with_context(|| format!("cannot list {BASE}")),
    }
    names.sort();
    names.dedup();
    Ok(names)
}

pub(super) fn create(saved: &SavedLab) -> Result<CreateResult> {
    for _ in 0..ATTEMPTS {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(BASE)
            .with_context(|| format!("cannot create directory {BASE}"))?;
        match fs::DirBuilder::new().mode(0o700).create(saved.dir()) {
            Ok(()) => {
                let held = lock(saved)?;
                return Ok(CreateResult::Created(held.with_context(|| removed_during_creation(saved))?));
            }
            Err(e) if e.kind() == ErrorKind::AlreadyExists => return Ok(CreateResult::Exists),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => {
                return Err(e).with_context(|| format!("cannot create directory {}", saved.dir().display()));
            }
        }
    }
    bail!("directory {} was removed repeatedly by other commands", saved.dir().display())
}

/// Waits for the lock of a lab. None if the lab does not exist.
pub(super) fn lock(saved: &SavedLab) -> Result<Option<LockedLab>> {
    let deadline = Instant::now() + TIMEOUT;
    let path = saved.dir().join(LOCK);
    loop {
        let file = match File::options().create(true).truncate(false).write(true).mode(0o600).open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).with_context(|| format!("cannot open {}", path.display())),
        };
        wait_for_lock(&file, saved, deadline)?;
        // The previous owner of the lock may have removed the lab, and another one may exist now, with another lock file.
        if is_same_file(&file, &path)? {
            return Ok(Some(LockedLab { saved: saved.clone(), _lock: file }));
        }
    }
}

/// Whether another command has locked the lab.
pub(super) fn is_locked(saved: &SavedLab) -> bool {
    let file = File::open(saved.dir().join(LOCK));
    file.is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK))
}

/// Locks a lab that must exist.
pub(super) fn lock_existing(name: &str) -> Result<LockedLab> {
    lock(&saved_lab(name)?)?.with_context(|| no_such_lab(name))
}

fn no_such_lab(name: &str) -> String {
    let labs = lab_names().unwrap_or_default();
    let hint = match labs.as_slice() {
        [] => format!("create one with '{}'", hint::command(name, "up --nodes 3")),
        names => {
            format!("select one with --name: {}", names.join(", "))
        }
    };
    format!("there is no lab {name}; {hint}")
}

fn wait_for_lock(file: &File, saved: &SavedLab, deadline: Instant) -> Result<()> {
    let mut note_at = Some(Instant::now() + NOTE);
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(e) => return Err(e).with_context(|| format!("cannot lock lab {}", saved.name())),
        }
        ensure!(
            Instant::now() < deadline,
            "another command has locked lab {} for more than {TIMEOUT:?}; find it with 'fuser {}'",
            saved.name(),
            saved.dir().join(LOCK).display()
        );
        if note_at.take_if(|at| *at <= Instant::now()).is_some() {
            print::warn(format_args!(
                "podwire: waiting for another command that changes lab {}",
                saved.name()
            ));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_same_file(file: &File, path: &Path) -> Result<bool> {
    let held = file.metadata().context("cannot read the metadata of the lock file")?;
    Ok(fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (held.dev(), held.ino())))
}

fn removed_during_creation(saved: &SavedLab) -> String {
    format!("lab {} was removed by another command during its creation", saved.name())
}

/// Removes the base directory after the last lab.
pub(super) fn remove_if_empty() {
    // An error means that it is in use or already removed.
    let _ = fs::remove_dir(PathBuf::from(BASE));
}
