//! A background program on a machine: start, stop, kill and restart. Its log is kept.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use testkit::{DEADLINE, wait_until};

use crate::Machine;
use crate::machine::tail;

const STOP_TIMEOUT: Duration = DEADLINE;

/// How to stop a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// As an init system does.
    Sigterm,
    /// As the kernel's OOM killer does.
    Sigkill,
}

/// A daemon on a machine. It is killed on drop. If the test is panicking, the end of its log is printed.
#[derive(Debug)]
pub struct Service {
    machine: Machine,
    name: String,
    argv: Vec<String>,
    child: Option<Child>,
}

impl Service {
    /// Starts the program inside the machine; its output goes to `NAME.log` in the machine's directory.
    pub fn start(machine: &Machine, name: &str, argv: &[&str]) -> Result<Self> {
        let argv = argv.iter().map(|&word| word.to_owned()).collect();
        let mut service = Self { machine: machine.clone(), name: name.to_owned(), argv, child: None };
        service.launch()?;
        Ok(service)
    }

    /// Stops the program and waits for its exit. Its children keep running.
    pub fn stop(&mut self, how: Stop) -> Result<ExitStatus> {
        let Some(mut child) = self.child.take() else { bail!("{} is not running", self.name) };
        self.signal(how)?;
        let mut status = None;
        wait_until(&format!("the exit of {}", self.name), STOP_TIMEOUT, || {
            status = child.try_wait().with_context(|| format!("cannot watch {}", self.name))?;
            Ok(status.is_some())
        })?;
        status.with_context(|| format!("{} has no status", self.name))
    }

    /// Starts the program after `stop` or after it exited.
    pub fn launch(&mut self) -> Result<()> {
        let pid_file = self.pid_file();
        if let Err(e) = fs::remove_file(&pid_file)
            && e.kind() != std::io::ErrorKind::NotFound
        {
            return Err(e).with_context(|| format!("cannot remove {}", pid_file.display()));
        }
        let log = File::options().create(true).append(true).open(self.log_file());
        let log = log.with_context(|| format!("cannot open {}", self.log_file().display()))?;
        let mut command = self.machine.command();
        // Write the pid inside the machine, because the direct child of this process is `nsenter`.
        command.args(["sh", "-c", r#"echo $$ > "$0.new"; mv "$0.new" "$0"; exec "$@""#]).arg(&pid_file);
        command.args(&self.argv).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.child = Some(command.spawn().with_context(|| format!("cannot start {}", self.name))?);
        wait_until(&format!("the start of {}", self.name), DEADLINE, || Ok(pid_file.exists()))
    }

    /// Fails with the end of the log if the program has exited.
    pub fn expect_running(&mut self) -> Result<()> {
        let Some(child) = &mut self.child else { bail!("{} is not running", self.name) };
        match child.try_wait().with_context(|| format!("cannot watch {}", self.name))? {
            Some(status) => bail!("{} exited with {status}:\n{}", self.name, self.log_tail()),
            None => Ok(()),
        }
    }

    pub fn log_file(&self) -> PathBuf {
        self.machine.dir().join(format!("{}.log", self.name))
    }

    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        tail(&self.log_file())
    }

    fn signal(&self, how: Stop) -> Result<()> {
        let pid = fs::read_to_string(self.pid_file())
            .with_context(|| format!("cannot read the pid of {}", self.name))?;
        let signal = match how {
            Stop::Sigterm => "TERM",
            Stop::Sigkill => "KILL",
        };
        self.machine.sh(&["sh", "-c", r#"kill -s "$0" "$1""#, signal, pid.trim()])?;
        Ok(())
    }

    fn pid_file(&self) -> PathBuf {
        self.machine.dir().join(format!("{}.pid", self.name))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- end of {}:\n{}", self.log_file().display(), self.log_tail());
        }
        let runs = self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)));
        if runs && let Err(error) = self.stop(Stop::Sigkill) {
            eprintln!("{}: {error:#}", self.name);
        }
    }
}
