//! The binaries of an older build and those of this one, alternately in one run.
//!
//! ```text
//! Comparison ─► site by site: pods (nodes, agents, sandboxes), traffic (clusters of two nodes) ─► Series ─► report
//! ```
//!
//! Both builds get new nodes at every site, because of two identical networks one is faster as long as it exists.
//! A site gives one ratio new/old for each figure. The figure is judged by the median of these ratios; the spread is their
//! interquartile range, or that of two halves of the same build's measurements if it is larger.

mod pods;
mod report;
mod series;
mod traffic;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use testkit::{Plugin, agent_program};

use crate::cases::with_progress;
use crate::contender::install_into;
use crate::options::BenchPart;
use report::CompareReport;
use series::Series;

/// The programs of one build.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ComparedBuild {
    pub(crate) plugin: PathBuf,
    pub(crate) agent: PathBuf,
}

/// The two builds, and the parts and size of the measurement.
pub(crate) struct Comparison {
    old: ComparedBuild,
    new: ComparedBuild,
    parts: Vec<BenchPart>,
    scale: CompareScale,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct CompareScale {
    /// How often all nodes are created. At least three: fewer have no spread.
    pub(crate) sites: usize,
    /// Pods of each build, all attached at the same time.
    pub(crate) pods: usize,
    pub(crate) parallel: usize,
    /// Bursts of each build on a site.
    pub(crate) bursts: usize,
    pub(crate) traffic_rounds: usize,
    pub(crate) stream: Duration,
    pub(crate) trips: Duration,
}

/// All measurements and problems.
#[derive(Default)]
struct CompareResults {
    series: Vec<Series>,
    failures: Vec<String>,
    /// Objects that were not removed.
    left: Vec<String>,
}

impl ComparedBuild {
    fn of(plugin: &Path, agent: &Path) -> Result<Self> {
        for program in [plugin, agent] {
            ensure!(program.is_file(), "{} is not a file", program.display());
        }
        let absolute = |path: &Path| {
            std::path::absolute(path).with_context(|| format!("cannot resolve {}", path.display()))
        };
        Ok(Self { plugin: absolute(plugin)?, agent: absolute(agent)? })
    }

    /// The same build with a copy of the plugin, so that the plugin files of both builds were written sequentially.
    fn installed(&self, into: &Path) -> Result<Self> {
        Ok(Self { plugin: install_into(&self.plugin, into)?, agent: self.agent.clone() })
    }
}

impl Comparison {
    pub(crate) fn new(baseline: &Path, parts: Vec<BenchPart>, scale: CompareScale) -> Result<Self> {
        let old = ComparedBuild::of(&baseline.join("podwire-cni"), &baseline.join("podwire"))
            .context("a baseline is a directory with podwire-cni and podwire")?;
        let new = ComparedBuild::of(&Plugin::podwire()?.path, &agent_program()?)?;
        Ok(Self { old, new, parts, scale })
    }
}

pub(crate) fn run(comparison: &Comparison) -> Result<CompareReport> {
    let copies = copies_dir()?;
    let builds =
        [comparison.old.installed(&copies.join("old"))?, comparison.new.installed(&copies.join("new"))?];
    let mut results = CompareResults::default();
    let sites = comparison.scale.sites;
    // The sites of both parts alternate, so that a change of the host's speed affects both.
    for site in 1..=sites {
        for part in &comparison.parts {
            match part {
                BenchPart::Pods => with_progress(&format!("pods, site {site} of {sites}"), || {
                    pods::measure(&builds, &comparison.scale, &mut results)
                })?,
                BenchPart::Traffic => with_progress(&format!("traffic, site {site} of {sites}"), || {
                    traffic::measure(&builds, &comparison.scale, &mut results)
                })?,
                BenchPart::Firewall
                | BenchPart::Recovery
                | BenchPart::Routes
                | BenchPart::Scale
                | BenchPart::Joins
                | BenchPart::Policies => {}
            }
        }
    }
    Ok(CompareReport::new([&comparison.old, &comparison.new], comparison.scale, results))
}

/// A fixed directory next to this program, so that copies do not accumulate.
fn copies_dir() -> Result<PathBuf> {
    let exe = std::env::current_exe().context("cannot find the path of this program")?;
    Ok(exe.parent().context("the path of this program has no directory")?.join("bench"))
}

impl CompareResults {
    /// The series of a case, created at its first site.
    fn series(&mut self, like: Series) -> &mut Series {
        let at = self.series.iter().position(|one| one.case == like.case).unwrap_or_else(|| {
            self.series.push(like);
            self.series.len() - 1
        });
        &mut self.series[at]
    }
}
