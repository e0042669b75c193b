//! Whom the routes' side keeps when the store does not know them.

use std::time::Duration;

use ::cluster::{Facts, Transport, Tunnels};
use tokio::time::Instant;

use super::super::known::Known;
use super::super::member::Census;
use super::*;

fn record(name: &str, uid: u8, block: &str) -> NodeRecord {
    NodeRecord { blocks: nets(&[block]), ..candidate(name, uid).record }
}

fn known() -> Known {
    let facts = Facts {
        name: "n1".try_into().unwrap(),
        blocks: nets(&["10.2.0.0/24"]),
        subnets: spec().subnets,
        transport: Transport::Auto,
        underlays: Vec::new(),
        tunnels: Tunnels::default(),
        sources: Vec::new(),
    };
    Known::new(facts, vec![record("n2", 2, "10.2.1.0/24"), record("n3", 3, "10.2.2.0/24")])
}

fn names(known: &Known) -> Vec<&str> {
    known.mesh.peers().map(|peer| peer.name.as_str()).collect()
}

fn census(nodes: Vec<NodeRecord>, was_wiped: bool) -> Census {
    Census { nodes, unread: BTreeSet::new(), was_wiped }
}

#[test]
fn nodes_of_a_wiped_store_are_kept_until_another_has_their_block() {
    let mut known = known();
    known.set_all(census(vec![record("n3", 3, "10.2.2.0/24")], true));
    known.give_up();
    assert_eq!(names(&known), ["n2", "n3"]);
    let until = known.awaited[&"n2".try_into().unwrap()];
    assert!(
        until > Instant::now() + Duration::from_secs(1800),
        "an agent may be down for longer than a minute"
    );
    known.set_peer(record("n4", 4, "10.2.1.0/24"));
    assert_eq!(names(&known), ["n3", "n4"]);
    assert!(known.awaited.is_empty());
}

#[test]
fn nodes_that_a_whole_store_does_not_know_are_gone() {
    let mut known = known();
    known.set_all(census(vec![record("n3", 3, "10.2.2.0/24")], false));
    assert_eq!(names(&known), ["n3"]);
}
