//! Many pods at once, as when a node comes up: all ADDs, then all DELs, by several workers; the plugins take turns, round
//! by round.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Result, bail};
use types::AttachMode;

use super::Stage;
use super::sequence::{self, LaneTimes};
use crate::floor::Floor;
use crate::lane::{Lane, PluginLane};
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
    /// Each under a name.
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

/// Pods per second, one figure a round.
#[derive(Debug, Default)]
pub(crate) struct BurstRates {
    pub(crate) add: Vec<f64>,
    pub(crate) del: Vec<f64>,
    pub(crate) failures: Vec<String>,
}

pub(crate) fn run(stage: &Stage<'_>, network: BenchNetwork, left: &mut Vec<String>) -> Result<Bursts> {
    let (plugins, site, scale) = (stage.plugins, stage.site, stage.scale);
    let lanes = [
        plugins.podwire(&site.podwire, AttachMode::Bridge, network)?,
        plugins.reference(&site.reference, network)?,
        plugins.agent(&site.agent, AttachMode::Routed, network)?,
        plugins.agent(&site.agent_bridge, AttachMode::Bridge, network)?,
    ];
    let mut floor = Floor::make(&site.floor, network)?;
    sequence::warm_up(&mut lanes.clone().map(|lane| LaneTimes::new(Lane::plugin(lane))))?;
    let ours = [&site.podwire, &site.agent, &site.agent_bridge];
    let before = ours.map(|seat| Before::look(seat).map(|before| (seat, before)));
    let before = before.into_iter().collect::<Result<Vec<_>>>()?;
    let mut bursts = Bursts::default();
    for _ in 0..scale.rounds {
        let Bursts { podwire, reference, agent, agent_bridge, floor: raw } = &mut bursts;
        for (lane, rates) in lanes.iter().zip([podwire, reference, agent, agent_bridge]) {
            Burst { plugin: lane, pods: scale.pods, workers: scale.parallel }.round(rates)?;
        }
        let (add, del) = floor.burst(scale.parallel)?;
        raw.add.push(add);
        raw.del.push(del);
    }
    left.extend(before.iter().filter_map(|(seat, before)| before.changed(seat)));
    left.extend(ours.into_iter().chain([&site.reference, &site.floor]).flat_map(leftovers::links));
    for seat in ours {
        left.extend(leftovers::podwire_state(seat, network, Recorded::NOTHING)?);
    }
    left.extend(leftovers::reference_state(&site.reference, network)?);
    Ok(bursts)
}

/// Whose pods, how many of them, and by how many workers.
pub(crate) struct Burst<'a> {
    pub(crate) plugin: &'a PluginLane<'a>,
    pub(crate) pods: usize,
    pub(crate) workers: usize,
}

impl Burst<'_> {
    pub(crate) fn round(&self, rates: &mut BurstRates) -> Result<()> {
        let inputs = self.come(rates)?;
        self.go(&inputs, rates)
    }

    /// All ADDs. Gives what each DEL will need.
    pub(super) fn come(&self, rates: &mut BurstRates) -> Result<Vec<String>> {
        let plugin = self.plugin;
        let (rate, answers) = self.in_parallel(|pod| plugin.add_here(&plugin.seat.pods[pod]))?;
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

    /// All DELs.
    pub(super) fn go(&self, inputs: &[String], rates: &mut BurstRates) -> Result<()> {
        let plugin = self.plugin;
        let (rate, answers) =
            self.in_parallel(|pod| plugin.del_here(&plugin.seat.pods[pod], &inputs[pod]))?;
        rates.del.push(rate);
        rates
            .failures
            .extend(answers.into_iter().filter_map(|answer| answer.err().map(|e| format!("{e:#}"))));
        Ok(())
    }

    /// Does the work for every pod, by workers inside the node's namespace. Gives pods per second and what came out for each.
    fn in_parallel<T: Send>(
        &self,
        work: impl Fn(usize) -> Result<T> + Sync,
    ) -> Result<(f64, Vec<Result<T>>)> {
        let Self { plugin: PluginLane { seat, .. }, pods: count, workers } = *self;
        let (next, ready) = (AtomicUsize::new(0), Barrier::new(workers + 1));
        let worker = || {
            let mut done = Vec::new();
            let inside = seat.node.enter(|| {
                ready.wait();
                while let Some(pod) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|pod| *pod < count) {
                    done.push((pod, work(pod)));
                }
            });
            if inside.is_err() {
                // The others wait for everybody.
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
