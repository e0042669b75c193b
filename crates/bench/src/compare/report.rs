//! The comparison as a table and as JSON.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::series::{Judged, SeriesVerdict};
use super::{CompareResults, CompareScale, ComparedBuild};
use crate::machine;
use crate::report::date;
use crate::report::print::{align, plain_table};
use crate::stats::Better;

/// Number of printed failures. The JSON has all of them.
const SHOWN: usize = 5;

#[derive(Debug, Serialize)]
pub(crate) struct CompareReport {
    date: String,
    machine: String,
    scale: CompareScale,
    old: ComparedBuild,
    new: ComparedBuild,
    lines: Vec<ComparedLine>,
    failures: Vec<String>,
    left: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ComparedLine {
    case: String,
    unit: &'static str,
    better: Better,
    #[serde(flatten)]
    judged: Judged,
}

impl CompareReport {
    pub(super) fn new([old, new]: [&ComparedBuild; 2], scale: CompareScale, results: CompareResults) -> Self {
        let CompareResults { series, failures, left } = results;
        let lines = series.into_iter().map(|series| {
            let judged = series.judge();
            ComparedLine { case: series.case, unit: series.unit, better: series.better, judged }
        });
        Self {
            date: date::now(),
            machine: machine::summary(),
            scale,
            old: old.clone(),
            new: new.clone(),
            lines: lines.collect(),
            failures,
            left,
        }
    }

    /// True if no figure is worse, no call failed and no object remains.
    pub(crate) fn has_no_regression(&self) -> bool {
        let good = self.lines.iter().all(|line| line.judged.verdict == SeriesVerdict::Ok);
        good && !self.lines.is_empty() && self.failures.is_empty() && self.left.is_empty()
    }

    /// Writes the JSON as `compare-DATE.json` and `compare-latest.json`.
    pub(crate) fn write(&self, dir: &Path) -> Result<PathBuf> {
        fs::create_dir_all(dir).with_context(|| format!("cannot create directory {}", dir.display()))?;
        let mut text = serde_json::to_string_pretty(self).context("cannot write the report as JSON")?;
        text.push('\n');
        let dated = dir.join(format!("compare-{}.json", self.date.replace(':', "")));
        for path in [&dated, &dir.join("compare-latest.json")] {
            fs::write(path, &text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(dated)
    }
}

impl fmt::Display for CompareReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} on {}", self.date, self.machine)?;
        for (build_name, build) in [("old", &self.old), ("new", &self.new)] {
            writeln!(f, "{build_name}: {} and {}", build.plugin.display(), build.agent.display())?;
        }
        let CompareScale { sites, pods, .. } = self.scale;
        writeln!(f, "\nOld and new alternate; medians of {sites} sites, {pods} pods each")?;
        let mut table = plain_table(&["case", "old", "new", "new/old", "spread", "verdict"]);
        for line in &self.lines {
            let Judged { old, new, ratio, spread, verdict } = line.judged;
            let figure = |value: Option<f64>| text(value, |value| format!("{value:.2} {}", line.unit));
            table.add_row([
                line.case.clone(),
                figure(old),
                figure(new),
                text(ratio, |ratio| format!("{ratio:.3}")),
                text(spread, |spread| format!("±{:.1} %", spread * 100.0)),
                verdict.to_string(),
            ]);
        }
        writeln!(f, "{}", align(table))?;
        for (what, all) in [("failed calls", &self.failures), ("not removed", &self.left)] {
            writeln!(f, "{what}: {}", all.len())?;
            all.iter().take(SHOWN).try_for_each(|one| writeln!(f, "  {one}"))?;
        }
        let bad = self.lines.iter().filter(|line| line.judged.verdict != SeriesVerdict::Ok);
        let bad: Vec<&str> = bad.map(|line| line.case.as_str()).collect();
        match bad.as_slice() {
            [] => write!(f, "no figure is worse than the spread of this run"),
            some => write!(f, "WORSE THAN THE SPREAD: {}", some.join("; ")),
        }
    }
}

impl fmt::Display for SeriesVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::Worse => "WORSE",
            Self::Unknown => "NO FIGURE",
        })
    }
}

fn text(value: Option<f64>, write: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), write)
}
