//! Stops one thread of a running program, so that a test can prove that the other threads do not depend on it.

use std::fs;

use anyhow::{Context as _, Result, bail};

use super::sys::{self, WaitStatus};

/// A stopped thread. The other threads of its program keep running. Dropping the value resumes it. Only the thread that created
/// the value can use it.
#[derive(Debug)]
pub struct HeldThread {
    tid: i32,
}

impl HeldThread {
    /// Stops the thread with this name where it is.
    pub fn stop(pid: u32, name: &str) -> Result<Self> {
        let tid = find(pid, name)?;
        sys::seize(tid)?;
        let held = Self { tid };
        held.wait()?;
        Ok(held)
    }

    /// Lets it run until it is about to enter a namespace, and stops it there.
    pub fn run_to_setns(&self) -> Result<()> {
        loop {
            sys::resume(self.tid, 0)?;
            self.wait()?;
            if sys::entered_syscall(self.tid) == u64::try_from(libc::SYS_setns).ok() {
                return Ok(());
            }
        }
    }

    /// Signals of the program are not delivered while it is traced: tests send none to it.
    fn wait(&self) -> Result<()> {
        match sys::wait_for_any().context("cannot wait for the held thread")? {
            Some(WaitStatus::Syscall { .. } | WaitStatus::Event { .. } | WaitStatus::Signal { .. }) => Ok(()),
            Some(WaitStatus::Exited { tid, status }) => bail!("held thread {tid} exited: {status}"),
            None => bail!("thread {} is not traced", self.tid),
        }
    }
}

impl Drop for HeldThread {
    fn drop(&mut self) {
        sys::detach(self.tid);
    }
}

fn find(pid: u32, name: &str) -> Result<i32> {
    for task in fs::read_dir(format!("/proc/{pid}/task")).context("cannot list threads")? {
        let path = task.context("cannot list threads")?.path();
        let comm = fs::read_to_string(path.join("comm")).unwrap_or_default();
        if comm.trim_end() == name {
            let tid = path.file_name().and_then(|name| name.to_str());
            return tid.and_then(|tid| tid.parse().ok()).context("a thread without a number");
        }
    }
    bail!("process {pid} has no thread {name}")
}
