//! Parallel pods, as at the start of a node: several workers send all ADDs, then all DELs. The plugins alternate in every
//! round.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Result, bail};
use types::AttachMode;

use super::CaseInput;
use super::sequence::{self, ContenderTimes};
use crate::contender::{Contender, PluginContender};
use crate::floor::Floor;
use crate::leftovers::{self, Before, Recorded};
use crate::networks::BenchNetwork;

#[derive(Default)]
pub(crate) struct Bursts {
    pub(crate) podwire: BurstRates,
    pub(crate) reference: BurstRates,
    pub(crate) agent: BurstRates,
    pub(crate) agent_bridge: BurstRates,
    pub(crate) floor: BurstRates,
}

impl Bursts {
    /// All rates with their names.
    pub(crate) fn named(&self) -> [(&'static str, &BurstRates); 5] {
        [
            ("podwire", &self.podwire),
            ("reference", &self.reference),
            ("agent", &self.agent),
            ("agent bridge", &self.agent_bridge),
            ("raw netlink", &self.floor),
        ]
    }
}

/// Pods per second, one figure per round.
#[derive(Debug, Default)]
pub(crate) struct BurstRates {
    pub(crate) add: Vec<f64>,
    pub(crate) del: Vec<f64>,
    pub(crate) failures: Vec<String>,
}

pub(crate) fn run(input: &CaseInput<'_>, network: BenchNetwork, left: &mut Vec<String>) -> Result<Bursts> {
    let (plugins, site, scale) = (input.plugins, input.site, input.scale);
    let contenders = [
        plugins.podwire(&site.podwire, AttachMode::Bridge, network)?,
        plugins.reference(&site.reference, network)?,
        plugins.agent(&site.agent, AttachMode::Routed, network)?,
        plugins.agent(&site.agent_bridge, AttachMode::Bridge, network)?,
    ];
    let mut floor = Floor::make(&site.floor, network)?;
    sequence::warm_up(
        &mut contenders.clone().map(|contender| ContenderTimes::new(Contender::plugin(contender))),
    )?;
    let podwire_nodes = [&site.podwire, &site.agent, &site.agent_bridge];
    let before = podwire_nodes.map(|bench_node| Before::take(bench_node).map(|before| (bench_node, before)));
    let before = before.into_iter().collect::<Result<Vec<_>>>()?;
    let mut bursts = Bursts::default();
    for _ in 0..scale.rounds {
        let Bursts { podwire, reference, agent, agent_bridge, floor: raw } = &mut bursts;
        for (contender, rates) in contenders.iter().zip([podwire, reference, agent, agent_bridge]) {
            Burst { plugin: contender, pods: scale.pods, workers: scale.parallel }.round(rates)?;
        }
        let (add, del) = floor.burst(scale.parallel)?;
        raw.add.push(add);
        raw.del.push(del);
    }
    left.extend(before.iter().filter_map(|(bench_node, before)| before.changed(bench_node)));
    left.extend(podwire_nodes.into_iter().chain([&site.reference, &site.floor]).flat_map(leftovers::links));
    for bench_node in podwire_nodes {
        left.extend(leftovers::podwire_state(bench_node, network, Recorded::NOTHING)?);
    }
    left.extend(leftovers::reference_state(&site.reference, network)?);
    Ok(bursts)
}

/// The plugin, the number of pods and the number of workers.
pub(crate) struct Burst<'a> {
    pub(crate) plugin: &'a PluginContender<'a>,
    pub(crate) pods: usize,
    pub(crate) workers: usize,
}

impl Burst<'_> {
    pub(crate) fn round(&self, rates: &mut BurstRates) -> Result<()> {
        let inputs = self.add_all(rates)?;
        self.del_all(&inputs, rates)
    }

    /// Sends all ADDs and returns the input of each DEL.
    pub(super) fn add_all(&self, rates: &mut BurstRates) -> Result<Vec<String>> {
        let plugin = self.plugin;
        let (rate, answers) = self.in_parallel(|pod| plugin.add_here(&plugin.bench_node.pods[pod]))?;
        rates.add.push(rate);
        let mut inputs = Vec::with_capacity(self.pods);
        for answer in answers {
            let input = answer.and_then(|(_, answer)| plugin.del_input(&answer));
            inputs.push(input.unwrap_or_else(|error| {
                rates.failures.push(format!("{error:#}"));
                plugin.plain_input()
            }));
        }
        Ok(inputs)
    }

    /// Sends all DELs.
    pub(super) fn del_all(&self, inputs: &[String], rates: &mut BurstRates) -> Result<()> {
        let plugin = self.plugin;
        let (rate, answers) =
            self.in_parallel(|pod| plugin.del_here(&plugin.bench_node.pods[pod], &inputs[pod]))?;
        rates.del.push(rate);
        rates
            .failures
            .extend(answers.into_iter().filter_map(|answer| answer.err().map(|e| format!("{e:#}"))));
        Ok(())
    }

    /// Runs the work for every pod in the node's namespace. Returns pods per second and the result of each pod.
    fn in_parallel<T: Send>(
        &self,
        work: impl Fn(usize) -> Result<T> + Sync,
    ) -> Result<(f64, Vec<Result<T>>)> {
        let Self { plugin: PluginContender { bench_node, .. }, pods: count, workers } = *self;
        let (next, ready) = (AtomicUsize::new(0), Barrier::new(workers + 1));
        let worker = || {
            let mut done = Vec::new();
            let inside = bench_node.node.enter(|| {
                ready.wait();
                while let Some(pod) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|pod| *pod < count) {
                    done.push((pod, work(pod)));
                }
            });
            if inside.is_err() {
                // The other workers wait at the barrier.
                ready.wait();
            }
            inside.map(|()| done)
        };
        let (seconds, done) = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
            ready.wait();
            let start = Instant::now();
            let done: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            (start.elapsed().as_secs_f64(), done)
        });
        let mut all = Vec::with_capacity(count);
        for thread in done {
            match thread {
                Ok(done) => all.extend(done?),
                Err(_) => bail!("a worker panicked"),
            }
        }
        all.sort_by_key(|(pod, _)| *pod);
        Ok((count as f64 / seconds, all.into_iter().map(|(_, outcome)| outcome).collect()))
    }
}
