//! Another IPAM plugin, called as the spec says: found in CNI_PATH, same environment, the whole config on stdin, its
//! stderr forwarded. A child process of a request, and only where a config asks for it.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use cni::{CniResult, Config};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;

use crate::Error;

/// A DHCP server may take its time; for ever is too long.
const PATIENCE: Duration = Duration::from_secs(110);
/// So long after its end an answer is waited for that somebody else may still write: it may have left a daemon that keeps
/// its stdout open.
const GRACE: Duration = Duration::from_millis(100);
/// How long the kernel may take to end one that was killed.
const DYING: Duration = Duration::from_secs(5);
/// No result of an IPAM plugin is larger than a request may be.
const LARGEST_ANSWER: usize = cni::MAX_STDIN;
/// As much as a pipe holds.
const CHUNK: usize = 64 << 10;

pub(crate) struct Delegate<'a> {
    name: String,
    program: PathBuf,
    config: &'a Config,
    patience: Duration,
}

impl<'a> Delegate<'a> {
    pub(crate) fn find(name: &str, path: &[String], config: &'a Config) -> Result<Self, Error> {
        let found = path.iter().map(|dir| PathBuf::from(dir).join(name)).find(|program| program.is_file());
        match found {
            Some(program) => Ok(Self { name: name.to_owned(), program, config, patience: PATIENCE }),
            None => Err(Error::Delegate {
                name: name.to_owned(),
                what: format!("not found in CNI_PATH ({})", path.join(":")),
            }),
        }
    }

    pub(crate) fn add(&self) -> Result<CniResult, Error> {
        let answer = self.call("ADD")?;
        let value: Value =
            serde_json::from_slice(&answer).map_err(|e| self.failed(format!("unreadable answer: {e}")))?;
        Ok(CniResult::from_json(self.config.version, &value)?)
    }

    pub(crate) fn del(&self) -> Result<(), Error> {
        self.call("DEL").map(drop)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.call("CHECK").map(drop)
    }

    pub(crate) fn gc(&self) -> Result<(), Error> {
        self.call("GC").map(drop)
    }

    pub(crate) fn status(&self) -> Result<(), Error> {
        self.call("STATUS").map(drop)
    }

    fn call(&self, verb: &str) -> Result<Vec<u8>, Error> {
        let mut child = Command::new(&self.program)
            // Not those of this process: an agent serves many requests.
            .envs(self.config.variables.all())
            .env("CNI_COMMAND", verb)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| self.failed(format!("cannot run {}: {e}", self.program.display())))?;
        let answer = self.converse(&mut child);
        if answer.is_err() {
            // It may have ended by itself already.
            let _ = child.kill();
        }
        let status = self.reap(&mut child).map_err(|e| self.failed(format!("{verb}: {e}")));
        let (answer, status) = (answer?, status?);
        if status.success() {
            return Ok(answer);
        }
        // Its own error, with its own code, says it best.
        let theirs = serde_json::from_slice(&answer).ok().and_then(|value| cni::Error::from_json(&value));
        Err(match theirs {
            Some(mut error) => {
                error.msg = format!("IPAM plugin {}: {}", self.name, error.msg);
                Error::Cni(error)
            }
            None => self.failed(format!("{verb} ended with {status}")),
        })
    }

    /// Writes the config and reads the answer until the child has ended, with an end to the wait.
    fn converse(&self, child: &mut Child) -> Result<Vec<u8>, Error> {
        let ended = pidfd_open(Pid::from_child(child), PidfdFlags::empty())
            .map_err(|e| self.failed(format!("cannot watch it: {e}")))?;
        let mut talk = Talk {
            stdin: child.stdin.take(),
            unsent: &self.config.raw,
            stdout: child.stdout.take(),
            answer: Vec::new(),
            life: Life::Running(ended),
        };
        talk.run(Instant::now() + self.patience).map_err(|e| match e {
            Broken::Late => self.failed(format!("it did not end within {:?}", self.patience)),
            Broken::TooLarge => self.failed(format!("its answer is larger than {LARGEST_ANSWER} bytes")),
            Broken::Io(e) => self.failed(format!("cannot talk to it: {e}")),
        })?;
        Ok(talk.answer)
    }

    /// It has ended, or was killed.
    fn reap(&self, child: &mut Child) -> std::io::Result<std::process::ExitStatus> {
        let ended = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        let deadline = Instant::now() + DYING;
        while let Some(timeout) = remaining(deadline) {
            match poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&timeout)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return child.wait(),
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(std::io::Error::new(
            ErrorKind::TimedOut,
            format!("it was killed and is still there after {DYING:?}"),
        ))
    }

    fn failed(&self, what: String) -> Error {
        Error::Delegate { name: self.name.clone(), what }
    }
}

/// Why there is no answer.
enum Broken {
    Late,
    TooLarge,
    Io(std::io::Error),
}

impl From<Errno> for Broken {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

enum Life {
    /// Readable when it ends.
    Running(OwnedFd),
    Over {
        grace: Instant,
    },
}

/// What is said to a child and heard from it, all by one thread that never waits for the pipes alone.
struct Talk<'a> {
    /// None: all is written, or it does not want to read.
    stdin: Option<ChildStdin>,
    unsent: &'a [u8],
    /// None: closed at the other end.
    stdout: Option<ChildStdout>,
    answer: Vec<u8>,
    life: Life,
}

impl Talk<'_> {
    fn run(&mut self, deadline: Instant) -> Result<(), Broken> {
        if let Some(stdin) = &self.stdin {
            rustix::io::ioctl_fionbio(stdin, true)?;
        }
        if let Some(stdout) = &self.stdout {
            rustix::io::ioctl_fionbio(stdout, true)?;
        }
        loop {
            let until = match (&self.life, &self.stdout) {
                (Life::Running(_), _) => deadline,
                (Life::Over { .. }, None) => return Ok(()),
                (Life::Over { grace }, Some(_)) => *grace,
            };
            let Some(timeout) = remaining(until) else {
                return match self.life {
                    Life::Running(_) => Err(Broken::Late),
                    Life::Over { .. } => Ok(()),
                };
            };
            let is_over = self.wait(&timeout)?;
            self.write()?;
            // After the look at its life: what it wrote before its end is there now.
            self.read()?;
            if is_over {
                self.stdin = None;
                self.life = Life::Over { grace: Instant::now() + GRACE };
            }
        }
    }

    /// Until something can be done. True: it has just ended.
    fn wait(&self, timeout: &Timespec) -> Result<bool, Broken> {
        let mut fds = Vec::with_capacity(3);
        let running = match &self.life {
            Life::Running(ended) => Some(ended.as_fd()),
            Life::Over { .. } => None,
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

    /// A plugin that does not read its config (host-local on DEL of nothing) closes the pipe: not our failure.
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
fn remaining(deadline: Instant) -> Option<Timespec> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left == Duration::ZERO { None } else { Timespec::try_from(left).ok() }
}

#[cfg(test)]
mod tests {
    use cni::{Env, Request};
    use tempfile::TempDir;

    use super::*;

    /// Nothing that ends by itself takes so long.
    const LONG: Duration = Duration::from_secs(30);

    /// Calls a script, and says how long that took.
    fn call(script: &str, patience: Duration, padding: usize) -> (Result<Vec<u8>, Error>, Duration) {
        let dir = TempDir::new().unwrap();
        let program = dir.path().join("ipam");
        // Not by this process: another test's child could inherit the descriptor, and then it cannot be executed.
        let write = Command::new("sh")
            .args(["-c", "printf '#!/bin/sh\\n%s\\n' \"$2\" >\"$1\" && chmod 755 \"$1\"", "sh"])
            .args([program.as_os_str(), script.as_ref()])
            .status();
        assert!(write.unwrap().success());
        let vars =
            [("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", "a"), ("CNI_NETNS", "/x"), ("CNI_IFNAME", "eth0")];
        let env = Env::from_vars(vars.map(|(name, value)| (name.into(), value.into())));
        let text =
            format!(r#"{{"cniVersion":"1.1.0","name":"n","type":"t","pad":"{}"}}"#, "x".repeat(padding));
        let Ok(Request::Add(request)) = Request::parse(&env, text.as_bytes()) else { panic!("no ADD") };
        let path = [dir.path().to_str().unwrap().to_owned()];
        let mut delegate = Delegate::find("ipam", &path, &request.config).unwrap();
        delegate.patience = patience;
        let started = Instant::now();
        (delegate.call("ADD"), started.elapsed())
    }

    fn is_alive(pid: &str) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    }

    #[test]
    fn an_answer_larger_than_a_pipe_comes_whole() {
        let (answer, _) = call("cat", LONG, 300_000);
        assert!(answer.unwrap().len() > 300_000);
    }

    #[test]
    fn one_that_does_not_read_its_config_is_heard() {
        let (answer, _) = call("exec <&-; echo '{}'", LONG, 300_000);
        assert_eq!(answer.unwrap(), b"{}\n");
    }

    #[test]
    fn its_own_error_is_told() {
        let (answer, _) = call(r#"cat >/dev/null; echo '{"code":123,"msg":"no lease"}'; exit 1"#, LONG, 0);
        let error: cni::Error = answer.unwrap_err().into();
        assert!(error.msg.contains("no lease"), "{error}");
    }

    #[test]
    fn one_that_hangs_is_ended() {
        let (answer, took) = call("cat >/dev/null; exec sleep 60", Duration::from_millis(300), 0);
        let error: cni::Error = answer.unwrap_err().into();
        assert!(error.to_string().contains("did not end within"), "{error}");
        assert!(took < LONG, "{took:?}");
    }

    #[test]
    fn one_that_answers_and_closes_stdout_but_stays_is_ended() {
        let dir = TempDir::new().unwrap();
        let pid = dir.path().join("pid");
        let script = format!("echo $$ >{}; echo '{{}}'; exec >&-; exec sleep 60", pid.display());
        let (answer, took) = call(&script, Duration::from_secs(1), 0);
        let error: cni::Error = answer.unwrap_err().into();
        assert!(error.to_string().contains("did not end within"), "{error}");
        assert!(took < LONG, "{took:?}");
        assert!(!is_alive(std::fs::read_to_string(pid).unwrap().trim()));
    }

    #[test]
    fn one_that_leaves_a_daemon_with_its_stdout_has_answered() {
        let (answer, took) = call("sleep 20 & echo '{}'", LONG, 0);
        assert_eq!(answer.unwrap(), b"{}\n");
        assert!(took < Duration::from_secs(10), "{took:?}");
    }

    #[test]
    fn one_that_never_ends_its_answer_is_ended() {
        let (answer, took) = call("exec yes", LONG, 0);
        let error: cni::Error = answer.unwrap_err().into();
        assert!(error.to_string().contains("larger than"), "{error}");
        assert!(took < LONG, "{took:?}");
    }
}
