//! `podwire explain FROM TO -f FILE`.

use anyhow::{Context as _, Result};
use policy::{Explanation, PolicyFlow, PolicyVerdict};

use super::cases::FlowTraffic;
use super::ends::{self, EndSet};
use super::files::PolicyFiles;
use super::test::warn_ignored;
use super::world::PolicyWorld;
use crate::cli::ExplainArgs;
use crate::exit::{ExitStatus, Usage};
use crate::print;

/// ICMPv6. The user writes `icmp` for both families.
const ICMP_V6: u8 = 58;

pub(crate) fn run(args: &ExplainArgs) -> Result<ExitStatus> {
    let traffic = FlowTraffic::parse(&args.proto, args.port).map_err(|error| Usage(format!("{error:#}")))?;
    let files = PolicyFiles::read(&args.files)?;
    warn_ignored(&files);
    let world = PolicyWorld::new(&files)?;
    let explanations = explain(&args.from, &args.to, traffic, &world)?;
    let texts: Vec<String> = explanations.iter().map(wrapped).collect();
    print::text(&format!("{}\n", texts.join("\n\n")))?;
    Ok(ExitStatus::problem_unless(explanations.iter().all(is_accepted)))
}

/// The explanation in lines that fit.
pub(super) fn wrapped(explanation: &Explanation) -> String {
    explanation.to_string().lines().map(wrapped_line).collect::<Vec<_>>().join("\n")
}

/// A line that fits keeps its spaces. Continuation lines are indented more than the first line.
fn wrapped_line(line: &str) -> String {
    const INDENT: usize = 4;
    if line.chars().count() <= print::width() {
        return line.to_owned();
    }
    let indent = line.len() - line.trim_start().len();
    let text = print::wrap(line, print::width() - indent - INDENT);
    format!("{}{}", " ".repeat(indent), print::hanging(&text, indent + INDENT))
}

pub(super) fn is_accepted(explanation: &Explanation) -> bool {
    explanation.verdict == PolicyVerdict::Accept
}

/// One explanation for each pair of ends.
pub(super) fn explain(
    from: &str,
    to: &str,
    traffic: FlowTraffic,
    world: &PolicyWorld,
) -> Result<Vec<Explanation>> {
    let from_set = EndSet::parse(from, world).with_context(|| format!("from {from}"))?;
    let to_set = EndSet::parse(to, world).with_context(|| format!("to {to}"))?;
    let pairs = ends::pairs(&from_set, &to_set, world).with_context(|| format!("from {from} to {to}"))?;
    let flows = pairs.into_iter().map(|(from, to)| {
        let port = traffic.port.unwrap_or_default();
        let flow = PolicyFlow { from, to, protocol: traffic.protocol, port };
        let explanation = world.engine.explain(&flow);
        if traffic.is_icmp() && explanation.is_ipv6() {
            return world.engine.explain(&PolicyFlow { protocol: ICMP_V6, ..flow });
        }
        explanation
    });
    Ok(flows.collect())
}
