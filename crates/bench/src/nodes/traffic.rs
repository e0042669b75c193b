//! From a pod on one node to a pod on another: through real agents and the plugin, and over links that `ip` alone made, of
//! the same shape, with and without the kernel's connection tracking. In turn, round by round.
//!
//! ```text
//! pod ── veth ── node ── veth ── underlay's bridge ── veth ── node ── veth ── pod      and VXLAN between the nodes, or not
//! ```

mod plain;
mod probe;

use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use testkit::{Cluster, DEADLINE, Ns, Plan, Store, Transport, Way, wait_until};

use crate::options::NodesScale;
use plain::{Plain, Tracking};

pub(crate) struct Traffic {
    pub(crate) paths: Vec<Path>,
}

/// One way in one family.
pub(crate) struct Path {
    pub(crate) name: String,
    pub(crate) podwire: Rounds,
    pub(crate) plain: Rounds,
    /// Plain links on hosts that track connections, as any host with NAT does: for information.
    pub(crate) tracked: Rounds,
}

/// Round by round.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    pub(crate) gbit_per_s: Vec<f64>,
    /// There and back, the median of a round.
    pub(crate) trip_us: Vec<f64>,
}

/// Two namespaces and where the second is.
struct Pair {
    from: Ns,
    to: Ns,
    address: IpAddr,
}

/// A way and who has it, ready to be used.
struct Lane {
    path: Path,
    podwire: Pair,
    plain: Pair,
    tracked: Pair,
}

pub(crate) fn run(scale: &NodesScale) -> Result<Traffic> {
    let mut kept = Vec::new();
    let mut lanes = Vec::new();
    for (name, transport) in [("direct", Transport::Direct), ("VXLAN", Transport::Vxlan)] {
        let ours = real(name, transport)?;
        let plain = Plain::make(transport, Tracking::Off)?;
        let tracked = Plain::make(transport, Tracking::On)?;
        for v4 in [true, false] {
            let family = if v4 { "IPv4" } else { "IPv6" };
            lanes.push(Lane {
                path: Path::new(format!("{name}, {family}")),
                podwire: pods(&ours, v4)?,
                plain: plain.pair(v4)?,
                tracked: tracked.pair(v4)?,
            });
        }
        kept.push((ours, plain, tracked));
    }
    for round in 0..scale.traffic_rounds {
        for lane in &mut lanes {
            lane.round(round, scale)?;
        }
    }
    Ok(Traffic { paths: lanes.into_iter().map(|lane| lane.path).collect() })
}

/// Two nodes with an agent and a pod each; every pod reaches the other when this returns.
fn real(name: &str, transport: Transport) -> Result<Cluster> {
    let plan = Plan { nodes: 2, transport, store: Store::Embedded, ..Plan::default() };
    let cluster = Cluster::up(&format!("traffic-{transport:?}").to_lowercase(), &plan)?;
    cluster.pods_everywhere(1)?;
    let way = if transport == Transport::Vxlan { Way::Vxlan } else { Way::Direct };
    wait_until(&format!("pods to reach each other, {name}"), DEADLINE, || {
        let matrix = cluster.reach(std::time::Duration::from_secs(2))?;
        Ok(matrix.all() && matrix.cells.iter().all(|cell| cell.way == way))
    })?;
    Ok(cluster)
}

fn pods(cluster: &Cluster, v4: bool) -> Result<Pair> {
    let pods = cluster.pods();
    let [from, to] = pods.as_slice() else { anyhow::bail!("there are {} pods instead of two", pods.len()) };
    ensure!(from.node != to.node, "both pods are on {}", from.node);
    let address = to.addresses.iter().find(|address| address.is_ipv4() == v4);
    let address = *address.context("a pod lacks an address")?;
    Ok(Pair { from: (*from.pod).clone(), to: (*to.pod).clone(), address })
}

impl Lane {
    /// Who begins changes from round to round.
    fn round(&mut self, round: usize, scale: &NodesScale) -> Result<()> {
        let Self { path, podwire, plain, tracked } = self;
        let mut sides =
            [(&mut path.podwire, &*podwire), (&mut path.plain, &*plain), (&mut path.tracked, &*tracked)];
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

impl Path {
    fn new(name: String) -> Self {
        Self { name, podwire: Rounds::default(), plain: Rounds::default(), tracked: Rounds::default() }
    }
}
