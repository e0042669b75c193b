//! The pods' cgroups are the one thing of theirs that no namespace of ours ends. They lie under one directory per machine,
//! named like the node's namespace (`pwt-PID-…`); it goes when the machine's processes are gone.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

const ROOT: &str = "/sys/fs/cgroup";
const MARK: &str = "pwt-";

/// Removes the machine's groups in every hierarchy. Groups with processes in them refuse: that is an error.
pub(crate) fn remove(name: &str) -> Result<()> {
    for hierarchy in hierarchies()? {
        let group = hierarchy.join(name);
        if group.is_dir() {
            remove_tree(&group)?;
        }
    }
    Ok(())
}

/// Those of this machine that still exist, as paths.
pub(crate) fn below(name: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for hierarchy in hierarchies()? {
        let group = hierarchy.join(name);
        if group.is_dir() {
            found.extend(directories(&group)?);
        }
    }
    Ok(found)
}

/// Groups of test processes that were killed.
pub(crate) fn remove_of_the_dead() -> Result<()> {
    for hierarchy in hierarchies()? {
        for group in directories(&hierarchy)? {
            let name = group.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if owner(&name).is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
                remove_tree(&group)?;
            }
        }
    }
    Ok(())
}

fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(MARK)?.split_once('-')?.0.parse().ok()
}

/// The one of cgroup v2, or those of v1 below it: either way, where groups can be.
fn hierarchies() -> Result<Vec<PathBuf>> {
    let root = PathBuf::from(ROOT);
    if root.join("cgroup.procs").exists() {
        return Ok(vec![root]);
    }
    // `cpu` and the like may be links to `cpu,cpuacct`: each once.
    directories(&root)
}

fn directories(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        // Somebody else sweeps, too.
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(vec![]),
        Err(e) => return Err(e).with_context(|| format!("cannot list {}", path.display())),
    };
    Ok(entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|e| e.path())
        .collect())
}

/// A cgroup's files are the kernel's: only directories are removed, from the innermost on.
fn remove_tree(group: &Path) -> Result<()> {
    for directory in directories(group)? {
        remove_tree(&directory)?;
    }
    match fs::remove_dir(group) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove cgroup {}", group.display()))
        }
        _ => Ok(()),
    }
}
