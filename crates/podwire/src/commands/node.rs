//! `podwire node rm`: takes a node out of the cluster for good, and its blocks with it.

use anyhow::Result;
use api::Removed;

use super::nodes::AgentClient;
use crate::cli::{Output, RemoveNode};
use crate::print;

pub(crate) fn remove(args: &RemoveNode) -> Result<()> {
    let force = if args.force { "?force=true" } else { "" };
    // A node's name has no character that means something in a path.
    let path = format!("{}/{}{force}", api::NODES, args.name);
    let removed: Removed = AgentClient::find(&args.which).delete(&path)?;
    match args.output {
        Output::Json => print::say_json(&removed)?,
        Output::Table | Output::Wide => print::say_wrapped(told(&removed))?,
    }
    Ok(())
}

fn told(removed: &Removed) -> String {
    let name = &removed.name;
    let blocks: Vec<String> = removed.blocks.iter().map(ToString::to_string).collect();
    match blocks.len() {
        0 => format!("node {name} is removed; it had no block"),
        1 => format!("node {name} is removed; its block is free again: {}", blocks.join("")),
        _ => format!("node {name} is removed; its blocks are free again: {}", blocks.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_again_is_told() {
        let told = |blocks: &[&str]| {
            let blocks = blocks.iter().map(|block| block.parse().unwrap()).collect();
            told(&Removed { name: "a".to_owned(), blocks })
        };
        assert_eq!(told(&[]), "node a is removed; it had no block");
        assert_eq!(told(&["10.1.2.0/24"]), "node a is removed; its block is free again: 10.1.2.0/24");
        let two = told(&["10.1.2.0/24", "fd00::/80"]);
        assert_eq!(two, "node a is removed; its blocks are free again: 10.1.2.0/24 fd00::/80");
    }
}
