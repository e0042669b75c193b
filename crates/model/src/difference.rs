//! Describes changes of a node record, for the log.

use std::fmt::Display;

use crate::allocation::BlockAllocation;
use crate::object::NodeRecord;

/// The fields in which two records of a node differ: `version 0.1.0 -> 0.2.0`. None if they are equal.
pub fn difference(before: &NodeRecord, after: &NodeRecord) -> Option<String> {
    let transport =
        |record: &NodeRecord| record.transport.iter().map(ToString::to_string).collect::<Vec<_>>();
    let parts = [
        ("uid", listed(&[&before.uid]), listed(&[&after.uid])),
        ("addresses", listed(&before.addresses), listed(&after.addresses)),
        ("blocks", described(&before.blocks), described(&after.blocks)),
        ("tunnel MAC", listed(&[before.tunnel_mac]), listed(&[after.tunnel_mac])),
        ("link MAC", listed(&before.macs), listed(&after.macs)),
        ("version", before.version.clone(), after.version.clone()),
        ("transport", listed(&transport(before)), listed(&transport(after))),
    ];
    let changed = parts.iter().filter(|(_, before, after)| before != after);
    let texts: Vec<String> =
        changed.map(|(part, before, after)| format!("{part} {before} -> {after}")).collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

fn described(blocks: &BlockAllocation) -> String {
    if blocks.is_empty() { "none".to_owned() } else { blocks.to_string() }
}

/// Comma-separated, or `none`.
pub fn listed<T: Display>(items: &[T]) -> String {
    if items.is_empty() {
        return "none".to_owned();
    }
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use types::{Mac, NodeUid};

    use super::*;
    use crate::mesh::Transport;

    #[test]
    fn only_changed_fields_are_named() {
        let before = NodeRecord {
            name: "n2".try_into().unwrap(),
            uid: NodeUid::from_random([1; 16]),
            addresses: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
            blocks: BlockAllocation::of_default(vec!["10.2.1.0/24".parse().unwrap()]),
            tunnel_mac: Mac::local([1, 2, 3, 4, 5]),
            macs: Vec::new(),
            version: "0.1.0".to_owned(),
            transport: None,
        };
        assert_eq!(difference(&before, &before), None);
        let moved = NodeRecord {
            addresses: vec!["192.0.2.9".parse().unwrap()],
            version: "0.2.0".to_owned(),
            ..before.clone()
        };
        let text = "addresses 192.0.2.1,2001:db8::1 -> 192.0.2.9; version 0.1.0 -> 0.2.0";
        assert_eq!(difference(&before, &moved).as_deref(), Some(text));
        let changed = NodeRecord {
            blocks: BlockAllocation::default(),
            transport: Some(Transport::Vxlan),
            ..before.clone()
        };
        let text = "blocks 10.2.1.0/24 -> none; transport none -> vxlan";
        assert_eq!(difference(&before, &changed).as_deref(), Some(text));
    }
}
