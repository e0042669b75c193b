//! Whether runtimes find the plugin that their configs name. They report a ready network without it, and every pod fails.

use std::path::Path;

use agent::install::PLUGIN;
use agent::runtimes::{Runtime, Runtimes};
use types::{Code, Finding};

use super::configs;
use super::finding::Check;

const CHECK: &str = "runtimes";

pub(super) fn find_plugin() -> Vec<Check> {
    let runtimes = Runtimes::detect(Path::new("/"));
    let unreadable = runtimes.unreadable.iter().map(|why| Check::unknown(CHECK, why));
    runtimes.found.iter().map(check).chain(unreadable).collect()
}

fn check(runtime: &Runtime) -> Check {
    let (name, configs) = (runtime.name, runtime.config_dir.display());
    if configs::of_podwire(&runtime.config_dir).is_empty() {
        return Check::ok(CHECK, format!("{name} has no config of Podwire in {configs}"));
    }
    match (runtime.plugin_dirs.iter().find(|dir| dir.join(PLUGIN).exists()), runtime.plugin_dirs.first()) {
        (Some(dir), _) => Check::ok(CHECK, format!("{name} finds {PLUGIN} in {}", dir.display())),
        (None, Some(dir)) => {
            let file = dir.join(PLUGIN).display().to_string();
            let message = format!(
                "{name} has a config with {PLUGIN} in {configs}, and {file} does not exist: all pods fail"
            );
            let found = Finding::new(Code::InstallIncomplete, format_args!("file {file}"), message);
            let source = std::env::current_exe().ok().map(|us| us.with_file_name(PLUGIN));
            let fix = source.map(|source| format!("install -D -m 0755 {} {file}", source.display()));
            Check::problem(CHECK, Finding { fix, ..found })
        }
        (None, None) => Check::unknown(CHECK, format!("{name} has no directory for plugins")),
    }
}
