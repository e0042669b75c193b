//! The agent's configuration: flag over environment over file over default. With nothing at all it is complete.
//!
//! ```text
//! KEYS ─► defaults ─┐
//! agent.toml ───────┤
//! PODWIRE_…, ETCD_… ┼─► draft ─► checks across keys ─► Config
//! --flags ──────────┘
//! ```
//!
//! One table, [`KEYS`], names every key once: flags, variables, defaults, help, reference and sample come from it. A value
//! that is given must be right even where another one overrides it, and all mistakes are told at once.

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

pub use self::change::FlagKeys;
pub use self::cluster::{ClusterConfig, Transport, TunnelChecksum};
pub use directories::{CONFIG_DIR, Directories, PLUGIN_DIR};
pub use docs::{reference, sample};
pub use error::{ConfigError, Origin, Problem};
pub use etcd::{Etcd, Secret};
pub use flags::Flags;
pub use keys::{Fallback, Key, ValueKind};
pub use layers::{DEFAULT_FILE, LAB_VARIABLE};
pub use table::KEYS;

/// What the agent runs with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub node: String,
    /// What dies with a boot.
    pub run_dir: PathBuf,
    /// What is kept.
    pub state_dir: PathBuf,
    pub socket: PathBuf,
    pub store: StoreChoice,
    /// Of the embedded store; None: in the network's directory in `state_dir`.
    pub store_dir: Option<PathBuf>,
    /// The names of objects in the store, whichever it is.
    pub layout: KeyLayout,
    /// None: the one with the default route.
    pub node_interface: Option<IfName>,
    /// Where other nodes reach this one, at most one of each family. Empty: those of the interface.
    pub node_addresses: Vec<IpAddr>,
    pub log_format: LogFormat,
    pub log_level: LogLevel,
    /// Where Prometheus may ask over TCP; the socket answers it in any case.
    pub metrics: Option<SocketAddr>,
    pub workers: usize,
    pub reconcile: Duration,
    /// Of the network that requests without settings of their own belong to.
    pub network: NetworkSettings,
    /// How the network is spread over nodes.
    pub cluster: ClusterConfig,
    /// How the CNI config calls the plugin, and in which version it speaks.
    pub plugin: PluginConfig,
    /// IPAM plugins that requests may have run.
    pub delegates: AllowedDelegates,
    /// None: the agent puts nothing into the runtime's directories.
    pub install: Option<InstallConfig>,
    pub flag_keys: FlagKeys,
}

/// What goes into the runtime's directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstallConfig {
    /// The program file that is copied.
    pub plugin: PathBuf,
    pub plugin_dir: PathBuf,
    pub config_dir: PathBuf,
    pub config_name: String,
    /// None: the one that is built in.
    pub template: Option<PathBuf>,
}

/// What the CNI config says of the plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginConfig {
    /// Its `type`, and so the name of its file: runtimes look for one that is called like the type.
    pub name: String,
    /// For runtimes that do not know `cniVersions`.
    pub version: cni::Version,
}

/// Where cluster objects live.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "an agent has one of it")]
pub enum StoreChoice {
    /// One node.
    Embedded,
    /// Many.
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
    /// Reads all layers; the environment is handed in so that nothing here depends on the process. Directories for the
    /// runtime's files that are not set are the usual ones.
    pub fn load(
        flags: &Flags,
        env: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        Self::load_with(flags, env, Directories::default)
    }

    /// As [`Self::load`]; `detect` finds the directories that are not set, where files are installed.
    pub fn load_with(
        flags: &Flags,
        env: impl IntoIterator<Item = (OsString, OsString)>,
        detect: impl FnOnce() -> Directories,
    ) -> Result<Self, ConfigError> {
        let (given, problems) = layers::collect(flags, env);
        draft::build(given, problems, detect)
    }

    /// The effective configuration, as a file that gives the same one.
    pub fn to_toml(&self) -> String {
        docs::effective(self)
    }

    /// Whether other users can read the private key for etcd, and so act as this node. A key that cannot be read is
    /// reported by the connection.
    pub fn exposed_key(&self) -> Option<Finding> {
        let key = match &self.store {
            StoreChoice::Embedded => None,
            StoreChoice::Etcd(etcd) => etcd.key.as_deref(),
        }?;
        let metadata = std::fs::metadata(key).ok()?;
        let exposure = secrets::exposure(key, &metadata)?;
        let path = key.display();
        let message = format!("etcd.key {path} holds a private key and {}", exposure.what);
        let found = Finding::new(Code::EtcdKeyExposed, format_args!("file {path}"), message);
        Some(found.fix(exposure.fix))
    }
}

impl PluginConfig {
    /// What our plugin is called where nobody says anything.
    pub const NAME: &str = "podwire-cni";
    /// Before containerd 2.0 no runtime can read a result of 1.1.0; the others take the newest of `cniVersions`.
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
