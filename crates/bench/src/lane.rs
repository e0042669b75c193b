//! Who attaches and detaches pods: a plugin, on its own node with its own network, or the kernel alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use testkit::{Plugin, Pod, REFERENCE_DIR, Verb, with_prev_result};
use types::AttachMode;

use crate::floor::Floor;
use crate::networks::{BenchNetwork, CNI_VERSION};
use crate::runner;
use crate::site::Seat;

/// The programs that are compared.
#[derive(Debug)]
pub(crate) struct Plugins {
    /// As the linker left it.
    pub(crate) built: PathBuf,
    pub(crate) podwire: PathBuf,
    pub(crate) reference: PathBuf,
}

impl Plugins {
    /// Both as a node has them: copied, in one go. What a linker wrote here and there lies in the page cache in single pages,
    /// and every start of it takes 0.1 ms longer. The reference was copied by its package, ours is copied here.
    pub(crate) fn find() -> Result<Self> {
        // bridge runs it: without it every ADD would fail, quickly.
        testkit::reference_plugin("host-local")?;
        let built = Plugin::podwire()?.path;
        let podwire = install(&built)?;
        Ok(Self { built, podwire, reference: testkit::reference_plugin("bridge")?.path })
    }

    pub(crate) fn podwire<'a>(
        &'a self,
        seat: &'a Seat,
        mode: AttachMode,
        network: BenchNetwork,
    ) -> Result<PluginLane<'a>> {
        let config = network.podwire(mode, &seat.dir)?;
        Ok(PluginLane { program: &self.podwire, seat, config, ips: network.subnets()?.len() })
    }

    /// The same plugin, which asks the agent of that node.
    pub(crate) fn agent<'a>(
        &'a self,
        seat: &'a Seat,
        mode: AttachMode,
        network: BenchNetwork,
    ) -> Result<PluginLane<'a>> {
        let config = network.through_agent(mode, &seat.dir)?;
        Ok(PluginLane { program: &self.podwire, seat, config, ips: network.subnets()?.len() })
    }

    pub(crate) fn reference<'a>(&'a self, seat: &'a Seat, network: BenchNetwork) -> Result<PluginLane<'a>> {
        let config = network.reference(&seat.dir)?;
        Ok(PluginLane { program: &self.reference, seat, config, ips: network.subnets()?.len() })
    }
}

/// Copies the plugin into a directory beside it, always the same, so that a bench that is killed leaves nothing that piles up.
/// Renamed into place: another bench may run the one that is there.
fn install(built: &Path) -> Result<PathBuf> {
    let beside = built.parent().context("the plugin lies in no directory")?;
    install_into(built, &beside.join("bench"))
}

/// Copies the plugin into a directory, which is created if it is missing.
pub(crate) fn install_into(built: &Path, dir: &Path) -> Result<PathBuf> {
    let (installed, draft) =
        (dir.join("podwire-cni"), dir.join(format!("podwire-cni.{}", std::process::id())));
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    fs::copy(built, &draft).with_context(|| format!("cannot copy {}", built.display()))?;
    fs::rename(&draft, &installed).with_context(|| format!("cannot make {}", installed.display()))?;
    Ok(installed)
}

/// A plugin as a runtime uses it.
#[derive(Clone)]
pub(crate) struct PluginLane<'a> {
    program: &'a PathBuf,
    pub(crate) seat: &'a Seat,
    config: Value,
    /// How many addresses a pod must get.
    ips: usize,
}

impl<'a> PluginLane<'a> {
    pub(crate) fn new(program: &'a PathBuf, seat: &'a Seat, config: Value, ips: usize) -> Self {
        Self { program, seat, config, ips }
    }
}

impl PluginLane<'_> {
    /// In the namespace of the calling thread, which must be the node's. Gives the answer as it was printed.
    pub(crate) fn add_here(&self, pod: &Pod) -> Result<(Duration, Vec<u8>)> {
        let finished = runner::run(&mut self.command(Verb::Add, pod), self.config.to_string().as_bytes())?;
        if !finished.status.success() {
            bail!("ADD ended with {}: {}", finished.status, String::from_utf8_lossy(&finished.stdout).trim());
        }
        Ok((finished.took, finished.stdout))
    }

    /// What a runtime gives to DEL: the config with the answer to ADD in it, which must be as expected.
    pub(crate) fn del_input(&self, answer: &[u8]) -> Result<String> {
        let answer: Value = serde_json::from_slice(answer).context("ADD did not answer with JSON")?;
        let ips = answer["ips"].as_array().map_or(0, Vec::len);
        ensure!(ips == self.ips, "ADD gave {ips} addresses instead of {}", self.ips);
        Ok(with_prev_result(&self.config, &answer)?.to_string())
    }

    /// DEL of a pod whose ADD failed: a runtime sends the config alone.
    pub(crate) fn plain_input(&self) -> String {
        self.config.to_string()
    }

    pub(crate) fn del_here(&self, pod: &Pod, input: &str) -> Result<Duration> {
        let finished = runner::run(&mut self.command(Verb::Del, pod), input.as_bytes())?;
        if !finished.status.success() {
            bail!("DEL ended with {}: {}", finished.status, String::from_utf8_lossy(&finished.stdout).trim());
        }
        Ok(finished.took)
    }

    fn command(&self, verb: Verb, pod: &Pod) -> Command {
        let mut command = plugin_command(self.program, verb);
        command.env("CNI_CONTAINERID", pod.id()).env("CNI_NETNS", pod.netns_path()).env("CNI_IFNAME", "eth0");
        command
    }
}

/// The environment holds what the specification lists, and PATH: the reference runs iptables.
fn plugin_command(program: &PathBuf, verb: Verb) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command.env("CNI_PATH", REFERENCE_DIR).env("CNI_COMMAND", verb.as_str());
    command
}

/// A plugin's VERSION: all that happens is that a process starts, reads and answers.
pub(crate) fn version(program: &PathBuf) -> Result<Duration> {
    let input = json!({"cniVersion": CNI_VERSION}).to_string();
    let finished = runner::run(&mut plugin_command(program, Verb::Version), input.as_bytes())?;
    ensure!(finished.status.success(), "VERSION of {} ended with {}", program.display(), finished.status);
    Ok(finished.took)
}

/// How long a DEL took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deleted {
    pub(crate) took: Duration,
    /// When the link was gone, where that is known: the kernel keeps who deletes one for some time after.
    pub(crate) gone: Option<Duration>,
}

/// One who takes its turn, pod by pod.
pub(crate) enum Lane<'a> {
    Plugin {
        plugin: PluginLane<'a>,
        /// The DEL's input of each pod that is attached.
        inputs: Vec<Option<String>>,
    },
    Floor(Box<Floor>),
}

impl<'a> Lane<'a> {
    pub(crate) fn plugin(plugin: PluginLane<'a>) -> Self {
        let inputs = vec![None; plugin.seat.pods.len()];
        Self::Plugin { plugin, inputs }
    }

    pub(crate) fn floor(seat: &Seat, network: BenchNetwork) -> Result<Self> {
        Ok(Self::Floor(Box::new(Floor::make(seat, network)?)))
    }

    pub(crate) fn add(&mut self, pod: usize) -> Result<Duration> {
        match self {
            Self::Plugin { plugin, inputs } => {
                let seat = plugin.seat;
                let (took, answer) = seat.node.enter(|| plugin.add_here(&seat.pods[pod]))??;
                inputs[pod] = Some(plugin.del_input(&answer)?);
                Ok(took)
            }
            Self::Floor(floor) => floor.add(pod),
        }
    }

    pub(crate) fn del(&mut self, pod: usize) -> Result<Deleted> {
        match self {
            Self::Plugin { plugin, inputs } => {
                let seat = plugin.seat;
                let input = inputs[pod].take().unwrap_or_else(|| plugin.plain_input());
                let took = seat.node.enter(|| plugin.del_here(&seat.pods[pod], &input))??;
                Ok(Deleted { took, gone: None })
            }
            Self::Floor(floor) => floor.del(pod),
        }
    }
}
