//! Cost of the firewall's table of peers: round trips with and without it, alternating, through the tunnel and direct.

use anyhow::Result;
use testkit::{Cluster, TransportMode};

use super::{FAMILIES, NamespacePair, cluster_of_two, pods, probe};
use crate::options::NodesScale;

const TABLE: &str = "podwire-peers-podwire";
/// With transport `auto`, nodes on one link have a tunnel but send directly.
const TRANSPORTS: [(&str, TransportMode); 2] =
    [("VXLAN", TransportMode::Vxlan), ("direct", TransportMode::Auto)];
/// Factor for the number of rounds, because the difference is small.
const ROUND_FACTOR: usize = 4;

/// One transport in one family; medians of rounds in microseconds.
pub(crate) struct PeerTableCost {
    pub(crate) name: String,
    pub(crate) with_table: Vec<f64>,
    pub(crate) without_table: Vec<f64>,
}

pub(super) fn run(scale: &NodesScale) -> Result<Vec<PeerTableCost>> {
    let mut costs = Vec::new();
    for (name, transport) in TRANSPORTS {
        let mut cluster = cluster_of_two(name, transport, None)?;
        // Agents would restore the table.
        for node in cluster.node_names() {
            cluster.kill_agent(&node)?;
        }
        let tables = NodeTables::read(&cluster)?;
        let mut contenders: Vec<(NamespacePair, PeerTableCost)> = Vec::new();
        for (family, v4) in FAMILIES {
            let (name, with_table, without_table) = (format!("{name}, {family}"), Vec::new(), Vec::new());
            contenders.push((pods(&cluster, v4)?, PeerTableCost { name, with_table, without_table }));
        }
        for round in 0..scale.traffic_rounds * ROUND_FACTOR {
            for has_table in [round % 2 == 0, round % 2 != 0] {
                if !has_table {
                    tables.delete()?;
                }
                for (pair, cost) in &mut contenders {
                    let trips = probe::trips_on_one_core(pair, scale.trips)?;
                    if has_table { cost.with_table.push(trips) } else { cost.without_table.push(trips) }
                }
                if !has_table {
                    tables.restore()?;
                }
            }
        }
        costs.extend(contenders.into_iter().map(|(_, cost)| cost));
    }
    Ok(costs)
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
