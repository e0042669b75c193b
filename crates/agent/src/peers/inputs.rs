//! The input of the peers thread from other threads, and its reports to them.
//!
//! ```text
//! membership: records ─► slot ─┐                ┌─► addresses, position, records ─► membership
//! API: queries ───────► queue ─┴─► peers thread ─┴─► tunnel sizes ─► reconciler
//! ```
//!
//! No thread waits for the peers thread. Records that change while it works are merged in the slot: the last state of each key
//! counts, so that the slot is never larger than the store's contents.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;
use model::{BlockLayout, NodeRecord, StoredNode};
use tokio::sync::{oneshot, watch};
use types::{Mac, NodeName};

use crate::membership::AskError;
use crate::waker::Waker;

/// Capacity of the queue. Further queries are refused.
const MAX_QUERIES: usize = 256;

/// A change of the store's contents that concerns peers.
#[derive(Debug)]
pub(crate) enum RecordUpdate {
    All(StoreListing),
    Node(StoredNode),
    Gone(NodeName),
    Claim(ClaimedBlock),
    /// How all networks are divided into blocks.
    Networks(Vec<BlockLayout>),
}

/// The owner of a block. In a listing, None means that the claim cannot be read; in an update, that there is none.
#[derive(Debug)]
pub(crate) struct ClaimedBlock {
    pub(crate) block: IpNet,
    pub(crate) owner: Option<NodeName>,
}

/// All nodes and claims in the store.
#[derive(Debug)]
pub(crate) struct StoreListing {
    pub(crate) nodes: Vec<StoredNode>,
    pub(crate) claims: Vec<ClaimedBlock>,
    /// Nodes with a record that cannot be read.
    pub(crate) unreadable: BTreeSet<NodeName>,
    /// The store lost its data. Nodes that are missing from it will register again.
    pub(crate) was_wiped: bool,
}

/// Updates that the peers thread has not taken yet.
#[derive(Debug, Default)]
pub(crate) struct RecordUpdates {
    /// It is applied before the changes below, which are newer.
    pub(super) store_listing: Option<StoreListing>,
    /// None: the node was removed.
    pub(super) nodes: BTreeMap<NodeName, Option<StoredNode>>,
    pub(crate) claims: BTreeMap<IpNet, Option<NodeName>>,
    /// Applied first, because they decide which claims are valid.
    pub(super) block_layouts: Option<Vec<BlockLayout>>,
}

impl RecordUpdates {
    fn merge(&mut self, update: RecordUpdate) {
        match update {
            RecordUpdate::All(store_listing) => {
                // Peers that an earlier listing lacked because the store was wiped are not in this one either.
                let was_wiped = self.store_listing.as_ref().is_some_and(|earlier| earlier.was_wiped);
                let store_listing =
                    StoreListing { was_wiped: store_listing.was_wiped || was_wiped, ..store_listing };
                let block_layouts = self.block_layouts.take();
                *self = Self { store_listing: Some(store_listing), block_layouts, ..Self::default() };
            }
            RecordUpdate::Node(node) => {
                self.nodes.insert(node.record.name.clone(), Some(node));
            }
            RecordUpdate::Gone(name) => {
                self.nodes.insert(name, None);
            }
            RecordUpdate::Claim(ClaimedBlock { block, owner }) => {
                self.claims.insert(block, owner);
            }
            RecordUpdate::Networks(block_layouts) => self.block_layouts = Some(block_layouts),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.store_listing.is_none()
            && self.nodes.is_empty()
            && self.claims.is_empty()
            && self.block_layouts.is_none()
    }
}

/// A query of an API client that is answered without the store.
#[derive(Debug)]
pub(crate) enum PeerQuery {
    /// The routes of the kernel.
    Routes(oneshot::Sender<Result<Vec<api::RouteView>, AskError>>),
    /// The cluster as this node knows it.
    Contents(oneshot::Sender<PeerContents>),
}

impl PeerQuery {
    /// The client does not wait any more.
    fn is_over(&self) -> bool {
        match self {
            Self::Routes(done) => done.is_closed(),
            Self::Contents(done) => done.is_closed(),
        }
    }
}

/// Records and claims of all other nodes.
#[derive(Debug)]
pub(crate) struct PeerContents {
    pub(crate) nodes: Vec<StoredNode>,
    pub(crate) claims: Vec<(IpNet, NodeName)>,
}

/// The sending side, for other threads.
#[derive(Debug, Clone)]
pub(crate) struct PeerInputs {
    slot: Arc<Mutex<RecordUpdates>>,
    queries: SyncSender<PeerQuery>,
    waker: Waker,
}

/// The receiving side.
#[derive(Debug)]
pub(crate) struct PeerQueue {
    slot: Arc<Mutex<RecordUpdates>>,
    queries: Receiver<PeerQuery>,
    pub(super) waker: Waker,
}

/// `waker` wakes the peers thread.
pub(crate) fn inputs(waker: Waker) -> (PeerInputs, PeerQueue) {
    let slot = Arc::<Mutex<RecordUpdates>>::default();
    let (queries, receiver) = mpsc::sync_channel(MAX_QUERIES);
    let queue = PeerQueue { slot: Arc::clone(&slot), queries: receiver, waker: waker.clone() };
    (PeerInputs { slot, queries, waker }, queue)
}

impl PeerInputs {
    pub(crate) fn update(&self, update: RecordUpdate) {
        lock(&self.slot).merge(update);
        self.waker.wake();
    }

    /// Does not wait: fails with `Busy` if the queue is full, and with `Stopped` if the thread has ended.
    pub(crate) fn send_query(&self, query: PeerQuery) -> Result<(), AskError> {
        self.queries.try_send(query).map_err(|error| match error {
            TrySendError::Full(_) => AskError::Busy,
            TrySendError::Disconnected(_) => AskError::Stopped,
        })?;
        self.waker.wake();
        Ok(())
    }
}

impl PeerQueue {
    pub(crate) fn take(&self) -> RecordUpdates {
        // First, so that later input wakes the thread again.
        self.waker.clear();
        std::mem::take(&mut *lock(&self.slot))
    }

    /// The next query. The thread is woken again for the following one and takes updates in between, so that clients that query
    /// without a pause delay no route.
    pub(super) fn next_query(&self) -> Option<PeerQuery> {
        let query = self.queries.try_iter().find(|query| !query.is_over())?;
        self.waker.wake();
        Some(query)
    }
}

fn lock(slot: &Mutex<RecordUpdates>) -> MutexGuard<'_, RecordUpdates> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// This node's addresses and MTU, from the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NodePosition {
    /// Former addresses of families in which this node has none now.
    pub(crate) lost: Vec<IpAddr>,
    /// The MTU of pods. None: not known now.
    pub(crate) mtu: Option<u32>,
}

/// The peers as they are to be written to disk, for a boot without the store.
#[derive(Debug, Clone, Default)]
pub(crate) struct PeerRecords {
    pub(crate) records: Arc<Vec<NodeRecord>>,
    /// Peers that have not registered again since the store lost its data.
    pub(crate) awaited: Vec<NodeName>,
}

/// The reports of the peers thread to membership: the latest value of each.
#[derive(Debug)]
pub(crate) struct PeerReports {
    /// This node's addresses. None: not known yet.
    pub(crate) addresses: watch::Sender<Option<Vec<IpAddr>>>,
    /// The MACs of the links with these addresses.
    pub(crate) macs: watch::Sender<Vec<Mac>>,
    pub(crate) position: watch::Sender<NodePosition>,
    pub(crate) records: watch::Sender<PeerRecords>,
}

#[derive(Debug, Clone)]
pub(crate) struct PeerReportReceivers {
    pub(crate) addresses: watch::Receiver<Option<Vec<IpAddr>>>,
    pub(crate) macs: watch::Receiver<Vec<Mac>>,
    pub(crate) position: watch::Receiver<NodePosition>,
    pub(crate) records: watch::Receiver<PeerRecords>,
}

pub(crate) fn reports() -> (PeerReports, PeerReportReceivers) {
    let (addresses, published) = watch::channel(None);
    let (position, positions) = watch::channel(NodePosition::default());
    let (macs, published_macs) = watch::channel(Vec::new());
    let (records, saved) = watch::channel(PeerRecords::default());
    let receivers = PeerReportReceivers {
        addresses: published,
        macs: published_macs,
        position: positions,
        records: saved,
    };
    (PeerReports { addresses, macs, position, records }, receivers)
}

#[cfg(test)]
mod tests {
    use model::BlockAllocation;
    use types::NodeUid;

    use super::*;

    fn node(name: &str, created: u64) -> StoredNode {
        let record = NodeRecord {
            name: name.try_into().unwrap(),
            uid: NodeUid::from_random([1; 16]),
            addresses: Vec::new(),
            blocks: BlockAllocation::default(),
            tunnel_mac: Mac::local([0, 0, 0, 0, 1]),
            macs: Vec::new(),
            version: "1".to_owned(),
            transport: None,
        };
        StoredNode { record, created }
    }

    fn store_listing(was_wiped: bool) -> RecordUpdate {
        let (nodes, claims, unreadable) = (Vec::new(), Vec::new(), BTreeSet::new());
        RecordUpdate::All(StoreListing { nodes, claims, unreadable, was_wiped })
    }

    #[test]
    fn updates_for_a_blocked_thread_are_merged() {
        let (inputs, queue) = inputs(Waker::new().unwrap());
        let block: IpNet = "fd00:2:0:0:1000::/68".parse().unwrap();
        for created in 1..10_000 {
            inputs.update(RecordUpdate::Node(node("n2", created)));
            inputs.update(RecordUpdate::Claim(ClaimedBlock { block, owner: None }));
            inputs.update(RecordUpdate::Node(node("n3", created)));
            inputs.update(RecordUpdate::Gone("n3".try_into().unwrap()));
        }
        let RecordUpdates { store_listing, nodes, claims, .. } = queue.take();
        assert!(store_listing.is_none() && claims.len() == 1, "{store_listing:?} {claims:?}");
        let created: Vec<Option<u64>> =
            nodes.values().map(|node| node.as_ref().map(|it| it.created)).collect();
        assert_eq!(created, [Some(9_999), None]);
        assert!(queue.take().is_empty());
    }

    #[test]
    fn a_listing_replaces_earlier_updates_but_not_the_wiped_flag() {
        let (inputs, queue) = inputs(Waker::new().unwrap());
        inputs.update(store_listing(true));
        inputs.update(RecordUpdate::Node(node("n2", 1)));
        inputs.update(store_listing(false));
        inputs.update(RecordUpdate::Gone("n3".try_into().unwrap()));
        let updates = queue.take();
        assert!(updates.store_listing.unwrap().was_wiped, "the flag of the earlier listing is lost");
        assert_eq!(updates.nodes.len(), 1);
    }

    #[test]
    fn updates_are_taken_between_queries_of_clients() {
        let (inputs, queue) = inputs(Waker::new().unwrap());
        let ask = || {
            let (answer, waits) = oneshot::channel();
            inputs.send_query(PeerQuery::Contents(answer)).unwrap();
            waits
        };
        let (_first, second, _third) = (ask(), ask(), ask());
        drop(second);
        for has_query in [true, true, false] {
            inputs.update(store_listing(false));
            assert!(!queue.take().is_empty());
            assert_eq!((queue.next_query().is_some(), queue.waker.is_awake()), (has_query, has_query));
        }
    }

    #[test]
    fn a_query_to_a_blocked_or_ended_thread_is_refused() {
        let (inputs, queue) = inputs(Waker::new().unwrap());
        let ask = || inputs.send_query(PeerQuery::Contents(oneshot::channel().0));
        for _ in 0..MAX_QUERIES {
            assert_eq!(ask(), Ok(()));
        }
        assert_eq!(ask(), Err(AskError::Busy));
        drop(queue);
        assert_eq!(ask(), Err(AskError::Stopped));
    }
}
