//! Where labs live: a directory for each, and a lock in it, so that two commands on one lab come one after the other.

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

/// Not in /run: that is memory, and an etcd takes more than 100 MB there.
const BASE: &str = "/var/lib/podwire-lab";
const LOCK: &str = "lock";
/// The longest that a command which holds the lock takes, more or less.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Somebody may remove the directory of all labs, being empty, at the very moment a lab is made in it.
const ROUNDS: usize = 10;

/// A lab that nobody else works on meanwhile.
#[derive(Debug)]
pub(super) struct LockedLab {
    pub(super) kept: SavedLab,
    _lock: File,
}

/// What became of the wish to make a lab's directory.
#[derive(Debug)]
pub(super) enum Made {
    New(LockedLab),
    /// There is one of that name.
    Exists,
}

/// By name; it need not exist.
pub(super) fn kept(name: &str) -> Result<SavedLab> {
    let program = std::env::current_exe().context("cannot find my own program file")?;
    Ok(SavedLab::new(name, &Path::new(BASE).join(name), &program)
        .map_err(|error| Usage(error.to_string()))?)
}

/// Names of labs of which there is a directory or a namespace.
pub(super) fn all() -> Result<Vec<String>> {
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

pub(super) fn make(kept: &SavedLab) -> Result<Made> {
    for _ in 0..ROUNDS {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(BASE)
            .with_context(|| format!("cannot make directory {BASE}"))?;
        match fs::DirBuilder::new().mode(0o700).create(kept.dir()) {
            Ok(()) => {
                let held = hold(kept)?;
                return Ok(Made::New(held.with_context(|| gone(kept))?));
            }
            Err(e) if e.kind() == ErrorKind::AlreadyExists => return Ok(Made::Exists),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => {
                return Err(e).with_context(|| format!("cannot make directory {}", kept.dir().display()));
            }
        }
    }
    bail!("directory {} vanishes again and again", kept.dir().display())
}

/// Waits until nobody else works on the lab; none if there is no such lab.
pub(super) fn hold(kept: &SavedLab) -> Result<Option<LockedLab>> {
    let end = Instant::now() + TIMEOUT;
    let path = kept.dir().join(LOCK);
    loop {
        let lock = match File::options().create(true).truncate(false).write(true).mode(0o600).open(&path) {
            Ok(lock) => lock,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).with_context(|| format!("cannot open {}", path.display())),
        };
        lock_within(&lock, kept, end)?;
        // Whoever held it may have taken the lab down, and another one may have come: then this is not its lock.
        if is_at(&lock, &path)? {
            return Ok(Some(LockedLab { kept: kept.clone(), _lock: lock }));
        }
    }
}

/// A lab that is there and that nobody else works on.
pub(super) fn existing(name: &str) -> Result<LockedLab> {
    hold(&kept(name)?)?.with_context(|| nothing_there(name))
}

fn nothing_there(name: &str) -> String {
    let others = all().unwrap_or_default();
    let hint = match others.as_slice() {
        [] => format!("make one: `{}`", hint::command(name, "up --nodes 3")),
        names => {
            format!("there {} {}: use --name", if names.len() == 1 { "is" } else { "are" }, names.join(", "))
        }
    };
    format!("there is no lab {name}; {hint}")
}

fn lock_within(lock: &File, kept: &SavedLab, end: Instant) -> Result<()> {
    loop {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(e) => return Err(e).with_context(|| format!("cannot lock lab {}", kept.name())),
        }
        ensure!(
            Instant::now() < end,
            "another command works on lab {} for more than {TIMEOUT:?}; see `fuser {}`",
            kept.name(),
            kept.dir().join(LOCK).display()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_at(lock: &File, path: &Path) -> Result<bool> {
    let held = lock.metadata().context("cannot look at the lock")?;
    Ok(fs::metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == (held.dev(), held.ino())))
}

fn gone(kept: &SavedLab) -> String {
    format!("lab {} was taken down while it was made", kept.name())
}

/// The directory of all labs goes with the last of them.
pub(super) fn tidy() {
    // It is in use, or gone already.
    let _ = fs::remove_dir(PathBuf::from(BASE));
}
