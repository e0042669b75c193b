//! Contact with the store: whether it is reachable, and how old this node's copy of its contents is. While the store is
//! unreachable, queries return that copy with its age. Status, metrics and `podwire nodes` read this state.

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

/// A store that was reachable counts as unreachable after this many failures in a row. A single failure is a broken watch or a
/// slow answer, and is retried within half a second.
const OUTAGE_FAILURES: u32 = 2;
/// A broken watch is restarted within this time, unless there is a lasting cause.
const REJOIN: Duration = Duration::from_secs(10);
/// How often the modification time of the copy on disk is set.
const SAVE_TIME_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Contact {
    inner: Mutex<ContactInner>,
    reachability: watch::Sender<StoreReachability>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreReachability {
    Untried,
    Reachable,
    /// The store does not answer. Has the cause.
    Unreachable(String),
    /// The store answers but denies calls of the agent. The watch may still run.
    Denied(String),
}

#[derive(Debug)]
struct ContactInner {
    started: Instant,
    /// The number of failures in a row.
    failures_in_a_row: u32,
    is_watching: bool,
    /// Why writes are denied. Successful reads do not change it.
    denied_write: Option<String>,
    /// Why the last attempt to watch failed.
    failure: Option<String>,
    /// When the watch was last confirmed to be complete.
    confirmed: Option<Instant>,
    /// When the modification time of the copy on disk was last set.
    time_saved: Option<Instant>,
    /// Unix time at which the copy on disk was last known to be right. Used until the first watch.
    saved: Option<u64>,
    listed: Option<ListedNodes>,
}

/// The age of this node's copy of the store's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Age {
    /// There is no copy.
    NoCopy,
    Known(Duration),
    /// The time of the copy on disk is in the future, because a clock was wrong.
    Unknown,
}

/// Parts of the last listing that no route depends on. The watch keeps them up to date.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListedNodes {
    /// Nodes with a running agent, and since when (Unix time).
    pub(crate) alive: BTreeMap<NodeName, u64>,
    /// Nodes with an unreadable record, and the reason.
    pub(crate) unread: BTreeMap<NodeName, String>,
}

impl Contact {
    /// `saved` is the time of the copy on disk.
    pub(crate) fn new(saved: Option<u64>) -> Self {
        let inner = ContactInner {
            started: Instant::now(),
            failures_in_a_row: 0,
            is_watching: false,
            denied_write: None,
            failure: None,
            confirmed: None,
            time_saved: None,
            saved,
            listed: None,
        };
        Self { inner: Mutex::new(inner), reachability: watch::Sender::new(StoreReachability::Untried) }
    }

    /// The store was listed, and a watch runs from that revision.
    pub(crate) fn watch_started(&self, listed: ListedNodes) {
        {
            let mut inner = self.lock();
            (inner.is_watching, inner.failure, inner.listed) = (true, None, Some(listed));
            // This node has written its own keys before.
            inner.denied_write = None;
        }
        self.set_reachability(StoreReachability::Reachable);
        self.watch_confirmed();
    }

    /// The watch delivered events, or confirmed that there are none.
    pub(crate) fn watch_confirmed(&self) {
        self.lock().confirmed = Some(Instant::now());
        // etcd checks the permissions of a watch only at its start.
        if self.denial().is_none() {
            self.answered();
        }
    }

    /// The store answered a call. Without a watch this does not end an outage, because the watch may still fail. It does not end
    /// a denied write either, because a role may be read-only.
    pub(crate) fn answered(&self) {
        let (is_watching, denied_write) = {
            let mut inner = self.lock();
            if inner.is_watching {
                inner.failures_in_a_row = 0;
            }
            (inner.is_watching, inner.denied_write.clone())
        };
        if is_watching || *self.reachability.borrow() == StoreReachability::Untried {
            self.set_reachability(
                denied_write.map_or(StoreReachability::Reachable, StoreReachability::Denied),
            );
        }
    }

    /// The store accepted a write of this node.
    pub(crate) fn write_succeeded(&self) {
        self.lock().denied_write = None;
        self.answered();
    }

    /// Whether a write was denied and none has succeeded since.
    pub(crate) fn is_write_denied(&self) -> bool {
        self.lock().denied_write.is_some()
    }

    /// A call of the agent failed. A refusal is an answer.
    pub(crate) fn call_failed(&self, error: &store::Error) {
        match error.is_transient() {
            true => drop(self.count_failures(error.to_string(), 1)),
            false => self.refused(error),
        }
    }

    /// A client's query failed. Because the client got an error, this is an outage without a second failure.
    pub(crate) fn query_failed(&self, error: &store::Error) {
        match error.is_transient() {
            true => self.query_timed_out(error.to_string()),
            false => self.refused(error),
        }
    }

    fn refused(&self, error: &store::Error) {
        if error.is_denied_write() {
            self.lock().denied_write = Some(error.to_string());
        }
        self.answered();
        if matches!(error, store::Error::Denied { .. }) && self.is_reachable() {
            self.set_reachability(StoreReachability::Denied(error.to_string()));
        }
    }

    /// A client's query was not answered.
    pub(crate) fn query_timed_out(&self, reason: String) {
        self.count_failures(reason, OUTAGE_FAILURES);
    }

    /// This node could not join, or its watch broke. Every error other than `Store` follows from answers of the store.
    pub(crate) fn session_failed(&self, error: &JoinError) {
        let (is_transient, refused) = match error {
            JoinError::Store(error) => (error.is_transient(), Some(error.to_string())),
            JoinError::FormerSchema(_)
            | JoinError::Decode { .. }
            | JoinError::BlockLayout(_)
            | JoinError::Held { .. }
            | JoinError::Network { .. }
            | JoinError::Exhausted { .. }
            | JoinError::Reserved { .. }
            | JoinError::PoolsExhausted { .. }
            | JoinError::TooMany
            | JoinError::Contended { .. } => (false, None),
        };
        let failure = if is_transient {
            self.count_failures(error.to_string(), 1).then(|| error.to_string())
        } else {
            self.lock().failures_in_a_row = 0;
            self.set_reachability(StoreReachability::Reachable);
            refused
        };
        self.lock().failure = failure;
    }

    /// The membership thread has ended.
    pub(crate) fn stopped(&self, reason: &str) {
        {
            let mut inner = self.lock();
            (inner.is_watching, inner.failure) = (false, Some(reason.to_owned()));
        }
        self.set_reachability(StoreReachability::Unreachable(reason.to_owned()));
    }

    /// Why the copy may be outdated. None while the watch keeps it up to date.
    pub(crate) fn stale_reason(&self) -> Option<String> {
        let reason = self.failure().or_else(|| self.outage());
        let inner = self.lock();
        reason.or_else(|| match (inner.is_watching, inner.confirmed) {
            (true, _) => None,
            (false, None) => Some("the store has not been listed yet".to_owned()),
            (false, Some(confirmed)) if confirmed.elapsed() > REJOIN => {
                Some("the store is not watched: see `podwire status`".to_owned())
            }
            (false, Some(_)) => None,
        })
    }

    /// Adds failures. Returns whether the store now counts as unreachable.
    fn count_failures(&self, reason: String, count: u32) -> bool {
        let failures = {
            let mut inner = self.lock();
            inner.failures_in_a_row = inner.failures_in_a_row.saturating_add(count);
            inner.failures_in_a_row
        };
        let is_outage = failures >= OUTAGE_FAILURES || !self.is_reachable();
        if is_outage {
            self.set_reachability(StoreReachability::Unreachable(reason));
        }
        is_outage
    }

    fn set_reachability(&self, reachability: StoreReachability) {
        self.reachability.send_if_modified(|before| {
            let is_changed = *before != reachability;
            *before = reachability;
            is_changed
        });
    }

    /// The watch ended. Returns how long ago the copy was confirmed, if a watch ran.
    pub(crate) fn watch_ended(&self) -> Option<Duration> {
        let mut inner = self.lock();
        let was_watching = std::mem::replace(&mut inner.is_watching, false);
        inner.confirmed.filter(|_| was_watching).map(|confirmed| confirmed.elapsed())
    }

    /// Whether the modification time of the copy on disk has to be set again.
    fn is_save_due(&self, now: Instant) -> bool {
        let mut inner = self.lock();
        let is_due =
            inner.time_saved.is_none_or(|saved| now.saturating_duration_since(saved) >= SAVE_TIME_INTERVAL);
        if is_due {
            inner.time_saved = Some(now);
        }
        is_due
    }

    /// The agent of a node runs since this time, or has stopped.
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

    /// None before the first watch.
    pub(crate) fn listed(&self) -> Option<ListedNodes> {
        self.lock().listed.clone()
    }

    /// Why the store need not be queried: it refuses this node or does not answer, and the agent retries.
    pub(crate) fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    pub(crate) fn is_reachable(&self) -> bool {
        matches!(*self.reachability.borrow(), StoreReachability::Reachable | StoreReachability::Denied(_))
    }

    /// Why the store denies calls of this node.
    pub(crate) fn denial(&self) -> Option<String> {
        match &*self.reachability.borrow() {
            StoreReachability::Denied(reason) => Some(reason.clone()),
            StoreReachability::Untried | StoreReachability::Reachable | StoreReachability::Unreachable(_) => {
                None
            }
        }
    }

    /// Why the store counts as unreachable.
    pub(crate) fn outage(&self) -> Option<String> {
        match &*self.reachability.borrow() {
            StoreReachability::Unreachable(reason) => Some(reason.clone()),
            StoreReachability::Untried | StoreReachability::Reachable | StoreReachability::Denied(_) => None,
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

    /// The time since the watch was last confirmed, or since the start of the agent if it never was.
    pub(crate) fn watch_age(&self) -> Duration {
        let inner = self.lock();
        inner.confirmed.unwrap_or(inner.started).elapsed()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ContactInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SharedMembership {
    /// Reports when the store becomes unreachable or reachable. Any part of the agent may notice it.
    pub(crate) async fn report_reachability(&self) {
        let mut reachability = self.contact.reachability.subscribe();
        while reachability.changed().await.is_ok() {
            self.report();
        }
    }

    /// Sets the modification time of the copy on disk, so that an agent that starts during an outage can report its age.
    pub(crate) fn watch_ended(&self) -> Option<JoinHandle<()>> {
        self.contact.watch_ended().and_then(|age| self.save_copy_time(age))
    }

    /// Runs on a blocking thread, so that a slow disk does not delay the watch. None if the previous call has not ended. On a
    /// hanging disk, such calls would occupy all threads, and names of etcd's endpoints could not be resolved.
    fn save_copy_time(&self, age: Duration) -> Option<JoinHandle<()>> {
        let guard = Arc::clone(&self.saving_time).try_lock_owned().ok()?;
        let confirmed = SystemTime::now().checked_sub(age).unwrap_or(UNIX_EPOCH);
        let node_state = self.node_state.clone();
        Some(spawn_blocking(move || {
            let _guard = guard;
            if let Err(error) = node_state.confirm_peers(confirmed) {
                debug!(%error, "cannot set the modification time of peers.json");
            }
        }))
    }
}

impl Member {
    /// The watch is complete. From time to time this also updates the copy on disk, in case the agent or the host ends abruptly.
    pub(crate) fn watch_confirmed(&self) {
        self.shared.contact.watch_confirmed();
        if self.shared.contact.is_save_due(Instant::now()) {
            drop(self.shared.save_copy_time(Duration::ZERO));
        }
    }

    /// Nodes with an unreadable record, and the reason.
    pub(crate) fn unread_nodes(&self) -> BTreeMap<NodeName, String> {
        let layout = &self.registry.layout;
        let nodes =
            self.unread.iter().filter_map(|(key, reason)| Some((layout.node_of(key)?, reason.clone())));
        nodes.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken() -> store::Error {
        let source = std::io::Error::other("connection refused").into();
        store::Error::WatchFailed { prefix: "/podwire/".to_owned(), source }
    }

    fn refusal() -> store::Error {
        store::Error::Config { problem: "no right to read".to_owned() }
    }

    #[test]
    fn a4_only_the_watch_confirms_the_copy() {
        let contact = Contact::new(None);
        contact.answered();
        assert!(contact.is_reachable() && contact.age() == Age::NoCopy);
        contact.watch_started(ListedNodes::default());
        let confirmed = contact.lock().confirmed;
        contact.answered();
        assert_eq!(contact.lock().confirmed, confirmed, "only the watch may confirm the copy");
        contact.watch_confirmed();
        assert!(contact.lock().confirmed > confirmed);
        assert!(contact.watch_ended() < Some(Duration::from_secs(60)));
        assert_eq!(contact.watch_ended(), None);
    }

    #[test]
    fn a4_two_failures_in_a_row_are_an_outage() {
        let contact = Contact::new(None);
        contact.watch_started(ListedNodes::default());
        contact.watch_ended();
        contact.session_failed(&broken().into());
        assert!(contact.is_reachable() && contact.outage().is_none() && contact.failure().is_none());
        contact.session_failed(&broken().into());
        assert!(!contact.is_reachable() && contact.outage() == contact.failure());
        // Calls may succeed while watches fail.
        contact.answered();
        assert!(!contact.is_reachable());
        contact.watch_started(ListedNodes::default());
        assert!(contact.is_reachable() && contact.failure().is_none());
        // A single late heartbeat is no outage either, and an answer ends an outage that heartbeats detected.
        contact.call_failed(&broken());
        assert!(contact.is_reachable());
        contact.call_failed(&broken());
        assert!(contact.outage().unwrap().contains("connection refused"));
        contact.answered();
        assert!(contact.is_reachable());
        contact.query_timed_out("the store did not answer within 8 s".to_owned());
        assert!(!contact.is_reachable(), "a client's query timed out");
        contact.answered();
        contact.query_failed(&refusal());
        assert!(contact.is_reachable());
        contact.query_failed(&broken());
        assert!(!contact.is_reachable(), "a client got an error");
    }

    /// F9: the heartbeat detects permissions that are revoked while the watch runs.
    #[test]
    fn f9_a_denied_call_is_reported_until_a_call_succeeds() {
        let denied = || store::Error::Denied {
            operation: store::Operation { verb: "read", object: "/podwire/alive/n1".to_owned() },
            store: "etcd".to_owned(),
            advice: "set etcd.user",
            source: "user name is empty".into(),
        };
        let contact = Contact::new(None);
        contact.watch_started(ListedNodes::default());
        contact.call_failed(&denied());
        contact.watch_confirmed();
        assert!(contact.is_reachable() && contact.denial().unwrap().contains("user name is empty"));
        contact.answered();
        assert_eq!(contact.denial(), None);
        contact.query_failed(&denied());
        contact.watch_started(ListedNodes::default());
        assert_eq!(contact.denial(), None, "listing and watching succeeded");
    }

    /// F9: etcd gave this node a read-only role.
    #[test]
    fn f9_a_denied_write_is_reported_until_a_write_succeeds() {
        let denied = store::Error::Denied {
            operation: store::Operation { verb: "write", object: "/podwire/blocks/10.42.1.0".to_owned() },
            store: "etcd".to_owned(),
            advice: "grant the role readwrite",
            source: "permission denied".into(),
        };
        let contact = Contact::new(None);
        contact.watch_started(ListedNodes::default());
        contact.call_failed(&denied);
        let mut reachability = contact.reachability.subscribe();
        reachability.mark_unchanged();
        for _ in 0..3 {
            contact.answered();
            contact.watch_confirmed();
        }
        assert!(!reachability.has_changed().unwrap(), "the condition must not flap");
        assert!(contact.is_write_denied() && contact.denial().unwrap().contains("permission denied"));
        // The end of an outage does not end the denial.
        contact.query_failed(&broken());
        contact.answered();
        assert!(contact.denial().is_some());
        contact.write_succeeded();
        assert!(!contact.is_write_denied() && contact.denial().is_none());
        contact.call_failed(&denied);
        contact.watch_started(ListedNodes::default());
        assert_eq!(contact.denial(), None, "joining includes a write");
    }

    #[test]
    fn a4_the_first_failure_is_an_outage_and_a_refusal_is_not() {
        let contact = Contact::new(None);
        contact.session_failed(&broken().into());
        assert!(!contact.is_reachable() && contact.failure().is_some());
        contact.session_failed(&refusal().into());
        assert!(contact.is_reachable() && contact.failure().unwrap().contains("no right to read"));
        // Every other error follows from answers of the store, so it can be queried.
        contact.session_failed(&broken().into());
        contact.session_failed(&JoinError::TooMany);
        assert!(contact.is_reachable() && contact.failure().is_none());
    }

    #[test]
    fn the_copy_on_disk_is_used_until_the_first_watch() {
        let contact = Contact::new(Some(unix_time() - 7200));
        let is_old = |age| matches!(age, Age::Known(age) if age >= Duration::from_secs(7200));
        assert!(is_old(contact.age()));
        assert!(contact.watch_age() < Duration::from_secs(7200) && contact.listed().is_none());
        contact.watch_started(ListedNodes::default());
        assert!(!is_old(contact.age()));
        assert_eq!(Contact::new(Some(unix_time() + 7200)).age(), Age::Unknown, "a clock was wrong");
    }

    #[test]
    fn a5_the_store_is_unreachable_after_the_thread_ended() {
        let contact = Contact::new(None);
        contact.watch_started(ListedNodes::default());
        contact.stopped("ended");
        assert!(!contact.is_reachable() && contact.outage() == contact.failure());
        assert_eq!(contact.stale_reason().as_deref(), Some("ended"));
    }

    #[test]
    fn a12_the_copy_is_up_to_date_while_it_is_watched() {
        let contact = Contact::new(Some(unix_time()));
        assert!(contact.stale_reason().unwrap().contains("not been listed"));
        contact.session_failed(&broken().into());
        assert!(contact.stale_reason().unwrap().contains("connection refused"));
        contact.watch_started(ListedNodes::default());
        assert_eq!(contact.stale_reason(), None);
        contact.watch_ended();
        assert_eq!(contact.stale_reason(), None, "a broken watch is restarted soon");
        contact.lock().confirmed = Some(Instant::now() - REJOIN * 2);
        assert!(contact.stale_reason().unwrap().contains("not watched"));
    }

    #[test]
    fn a4_the_copy_on_disk_gets_a_new_time_once_a_minute() {
        let (contact, now) = (Contact::new(None), Instant::now());
        let is_due = |seconds| contact.is_save_due(now + Duration::from_secs(seconds));
        assert_eq!([0, 5, 59, 60, 65, 120].map(is_due), [true, false, false, true, false, true]);
    }

    #[test]
    fn the_watch_updates_the_list_of_running_agents() {
        let contact = Contact::new(None);
        let name: NodeName = "n2".try_into().unwrap();
        contact.set_alive(name.clone(), Some(7));
        assert!(contact.listed().is_none(), "there is no list before the first watch");
        contact.watch_started(ListedNodes::default());
        contact.set_alive(name.clone(), Some(7));
        assert_eq!(contact.listed().unwrap().alive, BTreeMap::from([(name.clone(), 7)]));
        contact.set_alive(name, None);
        assert!(contact.listed().unwrap().alive.is_empty());
    }
}
