//! Removing namespaces and directories, our own and those of runs that died without doing it.
//!
//! Several processes may sweep the same leftovers at once: "already gone" is success everywhere.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::owner::LabOwner;

/// Where `ip netns` keeps names.
pub(crate) const NETNS_DIR: &str = "/run/netns";
/// Another sweeper working on the same directory makes single steps fail; that settles within a few rounds.
const ROUNDS: usize = 10;

/// Removes what dead runs left. A failure on one name does not stop the others.
pub(crate) fn dead_runs() -> Result<()> {
    let mut first_error = None;
    for name in names_of_the_dead(Path::new(NETNS_DIR))? {
        first_error = remove_namespace(&namespace_path(&name)).err().or(first_error);
    }
    for name in names_of_the_dead(&std::env::temp_dir())? {
        first_error = remove_directory(&std::env::temp_dir().join(name)).err().or(first_error);
    }
    first_error.map_or(Ok(()), Err)
}

pub(crate) fn namespace_path(name: &str) -> PathBuf {
    Path::new(NETNS_DIR).join(name)
}

/// The namespaces of one lab that lives on, by name.
pub(crate) fn namespaces_of(prefix: &str) -> Result<Vec<String>> {
    let begin = format!("{prefix}-");
    Ok(names(Path::new(NETNS_DIR))?.into_iter().filter(|name| name.starts_with(&begin)).collect())
}

/// The list is read before any owner is looked up: a process that starts later cannot own a name in it.
fn names_of_the_dead(directory: &Path) -> Result<Vec<String>> {
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

/// What `ip netns del` does. Processes and sockets inside keep the nameless namespace until they end.
pub(crate) fn remove_namespace(path: &Path) -> Result<()> {
    release_namespace(path)?;
    match fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Unmounts the namespace and leaves a plain file behind.
pub(crate) fn release_namespace(path: &Path) -> Result<()> {
    loop {
        match unmount(path, UnmountFlags::DETACH) {
            Ok(()) => {}
            // EINVAL: not a mount point (any more).
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
