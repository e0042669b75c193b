//! Contact with the store: whether it answers, and how old this node's copy of its contents is. Questions that come while
//! the store does not answer get that copy, with its age.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use store::Event;
use tokio::time::Instant;
use tracing::debug;
use types::NodeName;

use super::command::alive_at;
use super::member::Member;
use crate::board::unix_time;

#[derive(Debug)]
pub(crate) struct Contact {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    started: Instant,
    is_reachable: bool,
    /// While a watch runs, every answer of the store confirms that the copy is complete.
    is_watching: bool,
    /// Why there is no watch, after it was tried.
    failure: Option<String>,
    confirmed: Option<Instant>,
    /// When the copy on disk was written, in seconds since 1970. It counts until the store answers for the first time.
    saved: Option<u64>,
    listed: Option<Listed>,
}

/// Parts of the last listing, kept up to date by the watch, that no route depends on.
#[derive(Debug, Clone, Default)]
pub(super) struct Listed {
    /// Nodes whose agent is alive, and since when, in seconds since 1970.
    pub(super) alive: BTreeMap<NodeName, u64>,
    /// Nodes whose record cannot be read, and why.
    pub(super) unread: BTreeMap<NodeName, String>,
}

impl Contact {
    /// `saved` is the time of the copy on disk.
    pub(super) fn new(saved: Option<u64>) -> Self {
        let inner = Inner {
            started: Instant::now(),
            is_reachable: false,
            is_watching: false,
            failure: None,
            confirmed: None,
            saved,
            listed: None,
        };
        Self { inner: Mutex::new(inner) }
    }

    /// Everything was listed, and a watch runs from there.
    pub(super) fn watching(&self, listed: Listed) {
        let mut inner = self.lock();
        (inner.is_watching, inner.failure, inner.listed) = (true, None, Some(listed));
        inner.confirm();
    }

    /// The store answered.
    pub(super) fn answered(&self) {
        self.lock().confirm();
    }

    /// A call to the store failed. A refusal is an answer.
    pub(super) fn call_failed(&self, error: &store::Error) {
        self.lock().is_reachable = !error.is_transient();
    }

    /// The store did not answer in time.
    pub(super) fn unanswered(&self) {
        self.lock().is_reachable = false;
    }

    /// How long ago the copy was confirmed, if there was a watch.
    pub(super) fn watch_ended(&self) -> Option<Duration> {
        let mut inner = self.lock();
        let was_watching = std::mem::replace(&mut inner.is_watching, false);
        inner.confirmed.filter(|_| was_watching).map(|confirmed| confirmed.elapsed())
    }

    /// This node could not join, or its watch broke.
    pub(super) fn failed(&self, why: String) {
        self.lock().failure = Some(why);
    }

    /// An agent is alive since this time, or is not any more.
    pub(super) fn set_alive(&self, node: NodeName, since: Option<u64>) {
        let mut inner = self.lock();
        let Some(listed) = &mut inner.listed else { return };
        match since {
            Some(since) => listed.alive.insert(node, since),
            None => listed.alive.remove(&node),
        };
    }

    pub(super) fn set_unread(&self, unread: BTreeMap<NodeName, String>) {
        if let Some(listed) = &mut self.lock().listed {
            listed.unread = unread;
        }
    }

    /// None before the store has answered for the first time.
    pub(super) fn listed(&self) -> Option<Listed> {
        self.lock().listed.clone()
    }

    /// Why the store need not be asked: this node has no watch, and tries to get one.
    pub(super) fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    pub(crate) fn is_reachable(&self) -> bool {
        self.lock().is_reachable
    }

    /// The age of this node's copy of the store's contents. None: there is no copy.
    pub(super) fn age(&self) -> Option<Duration> {
        let inner = self.lock();
        let on_disk = || inner.saved.map(|saved| Duration::from_secs(unix_time().saturating_sub(saved)));
        inner.confirmed.map(|confirmed| confirmed.elapsed()).or_else(on_disk)
    }

    /// How long ago the watch was known to be complete; since the start of the agent if it never was.
    pub(crate) fn watch_age(&self) -> Duration {
        let inner = self.lock();
        inner.confirmed.unwrap_or(inner.started).elapsed()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn confirm(&mut self) {
        self.is_reachable = true;
        if self.is_watching {
            self.confirmed = Some(Instant::now());
        }
    }
}

impl Member {
    /// An agent that starts while the store is away reports how old the copy on disk is.
    pub(super) fn watch_ended(&self) {
        let Some(age) = self.shared.contact.watch_ended() else { return };
        let confirmed = SystemTime::now().checked_sub(age).unwrap_or(UNIX_EPOCH);
        if let Err(error) = self.shared.home.confirm_peers(confirmed) {
            debug!("the time of peers.json could not be set: {error}");
        }
    }

    /// Agents that came or went. No route depends on them; `podwire nodes` shows them.
    pub(super) fn note_agents(&self, events: &[Event]) {
        let (layout, contact) = (&self.registry.layout, &self.shared.contact);
        contact.answered();
        for event in events {
            let Some(name) = layout.alive_of(event.key()) else { continue };
            let since = match event {
                Event::Put(entry) => alive_at(layout, &entry.key, &entry.value).map(|(_, since)| since),
                Event::Delete { .. } => None,
            };
            contact.set_alive(name, since);
        }
    }

    /// Nodes whose record cannot be read, and why.
    pub(super) fn unread_nodes(&self) -> BTreeMap<NodeName, String> {
        let layout = &self.registry.layout;
        let nodes = self.unread.iter().filter_map(|(key, why)| Some((layout.node_of(key)?, why.clone())));
        nodes.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_confirms_the_copy_only_while_a_watch_runs() {
        let contact = Contact::new(None);
        contact.answered();
        assert!(contact.is_reachable() && contact.age().is_none());
        contact.watching(Listed::default());
        assert!(contact.age() < Some(Duration::from_secs(60)));
        contact.watch_ended();
        contact.failed("etcd is away".to_owned());
        contact.unanswered();
        let confirmed = contact.lock().confirmed;
        contact.answered();
        assert_eq!(contact.lock().confirmed, confirmed, "the watch may have missed changes");
        assert_eq!(contact.failure().as_deref(), Some("etcd is away"));
        contact.watching(Listed::default());
        assert_eq!(contact.failure(), None);
    }

    #[test]
    fn a_store_that_refuses_is_reachable() {
        let contact = Contact::new(None);
        contact.call_failed(&store::Error::Config { problem: "no right to read".to_owned() });
        assert!(contact.is_reachable());
        let source = std::io::Error::other("connection refused").into();
        contact.call_failed(&store::Error::WatchBroke { prefix: "/podwire/".to_owned(), source });
        assert!(!contact.is_reachable());
    }

    #[test]
    fn a_copy_on_disk_counts_until_the_store_has_answered() {
        let contact = Contact::new(Some(unix_time() - 7200));
        assert!(contact.age() >= Some(Duration::from_secs(7200)));
        assert!(contact.watch_age() < Duration::from_secs(7200) && contact.listed().is_none());
        contact.watching(Listed::default());
        assert!(contact.age() < Some(Duration::from_secs(7200)));
    }

    #[test]
    fn agents_come_and_go_with_the_watch() {
        let contact = Contact::new(None);
        let name: NodeName = "n2".try_into().unwrap();
        contact.set_alive(name.clone(), Some(7));
        assert!(contact.listed().is_none(), "not before everything was listed");
        contact.watching(Listed::default());
        contact.set_alive(name.clone(), Some(7));
        assert_eq!(contact.listed().unwrap().alive, BTreeMap::from([(name.clone(), 7)]));
        contact.set_alive(name, None);
        assert!(contact.listed().unwrap().alive.is_empty());
    }
}
