//! The session with the store: joins the cluster, publishes this node's record and receives those of peers. It waits for the
//! store without a limit. No other component waits for it.
//!
//! ```text
//! join ─► list all ─► watch from there ─► Update … ─► routes
//!   ▲                       │ broken, compacted, own record or claim removed or taken
//!   └───────────────────────┘
//! ```
//!
//! Records and claims are listed together at one revision, and watched together from there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use model::{BlockAllocation, BlockClaim, NodeRecord, Object as _, ObjectId, StoredNode, listed};
use store::{Entry, Event, Listing, Store, StoreConfig, Watch, Watched};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info};
use types::{Digest, Mac, NetworkRef, NodeName, NodeUid};

use super::ask_error::AskError;
use super::claim_mirror::ClaimMirror;
use super::command::{MembershipCommand, StoreQuery, alive_at};
use super::contact::ListedNodes;
use super::heartbeat::NameLease;
use super::join::{Candidate, JoinError, Joined, Registry};
use super::networks::{self, BlockFit};
use super::object_recovery::{has_lost_objects, restore_objects};
use super::objects::ObjectMirror;
use super::shared::SharedMembership;
use crate::identities::{IdentityObserver, PublishSession, last_revision};
use crate::peers::PeerInputs;
use crate::peers::inputs::{RecordUpdate, StoreListing};

/// The first and the longest delay after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// After a session that was shorter than this, the next one is delayed.
const SHORT_SESSION: Duration = Duration::from_secs(1);
/// Delay before another attempt to take a name that another host holds.
const NAME_RETRY: Duration = Duration::from_secs(3);
/// How often maintenance runs: checks for pods in lost blocks, and retries failed writes to disk.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(5);
/// How long ADDs that began before a network was removed may take, before its blocks are checked for pods.
const RELEASE_DELAY: Duration = Duration::from_secs(2);
/// How often the watch is asked to confirm that it is complete.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// How long a reconnect waits before the session starts with it. Calls of the session retry for longer, in case etcd is restarted.
const RECONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Queries that are answered concurrently.
const MAX_QUERIES: usize = 8;

pub(crate) struct Member {
    pub(crate) registry: Registry,
    pub(crate) candidate: Candidate,
    pub(crate) shared: Arc<SharedMembership>,
    /// This node's current addresses. None before the first check.
    pub(crate) addresses: watch::Receiver<Option<Vec<IpAddr>>>,
    /// The MACs of the links with these addresses.
    pub(crate) macs: watch::Receiver<Vec<Mac>>,
    /// The lease of this node's name.
    pub(crate) name_lease: watch::Sender<Option<NameLease>>,
    /// Notified when another host holds the name, or none does.
    pub(crate) name_lost: Arc<Notify>,
    /// Receives updates about peers.
    pub(crate) peers: PeerInputs,
    pub(crate) objects: ObjectMirror,
    pub(crate) claims: ClaimMirror,
    pub(crate) identities: IdentityObserver,
    pub(crate) commands: mpsc::Receiver<MembershipCommand>,
    /// The revision of the last listing. A new store starts from the beginning.
    pub(crate) revision: u64,
    /// Unreadable keys of records and claims, and the reason.
    pub(crate) unread: BTreeMap<String, String>,
    /// The store lost its data, and the peers thread has not been notified yet.
    pub(crate) was_wiped: bool,
    /// Queries in progress. They end with the member.
    pub(crate) queries: JoinSet<()>,
    /// When the objects changed last.
    pub(crate) objects_changed_at: Instant,
    /// When maintenance is due.
    pub(crate) maintenance_at: Instant,
    /// When the watch is asked to confirm that it is complete.
    pub(crate) progress_at: Instant,
}

/// Why a session with the store ended.
pub(crate) enum SessionEnd {
    /// Join again immediately: the watch was compacted, or this node's record changed.
    Rejoin,
    /// The agent is stopping.
    Stopped,
}

impl Member {
    pub(crate) async fn run(mut self) {
        // Peers must never receive a record without addresses.
        if self.addresses.wait_for(Option::is_some).await.is_err() {
            return;
        }
        let (mut pause, mut tries) = (RETRY.0, 0_u64);
        loop {
            let started = Instant::now();
            let ended = self.session(&mut pause).await;
            drop(self.shared.watch_ended());
            self.identities.end_session();
            match ended {
                Ok(SessionEnd::Stopped) => return,
                Ok(SessionEnd::Rejoin) if started.elapsed() > SHORT_SESSION => {}
                // Another host may change the record each time, for example a clone with the same uid. The delay prevents a
                // busy loop.
                Ok(SessionEnd::Rejoin) => {
                    tries += 1;
                    // The store works, so queries wait meanwhile and are not refused.
                    sleep(with_jitter(RETRY.0, &self.candidate.record.uid, tries)).await;
                }
                Err(error) => {
                    self.shared.store_failed(&error);
                    let is_name_held = matches!(error, JoinError::Held { .. });
                    if is_name_held {
                        self.name_lease.send_replace(None);
                        self.lose_all(&error.to_string()).await;
                    }
                    let wait = if is_name_held { NAME_RETRY } else { pause };
                    pause = (pause * 2).min(RETRY.1);
                    tries += 1;
                    if self.idle(with_jitter(wait, &self.candidate.record.uid, tries)).await.is_break() {
                        return;
                    }
                }
            }
        }
    }

    /// Waits. Meanwhile, queries are refused if the store is unreachable, and answered if only the join failed.
    async fn idle(&mut self, wait: Duration) -> std::ops::ControlFlow<()> {
        let timer = sleep(wait);
        tokio::pin!(timer);
        loop {
            tokio::select! {
                () = &mut timer => return std::ops::ControlFlow::Continue(()),
                command = self.commands.recv() => match command {
                    Some(MembershipCommand::Ask(query)) if self.shared.contact.failure().is_none() => {
                        let own = self.candidate.record.name.clone();
                        self.answer(query, &own);
                    }
                    Some(command) => command.refuse(AskError::Unreachable(self.shared.store_problem())),
                    None => return std::ops::ControlFlow::Break(()),
                },
            }
        }
    }

    /// Fails if the store was reachable, or was not tried yet, and its host now refuses connections: etcd does not run. The
    /// calls of a session would retry for seconds before they report it. Any other failure is left to them, because a slow or
    /// restarting store is no outage.
    async fn check_connection(&self) -> Result<(), JoinError> {
        if self.shared.contact.outage().is_some() {
            return Ok(());
        }
        let store = self.registry.store.with_deadline(RECONNECT_TIMEOUT);
        match store.list(&self.registry.layout.networks()).await {
            Err(error) if error.is_connection_refused() => Err(error.into()),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    async fn session(&mut self, pause: &mut Duration) -> Result<SessionEnd, JoinError> {
        self.check_connection().await?;
        self.candidate.record.addresses = self.addresses.borrow_and_update().clone().unwrap_or_default();
        self.list_networks().await?;
        self.candidate.record.macs.clone_from(&self.macs.borrow_and_update());
        let (entered, lease) = self.registry.enter(&self.candidate).await?;
        self.candidate.released.clear();
        self.name_lease.send_replace(Some(lease));
        self.was_wiped |= entered.was_forgotten;
        // Lost blocks are withdrawn before anything else can fail.
        self.accept(&entered).await;
        // Before the listing below, which replaces the objects that this node knows.
        restore_objects(&self.registry, self.objects.catalog()).await?;
        let entered = Joined { was_forgotten: self.was_wiped, ..entered };
        let mut joined =
            self.registry.complete(entered, &self.candidate, &self.shared.peers_blocks()).await?;
        self.accept(&joined).await;
        let root = self.registry.layout.root();
        let listing = self.registry.store.list(&root).await?;
        let own = self.registry.layout.node(&joined.record.name);
        let revision = listing.entries.iter().find(|entry| entry.key == own).map(|entry| entry.revision);
        if revision != Some(joined.revision) || !self.has_claims(&joined, &listing) {
            info!("record or block claim of this node was changed during the join; joining again");
            return Ok(SessionEnd::Rejoin);
        }
        let mut watch = self.registry.store.watch(&root, listing.revision + 1).await?;
        // First, because they decide which claims are valid.
        self.list_objects(&listing);
        let store_listing = self.store_listing(&listing);
        self.revision = listing.revision;
        self.shared.set_objects_revision(listing.revision);
        self.list_identities(&listing, &store_listing);
        // After all values of the listing were read.
        self.shared.set_unread(&self.unread, &self.unread_nodes());
        self.peers.update(RecordUpdate::All(store_listing));
        self.was_wiped = false;
        let layout = &self.registry.layout;
        let agents = listing.entries.iter().filter_map(|entry| alive_at(layout, &entry.key, &entry.value));
        self.shared
            .contact
            .watch_started(ListedNodes { alive: agents.collect(), unread: self.unread_nodes() });
        self.list_leases(&listing);
        self.shared.store_works();
        *pause = RETRY.0;
        loop {
            self.identities.set_session(PublishSession {
                store: self.registry.store.clone(),
                record: joined.revision,
                blocks: joined.record.blocks.to_vec(),
            });
            joined = match self.next(&mut watch, joined).await? {
                Next::Continue(joined) => joined,
                Next::End(end) => return Ok(end),
            };
        }
    }

    /// Whether all blocks of this node have a claim that names it.
    fn has_claims(&self, joined: &Joined, listing: &Listing) -> bool {
        let layout = &self.registry.layout;
        let keys =
            joined.record.blocks.entries().map(|(network, block)| layout.network_block(network, block));
        let mut missing: BTreeSet<String> = keys.collect();
        for entry in &listing.entries {
            if self.is_own_claim(joined, &entry.key, &entry.value) {
                missing.remove(&entry.key);
            }
        }
        missing.is_empty()
    }

    /// Whether this claim names this node. A claim of a newer version counts as well, because it must not be changed.
    fn is_own_claim(&self, joined: &Joined, key: &str, value: &[u8]) -> bool {
        self.registry.layout.network_block_of(key).is_some()
            && match BlockClaim::decode(value) {
                Ok(claim) => claim.node == joined.record.name,
                Err(error) => error.is_of_other_version(),
            }
    }

    fn store_listing(&mut self, listing: &Listing) -> StoreListing {
        let keys: BTreeSet<&str> = listing.entries.iter().map(|entry| entry.key.as_str()).collect();
        self.unread.retain(|key, _| keys.contains(key.as_str()));
        let claim_of = |entry: &Entry| self.registry.layout.network_block_of(&entry.key);
        self.claims.retain(&listing.entries.iter().filter_map(claim_of).collect());
        let mut nodes = Vec::new();
        for entry in &listing.entries {
            nodes.extend(self.read(entry));
            self.put_claim(entry);
        }
        let claims = self.claims.list(&self.candidate.networks);
        self.was_wiped |= listing.revision < self.revision;
        let unread = self.unread.keys().filter_map(|key| self.registry.layout.node_of(key)).collect();
        StoreListing { nodes, claims, unreadable: unread, was_wiped: self.was_wiped }
    }

    /// Handles the next event.
    async fn next(&mut self, watch: &mut Watch, joined: Joined) -> Result<Next, JoinError> {
        // When nodes whose leases ended are reported.
        let report_at = self.shared.next_lease_report();
        tokio::select! {
            () = sleep_until(self.maintenance_at), if self.needs_maintenance(&joined.record) => {
                self.maintain(&joined.record).await;
                match self.candidate.released.is_empty() {
                    true => Ok(Next::Continue(joined)),
                    false => Ok(Next::End(SessionEnd::Rejoin)),
                }
            }
            watched = watch.next() => match watched? {
                Watched::Compacted => {
                    info!("store watch was compacted; listing again");
                    Ok(Next::End(SessionEnd::Rejoin))
                }
                Watched::Current => {
                    self.watch_confirmed();
                    Ok(Next::Continue(joined))
                }
                Watched::Events { events, revision } => {
                    self.watch_confirmed();
                    let next = self.apply_events(events, joined).await?;
                    match &next {
                        Next::Continue(_) => self.shared.set_objects_revision(revision),
                        Next::End(_) => {}
                    }
                    Ok(next)
                }
            },
            () = sleep_until(report_at.unwrap_or_else(Instant::now)), if report_at.is_some() => {
                self.shared.report();
                Ok(Next::Continue(joined))
            }
            () = sleep_until(self.progress_at) => {
                self.progress_at = Instant::now() + PROGRESS_INTERVAL;
                watch.request_progress().await?;
                Ok(Next::Continue(joined))
            }
            changed = self.addresses.changed() => {
                if changed.is_err() {
                    return Ok(Next::End(SessionEnd::Stopped));
                }
                let addresses = self.addresses.borrow_and_update().clone().unwrap_or_default();
                if joined.record.addresses == addresses {
                    return Ok(Next::Continue(joined));
                }
                info!(addresses = join_addresses(&addresses), "addresses of this node changed");
                self.reconnect()?;
                Ok(Next::End(SessionEnd::Rejoin))
            },
            changed = self.macs.changed() => Ok(match changed {
                Err(_) => Next::End(SessionEnd::Stopped),
                Ok(()) if *self.macs.borrow_and_update() == joined.record.macs => Next::Continue(joined),
                Ok(()) => Next::End(SessionEnd::Rejoin),
            }),
            command = self.commands.recv() => match command {
                None => Ok(Next::End(SessionEnd::Stopped)),
                Some(command) => self.run_command(command, joined).await,
            },
            () = self.name_lost.notified() => Ok(Next::End(SessionEnd::Rejoin)),
        }
    }

    fn needs_maintenance(&self, record: &NodeRecord) -> bool {
        !self.orphaned_blocks(record).is_empty()
            || self.shared.has_lost()
            || self.shared.is_unsaved()
            || self.shared.has_block_shortage()
    }

    async fn maintain(&mut self, record: &NodeRecord) {
        let orphaned = self.orphaned_blocks(record);
        let may_release_at = self.objects_changed_at + RELEASE_DELAY;
        let is_early = Instant::now() < may_release_at;
        if !orphaned.is_empty() && !is_early {
            let unused = self.shared.unused_blocks(orphaned).await;
            if !unused.is_empty() {
                info!(
                    blocks = listed(&unused),
                    "returning blocks of networks that this node does not have any more"
                );
            }
            self.candidate.released = unused.into_iter().collect();
        }
        if self.shared.has_lost() {
            self.shared.drop_unused_lost_blocks().await;
        }
        if self.shared.is_unsaved() {
            self.shared.retry_save(record).await;
        }
        self.shared.end_block_shortage(self.shared.config.reconcile * 3 + MAINTENANCE_INTERVAL);
        self.maintenance_at = Instant::now() + MAINTENANCE_INTERVAL;
        if is_early {
            self.maintenance_at = self.maintenance_at.min(may_release_at);
        }
    }

    async fn apply_events(&mut self, events: Vec<Event>, joined: Joined) -> Result<Next, JoinError> {
        self.update_agents(&events);
        let own = self.registry.layout.node(&joined.record.name);
        let is_removal = |event: &Event| matches!(event, Event::Delete { key, revision } if *key == own && *revision > joined.revision);
        if events.iter().any(is_removal) {
            // Peers whose records are removed at the same time were not removed by an operator: the store was wiped.
            info!("record of this node was removed from the store; joining again");
            return Ok(Next::End(SessionEnd::Rejoin));
        }
        if events.iter().any(|event| self.takes_claim(event, &joined)) {
            info!("block claim of this node was changed in the store; joining again");
            return Ok(Next::End(SessionEnd::Rejoin));
        }
        let revision = last_revision(&events);
        let mut updates = Vec::new();
        for event in events {
            if self.apply_object(&event) || self.apply_identity(&event) || self.apply_claim(&event) {
                continue;
            }
            let (key, update) = match event {
                Event::Put(entry) => {
                    // Also for a record that is now unreadable, unless a newer version wrote it.
                    let is_other =
                        || NodeRecord::decode(&entry.value).is_err_and(|error| error.is_of_other_version());
                    if entry.key == own && entry.revision > joined.revision && !is_other() {
                        info!("record of this node was changed in the store; joining again");
                        return Ok(Next::End(SessionEnd::Rejoin));
                    }
                    // An unreadable value does not replace the last known one.
                    let Some(node) = self.read(&entry) else { continue };
                    (entry.key, RecordUpdate::Node(node))
                }
                Event::Delete { key, .. } => {
                    self.unread.remove(&key);
                    let Some(name) = self.registry.layout.node_of(&key) else { continue };
                    (key, RecordUpdate::Gone(name))
                }
            };
            debug!(key, "received a change from the store");
            updates.push(update);
        }
        // The networks decide which claims are valid, and the claims which blocks of a record are.
        self.publish_objects();
        self.publish_claims();
        updates.into_iter().for_each(|update| self.publish_record(update));
        revision.into_iter().for_each(|revision| self.identities.publish(revision));
        self.shared.set_unread(&self.unread, &self.unread_nodes());
        self.shared.contact.set_unread(self.unread_nodes());
        Ok(Next::Continue(joined))
    }

    /// Whether the claim of a block of this node was removed or names another node. A new join writes it again.
    fn takes_claim(&self, event: &Event, joined: &Joined) -> bool {
        let layout = &self.registry.layout;
        let claim = layout.network_block_of(event.key());
        let is_own = claim.is_some_and(|(network, block)| joined.record.blocks.of(&network).contains(&block));
        is_own
            && event.revision() > joined.revision
            && match event {
                Event::Put(entry) => !self.is_own_claim(joined, &entry.key, &entry.value),
                Event::Delete { .. } => true,
            }
    }

    async fn run_command(&mut self, command: MembershipCommand, joined: Joined) -> Result<Next, JoinError> {
        match command {
            MembershipCommand::RequestBlock(request) => self.serve_block_request(&request, joined).await,
            MembershipCommand::Ask(query) => {
                self.answer(query, &joined.record.name);
                Ok(Next::Continue(joined))
            }
        }
    }

    /// Answers in a separate task, so that a slow listing does not delay events.
    fn answer(&mut self, query: StoreQuery, own: &NodeName) {
        while self.queries.try_join_next().is_some() {}
        if self.queries.len() >= MAX_QUERIES {
            query.refuse(AskError::Busy);
        } else if !query.is_abandoned() {
            let (registry, own, contact) =
                (self.registry.clone(), own.clone(), Arc::clone(&self.shared.contact));
            self.queries.spawn(async move { query.answer(registry, own, &contact).await });
        }
    }

    /// A connection from a removed source address would time out only after a long time, and with it the watch.
    fn reconnect(&mut self) -> Result<(), JoinError> {
        let config = super::store_config(&self.shared.config, &self.shared.node_state);
        if matches!(config, StoreConfig::Etcd(_)) {
            self.registry.store = Store::open(&config)?;
        }
        Ok(())
    }

    /// Adopts this node's record from the store.
    pub(crate) async fn accept(&mut self, joined: &Joined) {
        self.candidate.saved_blocks.clone_from(&joined.record.blocks);
        self.candidate.former = None;
        self.shared.accept(joined).await;
    }

    /// Another host holds this node's name and thus its blocks. Both return with the record when that host releases the name.
    async fn lose_all(&mut self, reason: &str) {
        self.candidate.saved_blocks = BlockAllocation::default();
        self.shared.lose_all(&self.candidate.record, reason).await;
    }

    /// Decodes a record. An unreadable record is reported, and the last known one stays in use.
    fn read(&mut self, entry: &Entry) -> Option<StoredNode> {
        let (name, read) = self.registry.layout.node_at(&entry.key, &entry.value)?;
        let is_other = NodeRecord::decode(&entry.value).is_err_and(|error| error.is_of_other_version());
        let read = read.map_err(|reason| match is_other {
            true => reason,
            false => format!(
                "{reason}; its agent replaces it at its next start; 'podwire node rm --force {name}' removes a node permanently"
            ),
        });
        let record = self.track_unread(&entry.key, read)?;
        Some(StoredNode { record, created: entry.created })
    }

    /// Reads the networks before the node's blocks are registered.
    async fn list_networks(&mut self) -> Result<(), JoinError> {
        let mut objects = self.objects.catalog().clone();
        // First: a store in which another node has written all objects meanwhile has them in the listing.
        let lost = has_lost_objects(&self.registry, &objects).await?;
        let listing = self.registry.store.list(&self.registry.layout.networks()).await?;
        let layout = &self.registry.layout;
        let ids: BTreeSet<ObjectId> =
            listing.entries.iter().filter_map(|it| layout.object_of(&it.key)).collect();
        let known: Vec<ObjectId> = match lost {
            true => Vec::new(),
            false => objects.records().map(|(id, _)| id).cloned().collect(),
        };
        for id in known.iter().filter(|id| id.network_ref().is_some() && !ids.contains(id)) {
            objects.forget(id);
        }
        for entry in &listing.entries {
            if let Some(id) = layout.object_of(&entry.key) {
                // Unreadable networks are reported when all objects are listed.
                let _ = objects.observe(&id, &entry.value);
            }
        }
        self.candidate.default_pools = networks::pools_in(&objects, &NetworkRef::default());
        self.candidate.networks = self.candidate.networks.with_objects(&objects);
        Ok(())
    }

    /// Passes changed objects on. Their networks decide which claims and blocks are valid.
    fn publish_objects(&mut self) {
        let Some(objects) = self.objects.publish() else { return };
        let networks = self.candidate.networks.with_objects(&objects);
        self.shared.set_objects(objects);
        self.publish_record(RecordUpdate::Networks(networks.all()));
        self.candidate.networks = networks;
        self.claims.networks_changed();
        self.objects_changed_at = Instant::now();
    }

    /// Own blocks of networks that do not exist any more, or that only other nodes have now.
    fn orphaned_blocks(&self, record: &NodeRecord) -> Vec<IpNet> {
        let is_orphaned = |(network, block): &(&NetworkRef, &IpNet)| {
            let known = self.objects.catalog().network(&network.tenant, &network.network);
            let is_elsewhere = known.is_some_and(|known| !known.includes_node(&record.name));
            !network.is_default()
                && (is_elsewhere || self.candidate.networks.fit(network, block) == BlockFit::Outside)
        };
        let orphaned = record.blocks.entries().filter(is_orphaned);
        orphaned.map(|(_, block)| *block).collect()
    }

    fn list_objects(&mut self, listing: &Listing) {
        let object_of = |entry: &Entry| self.registry.layout.object_of(&entry.key);
        let listed = listing.entries.iter().filter_map(object_of).collect();
        self.objects.retain(&listed);
        for entry in &listing.entries {
            if let Some(id) = self.registry.layout.object_of(&entry.key) {
                self.put_object(&id, entry);
            }
        }
        self.publish_objects();
        // They were listed before the other objects, and may have changed since.
        self.candidate.networks = self.candidate.networks.with_objects(self.objects.catalog());
    }

    fn put_object(&mut self, id: &ObjectId, entry: &Entry) {
        let read = self.objects.put(id, &entry.value);
        let in_force = match self.objects.is_known(id) {
            true => "; the last valid version is in force",
            false => "",
        };
        self.track_unread(
            &entry.key,
            read.map_err(|error| format!("{} in the store is not used: {error}{in_force}", entry.key)),
        );
    }

    /// Whether the event is about an object.
    fn apply_object(&mut self, event: &Event) -> bool {
        let Some(id) = self.registry.layout.object_of(event.key()) else { return false };
        match event {
            Event::Put(entry) => self.put_object(&id, entry),
            Event::Delete { key, .. } => {
                self.unread.remove(key);
                self.objects.delete(&id);
            }
        }
        debug!(key = event.key(), "received an object from the store");
        true
    }

    /// Before the listing is passed to the peers thread.
    fn list_identities(&mut self, listing: &Listing, nodes: &StoreListing) {
        self.identities.list_nodes(nodes);
        self.identities.begin_listing(listing);
        listing.entries.iter().for_each(|entry| self.put_identity(entry));
        self.identities.publish(listing.revision);
    }

    fn put_identity(&mut self, entry: &Entry) {
        if let Some(read) = self.identities.put(entry) {
            let reason = |error| format!("{} in the store is not used: {error}", entry.key);
            self.track_unread(&entry.key, read.map_err(reason));
        }
    }

    /// Whether the event is about a pod or an identity.
    fn apply_identity(&mut self, event: &Event) -> bool {
        if !self.identities.is_watched(event.key()) {
            return false;
        }
        match event {
            Event::Put(entry) => self.put_identity(entry),
            Event::Delete { key, .. } => {
                self.unread.remove(key);
                self.identities.delete(key);
            }
        }
        true
    }

    /// Whether the event is about a claim.
    fn apply_claim(&mut self, event: &Event) -> bool {
        let Some((network, block)) = self.registry.layout.network_block_of(event.key()) else { return false };
        match event {
            Event::Put(entry) => self.put_claim(entry),
            Event::Delete { key, .. } => {
                self.unread.remove(key);
                self.claims.delete(&network, &block);
            }
        }
        debug!(key = event.key(), "received a claim from the store");
        true
    }

    /// Does nothing if the entry is no claim.
    fn put_claim(&mut self, entry: &Entry) {
        if let Some((network, block, read)) = self.registry.layout.claim_at(&entry.key, &entry.value) {
            let owner = self.track_unread(&entry.key, read);
            self.claims.put(network, block, owner);
        }
    }

    /// Passes changed owners of blocks on.
    fn publish_claims(&mut self) {
        for claim in self.claims.take_changes(&self.candidate.networks) {
            self.publish_record(RecordUpdate::Claim(claim));
        }
    }

    fn publish_record(&self, update: RecordUpdate) {
        self.identities.update_node(&update);
        self.peers.update(update);
    }

    /// Tracks which keys cannot be read.
    fn track_unread<T>(&mut self, key: &str, read: Result<T, String>) -> Option<T> {
        let reason = match read {
            Ok(object) => {
                self.unread.remove(key);
                return Some(object);
            }
            Err(reason) => reason,
        };
        self.unread.insert(key.to_owned(), reason);
        None
    }
}

/// Between half and one and a half of `wait`, so that nodes do not join at the same moment after an outage.
pub(crate) fn with_jitter(wait: Duration, uid: &NodeUid, tries: u64) -> Duration {
    let byte = Digest::of(&["wait", uid.as_str(), &tries.to_string()]).first5()[0];
    wait / 2 + wait * u32::from(byte) / 256
}

fn join_addresses(addresses: &[IpAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    if texts.is_empty() { "no address".to_owned() } else { texts.join(" and ") }
}

/// The result of an event.
pub(crate) enum Next {
    Continue(Joined),
    End(SessionEnd),
}
