//! Report lines for many nodes: the figure, the compared figure and the target.

use super::LatencyRow;
use super::line::{FigureLine, digits};
use super::verdict::RatioTarget;
use crate::nodes::Nodes;
use crate::nodes::joins::Joins;
use crate::nodes::routes::RouteTimes;
use crate::nodes::scale::ScaleResult;
use crate::nodes::traffic::Traffic;
use crate::options::NodesScale;
use crate::stats::{Better, Sample, median};

pub(super) fn lines(nodes: &Nodes, scale: &NodesScale) -> Vec<FigureLine> {
    let mut lines = Vec::new();
    lines.extend(nodes.routes.iter().flat_map(|routes| route_lines(routes, scale)));
    lines.extend(nodes.scale.iter().flat_map(|scaled| scale_lines(scaled, scale)));
    lines.extend(nodes.joins.iter().flat_map(|joins| join_lines(joins, scale)));
    lines.extend(nodes.traffic.iter().flat_map(traffic_lines));
    lines
}

fn route_lines(routes: &RouteTimes, scale: &NodesScale) -> Vec<FigureLine> {
    let peers = scale.peers;
    let ip = || ("ip route add for each", Some(routes.ip.as_secs_f64() * 1000.0));
    let cpu = routes.among_many.cpu.p50();
    vec![
        FigureLine::alone(
            format!("{peers} routes from the records"),
            (routes.library.p50(), "ms"),
            RatioTarget::None,
        )
        .beside(ip(), Better::Less, RatioTarget::AtLeast(50.0)),
        FigureLine::alone(
            format!("{peers} routes from an agent's start, with etcd"),
            (routes.agent.p50(), "ms"),
            RatioTarget::None,
        )
        .beside(ip(), Better::Less, RatioTarget::AtLeast(50.0)),
        FigureLine::alone(
            format!("one change among {peers}, agent's CPU"),
            (cpu, "ms"),
            RatioTarget::AtMost(5.0),
        ),
        FigureLine::alone("the same", (cpu, "ms"), RatioTarget::None).beside(
            ("among few", routes.among_few.cpu.p50()),
            Better::Less,
            RatioTarget::None,
        ),
        FigureLine::alone(
            format!("one change among {peers}, commit to route"),
            (routes.among_many.route.p50(), "ms"),
            RatioTarget::None,
        ),
    ]
}

fn scale_lines(scaled: &ScaleResult, scale: &NodesScale) -> Vec<FigureLine> {
    let all = scale.crowd;
    let p = |sample: &Sample, pick: fn(&crate::stats::Percentiles) -> f64| {
        sample.percentiles().as_ref().map(pick)
    };
    let (p50, p99) = (p(&scaled.event, |p| p.p50), p(&scaled.event, |p| p.p99));
    let with_commit = p(&scaled.with_commit, |p| p.p99);
    let rate = digits(scaled.rate.round());
    let events = format!("{rate} nodes/s come and {rate} go among {all}, commit to route");
    let few = scaled.few;
    vec![
        FigureLine::alone(
            format!("largest of {} agents beside {all} nodes (VmRSS)", scaled.agents),
            (Some(scaled.rss_mib), "MiB"),
            RatioTarget::AtMost(25.0),
        ),
        FigureLine::alone(format!("{events}, p50"), (p50, "ms"), RatioTarget::None),
        FigureLine::alone(format!("{events}, p99"), (p99, "ms"), RatioTarget::AtMost(100.0)),
        FigureLine::alone("the same with the commit itself, p99", (with_commit, "ms"), RatioTarget::None),
        FigureLine::alone(
            format!("etcd requests of a node in a quiet minute, {few} nodes"),
            (Some(scaled.requests_few), ""),
            RatioTarget::None,
        ),
        // The limit allows for one heartbeat more or less in the window.
        FigureLine::alone(
            format!("etcd requests of a node in a quiet minute, {all} nodes"),
            (Some(scaled.requests_many), ""),
            RatioTarget::None,
        )
        .beside(("few nodes", Some(scaled.requests_few)), Better::More, RatioTarget::AtMost(1.3)),
    ]
}

fn join_lines(joins: &Joins, scale: &NodesScale) -> Vec<FigureLine> {
    let count = scale.joins;
    let distinct = joins.distinct.iter().min().map(|least| *least as f64);
    let rounds = scale.join_rounds;
    vec![
        FigureLine::alone(
            format!("{count} joins at once, v4 and v6"),
            (joins.agents.p50(), "ms"),
            RatioTarget::None,
        )
        .beside(("plain counter", joins.counter.p50()), Better::Less, RatioTarget::None),
        FigureLine::alone(
            format!("different blocks of {count} joins, the fewest of {rounds} rounds"),
            (distinct, ""),
            RatioTarget::AtLeast(count as f64),
        ),
        FigureLine::alone(
            format!("duplicates by the plain counter, all {rounds} rounds"),
            (Some(joins.duplicates as f64), ""),
            RatioTarget::None,
        ),
    ]
}

fn traffic_lines(traffic: &Traffic) -> Vec<FigureLine> {
    let mut lines = Vec::new();
    for path in &traffic.paths {
        let compared = [
            ("plain ip", &path.plain, RatioTarget::AtLeast(0.9)),
            ("plain ip, tracked", &path.tracked, RatioTarget::None),
        ];
        for (who, other, target) in compared {
            let figure = (median(&path.podwire.gbit_per_s), "Gbit/s");
            let stream = FigureLine::alone(
                format!("pod to pod, {}, throughput", path.name),
                figure,
                RatioTarget::None,
            );
            lines.push(stream.beside((who, median(&other.gbit_per_s)), Better::More, target));
            let figure = (median(&path.podwire.trip_us), "µs");
            let trip = FigureLine::alone(
                format!("pod to pod, {}, request/response", path.name),
                figure,
                RatioTarget::None,
            );
            lines.push(trip.beside((who, median(&other.trip_us)), Better::Less, target));
        }
    }
    for cost in &traffic.peer_table {
        let case = format!("pod to pod, {}, request/response on one core", cost.name);
        let checked = FigureLine::alone(case, (median(&cost.with_table), "µs"), RatioTarget::None);
        lines.push(checked.beside(
            ("sources unchecked", median(&cost.without_table)),
            Better::Less,
            RatioTarget::None,
        ));
    }
    lines
}

/// All samples with their names.
fn samples(nodes: &Nodes) -> Vec<(String, &Sample)> {
    let mut named = Vec::new();
    let mut put = |case: &str, sample| named.push((case.to_owned(), sample));
    if let Some(routes) = &nodes.routes {
        put("all routes from the records", &routes.library);
        put("all routes from an agent's start", &routes.agent);
        put("one change among many, CPU", &routes.among_many.cpu);
        put("one change among many, commit to route", &routes.among_many.route);
        put(&format!("one change among {}, CPU", routes.few), &routes.among_few.cpu);
    }
    if let Some(scaled) = &nodes.scale {
        put("a node comes or goes, commit to route", &scaled.event);
        put("a node comes or goes, with the commit", &scaled.with_commit);
    }
    if let Some(joins) = &nodes.joins {
        put("all joins", &joins.agents);
        put("all numbers of the plain counter", &joins.counter);
    }
    named
}

pub(super) fn times(nodes: &Nodes) -> Vec<LatencyRow> {
    let all = samples(nodes).into_iter();
    all.filter_map(|(case, sample)| Some(LatencyRow { case, percentiles: sample.percentiles()? })).collect()
}

pub(super) fn failures(nodes: &Nodes) -> Vec<String> {
    let describe = |(case, sample): (String, &Sample)| {
        sample.failures.iter().map(|failure| format!("{case}: {failure}")).collect::<Vec<_>>()
    };
    samples(nodes).into_iter().flat_map(describe).collect()
}

pub(super) fn remarks(nodes: &Nodes) -> Vec<String> {
    let again = nodes.joins.as_ref().map_or(0, |joins| joins.again);
    (again > 0).then(|| format!("{again} joins were retried")).into_iter().collect()
}
