//! The conditions of the cluster as this node observes it.

use std::collections::{BTreeMap, BTreeSet};

use types::{Code, Finding, NodeName};

use super::Mesh;
use super::facts::Family;
use super::way::{NoWay, Way};
use crate::admission::refusals;

/// A sentence names this many nodes; it counts the others.
const NAMED: usize = 5;

impl Mesh {
    /// Sorted; each is said once. What concerns many nodes for one reason of our own is said of all of them together.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = BTreeSet::new();
        let mut unreached: BTreeMap<String, Unreached<'_>> = BTreeMap::new();
        for (name, block, way) in self.ways() {
            let Way::None(reason) = way else { continue };
            match reason {
                // Below, for all blocks of a node together.
                NoWay::Refused(_) => {}
                NoWay::OverlapsOurs(_) | NoWay::HoldsLink(_) | NoWay::HoldsNode(_) => {
                    let message = format!("block {block} of node {name} is not routed: {reason}");
                    findings.insert(Finding::new(Code::NodeUnrouted, format_args!("block {block}"), message));
                }
                NoWay::NoAddress(_) | NoWay::OurAddress(_) | NoWay::SameMac { .. } => {
                    findings.insert(unrouted(name, &reason.to_string()));
                }
                NoWay::NotOnLink(_) | NoWay::NoCommonFamily | NoWay::NoUnderlay(_) | NoWay::NoTunnel(_) => {
                    let unreached = unreached.entry(of_many(reason)).or_default();
                    unreached.names.insert(name);
                    unreached.reasons.insert(reason.to_string());
                }
            }
        }
        findings.extend(unreached.iter().flat_map(|(reason, unreached)| unreached.findings(reason)));
        findings.extend(self.duplicates());
        findings.extend(self.refused());
        findings.into_iter().collect()
    }

    /// Parts of records that are not used.
    fn refused(&self) -> impl Iterator<Item = Finding> {
        self.stored().flat_map(|node| {
            let name = &node.record.name;
            let refused = refusals(&node.record, &self.cuts, |block| self.owner(block));
            let found = |message| Finding::new(Code::NodeRecordRefused, format_args!("node {name}"), message);
            refused.into_iter().map(|one| found(one.sentence(Some(name)))).collect::<Vec<_>>()
        })
    }

    /// What several nodes publish.
    fn duplicates(&self) -> impl Iterator<Item = Finding> {
        let macs = self.macs.disputed().into_iter().map(|(mac, names)| {
            let message = format!(
                "nodes {} have the same tunnel MAC {mac}: restart podwire with a fresh state on one of them",
                list(&names)
            );
            Finding::new(Code::NodeConflict, format_args!("MAC {mac}"), message)
        });
        let addresses = self.addresses.disputed().into_iter().map(|(address, names)| {
            let message = format!(
                "nodes {} publish the same address {address}: only one of them can be reached; remove nodes that are gone \
                 with 'podwire node rm NAME'",
                list(&names)
            );
            Finding::new(Code::NodeConflict, format_args!("address {address}"), message)
        });
        macs.chain(addresses)
    }
}

/// Nodes that cannot be reached for one reason.
#[derive(Default)]
struct Unreached<'a> {
    names: BTreeSet<&'a NodeName>,
    /// In the words for one node.
    reasons: BTreeSet<String>,
}

impl Unreached<'_> {
    fn findings(&self, reason: &str) -> Vec<Finding> {
        match self.names.first() {
            Some(name) if self.names.len() == 1 => {
                self.reasons.iter().map(|reason| unrouted(name, reason)).collect()
            }
            Some(_) | None => {
                let message = format!("no route to {} nodes: {reason}", self.names.len());
                vec![Finding::new(Code::NodeUnrouted, "nodes", message)]
            }
        }
    }
}

fn unrouted(name: &NodeName, reason: &str) -> Finding {
    let message = format!("no route to node {name}: {reason}");
    Finding::new(Code::NodeUnrouted, format_args!("node {name}"), message)
}

/// A reason in words for many nodes at once.
fn of_many(reason: &NoWay) -> String {
    match reason {
        NoWay::NotOnLink(address) => {
            let family = Family::of(*address);
            format!(
                "the transport is direct, but their {family} addresses are not on-link; use transport auto or vxlan"
            )
        }
        NoWay::NoCommonFamily => {
            "they and this node have no address of the same family to send to each other".to_owned()
        }
        other => other.to_string(),
    }
}

fn list(names: &[&NodeName]) -> String {
    let named = names.iter().take(NAMED).map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
    let more = names.len().saturating_sub(NAMED);
    if more > 0 { format!("{named} and {more} more") } else { named }
}
