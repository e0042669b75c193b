//! Many pods at once, as when a node comes up: all ADDs, then all DELs, by several workers; the plugins take turns, round
//! by round.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Result, bail};
use types::AttachMode;

use super::Stage;
use super::sequence::{self, Line};
use crate::lane::{Lane, PluginLane};
use crate::leftovers::{self, Before, Recorded};
use crate::networks::Network;

pub(crate) struct Bursts {
    pub(crate) podwire: Rates,
    pub(crate) reference: Rates,
}

/// Pods per second, one figure a round.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    pub(crate) add: Vec<f64>,
    pub(crate) del: Vec<f64>,
    pub(crate) failures: Vec<String>,
}

pub(crate) fn run(stage: &Stage<'_>, network: Network, left: &mut Vec<String>) -> Result<Bursts> {
    let (plugins, site, scale) = (stage.plugins, stage.site, stage.scale);
    let podwire = plugins.podwire(&site.podwire, AttachMode::Bridge, network)?;
    let reference = plugins.reference(&site.reference, network)?;
    sequence::warm_up(&mut [podwire.clone(), reference.clone()].map(|lane| Line::new(Lane::plugin(lane))))?;
    let before = Before::look(&site.podwire)?;
    let mut bursts = Bursts { podwire: Rates::default(), reference: Rates::default() };
    for _ in 0..scale.rounds {
        round(&podwire, scale.parallel, &mut bursts.podwire)?;
        round(&reference, scale.parallel, &mut bursts.reference)?;
    }
    left.extend(before.changed(&site.podwire));
    left.extend([&site.podwire, &site.reference].into_iter().flat_map(leftovers::links));
    left.extend(leftovers::podwire_state(&site.podwire, network, Recorded::NOTHING)?);
    left.extend(leftovers::reference_state(&site.reference, network)?);
    Ok(bursts)
}

fn round(plugin: &PluginLane<'_>, workers: usize, rates: &mut Rates) -> Result<()> {
    let pods = &plugin.seat.pods;
    let (rate, answers) = in_parallel(plugin, workers, |pod| plugin.add_here(&pods[pod]))?;
    rates.add.push(rate);
    let mut inputs = Vec::with_capacity(pods.len());
    for answer in answers {
        let input = answer.and_then(|(_, answer)| plugin.del_input(&answer));
        inputs.push(input.unwrap_or_else(|error| {
            rates.failures.push(format!("{error:#}"));
            plugin.plain_input()
        }));
    }
    let (rate, answers) = in_parallel(plugin, workers, |pod| plugin.del_here(&pods[pod], &inputs[pod]))?;
    rates.del.push(rate);
    rates.failures.extend(answers.into_iter().filter_map(|answer| answer.err().map(|e| format!("{e:#}"))));
    Ok(())
}

/// Does the work for every pod, by workers inside the node's namespace. Gives pods per second and what came out for each.
fn in_parallel<T: Send>(
    plugin: &PluginLane<'_>,
    workers: usize,
    work: impl Fn(usize) -> Result<T> + Sync,
) -> Result<(f64, Vec<Result<T>>)> {
    let seat = plugin.seat;
    let count = seat.pods.len();
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
