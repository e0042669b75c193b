//! Contact with the store: whether it answers, and how old this node's copy of its contents is. Questions that come while
//! the store does not answer get that copy, with its age. Status, metrics and `podwire nodes` all read it here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;
use tracing::debug;
use types::NodeName;

use super::join::JoinError;
use super::member::Member;
use super::shared::SharedMembership;
use crate::clock::unix_time;

/// A store that answered before counts as unreachable after this many failures in a row. A single one is a broken watch or a
/// slow answer, and the retry follows within half a second.
const MISSES: u32 = 2;
/// A watch that broke is begun again within this time, unless there is a reason that lasts.
const REJOIN: Duration = Duration::from_secs(10);
/// How often the time of the copy on disk is set.
const NOTE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Contact {
    inner: Mutex<ContactInner>,
    reach: watch::Sender<Reach>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reach {
    Untried,
    Answers,
    /// It does not answer, for this reason.
    Silent(String),
    /// It answers, and denies the agent what it asks for. The watch may run all the same.
    Denies(String),
}

#[derive(Debug)]
struct ContactInner {
    started: Instant,
    /// Failures in a row.
    misses: u32,
    is_watching: bool,
    /// Why writes are denied. Reads that succeed say nothing about it.
    denied_write: Option<String>,
    /// Why there is no watch, after it was tried.
    failure: Option<String>,
    /// When the watch was last known to be complete.
    confirmed: Option<Instant>,
    /// When the time of the copy on disk was set.
    noted: Option<Instant>,
    /// When the copy on disk was right, in seconds since 1970. It counts until there is a watch for the first time.
    saved: Option<u64>,
    listed: Option<ListedNodes>,
}

/// The age of this node's copy of the store's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Age {
    /// There is no copy.
    NoCopy,
    Known(Duration),
    /// The time of the copy on disk is in the future: a clock was wrong.
    Unknown,
}

/// Parts of the last listing, kept up to date by the watch, that no route depends on.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListedNodes {
    /// Nodes whose agent is alive, and since when, in seconds since 1970.
    pub(crate) alive: BTreeMap<NodeName, u64>,
    /// Nodes whose record cannot be read, and why.
    pub(crate) unread: BTreeMap<NodeName, String>,
}

impl Contact {
    /// `saved` is the time of the copy on disk.
    pub(crate) fn new(saved: Option<u64>) -> Self {
        let inner = ContactInner {
            started: Instant::now(),
            misses: 0,
            is_watching: false,
            denied_write: None,
            failure: None,
            confirmed: None,
            noted: None,
            saved,
            listed: None,
        };
        Self { inner: Mutex::new(inner), reach: watch::Sender::new(Reach::Untried) }
    }

    /// Everything was listed, and a watch runs from there.
    pub(crate) fn watching(&self, listed: ListedNodes) {
        {
            let mut inner = self.lock();
            (inner.is_watching, inner.failure, inner.listed) = (true, None, Some(listed));
            // This node wrote its own keys before.
            inner.denied_write = None;
        }
        self.set_reach(Reach::Answers);
        self.watch_confirmed();
    }

    /// The watch delivered events, or answered that there are none.
    pub(crate) fn watch_confirmed(&self) {
        self.lock().confirmed = Some(Instant::now());
        // etcd checks the rights of a watch when it begins, and never again.
        if self.denial().is_none() {
            self.answered();
        }
    }

    /// The store answered. Without a watch that ends no outage: the watch may fail all the same. A write that was denied stays
    /// denied: a role may have the right to read only.
    pub(crate) fn answered(&self) {
        let (is_watching, denied_write) = {
            let mut inner = self.lock();
            if inner.is_watching {
                inner.misses = 0;
            }
            (inner.is_watching, inner.denied_write.clone())
        };
        if is_watching || *self.reach.borrow() == Reach::Untried {
            self.set_reach(denied_write.map_or(Reach::Answers, Reach::Denies));
        }
    }

    /// The store accepted a write of this node.
    pub(crate) fn written(&self) {
        self.lock().denied_write = None;
        self.answered();
    }

    /// Whether a write was denied, and none succeeded since.
    pub(crate) fn is_write_denied(&self) -> bool {
        self.lock().denied_write.is_some()
    }

    /// A call of the agent's own failed. A refusal is an answer.
    pub(crate) fn call_failed(&self, error: &store::Error) {
        match error.is_transient() {
            true => drop(self.missed(error.to_string(), 1)),
            false => self.refused(error),
        }
    }

    /// A question of a client failed. The client was refused: that is an outage at once.
    pub(crate) fn question_failed(&self, error: &store::Error) {
        match error.is_transient() {
            true => self.unanswered(error.to_string()),
            false => self.refused(error),
        }
    }

    fn refused(&self, error: &store::Error) {
        if error.is_denied_write() {
            self.lock().denied_write = Some(error.to_string());
        }
        self.answered();
        if matches!(error, store::Error::Denied { .. }) && self.is_reachable() {
            self.set_reach(Reach::Denies(error.to_string()));
        }
    }

    /// A question of a client was not answered.
    pub(crate) fn unanswered(&self, why: String) {
        self.missed(why, MISSES);
    }

    /// This node could not join, or its watch broke. An error that is not the store's is based on its answers.
    pub(crate) fn session_failed(&self, error: &JoinError) {
        let (is_transient, refused) = match error {
            JoinError::Store(error) => (error.is_transient(), Some(error.to_string())),
            JoinError::Decode { .. }
            | JoinError::BlockLayout(_)
            | JoinError::Held { .. }
            | JoinError::Network { .. }
            | JoinError::Exhausted { .. }
            | JoinError::Awaited { .. }
            | JoinError::TooMany
            | JoinError::Restless { .. } => (false, None),
        };
        let failure = if is_transient {
            self.missed(error.to_string(), 1).then(|| error.to_string())
        } else {
            self.lock().misses = 0;
            self.set_reach(Reach::Answers);
            refused
        };
        self.lock().failure = failure;
    }

    /// The thread that asks the store has ended.
    pub(crate) fn stopped(&self, why: &str) {
        {
            let mut inner = self.lock();
            (inner.is_watching, inner.failure) = (false, Some(why.to_owned()));
        }
        self.set_reach(Reach::Silent(why.to_owned()));
    }

    /// Why the copy may be older than what the store has; None: the watch keeps it up to date.
    pub(crate) fn lag(&self) -> Option<String> {
        let why = self.failure().or_else(|| self.silence());
        let inner = self.lock();
        why.or_else(|| match (inner.is_watching, inner.confirmed) {
            (true, _) => None,
            (false, None) => Some("the store has not been listed yet".to_owned()),
            (false, Some(confirmed)) if confirmed.elapsed() > REJOIN => {
                Some("the store is not watched: see `podwire status`".to_owned())
            }
            (false, Some(_)) => None,
        })
    }

    /// Whether the store counts as unreachable now.
    fn missed(&self, why: String, weight: u32) -> bool {
        let misses = {
            let mut inner = self.lock();
            inner.misses = inner.misses.saturating_add(weight);
            inner.misses
        };
        let is_silent = misses >= MISSES || !self.is_reachable();
        if is_silent {
            self.set_reach(Reach::Silent(why));
        }
        is_silent
    }

    fn set_reach(&self, reach: Reach) {
        self.reach.send_if_modified(|before| {
            let is_changed = *before != reach;
            *before = reach;
            is_changed
        });
    }

    /// How long ago the copy was confirmed, if there was a watch.
    pub(crate) fn watch_ended(&self) -> Option<Duration> {
        let mut inner = self.lock();
        let was_watching = std::mem::replace(&mut inner.is_watching, false);
        inner.confirmed.filter(|_| was_watching).map(|confirmed| confirmed.elapsed())
    }

    /// Whether the time of the copy on disk is to be set again.
    fn is_note_due(&self, now: Instant) -> bool {
        let mut inner = self.lock();
        let is_due = inner.noted.is_none_or(|noted| now.saturating_duration_since(noted) >= NOTE);
        if is_due {
            inner.noted = Some(now);
        }
        is_due
    }

    /// An agent is alive since this time, or is not any more.
    pub(crate) fn set_alive(&self, node: NodeName, since: Option<u64>) {
        let mut inner = self.lock();
        let Some(listed) = &mut inner.listed else { return };
        match since {
            Some(since) => listed.alive.insert(node, since),
            None => listed.alive.remove(&node),
        };
    }

    pub(crate) fn set_unread(&self, unread: BTreeMap<NodeName, String>) {
        if let Some(listed) = &mut self.lock().listed {
            listed.unread = unread;
        }
    }

    /// None before there was a watch for the first time.
    pub(crate) fn listed(&self) -> Option<ListedNodes> {
        self.lock().listed.clone()
    }

    /// Why the store need not be asked: it refuses this node or does not answer, and the agent retries.
    pub(crate) fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    pub(crate) fn is_reachable(&self) -> bool {
        matches!(*self.reach.borrow(), Reach::Answers | Reach::Denies(_))
    }

    /// Why the store denies calls of this node.
    pub(crate) fn denial(&self) -> Option<String> {
        match &*self.reach.borrow() {
            Reach::Denies(why) => Some(why.clone()),
            Reach::Untried | Reach::Answers | Reach::Silent(_) => None,
        }
    }

    /// Why the store counts as unreachable.
    pub(crate) fn silence(&self) -> Option<String> {
        match &*self.reach.borrow() {
            Reach::Silent(why) => Some(why.clone()),
            Reach::Untried | Reach::Answers | Reach::Denies(_) => None,
        }
    }

    pub(crate) fn age(&self) -> Age {
        let inner = self.lock();
        match (inner.confirmed, inner.saved) {
            (Some(confirmed), _) => Age::Known(confirmed.elapsed()),
            (None, Some(saved)) => unix_time()
                .checked_sub(saved)
                .map_or(Age::Unknown, |seconds| Age::Known(Duration::from_secs(seconds))),
            (None, None) => Age::NoCopy,
        }
    }

    /// How long ago the watch was known to be complete; since the start of the agent if it never was.
    pub(crate) fn watch_age(&self) -> Duration {
        let inner = self.lock();
        inner.confirmed.unwrap_or(inner.started).elapsed()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ContactInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SharedMembership {
    /// Reports when the store becomes unreachable or reachable, whichever part of the agent notices it.
    pub(crate) async fn report_reach(&self) {
        let mut reach = self.contact.reach.subscribe();
        while reach.changed().await.is_ok() {
            self.tell();
        }
    }

    /// Sets the time of the copy on disk: an agent that starts while the store is away reports its age.
    pub(crate) fn watch_ended(&self) -> Option<JoinHandle<()>> {
        self.contact.watch_ended().and_then(|age| self.note_copy(age))
    }

    /// On another thread: a slow disk does not delay the watch. None: the call before has not ended. On a disk that hangs they
    /// would take all threads, and names of etcd's endpoints could not be resolved.
    fn note_copy(&self, age: Duration) -> Option<JoinHandle<()>> {
        let alone = Arc::clone(&self.noting).try_lock_owned().ok()?;
        let confirmed = SystemTime::now().checked_sub(age).unwrap_or(UNIX_EPOCH);
        let node_state = self.node_state.clone();
        Some(spawn_blocking(move || {
            let _alone = alone;
            if let Err(error) = node_state.confirm_peers(confirmed) {
                debug!("the time of peers.json could not be set: {error}");
            }
        }))
    }
}

impl Member {
    /// The watch is complete. The copy on disk gets the time now and then, for an agent or a machine that ends without notice.
    pub(crate) fn watch_confirmed(&self) {
        self.shared.contact.watch_confirmed();
        if self.shared.contact.is_note_due(Instant::now()) {
            drop(self.shared.note_copy(Duration::ZERO));
        }
    }

    /// Nodes whose record cannot be read, and why.
    pub(crate) fn unread_nodes(&self) -> BTreeMap<NodeName, String> {
        let layout = &self.registry.layout;
        let nodes = self.unread.iter().filter_map(|(key, why)| Some((layout.node_of(key)?, why.clone())));
        nodes.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken() -> store::Error {
        let source = std::io::Error::other("connection refused").into();
        store::Error::WatchBroke { prefix: "/podwire/".to_owned(), source }
    }

    fn refusal() -> store::Error {
        store::Error::Config { problem: "no right to read".to_owned() }
    }

    #[test]
    fn a4_only_the_watch_confirms_the_copy() {
        let contact = Contact::new(None);
        contact.answered();
        assert!(contact.is_reachable() && contact.age() == Age::NoCopy);
        contact.watching(ListedNodes::default());
        let confirmed = contact.lock().confirmed;
        contact.answered();
        assert_eq!(contact.lock().confirmed, confirmed, "a heartbeat or a listing is not the watch");
        contact.watch_confirmed();
        assert!(contact.lock().confirmed > confirmed);
        assert!(contact.watch_ended() < Some(Duration::from_secs(60)));
        assert_eq!(contact.watch_ended(), None);
    }

    #[test]
    fn a4_one_broken_watch_is_no_outage_and_two_failures_are() {
        let contact = Contact::new(None);
        contact.watching(ListedNodes::default());
        contact.watch_ended();
        contact.session_failed(&broken().into());
        assert!(contact.is_reachable() && contact.silence().is_none() && contact.failure().is_none());
        contact.session_failed(&broken().into());
        assert!(!contact.is_reachable() && contact.silence() == contact.failure());
        // Calls may be answered where watches are not.
        contact.answered();
        assert!(!contact.is_reachable());
        contact.watching(ListedNodes::default());
        assert!(contact.is_reachable() && contact.failure().is_none());
        // A heartbeat that is late once is no outage either, and an answer ends what heartbeats began.
        contact.call_failed(&broken());
        assert!(contact.is_reachable());
        contact.call_failed(&broken());
        assert!(contact.silence().unwrap().contains("connection refused"));
        contact.answered();
        assert!(contact.is_reachable());
        contact.unanswered("the store did not answer within 8 s".to_owned());
        assert!(!contact.is_reachable(), "a client waited for it");
        contact.answered();
        contact.question_failed(&refusal());
        assert!(contact.is_reachable());
        contact.question_failed(&broken());
        assert!(!contact.is_reachable(), "a client was refused");
    }

    /// F9: rights that are withdrawn while the watch runs are found by the heartbeat.
    #[test]
    fn f9_a_denied_call_is_known_until_a_call_succeeds() {
        let denied = || store::Error::Denied {
            operation: store::Operation { verb: "read", object: "/podwire/alive/n1".to_owned() },
            store: "etcd".to_owned(),
            advice: "set etcd.user",
            source: "user name is empty".into(),
        };
        let contact = Contact::new(None);
        contact.watching(ListedNodes::default());
        contact.call_failed(&denied());
        contact.watch_confirmed();
        assert!(contact.is_reachable() && contact.denial().unwrap().contains("user name is empty"));
        contact.answered();
        assert_eq!(contact.denial(), None);
        contact.question_failed(&denied());
        contact.watching(ListedNodes::default());
        assert_eq!(contact.denial(), None, "this node may list and watch again");
    }

    /// F9: etcd gave this node a role that may only read.
    #[test]
    fn f9_a_denied_write_is_known_until_a_write_succeeds() {
        let denied = store::Error::Denied {
            operation: store::Operation { verb: "write", object: "/podwire/blocks/10.42.1.0".to_owned() },
            store: "etcd".to_owned(),
            advice: "grant the role readwrite",
            source: "permission denied".into(),
        };
        let contact = Contact::new(None);
        contact.watching(ListedNodes::default());
        contact.call_failed(&denied);
        let mut reach = contact.reach.subscribe();
        reach.mark_unchanged();
        for _ in 0..3 {
            contact.answered();
            contact.watch_confirmed();
        }
        assert!(!reach.has_changed().unwrap(), "the condition does not flap");
        assert!(contact.is_write_denied() && contact.denial().unwrap().contains("permission denied"));
        // Also not by an outage that ends.
        contact.question_failed(&broken());
        contact.answered();
        assert!(contact.denial().is_some());
        contact.written();
        assert!(!contact.is_write_denied() && contact.denial().is_none());
        contact.call_failed(&denied);
        contact.watching(ListedNodes::default());
        assert_eq!(contact.denial(), None, "a node that joined has written");
    }

    #[test]
    fn a4_a_store_that_never_answered_is_unreachable_at_once_and_one_that_refuses_is_not() {
        let contact = Contact::new(None);
        contact.session_failed(&broken().into());
        assert!(!contact.is_reachable() && contact.failure().is_some());
        contact.session_failed(&refusal().into());
        assert!(contact.is_reachable() && contact.failure().unwrap().contains("no right to read"));
        // Every other error follows from answers of the store: it can be asked.
        contact.session_failed(&broken().into());
        contact.session_failed(&JoinError::TooMany);
        assert!(contact.is_reachable() && contact.failure().is_none());
    }

    #[test]
    fn a_copy_on_disk_counts_until_there_is_a_watch() {
        let contact = Contact::new(Some(unix_time() - 7200));
        let is_old = |age| matches!(age, Age::Known(age) if age >= Duration::from_secs(7200));
        assert!(is_old(contact.age()));
        assert!(contact.watch_age() < Duration::from_secs(7200) && contact.listed().is_none());
        contact.watching(ListedNodes::default());
        assert!(!is_old(contact.age()));
        assert_eq!(Contact::new(Some(unix_time() + 7200)).age(), Age::Unknown, "a clock was wrong");
    }

    #[test]
    fn a5_after_the_end_of_the_thread_the_store_is_not_reachable() {
        let contact = Contact::new(None);
        contact.watching(ListedNodes::default());
        contact.stopped("ended");
        assert!(!contact.is_reachable() && contact.silence() == contact.failure());
        assert_eq!(contact.lag().as_deref(), Some("ended"));
    }

    #[test]
    fn a12_a_copy_is_up_to_date_while_it_is_watched() {
        let contact = Contact::new(Some(unix_time()));
        assert!(contact.lag().unwrap().contains("not been listed"));
        contact.session_failed(&broken().into());
        assert!(contact.lag().unwrap().contains("connection refused"));
        contact.watching(ListedNodes::default());
        assert_eq!(contact.lag(), None);
        contact.watch_ended();
        assert_eq!(contact.lag(), None, "it is begun again in a moment");
        contact.lock().confirmed = Some(Instant::now() - REJOIN * 2);
        assert!(contact.lag().unwrap().contains("not watched"));
    }

    #[test]
    fn a4_the_time_of_the_copy_on_disk_is_set_once_a_minute() {
        let (contact, now) = (Contact::new(None), Instant::now());
        let is_due = |seconds| contact.is_note_due(now + Duration::from_secs(seconds));
        assert_eq!([0, 5, 59, 60, 65, 120].map(is_due), [true, false, false, true, false, true]);
    }

    #[test]
    fn agents_come_and_go_with_the_watch() {
        let contact = Contact::new(None);
        let name: NodeName = "n2".try_into().unwrap();
        contact.set_alive(name.clone(), Some(7));
        assert!(contact.listed().is_none(), "not before everything was listed");
        contact.watching(ListedNodes::default());
        contact.set_alive(name.clone(), Some(7));
        assert_eq!(contact.listed().unwrap().alive, BTreeMap::from([(name.clone(), 7)]));
        contact.set_alive(name, None);
        assert!(contact.listed().unwrap().alive.is_empty());
    }
}
