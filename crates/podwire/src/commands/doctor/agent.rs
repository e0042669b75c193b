//! What the agent reports.

use types::Code;

use super::finding::Check;
use super::node::{CheckedNode, NodeServer};
use crate::commands::{configs, mode};

pub(super) fn answers(node: &CheckedNode) -> Vec<Check> {
    const CHECK: &str = "agent";
    vec![match &node.reconciler {
        NodeServer::Standalone => {
            Check::ok(CHECK, "none, and nothing on this node needs one: pods are standalone")
        }
        NodeServer::Missing(error) => Check::problem(CHECK, mode::agent_missing(&node.directories, error)),
        NodeServer::Denied(why) => Check::unknown(CHECK, why),
        NodeServer::Unclear(found) => Check::problem(CHECK, found.clone()),
        NodeServer::Agent(status) if status.ready => {
            Check::ok(CHECK, format!("process {} is ready", status.pid))
        }
        // Why is said below, condition by condition.
        NodeServer::Agent(status) => {
            Check::ok(CHECK, format!("process {} answers, and is not ready", status.pid))
        }
    }]
}

/// Those that were not found here already: of the agent, or without one of what files and kernel tell.
pub(super) fn conditions(node: &CheckedNode, found: &[Check]) -> Vec<Check> {
    const CHECK: &str = "conditions";
    let inspected: Vec<api::Condition>;
    let conditions = match node.status() {
        Some(status) => &status.conditions,
        None => {
            // An agent completes its config.
            let of_plugin: Vec<_> =
                node.configs.iter().filter(|config| !configs::names_agent(config)).cloned().collect();
            let mut found = engine::inspect(&node.directories.run_dir, &of_plugin);
            if matches!(node.reconciler, NodeServer::Unclear(_)) {
                mode::leave_repairs_to_agent(&mut found);
            }
            inspected = found.into_iter().map(|one| api::Condition::new(one, None)).collect();
            &inspected
        }
    };
    let is_new = |one: &&api::Condition| !found.iter().any(|check| check.is_of(one));
    let new: Vec<Check> = conditions.iter().filter(is_new).map(|one| Check::condition(CHECK, one)).collect();
    if new.is_empty() { vec![Check::ok(CHECK, "there are no others")] } else { new }
}

pub(super) fn installed(node: &CheckedNode, found: &[Check]) -> Vec<Check> {
    const CHECK: &str = "installed";
    let Some(status) = node.status() else { return Vec::new() };
    // The agent's own conditions: `podwire install` cannot do more than the agent does.
    let is_of_files = |one: &&api::Condition| {
        one.code == Code::InstallIncomplete && !found.iter().any(|check| check.is_of(one))
    };
    let bad: Vec<Check> =
        status.conditions.iter().filter(is_of_files).map(|one| Check::condition(CHECK, one)).collect();
    let waiting = status.installed.iter().filter(|file| !file.ok).count();
    match (bad.is_empty(), waiting, status.installed.len()) {
        (false, _, _) => bad,
        (true, _, 0) => vec![Check::ok(CHECK, "the agent installs nothing; `podwire install` does it")],
        (true, 0, count) => vec![Check::ok(CHECK, format!("{count} files are in place"))],
        (true, _, _) => vec![Check::ok(CHECK, "the agent installs its files when it is ready")],
    }
}
