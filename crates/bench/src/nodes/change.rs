//! One of many nodes gets another address: CPU time of an agent, and time until its route is updated.

use std::time::Duration;

use anyhow::{Context as _, Result};
use model::NodeRecord;
use testkit::Cluster;

use super::observed::{AwaitedRoutes, RouteObserver};
use super::simulated::{self, NodeLocation, SimulatedNodes};
use crate::process::fine_cpu_time;
use crate::stats::Sample;

/// Timeout of one change.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the agent's checks after the route update.
const REST: Duration = Duration::from_millis(10);
/// First of the unused addresses.
const ELSEWHERE: usize = 20_000;

/// Samples of repeated changes.
#[derive(Default)]
pub(crate) struct ChangeTimes {
    /// CPU time of the agent.
    pub(crate) cpu: Sample,
    /// From the response of the commit to the route.
    pub(crate) route: Sample,
}

/// Moves one node at a time to an unused address.
pub(super) struct Mover<'a> {
    simulated: &'a SimulatedNodes<'a>,
    records: &'a [NodeRecord],
    observer: RouteObserver,
    pid: u32,
    moved: usize,
}

impl<'a> Mover<'a> {
    pub(super) fn new(
        cluster: &Cluster,
        simulated: &'a SimulatedNodes<'a>,
        records: &'a [NodeRecord],
    ) -> Result<Self> {
        let pid = cluster.agent("n1")?.pid().context("the agent is not running")?;
        Ok(Self { simulated, records, observer: RouteObserver::open(cluster.node("n1")?)?, pid, moved: 0 })
    }

    pub(super) fn run(&mut self, times: usize) -> Result<ChangeTimes> {
        let mut change = ChangeTimes::default();
        for record in self.records.iter().cycle().take(times) {
            self.moved += 1;
            let addresses = simulated::addresses(ELSEWHERE + self.moved, NodeLocation::OnLink)?;
            self.once(&NodeRecord { addresses, ..record.clone() }, &mut change)?;
        }
        Ok(change)
    }

    fn once(&mut self, moved: &NodeRecord, change: &mut ChangeTimes) -> Result<()> {
        let block = *moved.blocks.iter().next().context("the node has no block")?;
        let gateway = moved.address_for(&block).context("the node has no address")?;
        let before = fine_cpu_time(self.pid)?;
        let committed = self.simulated.put_node(moved)?;
        let there = self.observer.wait(TIMEOUT, AwaitedRoutes::Via(block, gateway))?;
        std::thread::sleep(REST);
        change.cpu.note(Ok(fine_cpu_time(self.pid)?.saturating_sub(before)));
        change.route.note(Ok(there.saturating_duration_since(committed.end)));
        Ok(())
    }
}
