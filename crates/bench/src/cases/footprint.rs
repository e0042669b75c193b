//! An agent with running pods: memory, idle CPU time and start-up time after a kill.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use testkit::Agent;
use types::AttachMode;

use super::CaseInput;
use super::burst::{Burst, BurstRates};
use crate::agents;
use crate::leftovers::{self, Recorded};
use crate::networks::BenchNetwork;
use crate::process::{cpu_time, rss_mib};
use crate::stats::{Sample, median};

/// The agent's default interval of full comparisons.
const TIMER: Duration = Duration::from_secs(30);
/// Number of windows to try; at least one has no comparison in it.
const WINDOWS: usize = 3;
/// Longer than the agent's delay between an event and the comparison.
const QUIET: Duration = Duration::from_millis(700);
/// Number of attempts to find a quiet interval.
const QUIET_ATTEMPTS: usize = 30;

#[derive(Default)]
pub(crate) struct AgentFootprint {
    pub(crate) rss_mib: Option<f64>,
    /// Percentage of one core, including periodic comparisons.
    pub(crate) idle_percent: Option<f64>,
    /// Duration of one full comparison.
    pub(crate) round_ms: Option<f64>,
    /// From the start of the process to the first `ready` response.
    pub(crate) ready: Sample,
    /// The start-up time in milliseconds according to its log.
    pub(crate) logged: Vec<f64>,
    pub(crate) failures: Vec<String>,
}

pub(crate) fn run(
    input: &CaseInput<'_>,
    agent: &mut Agent,
    left: &mut Vec<String>,
) -> Result<AgentFootprint> {
    let (bench_node, scale) = (&input.site.agent, input.scale);
    let plugin = input.plugins.agent(bench_node, AttachMode::Routed, BenchNetwork::RESIDENT)?;
    let all = Burst { plugin: &plugin, pods: scale.running_pods, workers: scale.parallel };
    let mut rates = BurstRates::default();
    let inputs = all.add_all(&mut rates)?;
    let measured = measure(agent, input);
    all.del_all(&inputs, &mut rates)?;
    left.extend(leftovers::links(bench_node));
    left.extend(leftovers::podwire_state(bench_node, BenchNetwork::RESIDENT, Recorded::NOTHING)?);
    let mut footprint = measured?;
    footprint.failures.extend(rates.failures);
    Ok(footprint)
}

fn measure(agent: &mut Agent, input: &CaseInput<'_>) -> Result<AgentFootprint> {
    let scale = input.scale;
    wait_for_quiet(agent)?;
    let mut footprint = AgentFootprint { rss_mib: Some(rss_mib(pid(agent)?)?), ..AgentFootprint::default() };
    let idle = idle_percent(agent, Duration::from_secs(scale.idle_seconds))?;
    let mut starts = Vec::new();
    for _ in 0..scale.restarts {
        agent.kill()?;
        let start = Instant::now();
        agent.launch()?;
        agent.wait_ready()?;
        footprint.ready.note(Ok(start.elapsed()));
        starts.push(cpu_time(pid(agent)?)?.as_secs_f64());
        let (ms, attachments) = agents::logged_ready(agent)?;
        footprint.logged.push(ms);
        if attachments != scale.running_pods {
            let wanted = scale.running_pods;
            footprint.failures.push(format!("ready with {attachments} attachments instead of {wanted}"));
        }
        footprint.round_ms = rounds(agent)?.1;
    }
    // The first comparison after a start is a full one, like the periodic ones.
    let timer = median(&starts).map(|seconds| seconds / TIMER.as_secs_f64() * 100.0);
    footprint.idle_percent = timer.map(|timer| idle + timer);
    Ok(footprint)
}

/// CPU time of the agent between two periodic comparisons. Windows with a comparison are discarded.
fn idle_percent(agent: &Agent, window: Duration) -> Result<f64> {
    for _ in 0..WINDOWS {
        let before = (rounds(agent)?.0, cpu_time(pid(agent)?)?);
        std::thread::sleep(window);
        let used = cpu_time(pid(agent)?)?.saturating_sub(before.1);
        if rounds(agent)?.0 == before.0 {
            return Ok(used.as_secs_f64() / window.as_secs_f64() * 100.0);
        }
    }
    bail!("the agent compares records and kernel more often than its interval")
}

fn pid(agent: &Agent) -> Result<u32> {
    agent.pid().context("the agent is not running")
}

/// Waits until only periodic comparisons are pending.
fn wait_for_quiet(agent: &Agent) -> Result<()> {
    let mut known = rounds(agent)?.0;
    for _ in 0..QUIET_ATTEMPTS {
        std::thread::sleep(QUIET);
        let now = rounds(agent)?.0;
        if now == known {
            return Ok(());
        }
        known = now;
    }
    bail!("the agent keeps comparing records and kernel without events")
}

/// Number of comparisons, and the duration of the last one in milliseconds.
fn rounds(agent: &Agent) -> Result<(u64, Option<f64>)> {
    let reconcile = &agent.get("/v1/status")?["reconcile"];
    let rounds = reconcile["rounds"].as_u64().context("the agent's status has no rounds")?;
    Ok((rounds, reconcile["durationMs"].as_f64()))
}
