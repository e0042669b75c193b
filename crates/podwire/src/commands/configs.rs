//! CNI configs of Podwire in a runtime's directory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use cni::{Env, NetworkConfig, Var};
use config::{Directories, Flags};
use install::PLUGIN;
use install::cni_configs::CniConfig;
use install::runtimes::Runtimes;
use netconf::LocalPaths;

use super::plugins::runtimes_of_node;

/// The configs that runtimes of this node use, with the CNI_PATH of each runtime.
pub(super) fn of_node() -> Vec<NetworkConfig> {
    let Directories { plugins, configs } = directories();
    let runtimes = runtimes_of_node();
    let users = runtimes.found.iter().filter(|runtime| runtime.config_dir == configs);
    let mut searched: Vec<Vec<PathBuf>> = users.map(|runtime| runtime.plugin_dirs.clone()).collect();
    if searched.is_empty() {
        searched.push([plugins].into_iter().chain(runtimes.searched().0).collect());
    }
    let all = of_podwire(&configs);
    all.into_iter().flat_map(|config| with_paths(&config, &searched)).collect()
}

/// A config with an external IPAM plugin is returned once for each CNI_PATH, because a runtime may lack the plugin.
fn with_paths(config: &NetworkConfig, searched: &[Vec<PathBuf>]) -> Vec<NetworkConfig> {
    let used = if netconf::external_ipam(config).is_some() { searched.len() } else { 1 };
    let with_path = |directories: &Vec<PathBuf>| {
        // CNI_PATH cannot contain a directory with a colon in its name.
        let path = std::env::join_paths(directories).unwrap_or_default();
        NetworkConfig { variables: Env::from_vars([(Var::Path.name().into(), path)]), ..config.clone() }
    };
    searched.iter().take(used).map(with_path).collect()
}

/// Whether the plugin passes requests with this config to an agent.
pub(super) fn names_agent(config: &NetworkConfig) -> bool {
    LocalPaths::parse(config).is_ok_and(|paths| paths.agent.is_some())
}

/// The configs that a runtime passes to the plugin. Unreadable configs are skipped.
fn of_podwire(directory: &Path) -> Vec<NetworkConfig> {
    let parts = CniConfig::naming(PLUGIN, directory).into_iter().flat_map(|config| config.parts(PLUGIN));
    parts.filter_map(|part| NetworkConfig::from_slice(part.to_string().as_bytes()).ok()).collect()
}

/// The runtime's directories for CNI plugins and configs, also if the agent installs nothing.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// F14: a runtime does not find an IPAM plugin in the directory of another runtime.
    #[test]
    fn f14_an_ipam_plugin_is_checked_for_each_runtime() {
        let config = |ipam: &str| {
            let text = format!(
                r#"{{"cniVersion": "1.0.0", "name": "pods", "type": "podwire-cni", "ipam": {{{ipam}}}}}"#
            );
            NetworkConfig::from_slice(text.as_bytes()).unwrap()
        };
        let searched = [vec!["/opt/cni/bin".into()], vec!["/usr/lib/cni".into(), "/usr/libexec/cni".into()]];
        let paths = |ipam: &str| -> Vec<Vec<PathBuf>> {
            let all = with_paths(&config(ipam), &searched);
            all.iter()
                .map(|one| one.variables.path().unwrap().into_iter().map(Into::into).collect())
                .collect()
        };
        assert_eq!(paths(r#""type": "dhcp""#), searched);
        assert_eq!(paths(r#""subnet": "10.50.0.0/24""#), searched[..1], "no external plugin");
    }
}
