//! Finds missing plugin files. `status` and `doctor` report the same findings.

use std::path::{Path, PathBuf};

use install::runtimes::{Runtime, Runtimes, removed_plugin};
use install::{PLUGIN, installed_plugin};
use types::Finding;

use super::lab::is_lab_node;

/// The container runtimes that add pods to this node. A node of a lab has none: runtimes of the machine do not use it.
pub(super) fn runtimes_of_node() -> Runtimes {
    if is_lab_node() { Runtimes::default() } else { Runtimes::detect(Path::new("/")) }
}

/// Why the agent has installed no files.
pub(super) fn nothing_installed() -> &'static str {
    match is_lab_node() {
        true => "no files: no container runtime uses a lab node",
        false => "no files: install.enabled is not set; see 'podwire install'",
    }
}

/// Paths of the plugin on this node.
pub(super) struct PluginFiles {
    installed: Option<PathBuf>,
    beside_tool: PathBuf,
}

impl PluginFiles {
    /// None if the path of this program is unknown.
    pub(super) fn find(state_dir: Option<&Path>) -> Option<Self> {
        let beside_tool = std::env::current_exe().ok()?.with_file_name(PLUGIN);
        Some(Self { installed: state_dir.and_then(installed_plugin), beside_tool })
    }

    /// The installed plugin, or the plugin beside this program if the installed file is missing.
    pub(super) fn path(&self) -> &Path {
        self.installed.as_deref().filter(|path| path.is_file()).unwrap_or(&self.beside_tool)
    }

    /// For a node without an agent. Includes the installed plugin, which runtimes without a configuration use.
    pub(super) fn missing(&self, runtimes: &Runtimes) -> Vec<Finding> {
        let mut found = runtimes.missing(self.path());
        let missing = self.installed.as_deref().filter(|path| !path.is_file());
        let has_plugin = |runtime: &Runtime| runtime.plugin_dirs.iter().any(|dir| dir.join(PLUGIN).is_file());
        let is_elsewhere = runtimes.found.iter().any(has_plugin);
        let missing = missing.map(|path| removed_plugin(path, &self.beside_tool));
        let missing = missing.map(|found| if is_elsewhere { found.degraded() } else { found });
        let is_new = |missing: &Finding| !found.iter().any(|one| one.object == missing.object);
        found.extend(missing.filter(is_new));
        found
    }
}
