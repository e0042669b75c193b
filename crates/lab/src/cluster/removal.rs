//! Removal of a saved lab: all processes in its namespaces, the namespaces and the directory. Objects are found by name, so
//! the removal also works if some of them are missing.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::saved::{Saved, SavedLab};
use crate::owner::start_time;
use crate::service::{ended, kill};
use crate::{DEADLINE, ProcessIdentity, sweep};

/// Maximum number of passes. Processes may start new ones while they are being killed.
const MAX_PASSES: usize = 50;

/// Counts of removed objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemovedLab {
    pub processes: usize,
    /// Recorded processes that were not running. No lab command had stopped them.
    pub ended: usize,
    pub namespaces: usize,
}

impl RemovedLab {
    pub fn is_nothing(self) -> bool {
        self == Self::default()
    }
}

/// Removes the lab. Missing objects are not an error.
pub fn remove_saved(saved_lab: &SavedLab) -> Result<RemovedLab> {
    let removed = clear_saved(saved_lab)?;
    sweep::remove_directory(&saved_lab.dir)?;
    Ok(removed)
}

/// Removes the lab except for its directory, where the caller may hold a lock.
pub fn clear_saved(saved_lab: &SavedLab) -> Result<RemovedLab> {
    let names = sweep::namespaces_of(&saved_lab.prefix())?;
    // If the state file is unreadable, only the processes inside the namespaces are killed.
    let recorded = Saved::read(&saved_lab.dir).map(|saved| saved.processes()).unwrap_or_default();
    let ended = recorded.iter().filter(|identity| !identity.lives()).count();
    let mut processes = kill_inside(&names)?;
    for identity in recorded {
        processes += usize::from(kill_and_wait(identity)?);
    }
    for name in &names {
        sweep::remove_namespace(&sweep::namespace_path(name))?;
    }
    Ok(RemovedLab { processes, ended, namespaces: names.len() })
}

/// Kills every process in these namespaces and returns their number.
pub(super) fn kill_inside(namespaces: &[String]) -> Result<usize> {
    let paths = namespaces.iter().map(|name| sweep::namespace_path(name));
    let inodes: BTreeSet<(u64, u64)> = paths.filter_map(|path| inode(&path)).collect();
    let mut count = 0;
    for _ in 0..MAX_PASSES {
        let inside = processes_in(&inodes)?;
        if inside.is_empty() {
            return Ok(count);
        }
        for identity in inside {
            count += usize::from(kill_and_wait(identity)?);
        }
    }
    anyhow::bail!("new processes keep starting in the lab's namespaces; try again")
}

/// Kills orphaned plugin processes in a namespace that work on this container.
pub(super) fn kill_plugins(namespace: &Path, container: &str) -> Result<()> {
    let variable = format!("CNI_CONTAINERID={container}");
    for identity in processes_in(&inode(namespace).into_iter().collect())? {
        // A process that exited meanwhile has no environment.
        let environment = fs::read(format!("/proc/{}/environ", identity.pid)).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes()) {
            kill_and_wait(identity)?;
        }
    }
    Ok(())
}

fn processes_in(inodes: &BTreeSet<(u64, u64)>) -> Result<Vec<ProcessIdentity>> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").context("cannot list /proc")?;
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let inside = pids.filter(|pid| *pid != own).filter_map(|pid| {
        // Read the start time first: if the pid is reused in between, the pair matches no process.
        let start = start_time(pid)?;
        let net_namespace = inode(Path::new(&format!("/proc/{pid}/ns/net")))?;
        inodes.contains(&net_namespace).then_some(ProcessIdentity { pid, start })
    });
    Ok(inside.collect())
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Kills a process and waits for its exit; false if it has already exited.
fn kill_and_wait(identity: ProcessIdentity) -> Result<bool> {
    let Some(pidfd) = identity.open()? else { return Ok(false) };
    if ended(&pidfd, std::time::Duration::ZERO)? {
        return Ok(false);
    }
    kill(&pidfd).with_context(|| format!("cannot kill process {}", identity.pid))?;
    ensure!(ended(&pidfd, DEADLINE)?, "process {} did not exit after SIGKILL", identity.pid);
    Ok(true)
}
