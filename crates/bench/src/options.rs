use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum};
use serde::Serialize;

use crate::compare::{CompareScale, Comparison};

/// Compare podwire with the reference plugins and with plain `ip`, in one run on one host
#[derive(Debug, Parser)]
#[command(name = "podwire-bench", version)]
pub(crate) struct BenchOptions {
    /// Smoke test with few pods and one round; its figures are not meaningful
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Nine rounds of pods in parallel instead of five
    #[arg(long)]
    full: bool,
    /// Exit with 1 if a target is missed, a call fails or an object is not removed
    #[arg(long)]
    pub(crate) strict: bool,
    /// Pods per plugin [default: 128]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pods: Option<u16>,
    /// Run only these parts [default: all]
    #[arg(long, value_name = "PART,…", value_delimiter = ',')]
    only: Vec<BenchPart>,
    /// Compare with an older build instead: a directory with its `podwire-cni` and `podwire`. Old and new binaries run
    /// alternately in one run (parts pods and traffic), and each figure is judged by its ratio new/old and the run's own spread
    #[arg(long, value_name = "DIR")]
    baseline: Option<PathBuf>,
    /// Directory for the JSON [default: target/bench]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Parts of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum BenchPart {
    /// Adding and removing pods on one node
    Pods,
    /// The firewall alone: adding and removing pods, checks and repairs
    Firewall,
    /// Recovery times after faults: flushed rules, a removed socket, a killed agent, an unreachable etcd
    Recovery,
    /// Routes to thousands of nodes
    Routes,
    /// Agents in a cluster of a thousand nodes
    Scale,
    /// Hundreds of parallel joins
    Joins,
    /// Traffic between pods of two nodes
    Traffic,
}

/// Size of the measurements.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Scale {
    /// Pods of each plugin, all attached at the same time.
    pub(crate) pods: usize,
    /// Pods of the informational case with masquerade.
    pub(crate) masquerade_pods: usize,
    /// Number of workers that add pods at the same time.
    pub(crate) parallel: usize,
    pub(crate) rounds: usize,
    /// Addresses in use before the pods are added: in the case with few addresses.
    pub(crate) few: usize,
    /// The same in the case with many addresses.
    pub(crate) many: usize,
    /// Running pods of the measured agent.
    pub(crate) running_pods: usize,
    /// Duration of the idle measurement in seconds.
    pub(crate) idle_seconds: u64,
    /// Number of restarts of the agent.
    pub(crate) restarts: usize,
    /// Repetitions of each fault.
    pub(crate) faults: usize,
    /// Repetitions of the etcd outage, which takes most of a minute.
    pub(crate) outages: usize,
    pub(crate) nodes: NodesScale,
}

/// Size of the measurements with many nodes.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct NodesScale {
    /// Number of nodes with routes.
    pub(crate) peers: usize,
    pub(crate) route_rounds: usize,
    /// Number of nodes that get another address.
    pub(crate) changes: usize,
    /// Nodes in the first phase of part `scale`. Three have an agent, the other ones are simulated.
    pub(crate) few_nodes: usize,
    /// Nodes in its later phases.
    pub(crate) crowd: usize,
    /// Duration of the idle phase.
    pub(crate) quiet: Duration,
    /// Duration of the phase with added and removed nodes.
    pub(crate) churn: Duration,
    pub(crate) joins: usize,
    pub(crate) join_rounds: usize,
    /// How often the networks are created.
    pub(crate) traffic_sites: usize,
    /// Rounds per network.
    pub(crate) traffic_rounds: usize,
    /// Duration of one measurement of throughput.
    pub(crate) stream: Duration,
    /// Duration of one measurement of round-trip times.
    pub(crate) trips: Duration,
}

impl NodesScale {
    const USUAL: Self = Self {
        peers: 5000,
        route_rounds: 5,
        changes: 100,
        few_nodes: 10,
        crowd: 1000,
        quiet: Duration::from_secs(20),
        churn: Duration::from_secs(18),
        joins: 300,
        join_rounds: 3,
        traffic_sites: 6,
        traffic_rounds: 18,
        stream: Duration::from_millis(100),
        trips: Duration::from_millis(50),
    };
    const QUICK: Self = Self {
        peers: 100,
        route_rounds: 1,
        changes: 4,
        few_nodes: 5,
        crowd: 80,
        quiet: Duration::from_secs(1),
        churn: Duration::from_secs(1),
        joins: 20,
        join_rounds: 1,
        traffic_sites: 1,
        traffic_rounds: 1,
        stream: Duration::from_millis(100),
        trips: Duration::from_millis(50),
    };
}

impl BenchOptions {
    pub(crate) fn scale(&self) -> Scale {
        let usual = if self.quick { 12 } else { 128 };
        let pods = self.pods.map_or(usual, usize::from);
        Scale {
            pods,
            masquerade_pods: pods.div_ceil(4),
            parallel: 16,
            rounds: match (self.quick, self.full) {
                (true, _) => 1,
                (false, true) => 9,
                (false, false) => 5,
            },
            few: 10,
            many: if self.quick { 400 } else { 4000 },
            running_pods: if self.quick { 6 } else { 250 },
            idle_seconds: if self.quick { 1 } else { 5 },
            restarts: if self.quick { 1 } else { 5 },
            faults: if self.quick { 2 } else { 15 },
            outages: if self.quick { 1 } else { 3 },
            nodes: if self.quick { NodesScale::QUICK } else { NodesScale::USUAL },
        }
    }

    /// The comparison; `None` without a baseline.
    pub(crate) fn comparison(&self) -> Result<Option<Comparison>> {
        let Some(baseline) = &self.baseline else { return Ok(None) };
        let parts =
            if self.only.is_empty() { vec![BenchPart::Pods, BenchPart::Traffic] } else { self.only.clone() };
        for part in &parts {
            ensure!(
                matches!(part, BenchPart::Pods | BenchPart::Traffic),
                "--baseline compares the parts pods and traffic, not {part:?}"
            );
        }
        let nodes = if self.quick { NodesScale::QUICK } else { NodesScale::USUAL };
        let scale = CompareScale {
            sites: match (self.quick, self.full) {
                (true, _) => 3,
                (false, true) => 12,
                (false, false) => 8,
            },
            pods: self.pods.map_or(if self.quick { 12 } else { 100 }, usize::from),
            parallel: 16,
            bursts: if self.quick { 2 } else { 4 },
            traffic_rounds: if self.quick { 4 } else { 20 },
            stream: nodes.stream,
            trips: nodes.trips,
        };
        Comparison::new(baseline, parts, scale).map(Some)
    }

    pub(crate) fn parts(&self) -> Vec<BenchPart> {
        if self.only.is_empty() { BenchPart::value_variants().to_vec() } else { self.only.clone() }
    }

    /// Directory for the JSON: `target/bench`, next to the profile directory of this program.
    pub(crate) fn directory(&self) -> Result<PathBuf> {
        if let Some(out) = &self.out {
            return Ok(out.clone());
        }
        let exe = std::env::current_exe().context("cannot find the path of this program")?;
        let target = exe.parent().and_then(|profile| profile.parent());
        Ok(target
            .with_context(|| format!("{} is not in a target directory; use --out", exe.display()))?
            .join("bench"))
    }
}
