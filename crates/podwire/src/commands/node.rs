//! `podwire node rm`: removes the records of a node and frees its blocks.

use anyhow::Result;
use api::Removed;

use super::nodes::AgentClient;
use crate::cli::{Output, RemoveNodeArgs};
use crate::print;

pub(crate) fn remove(args: &RemoveNodeArgs) -> Result<()> {
    let force = if args.force { "?force=true" } else { "" };
    // A node name has no characters that need escaping in a URL.
    let path = format!("{}/{}{force}", api::NODES, args.name);
    let removed: Removed = AgentClient::find(&args.agent).delete(&path)?;
    match args.output {
        Output::Json => print::json(&removed)?,
        Output::Table | Output::Wide => print::sentence(summary(&removed))?,
    }
    Ok(())
}

fn summary(removed: &Removed) -> String {
    let name = &removed.name;
    let blocks: Vec<String> = removed.blocks.iter().map(ToString::to_string).collect();
    match blocks.len() {
        0 => format!("node {name} removed; it had no blocks"),
        1 => format!("node {name} removed; freed block: {}", blocks.join("")),
        _ => format!("node {name} removed; freed blocks: {}", blocks.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_blocks_are_listed() {
        let text = |blocks: &[&str]| {
            let blocks = blocks.iter().map(|block| block.parse().unwrap()).collect();
            summary(&Removed { name: "a".to_owned(), blocks })
        };
        assert_eq!(text(&[]), "node a removed; it had no blocks");
        assert_eq!(text(&["10.1.2.0/24"]), "node a removed; freed block: 10.1.2.0/24");
        let two = text(&["10.1.2.0/24", "fd00::/80"]);
        assert_eq!(two, "node a removed; freed blocks: 10.1.2.0/24 fd00::/80");
    }
}
