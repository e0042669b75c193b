//! Checks the plugins that a runtime needs for Podwire's configs. Without one of them it reports a ready network, but every
//! pod fails.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use types::{Code, Finding, Fix};

use super::{CONFIG_DIR, PLUGIN_DIR, Runtime, Runtimes, joined};
use crate::cni_configs::CniConfig;
use crate::{LOOPBACK, PLUGIN_MODE};

/// Directories in which packages install the reference plugins.
const PACKAGE_DIRS: [&str; 3] = [PLUGIN_DIR, "/usr/lib/cni", "/usr/libexec/cni"];

impl Runtimes {
    /// All plugin directories and config directories: of the detected runtimes, and the default ones, which podman uses.
    pub fn searched(&self) -> (BTreeSet<PathBuf>, BTreeSet<PathBuf>) {
        let plugins = self.found.iter().flat_map(|one| one.plugin_dirs.iter().cloned());
        let configs = self.found.iter().map(|one| one.config_dir.clone());
        (plugins.chain(PACKAGE_DIRS.map(Into::into)).collect(), configs.chain([CONFIG_DIR.into()]).collect())
    }

    /// Plugins that are missing for runtimes with a Podwire config.
    pub fn missing(&self, plugin: &Path) -> Vec<Finding> {
        let name = plugin.file_name().and_then(|name| name.to_str());
        let is_user = |one: &&Runtime| name.is_some_and(|name| !one.needed(name).is_empty());
        self.lacking(&self.found.iter().filter(is_user).collect::<Vec<_>>(), plugin)
    }
}

/// The condition for an installed plugin that was removed. `other` is a possible copy of it.
pub fn removed_plugin(installed: &Path, other: &Path) -> Finding {
    let path = installed.display();
    let message = format!("the installed plugin {path} was removed, so that all pods fail");
    let finding = Finding::new(Code::InstallIncomplete, format_args!("file {path}"), message);
    match other.is_file() {
        true => finding.fix(install_command(other, PLUGIN_MODE, installed)),
        false => finding,
    }
}

impl Runtime {
    /// The plugin, then the plugins that its configs chain, and `loopback` if the runtime calls it. Empty without a config that
    /// names the plugin.
    pub fn needed(&self, plugin: &str) -> Vec<String> {
        let configs = CniConfig::naming(plugin, &self.config_dir);
        let mut needed: Vec<String> = configs.iter().flat_map(CniConfig::types).map(str::to_owned).collect();
        if !needed.is_empty() && self.calls_loopback {
            needed.push(LOOPBACK.to_owned());
        }
        needed.sort_by_key(|name| (name != plugin, name.clone()));
        needed.dedup();
        needed
    }

    /// The condition for missing plugins. `plugin` is the installed one.
    pub fn without_plugins(&self, plugin: &Path) -> Option<Finding> {
        let (dir, needed) = (plugin.parent()?, self.needed(plugin.file_name()?.to_str()?));
        let is_found = |name: &String| self.plugin_dirs.iter().any(|dir| dir.join(name).is_file());
        let missing: Vec<&String> = needed.iter().filter(|name| !is_found(name)).collect();
        let target = self.plugin_dirs.first()?;
        let object = format!("file {}", target.join(missing.first()?).display());
        let fixes: Vec<Result<Fix, &str>> =
            missing.iter().map(|name| copy(plugin, name, target).ok_or(name.as_str())).collect();
        let unknown: Vec<&str> = fixes.iter().filter_map(|fix| fix.as_ref().err().copied()).collect();
        let advice = match unknown.as_slice() {
            // Changing the setting helps only if that directory has all plugins.
            [] if needed.iter().all(|name| dir.join(name).is_file()) => {
                format!("copy the missing files, or {}", self.setting(self.keys[0], dir))
            }
            [] => "copy the missing files".to_owned(),
            names => format!("install {} there: this host has no copy", names.join(", ")),
        };
        let message = format!(
            "{} uses the configs in {} and does not find {} in {}, so that all pods fail; {advice}",
            self.name,
            self.config_dir.display(),
            missing.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", "),
            joined(&self.plugin_dirs),
        );
        let finding = Finding::new(Code::InstallIncomplete, object, message);
        let all = fixes.into_iter().collect::<Result<Vec<Fix>, &str>>().ok();
        Some(match all.and_then(|all| all.into_iter().reduce(Fix::and)) {
            Some(commands) => finding.fix(commands),
            None => finding,
        })
    }
}

/// The command that copies a plugin into a runtime's directory. None if this host does not have the plugin.
fn copy(plugin: &Path, name: &str, target: &Path) -> Option<Fix> {
    let (source, mode) = source(plugin, name)?;
    Some(install_command(&source, mode, &target.join(name)))
}

fn install_command(from: &Path, mode: u32, to: &Path) -> Fix {
    let [from, to] = [from, to].map(|path| path.to_string_lossy().into_owned());
    Fix::words(["install", "-D", "-m", &format!("{mode:04o}"), &from, &to])
}

/// The file to copy, with its mode: from the directory of the installed plugin, or from a package. Podwire's plugin also works
/// as `loopback`.
fn source(plugin: &Path, name: &str) -> Option<(PathBuf, u32)> {
    let is_own = plugin.file_name().is_some_and(|own| own == name);
    let own = plugin.is_file().then(|| (plugin.to_owned(), PLUGIN_MODE));
    let in_dir = |dir: &Path| Some((dir.join(name), 0o755)).filter(|(path, _)| path.is_file());
    match plugin.parent().filter(|_| !is_own).and_then(in_dir) {
        None if is_own || name == LOOPBACK => own,
        None => PACKAGE_DIRS.iter().find_map(|dir| in_dir(Path::new(dir))),
        in_plugin_dir => in_plugin_dir,
    }
}
