//! Whether pods find their plugins. `status` and `doctor` must not differ about it.

use std::path::{Path, PathBuf};

use install::runtimes::{Runtime, Runtimes, removed_plugin};
use install::{PLUGIN, installed_plugin};
use types::Finding;

/// Where the plugin of this node is.
pub(super) struct PluginFiles {
    installed: Option<PathBuf>,
    beside_tool: PathBuf,
}

impl PluginFiles {
    /// None if the path of this program is not known.
    pub(super) fn find(state_dir: Option<&Path>) -> Option<Self> {
        let beside_tool = std::env::current_exe().ok()?.with_file_name(PLUGIN);
        Some(Self { installed: state_dir.and_then(installed_plugin), beside_tool })
    }

    /// The installed one, as the agent names it, or where that is gone the one beside this program.
    pub(super) fn path(&self) -> &Path {
        self.installed.as_deref().filter(|path| path.is_file()).unwrap_or(&self.beside_tool)
    }

    /// For a node without an agent: also the installed plugin, which runtimes without a configuration use.
    pub(super) fn missing(&self, runtimes: &Runtimes) -> Vec<Finding> {
        let mut found = runtimes.missing(self.path());
        let gone = self.installed.as_deref().filter(|path| !path.is_file());
        let has_plugin = |runtime: &Runtime| runtime.plugin_dirs.iter().any(|dir| dir.join(PLUGIN).is_file());
        let is_elsewhere = runtimes.found.iter().any(has_plugin);
        let gone = gone.map(|path| removed_plugin(path, &self.beside_tool));
        let gone = gone.map(|found| if is_elsewhere { found.degraded() } else { found });
        let is_new = |gone: &Finding| !found.iter().any(|one| one.object == gone.object);
        found.extend(gone.filter(is_new));
        found
    }
}
