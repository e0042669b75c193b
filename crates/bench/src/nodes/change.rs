//! One node among many moves to another address: what that costs an agent, and how soon its route follows.

use std::time::Duration;

use anyhow::{Context as _, Result};
use model::NodeRecord;
use testkit::Cluster;

use super::crowd::{self, CrowdRecords, NodeLocation};
use super::observed::{AwaitedRoutes, Eye};
use crate::process::fine_cpu_time;
use crate::stats::Sample;

/// One change takes no longer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// After the route the agent still looks for problems; it is done by then.
const REST: Duration = Duration::from_millis(10);
/// From here on nobody has an address.
const ELSEWHERE: usize = 20_000;

/// One change, many times.
#[derive(Default)]
pub(crate) struct ChangeTimes {
    /// Processor time of the agent.
    pub(crate) cpu: Sample,
    /// From the commit's answer to the route.
    pub(crate) route: Sample,
}

/// Moves nodes, one at a time and each time to an address that nobody had.
pub(super) struct Mover<'a> {
    crowd: &'a CrowdRecords<'a>,
    records: &'a [NodeRecord],
    eye: Eye,
    pid: u32,
    moved: usize,
}

impl<'a> Mover<'a> {
    pub(super) fn new(
        cluster: &Cluster,
        crowd: &'a CrowdRecords<'a>,
        records: &'a [NodeRecord],
    ) -> Result<Self> {
        let pid = cluster.agent("n1")?.pid().context("the agent does not run")?;
        Ok(Self { crowd, records, eye: Eye::open(cluster.node("n1")?)?, pid, moved: 0 })
    }

    pub(super) fn run(&mut self, times: usize) -> Result<ChangeTimes> {
        let mut change = ChangeTimes::default();
        for record in self.records.iter().cycle().take(times) {
            self.moved += 1;
            let addresses = crowd::addresses(ELSEWHERE + self.moved, NodeLocation::OnLink)?;
            self.once(&NodeRecord { addresses, ..record.clone() }, &mut change)?;
        }
        Ok(change)
    }

    fn once(&mut self, moved: &NodeRecord, change: &mut ChangeTimes) -> Result<()> {
        let block = *moved.blocks.first().context("a node without a block")?;
        let gateway = moved.address(&block).context("a node without an address")?;
        let before = fine_cpu_time(self.pid)?;
        let committed = self.crowd.comes(moved)?;
        let there = self.eye.wait(TIMEOUT, AwaitedRoutes::Via(block, gateway))?;
        std::thread::sleep(REST);
        change.cpu.note(Ok(fine_cpu_time(self.pid)?.saturating_sub(before)));
        change.route.note(Ok(there.saturating_duration_since(committed.answered)));
        Ok(())
    }
}
