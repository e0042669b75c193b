//! ADD and DEL of both builds, sequential and in parallel.

use anyhow::Result;
use testkit::{Agent, Lab};
use types::AttachMode;

use super::series::Series;
use super::{CompareResults, CompareScale, ComparedBuild};
use crate::agents;
use crate::cases::burst::{Burst, BurstRates};
use crate::cases::sequence::{self, ContenderTimes, Times};
use crate::contender::{Contender, PluginContender};
use crate::leftovers::{self, Recorded};
use crate::networks::BenchNetwork;
use crate::site::{BenchNode, StateDirectory};
use crate::stats::{Better, median, p99};

/// How pods are attached.
#[derive(Debug, Clone, Copy)]
struct Setup {
    name: &'static str,
    mode: AttachMode,
    by: AttachedBy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AttachedBy {
    Plugin,
    Agent,
}

const SETUPS: [Setup; 4] = [
    Setup { name: "standalone, bridge", mode: AttachMode::Bridge, by: AttachedBy::Plugin },
    Setup { name: "standalone, routed", mode: AttachMode::Routed, by: AttachedBy::Plugin },
    Setup { name: "agent, routed", mode: AttachMode::Routed, by: AttachedBy::Agent },
    Setup { name: "agent, bridge", mode: AttachMode::Bridge, by: AttachedBy::Agent },
];

const STACKS: [(&str, BenchNetwork); 2] = [("IPv4", BenchNetwork::V4), ("dual stack", BenchNetwork::DUAL)];

/// One setup of one build: its node and optional agent. The agent is dropped before its node.
struct BuildSite<'a> {
    _agent: Option<Agent>,
    bench_node: BenchNode,
    build: &'a ComparedBuild,
    setup: Setup,
}

/// One site: both builds in every setup.
pub(super) fn measure(
    builds: &[ComparedBuild; 2],
    scale: &CompareScale,
    results: &mut CompareResults,
) -> Result<()> {
    let lab = Lab::new("compare")?;
    let state = StateDirectory::create(&lab)?;
    for (number, setup) in SETUPS.into_iter().enumerate() {
        let [old, new] = builds;
        let create = |build, build_name: &str| {
            let bench_node = BenchNode::create((&lab, &state), &format!("{build_name}{number}"), scale.pods)?;
            BuildSite::make(build, setup, bench_node)
        };
        let build_sites = [create(old, "old")?, create(new, "new")?];
        for (stack, network) in STACKS {
            compare(&build_sites, (&format!("{}, {stack}", setup.name), network), scale, results)?;
        }
    }
    Ok(())
}

fn compare(
    build_sites: &[BuildSite<'_>; 2],
    (case, network): (&str, BenchNetwork),
    scale: &CompareScale,
    results: &mut CompareResults,
) -> Result<()> {
    let contenders = [build_sites[0].contender(network)?, build_sites[1].contender(network)?];
    let mut lines: Vec<ContenderTimes<'_>> = contenders
        .iter()
        .map(|contender| ContenderTimes::new(Contender::plugin(contender.clone())))
        .collect();
    sequence::warm_up(&mut lines)?;
    let times = sequence::run(lines, scale.pods);
    if let [old, new] = times.as_slice() {
        results.times(case, old, new);
    }
    let mut rates = [BurstRates::default(), BurstRates::default()];
    for round in 0..scale.bursts {
        // The order of the builds alternates.
        for which in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            let burst = Burst { plugin: &contenders[which], pods: scale.pods, workers: scale.parallel };
            burst.round(&mut rates[which])?;
        }
    }
    results.rates(case, &rates);
    for (build_site, build_name) in build_sites.iter().zip(["old", "new"]) {
        let state = leftovers::podwire_state(&build_site.bench_node, network, Recorded::NOTHING)?;
        let left = leftovers::links(&build_site.bench_node).into_iter().chain(state);
        results.left.extend(left.map(|left| format!("{case}, {build_name}: {left}")));
    }
    Ok(())
}

impl<'a> BuildSite<'a> {
    fn make(build: &'a ComparedBuild, setup: Setup, bench_node: BenchNode) -> Result<Self> {
        let mode = match setup.mode {
            AttachMode::Bridge => "bridge",
            AttachMode::Routed => "routed",
        };
        let agent =
            (setup.by == AttachedBy::Agent).then(|| agents::start(&bench_node, mode, Some(&build.agent)));
        Ok(Self { _agent: agent.transpose()?, bench_node, build, setup })
    }

    fn contender(&self, network: BenchNetwork) -> Result<PluginContender<'_>> {
        let config = match self.setup.by {
            AttachedBy::Plugin => network.podwire(self.setup.mode, &self.bench_node.dir)?,
            AttachedBy::Agent => network.through_agent(self.setup.mode, &self.bench_node.dir)?,
        };
        Ok(PluginContender::new(&self.build.plugin, &self.bench_node, config, network.subnets()?.len()))
    }
}

impl CompareResults {
    fn times(&mut self, case: &str, old: &Times, new: &Times) {
        for (verb, old, new) in [("ADD", &old.add, &new.add), ("DEL", &old.del, &new.del)] {
            for (name, statistic) in [("p50", median as super::series::Statistic), ("p99", p99)] {
                let case = format!("{verb} {name}, {case}");
                self.series(Series::new(case, ("ms", Better::Less), statistic)).add(&old.ms(), &new.ms());
            }
            for (build_name, sample) in [("old", old), ("new", new)] {
                let failures = sample.failures.iter();
                self.failures
                    .extend(failures.map(|failure| format!("{verb}, {case}, {build_name}: {failure}")));
            }
        }
    }

    fn rates(&mut self, case: &str, [old, new]: &[BurstRates; 2]) {
        for (verb, old, new) in [("ADD/s", &old.add, &new.add), ("DEL/s", &old.del, &new.del)] {
            let case = format!("{verb} in parallel, {case}");
            self.series(Series::new(case, ("/s", Better::More), median)).add(old, new);
        }
        for (build_name, rates) in [("old", old), ("new", new)] {
            let failures = rates.failures.iter();
            self.failures
                .extend(failures.map(|failure| format!("in parallel, {case}, {build_name}: {failure}")));
        }
    }
}
