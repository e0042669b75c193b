//! The agent of a node: start, wait until ready, signal, kill, restart.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use api::Client;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::service::{LabProcess, ProcessLifetime, ProgramSpec};
use crate::{DEADLINE, Node, Ns, ProcessIdentity, program};

const BINARY: &str = "podwire";
/// Environment variable with the path of the program to run instead.
const OVERRIDE: &str = "PODWIRE";
/// Name of the agent's config file in the node's directory.
pub(crate) const CONFIG: &str = "agent.toml";
/// Timeout of one API request.
const REQUEST_TIMEOUT: Duration = DEADLINE;
/// Timeout of a request for the status. The status of an agent that hangs is unknown.
const STATUS_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval of the check whether an agent that is not ready waits in vain.
const MISMATCH_INTERVAL: Duration = Duration::from_secs(1);
/// The condition of an agent whose settings differ from those in the store.
const MISMATCH: &str = "NetworkMismatch";

/// An agent in a node's namespace, with its directories inside the node's directory. It is killed on drop.
#[derive(Debug)]
pub struct Agent {
    ns: Ns,
    program: PathBuf,
    flags: Vec<String>,
    env: Vec<(String, String)>,
    run_dir: PathBuf,
    log: PathBuf,
    /// The length of the log before the last start. 0 for a process that another run of this program started.
    log_start: usize,
    life: ProcessLifetime,
    process: Option<LabProcess>,
}

impl Agent {
    /// Starts an agent with these flags in addition to its directories, and waits until it is ready.
    pub fn start(node: &Node, flags: &[&str]) -> Result<Self> {
        let mut agent = Self::new(node, flags)?;
        agent.launch()?;
        agent.wait_ready()?;
        Ok(agent)
    }

    /// An agent that does not run yet.
    pub fn new(node: &Node, flags: &[&str]) -> Result<Self> {
        Self::in_dir(node, node.dir(), flags)
    }

    /// Creates an agent with its own directory, for a second agent on one node.
    pub fn in_dir(node: &Node, dir: &Path, flags: &[&str]) -> Result<Self> {
        Self::of_program(program()?, (node, dir), flags)
    }

    /// Creates an agent that runs this program, with its directories inside `dir`.
    pub fn of_program(program: PathBuf, (node, dir): (&Node, &Path), flags: &[&str]) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("cannot create directory {}", dir.display()))?;
        let run_dir = dir.join("state");
        let mut all: Vec<String> = Vec::new();
        for (flag, dir) in [("--run-dir", run_dir.clone()), ("--state-dir", dir.join("lib"))] {
            all.extend([flag.to_owned(), dir.display().to_string()]);
        }
        // An explicit config file, so that the agent never reads the host's own.
        let config = dir.join(CONFIG);
        if !config.exists() {
            fs::write(&config, "").with_context(|| format!("cannot write {}", config.display()))?;
        }
        all.extend(["--config".to_owned(), config.display().to_string()]);
        all.extend(flags.iter().map(|&flag| flag.to_owned()));
        Ok(Self {
            ns: (**node).clone(),
            program,
            flags: all,
            env: vec![],
            run_dir,
            log: dir.join("agent.log"),
            log_start: 0,
            life: ProcessLifetime::Owner,
            process: None,
        })
    }

    /// Creates the agent of a cluster node. The cluster sets its lifetime and may set another program.
    pub(crate) fn of_cluster(
        node: &Node,
        flags: &[String],
        life: (&ProcessLifetime, Option<&Path>),
    ) -> Result<Self> {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let (life, program_override) = life;
        let program = program_override.map_or_else(program, |path| Ok(path.to_owned()))?;
        let mut agent = Self::of_program(program, (node, node.dir()), &flags)?;
        agent.life = life.clone();
        Ok(agent)
    }

    /// Takes over the process that another run of this program started, if it is still running.
    pub(crate) fn adopt(&mut self, identity: ProcessIdentity) -> Result<()> {
        self.process = LabProcess::adopt(identity)?;
        Ok(())
    }

    /// Changes the value of an existing flag for the next start.
    pub fn set_flag(&mut self, flag: &str, value: &str) -> Result<()> {
        let at = self
            .flags
            .iter()
            .position(|one| one == flag)
            .with_context(|| format!("the agent was not started with {flag}"))?;
        let old = self.flags.get_mut(at + 1).with_context(|| format!("{flag} has no value"))?;
        value.clone_into(old);
        Ok(())
    }

    /// Sets environment variables for the next start. PATH is always set.
    pub fn set_env(&mut self, env: &[(String, String)]) {
        self.env = env.to_vec();
    }

    /// Starts the process without waiting until it is ready.
    pub fn launch(&mut self) -> Result<()> {
        if self.process.as_ref().map(LabProcess::has_ended).transpose()? == Some(true) {
            self.process.take().map(LabProcess::wait).transpose()?;
        }
        ensure!(self.process.is_none(), "the agent is already running");
        self.log_start = self.log().map_or(0, |log| log.len());
        let args: Vec<String> = ["agent".to_owned()].into_iter().chain(self.flags.iter().cloned()).collect();
        self.process = Some(LabProcess::start(ProgramSpec {
            ns: &self.ns,
            program: self.program.clone(),
            args: &args,
            env: &self.env,
            log: self.log.clone(),
            life: self.life.clone(),
        })?);
        Ok(())
    }

    /// Waits until the agent serves ADD. If the agent exits first, the error contains the cause and the log since its start.
    pub fn wait_ready(&mut self) -> Result<()> {
        let end = Instant::now() + DEADLINE;
        let mut check_at = Instant::now() + MISMATCH_INTERVAL;
        while !self.is_ready() {
            if let Some(ended) = self.process.take_if(|process| process.has_ended().unwrap_or(false)) {
                let status = ended.wait()?.map_or_else(String::new, |status| format!(" with {status}"));
                bail!("the agent exited{status}: {}", cause_first(&self.log_of_start()));
            }
            if Instant::now() >= check_at {
                ensure!(!self.has_mismatch(), "the agent cannot become ready: {}", self.obstacles());
                check_at = Instant::now() + MISMATCH_INTERVAL;
            }
            ensure!(Instant::now() < end, "the agent is not ready after {DEADLINE:?}: {}", self.obstacles());
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    pub fn is_ready(&self) -> bool {
        self.client().get(api::READY, REQUEST_TIMEOUT).is_ok_and(|answer| answer.status == 200)
    }

    /// Sends SIGKILL and waits for the exit.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().context("the agent is not running")?.kill().context("cannot kill the agent")
    }

    /// Sends SIGTERM and waits for the exit.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        let process = self.process.take().context("the agent is not running")?;
        process.wait().context("cannot stop the agent")?.context("another process started the agent")
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.as_ref().context("the agent is not running")?.signal(signal)
    }

    /// Kills and starts the agent, and waits until it is ready.
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        self.launch()?;
        self.wait_ready()
    }

    /// True if no process is running.
    pub fn has_ended(&self) -> Result<bool> {
        self.process.as_ref().map_or(Ok(true), LabProcess::has_ended)
    }

    pub fn pid(&self) -> Option<u32> {
        self.identity().map(|identity| identity.pid)
    }

    pub(crate) fn identity(&self) -> Option<ProcessIdentity> {
        self.process.as_ref().map(LabProcess::identity)
    }

    /// Sets the program for the next start, as an upgrade does.
    pub fn set_program(&mut self, program: &Path) {
        self.program = program.to_owned();
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    pub fn socket(&self) -> PathBuf {
        self.run_dir.join("agent.sock")
    }

    pub fn client(&self) -> Client {
        Client::new(&self.socket())
    }

    /// Sends GET and parses the response as JSON. Any status except 200 is an error.
    pub fn get(&self, path: &str) -> Result<Value> {
        self.get_within(path, REQUEST_TIMEOUT)
    }

    /// The status of an agent that answers soon.
    pub fn status(&self) -> Result<api::Status> {
        Ok(serde_json::from_value(self.get_within(api::STATUS, STATUS_TIMEOUT)?)?)
    }

    fn get_within(&self, path: &str, timeout: Duration) -> Result<Value> {
        let answer = self.client().get(path, timeout)?;
        let text = String::from_utf8_lossy(&answer.body);
        ensure!(answer.status == 200, "{path}: {} {text}", answer.status);
        serde_json::from_str(&text).with_context(|| format!("{path} did not return JSON: {text:?}"))
    }

    /// The agent's metrics in the Prometheus text format.
    pub fn metrics(&self) -> Result<String> {
        let answer = self.client().get(api::METRICS, REQUEST_TIMEOUT)?;
        Ok(String::from_utf8_lossy(&answer.body).into_owned())
    }

    /// A network config for the plugin that uses this agent: network `podwire`, extended or overridden with these keys.
    pub fn config(&self, more: &Value) -> Value {
        let mut config = json!({
            "cniVersion": "1.1.0", "name": "podwire", "type": "podwire-cni",
            "agent": self.socket(), "runDir": self.run_dir, "logFile": self.run_dir.with_extension("cni.log"),
        });
        if let (Some(config), Some(more)) = (config.as_object_mut(), more.as_object()) {
            config.extend(more.clone());
        }
        config
    }

    pub fn log(&self) -> Result<String> {
        fs::read_to_string(&self.log).with_context(|| format!("cannot read {}", self.log.display()))
    }

    /// Empty if the agent does not answer.
    fn conditions(&self) -> Vec<api::Condition> {
        self.status().map(|status| status.conditions).unwrap_or_default()
    }

    /// Only another configuration helps such an agent.
    fn has_mismatch(&self) -> bool {
        self.conditions().iter().any(|condition| condition.code.to_string() == MISMATCH)
    }

    /// The conditions of the agent, or the end of its log if it does not answer.
    fn obstacles(&self) -> String {
        let conditions = self.conditions();
        if conditions.is_empty() {
            return self.log_tail();
        }
        let lines = conditions.iter().map(|one| format!("{} {}: {}", one.code, one.object, one.message));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// The log since the last start.
    fn log_of_start(&self) -> String {
        let log = self.log().unwrap_or_default();
        log.get(self.log_start..).unwrap_or(&log).to_owned()
    }

    fn log_tail(&self) -> String {
        last_lines(&self.log_of_start().lines().collect::<Vec<_>>())
    }

    /// Runs a `podwire` command inside the node.
    pub fn podwire(&self, args: &[&str]) -> Result<crate::Outcome> {
        let program = self.program.display().to_string();
        let argv: Vec<&str> = [program.as_str()].into_iter().chain(args.iter().copied()).collect();
        self.ns.run(&argv, b"")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("end of the agent's log:\n{}", self.log_tail());
        }
    }
}

/// The last 20 lines.
fn last_lines(lines: &[&str]) -> String {
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// The error of an agent that exited, then the end of its log. The error starts with `podwire: ` and may have several lines.
fn cause_first(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let is_error = |line: &&str| line.starts_with("podwire: ");
    let (log, cause) = lines.split_at(lines.iter().position(is_error).unwrap_or(lines.len()));
    match (log, cause) {
        (log, []) => last_lines(log),
        ([], cause) => cause.join("\n"),
        (log, cause) => format!("{}\nits log:\n{}", cause.join("\n"), last_lines(log)),
    }
}

/// Path of the `podwire` program that agents run: the value of PODWIRE, or the file next to this program.
pub fn program() -> Result<PathBuf> {
    program::find(BINARY, OVERRIDE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_of_an_exit_comes_before_the_log() {
        let error = "podwire: invalid configuration, 2 problems:\n  a\n  b";
        assert_eq!(
            cause_first(&format!("10:00 starting\n10:01 stopping\n{error}\n")),
            format!("{error}\nits log:\n10:00 starting\n10:01 stopping")
        );
        assert_eq!(cause_first(error), error);
        assert_eq!(cause_first("10:00 starting\n"), "10:00 starting");
    }
}
