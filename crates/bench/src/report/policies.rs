//! Report lines of policies.

use super::line::FigureLine;
use super::verdict::RatioTarget;
use crate::policies::{AddTimes, Compilation, FlowFigures, PolicyFigures, PolicyTraffic};
use crate::stats::{Better, median};

pub(super) fn lines(measured: &PolicyFigures) -> Vec<FigureLine> {
    let mut lines = compilation_lines(&measured.compilation);
    lines.extend(traffic_lines(&measured.traffic));
    lines.extend(flow_lines(&measured.flows));
    lines.extend(add_lines(&measured.adds));
    lines
}

fn compilation_lines(of: &Compilation) -> Vec<FigureLine> {
    let seconds = of.full.p50().map(|ms| ms / 1000.0);
    let mut lines = vec![FigureLine::alone(
        "compile and load all policies, median",
        (seconds, "s"),
        RatioTarget::AtMost(2.0),
    )];
    for change in &of.changes {
        for (what, times) in [("agent's CPU time", &change.agent), ("back", &change.reversal)] {
            let case = format!("{}, {what}, median", change.what);
            lines.push(FigureLine::alone(case, (times.p50(), "ms"), RatioTarget::AtMost(change.limit_ms)));
        }
    }
    let elements = of.elements as f64;
    let bytes = of.kernel_mib.map(|mib| mib * 1_048_576.0 / elements);
    for (case, figure, unit) in [
        ("elements in the kernel", Some(elements), ""),
        ("memory of the kernel", of.kernel_mib, "MiB"),
        ("memory of the kernel per element", bytes, "bytes"),
        ("memory of world and engine", Some(of.engine_mib), "MiB"),
    ] {
        lines.push(FigureLine::alone(case, (figure, unit), RatioTarget::None));
    }
    lines
}

fn traffic_lines(of: &PolicyTraffic) -> Vec<FigureLine> {
    let trips = |rounds: &[f64]| median(rounds);
    vec![
        FigureLine::alone(
            "round trip with policies, one core, median",
            (trips(&of.policies.trip_us), "µs"),
            RatioTarget::None,
        )
        .beside(("without", trips(&of.none.trip_us)), Better::Less, RatioTarget::AtLeast(0.97)),
        FigureLine::alone(
            "new TCP connections with policies, one core, median",
            (median(&of.policies.connections_per_s), "1/s"),
            RatioTarget::None,
        )
        .beside(
            ("without", median(&of.none.connections_per_s)),
            Better::More,
            RatioTarget::AtLeast(0.95),
        ),
    ]
}

fn flow_lines(of: &FlowFigures) -> Vec<FigureLine> {
    let flows = of.flows;
    vec![
        FigureLine::alone(
            format!("a forbidden connection stops, {flows} flows, median"),
            (of.stopped.p50(), "ms"),
            RatioTarget::AtMost(1000.0),
        ),
        FigureLine::alone(
            format!("scans of {flows} flows during changes, of a core"),
            (of.scan_percent, "%"),
            RatioTarget::AtMost(10.0),
        ),
        FigureLine::alone(
            "flush to whole table of policies, median",
            (of.flushed.p50(), "ms"),
            RatioTarget::None,
        ),
    ]
}

fn add_lines(of: &AddTimes) -> Vec<FigureLine> {
    let line = |case: &str| FigureLine::alone(case, (of.policy.p50(), "ms"), RatioTarget::None);
    let mut lines = vec![line("ADD with host port and policy, median").beside(
        ("without policy", of.none.p50()),
        Better::Less,
        RatioTarget::AtLeast(0.95),
    )];
    lines.push(line("the same").beside(
        ("bridge, portmap and firewall", of.chain.p50()),
        Better::Less,
        RatioTarget::AtLeast(10.0),
    ));
    lines
}
