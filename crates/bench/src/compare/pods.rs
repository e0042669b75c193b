//! ADD and DEL of both builds: one pod after the other, and many at once.

use anyhow::Result;
use testkit::{Agent, Lab};
use types::AttachMode;

use super::series::Series;
use super::{CompareScale, ComparedBuild, Findings};
use crate::agents;
use crate::cases::burst::{Burst, BurstRates};
use crate::cases::sequence::{self, LaneTimes, Times};
use crate::lane::{Lane, PluginLane};
use crate::leftovers::{self, Recorded};
use crate::networks::BenchNetwork;
use crate::site::{Directory, Seat};
use crate::stats::{Better, median, p99};

/// How pods are attached.
#[derive(Debug, Clone, Copy)]
struct Setup {
    name: &'static str,
    mode: AttachMode,
    through: SetupServer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SetupServer {
    Plugin,
    Agent,
}

const SETUPS: [Setup; 4] = [
    Setup { name: "standalone, bridge", mode: AttachMode::Bridge, through: SetupServer::Plugin },
    Setup { name: "standalone, routed", mode: AttachMode::Routed, through: SetupServer::Plugin },
    Setup { name: "agent, routed", mode: AttachMode::Routed, through: SetupServer::Agent },
    Setup { name: "agent, bridge", mode: AttachMode::Bridge, through: SetupServer::Agent },
];

const STACKS: [(&str, BenchNetwork); 2] = [("IPv4", BenchNetwork::V4), ("dual stack", BenchNetwork::DUAL)];

/// One setup of one build: its node, and its agent if it has one. The agent ends before its node.
struct BuildSite<'a> {
    _agent: Option<Agent>,
    seat: Seat,
    build: &'a ComparedBuild,
    setup: Setup,
}

/// One site: both builds in every setup.
pub(super) fn measure(
    builds: &[ComparedBuild; 2],
    scale: &CompareScale,
    findings: &mut Findings,
) -> Result<()> {
    let lab = Lab::new("compare")?;
    let memory = Directory::make(&lab)?;
    for (number, setup) in SETUPS.into_iter().enumerate() {
        let [old, new] = builds;
        let place = |build, whose: &str| {
            let seat = Seat::make((&lab, &memory), &format!("{whose}{number}"), scale.pods)?;
            BuildSite::make(build, setup, seat)
        };
        let places = [place(old, "old")?, place(new, "new")?];
        for (stack, network) in STACKS {
            compare(&places, (&format!("{}, {stack}", setup.name), network), scale, findings)?;
        }
    }
    Ok(())
}

fn compare(
    places: &[BuildSite<'_>; 2],
    (case, network): (&str, BenchNetwork),
    scale: &CompareScale,
    findings: &mut Findings,
) -> Result<()> {
    let lanes = [places[0].lane(network)?, places[1].lane(network)?];
    let mut lines: Vec<LaneTimes<'_>> =
        lanes.iter().map(|lane| LaneTimes::new(Lane::plugin(lane.clone()))).collect();
    sequence::warm_up(&mut lines)?;
    let times = sequence::run(lines, scale.pods);
    if let [old, new] = times.as_slice() {
        findings.times(case, old, new);
    }
    let mut rates = [BurstRates::default(), BurstRates::default()];
    for round in 0..scale.bursts {
        // Which build begins changes from round to round.
        for which in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            let burst = Burst { plugin: &lanes[which], pods: scale.pods, workers: scale.parallel };
            burst.round(&mut rates[which])?;
        }
    }
    findings.rates(case, &rates);
    for (place, whose) in places.iter().zip(["old", "new"]) {
        let state = leftovers::podwire_state(&place.seat, network, Recorded::NOTHING)?;
        let left = leftovers::links(&place.seat).into_iter().chain(state);
        findings.left.extend(left.map(|left| format!("{case}, {whose}: {left}")));
    }
    Ok(())
}

impl<'a> BuildSite<'a> {
    fn make(build: &'a ComparedBuild, setup: Setup, seat: Seat) -> Result<Self> {
        let mode = match setup.mode {
            AttachMode::Bridge => "bridge",
            AttachMode::Routed => "routed",
        };
        let agent =
            (setup.through == SetupServer::Agent).then(|| agents::start(&seat, mode, Some(&build.agent)));
        Ok(Self { _agent: agent.transpose()?, seat, build, setup })
    }

    fn lane(&self, network: BenchNetwork) -> Result<PluginLane<'_>> {
        let config = match self.setup.through {
            SetupServer::Plugin => network.podwire(self.setup.mode, &self.seat.dir)?,
            SetupServer::Agent => network.through_agent(self.setup.mode, &self.seat.dir)?,
        };
        Ok(PluginLane::new(&self.build.plugin, &self.seat, config, network.subnets()?.len()))
    }
}

impl Findings {
    fn times(&mut self, case: &str, old: &Times, new: &Times) {
        for (verb, old, new) in [("ADD", &old.add, &new.add), ("DEL", &old.del, &new.del)] {
            for (name, statistic) in [("p50", median as super::series::Statistic), ("p99", p99)] {
                let case = format!("{verb} {name}, {case}");
                self.series(Series::new(case, ("ms", Better::Less), statistic)).add(&old.ms(), &new.ms());
            }
            for (whose, sample) in [("old", old), ("new", new)] {
                let failures = sample.failures.iter();
                self.failures.extend(failures.map(|failure| format!("{verb}, {case}, {whose}: {failure}")));
            }
        }
    }

    fn rates(&mut self, case: &str, [old, new]: &[BurstRates; 2]) {
        for (verb, old, new) in [("ADD/s", &old.add, &new.add), ("DEL/s", &old.del, &new.del)] {
            let case = format!("{verb} in parallel, {case}");
            self.series(Series::new(case, ("/s", Better::More), median)).add(old, new);
        }
        for (whose, rates) in [("old", old), ("new", new)] {
            let failures = rates.failures.iter();
            self.failures.extend(failures.map(|failure| format!("in parallel, {case}, {whose}: {failure}")));
        }
    }
}
