//! `podwire policy test -f FILE`.

use anyhow::Result;
use api::{FlowVerdict, FlowView, PolicyCaseResult, PolicyTestAnswer};

use super::cases::PolicyCase;
use super::explain::{is_accepted, wrapped};
use super::files::PolicyFiles;
use super::world::PolicyWorld;
use crate::cli::{Output, PolicyTestArgs};
use crate::exit::{ExitStatus, Usage};
use crate::print;

pub(crate) fn run(args: &PolicyTestArgs) -> Result<ExitStatus> {
    let files = PolicyFiles::read(&args.files)?;
    warn_ignored(&files);
    if files.cases.is_empty() {
        let message = "the files have no cases: add a document of kind PolicyTest; 'podwire policy test --help' has an example";
        return Err(Usage(message.to_owned()).into());
    }
    let world = PolicyWorld::new(&files)?;
    for problem in world.engine.problems() {
        print::warn(format_args!("podwire: {problem}"));
    }
    let results = files.cases.iter().map(|case| Ok((case, result(case, &world)?)));
    let results: Vec<(&PolicyCase, CaseResult)> = results.collect::<Result<_>>()?;
    let is_ok = results.iter().all(|(_, result)| result.difference.is_none());
    match args.output {
        Output::Json => print::json(&answer(&results))?,
        Output::Table | Output::Wide => print::line(page(&results))?,
    }
    Ok(ExitStatus::problem_unless(is_ok))
}

/// Documents that do not decide about flows are named, so that a missing policy is noticed.
pub(super) fn warn_ignored(files: &PolicyFiles) {
    let kinds: Vec<String> = files.ignored.iter().map(|(kind, number)| format!("{number} {kind}")).collect();
    if !kinds.is_empty() {
        print::warn(format_args!(
            "podwire: ignored documents that do not decide about flows: {}",
            kinds.join(", ")
        ));
    }
}

/// The verdict of a case. With several pods, all of them must have the expected one.
struct CaseResult {
    verdict: FlowVerdict,
    /// The first flow with an unexpected verdict.
    difference: Option<FlowView>,
}

fn result(case: &PolicyCase, world: &PolicyWorld) -> Result<CaseResult> {
    let flows = world.explain(&case.from, &case.to, case.traffic);
    let flows = flows.map_err(|error| error.context(case.origin.clone()))?.flows;
    let difference =
        flows.into_iter().find(|flow| is_accepted(flow) != (case.expected == FlowVerdict::Accept));
    let verdict = difference.as_ref().map_or(case.expected, |flow| flow.verdict);
    Ok(CaseResult { verdict, difference })
}

fn word(verdict: FlowVerdict) -> &'static str {
    match verdict {
        FlowVerdict::Accept => "allow",
        FlowVerdict::Drop => "deny",
    }
}

fn page(results: &[(&PolicyCase, CaseResult)]) -> String {
    let rows = results.iter().map(|(case, result)| {
        let state = match result.difference {
            None => print::good("ok"),
            Some(_) => print::bad(&format!("FAILED: {}", word(result.verdict))),
        };
        let texts = [case.from.clone(), case.to.clone(), case.traffic.to_string()];
        let mut row: Vec<String> = texts.iter().map(|text| print::one_line(text)).collect();
        row.extend([word(case.expected).to_owned(), state]);
        row
    });
    let mut parts = vec![print::table(&["FROM", "TO", "TRAFFIC", "EXPECTED", "RESULT"], rows.collect())];
    let mut failed = 0;
    for (case, result) in results {
        if let Some(explanation) = &result.difference {
            failed += 1;
            parts.push(format!("{}:\n{}", case.origin, wrapped(explanation)));
        }
    }
    let cases = print::count(results.len() as u64, "case");
    parts.push(match failed {
        0 => format!("{cases}: all verdicts are as expected"),
        failed => format!("{cases}: {failed} with another verdict"),
    });
    parts.join("\n\n")
}

fn answer(results: &[(&PolicyCase, CaseResult)]) -> PolicyTestAnswer {
    let cases = results.iter().map(|(case, result)| PolicyCaseResult {
        origin: case.origin.clone(),
        from: case.from.clone(),
        to: case.to.clone(),
        traffic: case.traffic.to_string(),
        expected: word(case.expected).to_owned(),
        verdict: word(result.verdict).to_owned(),
        explanation: result.difference.as_ref().map(ToString::to_string),
    });
    PolicyTestAnswer { cases: cases.collect() }
}
