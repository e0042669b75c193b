//! `podwire agent --check-config`: reports all reasons that would prevent a start. It does not start the agent and changes nothing.

mod port;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use engine::overlap::ObservedNetworks;
use netconf::Network;
use netlink::RtSocket;
use types::{Code, Finding, Severity, cause};

use crate::lock::{self, LockError};
use crate::membership::preflight::{self, JoinRefused};
use crate::reconciler;
use crate::server::{self, ServerError};
use config::Config;
use install::{InstallError, Installer};

/// Why the agent would not start, or would not become ready.
#[derive(Debug, thiserror::Error)]
pub enum StartRefusal {
    #[error(transparent)]
    Unsafe(#[from] files::UnsafeDir),
    #[error("cannot write to {}: {}", path.display(), cause(source))]
    Directory { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("network: {0}")]
    Network(cni::Error),
    #[error(transparent)]
    Install(#[from] InstallError),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error(transparent)]
    Join(#[from] JoinRefused),
    #[error("{}: {}", .0.code, .0.message)]
    Condition(Finding),
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    #[error(transparent)]
    Engine(#[from] engine::Error),
}

impl StartRefusal {
    /// A command that fixes the problem, ready to paste.
    pub fn fix(&self) -> Option<&str> {
        match self {
            Self::Condition(finding) => finding.fix.as_deref(),
            Self::Unsafe(_)
            | Self::Directory { .. }
            | Self::Lock(_)
            | Self::Network(_)
            | Self::Install(_)
            | Self::Server(_)
            | Self::Join(_)
            | Self::Netlink(_)
            | Self::Engine(_) => None,
        }
    }
}

/// A note for the operator about a configuration that does not prevent a start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// An agent already uses the run directory. Normal on a node with an edited configuration.
    AgentRuns {
        process: String,
    },
    MetricsTaken(SocketAddr),
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AgentRuns { process } => {
                write!(
                    f,
                    "note: an agent (process {process}) is running; restart it to use this configuration"
                )
            }
            Self::MetricsTaken(address) => {
                write!(
                    f,
                    "warning: another program listens on {address}; the agent would start without metrics"
                )
            }
        }
    }
}

/// The result of [`check`].
#[derive(Debug, Default)]
pub struct Preflight {
    pub refusals: Vec<StartRefusal>,
    pub notes: Vec<Note>,
}

/// Checks everything that could prevent a start with this configuration.
pub fn check(config: &Config) -> Preflight {
    let mut refusals: Vec<StartRefusal> = Vec::new();
    for dir in directories(config) {
        refusals.extend(files::check_dir(dir).err().map(StartRefusal::from).or_else(|| unwritable(dir)));
    }
    let mut notes = Vec::new();
    // The socket of a running agent is in use by that agent.
    let (is_free, agent) = match lock::conflicting_lock(&config.network.name, &config.run_dir) {
        Ok(None) => (true, None),
        Ok(Some(LockError::Taken { holder, .. })) => {
            let process = holder.trim().to_owned();
            notes.push(Note::AgentRuns { process: process.clone() });
            (false, Some(process))
        }
        Ok(Some(error)) | Err(error) => {
            refusals.push(error.into());
            (false, None)
        }
    };
    match Network::whole(&config.network) {
        Ok(network) => refusals.extend(node(config, &network).into_iter().map(StartRefusal::Condition)),
        Err(error) => refusals.push(StartRefusal::Network(error)),
    }
    match overlaps(config) {
        Ok(overlaps) => refusals.extend(overlaps.into_iter().map(StartRefusal::Condition)),
        Err(error) => refusals.push(error.into()),
    }
    refusals.extend(Installer::new(config).err().map(StartRefusal::from));
    if is_free {
        refusals.extend(server::check(&config.socket).err().map(StartRefusal::from));
    }
    match config.metrics.map_or(Ok(None), |address| port::check(address, agent.as_deref())) {
        Ok(note) => notes.extend(note),
        Err(refusal) => refusals.push(refusal),
    }
    refusals.extend(config.exposed_key().map(StartRefusal::Condition));
    match preflight::addresses(config) {
        Ok(problems) => refusals.extend(problems.into_iter().map(StartRefusal::Condition)),
        Err(error) => refusals.push(error.into()),
    }
    refusals.extend(preflight::store(config).err().map(StartRefusal::from));
    Preflight { refusals, notes }
}

fn directories(config: &Config) -> Vec<&Path> {
    let mut all = vec![config.run_dir.as_path(), &config.state_dir];
    all.extend(config.store_dir.as_deref());
    all.extend(config.socket.parent());
    if let Some(install) = &config.install {
        all.extend([install.plugin_dir.as_path(), &install.config_dir]);
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// A missing directory would be created in its nearest existing ancestor.
fn unwritable(dir: &Path) -> Option<StartRefusal> {
    let path = dir.ancestors().find(|path| path.symlink_metadata().is_ok()).unwrap_or(dir).to_owned();
    engine::write_error(dir).map(|source| StartRefusal::Directory { path, source })
}

/// Checks capabilities, nft, disk space and the name of the bridge.
fn node(config: &Config, network: &Network) -> Vec<Finding> {
    let findings = engine::startup_findings(&config.run_dir, &config.network.name, network.conf());
    let with_fix = |finding: Finding| match finding.code {
        Code::BridgeNameTaken => reconciler::propose_other_bridge(config, finding),
        _ => finding,
    };
    findings.into_iter().map(with_fix).collect()
}

fn overlaps(config: &Config) -> Result<Vec<Finding>, engine::Error> {
    let mut findings = reconciler::overlaps_at_start(
        config,
        &ObservedNetworks::of(&mut RtSocket::open()?, &config.network.subnets)?,
    );
    findings.retain(|finding| finding.severity == Severity::NotReady);
    Ok(findings)
}
