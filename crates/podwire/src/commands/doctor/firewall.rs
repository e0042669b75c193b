//! Our tables, and chains of others that drop what pods send.

use engine::reconcile::failure;
use types::{Finding, IfName};

use super::finding::Check;
use super::node::{Keeper, Node};

pub(super) fn others(node: &Node) -> Vec<Check> {
    const CHECK: &str = "other firewalls";
    let bridges = node.bridges();
    let names: Vec<&IfName> = bridges.iter().collect();
    match nft::foreign_drops(&names) {
        Ok(drops) if drops.is_empty() => vec![Check::ok(CHECK, "no other chain drops the traffic of pods")],
        Ok(drops) => drops.iter().map(|drop| Check::problem(CHECK, drop.finding())).collect(),
        Err(error) => vec![Check::problem(CHECK, failure(error.into(), &node.folders.run_dir))],
    }
}

pub(super) fn ours(node: &Node) -> Vec<Check> {
    const CHECK: &str = "our tables";
    let run_dir = &node.folders.run_dir;
    let mut checks: Vec<Check> = match engine::firewall_orphans(run_dir) {
        Ok(found) => found.map(|found| Check::problem(CHECK, found)).into_iter().collect(),
        Err(error) => vec![Check::problem(CHECK, failure(error, run_dir))],
    };
    checks.extend(match engine::firewall_drift(run_dir) {
        Ok(None) => None,
        Ok(Some(found)) => Some(Check::problem(CHECK, for_keeper(node, found))),
        // Said above.
        Err(_) if !checks.is_empty() => None,
        Err(error) => Some(Check::problem(CHECK, failure(error, run_dir))),
    });
    if checks.is_empty() {
        checks.push(Check::ok(CHECK, "as they should be, with every pod in them"));
    }
    checks
}

/// An agent repairs the tables itself.
fn for_keeper(node: &Node, found: Finding) -> Finding {
    match node.keeper {
        Keeper::Agent(_) | Keeper::Denied(_) | Keeper::Unclear(_) | Keeper::Missing(_) => {
            found.fix("systemctl restart podwire")
        }
        Keeper::Standalone => found,
    }
}
