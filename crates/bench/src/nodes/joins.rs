//! Many nodes join at the same time, each with its own connection: as agents do, and with a plain counter.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use ipnet::IpNet;
use model::{KeyLayout, NetworkSpec, NodeRecord};
use store::Store;
use testkit::Cluster;
use tokio::task::JoinSet;

use super::simulated::{self, NodeLocation};
use super::{MARGIN, hosts, seed, subnets};
use crate::options::NodesScale;
use crate::stats::Sample;

/// Maximum number of retries. An agent retries without limit.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Default)]
pub(crate) struct Joins {
    /// Time until the last node has joined.
    pub(crate) agents: Sample,
    pub(crate) counter: Sample,
    /// Number of distinct blocks per round, of the family with fewer.
    pub(crate) distinct: Vec<usize>,
    /// Duplicate numbers in all rounds.
    pub(crate) duplicates: usize,
    /// Number of retries.
    pub(crate) again: usize,
}

pub(crate) fn run(scale: &NodesScale) -> Result<Joins> {
    let cluster = hosts("joins", 1, &subnets())?;
    let mut joins = Joins::default();
    for round in 0..scale.join_rounds {
        joins.agents(&cluster, round, scale.joins)?;
        joins.counter(&cluster, round, scale.joins)?;
    }
    Ok(joins)
}

impl Joins {
    fn agents(&mut self, cluster: &Cluster, round: usize, count: usize) -> Result<()> {
        let layout = KeyLayout::new(&format!("/joins-{round}"), None);
        let (took, joined) = at_once(cluster, count, |store, number| join(store, layout.clone(), number))?;
        let mut blocks: [BTreeSet<IpNet>; 2] = Default::default();
        let mut failed = None;
        for outcome in joined {
            match outcome {
                Ok((record, tries)) => {
                    self.again += tries;
                    for (family, block) in
                        blocks.iter_mut().zip(record.blocks.iter().copied().collect::<Vec<_>>())
                    {
                        family.insert(block);
                    }
                }
                Err(error) => failed = Some(error),
            }
        }
        self.agents.note(failed.map_or(Ok(took), Err));
        self.distinct.push(blocks.iter().map(BTreeSet::len).min().unwrap_or(0));
        Ok(())
    }

    fn counter(&mut self, cluster: &Cluster, round: usize, count: usize) -> Result<()> {
        let directory = format!("/counter-{round}");
        let (took, numbers) = at_once(cluster, count, |store, number| {
            seed::take_number(store, directory.clone(), format!("host-{number}"))
        })?;
        let numbers: Vec<u64> = numbers.into_iter().collect::<Result<_>>()?;
        self.duplicates += numbers.len() - numbers.iter().collect::<BTreeSet<_>>().len();
        self.counter.note(Ok(took));
        Ok(())
    }
}

/// Runs this many joins in parallel and returns the time until the last one has finished.
fn at_once<T, F>(
    cluster: &Cluster,
    count: usize,
    one: impl Fn(Store, usize) -> F + Sync,
) -> Result<(Duration, Vec<Result<T>>)>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let runtime = simulated::runtime()?;
    let stores: Vec<Store> = (0..count).map(|_| simulated::open(cluster, &runtime)).collect::<Result<_>>()?;
    cluster.underlay().enter(|| {
        runtime.block_on(async {
            // All clients are connected, so only the joins are timed.
            for store in &stores {
                store.get("/nothing").await?;
            }
            let start = Instant::now();
            let mut all = JoinSet::new();
            for (number, store) in stores.into_iter().enumerate() {
                all.spawn(one(store, number));
            }
            let done = all.join_all().await;
            Ok((start.elapsed(), done))
        })
    })?
}

/// Joins as an agent does, with retries while the store is busy. Returns the number of retries.
async fn join(store: Store, layout: KeyLayout, number: usize) -> Result<(NodeRecord, usize)> {
    let spec = NetworkSpec { subnets: subnets(), margin: MARGIN, vni: 4077, vxlan_port: 4789 };
    let record = NodeRecord {
        blocks: model::BlockAllocation::default(),
        ..simulated::record(number, NodeLocation::OnLink)?
    };
    let mut last = None;
    for tries in 0..TRIES {
        let (store, layout) = (store.clone(), layout.clone());
        match agent::measured::join(store, layout, spec.clone(), record.clone()).await {
            Ok(record) => return Ok((record, tries as usize)),
            Err(error) => last = Some(error),
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(anyhow!(last.unwrap_or_default())).with_context(|| format!("{} did not join", record.name))
}
