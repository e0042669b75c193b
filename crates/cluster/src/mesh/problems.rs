//! What is wrong with the cluster as this node sees it, in sentences.

use std::collections::{BTreeMap, BTreeSet};

use types::NodeName;

use super::Mesh;
use super::facts::Family;
use super::way::{NoWay, Way};
use crate::admission::refusals;

/// A sentence names this many nodes; it counts the others.
const NAMED: usize = 5;

impl Mesh {
    /// Sorted; each is said once. What concerns many nodes for one reason of our own is said of all of them together.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = BTreeSet::new();
        let mut unreached: BTreeMap<String, Unreached<'_>> = BTreeMap::new();
        for (name, block, way) in self.ways() {
            let Way::None(reason) = way else { continue };
            match reason {
                // Below, for all blocks of a node together.
                NoWay::Refused(_) => {}
                NoWay::OverlapsOurs(_) | NoWay::HoldsLink(_) | NoWay::HoldsNode(_) => {
                    problems.insert(format!("block {block} of node {name} is not routed: {reason}"));
                }
                NoWay::NoAddress(_) | NoWay::OurAddress(_) | NoWay::SameMac { .. } => {
                    problems.insert(format!("no way to node {name}: {reason}"));
                }
                NoWay::NotOnLink(_) | NoWay::NoCommonFamily | NoWay::NoUnderlay(_) | NoWay::NoTunnel(_) => {
                    let unreached = unreached.entry(of_many(reason)).or_default();
                    unreached.names.insert(name);
                    unreached.reasons.insert(reason.to_string());
                }
            }
        }
        problems.extend(unreached.iter().flat_map(|(reason, unreached)| unreached.sentences(reason)));
        problems.extend(self.duplicates());
        problems.extend(self.refused());
        problems.into_iter().collect()
    }

    /// Parts of records that are not used.
    fn refused(&self) -> impl Iterator<Item = String> {
        self.stored().flat_map(|node| {
            let refused = refusals(&node.record, &self.cuts, |block| self.owner(block));
            refused.into_iter().map(|one| one.sentence(Some(&node.record.name))).collect::<Vec<_>>()
        })
    }

    /// What several nodes publish.
    fn duplicates(&self) -> impl Iterator<Item = String> {
        let macs = self.macs.disputed().into_iter().map(|(mac, names)| {
            format!(
                "nodes {} have the same tunnel MAC {mac}: restart podwire with a fresh state on one of them",
                list(&names)
            )
        });
        let addresses = self.addresses.disputed().into_iter().map(|(address, names)| {
            format!(
                "nodes {} publish the same address {address}: only one of them can be reached; remove nodes that are gone \
                 with 'podwire node rm NAME'",
                list(&names)
            )
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
    fn sentences(&self, reason: &str) -> Vec<String> {
        match self.names.first() {
            Some(name) if self.names.len() == 1 => {
                self.reasons.iter().map(|reason| format!("no way to node {name}: {reason}")).collect()
            }
            Some(_) | None => vec![format!("no way to {} nodes: {reason}", self.names.len())],
        }
    }
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
