//! Three agents in a cluster of many nodes: memory, time until routes follow added and removed nodes, and etcd requests while
//! idle.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use model::NodeRecord;
use testkit::{Cluster, uninterrupted, wait_until};

use super::observed::{AwaitedRoutes, RouteObserver, RouteRecorder, RouteTransition};
use super::routes::TIMEOUT;
use super::simulated::{self, CommitTimes, NodeLocation, SimulatedNodes};
use super::{BLOCKS_PER_NODE, hosts, subnets};
use crate::options::NodesScale;
use crate::process::rss_mib;
use crate::stats::Sample;

const AGENTS: usize = 3;
/// Added nodes per second; the same number is removed.
const PER_SECOND: u32 = 50;
/// Timeout for the routes of the last event.
const LAST: Duration = Duration::from_secs(2);
/// Address of the metrics of a lab's etcd, on its loopback.
const METRICS: &str = "127.0.0.1:2381";
const METRICS_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) struct ScaleResult {
    /// Memory of the largest agent after all changes.
    pub(crate) rss_mib: f64,
    /// From the response of the commit to the route, for all agents.
    pub(crate) event: Sample,
    /// The same, including the commit.
    pub(crate) with_commit: Sample,
    /// etcd requests of one idle agent per minute.
    pub(crate) requests_few: f64,
    pub(crate) requests_many: f64,
    pub(crate) few: usize,
    /// Nodes added and removed per second.
    pub(crate) rate: f64,
    pub(crate) agents: usize,
}

pub(crate) fn run(scale: &NodesScale) -> Result<ScaleResult> {
    let mut cluster = hosts("scale", AGENTS, &subnets())?;
    cluster.start_agents()?;
    let cluster = cluster;
    let simulated = SimulatedNodes::of(&cluster)?;
    let few = scale.few_nodes - AGENTS;
    let first = mixed(0..few)?;
    simulated.add_nodes(&first)?;
    wait_for_routes(&cluster, few)?;
    let requests_few = requests_per_minute(&cluster, scale.quiet)?;
    let all = scale.crowd - AGENTS;
    simulated.add_nodes(&mixed(few..all)?)?;
    wait_for_routes(&cluster, all)?;
    let requests_many = requests_per_minute(&cluster, scale.quiet)?;
    let churn = churn(&cluster, &simulated, (all, scale.churn))?;
    let mut largest = 0f64;
    for name in cluster.node_names() {
        let pid =
            cluster.agent(&name)?.pid().with_context(|| format!("the agent of {name} is not running"))?;
        largest = largest.max(rss_mib(pid)?);
    }
    Ok(ScaleResult {
        rss_mib: largest,
        event: churn.event,
        with_commit: churn.with_commit,
        requests_few,
        requests_many,
        few: scale.few_nodes,
        rate: churn.rate,
        agents: AGENTS,
    })
}

/// Half of the nodes are on-link, the other half behind the router.
fn mixed(numbers: std::ops::Range<usize>) -> Result<Vec<NodeRecord>> {
    let location = |number: usize| {
        if number.is_multiple_of(2) { NodeLocation::OnLink } else { NodeLocation::BehindRouter }
    };
    numbers.map(|number| simulated::record(number, location(number))).collect()
}

/// Waits for the routes of all agents to simulated nodes and to each other.
fn wait_for_routes(cluster: &Cluster, simulated: usize) -> Result<()> {
    for name in cluster.node_names() {
        let mut observer = RouteObserver::open(cluster.node(&name)?)?;
        observer
            .wait(TIMEOUT, AwaitedRoutes::Count(BLOCKS_PER_NODE * (simulated + AGENTS - 1)))
            .with_context(|| format!("node {name}"))?;
    }
    Ok(())
}

#[derive(Default)]
struct Churn {
    event: Sample,
    with_commit: Sample,
    rate: f64,
}

/// Adds nodes beyond `nodes.0` and removes the oldest ones.
fn churn(
    cluster: &Cluster,
    simulated: &SimulatedNodes<'_>,
    (nodes, lasting): (usize, Duration),
) -> Result<Churn> {
    let names = cluster.node_names();
    let recorders: Vec<RouteRecorder> =
        names.iter().map(|name| RouteRecorder::begin(cluster.node(name)?)).collect::<Result<_>>()?;
    let count = (lasting.as_secs_f64() * f64::from(PER_SECOND)).round() as usize;
    let (added, removed) = (mixed(nodes..nodes + count)?, mixed(0..count)?);
    ensure!(count < nodes, "{nodes} nodes are too few to remove {count}");
    let mut transitions: Vec<(RouteTransition, CommitTimes)> = Vec::new();
    let start = Instant::now();
    for (index, (new_node, old_node)) in added.iter().zip(&removed).enumerate() {
        pace(start, index);
        transitions.push((RouteTransition::Added(block(new_node)?), simulated.put_node(new_node)?));
        transitions.push((RouteTransition::Removed(block(old_node)?), simulated.remove_node(old_node)?));
    }
    let rate = count as f64 / start.elapsed().as_secs_f64();
    // Missing routes are reported below. The number of routes is the same before and after each pair of events, so the last
    // pair is checked.
    let last = added.last().zip(removed.last()).context("no node was added or removed")?;
    let (there, gone) = (block(last.0)?, block(last.1)?);
    let awaited = || {
        [AwaitedRoutes::Swapped { there, gone }, AwaitedRoutes::Count(BLOCKS_PER_NODE * (nodes + AGENTS - 1))]
    };
    let settled = wait_until("the last routes", LAST, || {
        Ok(awaited().into_iter().all(|routes| holds_now(cluster, routes)))
    });
    let mut churn = Churn { rate, ..Churn::default() };
    for (events, name) in recorders.into_iter().zip(&names) {
        churn.judge(&transitions, events.end()?, name);
    }
    if let Err(error) = settled {
        churn.event.note(Err(error));
    }
    Ok(churn)
}

fn holds_now(cluster: &Cluster, awaited: AwaitedRoutes) -> bool {
    cluster.node_names().iter().all(|name| {
        let Ok(node) = cluster.node(name) else { return false };
        RouteObserver::open(node).and_then(|mut observer| observer.wait(Duration::ZERO, awaited)).is_ok()
    })
}

/// Waits until the event with this number is due.
fn pace(start: Instant, index: usize) {
    let due = start + Duration::from_secs(1) / PER_SECOND * u32::try_from(index).unwrap_or(u32::MAX);
    std::thread::sleep(due.saturating_duration_since(Instant::now()));
}

fn block(record: &NodeRecord) -> Result<ipnet::IpNet> {
    record.blocks.iter().next().copied().context("the node has no block")
}

impl Churn {
    /// Checks that each event is in the log of one agent.
    fn judge(
        &mut self,
        transitions: &[(RouteTransition, CommitTimes)],
        events: Vec<(RouteTransition, Instant)>,
        name: &str,
    ) {
        let mut first: HashMap<RouteTransition, Instant> = HashMap::new();
        for (transition, at) in events {
            first.entry(transition).or_insert(at);
        }
        for (transition, committed) in transitions {
            match first.get(transition) {
                Some(at) => {
                    self.event.note(Ok(at.saturating_duration_since(committed.end)));
                    self.with_commit.note(Ok(at.saturating_duration_since(committed.start)));
                }
                None => self.event.note(Err(anyhow::anyhow!("{transition:?} was not observed on {name}"))),
            }
        }
    }
}

/// etcd requests of one idle agent.
fn requests_per_minute(cluster: &Cluster, window: Duration) -> Result<f64> {
    let before = requests(cluster)?;
    let start = Instant::now();
    std::thread::sleep(window);
    let sent = requests(cluster)? - before;
    Ok(sent / AGENTS as f64 / start.elapsed().as_secs_f64() * 60.0)
}

/// Total number of etcd requests. A message in a stream counts as a request.
fn requests(cluster: &Cluster) -> Result<f64> {
    let member = cluster.etcd.members.first().context("there is no etcd")?;
    let text = member.node().enter(metrics)?.context("cannot read etcd's metrics")?;
    let counted: f64 = received(&text).sum();
    ensure!(counted > 0.0, "etcd's metrics have no requests");
    Ok(counted)
}

fn received(metrics: &str) -> impl Iterator<Item = f64> {
    let lines = metrics.lines().filter(|line| line.starts_with("grpc_server_msg_received_total{"));
    lines.filter_map(|line| line.rsplit_once(' ')?.1.parse().ok())
}

fn metrics() -> std::io::Result<String> {
    let mut stream = TcpStream::connect(METRICS)?;
    stream.set_read_timeout(Some(METRICS_TIMEOUT))?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    uninterrupted(|| stream.read_to_string(&mut text))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_all_methods_are_counted() {
        let text = "# TYPE grpc_server_msg_received_total counter\n\
            grpc_server_msg_received_total{grpc_method=\"Range\",grpc_type=\"unary\"} 7\n\
            grpc_server_msg_sent_total{grpc_method=\"Range\"} 100\n\
            grpc_server_msg_received_total{grpc_method=\"LeaseKeepAlive\"} 1.5e+01\n";
        assert_eq!(received(text).sum::<f64>(), 22.0);
    }
}
