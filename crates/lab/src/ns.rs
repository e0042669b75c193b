use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use netlink::NetNs;
use serde_json::Value;

use crate::{DEADLINE, Outcome, RunningProgram, search_path};

/// A named network namespace. It holds no file descriptor, so it does not keep a destroyed namespace alive.
#[derive(Debug, Clone)]
pub struct Ns {
    name: String,
    path: PathBuf,
}

impl Ns {
    pub(crate) fn new(name: String) -> Self {
        let path = crate::sweep::namespace_path(&name);
        Self { name, path }
    }

    /// The name for `ip netns exec`.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn cookie(&self) -> Result<u64> {
        let cookie = self.open()?.cookie();
        cookie.with_context(|| format!("cannot read the cookie of namespace {}", self.name))
    }

    /// Runs a closure inside the namespace. Sockets and child processes that it creates stay in the namespace.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        self.open()?.run(work).with_context(|| format!("cannot run inside namespace {}", self.name))
    }

    /// Runs a program inside the namespace and returns its stdout. A nonzero exit code is an error that contains stderr.
    pub fn sh(&self, argv: &[&str]) -> Result<String> {
        let outcome = self.run(argv, b"")?;
        if !outcome.success() {
            bail!("`{}` in {} failed: {}", argv.join(" "), self.name, outcome.describe());
        }
        Ok(outcome.stdout)
    }

    /// Like `sh`, for programs that print JSON. Empty output is null.
    pub fn json(&self, argv: &[&str]) -> Result<Value> {
        let text = self.sh(argv)?;
        if text.trim().is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_str(&text)
            .with_context(|| format!("`{}` did not print JSON: {text:?}", argv.join(" ")))
    }

    /// Runs a program inside the namespace with this stdin. The caller checks the exit code.
    pub fn run(&self, argv: &[&str], stdin: &[u8]) -> Result<Outcome> {
        ensure!(!argv.is_empty(), "no program given to run in {}", self.name);
        let mut command = Command::new(argv[0]);
        // LC_ALL=C, because tests compare messages. No other variables, because PODWIRE_* variables select other agents.
        command.args(&argv[1..]).env_clear().env("LC_ALL", "C").env("PATH", search_path());
        self.start(command, stdin.to_vec())?.wait(DEADLINE)
    }

    /// Starts a program inside the namespace. A child inherits the namespace of the thread that starts it.
    pub fn start(&self, command: Command, stdin: Vec<u8>) -> Result<RunningProgram> {
        self.enter(|| RunningProgram::start(command, stdin))?
    }

    fn open(&self) -> Result<NetNs> {
        NetNs::open(&self.path).with_context(|| format!("cannot open namespace {}", self.name))
    }
}
