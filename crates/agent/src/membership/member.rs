//! The store's side: join, tell who we are, hear of the others. It waits for the store as long as it takes; nothing that
//! runs waits for it.
//!
//! ```text
//! join ─► list all ─► watch from there ─► Update … ─► routes
//!   ▲                       │ broken, compacted, own record or claim removed or taken
//!   └───────────────────────┘
//! ```
//!
//! Records and claims are listed together, as they were at one moment, and watched together from there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use model::{BlockClaim, BlockLayout, NodeRecord, Object as _, StoredNode};
use store::{Entry, Event, Listing, Store, StoreConfig, Watch, Watched};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info};
use types::{Digest, NodeName, NodeUid};

use super::alive::Hold;
use super::ask_error::AskError;
use super::command::{MembershipCommand, StoreQuery, alive_at};
use super::contact::ListedNodes;
use super::join::{Candidate, JoinError, Joined, Registry};
use super::shared::SharedMembership;
use crate::peers::PeerInputs;
use crate::peers::inputs::{ClaimedBlock, RecordUpdate, StoreListing};

/// How long after a failure it is tried again: at first, and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// A session that ended sooner is not begun again at once.
const SHORT: Duration = Duration::from_secs(1);
/// A name that another machine holds is asked for again after this time.
const HELD: Duration = Duration::from_secs(3);
/// How often it is asked whether pods have addresses of blocks that were lost, and written down what could not be.
const AFTERCARE: Duration = Duration::from_secs(5);
/// How often the watch is asked whether it is complete.
const PROGRESS: Duration = Duration::from_secs(5);
/// Questions that are answered at the same time.
const AT_ONCE: usize = 8;

pub(crate) struct Member {
    pub(crate) registry: Registry,
    pub(crate) candidate: Candidate,
    /// How the network is divided into blocks.
    pub(crate) block_layouts: Vec<BlockLayout>,
    pub(crate) shared: Arc<SharedMembership>,
    /// Our addresses, as they are now. None: nobody has looked yet.
    pub(crate) addresses: watch::Receiver<Option<Vec<IpAddr>>>,
    /// What keeps our name.
    pub(crate) holds: watch::Sender<Option<Hold>>,
    /// Somebody else has it, or nobody.
    pub(crate) lost: Arc<Notify>,
    /// Where updates of other nodes go.
    pub(crate) peers: PeerInputs,
    pub(crate) commands: mpsc::Receiver<MembershipCommand>,
    /// Of the last list. A store that was made anew counts from the beginning.
    pub(crate) revision: u64,
    /// Keys of records and claims that cannot be read, and why.
    pub(crate) unread: BTreeMap<String, String>,
    /// The store lost what it knew, and the routes have not been told yet.
    pub(crate) was_wiped: bool,
    /// Questions that are being answered. They end with the member.
    pub(crate) asked: JoinSet<()>,
    /// When what was left undone is looked at.
    pub(crate) aftercare_at: Instant,
    /// When the watch is asked whether it is complete.
    pub(crate) progress_at: Instant,
}

/// Why a session with the store ended.
pub(crate) enum SessionEnd {
    /// Begin again at once: the watch was compacted, or our record changed.
    Again,
    /// The agent ends.
    Over,
}

impl Member {
    pub(crate) async fn run(mut self) {
        // So that others never hear of a node without knowing where it is.
        if self.addresses.wait_for(Option::is_some).await.is_err() {
            return;
        }
        let (mut pause, mut tries) = (RETRY.0, 0_u64);
        loop {
            let begun = Instant::now();
            let ended = self.session(&mut pause).await;
            drop(self.shared.watch_ended());
            match ended {
                Ok(SessionEnd::Over) => return,
                Ok(SessionEnd::Again) if begun.elapsed() > SHORT => {}
                // Somebody who changes our record each time (a machine that was cloned with its uid) must not make a race of it.
                Ok(SessionEnd::Again) => {
                    tries += 1;
                    // The store works: whoever asks meanwhile waits as well, and is not refused.
                    sleep(spread(RETRY.0, &self.candidate.record.uid, tries)).await;
                }
                Err(error) => {
                    self.shared.store_failed(&error);
                    let is_held = matches!(error, JoinError::Held { .. });
                    if is_held {
                        self.holds.send_replace(None);
                        self.lose_all(&error.to_string()).await;
                    }
                    let wait = if is_held { HELD } else { pause };
                    pause = (pause * 2).min(RETRY.1);
                    tries += 1;
                    if self.idle(spread(wait, &self.candidate.record.uid, tries)).await.is_break() {
                        return;
                    }
                }
            }
        }
    }

    /// Waits. Meanwhile clients are refused if the store is away, and answered if it is only this node that cannot join.
    async fn idle(&mut self, wait: Duration) -> std::ops::ControlFlow<()> {
        let over = sleep(wait);
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return std::ops::ControlFlow::Continue(()),
                command = self.commands.recv() => match command {
                    Some(MembershipCommand::Ask(ask)) if self.shared.contact.failure().is_none() => {
                        let own = self.candidate.record.name.clone();
                        self.answer(ask, &own);
                    }
                    Some(command) => command.refuse(AskError::Unreachable(self.shared.store_trouble())),
                    None => return std::ops::ControlFlow::Break(()),
                },
            }
        }
    }

    async fn session(&mut self, pause: &mut Duration) -> Result<SessionEnd, JoinError> {
        self.candidate.record.addresses = self.addresses.borrow_and_update().clone().unwrap_or_default();
        let (entered, hold) = self.registry.enter(&self.candidate).await?;
        self.holds.send_replace(Some(hold));
        self.was_wiped |= entered.was_forgotten;
        // What is not ours any more is given up before anything else can fail.
        self.accept(&entered).await;
        let entered = Joined { was_forgotten: self.was_wiped, ..entered };
        let mut joined =
            self.registry.complete(entered, &self.candidate, &self.shared.peers_blocks()).await?;
        self.accept(&joined).await;
        let root = self.registry.layout.root();
        let listing = self.registry.store.list(&root).await?;
        let own = self.registry.layout.node(&joined.record.name);
        let stands = listing.entries.iter().find(|entry| entry.key == own).map(|entry| entry.revision);
        if stands != Some(joined.revision) || !self.has_claims(&joined, &listing) {
            info!(
                "the record of this node or a claim of its blocks was changed during the join; joining again"
            );
            return Ok(SessionEnd::Again);
        }
        let mut watch = self.registry.store.watch(&root, listing.revision + 1).await?;
        let store_listing = self.store_listing(&listing);
        self.revision = listing.revision;
        self.shared.set_unread(&self.unread, &self.unread_nodes());
        self.peers.update(RecordUpdate::All(store_listing));
        self.was_wiped = false;
        let layout = &self.registry.layout;
        let agents = listing.entries.iter().filter_map(|entry| alive_at(layout, &entry.key, &entry.value));
        self.shared.contact.watching(ListedNodes { alive: agents.collect(), unread: self.unread_nodes() });
        self.list_leases(&listing);
        self.shared.store_works();
        *pause = RETRY.0;
        loop {
            joined = match self.next(&mut watch, joined).await? {
                Next::Go(joined) => joined,
                Next::End(end) => return Ok(end),
            };
        }
    }

    /// Whether the claims of this node's blocks name it.
    fn has_claims(&self, joined: &Joined, listing: &Listing) -> bool {
        let layout = &self.registry.layout;
        let mut missing: BTreeSet<String> =
            joined.record.blocks.iter().map(|block| layout.block(block)).collect();
        for entry in &listing.entries {
            if self.is_own_claim(joined, &entry.key, &entry.value) {
                missing.remove(&entry.key);
            }
        }
        missing.is_empty()
    }

    /// Whether this claim names this node. What a newer version wrote is not changed here.
    fn is_own_claim(&self, joined: &Joined, key: &str, value: &[u8]) -> bool {
        self.registry.layout.block_of(key).is_some()
            && match BlockClaim::decode(value) {
                Ok(claim) => claim.node == joined.record.name,
                Err(error) => error.is_newer(),
            }
    }

    fn store_listing(&mut self, listing: &Listing) -> StoreListing {
        let keys: BTreeSet<&str> = listing.entries.iter().map(|entry| entry.key.as_str()).collect();
        self.unread.retain(|key, _| keys.contains(key.as_str()));
        let (mut nodes, mut claims) = (Vec::new(), Vec::new());
        for entry in &listing.entries {
            nodes.extend(self.read(entry));
            claims.extend(self.read_claim(entry));
        }
        self.was_wiped |= listing.revision < self.revision;
        let unread = self.unread.keys().filter_map(|key| self.registry.layout.node_of(key)).collect();
        StoreListing { nodes, claims, unread, was_wiped: self.was_wiped }
    }

    /// One thing that happens.
    async fn next(&mut self, watch: &mut Watch, joined: Joined) -> Result<Next, JoinError> {
        let lapse_at = self.shared.next_lapse();
        tokio::select! {
            () = sleep_until(self.aftercare_at), if self.needs_aftercare() => {
                self.aftercare(&joined.record).await;
                Ok(Next::Go(joined))
            }
            watched = watch.next() => match watched? {
                Watched::Compacted => {
                    info!("the store forgot what happened since: everything is listed again");
                    Ok(Next::End(SessionEnd::Again))
                }
                Watched::Current => {
                    self.watch_confirmed();
                    Ok(Next::Go(joined))
                }
                Watched::Events { events, .. } => {
                    self.watch_confirmed();
                    self.observed(events, joined).await
                }
            },
            () = sleep_until(lapse_at.unwrap_or_else(Instant::now)), if lapse_at.is_some() => {
                self.shared.tell();
                Ok(Next::Go(joined))
            }
            () = sleep_until(self.progress_at) => {
                self.progress_at = Instant::now() + PROGRESS;
                watch.request_progress().await?;
                Ok(Next::Go(joined))
            }
            changed = self.addresses.changed() => {
                if changed.is_err() {
                    return Ok(Next::End(SessionEnd::Over));
                }
                let addresses = self.addresses.borrow_and_update().clone().unwrap_or_default();
                if joined.record.addresses == addresses {
                    return Ok(Next::Go(joined));
                }
                info!("this node is at {} now", words(&addresses));
                self.connect_anew()?;
                Ok(Next::End(SessionEnd::Again))
            },
            command = self.commands.recv() => match command {
                None => Ok(Next::End(SessionEnd::Over)),
                Some(command) => self.obey(command, joined).await,
            },
            () = self.lost.notified() => Ok(Next::End(SessionEnd::Again)),
        }
    }

    fn needs_aftercare(&self) -> bool {
        self.shared.has_lost() || self.shared.is_unsaved() || self.shared.lacks_free_block()
    }

    async fn aftercare(&mut self, record: &NodeRecord) {
        if self.shared.has_lost() {
            self.shared.forget_lost().await;
        }
        if self.shared.is_unsaved() {
            self.shared.save_again(record).await;
        }
        self.shared.end_growth_trouble(self.shared.config.reconcile * 3 + AFTERCARE);
        self.aftercare_at = Instant::now() + AFTERCARE;
    }

    async fn observed(&mut self, events: Vec<Event>, joined: Joined) -> Result<Next, JoinError> {
        self.note_agents(&events);
        let own = self.registry.layout.node(&joined.record.name);
        let is_removal = |event: &Event| matches!(event, Event::Delete { key, revision } if *key == own && *revision > joined.revision);
        if events.iter().any(is_removal) {
            // Who goes together with us was not removed by itself: the store was wiped.
            info!("our record was removed from the store: joining again");
            return Ok(Next::End(SessionEnd::Again));
        }
        if events.iter().any(|event| self.takes_claim(event, &joined)) {
            info!("the claim of a block of this node was changed in the store; joining again");
            return Ok(Next::End(SessionEnd::Again));
        }
        for event in events {
            let (key, update) = match event {
                Event::Put(entry) => {
                    // Also one that cannot be read any more. What a newer version wrote is not ours to change.
                    let is_newer = || NodeRecord::decode(&entry.value).is_err_and(|error| error.is_newer());
                    if entry.key == own && entry.revision > joined.revision && !is_newer() {
                        info!("our record was changed by somebody: joining again");
                        return Ok(Next::End(SessionEnd::Again));
                    }
                    let update = match (self.read(&entry), self.read_claim(&entry)) {
                        (Some(node), _) => RecordUpdate::Node(node),
                        (None, Some(claim @ ClaimedBlock { owner: Some(_), .. })) => {
                            RecordUpdate::Claim(claim)
                        }
                        // What cannot be read is no reason to forget what is known.
                        (None, Some(ClaimedBlock { owner: None, .. }) | None) => continue,
                    };
                    (entry.key, update)
                }
                Event::Delete { key, .. } => {
                    self.unread.remove(&key);
                    let layout = &self.registry.layout;
                    let claim = layout
                        .block_of(&key)
                        .map(|block| RecordUpdate::Claim(ClaimedBlock { block, owner: None }));
                    let Some(update) = layout.node_of(&key).map(RecordUpdate::Gone).or(claim) else {
                        continue;
                    };
                    (key, update)
                }
            };
            debug!("heard of {key}");
            self.peers.update(update);
        }
        self.shared.set_unread(&self.unread, &self.unread_nodes());
        self.shared.contact.set_unread(self.unread_nodes());
        Ok(Next::Go(joined))
    }

    /// Whether the claim of a block of this node went away, or to another node. The claim decides, so it is written again.
    fn takes_claim(&self, event: &Event, joined: &Joined) -> bool {
        let layout = &self.registry.layout;
        let is_own = layout.block_of(event.key()).is_some_and(|block| joined.record.blocks.contains(&block));
        is_own
            && event.revision() > joined.revision
            && match event {
                Event::Put(entry) => !self.is_own_claim(joined, &entry.key, &entry.value),
                Event::Delete { .. } => true,
            }
    }

    async fn obey(&mut self, command: MembershipCommand, joined: Joined) -> Result<Next, JoinError> {
        match command {
            MembershipCommand::Grow(request) => self.grow(&request, joined).await,
            MembershipCommand::Ask(ask) => {
                self.answer(ask, &joined.record.name);
                Ok(Next::Go(joined))
            }
        }
    }

    /// Beside everything else: a store that is slow to list holds up no news.
    fn answer(&mut self, ask: StoreQuery, own: &NodeName) {
        while self.asked.try_join_next().is_some() {}
        if self.asked.len() >= AT_ONCE {
            ask.refuse(AskError::Busy);
        } else if !ask.is_over() {
            let (registry, own, contact) =
                (self.registry.clone(), own.clone(), Arc::clone(&self.shared.contact));
            self.asked.spawn(async move { ask.answer(registry, own, &contact).await });
        }
    }

    /// A connection that leads from an address which is gone is silent for long, and so is everything that was heard by it.
    fn connect_anew(&mut self) -> Result<(), JoinError> {
        let config = super::store_config(&self.shared.config, &self.shared.node_state);
        if matches!(config, StoreConfig::Etcd(_)) {
            self.registry.store = Store::open(&config)?;
        }
        Ok(())
    }

    /// Our record as the store has it: what we have is what it says.
    pub(crate) async fn accept(&mut self, joined: &Joined) {
        self.candidate.remembered.clone_from(&joined.record.blocks);
        self.candidate.former = None;
        self.shared.accept(joined).await;
    }

    /// Our name is another machine's, and our blocks with it. If it goes, both come back with the record.
    async fn lose_all(&mut self, why: &str) {
        self.candidate.remembered.clear();
        self.shared.lose_all(&self.candidate.record, why).await;
    }

    /// What cannot be read is told, and is no reason to forget what we know of that node.
    fn read(&mut self, entry: &Entry) -> Option<StoredNode> {
        let (name, read) = self.registry.layout.node_at(&entry.key, &entry.value)?;
        let is_newer = NodeRecord::decode(&entry.value).is_err_and(|error| error.is_newer());
        let read = read.map_err(|why| match is_newer {
            true => why,
            false => format!(
                "{why}; its agent replaces it when it starts; 'podwire node rm --force {name}' removes a node that is \
                 gone for good"
            ),
        });
        let record = self.note(&entry.key, read)?;
        Some(StoredNode { record, created: entry.created })
    }

    /// A claim of a block. What is no block of this network is no claim, whatever its key says.
    fn read_claim(&mut self, entry: &Entry) -> Option<ClaimedBlock> {
        let (block, read) = self.registry.layout.claim_at(&entry.key, &entry.value)?;
        if !self.block_layouts.iter().any(|block_layout| block_layout.owns(&block)) {
            return None;
        }
        Some(ClaimedBlock { block, owner: self.note(&entry.key, read) })
    }

    /// Remembers which keys cannot be read.
    fn note<T>(&mut self, key: &str, read: Result<T, String>) -> Option<T> {
        let what = match read {
            Ok(object) => {
                self.unread.remove(key);
                return Some(object);
            }
            Err(what) => what,
        };
        self.unread.insert(key.to_owned(), what);
        None
    }
}

/// Half of it up to one and a half: after an outage not all nodes come back in the same moment.
pub(crate) fn spread(wait: Duration, uid: &NodeUid, tries: u64) -> Duration {
    let byte = Digest::of(&["wait", uid.as_str(), &tries.to_string()]).first5()[0];
    wait / 2 + wait * u32::from(byte) / 256
}

fn words(addresses: &[IpAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    if texts.is_empty() { "no address".to_owned() } else { texts.join(" and ") }
}

/// What follows from something that happened.
pub(crate) enum Next {
    Go(Joined),
    End(SessionEnd),
}
