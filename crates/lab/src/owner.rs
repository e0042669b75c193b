//! The process that owns a name, and whether it is still running.
//!
//! A name starts with `pwt-<pid>-s<start time>-`. The start time (field 22 of /proc/<pid>/stat) distinguishes a process from a
//! later one with the same pid. Names of other tools may lack it (`pwt-<pid>-…`); any process with that pid then owns them.
//! Outside the initial pid namespace, `n<pid namespace>` follows the start time: a pid is unique only in its pid namespace,
//! and pid namespaces may share directories.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use anyhow::{Context as _, Result};

pub(crate) const MARK: &str = "pwt-";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LabOwner {
    pid: u32,
    start: Option<u64>,
    /// The inode of the pid namespace.
    namespace: u64,
}

/// The inode of the initial pid namespace (PROC_PID_INIT_INO).
const INITIAL_NAMESPACE: u64 = 0xEFFF_FFFC;

/// The used fields of /proc/<pid>/stat.
struct Stat {
    state: char,
    group: i32,
    start: u64,
}

impl LabOwner {
    pub(crate) fn this_process() -> Result<Self> {
        let pid = std::process::id();
        let stat = stat(pid).with_context(|| format!("cannot read the start time of process {pid}"))?;
        let namespace = own_namespace().context("cannot read the pid namespace of this process")?;
        Ok(Self { pid, start: Some(stat.start), namespace })
    }

    pub(crate) fn prefix(self) -> String {
        let namespace = match self.namespace {
            INITIAL_NAMESPACE => String::new(),
            other => format!("n{other}"),
        };
        match self.start {
            Some(start) => format!("{MARK}{}-s{start}{namespace}-", self.pid),
            None => format!("{MARK}{}-", self.pid),
        }
    }

    /// Parses the owner from a name; `None` for names that do not match the pattern.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        let (pid, rest) = name.strip_prefix(MARK)?.split_once('-')?;
        let times = rest.split_once('-').and_then(|(word, _)| word.strip_prefix('s'));
        let (start, namespace) = times.and_then(|times| times.split_once('n')).unzip();
        let start = start.or(times).and_then(|start| start.parse().ok());
        let namespace = namespace.map_or(Some(INITIAL_NAMESPACE), |inode| inode.parse().ok())?;
        Some(Self { pid: pid.parse().ok()?, start, namespace })
    }

    /// An owner in another pid namespace cannot be checked and counts as running.
    pub(crate) fn lives(self) -> bool {
        if own_namespace().is_none_or(|own| own != self.namespace) {
            return true;
        }
        match stat(self.pid) {
            None => false,
            Some(stat) if self.start.is_some_and(|start| start != stat.start) => false,
            Some(stat) => !matches!(stat.state, 'Z' | 'X') || has_other_threads(self.pid),
        }
    }
}

fn own_namespace() -> Option<u64> {
    fs::metadata("/proc/self/ns/pid").ok().map(|file| file.ino())
}

/// If the main thread exits before other threads, the process is listed as a zombie but still runs.
fn has_other_threads(pid: u32) -> bool {
    fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|tasks| tasks.count() > 1)
}

/// Start time in ticks since boot. With the pid it identifies the process uniquely.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    stat(pid).map(|stat| stat.start)
}

fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// `pid (comm) state ppid pgrp … starttime …`; the comm may contain any character and ends at the last parenthesis.
fn parse_stat(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        group: fields.get(2)?.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
    })
}

/// True if any process of the group runs. Zombies do not count, because init may reap orphans late or never.
pub(crate) fn group_runs(group: i32) -> Result<bool> {
    let processes = fs::read_dir("/proc").context("cannot list /proc")?;
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(pids.filter_map(stat).any(|stat| stat.group == group && !matches!(stat.state, 'Z' | 'X')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_parsed_from_a_name() {
        let of = |start, namespace| Some(LabOwner { pid: 12, start, namespace });
        assert_eq!(LabOwner::of_name("pwt-12-s345-0-x"), of(Some(345), INITIAL_NAMESPACE));
        assert_eq!(LabOwner::of_name("pwt-12-s345n6789-0-x"), of(Some(345), 6789));
        assert_eq!(LabOwner::of_name("pwt-12-x"), of(None, INITIAL_NAMESPACE));
        assert_eq!(LabOwner::of_name("pwt-12-s34x-y"), of(None, INITIAL_NAMESPACE));
        for unmanaged in ["pwt-12", "pwt-x-12", "pwt12-x", "cni-12-x", "pwt--x", "pwt-12-s345nx-y", ""] {
            assert_eq!(LabOwner::of_name(unmanaged), None, "{unmanaged}");
        }
    }

    #[test]
    fn an_earlier_process_with_the_same_pid_is_dead() {
        let own = LabOwner::this_process().unwrap();
        assert!(own.lives());
        assert_eq!(LabOwner::of_name(&format!("{}0-x", own.prefix())), Some(own));
        assert!(!LabOwner { start: own.start.map(|s| s - 1), ..own }.lives());
        assert!(LabOwner { start: None, ..own }.lives());
        assert!(!LabOwner { pid: u32::MAX, start: None, ..own }.lives());
    }

    #[test]
    fn owners_in_other_pid_namespaces_count_as_alive() {
        let own = LabOwner::this_process().unwrap();
        let other_namespace = LabOwner { pid: u32::MAX, start: Some(1), namespace: own.namespace + 1 };
        assert!(other_namespace.lives());
        assert_eq!(LabOwner::of_name(&format!("{}0-x", other_namespace.prefix())), Some(other_namespace));
    }

    #[test]
    fn a_zombie_is_dead() {
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        let pid = child.id();
        let dead = crate::wait_until("the child to be a zombie", crate::DEADLINE, || {
            Ok(stat(pid).is_some_and(|s| s.state == 'Z'))
        });
        let lives = LabOwner { pid, start: None, ..LabOwner::this_process().unwrap() }.lives();
        child.wait().unwrap();
        dead.unwrap();
        assert!(!lives);
    }

    #[test]
    fn a_comm_may_contain_parentheses() {
        let text = format!("7 (a) b) S 1 42 {}99 0", "0 ".repeat(16));
        let stat = parse_stat(&text).unwrap();
        assert_eq!((stat.state, stat.group, stat.start), ('S', 42, 99));
    }
}
