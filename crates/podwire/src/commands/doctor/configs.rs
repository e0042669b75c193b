//! CNI configs of Podwire in a runtime's directory.

use std::path::Path;

use agent::cni_configs::CniConfig;
use agent::install::PLUGIN;
use cni::Config;

/// The configs that a runtime would send to the plugin. Other configs, and those that cannot be read, are left out.
pub(super) fn of_podwire(directory: &Path) -> Vec<Config> {
    let parts = CniConfig::naming(PLUGIN, directory).into_iter().flat_map(|config| config.parts(PLUGIN));
    parts.filter_map(|part| Config::from_slice(part.to_string().as_bytes()).ok()).collect()
}
