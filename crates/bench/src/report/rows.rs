//! Report rows: the compared figures and their targets.

use serde::Serialize;

use super::verdict::{RatioTarget, TargetVerdict};
use super::{LatencyRow, RateSeries};
use crate::cases::burst::Bursts;
use crate::cases::contest::Contest;
use crate::cases::{self, PodMeasurements};
use crate::options::Scale;
use crate::stats::{Sample, median};

const ADD: RatioTarget = RatioTarget::AtMostAiming { limit: 0.25, aim: 1.0 / 6.0 };
const AGENT_ADD: RatioTarget = RatioTarget::AtMostAiming { limit: 0.2, aim: 1.0 / 7.0 };
const AGENT_DEL: RatioTarget = RatioTarget::AtMost(0.2);

/// A figure of Podwire compared with another.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) case: String,
    pub(super) unit: Unit,
    pub(super) podwire: Option<f64>,
    #[serde(rename = "beside")]
    pub(super) compared_with: ReferenceKind,
    pub(super) other: Option<f64>,
    pub(super) ratio: Option<f64>,
    pub(super) target: RatioTarget,
    pub(super) verdict: TargetVerdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Unit {
    #[serde(rename = "ms")]
    Milliseconds,
    #[serde(rename = "1/s")]
    PerSecond,
}

/// The kind of the compared figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ReferenceKind {
    Reference,
    Floor,
    SpawnedFloor,
    Standalone,
    FewAddresses,
    AnyProcess,
}

struct Versus {
    compared_with: ReferenceKind,
    unit: Unit,
    podwire: Option<f64>,
    other: Option<f64>,
}

impl Versus {
    fn reference(podwire: &Sample, reference: &Sample) -> Self {
        Self::times(ReferenceKind::Reference, podwire, reference)
    }

    fn times(compared_with: ReferenceKind, podwire: &Sample, other: &Sample) -> Self {
        Self { compared_with, unit: Unit::Milliseconds, podwire: podwire.p50(), other: other.p50() }
    }

    fn rates(compared_with: ReferenceKind, podwire: &[f64], other: &[f64]) -> Self {
        let (podwire, other) = (median(podwire), median(other));
        Self { compared_with, unit: Unit::PerSecond, podwire, other }
    }

    fn row(self, case: impl Into<String>, target: RatioTarget) -> Row {
        let Self { compared_with, unit, podwire, other } = self;
        let ratio =
            podwire.zip(other).map(|(podwire, other)| podwire / other).filter(|ratio| ratio.is_finite());
        Row {
            case: case.into(),
            unit,
            podwire,
            compared_with,
            other,
            ratio,
            target,
            verdict: target.judge(ratio),
        }
    }
}

pub(super) fn all(measured: &PodMeasurements, scale: &Scale) -> Vec<Row> {
    let (v4, dual, address_use, starts) =
        (&measured.v4, &measured.dual, &measured.address_use, &measured.starts);
    let mut rows = vec![
        Versus::reference(&v4.podwire.add, &v4.reference.add).row("ADD, v4", ADD),
        Versus::reference(&dual.podwire.add, &dual.reference.add).row("ADD, dual stack", ADD),
        Versus::reference(&v4.podwire.del, &v4.reference.del).row("DEL, v4", RatioTarget::AtMost(1.1)),
        Versus::reference(&dual.podwire.del, &dual.reference.del)
            .row("DEL, dual stack", RatioTarget::AtMost(0.6)),
    ];
    rows.extend(burst_rows("v4", &measured.bursts_v4, scale));
    rows.extend(burst_rows("dual stack", &measured.bursts_dual, scale));
    rows.extend(agent_rows("v4", v4, &measured.bursts_v4));
    rows.extend(agent_rows("dual stack", dual, &measured.bursts_dual));
    rows.extend(routed_rows("v4", v4));
    rows.extend(routed_rows("dual stack", dual));
    if let Some(Contest { podwire, reference, .. }) = &measured.masquerade {
        rows.push(
            Versus::reference(&podwire.add, &reference.add).row("ADD, ipMasq, dual stack", RatioTarget::None),
        );
        rows.push(
            Versus::reference(&podwire.del, &reference.del).row("DEL, ipMasq, dual stack", RatioTarget::None),
        );
    }
    rows.push(Versus::reference(&starts.podwire, &starts.reference).row("VERSION", RatioTarget::None));
    rows.push(
        Versus::times(ReferenceKind::AnyProcess, &starts.podwire, &starts.nothing)
            .row("VERSION", RatioTarget::None),
    );
    let case = format!("ADD, {} addresses in use", scale.many);
    rows.push(
        Versus::times(ReferenceKind::FewAddresses, &address_use.many.add, &address_use.few.add)
            .row(case, RatioTarget::AtMost(1.2)),
    );
    rows.extend(floor_rows("v4", v4));
    rows.extend(floor_rows("dual stack", dual));
    rows.extend(agent_floor_rows("v4", v4, &measured.bursts_v4));
    rows.extend(agent_floor_rows("dual stack", dual, &measured.bursts_dual));
    rows
}

fn burst_rows(stack: &str, bursts: &Bursts, scale: &Scale) -> [Row; 2] {
    let case =
        |verb: &str| format!("{verb}/s, {} pods at {} in parallel, {stack}", scale.pods, scale.parallel);
    let (podwire, reference) = (&bursts.podwire, &bursts.reference);
    [
        Versus::rates(ReferenceKind::Reference, &podwire.add, &reference.add)
            .row(case("ADD"), RatioTarget::AtLeast(4.0)),
        Versus::rates(ReferenceKind::Reference, &podwire.del, &reference.del)
            .row(case("DEL"), RatioTarget::AtLeast(1.0)),
    ]
}

/// Calls through the agent, sequential and in parallel, in the default mode and, for information, in the other mode.
fn agent_rows(stack: &str, contest: &Contest, bursts: &Bursts) -> Vec<Row> {
    let Some(other_times) = &contest.other_times else { return vec![] };
    let times = |agent: &Sample, reference: &Sample, case: &str, target| {
        Versus::reference(agent, reference).row(format!("{case}, {stack}"), target)
    };
    let rates = |agent: &[f64], reference: &[f64], case: &str, target| {
        Versus::rates(ReferenceKind::Reference, agent, reference)
            .row(format!("{case}, in parallel, {stack}"), target)
    };
    let (one, all) = (&contest.reference, &bursts.reference);
    vec![
        times(&other_times.agent.add, &one.add, "ADD, agent", AGENT_ADD),
        times(&other_times.agent.del, &one.del, "DEL, agent", AGENT_DEL),
        rates(&bursts.agent.add, &all.add, "ADD/s, agent", RatioTarget::AtLeast(4.0)),
        rates(&bursts.agent.del, &all.del, "DEL/s, agent", RatioTarget::AtLeast(5.0)),
        times(&other_times.agent_bridge.add, &one.add, "ADD, agent, mode bridge", RatioTarget::None),
        times(&other_times.agent_bridge.del, &one.del, "DEL, agent, mode bridge", RatioTarget::None),
        rates(&bursts.agent_bridge.add, &all.add, "ADD/s, agent, mode bridge", RatioTarget::None),
        rates(&bursts.agent_bridge.del, &all.del, "DEL/s, agent, mode bridge", RatioTarget::None),
    ]
}

/// The kernel's part of a DEL through the agent ends when the link is removed; no caller waits for later work.
fn agent_floor_rows(stack: &str, contest: &Contest, bursts: &Bursts) -> Vec<Row> {
    let Some(other_times) = &contest.other_times else { return vec![] };
    let times = |agent: &Sample, floor: &Sample, case: &str| {
        Versus::times(ReferenceKind::Floor, agent, floor).row(format!("{case}, {stack}"), RatioTarget::None)
    };
    let rates = |agent: &[f64], floor: &[f64], case: &str| {
        Versus::rates(ReferenceKind::Floor, agent, floor)
            .row(format!("{case}, in parallel, {stack}"), RatioTarget::None)
    };
    vec![
        times(&other_times.agent.add, &other_times.floor.add, "ADD, agent"),
        Versus::times(ReferenceKind::SpawnedFloor, &other_times.agent.add, &other_times.spawned_floor.add)
            .row(format!("ADD, agent, {stack}"), RatioTarget::Aim(1.6)),
        Versus::times(
            ReferenceKind::SpawnedFloor,
            &other_times.agent_bridge.add,
            &other_times.spawned_floor.add,
        )
        .row(format!("ADD, agent, mode bridge, {stack}"), RatioTarget::Aim(1.6)),
        Versus::rates(ReferenceKind::Standalone, &bursts.agent_bridge.add, &bursts.podwire.add)
            .row(format!("ADD/s, agent, mode bridge, in parallel, {stack}"), RatioTarget::AimAtLeast(1.1)),
        times(&other_times.agent.del, &other_times.floor.gone, "DEL until the link is gone, agent"),
        rates(&bursts.agent.add, &bursts.floor.add, "ADD/s, agent"),
        rates(&bursts.agent.del, &bursts.floor.del, "DEL/s, agent"),
    ]
}

fn routed_rows(stack: &str, contest: &Contest) -> Vec<Row> {
    let Some(other_times) = &contest.other_times else { return vec![] };
    vec![
        Versus::reference(&other_times.routed.add, &contest.reference.add)
            .row(format!("ADD, mode routed, {stack}"), RatioTarget::None),
        Versus::reference(&other_times.routed.del, &contest.reference.del)
            .row(format!("DEL, mode routed, {stack}"), RatioTarget::None),
    ]
}

fn floor_rows(stack: &str, contest: &Contest) -> Vec<Row> {
    let Some(other_times) = &contest.other_times else { return vec![] };
    vec![
        Versus::times(ReferenceKind::Floor, &contest.podwire.add, &other_times.floor.add)
            .row(format!("ADD, {stack}"), RatioTarget::Aim(2.5)),
        Versus::times(ReferenceKind::Floor, &contest.podwire.del, &other_times.floor.del)
            .row(format!("DEL, {stack}"), RatioTarget::None),
    ]
}

/// All samples with their names.
fn samples<'a>(measured: &'a PodMeasurements, scale: &Scale) -> Vec<(String, &'a Sample)> {
    let starts = &measured.starts;
    let mut named = vec![
        ("VERSION, podwire".to_owned(), &starts.podwire),
        ("VERSION, reference".to_owned(), &starts.reference),
        ("/bin/true".to_owned(), &starts.nothing),
    ];
    named.push(("GET /v1/health, agent".to_owned(), &measured.split_dual.trip));
    named.push((format!("start to ready, {} pods, agent", scale.running_pods), &measured.footprint.ready));
    let mut put = |case: &str, who: &str, times: &'a cases::Times| {
        named.push((format!("ADD, {case}, {who}"), &times.add));
        named.push((format!("DEL, {case}, {who}"), &times.del));
        // Empty if it is not measured.
        named.push((format!("link gone, {case}, {who}"), &times.gone));
    };
    let contests = [("v4", Some(&measured.v4)), ("dual stack", Some(&measured.dual))];
    for (case, contest) in contests.into_iter().chain([("ipMasq, dual stack", measured.masquerade.as_ref())])
    {
        let Some(contest) = contest else { continue };
        put(case, "podwire", &contest.podwire);
        put(case, "reference", &contest.reference);
        if let Some(other_times) = &contest.other_times {
            put(case, "podwire routed", &other_times.routed);
            put(case, "agent", &other_times.agent);
            put(case, "agent bridge", &other_times.agent_bridge);
            put(case, "raw netlink", &other_times.floor);
            put(case, "raw netlink, spawned", &other_times.spawned_floor);
        }
    }
    put(&format!("{} in use", scale.few), "podwire", &measured.address_use.few);
    put(&format!("{} in use", scale.many), "podwire", &measured.address_use.many);
    named
}

pub(super) fn times(measured: &PodMeasurements, scale: &Scale) -> Vec<LatencyRow> {
    let all = samples(measured, scale).into_iter();
    all.filter_map(|(case, sample)| Some(LatencyRow { case, percentiles: sample.percentiles()? })).collect()
}

pub(super) fn rates(measured: &PodMeasurements) -> Vec<RateSeries> {
    let mut rates = Vec::new();
    for (stack, bursts) in [("v4", &measured.bursts_v4), ("dual stack", &measured.bursts_dual)] {
        for (who, of) in bursts.named() {
            rates.push(RateSeries { case: format!("ADD/s, {stack}, {who}"), rounds: of.add.clone() });
            rates.push(RateSeries { case: format!("DEL/s, {stack}, {who}"), rounds: of.del.clone() });
        }
    }
    rates
}

/// All failed calls with their cases.
pub(super) fn failures(measured: &PodMeasurements, scale: &Scale) -> Vec<String> {
    let mut all = Vec::new();
    for (case, sample) in samples(measured, scale) {
        all.extend(sample.failures.iter().map(|failure| format!("{case}: {failure}")));
    }
    for (stack, bursts) in [("v4", &measured.bursts_v4), ("dual stack", &measured.bursts_dual)] {
        for (who, rates) in bursts.named() {
            all.extend(
                rates.failures.iter().map(|failure| format!("in parallel, {stack}, {who}: {failure}")),
            );
        }
    }
    all.extend(measured.footprint.failures.iter().map(|failure| format!("running pods: {failure}")));
    all
}
