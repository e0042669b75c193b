//! What is wrong with the cluster as this node sees it, in sentences.

use std::collections::{BTreeMap, BTreeSet};

use types::NodeName;

use super::Mesh;
use super::way::{NoWay, Way};

impl Mesh {
    /// Sorted; each is said once. What concerns many nodes for one reason of our own is said of all of them together.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = BTreeSet::new();
        let mut unreached: BTreeMap<String, BTreeSet<&NodeName>> = BTreeMap::new();
        for (name, block, way) in self.ways() {
            let Way::None(reason) = way else { continue };
            match reason {
                NoWay::Outside | NoWay::OverlapsOurs(_) | NoWay::Overlaps { .. } | NoWay::HoldsNode(_) => {
                    problems.insert(format!("block {block} of node {name} is not routed: {reason}"));
                }
                NoWay::NotOnLink(_)
                | NoWay::NoAddress(_)
                | NoWay::NoCommonFamily
                | NoWay::OurAddress(_)
                | NoWay::SameMac { .. } => {
                    problems.insert(format!("no way to node {name}: {reason}"));
                }
                NoWay::NoUnderlay(_) | NoWay::NoTunnel(_) => {
                    unreached.entry(reason.to_string()).or_default().insert(name);
                }
            }
        }
        problems.extend(unreached.iter().map(|(reason, names)| no_way_to(names, reason)));
        problems.extend(self.duplicates());
        problems.into_iter().collect()
    }

    /// What several nodes publish, or one publishes that cannot be.
    fn duplicates(&self) -> impl Iterator<Item = String> {
        let macs = self.macs.disputed().into_iter().map(|(mac, names)| {
            format!(
                "nodes {} have the same tunnel MAC {mac}: restart podwire with a fresh state on one of them",
                list(&names)
            )
        });
        let addresses = self.addresses.disputed().into_iter().map(|(address, names)| {
            format!(
                "nodes {} publish the same address {address}: only one of them can be reached",
                list(&names)
            )
        });
        let inside = self.peers.values().flat_map(|peer| {
            let is_pod =
                |address: &&std::net::IpAddr| self.facts.subnets.iter().any(|net| net.contains(*address));
            peer.record.addresses.iter().filter(is_pod).map(|address| {
                format!("address {address} of node {} lies inside the pods' network", peer.record.name)
            })
        });
        macs.chain(addresses).chain(inside)
    }
}

fn no_way_to(names: &BTreeSet<&NodeName>, reason: &str) -> String {
    match names.first() {
        Some(name) if names.len() == 1 => format!("no way to node {name}: {reason}"),
        Some(_) | None => format!("no way to {} nodes: {reason}", names.len()),
    }
}

fn list(names: &[&NodeName]) -> String {
    names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ")
}
