//! Whether runtimes find the plugin that their configs name. They report a ready network without it, and every pod fails.

use std::path::Path;

use agent::install::PLUGIN;
use agent::runtimes::{Runtime, Runtimes};

use super::finding::Check;
use crate::commands::configs;

const CHECK: &str = "runtimes";

pub(super) fn find_plugin() -> Vec<Check> {
    let runtimes = Runtimes::detect(Path::new("/"));
    let unreadable = runtimes.unreadable.iter().map(|file| Check::problem(CHECK, file.finding()));
    runtimes.found.iter().map(check).chain(unreadable).collect()
}

fn check(runtime: &Runtime) -> Check {
    let (name, configs) = (runtime.name, runtime.config_dir.display());
    if configs::of_podwire(&runtime.config_dir).is_empty() {
        return Check::ok(CHECK, format!("{name} has no config of Podwire in {configs}"));
    }
    let found = runtime.plugin_dirs.iter().find(|dir| dir.join(PLUGIN).exists());
    let Ok(program) = std::env::current_exe() else {
        return Check::unknown(CHECK, "the path of this program is not known");
    };
    match (found, runtime.without_plugin(&program.with_file_name(PLUGIN))) {
        (Some(dir), _) => Check::ok(CHECK, format!("{name} finds {PLUGIN} in {}", dir.display())),
        (None, Some(found)) => Check::problem(CHECK, found),
        (None, None) => Check::unknown(CHECK, format!("{name} has no directory for plugins")),
    }
}
