//! `podwire nodes`: all nodes in the store, with the state of their agents and problems of their records.

pub(super) mod client;

use anyhow::Result;
use api::{AgentState, Freshness, NodeView, NodesView};

pub(super) use client::AgentClient;

use crate::cli::{ClusterArgs, Output};
use crate::exit::ExitStatus;
use crate::{print, time};

pub(crate) fn run(args: &ClusterArgs) -> Result<ExitStatus> {
    let view: NodesView = AgentClient::find(&args.agent).get(api::NODES)?;
    match args.output {
        Output::Json => print::json(&view)?,
        Output::Table => print::line(page(&view, time::now(), Columns::Table))?,
        Output::Wide => print::line(page(&view, time::now(), Columns::Wide))?,
    }
    let is_ok = view.nodes.iter().all(|node| node.message.is_none() && node.refused.is_empty());
    Ok(ExitStatus::problem_unless(is_ok && !view.freshness.stale))
}

/// The age of a stale answer, and why it is stale. None for a current answer.
pub(super) fn stale_note(freshness: &Freshness) -> Option<String> {
    let Freshness { stale, age_seconds, reason, .. } = freshness;
    let cause = reason.as_ref().map(|reason| format!("; {reason}")).unwrap_or_default();
    let age = age_seconds.map(|age| format!("as of {} ago", time::age(0, age)));
    let age = age.unwrap_or_else(|| "of unknown age".to_owned());
    stale.then(|| print::wrap(&format!("{age}{cause}"), print::width()))
}

/// The name of a node. The node that answers is marked.
pub(super) fn node_label(name: &str, is_local: bool) -> String {
    let name = print::one_line(name);
    if is_local { format!("{name} (here)") } else { name }
}

#[derive(Debug, Clone, Copy)]
enum Columns {
    Table,
    Wide,
}

fn page(view: &NodesView, now: u64, columns: Columns) -> String {
    let NodesView { freshness, nodes } = view;
    if nodes.is_empty() {
        return "no nodes in the store yet".to_owned();
    }
    let rows = nodes.iter().map(|node| row(node, freshness.stale, now));
    let table = match columns {
        Columns::Table => print::table(&["NAME", "AGENT", "ADDRESSES", "BLOCKS"], rows.collect()),
        Columns::Wide => {
            let rows = nodes.iter().zip(rows).map(|(node, row)| wide_row(node, row)).collect();
            print::wide_table(&["NAME", "AGENT", "ADDRESSES", "BLOCKS", "VERSION"], rows)
        }
    };
    let count = print::count(nodes.len() as u64, "node");
    let title = stale_note(freshness).map_or_else(|| title(nodes), |note| format!("{count} {note}"));
    let title = print::wrap(&title, print::width());
    let mut parts = vec![title, table];
    let problems: Vec<String> =
        nodes.iter().flat_map(|node| record_problem(node).into_iter().chain(refused_parts(node))).collect();
    if !problems.is_empty() {
        parts.push(problems.join("\n"));
    }
    parts.join("\n\n")
}

fn record_problem(node: &NodeView) -> Option<String> {
    let NodeView { name, message, .. } = node;
    let text = format!("{name}: {}; other nodes use its last valid record", message.as_ref()?);
    Some(print::wrap(&text, print::width()))
}

/// Parts of a record that other nodes do not use.
fn refused_parts(node: &NodeView) -> impl Iterator<Item = String> {
    node.refused
        .iter()
        .map(|reason| print::wrap(&format!("{}: {reason}", print::one_line(&node.name)), print::width()))
}

fn title(nodes: &[NodeView]) -> String {
    let count = print::count(nodes.len() as u64, "node");
    let offline: Vec<String> = nodes
        .iter()
        .filter(|node| node.agent == AgentState::Away)
        .map(|node| print::one_line(&node.name))
        .collect();
    match offline.len() {
        0 if nodes.len() == 1 => format!("{count}: its agent is alive"),
        0 => format!("{count}: all agents are alive"),
        1 => format!("{count}: the agent of {} is {}", offline.join(""), print::bad("OFFLINE")),
        number => {
            format!("{count}: {number} agents are {}: {}", print::bad("OFFLINE"), offline.join(" "))
        }
    }
}

fn row(node: &NodeView, is_stale: bool, now: u64) -> Vec<String> {
    let agent = match (node.agent, node.alive_since) {
        (AgentState::Alive, _) if is_stale && !node.local => print::degraded("was alive"),
        (AgentState::Alive, Some(since)) => {
            format!("{} for {}", print::good("alive"), time::age(since.0, now))
        }
        (AgentState::Alive, None) => print::good("alive"),
        (AgentState::Away, _) if is_stale => print::bad("was OFFLINE"),
        (AgentState::Away, _) => print::bad("OFFLINE"),
        (AgentState::Unknown, _) => print::degraded("unknown"),
    };
    let name = node_label(&node.name, node.local);
    vec![name, agent, print::list(&node.addresses), print::list(&node.blocks)]
}

/// With lists on one line, and with the version.
fn wide_row(node: &NodeView, row: Vec<String>) -> Vec<String> {
    let version = node.version.as_deref().map_or_else(|| "-".to_owned(), print::one_line);
    row.into_iter().map(|cell| cell.replace('\n', " ")).chain([version]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(view: &NodesView, now: u64) -> String {
        page(view, now, Columns::Table)
    }

    fn node(name: &str, number: u8, alive_since: Option<u64>) -> NodeView {
        NodeView {
            name: name.to_owned(),
            uid: None,
            addresses: [format!("192.0.2.{number}"), format!("2001:db8::{number}")]
                .map(|text| text.parse().unwrap())
                .to_vec(),
            blocks: [format!("10.42.{number}.0/24"), format!("fd42::{number}:0:0:0/80")]
                .map(|text| text.parse().unwrap())
                .to_vec(),
            tunnel_mac: None,
            version: Some("0.1.0".to_owned()),
            agent: if alive_since.is_some() { AgentState::Alive } else { AgentState::Away },
            alive_since: alive_since.map(api::Timestamp),
            message: None,
            refused: Vec::new(),
            local: number == 1,
        }
    }

    fn view(nodes: &[NodeView]) -> NodesView {
        let as_of = Some(api::Timestamp(1_794_777_184));
        let freshness = Freshness { as_of, age_seconds: Some(0), stale: false, reason: None };
        NodesView { freshness, nodes: nodes.to_vec() }
    }

    #[test]
    fn a4_stale_nodes_are_marked_with_their_age_and_the_reason() {
        let mut view = view(&[node("a", 1, Some(1000)), node("b", 2, Some(1000)), node("c", 3, None)]);
        let reason = Some("etcd is not reachable: connection refused".to_owned());
        view.freshness = Freshness { age_seconds: Some(150), stale: true, reason, ..view.freshness };
        let wanted = "\
3 nodes as of 2m ago; etcd is not reachable: connection refused

NAME      AGENT         ADDRESSES    BLOCKS
a (here)  alive for 5m  192.0.2.1    10.42.1.0/24
                        2001:db8::1  fd42::1:0:0:0/80
b         was alive     192.0.2.2    10.42.2.0/24
                        2001:db8::2  fd42::2:0:0:0/80
c         was OFFLINE   192.0.2.3    10.42.3.0/24
                        2001:db8::3  fd42::3:0:0:0/80";
        assert_eq!(shown(&view, 1300), wanted);
        for node in &mut view.nodes {
            (node.agent, node.alive_since) = (AgentState::Unknown, None);
        }
        assert_eq!(shown(&view, 1300).matches("  unknown  ").count(), 3);
        view.freshness = Freshness { as_of: None, age_seconds: None, ..view.freshness };
        assert!(shown(&view, 1300).starts_with("3 nodes of unknown age; etcd is not reachable: "));
    }

    #[test]
    fn offline_agents_are_named_in_the_title_and_in_their_rows() {
        let nodes = [node("a", 1, Some(1000)), node("b", 2, None)];
        let wanted = "\
2 nodes: the agent of b is OFFLINE

NAME      AGENT         ADDRESSES    BLOCKS
a (here)  alive for 5m  192.0.2.1    10.42.1.0/24
                        2001:db8::1  fd42::1:0:0:0/80
b         OFFLINE       192.0.2.2    10.42.2.0/24
                        2001:db8::2  fd42::2:0:0:0/80";
        assert_eq!(shown(&view(&nodes), 1300), wanted);
        let wide = "\
2 nodes: the agent of b is OFFLINE

NAME      AGENT         ADDRESSES              BLOCKS                         VERSION
a (here)  alive for 5m  192.0.2.1 2001:db8::1  10.42.1.0/24 fd42::1:0:0:0/80  0.1.0
b         OFFLINE       192.0.2.2 2001:db8::2  10.42.2.0/24 fd42::2:0:0:0/80  0.1.0";
        assert_eq!(page(&view(&nodes), 1300, Columns::Wide), wide);
    }

    #[test]
    fn a_node_with_an_unusable_record_is_shown_with_the_reason() {
        let unusable = NodeView {
            addresses: Vec::new(),
            blocks: Vec::new(),
            version: None,
            message: Some("/podwire/nodes/b in the store is not valid JSON".to_owned()),
            ..node("b", 2, None)
        };
        let wanted = "\
2 nodes: the agent of b is OFFLINE

NAME      AGENT         ADDRESSES    BLOCKS
a (here)  alive for 5m  192.0.2.1    10.42.1.0/24
                        2001:db8::1  fd42::1:0:0:0/80
b         OFFLINE       -            -

b: /podwire/nodes/b in the store is not valid JSON; other nodes use its last
valid record";
        assert_eq!(shown(&view(&[node("a", 1, Some(1000)), unusable]), 1300), wanted);
    }

    #[test]
    fn names_and_versions_cannot_forge_rows() {
        let hostile = "x\nforged  192.0.2.9\u{1b}[2J\u{9b}K\u{202e}".to_owned();
        let node = NodeView { name: hostile.clone(), version: Some(hostile.clone()), ..node("b", 2, None) };
        let view = view(&[NodeView { message: Some(hostile), ..node }]);
        let page = [shown(&view, 1300), page(&view, 1300, Columns::Wide)].join("\n");
        assert!(!page.lines().any(|line| line.starts_with("forged")), "{page}");
        let row = page.lines().rfind(|line| line.contains("OFFLINE") && line.contains("192.0.2.2")).unwrap();
        assert!(row.matches("x\\nforged").count() == 2, "{row}");
    }

    #[test]
    fn a5_refused_parts_of_a_record_are_shown_with_the_reason() {
        let refused = vec!["block 10.42.1.0/24 is not routed: claimed by node a".to_owned()];
        let nodes = [node("a", 1, Some(1000)), NodeView { refused, ..node("b", 2, Some(1000)) }];
        let page = shown(&view(&nodes), 1300);
        assert!(page.ends_with("\n\nb: block 10.42.1.0/24 is not routed: claimed by node a"), "{page}");
    }

    #[test]
    fn titles_have_correct_singular_and_plural() {
        let [a, b, c] = [node("a", 1, Some(1)), node("b", 2, None), node("c", 3, None)];
        assert_eq!(title(std::slice::from_ref(&a)), "1 node: its agent is alive");
        assert_eq!(title(&[a.clone(), a.clone()]), "2 nodes: all agents are alive");
        assert_eq!(title(&[a, b, c]), "3 nodes: 2 agents are OFFLINE: b c");
        assert_eq!(shown(&view(&[]), 0), "no nodes in the store yet");
    }

    #[test]
    fn every_block_is_shown_on_its_own_line() {
        let mut one = node("a", 1, None);
        one.blocks = (0..9).map(|n| format!("10.42.{n}.0/24").parse().unwrap()).collect();
        one.addresses.clear();
        let row = row(&one, false, 0);
        assert_eq!(row[2], "-");
        assert_eq!(row[3].lines().count(), 9, "{}", row[3]);
    }

    #[test]
    fn long_names_and_blocks_fit_without_breaking_addresses() {
        let address = "2001:db8:1234:5678:9abc:def0:1234:5678";
        let mut nodes =
            [0, 1, 2].map(|n| node(&format!("ip-10-0-0-{n}.eu-central-1.compute.internal"), n, None));
        for one in &mut nodes {
            one.addresses = vec![address.parse().unwrap()];
            one.blocks = (0..9).map(|n| format!("fd42:0:0:{n}::/72").parse().unwrap()).collect();
        }
        let page = shown(&view(&nodes), 1300);
        assert!(page.lines().all(|line| line.chars().count() <= print::width()), "{page}");
        assert_eq!(page.matches(address).count(), 3, "{page}");
        assert_eq!(page.matches("fd42:0:0:8::/72").count(), 3, "{page}");
    }
}
