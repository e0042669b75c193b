//! Where the time of a call through the agent goes: a process that starts and ends, the way to the agent and back, the
//! agent's own work.

use std::time::Instant;

use anyhow::Result;
use testkit::Agent;

use crate::agents;
use crate::networks::BenchNetwork;
use crate::stats::{Sample, median};

/// The agent's medians in milliseconds, and a call that does nothing.
pub(crate) struct Split {
    pub(crate) add: Option<f64>,
    pub(crate) del: Option<f64>,
    pub(crate) trip: Sample,
}

/// Right after a contest: the latest requests of its network are those that were timed.
pub(crate) fn run(agent: &Agent, network: BenchNetwork, pods: usize) -> Result<Split> {
    let mut trip = Sample::default();
    for _ in 0..pods {
        let start = Instant::now();
        trip.note(agent.get("/v1/health").map(|_| start.elapsed()));
    }
    let of = |verb| agents::served(agent, verb, network, pods).map(|ms| median(&ms));
    Ok(Split { add: of("ADD")?, del: of("DEL")?, trip })
}
