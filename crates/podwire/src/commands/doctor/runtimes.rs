//! Checks that runtimes find the plugins of their configs. A runtime reports a ready network without them, and every pod fails.

use std::path::Path;

use install::runtimes::Runtime;

use super::check::Check;
use super::node::CheckedNode;
use crate::commands::lab::is_lab_node;
use crate::commands::plugins::{PluginFiles, runtimes_of_node};

const CHECK: &str = "runtimes";

pub(super) fn check_plugins(node: &CheckedNode) -> Vec<Check> {
    if is_lab_node() {
        let message = "skipped: this is a node of a lab, and the runtimes of the machine add no pods to it";
        return vec![Check::ok(CHECK, message)];
    }
    let runtimes = runtimes_of_node();
    let Some(plugin) = PluginFiles::find(node.directories.state_dir.as_deref()) else {
        return vec![Check::unknown(CHECK, "cannot determine the path of this program")];
    };
    let missing = match node.status() {
        // The agent reports its installed files.
        Some(_) => runtimes.missing(plugin.path()),
        None => plugin.missing(&runtimes),
    };
    let ok = runtimes.found.iter().filter_map(|runtime| ok_check(runtime, plugin.path()));
    ok.chain(missing.into_iter().map(|found| node.as_reported(CHECK, found))).collect()
}

fn ok_check(runtime: &Runtime, plugin: &Path) -> Option<Check> {
    let (name, configs) = (runtime.name, runtime.config_dir.display());
    let needed = plugin.file_name().and_then(|name| name.to_str()).map(|name| runtime.needed(name));
    match (needed.unwrap_or_default().as_slice(), runtime.without_plugins(plugin)) {
        ([], _) => Some(Check::ok(CHECK, format!("{name} has no Podwire config in {configs}"))),
        (_, Some(_)) => None,
        (needed, None) => Some(Check::ok(CHECK, format!("{name} finds {}", needed.join(", ")))),
    }
}
