//! CNI configs of Podwire in a runtime's directory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use agent::cni_configs::CniConfig;
use agent::config::{self, Flags};
use agent::install::PLUGIN;
use agent::runtimes::Runtimes;
use cni::Config;
use netconf::Place;

/// Those that the runtime of this node uses.
pub(super) fn of_node() -> Vec<Config> {
    of_podwire(&config_dir())
}

/// Whether the plugin passes requests with this config to an agent.
pub(super) fn names_agent(config: &Config) -> bool {
    Place::parse(config).is_ok_and(|place| place.agent.is_some())
}

/// The configs that a runtime would send to the plugin. Other configs, and those that cannot be read, are left out.
fn of_podwire(directory: &Path) -> Vec<Config> {
    let parts = CniConfig::naming(PLUGIN, directory).into_iter().flat_map(|config| config.parts(PLUGIN));
    parts.filter_map(|part| Config::from_slice(part.to_string().as_bytes()).ok()).collect()
}

/// Where the runtime has its CNI configs, also if the agent does not install any.
fn config_dir() -> PathBuf {
    let install: (OsString, OsString) = ("PODWIRE_INSTALL_ENABLED".into(), "true".into());
    let env = std::env::vars_os().chain([install]);
    let config = config::Config::load_with(&Flags::default(), env, Runtimes::directories);
    let configured = config.ok().and_then(|config| config.install).map(|install| install.config_dir);
    configured.unwrap_or_else(|| Runtimes::directories().configs)
}
