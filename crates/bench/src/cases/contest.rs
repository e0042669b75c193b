//! Times of single ADDs and DELs: podwire-cni, the reference plugin and the kernel alone.

use anyhow::Result;
use types::AttachMode;

use super::Stage;
use super::sequence::{self, ContenderTimes, Times};
use crate::contender::Contender;
use crate::leftovers::{self, Before, Recorded};
use crate::networks::BenchNetwork;

pub(crate) struct Contest {
    pub(crate) podwire: Times,
    pub(crate) reference: Times,
    pub(crate) other_times: Option<OtherContenders>,
}

/// Times of the other contenders.
pub(crate) struct OtherContenders {
    pub(crate) routed: Times,
    pub(crate) floor: Times,
    pub(crate) spawned_floor: Times,
    pub(crate) agent: Times,
    pub(crate) agent_bridge: Times,
}

/// The set of contenders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sides {
    Plugins,
    /// Also mode `routed`, the raw netlink floor and the agents.
    All,
}

pub(crate) fn run(
    stage: &Stage<'_>,
    network: BenchNetwork,
    sides: Sides,
    left: &mut Vec<String>,
) -> Result<Contest> {
    let (plugins, site) = (stage.plugins, stage.site);
    let mut lines = vec![
        ContenderTimes::new(Contender::plugin(plugins.podwire(
            &site.podwire,
            AttachMode::Bridge,
            network,
        )?)),
        ContenderTimes::new(Contender::plugin(plugins.reference(&site.reference, network)?)),
    ];
    let pods = match sides {
        Sides::Plugins => stage.scale.masquerade_pods,
        Sides::All => {
            let more = [
                Contender::plugin(plugins.podwire(&site.routed, AttachMode::Routed, network)?),
                Contender::floor(&site.floor, network)?,
                Contender::spawned_floor(&site.spawned_floor, network)?,
                Contender::plugin(plugins.agent(&site.agent, AttachMode::Routed, network)?),
                Contender::plugin(plugins.agent(&site.agent_bridge, AttachMode::Bridge, network)?),
            ];
            lines.extend(more.map(ContenderTimes::new));
            stage.scale.pods
        }
    };
    sequence::warm_up(&mut lines)?;
    let podwire_nodes = [&site.podwire, &site.routed, &site.agent, &site.agent_bridge];
    let before = podwire_nodes.map(|bench_node| Before::take(bench_node).map(|before| (bench_node, before)));
    let before = before.into_iter().collect::<Result<Vec<_>>>()?;
    let mut times = sequence::run(lines, pods).into_iter();
    left.extend(before.iter().filter_map(|(bench_node, before)| before.changed(bench_node)));
    left.extend(leftovers_of(stage, network, sides)?);
    let mut next = || times.next().unwrap_or_default();
    Ok(Contest {
        podwire: next(),
        reference: next(),
        other_times: (sides == Sides::All).then(|| OtherContenders {
            routed: next(),
            floor: next(),
            spawned_floor: next(),
            agent: next(),
            agent_bridge: next(),
        }),
    })
}

fn leftovers_of(stage: &Stage<'_>, network: BenchNetwork, sides: Sides) -> Result<Vec<String>> {
    let site = stage.site;
    let bench_nodes = [
        &site.podwire,
        &site.reference,
        &site.routed,
        &site.floor,
        &site.spawned_floor,
        &site.agent,
        &site.agent_bridge,
    ];
    let mut left: Vec<String> = bench_nodes.into_iter().flat_map(leftovers::links).collect();
    left.extend(leftovers::podwire_state(&site.podwire, network, Recorded::NOTHING)?);
    left.extend(leftovers::reference_state(&site.reference, network)?);
    if sides == Sides::All {
        for bench_node in [&site.routed, &site.agent, &site.agent_bridge] {
            left.extend(leftovers::podwire_state(bench_node, network, Recorded::NOTHING)?);
        }
    }
    Ok(left)
}
