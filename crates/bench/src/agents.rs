//! The agents of the benchmark, each on the node of its contender, and the parsing of their logs.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::Value;
use testkit::Agent;

use crate::networks::BenchNetwork;
use crate::site::{BenchNode, BenchSite};

/// The agents are killed on drop. Drop them before their site.
pub(crate) struct Agents {
    pub(crate) routed: Agent,
    _bridge: Agent,
}

impl Agents {
    pub(crate) fn start(site: &BenchSite) -> Result<Self> {
        Ok(Self {
            routed: start(&site.agent, "routed", None)?,
            _bridge: start(&site.agent_bridge, "bridge", None)?,
        })
    }
}

/// Starts an agent with the program of this build, or with `program` if given.
pub(crate) fn start(bench_node: &BenchNode, mode: &str, program: Option<&Path>) -> Result<Agent> {
    // The JSON log has times in microseconds.
    let flags = ["--no-install", "--network-mode", mode, "--log-format", "json"];
    // Next to the directories of the other contenders, in memory. A lab's directories are on disk.
    let mut agent = Agent::in_dir(&bench_node.node, &bench_node.dir, &flags)?;
    if let Some(program) = program {
        agent.set_program(program);
    }
    agent.launch().and_then(|()| agent.wait_ready()).context("cannot start the agent")?;
    Ok(agent)
}

/// Durations of the agent's latest requests in milliseconds, from request to response, according to its log.
pub(crate) fn logged_durations(
    agent: &Agent,
    verb: &str,
    network: BenchNetwork,
    latest: usize,
) -> Result<Vec<f64>> {
    let (log, network) = (agent.log()?, network.name()?);
    let lines = log.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let matching = lines
        .filter(|line| line["verb"] == verb && line["outcome"] == "ok" && line["net"] == network.as_str());
    Ok(matching.filter_map(|line| line["ms"].as_f64()).take(latest).collect())
}

/// Start-up time in milliseconds and number of attachments, from the last `ready` message of the agent's log.
pub(crate) fn logged_ready(agent: &Agent) -> Result<(f64, usize)> {
    let log = agent.log()?;
    let mut messages = log.lines().rev().filter_map(|line| {
        let line: Value = serde_json::from_str(line).ok()?;
        parse_ready(line["message"].as_str()?)
    });
    messages.next().context("the agent's log has no `ready` message")
}

fn parse_ready(message: &str) -> Option<(f64, usize)> {
    let (ms, rest) = message.strip_prefix("ready after ")?.split_once(" ms with ")?;
    Some((ms.parse().ok()?, rest.split(' ').next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_message_is_parsed() {
        assert_eq!(parse_ready("ready after 87 ms with 250 attachments"), Some((87.0, 250)));
        assert_eq!(parse_ready("repaired: route"), None);
    }
}
