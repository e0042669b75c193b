//! CNI configs of Podwire in a runtime's directory.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use agent::config::{self, Flags};
use agent::install::PLUGIN;
use agent::runtimes::Runtimes;
use cni::Config;
use netconf::Place;
use serde_json::Value;

/// Those that the runtime of this node uses.
pub(super) fn of_node() -> Vec<Config> {
    of_podwire(&config_dir())
}

/// Whether the plugin passes requests with this config to an agent.
pub(super) fn names_agent(config: &Config) -> bool {
    Place::parse(config).is_ok_and(|place| place.agent.is_some())
}

/// The configs that a runtime would send to the plugin: a list's own keys are added, as runtimes do. Other configs, and those
/// that cannot be read, are left out.
pub(super) fn of_podwire(directory: &Path) -> Vec<Config> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    // As runtimes do: copies such as `10-podwire.conflist.bak` are not in use.
    let is_config = |path: &Path| {
        path.extension().is_some_and(|ending| ["conf", "conflist", "json"].iter().any(|it| ending == *it))
    };
    let paths = entries.flatten().map(|entry| entry.path()).filter(|path| is_config(path));
    let texts = paths.filter_map(|path| files::read(&path).ok());
    texts.filter_map(|text| serde_json::from_slice(&text).ok()).flat_map(|list| plugins(&list)).collect()
}

/// Where the runtime has its CNI configs, also if the agent does not install any.
fn config_dir() -> PathBuf {
    let install: (OsString, OsString) = ("PODWIRE_INSTALL_ENABLED".into(), "true".into());
    let env = std::env::vars_os().chain([install]);
    let config = config::Config::load_with(&Flags::default(), env, Runtimes::directories);
    let configured = config.ok().and_then(|config| config.install).map(|install| install.config_dir);
    configured.unwrap_or_else(|| Runtimes::directories().configs)
}

fn plugins(list: &Value) -> Vec<Config> {
    let all = list["plugins"].as_array().cloned().unwrap_or_else(|| vec![list.clone()]);
    let of = |mut plugin: Value| {
        for key in ["cniVersion", "name"] {
            plugin.as_object_mut()?.insert(key.to_owned(), list[key].clone());
        }
        Config::from_slice(plugin.to_string().as_bytes()).ok()
    };
    all.into_iter().filter(|plugin| plugin["type"] == PLUGIN).filter_map(of).collect()
}
