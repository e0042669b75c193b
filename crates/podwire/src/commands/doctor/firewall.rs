//! Podwire's firewall tables, and unmanaged chains that drop pod traffic.

use engine::reconcile::failure;
use types::{Finding, IfName};

use super::check::Check;
use super::node::{CheckedNode, NodeServer};

const CHECK: &str = "other firewalls";

pub(super) fn unmanaged_chains(node: &CheckedNode) -> Vec<Check> {
    let bridges = node.bridges();
    let names: Vec<&IfName> = bridges.iter().collect();
    let failed = |error: nft::Error| Check::problem(CHECK, failure(error.into(), &node.directories.run_dir));
    let mut checks = match nft::unmanaged_drops(&names) {
        Ok(drops) => drops.iter().map(|drop| Check::problem(CHECK, drop.finding())).collect(),
        Err(error) => vec![failed(error)],
    };
    match nft::legacy_tables() {
        Ok(tables) => checks.extend(tables.iter().map(legacy)),
        Err(error) => checks.push(Check::unknown(CHECK, error.to_string())),
    }
    if checks.is_empty() {
        checks.push(Check::ok(CHECK, "no firewall of another program drops pod traffic"));
    }
    checks
}

fn legacy(found: &nft::LegacyTables) -> Check {
    let message = format!(
        "tables of iptables-legacy are loaded ({}); their rules are not checked and may drop pod traffic",
        found.names.join(", ")
    );
    Check { fix: Some(found.command.to_owned()), ..Check::unknown(CHECK, message) }
}

pub(super) fn podwire_tables(node: &CheckedNode) -> Vec<Check> {
    const CHECK: &str = "podwire tables";
    let run_dir = &node.directories.run_dir;
    let mut checks: Vec<Check> = match engine::firewall_orphans(run_dir) {
        Ok(found) => found.map(|found| Check::problem(CHECK, found)).into_iter().collect(),
        Err(error) => vec![Check::problem(CHECK, failure(error, run_dir))],
    };
    checks.extend(match engine::firewall_drift(run_dir) {
        Ok(None) => None,
        Ok(Some(found)) => Some(Check::problem(CHECK, with_agent_fix(node, found))),
        // `firewall_orphans` failed with the same error.
        Err(_) if !checks.is_empty() => None,
        Err(error) => Some(Check::problem(CHECK, failure(error, run_dir))),
    });
    if checks.is_empty() {
        checks.push(Check::ok(CHECK, "complete, with the rules and addresses of all pods"));
    }
    checks
}

/// On a node with an agent, the agent repairs the tables after a restart.
fn with_agent_fix(node: &CheckedNode, found: Finding) -> Finding {
    match node.server {
        NodeServer::Agent(_) | NodeServer::Denied(_) | NodeServer::Unclear(_) | NodeServer::Missing(_) => {
            found.fix("systemctl restart podwire")
        }
        NodeServer::Standalone | NodeServer::NotInstalled => found,
    }
}
