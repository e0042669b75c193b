//! podwire-bench: podwire-cni, alone and with its agent, beside the reference plugins, and many nodes beside what `ip` and
//! a plain counter do, in one run on one machine.
//!
//! ```text
//! options ─► site (nodes and pods, made beforehand) ─► cases ─► report (tables, JSON)
//!                                                       ├ starts    what any process costs
//!                                                       ├ sequence  one pod after the other, plugins in turn
//!                                                       ├ burst     many pods at once, rounds in turn
//!                                                       ├ crowd     few addresses in use beside many
//!                                                       ├ split     where the time of a call through the agent goes
//!                                                       └ resident  an agent whose pods stay: size, idleness, restart
//!         ─► firewall (nftables alone, without links and records)
//!         ─► recovery (how soon all is well after a fault)
//!         ─► nodes (agents on an underlay, with etcd): routes, scale, joins, traffic
//!         ─► compare (with --baseline, instead of all of the above): the binaries of an older build and these, alternately
//! ```
//!
//! The machine may be shared and noisy: a figure alone says little. Whoever is compared takes turns with the other, pod by
//! pod or round by round, and what counts is the ratio. Works only in namespaces of its own, and says what is left in them.

mod agents;
mod cases;
mod compare;
mod firewall;
mod floor;
mod lane;
mod leftovers;
mod machine;
mod networks;
mod nodes;
mod options;
mod process;
mod recovery;
mod report;
mod runner;
mod site;
mod stats;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser as _;

use options::{BenchOptions, BenchPart};
use report::{BenchReport, Measurements};

fn main() -> Result<ExitCode> {
    let options = BenchOptions::parse();
    if let Some(comparison) = options.comparison()? {
        return compare_builds(&options, &comparison);
    }
    let scale = options.scale();
    let plugins = lane::Plugins::find()?;
    let machine = machine::MachineInfo::look(&plugins)?;
    let parts = options.parts();
    let pods = parts.contains(&BenchPart::Pods).then(|| cases::run_all(&plugins, &scale)).transpose()?;
    let firewall = match parts.contains(&BenchPart::Firewall) {
        true => cases::told("the firewall alone", || firewall::run(&scale))?,
        false => Vec::new(),
    };
    let recovery = parts.contains(&BenchPart::Recovery).then(|| recovery::run(&scale)).transpose()?;
    let nodes = nodes::run(&parts, &scale.nodes)?;
    let report = BenchReport::new(machine, scale, &Measurements { pods, firewall, recovery, nodes });
    println!("{report}");
    let written = report.write(&options.directory()?)?;
    println!("as JSON: {}", written.display());
    let fine = report.is_fine() || !options.strict;
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn compare_builds(options: &BenchOptions, comparison: &compare::Comparison) -> Result<ExitCode> {
    let report = compare::run(comparison)?;
    println!("{report}");
    println!("as JSON: {}", report.write(&options.directory()?)?.display());
    let fine = report.is_fine() || !options.strict;
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
