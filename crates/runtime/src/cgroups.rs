//! Cleanup of the pods' cgroups, which outlive the machine's namespaces. They are below one directory per machine, named like
//! the node's namespace (`pwt-PID-…`). It is removed after the machine's processes have exited.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

const ROOT: &str = "/sys/fs/cgroup";
const MARK: &str = "pwt-";

/// Removes the machine's groups in every hierarchy. Fails if a group still has processes.
pub(crate) fn remove(name: &str) -> Result<()> {
    for hierarchy in hierarchies()? {
        let group = hierarchy.join(name);
        if group.is_dir() {
            remove_tree(&group)?;
        }
    }
    Ok(())
}

/// Paths of the machine's existing groups.
pub(crate) fn below(name: &str) -> Result<Vec<PathBuf>> {
    let mut groups = Vec::new();
    for hierarchy in hierarchies()? {
        let group = hierarchy.join(name);
        if group.is_dir() {
            groups.extend(directories(&group)?);
        }
    }
    Ok(groups)
}

/// Removes the groups of killed test processes.
pub(crate) fn remove_of_dead_runs() -> Result<()> {
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

/// The root of cgroup v2, or the hierarchies of v1.
fn hierarchies() -> Result<Vec<PathBuf>> {
    let root = PathBuf::from(ROOT);
    if root.join("cgroup.procs").exists() {
        return Ok(vec![root]);
    }
    // Symlinks such as `cpu` → `cpu,cpuacct` are not directories, so each hierarchy is listed once.
    directories(&root)
}

fn directories(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        // Another test process removed it.
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(vec![]),
        Err(e) => return Err(e).with_context(|| format!("cannot list {}", path.display())),
    };
    Ok(entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|e| e.path())
        .collect())
}

/// Removes only directories, innermost first. The files of a cgroup belong to the kernel.
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
