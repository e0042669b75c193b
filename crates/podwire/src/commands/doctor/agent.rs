//! What the agent says of itself.

use super::finding::Finding;
use super::node::{Keeper, Node};

pub(super) fn answers(node: &Node) -> Vec<Finding> {
    const CHECK: &str = "agent";
    vec![match &node.keeper {
        Keeper::Standalone => Finding::ok(CHECK, "none, and none is needed: pods are standalone"),
        Keeper::Missing(why) => Finding::problem(CHECK, why).helps("systemctl start podwire"),
        Keeper::Unclear(why) => Finding::problem(CHECK, why).helps("systemctl restart podwire"),
        Keeper::Agent(status) => match (&status.readiness.ready, &status.readiness.reason) {
            (true, _) => Finding::ok(CHECK, format!("process {} is ready", status.pid)),
            (false, reason) => {
                let reason = reason.as_deref().unwrap_or("it does not say why");
                Finding::problem(CHECK, format!("not ready: {reason}")).helps("journalctl -u podwire")
            }
        },
    }]
}

/// Those that were not found here already.
pub(super) fn problems(node: &Node, found: &[Finding]) -> Vec<Finding> {
    const CHECK: &str = "agent's problems";
    let Some(status) = node.status() else { return Vec::new() };
    let is_new = |problem: &&api::Problem| !found.iter().any(|finding| finding.what == problem.what);
    let new: Vec<Finding> = status
        .problems
        .iter()
        .filter(is_new)
        .map(|problem| Finding { command: problem.command.clone(), ..Finding::problem(CHECK, &problem.what) })
        .collect();
    if new.is_empty() { vec![Finding::ok(CHECK, "it has found no others")] } else { new }
}

pub(super) fn installed(node: &Node) -> Vec<Finding> {
    const CHECK: &str = "installed";
    let Some(status) = node.status() else { return Vec::new() };
    let bad: Vec<Finding> = status
        .installed
        .iter()
        .filter(|file| !file.ok)
        .map(|file| {
            let why = file.problem.as_deref().unwrap_or("not as it should be");
            Finding::problem(CHECK, format!("{}: {why}", file.path.display())).helps("podwire install")
        })
        .collect();
    match (bad.is_empty(), status.installed.len()) {
        (false, _) => bad,
        (true, 0) => vec![Finding::ok(CHECK, "the agent installs nothing; `podwire install` does it")],
        (true, count) => vec![Finding::ok(CHECK, format!("{count} files are in place"))],
    }
}
