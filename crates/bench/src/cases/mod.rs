//! The measurements on one node, in order.

pub(crate) mod address_use;
pub(crate) mod burst;
pub(crate) mod contest;
pub(crate) mod footprint;
pub(crate) mod sequence;
pub(crate) mod split;
pub(crate) mod starts;

use std::time::Instant;

use anyhow::Result;

use crate::agents::Agents;
use crate::contender::Plugins;
use crate::networks::BenchNetwork;
use crate::options::Scale;
use crate::site::BenchSite;
use address_use::AddressUseTimes;
use burst::Bursts;
use contest::{ContenderSet, Contest};
use footprint::AgentFootprint;
pub(crate) use sequence::Times;
use split::Split;
use starts::Starts;

/// All results.
pub(crate) struct PodMeasurements {
    pub(crate) starts: Starts,
    pub(crate) v4: Contest,
    pub(crate) dual: Contest,
    /// `None` if the reference plugin cannot masquerade; it needs iptables.
    pub(crate) masquerade: Option<Contest>,
    pub(crate) bursts_v4: Bursts,
    pub(crate) bursts_dual: Bursts,
    pub(crate) address_use: AddressUseTimes,
    pub(crate) split_v4: Split,
    pub(crate) split_dual: Split,
    pub(crate) footprint: AgentFootprint,
    /// Objects that were not removed.
    pub(crate) left: Vec<String>,
    pub(crate) remarks: Vec<String>,
}

pub(crate) fn run_all(plugins: &Plugins, scale: &Scale) -> Result<PodMeasurements> {
    // One node has sandboxes for the running pods, too: `BenchSite::create`.
    let sandboxes = 6 * scale.pods + scale.pods.max(scale.running_pods);
    let site =
        with_progress(&format!("{sandboxes} sandboxes are being created"), || BenchSite::create(scale))?;
    let mut agents = Agents::start(&site)?;
    let mut left = Vec::new();
    let mut remarks = Vec::new();
    if !site.state.in_memory {
        remarks.push("neither /run nor /dev/shm is a tmpfs: all state was on disk".to_owned());
    }
    let starts = with_progress("cost of a process", || starts::run(plugins, &site, scale.pods))?;
    let input = CaseInput { plugins, site: &site, scale };
    let v4 = with_progress("v4, one pod after the other", || {
        contest::run(&input, BenchNetwork::V4, ContenderSet::All, &mut left)
    })?;
    let split_v4 = split::run(&agents.routed, BenchNetwork::V4, scale.pods)?;
    let dual = with_progress("dual stack, one pod after the other", || {
        contest::run(&input, BenchNetwork::DUAL, ContenderSet::All, &mut left)
    })?;
    let split_dual = split::run(&agents.routed, BenchNetwork::DUAL, scale.pods)?;
    let masquerade = with_progress("ipMasq, one pod after the other", || {
        contest::run(&input, BenchNetwork::MASQUERADED, ContenderSet::Plugins, &mut left)
    });
    let masquerade = masquerade.map_err(|e| remarks.push(format!("ipMasq was not compared: {e:#}"))).ok();
    let address_use = with_progress("few and many addresses in use", || address_use::run(&input, &mut left))?;
    let bursts_v4 = with_progress("v4, in parallel", || burst::run(&input, BenchNetwork::V4, &mut left))?;
    let bursts_dual =
        with_progress("dual stack, in parallel", || burst::run(&input, BenchNetwork::DUAL, &mut left))?;
    let running_pods = format!("{} running pods", scale.running_pods);
    let footprint = with_progress(&running_pods, || footprint::run(&input, &mut agents.routed, &mut left))?;
    Ok(PodMeasurements {
        starts,
        v4,
        dual,
        masquerade,
        bursts_v4,
        bursts_dual,
        address_use,
        split_v4,
        split_dual,
        footprint,
        left,
        remarks,
    })
}

/// Input of every case.
pub(crate) struct CaseInput<'a> {
    pub(crate) plugins: &'a Plugins,
    pub(crate) site: &'a BenchSite,
    pub(crate) scale: &'a Scale,
}

/// Prints the name and the duration of a step on stderr, because a run takes minutes.
pub(crate) fn with_progress<T>(what: &str, work: impl FnOnce() -> T) -> T {
    eprint!("{what} …");
    let start = Instant::now();
    let done = work();
    eprintln!(" {:.1} s", start.elapsed().as_secs_f64());
    done
}
