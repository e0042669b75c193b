//! `podwire explain FROM TO`, on files or by the agent.

use anyhow::Result;
use api::{ExplainAnswer, ExplainRequest, FlowVerdict, FlowView};
use policy::FlowTraffic;

use super::files::PolicyFiles;
use super::test::warn_ignored;
use super::world::PolicyWorld;
use crate::cli::{ExplainArgs, Output};
use crate::commands::nodes::AgentClient;
use crate::exit::{self, ExitStatus, Usage};
use crate::print;

pub(crate) fn run(args: &ExplainArgs) -> Result<ExitStatus> {
    let traffic = FlowTraffic::parse(&args.proto, args.port).map_err(|error| Usage(error.to_string()))?;
    let answer = if args.files.is_empty() {
        exit::ensure_root()?;
        ask(args)?
    } else {
        let files = PolicyFiles::read(&args.files)?;
        warn_ignored(&files);
        PolicyWorld::new(&files)?.explain(&args.from, &args.to, traffic)?
    };
    match args.output {
        Output::Json => print::json(&answer)?,
        Output::Table | Output::Wide => print::line(page(&answer))?,
    }
    Ok(ExitStatus::problem_unless(answer.flows.iter().all(is_accepted)))
}

fn ask(args: &ExplainArgs) -> Result<ExplainAnswer> {
    let request = ExplainRequest {
        from: args.from.clone(),
        to: args.to.clone(),
        protocol: args.proto.clone(),
        port: args.port,
    };
    AgentClient::find(&args.agent).post(api::EXPLAIN, &request)
}

fn page(answer: &ExplainAnswer) -> String {
    let ExplainAnswer { not_enforced, flows, omitted } = answer;
    let reason = not_enforced.as_ref().map(|reason| {
        let text = print::one_line(&format!("policies are not enforced on this node: {reason}"));
        print::wrap(&text, print::width())
    });
    let omitted = (*omitted > 0).then(|| {
        let text = format!("{} of ends not shown: name single pods", print::count(*omitted, "more pair"));
        print::wrap(&text, print::width())
    });
    let parts: Vec<String> = reason.into_iter().chain(flows.iter().map(wrapped)).chain(omitted).collect();
    parts.join("\n\n")
}

/// The explanation in lines that fit.
pub(super) fn wrapped(flow: &FlowView) -> String {
    flow.to_string().lines().map(wrapped_line).collect::<Vec<_>>().join("\n")
}

/// A line that fits keeps its spaces. Continuation lines are indented more than the first line.
fn wrapped_line(line: &str) -> String {
    const INDENT: usize = 4;
    let line = print::one_line(line);
    if line.chars().count() <= print::width() {
        return line;
    }
    let indent = line.len() - line.trim_start().len();
    let text = print::wrap(line.trim_start(), print::width() - indent - INDENT);
    format!("{}{}", " ".repeat(indent), print::hanging(&text, indent + INDENT))
}

pub(super) fn is_accepted(flow: &FlowView) -> bool {
    flow.verdict == FlowVerdict::Accept
}
