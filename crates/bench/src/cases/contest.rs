//! Times of single ADDs and DELs: podwire-cni, the reference plugin and the kernel alone.

use anyhow::Result;
use types::AttachMode;

use super::CaseInput;
use super::sequence::{self, ContenderTimes, Times};
use crate::contender::Contender;
use crate::leftovers::{self, Before, Recorded};
use crate::networks::BenchNetwork;

/// The times of all contenders in one network.
pub(crate) struct Contest {
    pub(crate) podwire: Times,
    pub(crate) reference: Times,
    pub(crate) other_times: Option<OtherContenders>,
}

/// Times of the other contenders.
pub(crate) struct OtherContenders {
    pub(crate) routed: Times,
    /// Only the netlink messages of an ADD and DEL.
    pub(crate) floor: Times,
    /// The same messages, sent by a process that is started for each ADD.
    pub(crate) spawned_floor: Times,
    pub(crate) agent: Times,
    pub(crate) agent_bridge: Times,
}

/// The contenders of a contest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContenderSet {
    /// podwire-cni and the reference plugin.
    Plugins,
    /// Also mode `routed`, the raw netlink floor and the agents.
    All,
}

pub(crate) fn run(
    input: &CaseInput<'_>,
    network: BenchNetwork,
    set: ContenderSet,
    left: &mut Vec<String>,
) -> Result<Contest> {
    let (plugins, site) = (input.plugins, input.site);
    let mut contenders = vec![
        ContenderTimes::new(Contender::plugin(plugins.podwire(
            &site.podwire,
            AttachMode::Bridge,
            network,
        )?)),
        ContenderTimes::new(Contender::plugin(plugins.reference(&site.reference, network)?)),
    ];
    let pods = match set {
        ContenderSet::Plugins => input.scale.masquerade_pods,
        ContenderSet::All => {
            let more = [
                Contender::plugin(plugins.podwire(&site.routed, AttachMode::Routed, network)?),
                Contender::floor(&site.floor, network)?,
                Contender::spawned_floor(&site.spawned_floor, network)?,
                Contender::plugin(plugins.agent(&site.agent, AttachMode::Routed, network)?),
                Contender::plugin(plugins.agent(&site.agent_bridge, AttachMode::Bridge, network)?),
            ];
            contenders.extend(more.map(ContenderTimes::new));
            input.scale.pods
        }
    };
    sequence::warm_up(&mut contenders)?;
    let podwire_nodes = [&site.podwire, &site.routed, &site.agent, &site.agent_bridge];
    let before = podwire_nodes.map(|bench_node| Before::take(bench_node).map(|before| (bench_node, before)));
    let before = before.into_iter().collect::<Result<Vec<_>>>()?;
    let mut times = sequence::run(contenders, pods).into_iter();
    left.extend(before.iter().filter_map(|(bench_node, before)| before.changed(bench_node)));
    left.extend(leftovers_of(input, network, set)?);
    let mut next = || times.next().unwrap_or_default();
    Ok(Contest {
        podwire: next(),
        reference: next(),
        other_times: (set == ContenderSet::All).then(|| OtherContenders {
            routed: next(),
            floor: next(),
            spawned_floor: next(),
            agent: next(),
            agent_bridge: next(),
        }),
    })
}

fn leftovers_of(input: &CaseInput<'_>, network: BenchNetwork, set: ContenderSet) -> Result<Vec<String>> {
    let site = input.site;
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
    if set == ContenderSet::All {
        for bench_node in [&site.routed, &site.agent, &site.agent_bridge] {
            left.extend(leftovers::podwire_state(bench_node, network, Recorded::NOTHING)?);
        }
    }
    Ok(left)
}
