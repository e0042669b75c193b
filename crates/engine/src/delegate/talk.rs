//! What is written to the child process of an IPAM plugin and read from it, with an end to the wait.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::LARGEST_ANSWER;

/// How often the caller is asked whether it still wants the answer.
const POLL: Duration = Duration::from_millis(250);
/// How long an answer is waited for after the child's end. A daemon that the child left may keep its stdout open.
const GRACE: Duration = Duration::from_millis(100);
/// As much as a pipe holds.
const CHUNK: usize = 64 << 10;

/// Why there is no answer.
pub(super) enum Broken {
    Unwanted,
    Late,
    TooLarge,
    Io(std::io::Error),
}

impl From<Errno> for Broken {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

pub(super) enum DelegateLife {
    /// Readable when it ends.
    Running(OwnedFd),
    Over {
        grace: Instant,
    },
}

/// The pipes and the life of a child process, served by one thread that never waits for the pipes alone.
pub(super) struct Talk<'a> {
    /// None: all is written, or it does not want to read.
    pub(super) stdin: Option<ChildStdin>,
    pub(super) unsent: &'a [u8],
    /// None: closed at the other end.
    pub(super) stdout: Option<ChildStdout>,
    pub(super) answer: Vec<u8>,
    pub(super) life: DelegateLife,
}

impl Talk<'_> {
    pub(super) fn run(&mut self, deadline: Instant, is_wanted: &dyn Fn() -> bool) -> Result<(), Broken> {
        if let Some(stdin) = &self.stdin {
            rustix::io::ioctl_fionbio(stdin, true)?;
        }
        if let Some(stdout) = &self.stdout {
            rustix::io::ioctl_fionbio(stdout, true)?;
        }
        loop {
            let until = match (&self.life, &self.stdout) {
                (DelegateLife::Running(_), _) if !is_wanted() => return Err(Broken::Unwanted),
                (DelegateLife::Running(_), _) => deadline,
                (DelegateLife::Over { .. }, None) => return Ok(()),
                (DelegateLife::Over { grace }, Some(_)) => *grace,
            };
            let Some(timeout) = remaining(until.min(Instant::now() + POLL)) else {
                return match self.life {
                    DelegateLife::Running(_) => Err(Broken::Late),
                    DelegateLife::Over { .. } => Ok(()),
                };
            };
            let is_over = self.wait(&timeout)?;
            self.write()?;
            // After `wait`: if the child has ended, all its output is in the pipe.
            self.read()?;
            if is_over {
                self.stdin = None;
                self.life = DelegateLife::Over { grace: Instant::now() + GRACE };
            }
        }
    }

    /// Until something can be done. True: it has just ended.
    fn wait(&self, timeout: &Timespec) -> Result<bool, Broken> {
        let mut fds = Vec::with_capacity(3);
        let running = match &self.life {
            DelegateLife::Running(ended) => Some(ended.as_fd()),
            DelegateLife::Over { .. } => None,
        };
        fds.extend(running.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        fds.extend(self.stdout.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        fds.extend(self.stdin.as_ref().map(|fd| PollFd::new(fd, PollFlags::OUT)));
        match poll(&mut fds, Some(timeout)) {
            Ok(_) => Ok(running.is_some() && fds.first().is_some_and(|fd| !fd.revents().is_empty())),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// A plugin that does not read its config (host-local on DEL of nothing) closes the pipe. That is no failure.
    fn write(&mut self) -> Result<(), Broken> {
        let Some(stdin) = &mut self.stdin else { return Ok(()) };
        match stdin.write(self.unsent) {
            Ok(count) => self.unsent = self.unsent.get(count..).unwrap_or_default(),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(e) if e.kind() == ErrorKind::BrokenPipe => self.unsent = &[],
            Err(e) => return Err(Broken::Io(e)),
        }
        if self.unsent.is_empty() {
            self.stdin = None;
        }
        Ok(())
    }

    /// All that is there. Ends: what is too large is an error.
    fn read(&mut self) -> Result<(), Broken> {
        let mut chunk = vec![0; CHUNK];
        while let Some(stdout) = &mut self.stdout {
            match stdout.read(&mut chunk) {
                Ok(0) => self.stdout = None,
                Ok(count) => self.answer.extend_from_slice(chunk.get(..count).unwrap_or_default()),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(Broken::Io(e)),
            }
            if self.answer.len() > LARGEST_ANSWER {
                return Err(Broken::TooLarge);
            }
        }
        Ok(())
    }
}

/// None: it is over.
pub(super) fn remaining(deadline: Instant) -> Option<Timespec> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left == Duration::ZERO { None } else { Timespec::try_from(left).ok() }
}
