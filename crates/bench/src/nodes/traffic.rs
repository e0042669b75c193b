//! From a pod on one node to a pod on another: through real agents and the plugin, and over links that `ip` alone made, of
//! the same shape, with and without the kernel's connection tracking. In turn, round by round.
//!
//! ```text
//! pod ── veth ── node ── veth ── underlay's bridge ── veth ── node ── veth ── pod      and VXLAN between the nodes, or not
//! ```

mod binding;
mod plain;
pub(crate) mod probe;

use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use testkit::{Cluster, DEADLINE, Ns, Plan, Plugin, PodPath, TransportMode, wait_until};

use crate::compare::ComparedBuild;
use crate::options::NodesScale;
pub(crate) use binding::Binding;
use plain::{Plain, Tracking};

pub(crate) struct Traffic {
    pub(crate) paths: Vec<TrafficPath>,
    pub(crate) bindings: Vec<Binding>,
}

/// One way in one family.
pub(crate) struct TrafficPath {
    pub(crate) name: String,
    pub(crate) podwire: TrafficRounds,
    pub(crate) plain: TrafficRounds,
    /// Plain links on hosts that track connections, as any host with NAT does: for information.
    pub(crate) tracked: TrafficRounds,
}

/// The figures of each round.
#[derive(Debug, Default)]
pub(crate) struct TrafficRounds {
    pub(crate) gbit_per_s: Vec<f64>,
    /// There and back, the median of a round.
    pub(crate) trip_us: Vec<f64>,
}

/// Two namespaces and where the second is.
pub(crate) struct NamespacePair {
    from: Ns,
    to: Ns,
    address: IpAddr,
}

/// Who has a way in one family, ready to be used.
struct TrafficLane {
    name: String,
    podwire: NamespacePair,
    plain: NamespacePair,
    tracked: NamespacePair,
}

/// All there is at one time; it goes with this.
struct TrafficSite {
    lanes: Vec<TrafficLane>,
    _networks: Vec<(Cluster, [Plain; 2])>,
}

pub(crate) const WAYS: [(&str, TransportMode); 2] =
    [("direct", TransportMode::Direct), ("VXLAN", TransportMode::Vxlan)];
/// By name, and whether it is IPv4.
pub(crate) const FAMILIES: [(&str, bool); 2] = [("IPv4", true), ("IPv6", false)];

/// Everything is made anew now and then: where the kernel happens to put its tables makes one of two networks that are alike
/// faster than the other, by up to a twentieth, for as long as they live.
pub(crate) fn run(scale: &NodesScale) -> Result<Traffic> {
    let mut paths: Vec<TrafficPath> = Vec::new();
    for _ in 0..scale.traffic_sites {
        let site = TrafficSite::make()?;
        for round in 0..scale.traffic_rounds {
            for lane in &site.lanes {
                lane.round(path_of(&mut paths, &lane.name), round, scale)?;
            }
        }
    }
    Ok(Traffic { paths, bindings: binding::run(scale)? })
}

fn path_of<'a>(paths: &'a mut Vec<TrafficPath>, name: &str) -> &'a mut TrafficPath {
    let place = paths.iter().position(|path| path.name == name).unwrap_or_else(|| {
        paths.push(TrafficPath::new(name.to_owned()));
        paths.len() - 1
    });
    &mut paths[place]
}

impl TrafficSite {
    fn make() -> Result<Self> {
        let (mut lanes, mut networks) = (Vec::new(), Vec::new());
        for (name, transport) in WAYS {
            let ours = real(name, transport, None)?;
            let plain = Plain::make(transport, Tracking::Off)?;
            let tracked = Plain::make(transport, Tracking::On)?;
            for (family, v4) in FAMILIES {
                lanes.push(TrafficLane {
                    name: format!("{name}, {family}"),
                    podwire: pods(&ours, v4)?,
                    plain: plain.pair(v4)?,
                    tracked: tracked.pair(v4)?,
                });
            }
            networks.push((ours, [plain, tracked]));
        }
        Ok(Self { lanes, _networks: networks })
    }
}

/// Two nodes with an agent and a pod each; every pod reaches the other when this returns. Its programs are those of this
/// build unless others are given.
pub(crate) fn real(name: &str, transport: TransportMode, build: Option<&ComparedBuild>) -> Result<Cluster> {
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
    let way = if transport == TransportMode::Vxlan { PodPath::Vxlan } else { PodPath::Direct };
    wait_until(&format!("pods to reach each other, {name}"), DEADLINE, || {
        let matrix = cluster.reach(std::time::Duration::from_secs(2))?;
        Ok(matrix.all() && matrix.cells.iter().all(|cell| cell.way == way))
    })?;
    Ok(cluster)
}

pub(crate) fn pods(cluster: &Cluster, v4: bool) -> Result<NamespacePair> {
    let pods = cluster.pods();
    let [from, to] = pods.as_slice() else { anyhow::bail!("there are {} pods instead of two", pods.len()) };
    ensure!(from.node != to.node, "both pods are on {}", from.node);
    let address = to.addresses.iter().find(|address| address.is_ipv4() == v4);
    let address = *address.context("a pod lacks an address")?;
    Ok(NamespacePair { from: (*from.pod).clone(), to: (*to.pod).clone(), address })
}

impl TrafficLane {
    /// Who begins changes from round to round.
    fn round(&self, path: &mut TrafficPath, round: usize, scale: &NodesScale) -> Result<()> {
        let mut sides = [
            (&mut path.podwire, &self.podwire),
            (&mut path.plain, &self.plain),
            (&mut path.tracked, &self.tracked),
        ];
        let first = round % sides.len();
        sides.rotate_left(first);
        for (rounds, pair) in sides {
            let told = || format!("{}, round {round}", pair.address);
            rounds.gbit_per_s.push(probe::streams(pair, scale.stream).with_context(told)?);
            rounds.trip_us.push(probe::trips(pair, scale.trips).with_context(told)?);
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
