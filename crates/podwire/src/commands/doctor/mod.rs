//! `podwire doctor`: looks at everything that pods' networks need on this node, and says for each whether it is right, or
//! what is wrong and which command helps. Without `--repair` it changes nothing; what has to be tried is tried in a network
//! namespace of its own that is gone at once.

mod agent;
mod finding;
mod firewall;
mod kernel;
mod machine;
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

use crate::cli::{Doctor, Output};
use crate::commands::lab::adapt_fixes;
use crate::exit::ExitStatus;
use crate::print;
use finding::{Check, Verdict};
use node::{CheckedNode, NodeServer};
use types::Finding;

/// What to do is written below what is wrong, as far in as the text.
const COMMAND: usize = 2;

pub(crate) fn run(args: &Doctor) -> Result<ExitStatus> {
    let node = CheckedNode::look(args);
    if args.repair {
        repair(&node)?;
    }
    let mut findings = look(&node);
    adapt_fixes(findings.iter_mut().map(|finding| &mut finding.fix));
    match args.output {
        Output::Json => {
            let ok = findings.iter().all(|finding| finding.verdict != Verdict::Problem);
            print::say_json(&DoctorReport {
                ok,
                checks: findings.iter().cloned().map(Into::into).collect(),
            })?;
        }
        Output::Table | Output::Wide => print::say(page(&findings))?,
    }
    let mut wrong = findings.iter().filter(|finding| finding.verdict == Verdict::Problem);
    Ok(match wrong.next() {
        None => ExitStatus::Success,
        // The first check. Without privileges most others were not done.
        Some(finding) if finding.check == machine::PRIVILEGES => ExitStatus::PermissionDenied,
        Some(_) => ExitStatus::ProblemFound,
    })
}

/// The agent knows its network also without pods, and repairs its bridge and tables in every round.
fn repair(node: &CheckedNode) -> Result<()> {
    match &node.reconciler {
        NodeServer::Standalone | NodeServer::Missing(_) => {}
        NodeServer::Agent(_) => {
            bail!(
                "an agent works on this node and repairs bridges and tables itself: systemctl restart podwire"
            )
        }
        NodeServer::Unclear(Finding { message: why, .. }) | NodeServer::Denied(why) => {
            bail!("an agent may work on this node and repair bridges and tables itself: {why}")
        }
    }
    let run_dir = &node.directories.run_dir;
    let bridges =
        engine::reconcile::restore_bridges(run_dir, None).context("cannot repair the bridges of pods");
    engine::repair_firewall(run_dir, engine::Replacing::Allowed).context("cannot repair Podwire's tables")?;
    bridges
}

fn look(node: &CheckedNode) -> Vec<Check> {
    let mut findings = machine::privileges();
    // Without them every other answer would only say so again.
    let may_look = findings.iter().all(|finding| finding.verdict == Verdict::Ok);
    if may_look {
        findings.extend(kernel::features());
        findings.extend(machine::forwarding(node));
        findings.extend(machine::reverse_paths(node));
        findings.extend(machine::bridge_netfilter(node));
        findings.extend(firewall::others(node));
        findings.extend(firewall::ours(node));
        findings.extend(overlap::subnets(node));
    }
    findings.extend(agent::answers(node));
    findings.extend(runtimes::find_plugins(node));
    findings.extend(agent::installed(node, &findings));
    findings.extend(machine::disks(node));
    findings.extend(mtu::fits(node));
    findings.extend(peers::reached(node));
    // Last: those that a check has found are not repeated.
    findings.extend(agent::conditions(node, &findings));
    findings
}

fn page(findings: &[Check]) -> String {
    let left = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0) + COMMAND;
    let rows = findings.iter().map(|finding| {
        let mut text = print::wrap(&print::short_ids(&finding.sentence()), print::width() - left - 9);
        // A line of its own, and never broken: it is to be pasted.
        text.extend(finding.fix.iter().map(|fix| format!("\n  {}", print::value(fix))));
        if let Some(advice) = finding.advice().and_then(|advice| print::advice(advice, &finding.message)) {
            text.push_str(&format!("\n{}", print::wrap(&advice, print::width() - left - 9)));
        }
        vec![finding.check.to_owned(), finding::word(finding.verdict), text]
    });
    // Only commands are longer than a line.
    let table = print::unlimited(&["CHECK", "", ""], rows.collect());
    format!("{table}\n\n{}", summary(findings))
}

/// A check that could not be done says nothing about the node.
fn summary(findings: &[Check]) -> String {
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count() as u64;
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
    fn a5_unknown_checks_are_counted_and_are_not_well() {
        let (ok, unknown) = (Check::ok("a", ""), Check::unknown("b", ""));
        assert_eq!(summary(std::slice::from_ref(&ok)), "no problems");
        assert_eq!(summary(&[ok, unknown.clone()]), "no problems; 1 check unknown");
        let missing = Check::problem("c", nft::Error::NftMissing.missing_program().unwrap());
        assert_eq!(summary(&[missing, unknown.clone(), unknown]), "1 problem; 2 checks unknown");
    }
}
