//! `podwire routes`: the routes to blocks of other nodes, compared with the kernel.

use std::collections::BTreeSet;

use anyhow::Result;
use api::{RouteState, RouteTransport, RouteView, RoutesView};

use super::nodes::{AgentClient, stale_note};
use crate::cli::{ClusterArgs, Output};
use crate::exit::ExitStatus;
use crate::print;

pub(crate) fn run(args: &ClusterArgs) -> Result<ExitStatus> {
    let view: RoutesView = AgentClient::find(&args.agent).get(api::ROUTES)?;
    match args.output {
        Output::Json => print::json(&view)?,
        Output::Table => print::line(page(&view, print::table))?,
        Output::Wide => print::line(page(&view, print::wide_table))?,
    }
    let is_ok = view.routes.iter().all(|route| route.state == RouteState::Ok);
    Ok(ExitStatus::problem_unless(is_ok && !view.freshness.stale))
}

fn page(RoutesView { freshness, routes }: &RoutesView, layout: print::TableLayout) -> String {
    let stale = stale_note(freshness);
    if routes.is_empty() {
        return match stale {
            Some(stale) => format!("{stale}\n\nno routes: no other node with a block is known"),
            None => "no routes: no other node has a block".to_owned(),
        };
    }
    let mut sorted: Vec<&RouteView> = routes.iter().collect();
    sorted.sort_by_key(|route| route.state == RouteState::Ok);
    let rows = sorted.into_iter().map(row).collect();
    let table = layout(&["BLOCK", "NODE", "TRANSPORT", "VIA", "STATE"], rows);
    let title = print::wrap(&title(routes), print::width());
    let parts: Vec<String> = stale.into_iter().chain([title, table]).collect();
    parts.join("\n\n")
}

/// The number of routes by transport and by problem.
fn title(routes: &[RouteView]) -> String {
    let wanted: Vec<&RouteView> = routes.iter().filter(|route| route.state != RouteState::Stale).collect();
    let nodes: BTreeSet<&str> = wanted.iter().filter_map(|route| route.node.as_deref()).collect();
    let transports = [
        (RouteTransport::Direct, "direct"),
        (RouteTransport::Vxlan, "vxlan"),
        (RouteTransport::None, "without a path"),
        (RouteTransport::Unknown, "with an unknown transport"),
    ];
    let transports =
        transports.map(|(transport, word)| (count(&wanted, |route| route.transport == transport), word));
    let all: Vec<&RouteView> = routes.iter().collect();
    let faults = [RouteState::Missing, RouteState::Different, RouteState::Stale, RouteState::Unknown];
    let faults = faults.map(|state| (count(&all, |route| route.state == state), word(state)));
    let verdict = match numbers(&faults) {
        faults if faults.is_empty() => "all as expected".to_owned(),
        faults => faults,
    };
    if wanted.is_empty() {
        return format!("no other node has a block; {verdict}");
    }
    let (routes, nodes) =
        (print::count(wanted.len() as u64, "route"), print::count(nodes.len() as u64, "node"));
    format!("{routes} to {nodes}: {}; {verdict}", numbers(&transports))
}

fn count(routes: &[&RouteView], is_counted: impl Fn(&RouteView) -> bool) -> usize {
    routes.iter().filter(|route| is_counted(route)).count()
}

/// `4 direct, 1 vxlan`, without zeros.
fn numbers(counts: &[(usize, &str)]) -> String {
    let some = counts.iter().filter(|(number, _)| *number > 0);
    some.map(|(number, word)| format!("{number} {word}")).collect::<Vec<_>>().join(", ")
}

fn row(route: &RouteView) -> Vec<String> {
    let is_stale = route.state == RouteState::Stale;
    let transport = match route.transport {
        RouteTransport::Direct => "direct",
        RouteTransport::Vxlan => "vxlan",
        // The kernel does not store the transport of a route.
        RouteTransport::None if is_stale => "-",
        RouteTransport::None => "none",
        RouteTransport::Unknown => "unknown",
    };
    let via = match (&route.gateway, &route.link) {
        (Some(gateway), Some(link)) => format!("{gateway} on {link}"),
        (Some(gateway), None) => gateway.to_string(),
        (None, Some(link)) => link.clone(),
        (None, None) => "-".to_owned(),
    };
    let via = print::one_line(&via);
    let state = match &route.message {
        Some(note) => format!("{}: {}", coloured(route.state), print::one_line(note)),
        None => coloured(route.state),
    };
    let node = route.node.as_deref().map_or_else(|| "-".to_owned(), print::one_line);
    vec![route.block.to_string(), node, transport.to_owned(), via, state]
}

fn coloured(state: RouteState) -> String {
    match state {
        RouteState::Ok => print::good(word(state)),
        RouteState::Missing | RouteState::Different => print::bad(word(state)),
        RouteState::Stale | RouteState::Unknown => print::degraded(word(state)),
    }
}

fn word(state: RouteState) -> &'static str {
    match state {
        RouteState::Ok => "ok",
        RouteState::Missing => "missing",
        RouteState::Different => "different",
        RouteState::Stale => "stale",
        RouteState::Unknown => "in an unknown state",
    }
}

#[cfg(test)]
#[path = "routes_tests.rs"]
mod tests;
