//! `podwire denied`: flows that policies denied, with the rules that decided.

use anyhow::Result;
use api::{DeniedEvent, DeniedFlow, DeniedView, FlowDirection};

use super::nodes::AgentClient;
use crate::cli::{DeniedArgs, Output};
use crate::print::{self, OutputClosed};

pub(crate) fn run(args: &DeniedArgs) -> Result<()> {
    let client = AgentClient::find(&args.agent);
    if args.follow {
        return follow(args, &client);
    }
    let mut view: DeniedView = client.get(api::DENIED)?;
    view.flows.retain(|flow| is_wanted(args, flow));
    match args.output {
        Output::Json => print::json(&view),
        Output::Table => print::line(page(&view, print::table)),
        Output::Wide => print::line(page(&view, print::wide_table)),
    }
}

fn is_wanted(args: &DeniedArgs, flow: &DeniedFlow) -> bool {
    let is_of_tenant = args.tenant.as_ref().is_none_or(|tenant| flow.tenant.as_ref() == Some(tenant));
    let has_pod = |pod: &String| [&flow.from, &flow.to].iter().any(|end| end.name.as_ref() == Some(pod));
    is_of_tenant && args.pod.as_ref().is_none_or(has_pod)
}

/// Ends by an error, or when no process reads the output any more.
fn follow(args: &DeniedArgs, client: &AgentClient) -> Result<()> {
    if args.output != Output::Json {
        // A stream without policies stays empty.
        let DeniedView { not_enforced, .. } = client.get(api::DENIED)?;
        if let Some(reason) = not_enforced {
            print::sentence(print::one_line(&not_enforced_note(&reason)))?;
        }
    }
    let followed = client.follow(&format!("{}?follow=true", api::DENIED), |event: DeniedEvent| {
        if !is_wanted(args, &event.flow) {
            return Ok(());
        }
        let text = match args.output {
            Output::Json => types::printable_json(&serde_json::to_string(&event)?).into_owned(),
            Output::Table => print::hanging(&print::wrap(&line(&event), print::width() - 2), 2),
            Output::Wide => line(&event),
        };
        print::stream_line(text)
    });
    followed.or_else(|error| if error.is::<OutputClosed>() { Ok(()) } else { Err(error) })
}

fn line(event: &DeniedEvent) -> String {
    let flow = &event.flow;
    let missed = match event.missed {
        0 => String::new(),
        missed => format!(" ({} before this one not shown)", print::count(missed, "event")),
    };
    let (from, to) = (flow.from.short(), flow.to.short());
    let text = format!(
        "{} {} {from} to {to} {}: {}{missed}",
        flow.time,
        flow.direction,
        flow.traffic(),
        decision(flow)
    );
    print::one_line(&text)
}

fn decision(flow: &DeniedFlow) -> String {
    match &flow.tier {
        Some(tier) => format!("{tier}: {}", flow.rule),
        None => flow.rule.clone(),
    }
}

fn not_enforced_note(reason: &str) -> String {
    format!("no policies are enforced on this node: {reason}")
}

fn page(view: &DeniedView, layout: print::TableLayout) -> String {
    let mut parts = Vec::new();
    if let Some(reason) = &view.not_enforced {
        parts.push(print::wrap(&print::one_line(&not_enforced_note(reason)), print::width()));
    }
    let total = view.packets.ingress + view.packets.egress;
    if view.not_enforced.is_none() || total > 0 {
        parts.push(print::wrap(&title(view), print::width()));
    }
    if !view.flows.is_empty() {
        let rows = view.flows.iter().map(row).collect();
        parts.push(layout(&["LAST (UTC)", "DIR", "FROM", "TO", "TRAFFIC", "LOGGED", "DECIDED BY"], rows));
    }
    parts.join("\n\n")
}

/// Exact numbers, and how many of the packets were logged.
fn title(view: &DeniedView) -> String {
    let DeniedView { packets, sampled, lost, .. } = view;
    let total = packets.ingress + packets.egress;
    if total == 0 {
        return "no flow was denied since the agent started".to_owned();
    }
    let mut text = format!(
        "{} denied since the agent started ({} ingress, {} egress), {sampled} of them logged",
        print::count(total, "packet"),
        packets.ingress,
        packets.egress
    );
    if *lost > 0 {
        text.push_str(&format!("; {} not explained", print::count(*lost, "logged packet")));
    }
    text
}

fn row(flow: &DeniedFlow) -> Vec<String> {
    let direction = match flow.direction {
        FlowDirection::Ingress => "in",
        FlowDirection::Egress => "out",
    };
    // Without the date, which is in the JSON output.
    let time = flow.time.to_string();
    let time = time.split_once('T').map_or(time.as_str(), |(_, time)| time.trim_end_matches('Z'));
    let cells = [
        time,
        direction,
        &flow.from.short(),
        &flow.to.short(),
        &flow.traffic(),
        &flow.samples.to_string(),
        &decision(flow),
    ];
    cells.map(print::one_line).to_vec()
}

#[cfg(test)]
mod tests {
    use api::{DeniedPacketsView, FlowEndKind, FlowEndView, Timestamp};

    use super::*;

    fn end(name: &str) -> FlowEndView {
        FlowEndView { kind: FlowEndKind::Pod, name: Some(name.to_owned()), node: None, address: None }
    }

    fn view() -> DeniedView {
        let flow = DeniedFlow {
            time: Timestamp(1_800_000_000),
            direction: FlowDirection::Ingress,
            from: end("shop/web-5d9c7b6f4-x2x8p"),
            to: end("other/database-0"),
            protocol: "tcp".to_owned(),
            port: Some(5432),
            icmp_type: None,
            tenant: Some("blue".to_owned()),
            link: Some("pw1".to_owned()),
            tier: Some("tenant".to_owned()),
            rule: "the peer is a pod of another tenant than blue, without a share".to_owned(),
            samples: 12,
        };
        let packets = DeniedPacketsView { ingress: 4000, ..DeniedPacketsView::default() };
        DeniedView { not_enforced: None, packets, sampled: 12, lost: 0, flows: vec![flow] }
    }

    #[test]
    fn d_denied_flows_fit_into_80_columns() {
        let shown = page(&view(), print::table);
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        for part in ["4000 packets denied", "12 of them", "tcp/5432", "of another"] {
            assert!(shown.contains(part), "{shown}");
        }
        let wide = page(&view(), print::wide_table);
        assert!(
            wide.contains("tenant: the peer is a pod of another tenant than blue, without a share"),
            "{wide}"
        );
    }

    #[test]
    fn d_a_node_without_policies_says_so() {
        let reason = Some("no object restricts flows".to_owned());
        let none = DeniedView {
            not_enforced: reason,
            ..DeniedView { flows: Vec::new(), packets: DeniedPacketsView::default(), ..view() }
        };
        assert_eq!(
            page(&none, print::table),
            "no policies are enforced on this node: no object restricts flows"
        );
    }
}
