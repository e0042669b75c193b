//! The agent's configuration. Flags override environment variables, variables override the file, the file overrides
//! defaults. All keys are optional.
//!
//! ```text
//! KEYS ─► defaults ─┐
//! agent.toml ───────┤
//! PODWIRE_…, ETCD_… ┼─► draft ─► checks across keys ─► Config
//! --flags ──────────┘
//! ```
//!
//! One table, [`KEYS`], defines every key once. Flags, variables, defaults, help, reference and sample are generated from
//! it. A given value must be valid even if another layer overrides it. All problems are reported together.

mod aliases;
mod change;
mod check;
mod cluster;
mod directories;
mod docs;
mod draft;
mod error;
mod etcd;
mod flags;
mod keys;
mod layers;
mod secrets;
mod table;
mod values;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use engine::AllowedDelegates;
use model::KeyLayout;
use netconf::NetworkSettings;
use types::{Code, Finding, IfName};

pub use self::change::{KeyOrigins, RESTART};
pub use self::cluster::{ClusterConfig, PathCheck, Transport, TunnelChecksum};
pub use directories::{CONFIG_DIR, Directories, PLUGIN_DIR};
pub use docs::{reference, sample};
pub use error::{ConfigError, Origin, Problem};
pub use etcd::{Etcd, Secret};
pub use flags::Flags;
pub use keys::{DefaultValue, Key, ValueKind};
pub use layers::{DEFAULT_FILE, FILE_VARIABLE, LAB_VARIABLE};
pub use table::KEYS;

/// The complete configuration of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub node: String,
    /// State that does not survive a reboot.
    pub run_dir: PathBuf,
    /// State that survives reboots.
    pub state_dir: PathBuf,
    pub socket: PathBuf,
    pub store: StoreChoice,
    /// Directory of the embedded store. None: in the network's directory in `state_dir`.
    pub store_dir: Option<PathBuf>,
    /// Keys of objects in the store, for both kinds of store.
    pub layout: KeyLayout,
    /// None: the interface with the default route.
    pub node_interface: Option<IfName>,
    /// Addresses at which other nodes reach this node, at most one per family. Empty: the addresses of the interface.
    pub node_addresses: Vec<IpAddr>,
    pub log_format: LogFormat,
    pub log_level: LogLevel,
    /// TCP listener for Prometheus. The Unix socket serves metrics in any case.
    pub metrics: Option<SocketAddr>,
    pub workers: usize,
    /// Interval of reconcile rounds. Events trigger them earlier.
    pub reconcile: Duration,
    /// The default network, for requests without network settings.
    pub network: NetworkSettings,
    /// Block size and transport between nodes.
    pub cluster: ClusterConfig,
    /// The plugin's type and version in the CNI config.
    pub plugin: PluginConfig,
    /// IPAM plugins that requests may delegate to.
    pub delegates: AllowedDelegates,
    /// None: the agent installs nothing in the runtime's directories.
    pub install: Option<InstallConfig>,
    /// For the fixes of findings: a key that a flag or variable sets cannot be changed in the file.
    pub key_origins: KeyOrigins,
}

/// Where a command finds an agent and its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredPaths {
    pub run_dir: PathBuf,
    pub state_dir: PathBuf,
    pub socket: PathBuf,
}

/// The files that the agent installs in the runtime's directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstallConfig {
    /// The plugin binary that is copied.
    pub plugin: PathBuf,
    pub plugin_dir: PathBuf,
    pub config_dir: PathBuf,
    pub config_name: String,
    /// None: the built-in template.
    pub template: Option<PathBuf>,
}

/// The plugin's properties in the CNI config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginConfig {
    /// The `type`. Runtimes execute the file with this name.
    pub name: String,
    /// For runtimes that do not know `cniVersions`.
    pub version: cni::Version,
}

/// The store for cluster objects.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "an agent has only one value")]
pub enum StoreChoice {
    /// A single node.
    Embedded,
    /// A cluster.
    Etcd(Etcd),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
}

impl InstallConfig {
    pub fn directories(&self) -> Directories {
        Directories { plugins: self.plugin_dir.clone(), configs: self.config_dir.clone() }
    }
}

impl Config {
    /// Reads all layers. The environment is an argument, so the result does not depend on the process. The runtime's
    /// directories have their usual paths unless they are set.
    pub fn load(
        flags: &Flags,
        env: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        Self::load_with(flags, env, Directories::default)
    }

    /// Like [`Self::load`]. If installation is enabled, `detect` finds the runtime's directories that are not set.
    pub fn load_with(
        flags: &Flags,
        env: impl IntoIterator<Item = (OsString, OsString)>,
        detect: impl FnOnce() -> Directories,
    ) -> Result<Self, ConfigError> {
        draft::build(layers::collect(flags, env), detect)
    }

    /// The paths of a configuration that is invalid for another reason. None if they are not known.
    pub fn paths(
        flags: &Flags,
        env: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Option<ConfiguredPaths> {
        draft::paths(layers::collect(flags, env))
    }

    /// The effective configuration as a config file.
    pub fn to_toml(&self) -> String {
        docs::effective(self)
    }

    /// Reports a private key for etcd that other users can read, because they could act as this node. A key that cannot be
    /// read is reported when the agent connects.
    pub fn exposed_key(&self) -> Option<Finding> {
        let key = match &self.store {
            StoreChoice::Embedded => None,
            StoreChoice::Etcd(etcd) => etcd.key.as_deref(),
        }?;
        let metadata = std::fs::metadata(key).ok()?;
        let exposure = secrets::exposure(key, &metadata)?;
        let path = key.display();
        let message = format!("etcd.key {path} is a private key and {}", exposure.reason);
        let finding = Finding::new(Code::EtcdKeyExposed, format_args!("file {path}"), message);
        Some(finding.fix(exposure.fix))
    }
}

impl PluginConfig {
    /// The default name of the plugin.
    pub const NAME: &str = "podwire-cni";
    /// Runtimes before containerd 2.0 cannot parse results of version 1.1.0. Newer runtimes use the newest of `cniVersions`.
    pub const VERSION: cni::Version = cni::Version::V1_0_0;
}

impl Default for PluginConfig {
    fn default() -> Self {
        Self { name: Self::NAME.to_owned(), version: Self::VERSION }
    }
}

impl fmt::Display for StoreChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Embedded => "embedded",
            Self::Etcd(_) => "etcd",
        })
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        })
    }
}

impl From<LogLevel> for tracing::Level {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Self::ERROR,
            LogLevel::Warn => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
        }
    }
}
