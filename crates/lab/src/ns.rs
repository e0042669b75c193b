use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use netlink::NetNs;
use serde_json::Value;

use crate::{DEADLINE, Outcome, RunningProgram, search_path};

/// A named network namespace. It holds no descriptor: a namespace that is destroyed is really gone.
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

    /// As `ip netns exec` wants it.
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

    /// Runs a closure inside the namespace. Sockets and children it makes belong there, also afterwards.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        self.open()?.run(work).with_context(|| format!("cannot run inside namespace {}", self.name))
    }

    /// Runs a program inside and gives its stdout; a status other than 0 is an error that tells stderr.
    pub fn sh(&self, argv: &[&str]) -> Result<String> {
        let outcome = self.run(argv, b"")?;
        if !outcome.success() {
            bail!("`{}` in {} failed: {}", argv.join(" "), self.name, outcome.story());
        }
        Ok(outcome.stdout)
    }

    /// As `sh`, for programs that print JSON. Nothing printed is null.
    pub fn json(&self, argv: &[&str]) -> Result<Value> {
        let text = self.sh(argv)?;
        if text.trim().is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_str(&text)
            .with_context(|| format!("`{}` did not print JSON: {text:?}", argv.join(" ")))
    }

    /// Runs a program inside with something to read; how it ends is up to the caller.
    pub fn run(&self, argv: &[&str], stdin: &[u8]) -> Result<Outcome> {
        ensure!(!argv.is_empty(), "no program given to run in {}", self.name);
        let mut command = Command::new(argv[0]);
        // No translations, because messages are compared; and no settings of Podwire, which lead to other agents.
        command.args(&argv[1..]).env_clear().env("LC_ALL", "C").env("PATH", search_path());
        self.start(command, stdin.to_vec())?.wait(DEADLINE)
    }

    /// A child inherits the namespace of the thread that starts it.
    pub fn start(&self, command: Command, stdin: Vec<u8>) -> Result<RunningProgram> {
        self.enter(|| RunningProgram::start(command, stdin))?
    }

    fn open(&self) -> Result<NetNs> {
        NetNs::open(&self.path).with_context(|| format!("cannot open namespace {}", self.name))
    }
}
