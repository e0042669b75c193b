//! podwire-bench compares Podwire with simpler implementations, in one run on one host: podwire-cni, standalone and with the
//! agent, with the reference plugins; routes of many nodes with `ip route add`; block claims with a counter in etcd.
//!
//! ```text
//! options ─► site (nodes and pods, created beforehand) ─► cases ─► report (tables, JSON)
//!                                                       ├ starts       cost of starting a process
//!                                                       ├ sequence     one pod after the other, plugins alternate
//!                                                       ├ burst        parallel pods, plugins alternate by round
//!                                                       ├ address_use  few and many addresses in use
//!                                                       ├ split        breakdown of a call through the agent
//!                                                       └ footprint     an agent with running pods: memory, idle CPU, restart
//!         ─► firewall (nftables alone, without links and records)
//!         ─► recovery (recovery times after faults)
//!         ─► nodes (agents on an underlay, with etcd): routes, scale, joins, traffic
//!         ─► compare (with --baseline, instead of all of the above): the binaries of an older and of this build, alternately
//! ```
//!
//! The host may be shared and noisy, so single figures mean little. The contenders alternate, pod by pod or round by round, and
//! the ratio is evaluated. The program works only in its own namespaces and reports leftovers in them.

mod agents;
mod cases;
mod compare;
mod contender;
mod firewall;
mod floor;
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
    let plugins = contender::Plugins::find()?;
    let machine = machine::MachineInfo::read(&plugins)?;
    let parts = options.parts();
    let pods = parts.contains(&BenchPart::Pods).then(|| cases::run_all(&plugins, &scale)).transpose()?;
    let firewall = match parts.contains(&BenchPart::Firewall) {
        true => cases::with_progress("the firewall alone", || firewall::run(&scale))?,
        false => Vec::new(),
    };
    let recovery = parts.contains(&BenchPart::Recovery).then(|| recovery::run(&scale)).transpose()?;
    let nodes = nodes::run(&parts, &scale.nodes)?;
    let report = BenchReport::new(machine, scale, &Measurements { pods, firewall, recovery, nodes });
    println!("{report}");
    let written = report.write(&options.directory()?)?;
    println!("as JSON: {}", written.display());
    Ok(exit_code(report.meets_targets(), &options))
}

fn compare_builds(options: &BenchOptions, comparison: &compare::Comparison) -> Result<ExitCode> {
    let report = compare::run(comparison)?;
    println!("{report}");
    println!("as JSON: {}", report.write(&options.directory()?)?.display());
    Ok(exit_code(report.has_no_regression(), options))
}

fn exit_code(passed: bool, options: &BenchOptions) -> ExitCode {
    if passed || !options.strict { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
