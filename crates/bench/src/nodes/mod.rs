//! Clusters with many nodes: the cost for a node, the store and the traffic between pods.
//!
//! ```text
//! hosts (underlay, etcd, real agents) ◄── simulated: records of simulated nodes, written by this program
//!   ├ routes   all routes at once, compared with `ip route add` for each; then one change
//!   ├ scale    agents among a thousand nodes, some of which are added and removed
//!   ├ joins    parallel joins, compared with a plain counter
//!   └ traffic  pod to pod, compared with links created by `ip`
//! ```

mod change;
pub(crate) mod joins;
mod observed;
pub(crate) mod outage;
pub(crate) mod routes;
pub(crate) mod scale;
mod seed;
mod simulated;
pub(crate) mod traffic;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Result;
use ipnet::IpNet;
use testkit::{Cluster, Plan};

use crate::cases::with_progress;
use crate::options::{BenchPart, NodesScale};

/// The results of the requested parts.
#[derive(Default)]
pub(crate) struct Nodes {
    pub(crate) routes: Option<routes::RouteTimes>,
    pub(crate) scale: Option<scale::ScaleResult>,
    pub(crate) joins: Option<joins::Joins>,
    pub(crate) traffic: Option<traffic::Traffic>,
}

pub(crate) fn run(parts: &[BenchPart], scale: &NodesScale) -> Result<Nodes> {
    let mut nodes = Nodes::default();
    if parts.contains(&BenchPart::Routes) {
        let what = format!("routes to {} nodes", scale.peers);
        nodes.routes = Some(with_progress(&what, || routes::run(scale))?);
    }
    if parts.contains(&BenchPart::Scale) {
        let what = format!("three agents among {} nodes", scale.crowd);
        nodes.scale = Some(with_progress(&what, || scale::run(scale))?);
    }
    if parts.contains(&BenchPart::Joins) {
        let what = format!("{} joins at once", scale.joins);
        nodes.joins = Some(with_progress(&what, || joins::run(scale))?);
    }
    if parts.contains(&BenchPart::Traffic) {
        nodes.traffic = Some(with_progress("traffic between pods of two nodes", || traffic::run(scale))?);
    }
    Ok(nodes)
}

/// Capacity for all simulated nodes: 16,384 blocks of each family.
const MARGIN: u8 = 14;
/// Each node has one IPv4 and one IPv6 block, and so two routes on every other node.
const BLOCKS_PER_NODE: usize = 2;

fn subnets() -> Vec<IpNet> {
    let v4 = IpAddr::V4(Ipv4Addr::new(10, 64, 0, 0));
    let v6 = IpAddr::V6(Ipv6Addr::new(0xfd42, 0, 0, 0, 0, 0, 0, 0));
    vec![IpNet::new_assert(v4, 10), IpNet::new_assert(v6, 64)]
}

/// Creates hosts and a running etcd; no agent is started. Every host gets an
/// address in 10.200.0.0/16, the subnet of the simulated on-link nodes.
fn hosts(label: &str, nodes: usize, pods: &[IpNet]) -> Result<Cluster> {
    let plan = Plan { nodes, pods: pods.to_vec(), margin: MARGIN, ..Plan::default() };
    let mut cluster = Cluster::hosts(label, &plan)?;
    for (index, name) in cluster.node_names().iter().enumerate() {
        let address = format!("10.200.0.{}/16", index + 1);
        cluster.node(name)?.sh(&["ip", "addr", "add", &address, "dev", "eth0"])?;
    }
    cluster.start_etcd()?;
    Ok(cluster)
}
