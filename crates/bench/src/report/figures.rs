//! Figures of the agent without comparison: memory, start-up time, and the breakdown of a call.

use serde::Serialize;

use super::verdict::{RatioTarget, TargetVerdict};
use crate::cases::PodMeasurements;
use crate::cases::contest::Contest;
use crate::cases::split::Split;
use crate::options::Scale;
use crate::stats::median;

/// A figure with an absolute limit.
#[derive(Debug, Serialize)]
pub(super) struct Figure {
    pub(super) what: String,
    pub(super) value: Option<f64>,
    pub(super) unit: &'static str,
    pub(super) target: RatioTarget,
    pub(super) verdict: TargetVerdict,
}

/// The parts of a call's time, medians in milliseconds.
#[derive(Debug, Serialize)]
pub(super) struct CallBreakdown {
    pub(super) call: String,
    pub(super) all: Option<f64>,
    /// The plugin's VERSION, which only starts, reads, prints and exits.
    pub(super) process: Option<f64>,
    /// An empty request.
    pub(super) trip: Option<f64>,
    /// From request to response, according to the agent's log.
    pub(super) agent: Option<f64>,
    pub(super) rest: Option<f64>,
}

pub(super) fn footprint(measured: &PodMeasurements, scale: &Scale) -> Vec<Figure> {
    let footprint = &measured.footprint;
    let figure = |what: &str, value: Option<f64>, unit, target: RatioTarget| Figure {
        what: what.to_owned(),
        value,
        unit,
        target,
        verdict: target.judge(value),
    };
    let starts = scale.restarts;
    vec![
        figure("memory (VmRSS)", footprint.rss_mib, "MiB", RatioTarget::AtMost(15.0)),
        figure("CPU without requests, timer included", footprint.idle_percent, "%", RatioTarget::AtMost(1.0)),
        figure(
            &format!("start to ready after kill -9, median of {starts}"),
            footprint.ready.p50(),
            "ms",
            RatioTarget::AtMost(200.0),
        ),
        figure("the same by its own log", median(&footprint.logged), "ms", RatioTarget::None),
        figure("comparing records and kernel once", footprint.round_ms, "ms", RatioTarget::None),
    ]
}

pub(super) fn breakdowns(measured: &PodMeasurements) -> Vec<CallBreakdown> {
    let process = measured.starts.podwire.p50();
    let of = |stack: &str, contest: &Contest, split: &Split| {
        let agent = contest.other_times.as_ref().map(|other_times| &other_times.agent);
        [
            breakdown(format!("ADD, {stack}"), agent.and_then(|a| a.add.p50()), split.add),
            breakdown(format!("DEL, {stack}"), agent.and_then(|a| a.del.p50()), split.del),
        ]
        .map(|breakdown| CallBreakdown { process, trip: split.trip.p50(), ..breakdown }.with_rest())
    };
    let v4 = of("v4", &measured.v4, &measured.split_v4);
    v4.into_iter().chain(of("dual stack", &measured.dual, &measured.split_dual)).collect()
}

fn breakdown(call: String, all: Option<f64>, agent: Option<f64>) -> CallBreakdown {
    CallBreakdown { call, all, agent, process: None, trip: None, rest: None }
}

impl CallBreakdown {
    fn with_rest(self) -> Self {
        let parts = [self.process, self.trip, self.agent];
        let known = parts.into_iter().sum::<Option<f64>>();
        Self { rest: self.all.zip(known).map(|(all, known)| all - known), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remainder_is_the_unexplained_time() {
        let breakdown = CallBreakdown {
            process: Some(1.0),
            trip: Some(0.5),
            ..breakdown("ADD".to_owned(), Some(4.0), Some(2.0))
        };
        assert_eq!(breakdown.with_rest().rest, Some(0.5));
        let unknown = super::breakdown("ADD".to_owned(), Some(4.0), None);
        assert_eq!(unknown.with_rest().rest, None);
    }
}
