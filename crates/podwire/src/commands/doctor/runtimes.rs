//! Whether runtimes find the plugins that their configs need. They report a ready network without them, and every pod fails.

use std::path::{Path, PathBuf};

use agent::install::{PLUGIN, installed_plugin};
use agent::runtimes::{Runtime, Runtimes};

use super::finding::Check;
use super::node::Node;

const CHECK: &str = "runtimes";

pub(super) fn find_plugins(node: &Node) -> Vec<Check> {
    let runtimes = Runtimes::detect(Path::new("/"));
    let unreadable = runtimes.unreadable.iter().map(|file| Check::problem(CHECK, file.finding()));
    let Some(plugin) = plugin(node.folders.state_dir.as_deref()) else {
        return vec![Check::unknown(CHECK, "the path of this program is not known")];
    };
    runtimes.found.iter().map(|runtime| check(runtime, &plugin)).chain(unreadable).collect()
}

/// The installed plugin, as the agent names it, or where that is gone the one beside this program.
fn plugin(state_dir: Option<&Path>) -> Option<PathBuf> {
    let installed = state_dir.and_then(installed_plugin).filter(|path| path.is_file());
    installed.or_else(|| Some(std::env::current_exe().ok()?.with_file_name(PLUGIN)))
}

fn check(runtime: &Runtime, plugin: &Path) -> Check {
    let (name, configs) = (runtime.name, runtime.config_dir.display());
    let needed = plugin.file_name().and_then(|name| name.to_str()).map(|name| runtime.needed(name));
    match (needed.unwrap_or_default().as_slice(), runtime.without_plugins(plugin)) {
        ([], _) => Check::ok(CHECK, format!("{name} has no config of Podwire in {configs}")),
        (_, Some(found)) => Check::problem(CHECK, found),
        (needed, None) => Check::ok(CHECK, format!("{name} finds {}", needed.join(", "))),
    }
}
