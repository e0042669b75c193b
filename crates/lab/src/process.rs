//! A child process. One thread serves its pipes and waits for its exit, with a deadline.

use std::io::{ErrorKind, Read, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

use crate::owner::group_runs;
use crate::{Outcome, wait_until};

/// The limit of every wait in a test, and of every program that a test runs. It only ends hanging operations; on a busy host
/// every condition still takes much less. Speed is measured by the benchmark.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A started program in its own process group. The whole group is killed on drop.
#[derive(Debug)]
pub struct RunningProgram {
    child: Child,
    pidfd: OwnedFd,
    program: String,
    started: Instant,
    input: Input,
    stdout: OutputPipe<std::process::ChildStdout>,
    stderr: OutputPipe<std::process::ChildStderr>,
    reaped: Option<ExitStatus>,
}

#[derive(Debug)]
struct Input {
    pipe: Option<ChildStdin>,
    bytes: Vec<u8>,
    written: usize,
}

#[derive(Debug)]
struct OutputPipe<R> {
    pipe: Option<R>,
    bytes: Vec<u8>,
}

/// How to wait for a point in time.
#[derive(Clone, Copy)]
enum Pace {
    Sleep,
    Spin,
}

enum ProcessEvent {
    Exited,
    TimedOut,
}

impl RunningProgram {
    pub fn start(mut command: Command, stdin: Vec<u8>) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let started = Instant::now();
        let mut child = command.spawn().with_context(|| format!("cannot start {program}"))?;
        let input = Input { pipe: child.stdin.take(), bytes: stdin, written: 0 };
        let stdout = OutputPipe { pipe: child.stdout.take(), bytes: Vec::new() };
        let stderr = OutputPipe { pipe: child.stderr.take(), bytes: Vec::new() };
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .with_context(|| format!("cannot watch {program}"))?;
        let running = Self { child, pidfd, program, started, input, stdout, stderr, reaped: None };
        running
            .make_nonblocking()
            .with_context(|| format!("cannot set up the pipes of {}", running.program))?;
        Ok(running)
    }

    fn make_nonblocking(&self) -> rustix::io::Result<()> {
        if let Some(pipe) = &self.input.pipe {
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        if let Some(pipe) = &self.stdout.pipe {
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        if let Some(pipe) = &self.stderr.pipe {
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        Ok(())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGKILL to the program only. Its children keep running, as when a runtime or the kernel kills a plugin.
    pub fn kill(&self) -> Result<()> {
        pidfd_send_signal(&self.pidfd, Signal::KILL).with_context(|| format!("cannot kill {}", self.program))
    }

    /// Waits for the exit. After the limit, the program and its children are killed and an error is returned.
    pub fn wait(mut self, limit: Duration) -> Result<Outcome> {
        match self.serve(Instant::now() + limit, Pace::Sleep)? {
            ProcessEvent::Exited => self.finish(),
            ProcessEvent::TimedOut => {
                let name = self.program.clone();
                self.destroy();
                let stderr = String::from_utf8_lossy(&self.stderr.bytes).trim().to_owned();
                bail!("{name} did not exit within {limit:?} and was killed; stderr so far: {stderr:?}")
            }
        }
    }

    /// Kills the program (not its children) at the time `after` its start, as precisely as the host allows. Then waits for the
    /// exit of its children, so that no process changes the state that the caller inspects next.
    pub fn kill_at(mut self, after: Duration) -> Result<Outcome> {
        if let ProcessEvent::TimedOut = self.serve(self.started + after, Pace::Spin)? {
            self.kill()?;
        }
        let group = Pid::from_child(&self.child);
        let outcome = self.wait(DEADLINE)?;
        wait_for_group(group)?;
        Ok(outcome)
    }

    /// Writes stdin and collects output until the program exits or `end` is reached.
    fn serve(&mut self, end: Instant, pace: Pace) -> Result<ProcessEvent> {
        loop {
            let remaining = end.saturating_duration_since(Instant::now());
            let timeout = match pace {
                Pace::Sleep => remaining,
                Pace::Spin => Duration::ZERO,
            };
            if self.poll(timeout)? {
                return Ok(ProcessEvent::Exited);
            }
            if remaining.is_zero() {
                return Ok(ProcessEvent::TimedOut);
            }
            self.input.feed().with_context(|| format!("cannot write to {}", self.program))?;
            self.stdout.collect().with_context(|| format!("cannot read from {}", self.program))?;
            self.stderr.collect().with_context(|| format!("cannot read from {}", self.program))?;
        }
    }

    /// Waits for an event on the process or its pipes; true if the program has exited.
    fn poll(&self, timeout: Duration) -> Result<bool> {
        let mut fds = vec![PollFd::new(&self.pidfd, PollFlags::IN)];
        fds.extend(self.input.pipe.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::OUT)));
        fds.extend(self.stdout.pipe.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        fds.extend(self.stderr.pipe.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        let timeout = Timespec::try_from(timeout).context("the deadline is too far away")?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) => Ok(!fds[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error).with_context(|| format!("cannot wait for {}", self.program)),
        }
    }

    fn finish(mut self) -> Result<Outcome> {
        let elapsed = self.started.elapsed();
        let status = self.child.wait().with_context(|| format!("cannot reap {}", self.program))?;
        self.reaped = Some(status);
        self.stdout.collect()?;
        self.stderr.collect()?;
        Ok(Outcome {
            status,
            stdout: String::from_utf8_lossy(&self.stdout.bytes).into_owned(),
            stderr: String::from_utf8_lossy(&self.stderr.bytes).into_owned(),
            elapsed,
        })
    }

    fn destroy(&mut self) {
        if self.reaped.is_none() {
            // Not reaped, so the group ID is not reused. A failure means that no process is left.
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            self.reaped = self.child.wait().ok();
        }
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        self.destroy();
    }
}

impl Input {
    fn feed(&mut self) -> std::io::Result<()> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        while self.written < self.bytes.len() {
            match pipe.write(&self.bytes[self.written..]) {
                Ok(count) => self.written += count,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // A program may exit without reading all of its input.
                Err(e) if e.kind() == ErrorKind::BrokenPipe => break,
                Err(e) => return Err(e),
            }
        }
        self.pipe = None;
        Ok(())
    }
}

impl<R: Read> OutputPipe<R> {
    /// Reads the available output without waiting. A grandchild may keep the pipe open after its parent has exited.
    fn collect(&mut self) -> std::io::Result<()> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        match pipe.read_to_end(&mut self.bytes) {
            Ok(_) => self.pipe = None,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }
}

/// Waits until no process of the group is running. Its leader has already been reaped.
pub fn wait_for_group(group: Pid) -> Result<()> {
    let number = group.as_raw_nonzero();
    let result = wait_until(&format!("the exit of process group {number}"), DEADLINE, || {
        let is_empty = rustix::process::test_kill_process_group(group) == Err(rustix::io::Errno::SRCH);
        Ok(is_empty || !group_runs(number.get())?)
    });
    if result.is_err() {
        // The group has members, so its ID is not reused.
        let _ = kill_process_group(group, Signal::KILL);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn input_and_output_larger_than_a_pipe_pass_through() {
        let input = vec![b'x'; 300_000];
        let outcome =
            RunningProgram::start(Command::new("cat"), input.clone()).unwrap().wait(DEADLINE).unwrap();
        assert!(outcome.success());
        assert_eq!(outcome.stdout.as_bytes(), input);
    }

    #[test]
    fn a_program_that_ignores_its_input_is_reported() {
        let outcome = RunningProgram::start(shell("echo oops >&2; exit 3"), vec![b'x'; 300_000])
            .unwrap()
            .wait(DEADLINE)
            .unwrap();
        assert_eq!((outcome.status.code(), outcome.stderr.as_str()), (Some(3), "oops\n"));
    }

    #[test]
    fn program_and_children_are_killed_at_the_deadline() {
        let running = RunningProgram::start(shell("echo hint >&2; sleep 60 & sleep 60"), vec![]).unwrap();
        let group = Pid::from_child(&running.child);
        let error = running.wait(Duration::from_millis(200)).unwrap_err().to_string();
        assert!(error.contains("/bin/sh did not exit within 200ms"), "{error}");
        wait_for_group(group).unwrap();
    }

    #[test]
    fn a_grandchild_that_holds_the_pipe_does_not_delay_the_outcome() {
        let running = RunningProgram::start(shell("echo done; sleep 600 & exit 0"), vec![]).unwrap();
        let group = Pid::from_child(&running.child);
        assert_eq!(running.wait(DEADLINE).unwrap().stdout, "done\n");
        assert!(group_runs(group.as_raw_nonzero().get()).unwrap());
        let _ = kill_process_group(group, Signal::KILL);
        wait_for_group(group).unwrap();
    }

    #[test]
    fn kill_at_kills_on_time_or_reports_an_earlier_exit() {
        let running = RunningProgram::start(shell("exec sleep 60"), vec![]).unwrap();
        let killed = running.kill_at(Duration::from_millis(30)).unwrap();
        assert!(killed.killed(), "{}", killed.status);
        assert!(killed.elapsed >= Duration::from_millis(30), "{:?}", killed.elapsed);
        let ended =
            RunningProgram::start(shell("exit 4"), vec![]).unwrap().kill_at(Duration::from_secs(20)).unwrap();
        assert_eq!(ended.status.code(), Some(4));
    }

    #[test]
    fn drop_kills_the_process_group() {
        let running = RunningProgram::start(shell("sleep 60 & sleep 60"), vec![]).unwrap();
        let group = Pid::from_child(&running.child);
        drop(running);
        wait_for_group(group).unwrap();
    }
}
