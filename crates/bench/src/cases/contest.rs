//! podwire-cni beside the reference and the kernel alone: the time of each single ADD and DEL.

use anyhow::Result;
use types::AttachMode;

use super::Stage;
use super::sequence::{self, Line, Times};
use crate::lane::Lane;
use crate::leftovers::{self, Before, Recorded};
use crate::networks::Network;

pub(crate) struct Contest {
    pub(crate) podwire: Times,
    pub(crate) reference: Times,
    pub(crate) beside: Option<Beside>,
}

/// For orientation: what else could have been done.
pub(crate) struct Beside {
    pub(crate) routed: Times,
    pub(crate) floor: Times,
}

/// Who takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sides {
    Plugins,
    /// Also mode `routed` and the raw netlink floor.
    All,
}

pub(crate) fn run(
    stage: &Stage<'_>,
    network: Network,
    sides: Sides,
    left: &mut Vec<String>,
) -> Result<Contest> {
    let (plugins, site) = (stage.plugins, stage.site);
    let mut lines = vec![
        Line::new(Lane::plugin(plugins.podwire(&site.podwire, AttachMode::Bridge, network)?)),
        Line::new(Lane::plugin(plugins.reference(&site.reference, network)?)),
    ];
    let pods = match sides {
        Sides::Plugins => stage.scale.masquerade_pods,
        Sides::All => {
            lines.push(Line::new(Lane::plugin(plugins.podwire(
                &site.routed,
                AttachMode::Routed,
                network,
            )?)));
            lines.push(Line::new(Lane::floor(&site.floor, network)?));
            stage.scale.pods
        }
    };
    sequence::warm_up(&mut lines)?;
    let before = [(&site.podwire, Before::look(&site.podwire)?), (&site.routed, Before::look(&site.routed)?)];
    let mut times = sequence::run(lines, pods).into_iter();
    left.extend(before.iter().filter_map(|(seat, before)| before.changed(seat)));
    left.extend(leftovers_of(stage, network, sides)?);
    let mut next = || times.next().unwrap_or_default();
    Ok(Contest {
        podwire: next(),
        reference: next(),
        beside: (sides == Sides::All).then(|| Beside { routed: next(), floor: next() }),
    })
}

fn leftovers_of(stage: &Stage<'_>, network: Network, sides: Sides) -> Result<Vec<String>> {
    let site = stage.site;
    let seats = [&site.podwire, &site.reference, &site.routed, &site.floor];
    let mut left: Vec<String> = seats.into_iter().flat_map(leftovers::links).collect();
    left.extend(leftovers::podwire_state(&site.podwire, network, Recorded::NOTHING)?);
    left.extend(leftovers::reference_state(&site.reference, network)?);
    if sides == Sides::All {
        left.extend(leftovers::podwire_state(&site.routed, network, Recorded::NOTHING)?);
    }
    Ok(left)
}
