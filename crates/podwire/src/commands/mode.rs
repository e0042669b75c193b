//! Who serves pods on a node where no agent listens. `status` and `doctor` must not differ about it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use agent::cni_configs::CniConfig;
use agent::config::{Config, Flags};
use agent::install::{PLUGIN, is_standalone};
use agent::runtimes::Runtimes;
use api::NodeMode;
use serde_json::Value;

use crate::folders::Folders;

/// An agent is missing where its lock or a CNI config that leads to it is, and where nothing is installed. The plugin works
/// alone where it has attached pods, or where a network without an agent is installed.
pub(super) fn of_node(folders: &Folders, has_state: bool) -> NodeMode {
    let configs = cni_config_dir().map(|dir| plugins(&dir)).unwrap_or_default();
    let is_recorded = folders.state_dir.as_deref().is_some_and(is_standalone);
    if folders.run_dir.join("agent.lock").exists() || configs.iter().any(names_agent) {
        NodeMode::Agent
    } else if has_state || is_recorded || !configs.is_empty() {
        NodeMode::Standalone
    } else {
        NodeMode::Agent
    }
}

fn names_agent(plugin: &Value) -> bool {
    !matches!(plugin["agent"], Value::Null | Value::Bool(false))
}

/// Where the runtime has its CNI configs, also if the agent does not install any.
fn cni_config_dir() -> Option<PathBuf> {
    let install: (OsString, OsString) = ("PODWIRE_INSTALL_ENABLED".into(), "true".into());
    let env = std::env::vars_os().chain([install]);
    let config = Config::load_with(&Flags::default(), env, Runtimes::directories).ok()?;
    config.install.map(|install| install.config_dir)
}

/// Podwire's parts of the CNI configs in a directory.
fn plugins(dir: &Path) -> Vec<Value> {
    CniConfig::naming(PLUGIN, dir).into_iter().flat_map(|config| config.parts(PLUGIN)).collect()
}
