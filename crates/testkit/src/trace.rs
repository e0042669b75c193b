//! Kills a plugin at a chosen system call, so that a test can cover all of them.
//!
//! The plugin runs under ptrace and stops at the entry and at the exit of every system call of every thread. At the n-th
//! stop the whole process gets SIGKILL: at an entry the call has not happened, at an exit it has taken effect.
//! Programs that the plugin starts are neither traced nor killed, but the tracer waits for their exit.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use crate::{Call, DEADLINE, Ns, Outcome, Plugin, wait_for_group};

mod held;
mod sys;

pub use held::{HeldThread, kill_at_stop_of_thread};
use sys::WaitStatus;

#[derive(Debug)]
pub enum TraceOutcome {
    Killed {
        at: SyscallStop,
    },
    /// The program exited before its n-th stop. `stops` counts entries and exits of system calls.
    Finished {
        stops: u64,
        outcome: Outcome,
    },
}

/// The system call at which a program was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyscallStop {
    pub phase: SyscallPhase,
    /// The system call number. `None` if the first stop of a thread is an exit.
    pub number: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyscallPhase {
    Entry,
    Exit,
}

impl fmt::Display for SyscallStop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = match self.phase {
            SyscallPhase::Entry => "entry to",
            SyscallPhase::Exit => "exit from",
        };
        match self.number {
            Some(number) => write!(f, "{phase} system call {number}"),
            None => write!(f, "{phase} a system call"),
        }
    }
}

/// Calls the plugin inside the node's namespace and kills it at its n-th stop, counted from 1. A test increments n
/// until the result is `Finished`. With threads the number of stops varies between runs, so n does not identify a certain call.
pub fn kill_at_syscall(plugin: &Plugin, node: &Ns, call: &Call, n: u64) -> Result<TraceOutcome> {
    ensure!(n > 0, "system-call stops are counted from 1");
    let command = plugin.command(call);
    // All ptrace requests must come from the tracer thread. It is a separate thread, because it waits for all its children
    // and must not reap those of the caller.
    let tracer = || node.enter(|| trace(command, &call.stdin, n, DEADLINE));
    let end = std::thread::scope(|scope| scope.spawn(tracer).join());
    let end = end.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    end?.with_context(|| format!("{} under trace", plugin.title(call)))
}

/// Files, because pipes would have to be served while the tracer waits.
struct TraceFiles {
    stdin: File,
    stdout: File,
    stderr: File,
}

impl TraceFiles {
    fn new(input: &[u8]) -> Result<Self> {
        let temporary = || tempfile::tempfile().context("cannot create a temporary file");
        let mut files = Self { stdin: temporary()?, stdout: temporary()?, stderr: temporary()? };
        files.stdin.write_all(input).context("cannot write the plugin's input")?;
        files.stdin.rewind().context("cannot rewind the plugin's input")?;
        Ok(files)
    }

    fn attach(&self, command: &mut Command) -> std::io::Result<()> {
        command.stdin(Stdio::from(self.stdin.try_clone()?));
        command.stdout(Stdio::from(self.stdout.try_clone()?));
        command.stderr(Stdio::from(self.stderr.try_clone()?));
        Ok(())
    }
}

fn text_of(mut file: File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).context("cannot read the plugin's output")?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn trace(mut command: Command, input: &[u8], n: u64, limit: Duration) -> Result<TraceOutcome> {
    let files = TraceFiles::new(input)?;
    files.attach(&mut command).context("cannot duplicate a file")?;
    command.process_group(0);
    let started = Instant::now();
    let mut tracee = Tracee::start(command)?;
    let end = tracee.run_within(n, limit)?;
    let elapsed = started.elapsed();
    let group = tracee.pid;
    drop(tracee);
    wait_for_group(group)?;
    Ok(match end {
        TraceEnd::Killed(at) => TraceOutcome::Killed { at },
        TraceEnd::Finished(status) => TraceOutcome::Finished {
            stops: status.stops,
            outcome: Outcome {
                status: status.exit,
                stdout: text_of(files.stdout)?,
                stderr: text_of(files.stderr)?,
                elapsed,
            },
        },
    })
}

enum TraceEnd {
    Killed(SyscallStop),
    Finished(TracedExit),
}

struct TracedExit {
    exit: ExitStatus,
    stops: u64,
}

/// A traced process. It must stay on the thread that started it. On drop the process is killed and all its threads are reaped.
struct Tracee {
    pid: Pid,
    /// All known threads and the system call that each entered last.
    threads: HashMap<i32, Option<u64>>,
    stops: u64,
    reaped: bool,
}

impl Tracee {
    fn start(mut command: Command) -> Result<Self> {
        sys::trace_me_before_exec(&mut command);
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().with_context(|| format!("cannot start {program}"))?;
        Ok(Self { pid: Pid::from_child(&child), threads: HashMap::new(), stops: 0, reaped: false })
    }

    /// waitpid has no timeout. Another thread kills the process at the deadline, which ends the wait.
    fn run_within(&mut self, n: u64, limit: Duration) -> Result<TraceEnd> {
        let pidfd = pidfd_open(self.pid, PidfdFlags::empty()).context("cannot watch the traced program")?;
        let timed_out = AtomicBool::new(false);
        let (done, is_done) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let (timed_out, pidfd) = (&timed_out, &pidfd);
            scope.spawn(move || {
                if is_done.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                    timed_out.store(true, Ordering::SeqCst);
                    // A failure means that the process has just exited.
                    let _ = pidfd_send_signal(pidfd, Signal::KILL);
                }
            });
            let end = self.run(n);
            drop(done);
            ensure!(
                !timed_out.load(Ordering::SeqCst),
                "the program did not exit within {limit:?} and was killed"
            );
            end
        })
    }

    fn run(&mut self, n: u64) -> Result<TraceEnd> {
        let mut exit = None;
        while let Some(wait) = sys::wait_for_any().context("cannot wait for the traced program")? {
            match wait {
                WaitStatus::Exited { tid, status } if tid == self.pid.as_raw_nonzero().get() => {
                    exit = Some(status);
                }
                WaitStatus::Exited { tid, .. } => {
                    self.threads.remove(&tid);
                }
                WaitStatus::Syscall { tid } => {
                    let stop = self.record_syscall(tid);
                    if self.stops == n {
                        self.kill_and_reap();
                        return Ok(TraceEnd::Killed(stop));
                    }
                    sys::resume(tid, 0)?;
                }
                WaitStatus::Event { tid } => sys::resume(tid, 0)?,
                WaitStatus::Signal { tid, signal } => self.on_signal(tid, signal)?,
            }
        }
        self.reaped = true;
        let exit = exit.context("the traced program exited without a status")?;
        Ok(TraceEnd::Finished(TracedExit { exit, stops: self.stops }))
    }

    fn record_syscall(&mut self, tid: i32) -> SyscallStop {
        self.stops += 1;
        let last = self.threads.entry(tid).or_default();
        match sys::entered_syscall(tid) {
            Some(number) => {
                *last = Some(number);
                SyscallStop { phase: SyscallPhase::Entry, number: *last }
            }
            None => SyscallStop { phase: SyscallPhase::Exit, number: *last },
        }
    }

    /// The first stop of the process is its exec (SIGTRAP), and the first stop of a new thread is a SIGSTOP. Both are for the
    /// tracer. All other signals are delivered to the program.
    fn on_signal(&mut self, tid: i32, signal: i32) -> Result<()> {
        let first_of_all = self.threads.is_empty();
        let first_of_thread = self.threads.insert(tid, None).is_none();
        if first_of_all {
            sys::set_options(tid)?;
            return sys::resume(tid, 0);
        }
        let for_tracer = first_of_thread && signal == libc::SIGSTOP;
        sys::resume(tid, if for_tracer { 0 } else { signal })
    }

    /// Call only while the process is not reaped, so that its pid is not reused.
    fn kill_and_reap(&mut self) {
        let _ = kill_process(self.pid, Signal::KILL);
        while let Ok(Some(_)) = sys::wait_for_any() {}
        self.reaped = true;
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill_and_reap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traced_program_that_hangs_is_killed() {
        let tracer = || {
            let mut sleep = Command::new("sleep");
            sleep.arg("600");
            trace(sleep, b"", u64::MAX, Duration::from_millis(100))
        };
        let error = std::thread::spawn(tracer).join().unwrap().unwrap_err().to_string();
        assert!(error.contains("did not exit within 100ms"), "{error}");
    }

    #[test]
    fn a_missing_program_is_an_error() {
        let tracer = || trace(Command::new("/no/such/program"), b"", 1, DEADLINE);
        let error = std::thread::spawn(tracer).join().unwrap().unwrap_err();
        assert!(error.to_string().contains("cannot start /no/such/program"), "{error}");
    }

    #[test]
    fn a_stop_prints_phase_and_number() {
        let stop = SyscallStop { phase: SyscallPhase::Exit, number: Some(46) };
        assert_eq!(stop.to_string(), "exit from system call 46");
    }
}
