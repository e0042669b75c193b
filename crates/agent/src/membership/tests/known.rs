//! Which peers are kept when the store does not know them.

use std::time::{Duration, Instant};

use model::{LocalNode, NoPath, PeerPath, StoredNode, Transport, Tunnels};

use super::*;
use crate::peers::inputs::{ClaimedBlock, StoreListing};
use crate::peers::known::{KnownPeers, PeerChange};

fn record(name: &str, uid: u8, block: &str) -> NodeRecord {
    NodeRecord { blocks: blocks(&[block]), ..candidate(name, uid).record }
}

fn known() -> KnownPeers {
    known_with_margin(spec().margin)
}

/// The saved peers of [`known`] on a node that is configured with this margin.
fn known_with_margin(margin: u8) -> KnownPeers {
    let local_node = LocalNode {
        name: "n1".try_into().unwrap(),
        blocks: nets(&["10.2.0.0/24"]),
        block_layouts: NetworkLayouts::of_default(&NetworkSpec { margin, ..spec() }).unwrap().all(),
        transport: Transport::Auto,
        underlays: Vec::new(),
        tunnels: Tunnels::default(),
        sources: Vec::new(),
    };
    let remembered = vec![record("n2", 2, "10.2.1.0/24"), record("n3", 3, "10.2.2.0/24")];
    KnownPeers::new(local_node, spec().subnets, remembered)
}

fn names(known: &KnownPeers) -> Vec<&str> {
    known.mesh.peers().map(|peer| peer.name.as_str()).collect()
}

fn stored(record: NodeRecord) -> StoredNode {
    StoredNode { record, created: 1 }
}

/// A listing with claims of all blocks.
fn store_listing(records: Vec<NodeRecord>, was_wiped: bool) -> StoreListing {
    let claim = |record: &NodeRecord| ClaimedBlock {
        block: record.blocks.of(&NetworkRef::default())[0],
        owner: Some(record.name.clone()),
    };
    let claims = records.iter().map(claim).collect();
    StoreListing {
        nodes: records.into_iter().map(stored).collect(),
        claims,
        unreadable: BTreeSet::new(),
        was_wiped,
    }
}

fn routed(known: &KnownPeers) -> Vec<String> {
    let is_refused = |path: &PeerPath| matches!(path, PeerPath::None(NoPath::Refused(_)));
    known.mesh.paths().filter(|(_, _, path)| !is_refused(path)).map(|(name, ..)| name.to_string()).collect()
}

#[test]
fn nodes_missing_after_a_wipe_are_kept_until_their_block_is_claimed() {
    let mut known = known();
    known.set_all(store_listing(vec![record("n3", 3, "10.2.2.0/24")], true));
    known.remove_expired();
    assert_eq!(names(&known), ["n2", "n3"]);
    let until = known.awaited[&"n2".try_into().unwrap()];
    assert!(until > Instant::now() + Duration::from_secs(1800), "the node must be kept for about an hour");
    // A record without a claim takes neither the block nor the waiting time.
    known.set_peer(stored(record("n4", 4, "10.2.1.0/24")));
    assert_eq!(routed(&known), ["n2", "n3"]);
    known.set_claim("10.2.1.0/24".parse().unwrap(), Some("n4".try_into().unwrap()));
    assert_eq!(names(&known), ["n3", "n4"]);
    assert_eq!(routed(&known), ["n3", "n4"]);
    assert!(known.awaited.is_empty());
}

#[test]
fn a5_saved_peers_have_their_blocks_before_the_store_answers() {
    let mut known = known();
    assert_eq!(routed(&known), ["n2", "n3"]);
    // The store has no claim of n2. The unreadable claim keeps its last known owner.
    let unreadable = ClaimedBlock { block: "10.2.2.0/24".parse().unwrap(), owner: None };
    let all = vec![record("n2", 2, "10.2.1.0/24"), record("n3", 3, "10.2.2.0/24")];
    known.set_all(StoreListing { claims: vec![unreadable], ..store_listing(all, false) });
    assert_eq!(routed(&known), ["n3"]);
}

#[test]
fn nodes_missing_in_an_intact_store_are_removed() {
    let mut known = known();
    known.set_all(store_listing(vec![record("n3", 3, "10.2.2.0/24")], false));
    assert_eq!(names(&known), ["n3"]);
}

#[test]
fn a5_a_refused_block_is_not_reported_as_a_change() {
    let mut known = known();
    let both = nets(&["10.2.1.0/24", "10.2.9.0/24"]);
    let all = || {
        let claiming = NodeRecord {
            blocks: BlockAllocation::of_default(both.clone()),
            ..record("n2", 2, "10.2.1.0/24")
        };
        store_listing(vec![claiming, record("n3", 3, "10.2.2.0/24")], false)
    };
    assert_eq!(known.replace_all(all()), [], "10.2.9.0/24 has no claim");
    let mut claimed = all();
    claimed.claims.push(ClaimedBlock { block: both[1], owner: Some("n2".try_into().unwrap()) });
    let what = "blocks 10.2.1.0/24 -> 10.2.1.0/24,10.2.9.0/24".to_owned();
    assert_eq!(known.replace_all(claimed), [PeerChange::Changed("n2".try_into().unwrap(), what)]);
}

#[test]
fn a5_a_peer_with_one_family_joins_and_leaves() {
    let mut known = known();
    let (one, n3) = (record("n4", 4, "10.2.3.0/24"), || record("n3", 3, "10.2.2.0/24"));
    let left = PeerChange::Left(record("n2", 2, "10.2.1.0/24"));
    assert_eq!(known.replace_all(store_listing(vec![n3(), one.clone()], false)), [left]);
    assert_eq!(known.take_late_joins(Instant::now()), [], "it may still be claiming the other family");
    let later = Instant::now() + Duration::from_secs(60);
    assert_eq!(known.take_late_joins(later), [PeerChange::Joined(one.clone())]);
    assert_eq!(known.take_late_joins(later), []);
    assert_eq!(known.replace_all(store_listing(vec![n3()], false)), [PeerChange::Left(one)]);
}

/// The advice of `PeerRecordRefused` is to remove the peer, but this node's configuration is wrong.
#[test]
fn a1_saved_peers_are_not_reported_as_refused_with_another_margin() {
    let refused = |known: &KnownPeers| {
        known.findings().iter().any(|finding| finding.code == types::Code::PeerRecordRefused)
    };
    let mut known = known_with_margin(spec().margin - 1);
    assert!(routed(&known).is_empty(), "the blocks must not fit the margin");
    assert!(!refused(&known), "{:?}", known.findings());
    known.set_all(store_listing(vec![record("n2", 2, "10.2.1.0/24")], false));
    assert!(refused(&known), "the store has listed the record");
}

#[test]
fn a1_blocks_of_another_layout_count_until_the_store_lists_its_nodes() {
    assert!(!known().has_other_layout());
    let mut known = known().with_other_layout(true);
    assert!(known.has_other_layout());
    known.set_all(store_listing(vec![record("n2", 2, "10.2.1.0/24")], false));
    assert!(!known.has_other_layout(), "the store has accepted the configuration");
}

/// Otherwise, one wrong record would keep a node that boots without the store from all peers.
#[test]
fn a5_records_of_peers_with_other_blocks_are_no_other_layout() {
    assert!(!known_with_margin(spec().margin - 1).has_other_layout());
}
