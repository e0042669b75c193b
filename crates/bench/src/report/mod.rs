//! The measurements as rows with verdicts, printed as tables and written as JSON.

pub(crate) mod date;
mod figures;
mod nodes;
pub(crate) mod print;
mod rows;
mod verdict;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::cases;
use crate::firewall::Timed;
use crate::machine::{Linkage, MachineInfo};
use crate::nodes::Nodes;
use crate::options::Scale;
use crate::recovery::Recovery;
use crate::stats::Percentiles;
use figures::{CallBreakdown, Figure};
use nodes::NodesLine;
use rows::Row;
use verdict::TargetVerdict;

/// All requested measurements.
pub(crate) struct Measurements {
    pub(crate) pods: Option<cases::PodMeasurements>,
    pub(crate) firewall: Timed,
    pub(crate) recovery: Option<Recovery>,
    pub(crate) nodes: Nodes,
}

/// Parts that were not measured are empty.
#[derive(Debug, Serialize)]
pub(crate) struct BenchReport {
    date: String,
    scale: Scale,
    machine: MachineInfo,
    rows: Vec<Row>,
    /// Figures of an agent with running pods.
    footprint: Vec<Figure>,
    /// Breakdown of calls through the agent.
    shares: Vec<CallBreakdown>,
    /// Figures of many nodes.
    nodes: Vec<NodesLine>,
    static_binary: TargetVerdict,
    no_failures: TargetVerdict,
    nothing_left: TargetVerdict,
    failures: Vec<String>,
    left: Vec<String>,
    remarks: Vec<String>,
    times_ms: Vec<LatencyRow>,
    rates_per_s: Vec<RateSeries>,
}

/// Times of one operation over all pods.
#[derive(Debug, Serialize)]
struct LatencyRow {
    case: String,
    #[serde(flatten)]
    percentiles: Percentiles,
}

/// Pods per second, round by round.
#[derive(Debug, Serialize)]
struct RateSeries {
    case: String,
    rounds: Vec<f64>,
}

impl BenchReport {
    pub(crate) fn new(machine: MachineInfo, scale: Scale, measured: &Measurements) -> Self {
        let mut report = Self {
            date: date::now(),
            scale,
            rows: vec![],
            footprint: vec![],
            shares: vec![],
            nodes: nodes::lines(&measured.nodes, &scale.nodes),
            static_binary: TargetVerdict::of(machine.binary.linkage == Linkage::Static),
            no_failures: TargetVerdict::None,
            nothing_left: TargetVerdict::None,
            failures: nodes::failures(&measured.nodes),
            left: vec![],
            remarks: nodes::remarks(&measured.nodes),
            times_ms: nodes::times(&measured.nodes),
            rates_per_s: vec![],
            machine,
        };
        report.add_times(&measured.firewall);
        if let Some(Recovery { times, remarks }) = &measured.recovery {
            report.add_times(times);
            report.remarks.extend(remarks.iter().cloned());
        }
        if let Some(pods) = &measured.pods {
            report.add_pods(pods);
        }
        report.no_failures = TargetVerdict::of(report.failures.is_empty());
        report.nothing_left = TargetVerdict::of(report.left.is_empty());
        report
    }

    fn add_times(&mut self, timed: &Timed) {
        for (case, sample) in timed {
            let times =
                sample.percentiles().map(|percentiles| LatencyRow { case: case.clone(), percentiles });
            self.times_ms.extend(times);
            self.failures.extend(sample.failures.iter().map(|failure| format!("{case}: {failure}")));
        }
    }

    fn add_pods(&mut self, pods: &cases::PodMeasurements) {
        let scale = &self.scale;
        self.rows = rows::all(pods, scale);
        self.footprint = figures::footprint(pods, scale);
        self.shares = figures::breakdowns(pods);
        self.failures.extend(rows::failures(pods, scale));
        self.left.extend(pods.left.iter().cloned());
        self.remarks.extend(pods.remarks.iter().cloned());
        self.times_ms.splice(0..0, rows::times(pods, scale));
        self.rates_per_s = rows::rates(pods);
    }

    /// True if all targets are met. Aims and informational rows do not count.
    pub(crate) fn meets_targets(&self) -> bool {
        let general = [self.static_binary, self.no_failures, self.nothing_left];
        let footprint = self.footprint.iter().map(|figure| figure.verdict);
        let nodes = self.nodes.iter().map(|line| line.verdict);
        let rows = self.rows.iter().map(|row| row.verdict);
        !rows.chain(footprint).chain(nodes).chain(general).any(|verdict| verdict == TargetVerdict::Missed)
    }

    /// Writes the JSON as `DATE.json` and `latest.json`.
    pub(crate) fn write(&self, directory: &Path) -> Result<PathBuf> {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot create directory {}", directory.display()))?;
        let mut text = serde_json::to_string_pretty(self).context("cannot write the report as JSON")?;
        text.push('\n');
        let dated = directory.join(format!("{}.json", self.date.replace(':', "")));
        for path in [&dated, &directory.join("latest.json")] {
            fs::write(path, &text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(dated)
    }
}
