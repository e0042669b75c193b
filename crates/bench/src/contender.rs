//! The contenders: a plugin on its own node with its own network, or netlink messages alone.

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
use crate::site::BenchNode;

/// The compared programs.
#[derive(Debug)]
pub(crate) struct Plugins {
    /// As written by the linker.
    pub(crate) built: PathBuf,
    pub(crate) podwire: PathBuf,
    pub(crate) reference: PathBuf,
}

impl Plugins {
    /// Both programs are copies, as on a node. A file written by the linker is fragmented in the page cache, and each start takes
    /// 0.1 ms longer. The package copied the reference plugin; this function copies Podwire's plugin.
    pub(crate) fn find() -> Result<Self> {
        // The plugin `bridge` runs `host-local`. Without it every ADD would fail, and failures are fast.
        testkit::reference_plugin("host-local")?;
        let built = Plugin::podwire()?.path;
        let podwire = install(&built)?;
        Ok(Self { built, podwire, reference: testkit::reference_plugin("bridge")?.path })
    }

    pub(crate) fn podwire<'a>(
        &'a self,
        bench_node: &'a BenchNode,
        mode: AttachMode,
        network: BenchNetwork,
    ) -> Result<PluginContender<'a>> {
        let config = network.podwire(mode, &bench_node.dir)?;
        Ok(PluginContender { program: &self.podwire, bench_node, config, ips: network.subnets()?.len() })
    }

    /// The same plugin with the agent of that node.
    pub(crate) fn agent<'a>(
        &'a self,
        bench_node: &'a BenchNode,
        mode: AttachMode,
        network: BenchNetwork,
    ) -> Result<PluginContender<'a>> {
        let config = network.through_agent(mode, &bench_node.dir)?;
        Ok(PluginContender { program: &self.podwire, bench_node, config, ips: network.subnets()?.len() })
    }

    pub(crate) fn reference<'a>(
        &'a self,
        bench_node: &'a BenchNode,
        network: BenchNetwork,
    ) -> Result<PluginContender<'a>> {
        let config = network.reference(&bench_node.dir)?;
        Ok(PluginContender { program: &self.reference, bench_node, config, ips: network.subnets()?.len() })
    }
}

/// Copies the plugin into a fixed directory next to it, so that killed runs do not accumulate copies. Renames the copy, because
/// another run may execute the existing one.
fn install(built: &Path) -> Result<PathBuf> {
    let directory = built.parent().context("the plugin's path has no directory")?;
    install_into(built, &directory.join("bench"))
}

/// Copies the plugin into a directory, which is created if it is missing.
pub(crate) fn install_into(built: &Path, dir: &Path) -> Result<PathBuf> {
    let (installed, draft) =
        (dir.join("podwire-cni"), dir.join(format!("podwire-cni.{}", std::process::id())));
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    fs::copy(built, &draft).with_context(|| format!("cannot copy {}", built.display()))?;
    fs::rename(&draft, &installed).with_context(|| format!("cannot create {}", installed.display()))?;
    Ok(installed)
}

/// A plugin as a runtime uses it.
#[derive(Clone)]
pub(crate) struct PluginContender<'a> {
    program: &'a PathBuf,
    pub(crate) bench_node: &'a BenchNode,
    config: Value,
    /// Expected number of addresses per pod.
    ips: usize,
}

impl<'a> PluginContender<'a> {
    pub(crate) fn new(program: &'a PathBuf, bench_node: &'a BenchNode, config: Value, ips: usize) -> Self {
        Self { program, bench_node, config, ips }
    }
}

impl PluginContender<'_> {
    /// Runs in the namespace of the calling thread, which must be the node's. Returns the printed result.
    pub(crate) fn add_here(&self, pod: &Pod) -> Result<(Duration, Vec<u8>)> {
        let finished = runner::run(&mut self.command(Verb::Add, pod), self.config.to_string().as_bytes())?;
        if !finished.status.success() {
            bail!(
                "ADD exited with {}: {}",
                finished.status,
                String::from_utf8_lossy(&finished.stdout).trim()
            );
        }
        Ok((finished.took, finished.stdout))
    }

    /// The input of DEL: the config with the result of ADD, which is checked.
    pub(crate) fn del_input(&self, answer: &[u8]) -> Result<String> {
        let answer: Value = serde_json::from_slice(answer).context("ADD did not print JSON")?;
        let ips = answer["ips"].as_array().map_or(0, Vec::len);
        ensure!(ips == self.ips, "ADD returned {ips} addresses instead of {}", self.ips);
        Ok(with_prev_result(&self.config, &answer)?.to_string())
    }

    /// The input of DEL after a failed ADD: a runtime sends only the config.
    pub(crate) fn plain_input(&self) -> String {
        self.config.to_string()
    }

    pub(crate) fn del_here(&self, pod: &Pod, input: &str) -> Result<Duration> {
        let finished = runner::run(&mut self.command(Verb::Del, pod), input.as_bytes())?;
        if !finished.status.success() {
            bail!(
                "DEL exited with {}: {}",
                finished.status,
                String::from_utf8_lossy(&finished.stdout).trim()
            );
        }
        Ok(finished.took)
    }

    fn command(&self, verb: Verb, pod: &Pod) -> Command {
        let mut command = plugin_command(self.program, verb);
        command.env("CNI_CONTAINERID", pod.id()).env("CNI_NETNS", pod.netns_path()).env("CNI_IFNAME", "eth0");
        command
    }
}

/// The environment contains the specified variables and PATH, because the reference plugin runs iptables.
pub(crate) fn plugin_command(program: &PathBuf, verb: Verb) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command.env("CNI_PATH", REFERENCE_DIR).env("CNI_COMMAND", verb.as_str());
    command
}

/// Calls VERSION, which only starts a process, reads the input and prints the result.
pub(crate) fn version(program: &PathBuf) -> Result<Duration> {
    let input = json!({"cniVersion": CNI_VERSION}).to_string();
    let finished = runner::run(&mut plugin_command(program, Verb::Version), input.as_bytes())?;
    ensure!(finished.status.success(), "VERSION of {} exited with {}", program.display(), finished.status);
    Ok(finished.took)
}

/// Duration of a DEL.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deleted {
    pub(crate) took: Duration,
    /// Time until the link was removed, if measured. The kernel blocks the deleting process for some time afterwards.
    pub(crate) gone: Option<Duration>,
}

/// A contender that alternates with others, pod by pod.
pub(crate) enum Contender<'a> {
    Plugin {
        plugin: PluginContender<'a>,
        /// The DEL input of each attached pod.
        inputs: Vec<Option<String>>,
    },
    Floor(Box<Floor>),
    /// Each ADD of the floor is a separate process.
    SpawnedFloor {
        floor: Box<Floor>,
        bench_node: &'a BenchNode,
    },
}

impl<'a> Contender<'a> {
    pub(crate) fn plugin(plugin: PluginContender<'a>) -> Self {
        let inputs = vec![None; plugin.bench_node.pods.len()];
        Self::Plugin { plugin, inputs }
    }

    pub(crate) fn floor(bench_node: &BenchNode, network: BenchNetwork) -> Result<Self> {
        Ok(Self::Floor(Box::new(Floor::make(bench_node, network)?)))
    }

    pub(crate) fn spawned_floor(bench_node: &'a BenchNode, network: BenchNetwork) -> Result<Self> {
        Ok(Self::SpawnedFloor { floor: Box::new(Floor::make(bench_node, network)?), bench_node })
    }

    pub(crate) fn add(&mut self, pod: usize) -> Result<Duration> {
        match self {
            Self::Plugin { plugin, inputs } => {
                let bench_node = plugin.bench_node;
                let (took, answer) = bench_node.node.enter(|| plugin.add_here(&bench_node.pods[pod]))??;
                inputs[pod] = Some(plugin.del_input(&answer)?);
                Ok(took)
            }
            Self::Floor(floor) => floor.add(pod),
            Self::SpawnedFloor { floor, bench_node } => floor.add_spawned(bench_node, pod),
        }
    }

    pub(crate) fn del(&mut self, pod: usize) -> Result<Deleted> {
        match self {
            Self::Plugin { plugin, inputs } => {
                let bench_node = plugin.bench_node;
                let input = inputs[pod].take().unwrap_or_else(|| plugin.plain_input());
                let took = bench_node.node.enter(|| plugin.del_here(&bench_node.pods[pod], &input))??;
                Ok(Deleted { took, gone: None })
            }
            Self::Floor(floor) | Self::SpawnedFloor { floor, .. } => floor.del(pod),
        }
    }
}
