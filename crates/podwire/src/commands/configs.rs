//! CNI configs of Podwire in a runtime's directory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use cni::{Config, Env, Var};
use config::{Directories, Flags};
use install::PLUGIN;
use install::cni_configs::CniConfig;
use install::runtimes::Runtimes;
use netconf::Place;

/// Those that the runtime of this node uses, with the CNI_PATH that it sets.
pub(super) fn of_node() -> Vec<Config> {
    let Directories { plugins, configs } = directories();
    let runtimes = Runtimes::detect(Path::new("/"));
    let users = runtimes.found.iter().filter(|runtime| runtime.config_dir == configs);
    let mut path: Vec<PathBuf> = users.flat_map(|runtime| runtime.plugin_dirs.clone()).collect();
    if path.is_empty() {
        path.push(plugins);
        path.extend(runtimes.searched().0);
    }
    // A directory whose name contains a colon cannot be in CNI_PATH.
    let path = std::env::join_paths(path).unwrap_or_default();
    let variables = Env::from_vars([(Var::Path.name().into(), path)]);
    let mut all = of_podwire(&configs);
    all.iter_mut().for_each(|config| config.variables = variables.clone());
    all
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

/// Where the runtime has its CNI plugins and configs, also if the agent does not install any.
fn directories() -> Directories {
    let install: (OsString, OsString) = ("PODWIRE_INSTALL_ENABLED".into(), "true".into());
    let env = std::env::vars_os().chain([install]);
    let config = config::Config::load_with(&Flags::default(), env, Runtimes::directories);
    let configured = config.ok().and_then(|config| config.install);
    configured.map_or_else(Runtimes::directories, |install| Directories {
        plugins: install.plugin_dir,
        configs: install.config_dir,
    })
}
