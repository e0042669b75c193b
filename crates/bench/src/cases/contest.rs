//! podwire-cni beside the reference and the kernel alone: the time of each single ADD and DEL.

use anyhow::Result;
use types::AttachMode;

use super::Stage;
use super::sequence::{self, LaneTimes, Times};
use crate::lane::Lane;
use crate::leftovers::{self, Before, Recorded};
use crate::networks::BenchNetwork;

pub(crate) struct Contest {
    pub(crate) podwire: Times,
    pub(crate) reference: Times,
    pub(crate) beside: Option<ContestOthers>,
}

/// Who else did the same.
pub(crate) struct ContestOthers {
    pub(crate) routed: Times,
    pub(crate) floor: Times,
    pub(crate) spawned_floor: Times,
    pub(crate) agent: Times,
    pub(crate) agent_bridge: Times,
}

/// Who takes part.
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
        LaneTimes::new(Lane::plugin(plugins.podwire(&site.podwire, AttachMode::Bridge, network)?)),
        LaneTimes::new(Lane::plugin(plugins.reference(&site.reference, network)?)),
    ];
    let pods = match sides {
        Sides::Plugins => stage.scale.masquerade_pods,
        Sides::All => {
            let others = [
                Lane::plugin(plugins.podwire(&site.routed, AttachMode::Routed, network)?),
                Lane::floor(&site.floor, network)?,
                Lane::spawned_floor(&site.spawned_floor, network)?,
                Lane::plugin(plugins.agent(&site.agent, AttachMode::Routed, network)?),
                Lane::plugin(plugins.agent(&site.agent_bridge, AttachMode::Bridge, network)?),
            ];
            lines.extend(others.map(LaneTimes::new));
            stage.scale.pods
        }
    };
    sequence::warm_up(&mut lines)?;
    let ours = [&site.podwire, &site.routed, &site.agent, &site.agent_bridge];
    let before = ours.map(|seat| Before::look(seat).map(|before| (seat, before)));
    let before = before.into_iter().collect::<Result<Vec<_>>>()?;
    let mut times = sequence::run(lines, pods).into_iter();
    left.extend(before.iter().filter_map(|(seat, before)| before.changed(seat)));
    left.extend(leftovers_of(stage, network, sides)?);
    let mut next = || times.next().unwrap_or_default();
    Ok(Contest {
        podwire: next(),
        reference: next(),
        beside: (sides == Sides::All).then(|| ContestOthers {
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
    let seats = [
        &site.podwire,
        &site.reference,
        &site.routed,
        &site.floor,
        &site.spawned_floor,
        &site.agent,
        &site.agent_bridge,
    ];
    let mut left: Vec<String> = seats.into_iter().flat_map(leftovers::links).collect();
    left.extend(leftovers::podwire_state(&site.podwire, network, Recorded::NOTHING)?);
    left.extend(leftovers::reference_state(&site.reference, network)?);
    if sides == Sides::All {
        for seat in [&site.routed, &site.agent, &site.agent_bridge] {
            left.extend(leftovers::podwire_state(seat, network, Recorded::NOTHING)?);
        }
    }
    Ok(left)
}
