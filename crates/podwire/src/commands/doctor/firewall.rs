//! Our tables, and chains of others that drop what pods send.

use engine::reconcile::failure;
use types::{Code, Finding, IfName};

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
    const CHECK: &str = "podwire tables";
    let run_dir = &node.folders.run_dir;
    let mut checks: Vec<Check> = match engine::firewall_orphans(run_dir) {
        Ok(found) => found.map(|found| Check::problem(CHECK, found)).into_iter().collect(),
        Err(error) => vec![Check::problem(CHECK, failure(error, run_dir))],
    };
    checks.extend(match engine::firewall_faults(run_dir) {
        Ok(faults) if faults.is_empty() => None,
        Ok(faults) => Some(Check::problem(CHECK, drift(node, &faults.join(", ")))),
        // Said above.
        Err(_) if !checks.is_empty() => None,
        Err(error) => Some(Check::problem(CHECK, failure(error, run_dir))),
    });
    if checks.is_empty() {
        checks.push(Check::ok(CHECK, "as they should be, with every pod in them"));
    }
    checks
}

fn drift(node: &Node, faults: &str) -> Finding {
    let found = |message: &str| Finding::new(Code::FirewallDrift, "tables podwire", message);
    match node.keeper {
        Keeper::Agent(_) | Keeper::Denied(_) | Keeper::Unclear(_) | Keeper::Missing(_) => {
            found(faults).fix("systemctl restart podwire")
        }
        // Tables that are gone are made anew, with every pod; those that are only damaged look complete to an ADD.
        Keeper::Standalone => {
            found(&format!("{faults}; the next pod, or a STATUS of the runtime, makes them anew"))
                .fix(engine::DELETE_TABLES)
        }
    }
}
