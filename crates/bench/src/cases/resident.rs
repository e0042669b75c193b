//! An agent whose pods stay: its size, what it does while nothing happens, and how soon it is ready after a kill.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use testkit::Agent;
use types::AttachMode;

use super::Stage;
use super::burst::{Burst, BurstRates};
use crate::agents;
use crate::leftovers::{self, Recorded};
use crate::networks::BenchNetwork;
use crate::process::{cpu_time, rss_mib};
use crate::stats::{Sample, median};

/// How often the agent compares everything by default.
const TIMER: Duration = Duration::from_secs(30);
/// Of so many windows one is without a round.
const WINDOWS: usize = 3;
/// Longer than the agent lets an event wait before it looks at everything.
const QUIET: Duration = Duration::from_millis(700);
/// So often it is looked whether it is quiet.
const LOOKS: usize = 30;

#[derive(Default)]
pub(crate) struct AgentFootprint {
    pub(crate) rss_mib: Option<f64>,
    /// Of one core, with its share of the timer's rounds.
    pub(crate) idle_percent: Option<f64>,
    /// How long one comparison of everything takes.
    pub(crate) round_ms: Option<f64>,
    /// From before the start to the first answer that it is ready.
    pub(crate) ready: Sample,
    /// The same by its own log, in milliseconds.
    pub(crate) said: Vec<f64>,
    pub(crate) failures: Vec<String>,
}

pub(crate) fn run(stage: &Stage<'_>, agent: &mut Agent, left: &mut Vec<String>) -> Result<AgentFootprint> {
    let (seat, scale) = (&stage.site.agent, stage.scale);
    let plugin = stage.plugins.agent(seat, AttachMode::Routed, BenchNetwork::RESIDENT)?;
    let all = Burst { plugin: &plugin, pods: scale.resident, workers: scale.parallel };
    let mut rates = BurstRates::default();
    let inputs = all.come(&mut rates)?;
    let looked = look(agent, stage);
    all.go(&inputs, &mut rates)?;
    left.extend(leftovers::links(seat));
    left.extend(leftovers::podwire_state(seat, BenchNetwork::RESIDENT, Recorded::NOTHING)?);
    let mut resident = looked?;
    resident.failures.extend(rates.failures);
    Ok(resident)
}

fn look(agent: &mut Agent, stage: &Stage<'_>) -> Result<AgentFootprint> {
    let scale = stage.scale;
    wait_for_quiet(agent)?;
    let mut resident = AgentFootprint { rss_mib: Some(rss_mib(pid(agent)?)?), ..AgentFootprint::default() };
    let idle = idle_percent(agent, Duration::from_secs(scale.idle_seconds))?;
    let mut starts = Vec::new();
    for _ in 0..scale.restarts {
        agent.kill()?;
        let start = Instant::now();
        agent.launch()?;
        agent.wait_ready()?;
        resident.ready.note(Ok(start.elapsed()));
        starts.push(cpu_time(pid(agent)?)?.as_secs_f64());
        let (ms, attachments) = agents::said_ready(agent)?;
        resident.said.push(ms);
        if attachments != scale.resident {
            let wanted = scale.resident;
            resident.failures.push(format!("ready with {attachments} attachments instead of {wanted}"));
        }
        resident.round_ms = rounds(agent)?.1;
    }
    // The first round after a start is like those of the timer.
    let timer = median(&starts).map(|seconds| seconds / TIMER.as_secs_f64() * 100.0);
    resident.idle_percent = timer.map(|timer| idle + timer);
    Ok(resident)
}

/// What the agent needs between two rounds of its timer: a window in which there was one does not count.
fn idle_percent(agent: &Agent, window: Duration) -> Result<f64> {
    for _ in 0..WINDOWS {
        let before = (rounds(agent)?.0, cpu_time(pid(agent)?)?);
        std::thread::sleep(window);
        let used = cpu_time(pid(agent)?)?.saturating_sub(before.1);
        if rounds(agent)?.0 == before.0 {
            return Ok(used.as_secs_f64() / window.as_secs_f64() * 100.0);
        }
    }
    bail!("the agent compares records and kernel more often than its timer says")
}

fn pid(agent: &Agent) -> Result<u32> {
    agent.pid().context("the agent does not run")
}

/// Until no round is to come any more but that of the timer.
fn wait_for_quiet(agent: &Agent) -> Result<()> {
    let mut known = rounds(agent)?.0;
    for _ in 0..LOOKS {
        std::thread::sleep(QUIET);
        let now = rounds(agent)?.0;
        if now == known {
            return Ok(());
        }
        known = now;
    }
    bail!("the agent compares records and kernel again and again although nothing happens")
}

/// How many rounds there were, and how long the last one took in milliseconds.
fn rounds(agent: &Agent) -> Result<(u64, Option<f64>)> {
    let reconcile = &agent.get("/v1/status")?["reconcile"];
    let rounds = reconcile["rounds"].as_u64().context("the agent's status tells no rounds")?;
    Ok((rounds, reconcile["durationMs"].as_f64()))
}
