//! `podwire agent --check-config`: everything that a start would refuse, at once. Nothing is started or changed.

mod port;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use engine::overlap::ObservedNetworks;
use netconf::Network;
use netlink::RtSocket;
use types::{Code, Finding, Severity};

use crate::lock::{self, LockError};
use crate::membership::preflight::{self, JoinRefused};
use crate::reconciler;
use crate::server::{self, ServerError};
use config::Config;
use install::{InstallError, Installer};

/// Why the agent would not start, or would start and not be ready.
#[derive(Debug, thiserror::Error)]
pub enum StartRefusal {
    #[error(transparent)]
    Unsafe(#[from] files::UnsafeDir),
    #[error("cannot write to {}: {source}", path.display())]
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
    /// The command that helps, ready to paste.
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

/// What an operator should know about a configuration with which the agent can start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// An agent works in the run directory, as on every node whose configuration was edited.
    AgentRuns {
        process: String,
    },
    MetricsTaken(SocketAddr),
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AgentRuns { process } => {
                write!(f, "note: an agent (process {process}) runs; restart it to use this configuration")
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

/// What [`check`] found.
#[derive(Debug, Default)]
pub struct Preflight {
    pub refusals: Vec<StartRefusal>,
    pub notes: Vec<Note>,
}

/// Every reason against a start with this configuration.
pub fn check(config: &Config) -> Preflight {
    let mut found: Vec<StartRefusal> = Vec::new();
    for dir in directories(config) {
        found.extend(files::check_dir(dir).err().map(StartRefusal::from).or_else(|| unwritable(dir)));
    }
    let mut notes = Vec::new();
    // The socket of an agent that runs is its own.
    let (is_free, agent) = match lock::held(&config.network.name, &config.run_dir) {
        Ok(None) => (true, None),
        Ok(Some(LockError::Taken { holder, .. })) => {
            let process = holder.trim().to_owned();
            notes.push(Note::AgentRuns { process: process.clone() });
            (false, Some(process))
        }
        Ok(Some(error)) | Err(error) => {
            found.push(error.into());
            (false, None)
        }
    };
    match Network::whole(&config.network) {
        Ok(network) => found.extend(node(config, &network).into_iter().map(StartRefusal::Condition)),
        Err(error) => found.push(StartRefusal::Network(error)),
    }
    match overlaps(config) {
        Ok(overlaps) => found.extend(overlaps.into_iter().map(StartRefusal::Condition)),
        Err(error) => found.push(error.into()),
    }
    found.extend(Installer::new(config).err().map(StartRefusal::from));
    if is_free {
        found.extend(server::check(&config.socket).err().map(StartRefusal::from));
    }
    match config.metrics.map_or(Ok(None), |address| port::check(address, agent.as_deref())) {
        Ok(note) => notes.extend(note),
        Err(refusal) => found.push(refusal),
    }
    found.extend(config.exposed_key().map(StartRefusal::Condition));
    match preflight::addresses(config) {
        Ok(problems) => found.extend(problems.into_iter().map(StartRefusal::Condition)),
        Err(error) => found.push(error.into()),
    }
    found.extend(preflight::store(config).err().map(StartRefusal::from));
    Preflight { refusals: found, notes }
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

/// A directory that is missing would be made in the nearest one that exists.
fn unwritable(dir: &Path) -> Option<StartRefusal> {
    let path = dir.ancestors().find(|path| path.symlink_metadata().is_ok()).unwrap_or(dir).to_owned();
    engine::unwritable(dir).map(|source| StartRefusal::Directory { path, source })
}

/// Capabilities, nft, space, and the name of the bridge.
fn node(config: &Config, network: &Network) -> Vec<Finding> {
    let found = engine::before_start(&config.run_dir, &config.network.name, network.conf());
    let with_fix = |found: Finding| match found.code {
        Code::BridgeNameTaken => reconciler::with_other_bridge(config, found),
        _ => found,
    };
    found.into_iter().map(with_fix).collect()
}

fn overlaps(config: &Config) -> Result<Vec<Finding>, engine::Error> {
    let mut found = reconciler::overlaps_at_start(
        config,
        &ObservedNetworks::of(&mut RtSocket::open()?, &config.network.subnets)?,
    );
    found.retain(|one| one.severity == Severity::NotReady);
    Ok(found)
}
