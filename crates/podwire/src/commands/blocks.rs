//! `podwire blocks`: the owner of each block, the use of this node's blocks, and inconsistent records.

use anyhow::Result;
use api::{BlockView, BlocksView, SubnetView};

use super::nodes::{AgentClient, node_label, stale_note};
use crate::cli::{ClusterArgs, Output};
use crate::exit::ExitStatus;
use crate::print;

/// The network that is not named.
const DEFAULT: &str = "default.default-net";

pub(crate) fn run(args: &ClusterArgs) -> Result<ExitStatus> {
    let blocks: BlocksView = AgentClient::find(&args.agent).get(api::BLOCKS)?;
    match args.output {
        Output::Json => print::json(&blocks)?,
        Output::Table => print::line(page(&blocks, print::table))?,
        Output::Wide => print::line(page(&blocks, print::wide_table))?,
    }
    let is_ok = !blocks.freshness.stale && blocks.blocks.iter().all(|view| view.message.is_none());
    Ok(ExitStatus::problem_unless(is_ok))
}

fn page(view: &BlocksView, layout: print::TableLayout) -> String {
    let subnet = |view: &SubnetView| {
        let SubnetView { network, subnet, blocks, claimed } = view;
        let network =
            if network == DEFAULT { String::new() } else { format!(" ({})", print::one_line(network)) };
        format!("{subnet}{network}: {claimed} of {} claimed", print::count(*blocks, "block"))
    };
    let subnets = view.subnets.iter().map(subnet).collect::<Vec<_>>().join("\n");
    let mut parts: Vec<String> = stale_note(&view.freshness).into_iter().chain([subnets]).collect();
    if !view.blocks.is_empty() {
        parts.push(table(&view.blocks, layout));
    }
    parts.join("\n\n")
}

/// Blocks with problems come first. The column PROBLEM exists only if there is a problem.
fn table(blocks: &[BlockView], layout: print::TableLayout) -> String {
    let mut sorted: Vec<&BlockView> = blocks.iter().collect();
    sorted.sort_by_key(|view| view.message.is_none());
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let has_problems = blocks.iter().any(|view| view.message.is_some());
    let rows = sorted.into_iter().map(|view| {
        let mut row = vec![
            view.block.to_string(),
            node_label(&view.node, view.local),
            number(view.used),
            number(view.free),
        ];
        if has_problems {
            row.push(view.message.as_deref().map(print::one_line).unwrap_or_default());
        }
        row
    });
    let mut header = vec!["BLOCK", "NODE", "USED", "FREE"];
    if has_problems {
        header.push("PROBLEM");
    }
    layout(&header, rows.collect())
}

#[cfg(test)]
mod tests {
    use api::Freshness;

    use super::*;

    fn freshness() -> Freshness {
        let as_of = Some(api::Timestamp(1_794_777_184));
        Freshness { as_of, age_seconds: Some(0), stale: false, reason: None }
    }

    #[test]
    fn a4_stale_blocks_are_marked_with_their_age_and_the_reason() {
        let reason = Some("etcd is not reachable: connection refused".to_owned());
        let subnet = SubnetView {
            network: DEFAULT.to_owned(),
            subnet: "10.42.0.0/16".parse().unwrap(),
            blocks: 1,
            claimed: 0,
        };
        let freshness = Freshness { age_seconds: Some(90), stale: true, reason, ..freshness() };
        let view = BlocksView { freshness, subnets: vec![subnet], blocks: Vec::new() };
        let wanted = "\
as of 90s ago; etcd is not reachable: connection refused

10.42.0.0/16: 0 of 1 block claimed";
        assert_eq!(page(&view, print::table), wanted);
    }

    fn block(block: &str, node: &str, used: Option<u64>) -> BlockView {
        BlockView {
            block: block.parse().unwrap(),
            node: node.to_owned(),
            message: None,
            used,
            free: used.map(|used| 253 - used),
            local: used.is_some(),
        }
    }

    #[test]
    fn blocks_with_problems_are_listed_first() {
        let subnet = |network: &str, subnet: &str, claimed| SubnetView {
            network: network.to_owned(),
            subnet: subnet.parse().unwrap(),
            blocks: 256,
            claimed,
        };
        let mut view = BlocksView {
            freshness: freshness(),
            subnets: vec![subnet(DEFAULT, "10.42.0.0/16", 2), subnet("blue.front", "fd42::/64", 0)],
            blocks: vec![block("10.42.0.0/24", "a", Some(3)), block("10.42.1.0/24", "b", None)],
        };
        let wanted = "\
10.42.0.0/16: 2 of 256 blocks claimed
fd42::/64 (blue.front): 0 of 256 blocks claimed

BLOCK         NODE      USED  FREE
10.42.0.0/24  a (here)  3     250
10.42.1.0/24  b         -     -";
        assert_eq!(page(&view, print::table), wanted);
        view.blocks[1].message = Some("not claimed".to_owned());
        let page = page(&view, print::table);
        let lines: Vec<&str> = page.lines().skip(3).collect();
        assert!(lines[0].ends_with("FREE  PROBLEM"), "{page}");
        assert!(lines[1].starts_with("10.42.1.0/24") && lines[1].ends_with("not claimed"), "{page}");
    }

    #[test]
    fn a_network_without_blocks_shows_its_subnets() {
        let subnet = SubnetView {
            network: DEFAULT.to_owned(),
            subnet: "10.42.0.0/16".parse().unwrap(),
            blocks: 1,
            claimed: 0,
        };
        let view = BlocksView { freshness: freshness(), subnets: vec![subnet], blocks: Vec::new() };
        assert_eq!(page(&view, print::table), "10.42.0.0/16: 0 of 1 block claimed");
    }
}
