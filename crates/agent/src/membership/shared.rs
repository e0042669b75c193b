//! State that the parts of membership share: the blocks and the MTU, which determine the node's allocation, and the conditions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ipnet::IpNet;
use model::{BlockAllocation, Catalog, NodeRecord};
use netconf::Network;
use tokio::sync::{Notify, watch};
use tokio::task::{self, spawn_blocking};
use tokio::time::{Instant, sleep, timeout};
use tracing::{error, warn};
use types::{Code, Finding, Fix, NetworkRef, NodeName};

use super::block_requests::BlockRequest;
use super::contact::Contact;
use super::join::{JoinError, Joined};
use super::leases::{LeaseEvent, Leases};
use super::networks::{BlockFit, NetworkLayouts, NodeNetworkInputs};
use super::node_state::{NodeStateDir, NodeStateDirError, UnreadableObjects};
use super::outage;
use super::{is_alone, networks_of};
use crate::agent_status::AgentStatus;
use crate::allocation::{BlockUsage, NoBlock, NodeAllocations};
use crate::clock::Now;
use crate::conditions::Source;
use crate::identities::SharedMirror;
use crate::peers::inputs::{NodePosition, PeerRecords};
use crate::peers::tunnel::OVERHEAD_V6;
use config::Config;

/// The shortest pause between two writes of the pods to disk.
const SAVE_PODS: Duration = Duration::from_secs(1);
/// The same per address, because those of a large cluster are many megabytes.
const SAVE_EACH_POD: Duration = Duration::from_micros(100);

pub(crate) struct SharedMembership {
    pub(crate) config: Arc<Config>,
    pub(crate) node_state: NodeStateDir,
    pub(crate) contact: Arc<Contact>,
    allocations: Arc<NodeAllocations>,
    pub(crate) agent_status: Arc<AgentStatus>,
    /// A single node that no other node can join: it has the whole network, independent of its store.
    pub(crate) is_alone: bool,
    /// Held while the modification time of the copy on disk is set.
    pub(super) saving_time: Arc<tokio::sync::Mutex<()>>,
    /// The revision of the store up to which the objects of this node are known.
    objects_revision: watch::Sender<u64>,
    state: Mutex<MembershipState>,
}

#[derive(Default)]
struct MembershipState {
    blocks: BlockAllocation,
    objects: Option<Arc<Catalog>>,
    mtu: Option<u32>,
    /// Why the store cannot be used.
    store_problem: Option<Finding>,
    /// Unreadable keys in the store, each with the reason.
    unread: BTreeMap<String, String>,
    /// Nodes with an unreadable record.
    unread_nodes: BTreeSet<NodeName>,
    /// Former blocks of this node, each with its new owner.
    lost: BTreeMap<IpNet, NodeName>,
    /// The record on disk.
    saved: Option<NodeRecord>,
    /// Why the record could not be saved.
    unsaved: Option<String>,
    /// Why the peers could not be saved.
    unsaved_peers: Option<String>,
    unsaved_objects: Option<String>,
    /// Why the saved objects are not known, until the store has answered.
    unreadable_objects: Option<String>,
    unsaved_pods: Option<String>,
    /// The blocks of known peers.
    peers_blocks: Vec<IpNet>,
    /// Known nodes that are missing in a store that lost its data.
    awaited: Vec<NodeName>,
    /// Addresses that this node lost.
    lost_addresses: Vec<IpAddr>,
    /// Why no other block can be claimed although one is needed.
    block_shortage: Option<(Finding, Arc<BlockRequest>)>,
    leases: Leases,
}

impl SharedMembership {
    pub(crate) fn new(
        config: &Arc<Config>,
        (allocations, agent_status): (Arc<NodeAllocations>, Arc<AgentStatus>),
        node_state: NodeStateDir,
    ) -> Self {
        Self {
            is_alone: is_alone(config),
            contact: Arc::new(Contact::new(node_state.saved_at())),
            config: Arc::clone(config),
            node_state,
            allocations,
            agent_status,
            saving_time: Arc::default(),
            objects_revision: watch::Sender::new(0),
            state: Mutex::default(),
        }
    }

    /// The objects were published after all changes up to this revision.
    pub(crate) fn set_objects_revision(&self, revision: u64) {
        self.objects_revision.send_replace(revision);
    }

    /// Waits until this node knows its own change of objects, so that the next query of the same client shows it.
    pub(crate) async fn wait_for_objects(&self, revision: u64, within: Duration) {
        let mut known = self.objects_revision.subscribe();
        // The change is in the store, even if the watch is late.
        drop(timeout(within, known.wait_for(|known| *known >= revision)).await);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, MembershipState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the saved blocks of this node. They are in force until the store says otherwise. Returns whether some do not fit the
    /// configured subnets and margin.
    pub(crate) fn set_saved_blocks(&self, mut blocks: BlockAllocation) -> bool {
        let saved = blocks.len();
        if self.is_alone {
            blocks = BlockAllocation::of_default(self.config.network.subnets.clone());
        } else {
            let networks = networks_of(&self.config);
            blocks.retain(|network, block| {
                !network.is_default() || networks.fit(network, block) == BlockFit::Fits
            });
        }
        let is_other_layout = !self.is_alone && blocks.len() < saved;
        {
            let mut state = self.lock();
            state.blocks = blocks;
            state.mtu = self.node_state.mtu().filter(|_| !self.is_alone);
        }
        self.update_allocation();
        is_other_layout
    }

    /// Adopts this node's record from the store.
    pub(crate) async fn accept(&self, joined: &Joined) {
        // Before the disk is used, which may hang: another node may already allocate addresses of lost blocks.
        self.retain_blocks(&joined.record.blocks);
        // New blocks are saved before they are used: after a reboot, blocks with addresses of pods must be known.
        self.save(&joined.record).await;
        {
            let mut state = self.lock();
            if !self.is_alone {
                state.blocks.clone_from(&joined.record.blocks);
            }
            state.lost.extend(joined.lost.iter().cloned());
            state.lost.retain(|block, _| !joined.record.blocks.contains(block));
        }
        self.update_allocation();
        self.report();
    }

    /// Withdraws all blocks that are not in this list.
    fn retain_blocks(&self, blocks: &BlockAllocation) {
        if self.is_alone {
            return;
        }
        let has_lost = {
            let owned = &mut self.lock().blocks;
            let before = owned.len();
            owned.retain(|network, block| blocks.of(network).contains(block));
            owned.len() < before
        };
        if has_lost {
            self.update_allocation();
        }
    }

    /// Another host holds this node's name: this node owns no block, now and after a reboot.
    pub(crate) async fn lose_all(&self, record: &NodeRecord, reason: &str) {
        if self.is_alone {
            return;
        }
        self.lock().blocks = BlockAllocation::default();
        self.withdraw(Vec::new(), reason);
        self.save(&NodeRecord { blocks: BlockAllocation::default(), ..record.clone() }).await;
        self.report();
    }

    pub(crate) fn has_lost(&self) -> bool {
        !self.lock().lost.is_empty()
    }

    /// Drops lost blocks in which no pod has an address.
    pub(crate) async fn drop_unused_lost_blocks(&self) {
        let lost: Vec<IpNet> = self.lock().lost.keys().copied().collect();
        let unused = self.unused_blocks(lost).await;
        self.lock().lost.retain(|block, _| !unused.contains(block));
        self.report();
    }

    pub(crate) fn is_unsaved(&self) -> bool {
        self.lock().unsaved.is_some()
    }

    /// Called from time to time, because the disk may work again.
    pub(crate) async fn retry_save(&self, record: &NodeRecord) {
        self.save(record).await;
        self.report();
    }

    async fn save(&self, record: &NodeRecord) {
        if self.lock().saved.as_ref() == Some(record) {
            return;
        }
        let (node_state, copy) = (self.node_state.clone(), record.clone());
        let saved = failure(spawn_blocking(move || node_state.save_record(&copy)).await);
        let mut state = self.lock();
        state.saved = saved.is_none().then(|| record.clone());
        if state.unsaved != saved {
            state.unsaved = saved;
        }
    }

    /// None changes nothing, because a link may be down only briefly. Returns the MTU if it has to be saved.
    fn set_mtu(&self, mtu: Option<u32>) -> Option<u32> {
        // A single node has no tunnel to peers.
        let mtu = mtu.filter(|mtu| !self.is_alone && self.lock().mtu != Some(*mtu))?;
        self.lock().mtu = Some(mtu);
        self.update_allocation();
        Some(mtu)
    }

    /// Follows the reports of the peers thread about this node's addresses and MTU.
    pub(crate) async fn follow_position(&self, mut position: watch::Receiver<NodePosition>) {
        loop {
            let NodePosition { lost, mtu } = position.borrow_and_update().clone();
            self.set_lost_addresses(&lost);
            if let Some(mtu) = self.set_mtu(mtu) {
                let node_state = self.node_state.clone();
                let saved = spawn_blocking(move || node_state.save_mtu(mtu)).await;
                if let Some(error) = failure(saved) {
                    warn!(%error, "cannot save the MTU");
                }
            }
            if position.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Saves the peers on each change, for a boot without the store.
    pub(crate) async fn save_peers(&self, mut reported: watch::Receiver<PeerRecords>) {
        let mut is_saved = true;
        loop {
            let changed = tokio::select! {
                changed = reported.changed() => changed.is_ok(),
                () = sleep(self.config.reconcile), if !is_saved => true,
            };
            if !changed {
                return std::future::pending().await;
            }
            let PeerRecords { records, awaited } = reported.borrow_and_update().clone();
            self.set_peers(&records, awaited);
            let node_state = self.node_state.clone();
            let saved = failure(spawn_blocking(move || node_state.save_peers(records.iter())).await);
            is_saved = saved.is_none();
            self.set_unsaved_peers(
                saved.map(|error| format!("cannot save the peers for a boot without the store: {error}")),
            );
        }
    }

    /// Saves the objects on each change, for a start without the store.
    pub(crate) async fn save_objects(&self, mut changed: watch::Receiver<Option<Arc<Catalog>>>) {
        let mut is_saved = true;
        loop {
            let is_changed = tokio::select! {
                changed = changed.changed() => changed.is_ok(),
                () = sleep(self.config.reconcile), if !is_saved => true,
            };
            if !is_changed {
                return std::future::pending().await;
            }
            let Some(objects) = changed.borrow_and_update().clone() else { continue };
            let node_state = self.node_state.clone();
            let saved = failure(spawn_blocking(move || node_state.save_objects(&objects)).await);
            is_saved = saved.is_none();
            let reason = "cannot save tenants and policies for a start without the store";
            self.lock().unsaved_objects = saved.map(|error| format!("{reason}: {error}"));
            self.report();
        }
    }

    /// Saves the pods of other nodes after changes, for a start without the store.
    pub(crate) async fn save_pods(&self, (mirror, changed): (SharedMirror, Arc<Notify>)) {
        let mut is_saved = true;
        loop {
            tokio::select! {
                () = changed.notified() => {}
                () = sleep(self.config.reconcile), if !is_saved => {}
            }
            let pods = mirror.lock().unwrap_or_else(PoisonError::into_inner).saved();
            let pause =
                SAVE_PODS + SAVE_EACH_POD.saturating_mul(u32::try_from(pods.len()).unwrap_or(u32::MAX));
            let node_state = self.node_state.clone();
            let saved = failure(spawn_blocking(move || node_state.save_pods(&pods)).await);
            is_saved = saved.is_none();
            let reason = "cannot save the pods of other nodes for a start without the store";
            self.set_unsaved_pods(saved.map(|error| format!("{reason}: {error}")));
            sleep(pause).await;
        }
    }

    fn set_unsaved_pods(&self, reason: Option<String>) {
        let is_changed = {
            let mut state = self.lock();
            let is_changed = state.unsaved_pods != reason;
            state.unsaved_pods = reason;
            is_changed
        };
        if is_changed {
            self.report();
        }
    }

    /// An MTU that fits on most links with either tunnel, for a boot before the node's link has an address. Pods keep the MTU
    /// that they were created with. A small MTU only costs throughput, but one that is too large loses packets.
    fn fallback_mtu(&self) -> Option<u32> {
        let has_tunnel = !self.is_alone && self.config.cluster.transport != model::Transport::Direct;
        has_tunnel.then_some(1500 - OVERHEAD_V6)
    }

    /// Sets the objects that contain the networks of the cluster.
    pub(crate) fn set_objects(&self, objects: Arc<Catalog>) {
        let was_unreadable = {
            let mut state = self.lock();
            state.objects = Some(objects);
            state.unreadable_objects.take().is_some()
        };
        self.update_allocation();
        if was_unreadable {
            self.report();
        }
    }

    /// The saved objects cannot be read, and the store has not answered yet.
    pub(crate) fn set_unreadable_objects(&self, error: &UnreadableObjects) {
        warn!(%error, "the saved objects are not used");
        self.lock().unreadable_objects = Some(error.to_string());
        self.report();
    }

    /// How the networks are divided into blocks, as far as this node knows.
    pub(crate) fn networks(&self) -> NetworkLayouts {
        let default = networks_of(&self.config);
        match &self.lock().objects {
            Some(objects) => default.with_objects(objects),
            None => default,
        }
    }

    /// Sets the allocation if it changed.
    fn update_allocation(&self) {
        let (blocks, mtu, objects) = {
            let state = self.lock();
            (state.blocks.clone(), state.mtu, state.objects.clone())
        };
        let network = &self.config.network;
        let default_blocks = blocks.of(&NetworkRef::default()).to_vec();
        let all: Vec<IpNet> = default_first(&blocks);
        let has_none = |subnet: &&IpNet| !default_blocks.iter().any(|block| subnet.contains(block));
        if let Some(subnet) = network.subnets.iter().find(has_none) {
            return self.withdraw(all, &format!("this node no longer has a block of {subnet}"));
        }
        let mtu = mtu.or_else(|| self.fallback_mtu());
        let inputs = NodeNetworkInputs {
            settings: network,
            node: &self.config.node,
            blocks: &blocks,
            mtu,
            is_alone: self.is_alone,
        };
        match inputs.allocation(objects.as_deref()) {
            Ok(allocation) => {
                let is_current = self.allocations.get().is_ok_and(|current| *current == allocation)
                    && self.allocations.blocks() == all;
                if !is_current {
                    self.allocations.set(all, Ok(allocation));
                }
            }
            Err(error) => {
                let reason = format!("network of the agent: {error}");
                self.withdraw(all, &reason);
                self.allocations.explain(reason);
            }
        }
    }

    /// The blocks in which no pod has an address. The caller has withdrawn them before.
    pub(crate) async fn unused_blocks(&self, blocks: Vec<IpNet>) -> Vec<IpNet> {
        let config = Arc::clone(&self.config);
        let find_unused = move || {
            let (name, run_dir) = (&config.network.name, config.run_dir.as_path());
            let is_unused = |block: &IpNet| {
                let network = Network::new(&config.network, vec![*block], None);
                network.is_ok_and(|network| !BlockUsage { network: &network, name, run_dir }.is_used())
            };
            blocks.into_iter().filter(is_unused).collect::<Vec<_>>()
        };
        spawn_blocking(find_unused).await.unwrap_or_else(|error| {
            warn!(%error, "cannot check for pods with addresses of blocks");
            Vec::new()
        })
    }

    /// Sets the blocks without an allocation. Waiting requests get no addresses that now belong to another host. Running pods keep their
    /// addresses, and so do requests that are being served.
    fn withdraw(&self, blocks: Vec<IpNet>, reason: &str) {
        if self.allocations.set(blocks, Err(NoBlock(reason.to_owned()))) {
            error!(reason, "block withdrawn; new pods get no addresses");
            self.allocations.report_block(&self.agent_status, &self.config.network.name);
        }
    }

    /// Sets the reason for the missing block until the store's first answer.
    pub(crate) fn explain_waiting(&self, store: &str) {
        self.allocations.explain(format!("this node has no block yet: waiting for {store}"));
    }

    /// Sets the known peers, and those of them that are missing in the store.
    pub(crate) fn set_peers(&self, peers: &[NodeRecord], awaited: Vec<NodeName>) {
        let blocks = peers.iter().flat_map(|peer| peer.blocks.iter().copied()).collect();
        let is_changed = {
            let mut state = self.lock();
            state.peers_blocks = blocks;
            let is_changed = state.awaited != awaited;
            state.awaited = awaited;
            is_changed
        };
        if is_changed {
            self.report();
        }
    }

    /// The blocks of known peers. They must not be claimed, even if a store that lost its data has no claim for them.
    pub(crate) fn peers_blocks(&self) -> Vec<IpNet> {
        self.lock().peers_blocks.clone()
    }

    pub(crate) fn blocks(&self) -> BlockAllocation {
        self.lock().blocks.clone()
    }

    /// This node could not join, or its watch broke. [`Contact`] reports outages.
    pub(crate) fn store_failed(&self, error: &JoinError) {
        self.contact.session_failed(error);
        if !error.is_transient() {
            let finding = error.finding(&self.config);
            self.allocations.explain(format!("this node has no block yet, see {}: {error}", finding.code));
            self.lock().store_problem = Some(finding);
            return self.report();
        }
        if !self.contact.is_reachable() {
            self.lock().store_problem = None;
        }
        self.report();
        self.allocations.explain(format!("this node has no block yet: {error}"));
    }

    pub(crate) fn set_block_shortage(&self, shortage: Option<(Finding, Arc<BlockRequest>)>) {
        self.lock().block_shortage = shortage;
        self.report();
    }

    pub(crate) fn has_block_shortage(&self) -> bool {
        self.lock().block_shortage.is_some()
    }

    /// Reconcile rounds request a block while the node needs one. Without a request for this time, the shortage is over.
    pub(crate) fn end_block_shortage(&self, after: Duration) {
        let is_over = self.lock().block_shortage.as_ref().is_some_and(|(_, request)| request.idle() > after);
        if is_over {
            self.set_block_shortage(None);
        }
    }

    pub(crate) fn store_works(&self) {
        self.lock().store_problem = None;
        self.report();
    }

    /// Why the peers could not be saved. None if they were.
    fn set_unsaved_peers(&self, reason: Option<String>) {
        if self.lock().unsaved_peers != reason {
            self.lock().unsaved_peers = reason;
            self.report();
        }
    }

    /// Sets the unreadable keys, and the nodes of those that are records.
    pub(crate) fn set_unread(&self, unread: &BTreeMap<String, String>, nodes: &BTreeMap<NodeName, String>) {
        if self.lock().unread != *unread {
            let mut state = self.lock();
            state.unread.clone_from(unread);
            state.unread_nodes = nodes.keys().cloned().collect();
            drop(state);
            self.report();
        }
    }

    pub(crate) fn store_problem(&self) -> String {
        let problem = self.lock().store_problem.as_ref().map(|problem| problem.message.clone());
        problem
            .or_else(|| self.contact.outage())
            .unwrap_or_else(|| "the store has not answered yet".to_owned())
    }

    pub(crate) fn report(&self) {
        let outage = self.contact.outage().map(|reason| {
            let finding = outage::finding(&self.config, &reason);
            // etcd need not be the cause.
            match self.lock().lost_addresses.first() {
                Some(lost) => Finding {
                    message: format!("{reason}; this node lost its address {lost}: see NodeAddressMissing"),
                    ..finding.fix("ip address show")
                },
                None => finding,
            }
        });
        let (mut findings, lapses) = {
            let state = &mut *self.lock();
            let lapses = state.leases.findings(&self.config.node, &state.unread_nodes, &Now::read());
            // While this node cannot join, the leases of other nodes are unknown.
            (
                state.findings(&self.node_state),
                if state.store_problem.is_none() { lapses } else { Vec::new() },
            )
        };
        match outage {
            Some(outage) => findings.push(outage),
            None => findings.extend(lapses),
        }
        let denial = self.contact.denial().map(|reason| Finding::new(Code::StoreFailed, "store", reason));
        // A failed join has the same code and object, and is newer.
        findings.extend(denial.filter(|_| self.lock().store_problem.is_none()));
        self.agent_status.set(Source::Cluster, findings);
    }

    fn set_lost_addresses(&self, lost: &[IpAddr]) {
        if self.lock().lost_addresses != lost {
            self.lock().lost_addresses = lost.to_vec();
            self.report();
        }
    }

    /// Sets the nodes and leases of a listing.
    pub(crate) fn list_leases(&self, nodes: BTreeSet<NodeName>, held: BTreeSet<NodeName>) {
        self.lock().leases.set_all(nodes, held, Now::read().instant);
    }

    pub(crate) fn apply_lease_events(&self, events: impl Iterator<Item = LeaseEvent>) {
        let now = Now::read().instant;
        let is_changed = {
            let mut state = self.lock();
            let changes: Vec<bool> = events.map(|event| state.leases.apply(event, now)).collect();
            changes.contains(&true)
        };
        if is_changed {
            self.report();
        }
    }

    /// When nodes without a lease are reported next.
    pub(crate) fn next_lease_report(&self) -> Option<Instant> {
        self.lock().leases.report_at().map(Instant::from_std)
    }
}

/// Why a file could not be written.
fn failure(written: Result<Result<(), NodeStateDirError>, task::JoinError>) -> Option<String> {
    match written {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(error) => Some(error.to_string()),
    }
}

/// All blocks, those of the default network first.
fn default_first(blocks: &BlockAllocation) -> Vec<IpNet> {
    let default = NetworkRef::default();
    let others = blocks.entries().filter(|(network, _)| !network.is_default()).map(|(_, block)| *block);
    blocks.of(&default).iter().copied().chain(others).collect()
}

impl MembershipState {
    fn findings(&self, node_state: &NodeStateDir) -> Vec<Finding> {
        let mut all: Vec<Finding> = self.store_problem.iter().cloned().collect();
        let unread = self.unread.iter();
        all.extend(unread.map(|(key, reason)| {
            Finding::new(Code::StoreValueUnreadable, format_args!("key {key}"), reason)
        }));
        let unreadable = self.unreadable_objects.iter();
        all.extend(unreadable.map(|reason| Finding::new(Code::PolicyNotEnforced, "policies", reason)));
        let directory = node_state.dir().to_string_lossy();
        let unsaved = self
            .unsaved
            .iter()
            .chain(&self.unsaved_peers)
            .chain(&self.unsaved_objects)
            .chain(&self.unsaved_pods);
        all.extend(unsaved.map(|reason| {
            let finding =
                Finding::new(Code::StateDirUnwritable, format_args!("directory {directory}"), reason);
            finding.fix(Fix::words(["df", "-h", &directory]))
        }));
        all.extend(self.block_shortage.iter().map(|(finding, _)| finding.clone()));
        all.extend(self.awaited.iter().map(|node| {
            let message = "it has not registered again since the store lost its data; its routes and blocks are kept for an hour";
            Finding::new(Code::PeerNotRegistered, format_args!("node {node}"), message)
        }));
        all.extend(self.lost.iter().map(|(block, node)| {
            let message = format!(
                "block {block} of this node now belongs to {node}: pods with its addresses are not reachable from other nodes"
            );
            Finding::new(Code::BlockLost, format_args!("block {block}"), message)
        }));
        all
    }
}
