//! Our tables, and chains of others that drop what pods send.

use types::IfName;

use super::finding::Finding;
use super::node::{Keeper, Node};

pub(super) fn others(node: &Node) -> Vec<Finding> {
    const CHECK: &str = "other firewalls";
    let bridges = node.bridges();
    let names: Vec<&IfName> = bridges.iter().collect();
    match nft::foreign_drops(&names) {
        Ok(drops) if drops.is_empty() => vec![Finding::ok(CHECK, "nobody drops what pods send")],
        Ok(drops) => drops
            .into_iter()
            .map(|drop| Finding::problem(CHECK, drop.sentence()).helps(drop.command))
            .collect(),
        Err(error) => vec![Finding::problem(CHECK, format!("the tables cannot be read: {error}"))],
    }
}

pub(super) fn ours(node: &Node) -> Vec<Finding> {
    const CHECK: &str = "our tables";
    let faults = match engine::firewall_faults(&node.folders.run_dir) {
        Ok(faults) => faults,
        Err(error) => return vec![Finding::problem(CHECK, format!("they cannot be compared: {error}"))],
    };
    let helps = match node.keeper {
        Keeper::Agent(_) | Keeper::Unclear(_) | Keeper::Missing(_) => "systemctl restart podwire",
        // Tables that are gone are made anew, with every pod; those that are only damaged look complete to an ADD.
        Keeper::Standalone => "nft 'delete table inet podwire; delete table bridge podwire'",
    };
    let mut findings: Vec<Finding> = match engine::firewall_orphans(&node.folders.run_dir) {
        Ok(None) => Vec::new(),
        Ok(Some(found)) => {
            let finding = Finding::problem(CHECK, found.what);
            vec![match found.command {
                Some(command) => finding.helps(command),
                None => finding,
            }]
        }
        Err(error) => vec![Finding::problem(CHECK, format!("their elements cannot be listed: {error}"))],
    };
    match faults.as_slice() {
        [] if findings.is_empty() => {
            findings.push(Finding::ok(CHECK, "as they should be, with every pod in them"));
        }
        [] => {}
        faults => {
            let next = match node.keeper {
                Keeper::Standalone => "; the next pod, or a STATUS of the runtime, makes them anew",
                Keeper::Agent(_) | Keeper::Unclear(_) | Keeper::Missing(_) => "",
            };
            findings.push(Finding::problem(CHECK, format!("{}{next}", faults.join(", "))).helps(helps));
        }
    }
    findings
}
