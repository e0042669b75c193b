//! Breakdown of the time of a call through the agent: process start and exit, round trip to the agent, work in the agent.

use std::time::Instant;

use anyhow::Result;
use testkit::Agent;

use crate::agents;
use crate::networks::BenchNetwork;
use crate::stats::{Sample, median};

/// The agent's medians in milliseconds, and the times of an empty request.
pub(crate) struct Split {
    pub(crate) add: Option<f64>,
    pub(crate) del: Option<f64>,
    pub(crate) trip: Sample,
}

/// Call directly after a contest, when the latest requests of its network are the timed ones.
pub(crate) fn run(agent: &Agent, network: BenchNetwork, pods: usize) -> Result<Split> {
    let mut trip = Sample::default();
    for _ in 0..pods {
        let start = Instant::now();
        trip.note(agent.get("/v1/health").map(|_| start.elapsed()));
    }
    let of = |verb| agents::logged_durations(agent, verb, network, pods).map(|ms| median(&ms));
    Ok(Split { add: of("ADD")?, del: of("DEL")?, trip })
}
