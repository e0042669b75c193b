//! The agents of the benchmark, each in the node of its lane, and what their logs tell.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::Value;
use testkit::Agent;

use crate::networks::BenchNetwork;
use crate::site::{BenchSite, Seat};

/// Dropped, they are killed; so they go before the site that they work in.
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

/// The program is the one of this build unless another is given.
pub(crate) fn start(seat: &Seat, mode: &str, program: Option<&Path>) -> Result<Agent> {
    // As JSON the log tells times to the microsecond.
    let flags = ["--no-install", "--network-mode", mode, "--log-format", "json"];
    // Its directories are beside those of the other lanes. A lab's are on disk.
    let mut agent = Agent::in_dir(&seat.node, &seat.dir, &flags)?;
    if let Some(program) = program {
        agent.set_program(program);
    }
    agent.launch().and_then(|()| agent.wait_ready()).context("the agent does not start")?;
    Ok(agent)
}

/// How long the agent took for its latest requests, in milliseconds by its own log, from arrival to answer.
pub(crate) fn served(agent: &Agent, verb: &str, network: BenchNetwork, latest: usize) -> Result<Vec<f64>> {
    let (log, network) = (agent.log()?, network.name()?);
    let lines = log.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ours = lines
        .filter(|line| line["verb"] == verb && line["outcome"] == "ok" && line["net"] == network.as_str());
    Ok(ours.filter_map(|line| line["ms"].as_f64()).take(latest).collect())
}

/// What the agent said last when it was ready: after how many milliseconds, and with how many attachments.
pub(crate) fn said_ready(agent: &Agent) -> Result<(f64, usize)> {
    let log = agent.log()?;
    let mut said = log.lines().rev().filter_map(|line| {
        let line: Value = serde_json::from_str(line).ok()?;
        parse_ready(line["message"].as_str()?)
    });
    said.next().context("the agent's log does not say that it is ready")
}

fn parse_ready(message: &str) -> Option<(f64, usize)> {
    let (ms, rest) = message.strip_prefix("ready after ")?.split_once(" ms with ")?;
    Some((ms.parse().ok()?, rest.split(' ').next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_says_ready_is_understood() {
        assert_eq!(parse_ready("ready after 87 ms with 250 attachments"), Some((87.0, 250)));
        assert_eq!(parse_ready("repaired: route"), None);
    }
}
