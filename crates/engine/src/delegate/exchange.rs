//! Communication with the child process of an IPAM plugin, with a timeout.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::MAX_ANSWER;

/// Interval of checks whether the caller cancelled the request.
const POLL: Duration = Duration::from_millis(250);
/// How long to read after the child exited. A daemon that it started may keep stdout open.
const GRACE: Duration = Duration::from_millis(100);
/// The capacity of a pipe.
const CHUNK: usize = 64 << 10;

/// The reason why there is no answer.
pub(super) enum ExchangeError {
    Cancelled,
    Timeout,
    TooLarge,
    Io(std::io::Error),
}

impl From<Errno> for ExchangeError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

pub(super) enum DelegateState {
    /// The pidfd is readable when the child exits.
    Running(OwnedFd),
    Exited {
        read_until: Instant,
    },
}

/// The pipes and the state of a child process. One thread serves them and never blocks on a pipe alone.
pub(super) struct DelegateExchange<'a> {
    /// None after everything was written, or the child closed it.
    pub(super) stdin: Option<ChildStdin>,
    pub(super) unsent: &'a [u8],
    /// None after the child closed it.
    pub(super) stdout: Option<ChildStdout>,
    pub(super) answer: Vec<u8>,
    pub(super) child: DelegateState,
}

impl DelegateExchange<'_> {
    /// Writes the config and reads the answer until the child has exited. `is_wanted` returns false after the caller cancelled the
    /// request.
    pub(super) fn run(
        &mut self,
        deadline: Instant,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<(), ExchangeError> {
        if let Some(stdin) = &self.stdin {
            rustix::io::ioctl_fionbio(stdin, true)?;
        }
        if let Some(stdout) = &self.stdout {
            rustix::io::ioctl_fionbio(stdout, true)?;
        }
        loop {
            let until = match (&self.child, &self.stdout) {
                (DelegateState::Running(_), _) if !is_wanted() => return Err(ExchangeError::Cancelled),
                (DelegateState::Running(_), _) => deadline,
                (DelegateState::Exited { .. }, None) => return Ok(()),
                (DelegateState::Exited { read_until }, Some(_)) => *read_until,
            };
            let Some(timeout) = remaining(until.min(Instant::now() + POLL)) else {
                return match self.child {
                    DelegateState::Running(_) => Err(ExchangeError::Timeout),
                    DelegateState::Exited { .. } => Ok(()),
                };
            };
            let has_exited = self.wait(&timeout)?;
            self.write()?;
            // After `wait`: if the child has exited, all its output is in the pipe.
            self.read()?;
            if has_exited {
                self.stdin = None;
                self.child = DelegateState::Exited { read_until: Instant::now() + GRACE };
            }
        }
    }

    /// Waits until a pipe is ready or the child exits. Returns whether it has just exited.
    fn wait(&self, timeout: &Timespec) -> Result<bool, ExchangeError> {
        let mut fds = Vec::with_capacity(3);
        let running = match &self.child {
            DelegateState::Running(pidfd) => Some(pidfd.as_fd()),
            DelegateState::Exited { .. } => None,
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

    /// A plugin that does not read its config (host-local, DEL without a lease) closes the pipe. This is no error.
    fn write(&mut self) -> Result<(), ExchangeError> {
        let Some(stdin) = &mut self.stdin else { return Ok(()) };
        match stdin.write(self.unsent) {
            Ok(count) => self.unsent = self.unsent.get(count..).unwrap_or_default(),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(e) if e.kind() == ErrorKind::BrokenPipe => self.unsent = &[],
            Err(e) => return Err(ExchangeError::Io(e)),
        }
        if self.unsent.is_empty() {
            self.stdin = None;
        }
        Ok(())
    }

    /// Reads all available output. The size limit bounds the loop.
    fn read(&mut self) -> Result<(), ExchangeError> {
        let mut chunk = vec![0; CHUNK];
        while let Some(stdout) = &mut self.stdout {
            match stdout.read(&mut chunk) {
                Ok(0) => self.stdout = None,
                Ok(count) => self.answer.extend_from_slice(chunk.get(..count).unwrap_or_default()),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(ExchangeError::Io(e)),
            }
            if self.answer.len() > MAX_ANSWER {
                return Err(ExchangeError::TooLarge);
            }
        }
        Ok(())
    }
}

/// The time until the deadline. None after it.
pub(super) fn remaining(deadline: Instant) -> Option<Timespec> {
    let time = deadline.saturating_duration_since(Instant::now());
    if time == Duration::ZERO { None } else { Timespec::try_from(time).ok() }
}
