//! Removal of namespaces and directories, of this run and of runs that were killed.
//!
//! Several processes may remove the same leftovers at once, so a missing object is never an error.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::owner::LabOwner;

/// Directory of named namespaces (`ip netns`).
pub(crate) const NETNS_DIR: &str = "/run/netns";
/// Number of attempts. Removal fails if another process removes the same directory at the same time.
const ROUNDS: usize = 10;

/// Removes the leftovers of dead runs. After a failure it continues with the next name.
pub(crate) fn dead_runs() -> Result<()> {
    let mut first_error = None;
    for name in names_of_dead_runs(Path::new(NETNS_DIR))? {
        first_error = remove_namespace(&namespace_path(&name)).err().or(first_error);
    }
    for name in names_of_dead_runs(&std::env::temp_dir())? {
        first_error = remove_directory(&std::env::temp_dir().join(name)).err().or(first_error);
    }
    first_error.map_or(Ok(()), Err)
}

pub(crate) fn namespace_path(name: &str) -> PathBuf {
    Path::new(NETNS_DIR).join(name)
}

/// Names of the namespaces of a lab.
pub(crate) fn namespaces_of(prefix: &str) -> Result<Vec<String>> {
    let start = format!("{prefix}-");
    Ok(names(Path::new(NETNS_DIR))?.into_iter().filter(|name| name.starts_with(&start)).collect())
}

/// Reads the list before it checks the owners, so that a process that starts later cannot own a listed name.
fn names_of_dead_runs(directory: &Path) -> Result<Vec<String>> {
    let names = names(directory)?;
    Ok(names.into_iter().filter(|name| LabOwner::of_name(name).is_some_and(|owner| !owner.lives())).collect())
}

fn names(directory: &Path) -> Result<Vec<String>> {
    match fs::read_dir(directory) {
        Ok(entries) => {
            Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
        }
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(vec![]),
        Err(e) => Err(e).with_context(|| format!("cannot list {}", directory.display())),
    }
}

/// Does the same as `ip netns del`. Processes and sockets inside keep the unnamed namespace until they are closed.
pub(crate) fn remove_namespace(path: &Path) -> Result<()> {
    release_namespace(path)?;
    match fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Unmounts the namespace and leaves a regular file at its path.
pub(crate) fn release_namespace(path: &Path) -> Result<()> {
    loop {
        match unmount(path, UnmountFlags::DETACH) {
            Ok(()) => {}
            // EINVAL: not a mount point.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(e) => return Err(e).with_context(|| format!("cannot unmount {}", path.display())),
        }
    }
}

pub(crate) fn remove_directory(path: &Path) -> Result<()> {
    for _ in 1..ROUNDS {
        if fs::remove_dir_all(path).is_ok() || !path.exists() {
            return Ok(());
        }
    }
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
