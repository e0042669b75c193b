//! A changed peer, and calls while etcd is unreachable.

use std::time::Instant;

use anyhow::{Result, ensure};
use api::ConditionCode;
use serde_json::json;
use testkit::{Cluster, DEADLINE, Plugin, wait_until};
use types::Code;

use super::change::Mover;
use super::observed::{AwaitedRoutes, RouteObserver};
use super::routes::TIMEOUT;
use super::simulated::{self, NodeLocation, SimulatedNodes};
use super::{BLOCKS_PER_NODE, hosts, subnets};
use crate::firewall::{Timed, note};
use crate::options::Scale;

/// Number of peers of the measured node.
const PEERS: usize = 20;
const ETCD_UNREACHABLE: ConditionCode = ConditionCode::Known(Code::StoreUnreachable);

pub(crate) fn run(scale: &Scale) -> Result<Timed> {
    let mut cluster = hosts("outage", 1, &subnets())?;
    cluster.start_agents()?;
    let simulated = SimulatedNodes::of(&cluster)?;
    let records = simulated::records(0..PEERS, NodeLocation::OnLink)?;
    simulated.add_nodes(&records)?;
    RouteObserver::open(cluster.node("n1")?)?.wait(TIMEOUT, AwaitedRoutes::Count(PEERS * BLOCKS_PER_NODE))?;
    let mut times = Timed::new();
    let change = Mover::new(&cluster, &simulated, &records)?.run(scale.faults)?;
    times.push((format!("change of one of {PEERS} peers to its route"), change.route));
    for round in 0..scale.outages {
        outage(&cluster, round, &mut times)?;
    }
    Ok(times)
}

/// Drops packets to etcd, so that calls time out instead of being refused.
fn outage(cluster: &Cluster, round: usize, times: &mut Timed) -> Result<()> {
    let etcd = |line: &str| cluster.etcd.members[0].node().sh(&line.split(' ').collect::<Vec<_>>()).map(drop);
    etcd("nft add table inet hole")?;
    etcd("nft add chain inet hole in { type filter hook input priority 0 ; policy accept ; }")?;
    etcd("nft add rule inet hole in tcp dport 2379 drop")?;
    let begun = Instant::now();
    note(times, "GET /v1/nodes, etcd silent since a moment", ask(cluster)?.1);
    pods(cluster, round, times)?;
    wait_until("the agent to detect the outage", DEADLINE, || has_noticed(cluster))?;
    note(times, "silent etcd to condition StoreUnreachable", begun.elapsed());
    let (is_stale, took) = ask(cluster)?;
    ensure!(is_stale, "the agent does not mark its response as stale");
    note(times, "GET /v1/nodes, etcd known to be silent", took);
    etcd("nft delete table inet hole")?;
    let healed = Instant::now();
    wait_until("the agent to recover", DEADLINE, || Ok(!has_noticed(cluster)? && !ask(cluster)?.0))?;
    note(times, "etcd answers again to fresh GET /v1/nodes", healed.elapsed());
    Ok(())
}

/// Whether the response is stale, and its duration.
fn ask(cluster: &Cluster) -> Result<(bool, std::time::Duration)> {
    let begun = Instant::now();
    let answer = cluster.agent("n1")?.get(api::NODES)?;
    Ok((answer["stale"] == true, begun.elapsed()))
}

/// True if the agent reports that etcd is unreachable.
fn has_noticed(cluster: &Cluster) -> Result<bool> {
    let status: api::Status = serde_json::from_value(cluster.agent("n1")?.get(api::STATUS)?)?;
    Ok(status.conditions.iter().any(|condition| condition.code == ETCD_UNREACHABLE))
}

/// Adds and removes a pod.
fn pods(cluster: &Cluster, round: usize, times: &mut Timed) -> Result<()> {
    let (agent, plugin) = (cluster.agent("n1")?, Plugin::podwire()?);
    let pod = cluster.node("n1")?.pod(&format!("outage{round}"))?;
    let config = agent.config(&json!({}));
    for (verb, outcome) in [("ADD", plugin.add(&pod, &config)?), ("DEL", plugin.del(&pod, &config)?)] {
        outcome.ok()?;
        note(times, &format!("{verb}, etcd silent"), outcome.elapsed);
    }
    pod.destroy()
}
