//! Checks that use the status of the agent.

use types::Code;

use super::check::Check;
use super::node::{CheckedNode, NodeServer};
use crate::commands::{configs, mode, plugins};

pub(super) fn answers(node: &CheckedNode) -> Vec<Check> {
    const CHECK: &str = "agent";
    vec![match &node.server {
        NodeServer::Standalone => Check::ok(CHECK, "not needed: the pods of this node are standalone"),
        NodeServer::Missing(error) => Check::problem(CHECK, mode::agent_missing(&node.directories, error)),
        NodeServer::NotInstalled => Check::problem(CHECK, mode::not_installed(&node.directories)),
        NodeServer::Denied(reason) => Check::unknown(CHECK, reason),
        NodeServer::Unclear(found) => Check::problem(CHECK, found.clone()),
        NodeServer::Agent(status) if status.ready => {
            Check::ok(CHECK, format!("the agent (process {}) is ready", status.pid))
        }
        // The check `conditions` reports the reasons.
        NodeServer::Agent(status) => Check::ok(
            CHECK,
            format!("the agent (process {}) answers and is not ready: see the conditions below", status.pid),
        ),
    }]
}

/// Conditions that no other check has reported: of the agent, or from files and kernel if there is no agent.
pub(super) fn conditions(node: &CheckedNode, found: &[Check]) -> Vec<Check> {
    const CHECK: &str = "conditions";
    let inspected: Vec<api::Condition>;
    let conditions = match node.status() {
        Some(status) => &status.conditions,
        None => {
            // The agent checks configs that name it.
            let standalone_configs: Vec<_> =
                node.configs.iter().filter(|config| !configs::names_agent(config)).cloned().collect();
            let mut found = engine::inspect(&node.directories.run_dir, &standalone_configs);
            if matches!(node.server, NodeServer::Unclear(_)) {
                mode::leave_repairs_to_agent(&mut found);
            }
            inspected = found.into_iter().map(|finding| api::Condition::new(finding, None)).collect();
            &inspected
        }
    };
    let is_new = |condition: &&api::Condition| !found.iter().any(|check| check.reports(condition));
    let new: Vec<Check> = conditions.iter().filter(is_new).map(|one| Check::condition(CHECK, one)).collect();
    if new.is_empty() { vec![Check::ok(CHECK, "no further problems")] } else { new }
}

pub(super) fn installed(node: &CheckedNode, found: &[Check]) -> Vec<Check> {
    const CHECK: &str = "installed";
    let Some(status) = node.status() else { return Vec::new() };
    // The conditions of the agent are used, because `podwire install` leaves the files to the agent.
    let is_install = |condition: &&api::Condition| {
        condition.code == Code::InstallIncomplete && !found.iter().any(|check| check.reports(condition))
    };
    let problems: Vec<Check> =
        status.conditions.iter().filter(is_install).map(|one| Check::condition(CHECK, one)).collect();
    let waiting = status.installed.iter().filter(|file| !file.ok).count();
    match (problems.is_empty(), waiting, status.installed.len()) {
        (false, _, _) => problems,
        (true, _, 0) => vec![Check::ok(CHECK, plugins::nothing_installed())],
        (true, 0, count) => vec![Check::ok(CHECK, format!("{count} files are installed"))],
        (true, _, _) => vec![Check::ok(CHECK, "the agent installs its files when it is ready")],
    }
}
