//! What was measured, as rows with verdicts; printed as tables and written as JSON.

mod date;
mod figures;
mod print;
mod rows;
mod verdict;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::cases::Measured;
use crate::machine::{Linkage, Machine};
use crate::options::Scale;
use crate::stats::Percentiles;
use figures::{Figure, Share};
use rows::Row;
use verdict::Verdict;

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    date: String,
    scale: Scale,
    machine: Machine,
    rows: Vec<Row>,
    /// What the agent needs while its pods stay.
    resident: Vec<Figure>,
    /// Where the time of a call through the agent goes.
    shares: Vec<Share>,
    static_binary: Verdict,
    no_failures: Verdict,
    nothing_left: Verdict,
    failures: Vec<String>,
    left: Vec<String>,
    remarks: Vec<String>,
    times_ms: Vec<Times>,
    rates_per_s: Vec<Rates>,
}

/// How long one thing took, over all pods.
#[derive(Debug, Serialize)]
struct Times {
    case: String,
    #[serde(flatten)]
    percentiles: Percentiles,
}

/// Pods per second, round by round.
#[derive(Debug, Serialize)]
struct Rates {
    case: String,
    rounds: Vec<f64>,
}

impl Report {
    pub(crate) fn new(machine: Machine, scale: Scale, measured: &Measured) -> Self {
        let failures = rows::failures(measured, &scale);
        Self {
            date: date::now(),
            scale,
            rows: rows::all(measured, &scale),
            resident: figures::resident(measured, &scale),
            shares: figures::shares(measured),
            static_binary: Verdict::of(machine.binary.linkage == Linkage::Static),
            no_failures: Verdict::of(failures.is_empty()),
            nothing_left: Verdict::of(measured.left.is_empty()),
            failures,
            left: measured.left.clone(),
            remarks: measured.remarks.clone(),
            times_ms: rows::times(measured, &scale),
            rates_per_s: rows::rates(measured),
            machine,
        }
    }

    /// Every target is met; aims and rows for information do not count.
    pub(crate) fn is_fine(&self) -> bool {
        let others = [self.static_binary, self.no_failures, self.nothing_left];
        let resident = self.resident.iter().map(|figure| figure.verdict);
        let rows = self.rows.iter().map(|row| row.verdict);
        !rows.chain(resident).chain(others).any(|verdict| verdict == Verdict::Missed)
    }

    /// Writes the JSON, under its date and as `latest.json`.
    pub(crate) fn write(&self, folder: &Path) -> Result<PathBuf> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make folder {}", folder.display()))?;
        let mut text = serde_json::to_string_pretty(self).context("cannot write the report as JSON")?;
        text.push('\n');
        let dated = folder.join(format!("{}.json", self.date.replace(':', "")));
        for path in [&dated, &folder.join("latest.json")] {
            fs::write(path, &text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(dated)
    }
}
