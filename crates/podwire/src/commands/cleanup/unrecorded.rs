//! Configs and copies of the plugin that are not in the list of installed files. An operator created them, so they are listed and
//! not removed. A config without its plugin would make every pod fail.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use config::Directories;
use config::{Config, Flags};
use install::cni_configs::CniConfig;
use install::runtimes::Runtimes;
use install::{LOOPBACK, PLUGIN, is_podwire_program};

use crate::commands::lab::is_lab_node;

/// Files of this run directory. Copies of the plugin are listed only if no config of another run directory needs them.
pub(super) fn files(run_dir: &Path) -> Vec<PathBuf> {
    let (plugin_dirs, config_dirs) = directories();
    let configs = config_dirs.iter().flat_map(|dir| CniConfig::naming(PLUGIN, dir));
    let (own, other): (Vec<CniConfig>, Vec<CniConfig>) = configs.partition(|config| uses(config, run_dir));
    let mut found: Vec<PathBuf> = own.into_iter().map(|config| config.path).collect();
    if other.is_empty() {
        let files = plugin_dirs.iter().flat_map(|dir| [dir.join(PLUGIN), dir.join(LOOPBACK)]);
        found.extend(files.filter(|path| is_podwire_program(path)));
    }
    found
}

fn uses(config: &CniConfig, run_dir: &Path) -> bool {
    let mut parts = config.plugins.iter().filter(|part| part["type"] == PLUGIN);
    parts.any(|part| Path::new(part["runDir"].as_str().unwrap_or(netconf::DEFAULT_RUN_DIR)) == run_dir)
}

/// Directories in which runtimes search for plugins and configs, and those of the agent's installation.
fn directories() -> (BTreeSet<PathBuf>, BTreeSet<PathBuf>) {
    let (mut plugins, mut configs) = match is_lab_node() {
        true => Default::default(),
        false => Runtimes::detect(Path::new("/")).searched(),
    };
    let install: (OsString, OsString) = ("PODWIRE_INSTALL_ENABLED".into(), "true".into());
    let env = std::env::vars_os().chain([install]);
    let configured = Config::load_with(&Flags::default(), env, Runtimes::directories).ok();
    if let Some(install) = configured.and_then(|config| config.install) {
        let Directories { plugins: plugin_dir, configs: config_dir } = install.directories();
        plugins.insert(plugin_dir);
        configs.insert(config_dir);
    }
    (plugins, configs)
}
