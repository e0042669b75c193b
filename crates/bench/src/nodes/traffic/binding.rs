//! Cost of the firewall's table of peers: round trips with and without it, alternating, through the tunnel and direct.

use anyhow::Result;
use testkit::{Cluster, TransportMode};

use super::{FAMILIES, NamespacePair, pods, probe, real};
use crate::options::NodesScale;

const TABLE: &str = "podwire-peers-podwire";
/// With transport `auto`, nodes on one link have a tunnel but send directly.
const TRANSPORTS: [(&str, TransportMode); 2] =
    [("VXLAN", TransportMode::Vxlan), ("direct", TransportMode::Auto)];
/// Factor for the number of rounds, because the difference is small.
const ROUND_FACTOR: usize = 4;

/// One transport in one family; medians of rounds in microseconds.
pub(crate) struct Binding {
    pub(crate) name: String,
    pub(crate) bound: Vec<f64>,
    pub(crate) open: Vec<f64>,
}

pub(super) fn run(scale: &NodesScale) -> Result<Vec<Binding>> {
    let mut bindings = Vec::new();
    for (name, transport) in TRANSPORTS {
        let mut cluster = real(name, transport, None)?;
        // Agents would restore the table.
        for node in cluster.node_names() {
            cluster.kill_agent(&node)?;
        }
        let tables = NodeTables::read(&cluster)?;
        let mut contenders: Vec<(NamespacePair, Binding)> = Vec::new();
        for (family, v4) in FAMILIES {
            let (name, bound, open) = (format!("{name}, {family}"), Vec::new(), Vec::new());
            contenders.push((pods(&cluster, v4)?, Binding { name, bound, open }));
        }
        for round in 0..scale.traffic_rounds * ROUND_FACTOR {
            for is_bound in [round % 2 == 0, round % 2 != 0] {
                if !is_bound {
                    tables.delete()?;
                }
                for (pair, binding) in &mut contenders {
                    let trips = probe::trips_on_one_core(pair, scale.trips)?;
                    if is_bound { binding.bound.push(trips) } else { binding.open.push(trips) }
                }
                if !is_bound {
                    tables.restore()?;
                }
            }
        }
        bindings.extend(contenders.into_iter().map(|(_, binding)| binding));
    }
    Ok(bindings)
}

/// The table of each node according to nft.
struct NodeTables<'a> {
    cluster: &'a Cluster,
    texts: Vec<(String, String)>,
}

impl<'a> NodeTables<'a> {
    fn read(cluster: &'a Cluster) -> Result<Self> {
        let list = |node: String| {
            let text = cluster.node(&node)?.sh(&["nft", "list", "table", "inet", TABLE])?;
            Ok((node, text))
        };
        Ok(Self { cluster, texts: cluster.node_names().into_iter().map(list).collect::<Result<_>>()? })
    }

    fn delete(&self) -> Result<()> {
        self.each(|_| vec!["delete", "table", "inet", TABLE])
    }

    fn restore(&self) -> Result<()> {
        self.each(|text| vec![text])
    }

    fn each<'t>(&'t self, words: impl Fn(&'t str) -> Vec<&'t str>) -> Result<()> {
        for (node, text) in &self.texts {
            self.cluster.node(node)?.sh(&[vec!["nft"], words(text)].concat())?;
        }
        Ok(())
    }
}
