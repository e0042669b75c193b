//! Policies: what they cost a node. Most figures are ratios within this run.
//!
//! ```text
//! compilation   the world of the bench: compile, load, memory; then single changes
//! traffic       two pods among 1,000 policies, and two pods without policies: round trips and new connections
//! flows         an agent with 100,000 flows: scans, a forbidden connection, a flushed firewall
//! adds          ADD with a host port: with and without a policy, and the chain of the reference plugins
//! ```

mod adds;
mod compilation;
mod flows;
mod traffic;

use anyhow::Result;

use crate::cases::with_progress;
use crate::contender::Plugins;
use crate::firewall::Timed;
use crate::options::Scale;
pub(crate) use adds::AddTimes;
pub(crate) use compilation::Compilation;
pub(crate) use flows::FlowFigures;
pub(crate) use traffic::PolicyTraffic;

pub(crate) struct PolicyFigures {
    pub(crate) compilation: Compilation,
    pub(crate) traffic: PolicyTraffic,
    pub(crate) flows: FlowFigures,
    pub(crate) adds: AddTimes,
    pub(crate) times: Timed,
    pub(crate) remarks: Vec<String>,
}

pub(crate) fn run(plugins: &Plugins, scale: &Scale) -> Result<PolicyFigures> {
    let of = &scale.policies;
    let (mut times, mut remarks) = (Timed::new(), Vec::new());
    let what = format!("{} pods in {} policies", of.pods, of.policies);
    let compilation = with_progress(&what, || compilation::run(of, &mut times, &mut remarks))?;
    let traffic = with_progress("traffic with policies", || traffic::run(of))?;
    let what = format!("an agent with {} flows", of.flows);
    let flows = with_progress(&what, || flows::run(of, &mut times))?;
    let adds = with_progress("ADD with policies", || adds::run(plugins, of, &mut times))?;
    Ok(PolicyFigures { compilation, traffic, flows, adds, times, remarks })
}
