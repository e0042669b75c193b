//! What the parts of the cluster's side share: the node's blocks and MTU, which make its allocation; and what is wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ipnet::IpNet;
use model::NodeRecord;
use netconf::{Network, NodeAllocation};
use tokio::sync::watch;
use tokio::task::{self, spawn_blocking};
use tokio::time::{Instant, sleep};
use tracing::{error, warn};
use types::{Code, Finding, Fix, NodeName};

use super::contact::Contact;
use super::grow::BlockRequest;
use super::join::{JoinError, Joined};
use super::leases::{LeaseEvent, Leases};
use super::node_state::{NodeStateDir, NodeStateDirError};
use super::outage;
use super::{block_layouts, is_alone};
use crate::agent_status::AgentStatus;
use crate::allocation::{BlockUsage, NodeAllocations};
use crate::clock::Now;
use crate::conditions::Source;
use crate::peers::inputs::{NodePosition, PeerRecords};
use crate::peers::tunnel::OVERHEAD_V6;
use config::Config;

/// One for all of them.
pub(crate) struct SharedMembership {
    pub(crate) config: Arc<Config>,
    pub(crate) node_state: NodeStateDir,
    pub(crate) contact: Arc<Contact>,
    allocations: Arc<NodeAllocations>,
    pub(crate) agent_status: Arc<AgentStatus>,
    /// A node that nobody can join: it has all of the network, whatever its store says.
    pub(crate) is_alone: bool,
    /// Held while the time of the copy on disk is set.
    pub(super) noting: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<MembershipState>,
}

#[derive(Default)]
struct MembershipState {
    blocks: Vec<IpNet>,
    mtu: Option<u32>,
    /// Why the store cannot be used.
    trouble: Option<Finding>,
    /// Keys in the store that cannot be read, each with the reason.
    unread: BTreeMap<String, String>,
    /// Nodes whose record is among them.
    unread_nodes: BTreeSet<NodeName>,
    /// Blocks that were ours, and whose they are.
    lost: BTreeMap<IpNet, NodeName>,
    /// Our record as it was written down last.
    saved: Option<NodeRecord>,
    unsaved: Option<String>,
    /// Why the other nodes are not written down as they are.
    forgetful: Option<String>,
    /// Of the other nodes, as far as they are known.
    peers_blocks: Vec<IpNet>,
    /// Nodes that are known here, and that a store which lost its data does not know.
    awaited: Vec<NodeName>,
    /// Of this node.
    lost_addresses: Vec<IpAddr>,
    /// Why there is no other block, where one is needed.
    cramped: Option<(Finding, Arc<BlockRequest>)>,
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
            noting: Arc::default(),
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, MembershipState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The blocks that were ours when this was last known: they are in force until the store says otherwise.
    pub(crate) fn remember(&self, mut blocks: Vec<IpNet>) {
        if self.is_alone {
            blocks.clone_from(&self.config.network.subnets);
        } else {
            let block_layouts = block_layouts(&self.config);
            blocks.retain(|block| block_layouts.iter().any(|block_layout| block_layout.owns(block)));
        }
        {
            let mut state = self.lock();
            state.blocks = blocks;
            state.mtu = self.node_state.mtu().filter(|_| !self.is_alone);
        }
        self.renew();
    }

    /// The store has our record.
    pub(crate) async fn accept(&self, joined: &Joined) {
        // Before the disk is asked, which may hang: another node may give away these addresses already.
        self.give_up_others(&joined.record.blocks);
        // New blocks are saved first: those whose addresses are given to pods must be known after a reboot.
        self.save(&joined.record).await;
        {
            let mut state = self.lock();
            if !self.is_alone {
                state.blocks.clone_from(&joined.record.blocks);
            }
            state.lost.extend(joined.lost.iter().cloned());
            state.lost.retain(|block, _| !joined.record.blocks.contains(block));
        }
        self.renew();
        self.tell();
    }

    /// Gives up the blocks that are not among these.
    fn give_up_others(&self, blocks: &[IpNet]) {
        if self.is_alone {
            return;
        }
        let is_less = {
            let owned = &mut self.lock().blocks;
            let before = owned.len();
            owned.retain(|block| blocks.contains(block));
            owned.len() < before
        };
        if is_less {
            self.renew();
        }
    }

    /// The store says that our name is another machine's: nothing is ours, now and after a reboot.
    pub(crate) async fn lose_all(&self, record: &NodeRecord, why: &str) {
        if self.is_alone {
            return;
        }
        self.lock().blocks.clear();
        self.allocations.set_blocks(Vec::new());
        self.withdraw(why);
        self.save(&NodeRecord { blocks: Vec::new(), ..record.clone() }).await;
        self.tell();
    }

    pub(crate) fn has_lost(&self) -> bool {
        !self.lock().lost.is_empty()
    }

    /// Lost blocks of which no pod has an address any more are no concern of anybody.
    pub(crate) async fn forget_lost(&self) {
        let lost: Vec<IpNet> = self.lock().lost.keys().copied().collect();
        let config = Arc::clone(&self.config);
        let look = move || {
            let is_free = |block: &IpNet| {
                let (name, run_dir) = (&config.network.name, config.run_dir.as_path());
                let network = Network::new(&config.network, vec![*block], None);
                network.is_ok_and(|network| !BlockUsage { network: &network, name, run_dir }.is_used())
            };
            lost.into_iter().filter(is_free).collect::<Vec<_>>()
        };
        match spawn_blocking(look).await {
            Ok(free) => self.lock().lost.retain(|block, _| !free.contains(block)),
            Err(error) => warn!("cannot look for pods with addresses of lost blocks: {error}"),
        }
        self.tell();
    }

    pub(crate) fn is_unsaved(&self) -> bool {
        self.lock().unsaved.is_some()
    }

    /// The disk may be better by now.
    pub(crate) async fn save_again(&self, record: &NodeRecord) {
        self.save(record).await;
        self.tell();
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

    /// None says nothing: a link that is away for a moment comes back as it was. Returns the MTU if it is to be saved.
    fn set_mtu(&self, mtu: Option<u32>) -> Option<u32> {
        // Alone there is no tunnel to make room for.
        let mtu = mtu.filter(|mtu| !self.is_alone && self.lock().mtu != Some(*mtu))?;
        self.lock().mtu = Some(mtu);
        self.renew();
        Some(mtu)
    }

    /// Follows what the peers thread finds out about this node.
    pub(crate) async fn follow_position(&self, mut position: watch::Receiver<NodePosition>) {
        loop {
            let NodePosition { lost, mtu } = position.borrow_and_update().clone();
            self.set_lost_addresses(&lost);
            if let Some(mtu) = self.set_mtu(mtu) {
                let node_state = self.node_state.clone();
                let saved = spawn_blocking(move || node_state.save_mtu(mtu)).await;
                if let Some(error) = failure(saved) {
                    warn!("the MTU cannot be remembered: {error}");
                }
            }
            if position.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Writes the peers to disk when they change, for a boot without the store.
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
            self.know_peers(&records, awaited);
            let node_state = self.node_state.clone();
            let saved = failure(spawn_blocking(move || node_state.save_peers(records.iter())).await);
            is_saved = saved.is_none();
            self.set_forgetful(saved.map(|error| {
                format!("the other nodes cannot be written down, for a boot without the store: {error}")
            }));
        }
    }

    /// What fits on most links with room for either tunnel, for a node that boots before its link has an address. A pod
    /// keeps what it was made with: too little is slower, too much does not work.
    fn cautious_mtu(&self) -> Option<u32> {
        let has_tunnel = !self.is_alone && self.config.cluster.transport != model::Transport::Direct;
        has_tunnel.then_some(1500 - OVERHEAD_V6)
    }

    /// Puts the allocation in force, if it differs from the one in force.
    fn renew(&self) {
        let (blocks, mtu) = {
            let state = self.lock();
            (state.blocks.clone(), state.mtu)
        };
        self.allocations.set_blocks(blocks.clone());
        let network = &self.config.network;
        let has_none = |subnet: &&IpNet| !blocks.iter().any(|block| subnet.contains(block));
        if let Some(subnet) = network.subnets.iter().find(has_none) {
            return self.withdraw(&format!("this node has no block of {subnet} any more"));
        }
        let mtu = network.mtu.or(mtu).or_else(|| self.cautious_mtu());
        if self.allocations.default_network().is_ok_and(|own| own.blocks() == blocks && own.mtu() == mtu) {
            return;
        }
        match Network::new(network, blocks, mtu) {
            Ok(network) => self.allocations.set(NodeAllocation::of_default(Arc::new(network))),
            Err(error) => self.allocations.explain(format!("the agent's own network: {error}")),
        }
    }

    /// Withdraws the allocation. Requests that wait get no addresses that are another machine's. Pods that run keep what they
    /// have, and so do those whose request is being served.
    fn withdraw(&self, why: &str) {
        if self.allocations.withdraw(why) {
            error!("{why}: no pod gets an address until it has one");
            self.allocations.report_block(&self.agent_status, &self.config.network.name);
        }
    }

    /// The first answer may take a while.
    pub(crate) fn explain_asking(&self, store: &str) {
        self.allocations.explain(format!("this node has no block yet: {store} is asked for one"));
    }

    /// The other nodes, and those of them that the store does not know.
    pub(crate) fn know_peers(&self, peers: &[NodeRecord], awaited: Vec<NodeName>) {
        let blocks = peers.iter().flat_map(|peer| peer.blocks.iter().copied()).collect();
        let is_event = {
            let mut state = self.lock();
            state.peers_blocks = blocks;
            let is_event = state.awaited != awaited;
            state.awaited = awaited;
            is_event
        };
        if is_event {
            self.tell();
        }
    }

    /// They are nobody else's, whatever a store says that lost its data.
    pub(crate) fn peers_blocks(&self) -> Vec<IpNet> {
        self.lock().peers_blocks.clone()
    }

    pub(crate) fn blocks(&self) -> Vec<IpNet> {
        self.lock().blocks.clone()
    }

    /// This node could not join, or its watch broke. An outage is reported by [`Self::unreachable`].
    pub(crate) fn store_failed(&self, error: &JoinError) {
        self.contact.session_failed(error);
        if !error.is_transient() {
            self.lock().trouble = Some(error.finding());
        } else if !self.contact.is_reachable() {
            self.lock().trouble = None;
        }
        self.tell();
        self.allocations.explain(format!("this node has no block yet: {error}"));
    }

    pub(crate) fn set_growth_trouble(&self, what: Option<(Finding, Arc<BlockRequest>)>) {
        self.lock().cramped = what;
        self.tell();
    }

    pub(crate) fn lacks_free_block(&self) -> bool {
        self.lock().cramped.is_some()
    }

    /// Reconcile rounds ask for a block while the node needs one. If none has asked for this time, the need is over.
    pub(crate) fn end_growth_trouble(&self, after: Duration) {
        let is_over = self.lock().cramped.as_ref().is_some_and(|(_, request)| request.idle() > after);
        if is_over {
            self.set_growth_trouble(None);
        }
    }

    pub(crate) fn store_works(&self) {
        self.lock().trouble = None;
        self.tell();
    }

    /// Why the other nodes could not be written down; None: they are.
    fn set_forgetful(&self, why: Option<String>) {
        if self.lock().forgetful != why {
            self.lock().forgetful = why;
            self.tell();
        }
    }

    /// Keys, and the nodes whose record is at one of them.
    pub(crate) fn set_unread(&self, unread: &BTreeMap<String, String>, nodes: &BTreeMap<NodeName, String>) {
        if self.lock().unread != *unread {
            let mut state = self.lock();
            state.unread.clone_from(unread);
            state.unread_nodes = nodes.keys().cloned().collect();
            drop(state);
            self.tell();
        }
    }

    pub(crate) fn store_trouble(&self) -> String {
        let trouble = self.lock().trouble.as_ref().map(|trouble| trouble.message.clone());
        trouble
            .or_else(|| self.contact.silence())
            .unwrap_or_else(|| "the store is being asked for the first time".to_owned())
    }

    pub(crate) fn tell(&self) {
        let outage = self.contact.silence().map(|why| {
            let found = outage::finding(&self.config.store, &why);
            // etcd need not be the cause.
            match self.lock().lost_addresses.first() {
                Some(lost) => Finding {
                    message: format!("{why}; this node lost its address {lost}"),
                    ..found.fix("ip address show")
                },
                None => found,
            }
        });
        let (mut findings, lapses) = {
            let state = &mut *self.lock();
            let lapses = state.leases.findings(&self.config.node, &state.unread_nodes, &Now::read());
            // While this node cannot join, nothing is known about the others.
            (state.findings(&self.node_state), if state.trouble.is_none() { lapses } else { Vec::new() })
        };
        match outage {
            Some(outage) => findings.push(outage),
            None => findings.extend(lapses),
        }
        let denial = self.contact.denial().map(|why| Finding::new(Code::StoreFailed, "store", why));
        // A failure to join has the same code and object, and is the later one.
        findings.extend(denial.filter(|_| self.lock().trouble.is_none()));
        self.agent_status.set(Source::Cluster, findings);
    }

    fn set_lost_addresses(&self, lost: &[IpAddr]) {
        if self.lock().lost_addresses != lost {
            self.lock().lost_addresses = lost.to_vec();
            self.tell();
        }
    }

    /// The store has these nodes, and these leases.
    pub(crate) fn list_leases(&self, nodes: BTreeSet<NodeName>, held: BTreeSet<NodeName>) {
        self.lock().leases.set_all(nodes, held, Now::read().instant);
    }

    pub(crate) fn note_leases(&self, events: impl Iterator<Item = LeaseEvent>) {
        let now = Now::read().instant;
        let is_changed = {
            let mut state = self.lock();
            let changes: Vec<bool> = events.map(|event| state.leases.apply(event, now)).collect();
            changes.contains(&true)
        };
        if is_changed {
            self.tell();
        }
    }

    /// When nodes without a lease are reported next.
    pub(crate) fn next_lapse(&self) -> Option<Instant> {
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

impl MembershipState {
    fn findings(&self, node_state: &NodeStateDir) -> Vec<Finding> {
        let mut all: Vec<Finding> = self.trouble.iter().cloned().collect();
        let unread = self.unread.iter();
        all.extend(
            unread.map(|(key, why)| Finding::new(Code::StoreValueUnreadable, format_args!("key {key}"), why)),
        );
        let directory = node_state.dir().to_string_lossy();
        let unsaved = self.unsaved.iter().chain(&self.forgetful);
        all.extend(unsaved.map(|why| {
            let found = Finding::new(Code::StateDirUnwritable, format_args!("directory {directory}"), why);
            found.fix(Fix::words(["df", "-h", &directory]))
        }));
        all.extend(self.cramped.iter().map(|(found, _)| found.clone()));
        all.extend(self.awaited.iter().map(|node| {
            let message = "it has not registered again since the store lost its data; its routes and blocks are kept \
                           for an hour";
            Finding::new(Code::PeerNotRegistered, format_args!("node {node}"), message)
        }));
        all.extend(self.lost.iter().map(|(block, node)| {
            let message = format!(
                "block {block} was this node's and belongs to {node} now: pods with addresses of it cannot be reached \
                 from other nodes"
            );
            Finding::new(Code::BlockLost, format_args!("block {block}"), message)
        }));
        all
    }
}
