//! Taking a lab down that lives on: all processes in its namespaces, the namespaces, the directory. It works whatever is
//! missing, because names tell whose things are.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::saved::{Saved, SavedLab};
use crate::owner::start_time;
use crate::service::{ended, kill};
use crate::{DEADLINE, ProcessIdentity, sweep};

/// Processes may start others while they are being killed; not for ever.
const ROUNDS: usize = 50;

/// What was taken away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemovedLab {
    pub processes: usize,
    /// Processes that should have run and did not: nobody killed them by a command of the lab.
    pub ended: usize,
    pub namespaces: usize,
}

impl RemovedLab {
    pub fn nothing(self) -> bool {
        self == Self::default()
    }
}

/// Everything of this lab. What is gone already is fine.
pub fn remove_kept(kept: &SavedLab) -> Result<RemovedLab> {
    let removed = clear_kept(kept)?;
    sweep::remove_directory(&kept.dir)?;
    Ok(removed)
}

/// The same but for the directory, and so for the lock that the caller may have in it.
pub fn clear_kept(kept: &SavedLab) -> Result<RemovedLab> {
    let names = sweep::namespaces_of(&kept.prefix())?;
    // A state that cannot be read tells of no processes; those in the namespaces go anyway.
    let known = Saved::read(&kept.dir).map(|saved| saved.processes()).unwrap_or_default();
    let ended = known.iter().filter(|identity| !identity.lives()).count();
    let mut processes = kill_inside(&names)?;
    for identity in known {
        processes += usize::from(end(identity)?);
    }
    for name in &names {
        sweep::remove_namespace(&sweep::namespace_path(name))?;
    }
    Ok(RemovedLab { processes, ended, namespaces: names.len() })
}

/// Ends every process that is in one of these namespaces, and counts them.
pub(super) fn kill_inside(namespaces: &[String]) -> Result<usize> {
    let paths = namespaces.iter().map(|name| sweep::namespace_path(name));
    let inodes: BTreeSet<(u64, u64)> = paths.filter_map(|path| inode(&path)).collect();
    let mut count = 0;
    for _ in 0..ROUNDS {
        let inside = processes_in(&inodes)?;
        if inside.is_empty() {
            return Ok(count);
        }
        for identity in inside {
            count += usize::from(end(identity)?);
        }
    }
    anyhow::bail!("processes keep starting in the lab's namespaces; try again")
}

/// Ends the plugins in a namespace that work on this container: their caller is gone.
pub(super) fn kill_plugins(namespace: &Path, container: &str) -> Result<()> {
    let variable = format!("CNI_CONTAINERID={container}");
    for identity in processes_in(&inode(namespace).into_iter().collect())? {
        // One that ended meanwhile has none.
        let environment = fs::read(format!("/proc/{}/environ", identity.pid)).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|there| there == variable.as_bytes()) {
            end(identity)?;
        }
    }
    Ok(())
}

fn processes_in(inodes: &BTreeSet<(u64, u64)>) -> Result<Vec<ProcessIdentity>> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").context("cannot list /proc")?;
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let inside = pids.filter(|pid| *pid != own).filter_map(|pid| {
        // The start time first: if the pid is reused in between, the pair fits nobody.
        let start = start_time(pid)?;
        let at = inode(Path::new(&format!("/proc/{pid}/ns/net")))?;
        inodes.contains(&at).then_some(ProcessIdentity { pid, start })
    });
    Ok(inside.collect())
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Kills a process and waits for its end; false if it is gone already.
fn end(identity: ProcessIdentity) -> Result<bool> {
    let Some(pidfd) = identity.open()? else { return Ok(false) };
    if ended(&pidfd, std::time::Duration::ZERO)? {
        return Ok(false);
    }
    kill(&pidfd).with_context(|| format!("cannot kill process {}", identity.pid))?;
    ensure!(ended(&pidfd, DEADLINE)?, "process {} was killed and does not end", identity.pid);
    Ok(true)
}
