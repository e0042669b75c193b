//! Conditions of the cluster, as this node observes it.

use std::collections::BTreeSet;

use types::{Code, Finding, NodeName};

use super::Mesh;
use super::path::{NoPath, PeerPath};
use crate::admission::refusals;

/// The number of nodes that a message names. It counts the others.
const MAX_NAMED: usize = 5;

impl Mesh {
    /// Sorted, without duplicates. Each node is a separate object, so that its condition does not depend on other nodes.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = BTreeSet::new();
        for (name, block, path) in self.paths() {
            let PeerPath::None(reason) = path else { continue };
            match reason {
                // Reported below, for all blocks of a node together.
                NoPath::Refused(_) => {}
                NoPath::OverlapsOwnBlock(_) | NoPath::HoldsLink(_) | NoPath::HoldsNode(_) => {
                    let message = format!("block {block} of node {name} is not routed: {reason}");
                    findings.insert(Finding::new(Code::PeerUnrouted, format_args!("block {block}"), message));
                }
                NoPath::NoAddress(_)
                | NoPath::HasOwnAddress(_)
                | NoPath::SameMac { .. }
                | NoPath::NotOnLink(_)
                | NoPath::NoCommonFamily
                | NoPath::NoUnderlay(_)
                | NoPath::NoTunnel(_) => {
                    let message = format!("no route to node {name}: {reason}");
                    findings.insert(Finding::new(Code::PeerUnrouted, format_args!("node {name}"), message));
                }
            }
        }
        findings.extend(self.duplicates());
        findings.extend(self.refused());
        findings.into_iter().collect()
    }

    /// Parts of records that are not used.
    fn refused(&self) -> impl Iterator<Item = Finding> {
        self.stored().flat_map(|node| {
            let name = &node.record.name;
            let refused = refusals(&node.record, &self.local_node.block_layouts, |block| self.owner(block));
            let finding =
                |message| Finding::new(Code::PeerRecordRefused, format_args!("node {name}"), message);
            refused.into_iter().map(|one| finding(one.sentence(Some(name)))).collect::<Vec<_>>()
        })
    }

    /// MACs and addresses that several nodes publish.
    fn duplicates(&self) -> impl Iterator<Item = Finding> {
        let macs = self.macs.disputed().into_iter().map(|(mac, names)| {
            let message = format!(
                "nodes {} have the same tunnel MAC {mac}: restart podwire with an empty state directory on one of them",
                list(&names)
            );
            Finding::new(Code::PeerConflict, format_args!("MAC {mac}"), message)
        });
        let addresses = self.addresses.disputed().into_iter().map(|(address, names)| {
            let message = format!(
                "nodes {} publish the same address {address}: only one of them can be reached",
                list(&names)
            );
            Finding::new(Code::PeerConflict, format_args!("address {address}"), message)
        });
        macs.chain(addresses)
    }
}

fn list(names: &[&NodeName]) -> String {
    let named = names.iter().take(MAX_NAMED).map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
    let more = names.len().saturating_sub(MAX_NAMED);
    if more > 0 { format!("{named} and {more} more") } else { named }
}
