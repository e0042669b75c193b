//! Traffic between pods on two nodes: with real agents and the plugin, and with the same topology created by `ip`, with and
//! without connection tracking. The contenders alternate in every round.
//!
//! ```text
//! pod ── veth ── node ── veth ── underlay's bridge ── veth ── node ── veth ── pod      and VXLAN between the nodes, or not
//! ```

mod peer_table;
mod plain;
pub(crate) mod probe;

use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use testkit::{Cluster, DEADLINE, Ns, Plan, Plugin, PodPath, TransportMode, wait_until};

use crate::compare::ComparedBuild;
use crate::options::NodesScale;
pub(crate) use peer_table::PeerTableCost;
use plain::{Plain, Tracking};

pub(crate) struct Traffic {
    pub(crate) paths: Vec<TrafficPath>,
    pub(crate) peer_table: Vec<PeerTableCost>,
}

/// One transport in one family.
pub(crate) struct TrafficPath {
    pub(crate) name: String,
    pub(crate) podwire: TrafficRounds,
    pub(crate) plain: TrafficRounds,
    /// Plain links on hosts with connection tracking, for information.
    pub(crate) tracked: TrafficRounds,
}

/// The figures of each round.
#[derive(Debug, Default)]
pub(crate) struct TrafficRounds {
    pub(crate) gbit_per_s: Vec<f64>,
    /// Round-trip times, the median of each round.
    pub(crate) trip_us: Vec<f64>,
}

/// Two namespaces and the address of the second.
pub(crate) struct NamespacePair {
    pub(crate) from: Ns,
    pub(crate) to: Ns,
    pub(crate) address: IpAddr,
    /// 0: any port.
    pub(crate) port: u16,
}

/// The contenders of one transport and family.
struct PathContenders {
    name: String,
    podwire: NamespacePair,
    plain: NamespacePair,
    tracked: NamespacePair,
}

/// All topologies that exist at the same time. They are removed on drop.
struct TrafficSite {
    paths: Vec<PathContenders>,
    _networks: Vec<(Cluster, [Plain; 2])>,
}

pub(crate) const TRANSPORTS: [(&str, TransportMode); 2] =
    [("direct", TransportMode::Direct), ("VXLAN", TransportMode::Vxlan)];
/// Name, and whether it is IPv4.
pub(crate) const FAMILIES: [(&str, bool); 2] = [("IPv4", true), ("IPv6", false)];

/// Recreates all topologies several times. The memory layout of kernel tables makes one of two identical networks up to 5 %
/// faster as long as it exists.
pub(crate) fn run(scale: &NodesScale) -> Result<Traffic> {
    let mut paths: Vec<TrafficPath> = Vec::new();
    for _ in 0..scale.traffic_sites {
        let site = TrafficSite::make()?;
        for round in 0..scale.traffic_rounds {
            for contenders in &site.paths {
                contenders.round(path_of(&mut paths, &contenders.name), round, scale)?;
            }
        }
    }
    Ok(Traffic { paths, peer_table: peer_table::run(scale)? })
}

fn path_of<'a>(paths: &'a mut Vec<TrafficPath>, name: &str) -> &'a mut TrafficPath {
    let index = paths.iter().position(|path| path.name == name).unwrap_or_else(|| {
        paths.push(TrafficPath::new(name.to_owned()));
        paths.len() - 1
    });
    &mut paths[index]
}

impl TrafficSite {
    fn make() -> Result<Self> {
        let (mut paths, mut networks) = (Vec::new(), Vec::new());
        for (name, transport) in TRANSPORTS {
            let cluster = cluster_of_two(name, transport, None)?;
            let plain = Plain::make(transport, Tracking::Off)?;
            let tracked = Plain::make(transport, Tracking::On)?;
            for (family, v4) in FAMILIES {
                paths.push(PathContenders {
                    name: format!("{name}, {family}"),
                    podwire: pods(&cluster, v4)?,
                    plain: plain.pair(v4)?,
                    tracked: tracked.pair(v4)?,
                });
            }
            networks.push((cluster, [plain, tracked]));
        }
        Ok(Self { paths, _networks: networks })
    }
}

/// Creates two nodes with an agent and a pod each and waits until the pods reach each other. Uses the programs of this build or
/// the given ones.
pub(crate) fn cluster_of_two(
    name: &str,
    transport: TransportMode,
    build: Option<&ComparedBuild>,
) -> Result<Cluster> {
    let plan = Plan { nodes: 2, transport, ..Plan::default() };
    let mut cluster = Cluster::hosts(&format!("traffic-{transport:?}").to_lowercase(), &plan)?;
    if let Some(build) = build {
        cluster.set_plugin(Plugin { path: build.plugin.clone() });
        for node in cluster.node_names() {
            cluster.agent_mut(&node)?.set_program(&build.agent);
        }
    }
    cluster.start_etcd()?;
    cluster.start_agents()?;
    cluster.pods_everywhere(1)?;
    let path = if transport == TransportMode::Vxlan { PodPath::Vxlan } else { PodPath::Direct };
    wait_until(&format!("pods to reach each other, {name}"), DEADLINE, || {
        let matrix = cluster.reach(std::time::Duration::from_secs(2))?;
        Ok(matrix.all() && matrix.cells.iter().all(|cell| cell.path == path))
    })?;
    Ok(cluster)
}

pub(crate) fn pods(cluster: &Cluster, v4: bool) -> Result<NamespacePair> {
    let pods = cluster.pods();
    let [from, to] = pods.as_slice() else { anyhow::bail!("there are {} pods instead of two", pods.len()) };
    ensure!(from.node != to.node, "both pods are on {}", from.node);
    let address = to.addresses.iter().find(|address| address.is_ipv4() == v4);
    let address = *address.context("a pod lacks an address")?;
    Ok(NamespacePair { from: (*from.pod).clone(), to: (*to.pod).clone(), address, port: 0 })
}

impl PathContenders {
    /// The order of the contenders alternates.
    fn round(&self, path: &mut TrafficPath, round: usize, scale: &NodesScale) -> Result<()> {
        let mut sides = [
            (&mut path.podwire, &self.podwire),
            (&mut path.plain, &self.plain),
            (&mut path.tracked, &self.tracked),
        ];
        let first = round % sides.len();
        sides.rotate_left(first);
        for (rounds, pair) in sides {
            let context = || format!("{}, round {round}", pair.address);
            rounds.gbit_per_s.push(probe::streams(pair, scale.stream).with_context(context)?);
            rounds.trip_us.push(probe::trips(pair, scale.trips).with_context(context)?);
        }
        Ok(())
    }
}

impl TrafficPath {
    fn new(name: String) -> Self {
        Self {
            name,
            podwire: TrafficRounds::default(),
            plain: TrafficRounds::default(),
            tracked: TrafficRounds::default(),
        }
    }
}
