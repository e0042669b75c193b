//! `podwire doctor`: checks everything that pod networks need on this node. A problem has a message and a fix. Without `--repair`
//! nothing is changed: kernel features are probed in temporary network namespaces.

mod agent;
mod check;
mod firewall;
mod host;
mod kernel;
mod mtu;
mod node;
mod overlap;
mod paths;
mod peers;
mod ping;
mod runtimes;
mod size;

use anyhow::{Context, Result, bail};
use api::DoctorReport;

use crate::cli::{DoctorArgs, Output};
use crate::commands::lab::adapt_fixes;
use crate::exit::ExitStatus;
use crate::print;
use check::{Check, Verdict};
use node::{CheckedNode, NodeServer};
use types::Finding;

/// Spaces between columns.
const GAP: usize = 2;
/// Column of verdicts with its gap.
const VERDICT_WIDTH: usize = 9;

pub(crate) fn run(args: &DoctorArgs) -> Result<ExitStatus> {
    let node = CheckedNode::observe(args);
    if args.repair {
        repair(&node)?;
    }
    let mut checks = run_checks(&node);
    adapt_fixes(&mut checks);
    match args.output {
        Output::Json => {
            let ok = checks.iter().all(|check| check.verdict != Verdict::Problem);
            print::json(&DoctorReport { ok, checks: checks.iter().cloned().map(Into::into).collect() })?;
        }
        Output::Table | Output::Wide => print::line(page(&checks))?,
    }
    let mut problems = checks.iter().filter(|check| check.verdict == Verdict::Problem);
    Ok(match problems.next() {
        None => ExitStatus::Success,
        // The first check. Without privileges most checks are skipped.
        Some(first) if first.check == host::PRIVILEGES => ExitStatus::PermissionDenied,
        Some(_) => ExitStatus::ProblemFound,
    })
}

/// Refused on nodes with an agent, which repairs bridges and tables itself.
fn repair(node: &CheckedNode) -> Result<()> {
    match &node.server {
        NodeServer::Standalone | NodeServer::Missing(_) | NodeServer::NotInstalled => {}
        NodeServer::Agent(_) => {
            bail!(
                "an agent runs on this node and repairs bridges and tables itself; restart it with 'systemctl restart podwire'"
            )
        }
        NodeServer::Unclear(Finding { message: reason, .. }) | NodeServer::Denied(reason) => {
            bail!("an agent may run on this node and repair bridges and tables itself: {reason}")
        }
    }
    let run_dir = &node.directories.run_dir;
    let bridges =
        engine::reconcile::restore_bridges(run_dir, None).context("cannot repair the bridges of pods");
    engine::repair_firewall(run_dir, engine::Replacing::Allowed).context("cannot repair Podwire's tables")?;
    bridges
}

fn run_checks(node: &CheckedNode) -> Vec<Check> {
    let mut checks = host::privileges();
    // Without privileges these checks would only fail with the same error.
    let has_privileges = checks.iter().all(|check| check.verdict == Verdict::Ok);
    if has_privileges {
        checks.extend(kernel::features());
        checks.extend(host::forwarding(node));
        checks.extend(host::reverse_paths(node));
        checks.extend(host::bridge_netfilter(node));
        checks.extend(firewall::unmanaged_chains(node));
        checks.extend(firewall::podwire_tables(node));
        checks.extend(overlap::subnets(node));
    }
    checks.extend(agent::answers(node));
    checks.extend(runtimes::check_plugins(node));
    checks.extend(agent::installed(node, &checks));
    checks.extend(host::disks(node));
    checks.extend(mtu::check_mtu(node));
    checks.extend(peers::check_peers(node));
    // Last, because conditions that another check has reported are not repeated.
    checks.extend(agent::conditions(node, &checks));
    checks
}

fn page(checks: &[Check]) -> String {
    let left = checks.iter().map(|check| check.check.len()).max().unwrap_or(0) + GAP;
    let rows = checks.iter().map(|check| {
        let mut text =
            print::wrap(&print::short_ids(&check.sentence()), print::width() - left - VERDICT_WIDTH);
        // On its own line and not wrapped, because it is pasted.
        text.extend(check.fix.iter().map(|fix| format!("\n  {}", print::one_line(fix))));
        if let Some(advice) = check.advice().and_then(|advice| print::advice(advice, &check.message)) {
            text.push_str(&format!("\n{}", print::wrap(&advice, print::width() - left - VERDICT_WIDTH)));
        }
        vec![check.check.to_owned(), check::word(check.verdict), text]
    });
    // Only commands are longer than the width.
    let table = print::wide_table(&["CHECK", "", ""], rows.collect());
    format!("{table}\n\n{}", summary(checks))
}

/// Unknown checks are counted separately: they say nothing about the node.
fn summary(checks: &[Check]) -> String {
    let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count() as u64;
    let problems = match count(Verdict::Problem) {
        0 => print::good("no problems"),
        problems => print::bad(&print::count(problems, "problem")),
    };
    match count(Verdict::Unknown) {
        0 => problems,
        unknown => format!("{problems}; {} unknown", print::count(unknown, "check")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a5_unknown_checks_are_counted_separately() {
        let (ok, unknown) = (Check::ok("a", ""), Check::unknown("b", ""));
        assert_eq!(summary(std::slice::from_ref(&ok)), "no problems");
        assert_eq!(summary(&[ok, unknown.clone()]), "no problems; 1 check unknown");
        let missing = Check::problem("c", nft::Error::NftMissing.missing_program().unwrap());
        assert_eq!(summary(&[missing, unknown.clone(), unknown]), "1 problem; 2 checks unknown");
    }
}
