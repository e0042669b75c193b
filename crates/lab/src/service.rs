//! Background processes: agents and etcd members. A process is identified by pid and start time, so that a later process with
//! the same pid is not confused with it, and a process that another run started can be taken over.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::owner::start_time;
use crate::program::PATH;
use crate::{DEADLINE, Ns};

/// Identifies a process, and no later one with the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    pub pid: u32,
    /// Start time in ticks since boot.
    pub start: u64,
}

/// When a program is killed.
#[derive(Debug, Clone)]
pub(crate) enum ProcessLifetime {
    /// When its owner is dropped. It has its own process group.
    Owner,
    /// When its owner is dropped or this process exits, even by SIGKILL.
    Leash(Arc<Leash>),
    /// Only by a lab command. It has its own session.
    Detached,
}

/// A process group that is killed when this process exits, even by SIGKILL. The group leader reads from a pipe, and only this
/// process holds the write end.
#[derive(Debug)]
pub(crate) struct Leash {
    leader: Child,
    write_end: Option<ChildStdin>,
}

/// The program to start, and its namespace.
pub(crate) struct ProgramSpec<'a> {
    pub(crate) ns: &'a Ns,
    pub(crate) program: PathBuf,
    pub(crate) args: &'a [String],
    pub(crate) env: &'a [(String, String)],
    /// File for stdout and stderr.
    pub(crate) log: PathBuf,
    pub(crate) life: ProcessLifetime,
}

#[derive(Debug)]
pub(crate) struct LabProcess {
    identity: ProcessIdentity,
    pidfd: OwnedFd,
    /// `None` if another process started it.
    child: Option<Child>,
    life: ProcessLifetime,
}

impl Leash {
    pub(crate) fn new() -> Result<Self> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read _; kill -KILL 0"]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut leader = command.spawn().context("cannot start /bin/sh")?;
        let write_end = leader.stdin.take();
        Ok(Self { leader, write_end })
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        self.write_end = None;
        // The leader is not reaped yet, so the group ID is not reused.
        let _ = kill_process_group(Pid::from_child(&self.leader), Signal::KILL);
        let _ = self.leader.wait();
    }
}

impl ProcessIdentity {
    pub fn this_process() -> Result<Self> {
        let pid = std::process::id();
        let start =
            start_time(pid).with_context(|| format!("cannot read the start time of process {pid}"))?;
        Ok(Self { pid, start })
    }

    pub fn lives(self) -> bool {
        matches!(self.open(), Ok(Some(pidfd)) if matches!(ended(&pidfd, Duration::ZERO), Ok(false)))
    }

    /// Opens a pidfd; `None` if the process has exited.
    pub(crate) fn open(self) -> Result<Option<OwnedFd>> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(e) => return Err(e).with_context(|| format!("cannot watch process {}", self.pid)),
        };
        // Compare the start time after opening the pidfd, so that both refer to the same process.
        Ok((start_time(self.pid) == Some(self.start)).then_some(pidfd))
    }
}

impl LabProcess {
    pub(crate) fn start(task: ProgramSpec<'_>) -> Result<Self> {
        let title = task.program.display().to_string();
        let log = File::options().create(true).append(true).open(&task.log);
        let log = log.with_context(|| format!("cannot open {}", task.log.display()))?;
        let mut command = match &task.life {
            ProcessLifetime::Owner => own_group(&task.program),
            ProcessLifetime::Leash(leash) => {
                let mut command = Command::new(&task.program);
                command.process_group(i32::try_from(leash.leader.id()).context("the pid is too large")?);
                command
            }
            // setsid(1) creates the session and then executes the program with the same pid.
            ProcessLifetime::Detached => {
                let mut command = Command::new("setsid");
                command.arg(&task.program);
                command
            }
        };
        command.args(task.args).env_clear().env("PATH", PATH).envs(task.env.iter().map(|(k, v)| (k, v)));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = task.ns.enter(|| command.spawn())?.with_context(|| format!("cannot start {title}"))?;
        let pid = child.id();
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .with_context(|| format!("cannot watch {title}"))?;
        // Not reaped yet, so /proc has an entry even if the process has exited.
        let start = start_time(pid).with_context(|| format!("cannot read the start time of {title}"))?;
        Ok(Self { identity: ProcessIdentity { pid, start }, pidfd, child: Some(child), life: task.life })
    }

    /// Takes over a detached process that another process started; `None` if it has exited.
    pub(crate) fn adopt(identity: ProcessIdentity) -> Result<Option<Self>> {
        let Some(pidfd) = identity.open()? else { return Ok(None) };
        let process = Self { identity, pidfd, child: None, life: ProcessLifetime::Detached };
        Ok((!process.has_ended()?).then_some(process))
    }

    pub(crate) fn identity(&self) -> ProcessIdentity {
        self.identity
    }

    pub(crate) fn has_ended(&self) -> Result<bool> {
        ended(&self.pidfd, Duration::ZERO)
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let sent = pidfd_send_signal(&self.pidfd, signal);
        sent.with_context(|| format!("cannot send {signal:?} to process {}", self.identity.pid))
    }

    /// Sends SIGKILL and waits for the exit. An exited process is not an error.
    pub(crate) fn kill(self) -> Result<()> {
        kill(&self.pidfd).with_context(|| format!("cannot kill process {}", self.identity.pid))?;
        self.wait().map(drop)
    }

    /// Waits for the exit. The status is known only if this process started it.
    pub(crate) fn wait(mut self) -> Result<Option<ExitStatus>> {
        let pid = self.identity.pid;
        ensure!(ended(&self.pidfd, DEADLINE)?, "process {pid} did not exit within {DEADLINE:?}");
        let reaped = self.child.take().map(|mut child| child.wait()).transpose();
        reaped.with_context(|| format!("cannot reap process {pid}"))
    }
}

impl Drop for LabProcess {
    fn drop(&mut self) {
        if matches!(self.life, ProcessLifetime::Detached) {
            return;
        }
        if let Some(mut child) = self.child.take() {
            // Drop cannot report errors.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn own_group(program: &std::path::Path) -> Command {
    let mut command = Command::new(program);
    command.process_group(0);
    command
}

/// Sends SIGKILL. An exited process is not an error.
pub(crate) fn kill(pidfd: &OwnedFd) -> rustix::io::Result<()> {
    match pidfd_send_signal(pidfd, Signal::KILL) {
        Err(rustix::io::Errno::SRCH) => Ok(()),
        sent => sent,
    }
}

/// Waits at most `within` for the exit of a process. A zombie has exited.
pub(crate) fn ended(pidfd: &OwnedFd, within: Duration) -> Result<bool> {
    let end = std::time::Instant::now() + within;
    loop {
        let remaining = end.saturating_duration_since(std::time::Instant::now());
        let timeout = Timespec::try_from(remaining).context("the deadline is too far away")?;
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e).context("cannot wait for the exit of a process"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_identified_by_pid_and_start_time() {
        let own = ProcessIdentity::this_process().unwrap();
        assert!(own.lives());
        assert!(!ProcessIdentity { start: own.start + 1, ..own }.lives());
        assert!(!ProcessIdentity { pid: u32::MAX, ..own }.lives());
        assert!(LabProcess::adopt(ProcessIdentity { start: own.start + 1, ..own }).unwrap().is_none());
    }

    #[test]
    fn a_leash_kills_its_group_on_drop_or_exit_of_its_holder() {
        for holder_dies in [false, true] {
            let mut leash = Leash::new().unwrap();
            let mut command = Command::new("sleep");
            command.arg("60").process_group(leash.leader.id() as i32);
            let child = command.spawn().unwrap();
            let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
            if holder_dies {
                leash.write_end = None;
                assert!(ended(&pidfd, DEADLINE).unwrap());
            }
            drop(leash);
            assert!(ended(&pidfd, DEADLINE).unwrap());
            let mut child = child;
            assert!(!child.wait().unwrap().success());
        }
    }
}
