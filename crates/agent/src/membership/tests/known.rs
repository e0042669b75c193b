//! Whom the routes' side keeps when the store does not know them.

use std::time::{Duration, Instant};

use model::{LocalNode, NoPath, PeerPath, StoredNode, Transport, Tunnels};

use super::*;
use crate::peers::inputs::{ClaimedBlock, StoreListing};
use crate::peers::known::{KnownPeers, PeerChange};

fn record(name: &str, uid: u8, block: &str) -> NodeRecord {
    NodeRecord { blocks: nets(&[block]), ..candidate(name, uid).record }
}

fn known() -> KnownPeers {
    let local_node = LocalNode {
        name: "n1".try_into().unwrap(),
        blocks: nets(&["10.2.0.0/24"]),
        subnets: spec().subnets,
        margin: spec().margin,
        transport: Transport::Auto,
        underlays: Vec::new(),
        tunnels: Tunnels::default(),
        sources: Vec::new(),
    };
    KnownPeers::new(local_node, vec![record("n2", 2, "10.2.1.0/24"), record("n3", 3, "10.2.2.0/24")])
}

fn names(known: &KnownPeers) -> Vec<&str> {
    known.mesh.peers().map(|peer| peer.name.as_str()).collect()
}

fn stored(record: NodeRecord) -> StoredNode {
    StoredNode { record, created: 1 }
}

/// With claims of all blocks.
fn store_listing(records: Vec<NodeRecord>, was_wiped: bool) -> StoreListing {
    let claim =
        |record: &NodeRecord| ClaimedBlock { block: record.blocks[0], owner: Some(record.name.clone()) };
    let claims = records.iter().map(claim).collect();
    StoreListing {
        nodes: records.into_iter().map(stored).collect(),
        claims,
        unread: BTreeSet::new(),
        was_wiped,
    }
}

fn routed(known: &KnownPeers) -> Vec<String> {
    let is_refused = |path: &PeerPath| matches!(path, PeerPath::None(NoPath::Refused(_)));
    known.mesh.paths().filter(|(_, _, path)| !is_refused(path)).map(|(name, ..)| name.to_string()).collect()
}

#[test]
fn nodes_of_a_wiped_store_are_kept_until_another_has_their_block() {
    let mut known = known();
    known.set_all(store_listing(vec![record("n3", 3, "10.2.2.0/24")], true));
    known.give_up();
    assert_eq!(names(&known), ["n2", "n3"]);
    let until = known.awaited[&"n2".try_into().unwrap()];
    assert!(
        until > Instant::now() + Duration::from_secs(1800),
        "an agent may be down for longer than a minute"
    );
    // A record alone takes nothing, neither the block nor the time to come back.
    known.set_peer(stored(record("n4", 4, "10.2.1.0/24")));
    assert_eq!(routed(&known), ["n2", "n3"]);
    known.set_claim("10.2.1.0/24".parse().unwrap(), Some("n4".try_into().unwrap()));
    assert_eq!(names(&known), ["n3", "n4"]);
    assert_eq!(routed(&known), ["n3", "n4"]);
    assert!(known.awaited.is_empty());
}

#[test]
fn a5_remembered_nodes_have_their_blocks_before_the_store_answers() {
    let mut known = known();
    assert_eq!(routed(&known), ["n2", "n3"]);
    // The store answers: n2 has no claim any more, and one that cannot be read says what it said before.
    let unreadable = ClaimedBlock { block: "10.2.2.0/24".parse().unwrap(), owner: None };
    let all = vec![record("n2", 2, "10.2.1.0/24"), record("n3", 3, "10.2.2.0/24")];
    known.set_all(StoreListing { claims: vec![unreadable], ..store_listing(all, false) });
    assert_eq!(routed(&known), ["n3"]);
}

#[test]
fn nodes_that_a_whole_store_does_not_know_are_gone() {
    let mut known = known();
    known.set_all(store_listing(vec![record("n3", 3, "10.2.2.0/24")], false));
    assert_eq!(names(&known), ["n3"]);
}

#[test]
fn a5_a_refused_block_is_no_change_of_a_peer_after_a_restart() {
    let mut known = known();
    let both = nets(&["10.2.1.0/24", "10.2.9.0/24"]);
    let all = || {
        let claiming = NodeRecord { blocks: both.clone(), ..record("n2", 2, "10.2.1.0/24") };
        store_listing(vec![claiming, record("n3", 3, "10.2.2.0/24")], false)
    };
    assert_eq!(known.replace_all(all()), [], "10.2.9.0/24 has no claim");
    let mut claimed = all();
    claimed.claims.push(ClaimedBlock { block: both[1], owner: Some("n2".try_into().unwrap()) });
    let what = "blocks 10.2.1.0/24 -> 10.2.1.0/24,10.2.9.0/24".to_owned();
    assert_eq!(known.replace_all(claimed), [PeerChange::Changed("n2".try_into().unwrap(), what)]);
}

#[test]
fn a5_a_peer_with_a_block_of_one_family_joins_and_leaves() {
    let mut known = known();
    let (one, rest) = (record("n4", 4, "10.2.3.0/24"), || record("n3", 3, "10.2.2.0/24"));
    let gone = PeerChange::Left(record("n2", 2, "10.2.1.0/24"));
    assert_eq!(known.replace_all(store_listing(vec![rest(), one.clone()], false)), [gone]);
    assert_eq!(known.incomplete(Instant::now()), [], "it may be claiming the other one");
    let later = Instant::now() + Duration::from_secs(60);
    assert_eq!(known.incomplete(later), [PeerChange::Joined(one.clone())]);
    assert_eq!(known.incomplete(later), []);
    assert_eq!(known.replace_all(store_listing(vec![rest()], false)), [PeerChange::Left(one)]);
}
