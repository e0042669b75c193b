//! What the agent reports.

use types::{Code, Finding};

use super::finding::Check;
use super::node::{Keeper, Node};
use crate::commands::configs;

pub(super) fn answers(node: &Node) -> Vec<Check> {
    const CHECK: &str = "agent";
    let object = format!("socket {}", node.folders.socket.display());
    let unreachable = |why: &String| Finding::new(Code::AgentUnreachable, &object, why);
    vec![match &node.keeper {
        Keeper::Standalone => {
            Check::ok(CHECK, "none, and nothing on this node needs one: pods are standalone")
        }
        Keeper::Missing(why) => Check::problem(CHECK, unreachable(why).fix("systemctl start podwire")),
        Keeper::Denied(why) => Check::unknown(CHECK, why),
        Keeper::Unclear(why) => Check::problem(CHECK, unreachable(why).fix("systemctl restart podwire")),
        Keeper::Agent(status) if status.ready => Check::ok(CHECK, format!("process {} is ready", status.pid)),
        // Why is said below, condition by condition.
        Keeper::Agent(status) => {
            Check::ok(CHECK, format!("process {} answers, and is not ready", status.pid))
        }
    }]
}

/// Those that were not found here already: of the agent, or without one of what files and kernel tell.
pub(super) fn conditions(node: &Node, found: &[Check]) -> Vec<Check> {
    const CHECK: &str = "conditions";
    let inspected: Vec<api::Condition>;
    let conditions = match node.status() {
        Some(status) => &status.conditions,
        None => {
            // An agent completes its config.
            let of_plugin: Vec<_> =
                node.configs.iter().filter(|config| !configs::names_agent(config)).cloned().collect();
            let found = engine::inspect(&node.folders.run_dir, &of_plugin);
            inspected = found.into_iter().map(|one| api::Condition::new(one, None)).collect();
            &inspected
        }
    };
    let is_new = |one: &&api::Condition| !found.iter().any(|check| check.is_of(one));
    let new: Vec<Check> = conditions.iter().filter(is_new).map(|one| Check::condition(CHECK, one)).collect();
    if new.is_empty() { vec![Check::ok(CHECK, "there are no others")] } else { new }
}

pub(super) fn installed(node: &Node) -> Vec<Check> {
    const CHECK: &str = "installed";
    let Some(status) = node.status() else { return Vec::new() };
    let bad: Vec<Check> = status
        .installed
        .iter()
        .filter(|file| !file.ok)
        .map(|file| {
            let (path, why) = (file.path.display(), file.message.as_deref().unwrap_or("not as it should be"));
            let found =
                Finding::new(Code::InstallIncomplete, format_args!("file {path}"), format!("{path}: {why}"));
            Check::problem(CHECK, found.fix("podwire install"))
        })
        .collect();
    match (bad.is_empty(), status.installed.len()) {
        (false, _) => bad,
        (true, 0) => vec![Check::ok(CHECK, "the agent installs nothing; `podwire install` does it")],
        (true, count) => vec![Check::ok(CHECK, format!("{count} files are in place"))],
    }
}
