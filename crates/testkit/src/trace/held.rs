//! Stops one thread of a running program, so that a test can prove that the other threads do not depend on it.

use std::fs;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

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

    /// Lets it run for a number of stops at entries and exits of system calls. Returns false if it waits for events before that, after
    /// it did something else.
    fn run_stops(&self, count: u64) -> Result<bool> {
        let (mut has_worked, mut done) = (false, 0);
        while done < count {
            sys::resume(self.tid, 0)?;
            self.wait()?;
            match sys::entered_syscall(self.tid) {
                Some(number) if is_wait(number) && has_worked => return Ok(false),
                Some(number) if is_wait(number) => {}
                Some(_) => has_worked = true,
                None => {}
            }
            done += u64::from(has_worked);
        }
        Ok(true)
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

/// Holds a thread that waits for events, calls `cause`, and kills the process at the thread's n-th stop at a system call after that.
/// Returns false if the thread made fewer stops. Then the process is killed, too.
pub fn kill_at_stop_of_thread(pid: u32, name: &str, n: u64, cause: impl FnOnce() + Send) -> Result<bool> {
    // The caller may have started the process, whose exit must not be reaped here.
    let tracer = || {
        let held = HeldThread::stop(pid, name)?;
        cause();
        let is_at_stop = held.run_stops(n)?;
        let process = i32::try_from(pid).ok().and_then(Pid::from_raw).context("an invalid process ID")?;
        kill_process(process, Signal::KILL).context("cannot kill the process")?;
        // The kernel keeps a traced thread until its tracer has seen the exit.
        while sys::wait_for_any()?.is_some() {}
        Ok(is_at_stop)
    };
    let end = std::thread::scope(|scope| scope.spawn(tracer).join());
    end.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn is_wait(number: u64) -> bool {
    [libc::SYS_poll, libc::SYS_ppoll, libc::SYS_restart_syscall]
        .into_iter()
        .any(|wait| u64::try_from(wait).ok() == Some(number))
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
