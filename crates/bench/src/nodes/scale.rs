//! Three agents beside many nodes: how large they grow, how soon their routes follow nodes that come and go, and what they
//! ask of etcd while nothing happens.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use model::NodeRecord;
use testkit::{Cluster, uninterrupted, wait_until};

use super::crowd::{self, Committed, CrowdRecords, NodeLocation};
use super::observed::{AwaitedRoutes, Diary, Eye, RouteTransition};
use super::routes::TIMEOUT;
use super::{FAMILIES, hosts, subnets};
use crate::options::NodesScale;
use crate::process::rss_mib;
use crate::stats::Sample;

const AGENTS: usize = 3;
/// So many nodes come in a second, and as many go.
const PER_SECOND: u32 = 50;
/// How long after the last event its routes are waited for.
const LAST: Duration = Duration::from_secs(2);
/// Where an etcd of a lab tells its metrics: on its own loopback.
const METRICS: &str = "127.0.0.1:2381";
const QUESTION: Duration = Duration::from_secs(2);

pub(crate) struct Scaled {
    /// The largest agent, with all nodes and after all the coming and going.
    pub(crate) rss_mib: f64,
    /// From the commit's answer to the route, of all agents.
    pub(crate) event: Sample,
    /// The same with the commit itself.
    pub(crate) with_commit: Sample,
    /// Requests to etcd of one agent in a minute in which nothing happens.
    pub(crate) requests_few: f64,
    pub(crate) requests_many: f64,
    pub(crate) few: usize,
    /// How many nodes came, and went, in a second.
    pub(crate) rate: f64,
    pub(crate) agents: usize,
}

pub(crate) fn run(scale: &NodesScale) -> Result<Scaled> {
    let mut cluster = hosts("scale", AGENTS, &subnets())?;
    cluster.start_agents()?;
    let cluster = cluster;
    let crowd = CrowdRecords::of(&cluster)?;
    let few = scale.few_nodes - AGENTS;
    let first = mixed(0..few)?;
    crowd.come(&first)?;
    wait_for_routes(&cluster, few)?;
    let requests_few = requests_per_minute(&cluster, scale.quiet)?;
    let all = scale.crowd - AGENTS;
    crowd.come(&mixed(few..all)?)?;
    wait_for_routes(&cluster, all)?;
    let requests_many = requests_per_minute(&cluster, scale.quiet)?;
    let churn = churn(&cluster, &crowd, (all, scale.churn))?;
    let mut largest = 0f64;
    for name in cluster.node_names() {
        let pid = cluster.agent(&name)?.pid().with_context(|| format!("the agent of {name} does not run"))?;
        largest = largest.max(rss_mib(pid)?);
    }
    Ok(Scaled {
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

/// Every other node is on-link, the others behind the router.
fn mixed(numbers: std::ops::Range<usize>) -> Result<Vec<NodeRecord>> {
    let place =
        |number: usize| if number.is_multiple_of(2) { NodeLocation::OnLink } else { NodeLocation::Beyond };
    numbers.map(|number| crowd::record(number, place(number))).collect()
}

/// On all agents: to the crowd and to each other.
fn wait_for_routes(cluster: &Cluster, crowd: usize) -> Result<()> {
    for name in cluster.node_names() {
        let mut eye = Eye::open(cluster.node(&name)?)?;
        eye.wait(TIMEOUT, AwaitedRoutes::Count(FAMILIES * (crowd + AGENTS - 1)))
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

/// Nodes beyond `nodes.0` come, and the oldest of all go, for so long.
fn churn(cluster: &Cluster, crowd: &CrowdRecords<'_>, (nodes, lasting): (usize, Duration)) -> Result<Churn> {
    let names = cluster.node_names();
    let diaries: Vec<Diary> =
        names.iter().map(|name| Diary::begin(cluster.node(name)?)).collect::<Result<_>>()?;
    let count = (lasting.as_secs_f64() * f64::from(PER_SECOND)).round() as usize;
    let (coming, going) = (mixed(nodes..nodes + count)?, mixed(0..count)?);
    ensure!(count < nodes, "{nodes} nodes are too few for {count} that go");
    let mut turns: Vec<(RouteTransition, Committed)> = Vec::new();
    let start = Instant::now();
    for (index, (comes, goes)) in coming.iter().zip(&going).enumerate() {
        pace(start, index);
        turns.push((RouteTransition::Came(block(comes)?), crowd.comes(comes)?));
        turns.push((RouteTransition::Went(block(goes)?), crowd.goes(goes)?));
    }
    let rate = count as f64 / start.elapsed().as_secs_f64();
    // What is not there by then is missing below. The number of routes is the same before and after each pair of turns:
    // the last pair tells.
    let last = coming.last().zip(going.last()).context("nobody came or went")?;
    let (there, gone) = (block(last.0)?, block(last.1)?);
    let wishes =
        || [AwaitedRoutes::Swapped { there, gone }, AwaitedRoutes::Count(FAMILIES * (nodes + AGENTS - 1))];
    let settled =
        wait_until("the last routes", LAST, || Ok(wishes().into_iter().all(|wish| holds_now(cluster, wish))));
    let mut churn = Churn { rate, ..Churn::default() };
    for (diary, name) in diaries.into_iter().zip(&names) {
        churn.judge(&turns, diary.end()?, name);
    }
    if let Err(error) = settled {
        churn.event.note(Err(error));
    }
    Ok(churn)
}

fn holds_now(cluster: &Cluster, wish: AwaitedRoutes) -> bool {
    cluster.node_names().iter().all(|name| {
        let Ok(node) = cluster.node(name) else { return false };
        Eye::open(node).and_then(|mut eye| eye.wait(Duration::ZERO, wish)).is_ok()
    })
}

/// Until the event with this number is due.
fn pace(start: Instant, index: usize) {
    let due = start + Duration::from_secs(1) / PER_SECOND * u32::try_from(index).unwrap_or(u32::MAX);
    std::thread::sleep(due.saturating_duration_since(Instant::now()));
}

fn block(record: &NodeRecord) -> Result<ipnet::IpNet> {
    record.blocks.first().copied().context("a node without a block")
}

impl Churn {
    /// One agent: each turn must be in its diary.
    fn judge(
        &mut self,
        turns: &[(RouteTransition, Committed)],
        diary: Vec<(RouteTransition, Instant)>,
        name: &str,
    ) {
        let mut first: HashMap<RouteTransition, Instant> = HashMap::new();
        for (turn, at) in diary {
            first.entry(turn).or_insert(at);
        }
        for (turn, committed) in turns {
            match first.get(turn) {
                Some(at) => {
                    self.event.note(Ok(at.saturating_duration_since(committed.answered)));
                    self.with_commit.note(Ok(at.saturating_duration_since(committed.asked)));
                }
                None => self.event.note(Err(anyhow::anyhow!("{turn:?} was never seen on {name}"))),
            }
        }
    }
}

/// Of one agent, while nothing happens.
fn requests_per_minute(cluster: &Cluster, window: Duration) -> Result<f64> {
    let before = requests(cluster)?;
    let start = Instant::now();
    std::thread::sleep(window);
    let asked = requests(cluster)? - before;
    Ok(asked / AGENTS as f64 / start.elapsed().as_secs_f64() * 60.0)
}

/// All that etcd was ever asked: a message in a stream is a request, too.
fn requests(cluster: &Cluster) -> Result<f64> {
    let member = cluster.etcd.members.first().context("there is no etcd")?;
    let text = member.node().enter(metrics)?.context("cannot read etcd's metrics")?;
    let counted: f64 = received(&text).sum();
    ensure!(counted > 0.0, "etcd's metrics tell of no request");
    Ok(counted)
}

fn received(metrics: &str) -> impl Iterator<Item = f64> {
    let lines = metrics.lines().filter(|line| line.starts_with("grpc_server_msg_received_total{"));
    lines.filter_map(|line| line.rsplit_once(' ')?.1.parse().ok())
}

fn metrics() -> std::io::Result<String> {
    let mut stream = TcpStream::connect(METRICS)?;
    stream.set_read_timeout(Some(QUESTION))?;
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
