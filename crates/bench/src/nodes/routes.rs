//! Routes to thousands of nodes: all at once, compared with `ip route add` for each, and then one change. IPv4 only, so that
//! all contenders create the same routes.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use model::{
    BlockLayout, LocalNode, Mesh, NodeRecord, PeerChanges, StoredNode, Transport, Tunnels, Underlay,
};
use netlink::{Mode, Op, Route, RtSocket};
use testkit::{CableEnd, Cluster, Lab, Node};
use types::{IfName, NodeName, PEER_PROTOCOL};

use super::change::{ChangeTimes, Mover};
use super::observed::{AwaitedRoutes, RouteObserver};
use super::simulated::{self, NodeLocation, SimulatedNodes};
use super::{MARGIN, hosts, seed, subnets};
use crate::options::NodesScale;
use crate::stats::Sample;

/// Timeout for all routes.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);
/// The agent distributes its routes over several metrics, because the kernel searches all next hops of one link and metric
/// linearly. First metric and number of metrics.
const METRICS: std::ops::Range<u32> = 113_000..117_096;
/// Number of nodes in the case `among few`.
const FEW: usize = 50;

pub(crate) struct RouteTimes {
    /// Total time of `ip route add`; each round adds a part of the routes.
    pub(crate) ip: Duration,
    /// Planning and netlink batches.
    pub(crate) library: Sample,
    /// From the start of an agent's process to its last route.
    pub(crate) agent: Sample,
    pub(crate) among_many: ChangeTimes,
    pub(crate) among_few: ChangeTimes,
    pub(crate) few: usize,
}

pub(crate) fn run(scale: &NodesScale) -> Result<RouteTimes> {
    let v4 = &subnets()[..1];
    let mut cluster = hosts("routes", 1, v4)?;
    let mut records = simulated::records(0..scale.peers, NodeLocation::OnLink)?;
    records.iter_mut().for_each(|record| record.blocks.retain(|_, block| v4[0].contains(block)));
    SimulatedNodes::of(&cluster)?.add_nodes(&records)?;
    let plain = OnLinkNode::make(cluster.lab(), "plain")?;
    let library = OnLinkNode::make(cluster.lab(), "library")?;
    let (mut ip, mut batches, mut starts) = (Duration::ZERO, Sample::default(), Sample::default());
    let part = records.len().div_ceil(scale.route_rounds);
    for some in records.chunks(part) {
        ip += seed::add_routes(&plain.node, some)?;
        batches.note(library.sync(&records));
        library.flush()?;
        starts.note(start_agent(&mut cluster, records.len()));
    }
    let few = FEW.min(scale.peers / 2);
    // The agent of the last round is still running.
    let simulated = SimulatedNodes::of(&cluster)?;
    let mut mover = Mover::new(&cluster, &simulated, &records[..few])?;
    let among_many = mover.run(scale.changes)?;
    simulated.remove_nodes(&records[few..])?;
    RouteObserver::open(cluster.node("n1")?)?.wait(TIMEOUT, AwaitedRoutes::Count(few))?;
    let among_few = mover.run(scale.changes)?;
    Ok(RouteTimes { ip, library: batches, agent: starts, among_many, among_few, few })
}

/// Prepares a first start: no routes and no cached peers.
fn start_agent(cluster: &mut Cluster, routes: usize) -> Result<Duration> {
    if !cluster.agent("n1")?.has_ended()? {
        cluster.kill_agent("n1")?;
    }
    let node = cluster.node("n1")?;
    flush(node)?;
    forget_peers(node)?;
    let mut observer = RouteObserver::open(node)?;
    observer
        .wait(Duration::ZERO, AwaitedRoutes::Count(0))
        .context("routes of the last round were not removed")?;
    let start = Instant::now();
    let agent = cluster.agent_mut("n1")?;
    agent.launch()?;
    let done = observer.wait(TIMEOUT, AwaitedRoutes::Count(routes))?;
    agent.wait_ready()?;
    Ok(done - start)
}

fn forget_peers(node: &Node) -> Result<()> {
    let path = node.dir().join("lib/podwire/peers.json");
    match fs::remove_file(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn flush(node: &Node) -> Result<()> {
    let protocol = PEER_PROTOCOL.to_string();
    for family in ["-4", "-6"] {
        node.sh(&["ip", family, "route", "flush", "proto", &protocol])?;
    }
    Ok(())
}

/// A node with one link. All peers are on-link, and no host is at the other end.
struct OnLinkNode {
    node: Node,
    link: u32,
}

impl OnLinkNode {
    fn make(lab: &Lab, name: &str) -> Result<Self> {
        let (node, far) = (lab.node(name)?, lab.node(&format!("{name}-far"))?);
        let here = CableEnd { ns: &node, dev: "eth0", addresses: &["10.200.0.1/16", "fd99:1::1/64"] };
        lab.wire(&here, &CableEnd { ns: &far, dev: "eth0", addresses: &[] })?;
        let link = node.enter(|| {
            RtSocket::open()?.index_of(&IfName::try_from("eth0")?).map_err(anyhow::Error::from)
        })??;
        Ok(Self { node, link: link.context("eth0 is missing")? })
    }

    /// Creates the routes from the records, as the agent does.
    fn sync(&self, records: &[NodeRecord]) -> Result<Duration> {
        let mut socket = self.node.enter(RtSocket::open)??;
        let records = records.to_vec();
        let local_node = self.local_node()?;
        let start = Instant::now();
        let mut mesh = Mesh::new(local_node);
        let claims =
            records.iter().flat_map(|r| r.blocks.iter().map(|block| (*block, r.name.clone()))).collect();
        mesh.set_all(records.into_iter().map(|record| StoredNode { record, created: 1 }), claims);
        let changes = mesh.take_changes();
        for result in socket.run_all(&ops(&changes))? {
            result?;
        }
        let took = start.elapsed();
        ensure!(!changes.is_empty(), "nothing was planned");
        Ok(took)
    }

    fn local_node(&self) -> Result<LocalNode> {
        let on_link = vec!["10.200.0.0/16".parse()?];
        let underlay = Underlay { link: self.link, address: "10.200.0.1".parse()?, on_link };
        Ok(LocalNode {
            name: NodeName::try_from("bench")?,
            blocks: Vec::new(),
            block_layouts: subnets()
                .into_iter()
                .filter_map(|net| BlockLayout::new(net, MARGIN).ok())
                .collect(),
            transport: Transport::Auto,
            underlays: vec![underlay],
            tunnels: Tunnels::default(),
            sources: Vec::new(),
        })
    }

    fn flush(&self) -> Result<()> {
        flush(&self.node)
    }
}

fn ops(changes: &PeerChanges) -> Vec<Op<'static>> {
    let route = |(peer, metric): (&model::PeerRoute, u32)| Route {
        gateway: Some(peer.gateway),
        link: Some(peer.link),
        onlink: peer.onlink,
        src: peer.src,
        priority: Some(metric),
        protocol: PEER_PROTOCOL,
        ..Route::to(peer.dst)
    };
    let set = changes.set_routes.iter().zip(METRICS.cycle());
    set.map(|one| Op::AddRoute { route: route(one), mode: Mode::Replace }).collect()
}
