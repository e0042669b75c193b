//! The agent of a node, as systemd would run it: started, watched until it is ready, killed, ended, started again.

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
/// Names another program to run.
const OVERRIDE: &str = "PODWIRE";
/// Its config file, in its directory.
pub(crate) const CONFIG: &str = "agent.toml";
/// How long one question may take.
const QUESTION: Duration = DEADLINE;

/// An agent in a node's namespace, with its directories in the node's. Dropped, it is killed.
#[derive(Debug)]
pub struct Agent {
    ns: Ns,
    program: PathBuf,
    flags: Vec<String>,
    env: Vec<(String, String)>,
    run_dir: PathBuf,
    log: PathBuf,
    life: ProcessLifetime,
    process: Option<LabProcess>,
}

impl Agent {
    /// Starts an agent with these flags besides its directories, and waits until it is ready.
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

    /// The same with its directories in another one than the node's: a second agent on one node.
    pub fn in_dir(node: &Node, dir: &Path, flags: &[&str]) -> Result<Self> {
        Self::of_program(program()?, (node, dir), flags)
    }

    /// The same for this program, in this directory of the node.
    pub fn of_program(program: PathBuf, (node, dir): (&Node, &Path), flags: &[&str]) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("cannot make directory {}", dir.display()))?;
        let run_dir = dir.join("state");
        let mut all: Vec<String> = Vec::new();
        for (flag, dir) in [("--run-dir", run_dir.clone()), ("--state-dir", dir.join("lib"))] {
            all.extend([flag.to_owned(), dir.display().to_string()]);
        }
        // Nothing of the machine's own is ever read or written.
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
            life: ProcessLifetime::Owner,
            process: None,
        })
    }

    /// The same for a cluster, which decides how long it lives, and which program it is if not the one that was built.
    pub(crate) fn of_cluster(
        node: &Node,
        flags: &[String],
        life: (&ProcessLifetime, Option<&Path>),
    ) -> Result<Self> {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let (life, other) = life;
        let program = other.map_or_else(program, |other| Ok(other.to_owned()))?;
        let mut agent = Self::of_program(program, (node, node.dir()), &flags)?;
        agent.life = life.clone();
        Ok(agent)
    }

    /// Takes over the process that another run of this program started, if it still lives.
    pub(crate) fn adopt(&mut self, identity: ProcessIdentity) -> Result<()> {
        self.process = LabProcess::adopt(identity)?;
        Ok(())
    }

    /// Another value of a flag that it has, for the next start.
    pub fn set_flag(&mut self, flag: &str, value: &str) -> Result<()> {
        let at =
            self.flags.iter().position(|one| one == flag).with_context(|| format!("it has no {flag}"))?;
        let old = self.flags.get_mut(at + 1).with_context(|| format!("{flag} has no value"))?;
        value.clone_into(old);
        Ok(())
    }

    /// More variables for the next start; without any, the agent has only PATH.
    pub fn set_env(&mut self, env: &[(String, String)]) {
        self.env = env.to_vec();
    }

    /// Starts the process; it need not be ready when this returns.
    pub fn launch(&mut self) -> Result<()> {
        if self.process.as_ref().map(LabProcess::has_ended).transpose()? == Some(true) {
            self.process.take().map(LabProcess::wait).transpose()?;
        }
        ensure!(self.process.is_none(), "the agent runs already");
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

    /// Waits until ADDs are served. An agent that ended meanwhile is an error that tells its log.
    pub fn wait_ready(&mut self) -> Result<()> {
        let end = Instant::now() + DEADLINE;
        while !self.is_ready() {
            if let Some(ended) = self.process.take_if(|process| process.has_ended().unwrap_or(false)) {
                let how = ended.wait()?.map_or_else(String::new, |status| format!(" with {status}"));
                bail!("the agent ended{how}: {}", self.log_tail());
            }
            ensure!(Instant::now() < end, "the agent is not ready after {DEADLINE:?}: {}", self.log_tail());
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    pub fn is_ready(&self) -> bool {
        self.client().get(api::READY, QUESTION).is_ok_and(|answer| answer.status == 200)
    }

    /// SIGKILL, and the end awaited.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().context("the agent does not run")?.kill().context("cannot kill the agent")
    }

    /// SIGTERM, and the end awaited.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        let process = self.process.take().context("the agent does not run")?;
        process.wait().context("cannot end the agent")?.context("another process started the agent")
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.as_ref().context("the agent does not run")?.signal(signal)
    }

    /// Killed and started again, until it is ready.
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        self.launch()?;
        self.wait_ready()
    }

    /// Whether the process has ended by itself.
    pub fn has_ended(&self) -> Result<bool> {
        self.process.as_ref().map_or(Ok(true), LabProcess::has_ended)
    }

    pub fn pid(&self) -> Option<u32> {
        self.identity().map(|identity| identity.pid)
    }

    pub(crate) fn identity(&self) -> Option<ProcessIdentity> {
        self.process.as_ref().map(LabProcess::identity)
    }

    /// From now on another program is started as the agent: an upgrade.
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

    /// GET, as JSON; any other status than 200 is an error.
    pub fn get(&self, path: &str) -> Result<Value> {
        let answer = self.client().get(path, QUESTION)?;
        let text = String::from_utf8_lossy(&answer.body);
        ensure!(answer.status == 200, "{path}: {} {text}", answer.status);
        serde_json::from_str(&text).with_context(|| format!("{path} did not answer JSON: {text:?}"))
    }

    /// The agent's metrics, as Prometheus reads them.
    pub fn metrics(&self) -> Result<String> {
        let answer = self.client().get(api::METRICS, QUESTION)?;
        Ok(String::from_utf8_lossy(&answer.body).into_owned())
    }

    /// A network config that leads to this agent: its own network `podwire`, with these keys besides or instead.
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

    fn log_tail(&self) -> String {
        let log = self.log().unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// What `podwire` says to this command line, run inside the node.
    pub fn podwire(&self, args: &[&str]) -> Result<crate::Outcome> {
        let program = self.program.display().to_string();
        let argv: Vec<&str> = [program.as_str()].into_iter().chain(args.iter().copied()).collect();
        self.ns.run(&argv, b"")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the agent's log ended with:\n{}", self.log_tail());
        }
    }
}

/// The `podwire` that agents run: the one that PODWIRE names, else the one beside this program.
pub fn program() -> Result<PathBuf> {
    program::find(BINARY, OVERRIDE)
}
