//! `alive/NAME`: a key with a lease that says that an agent works here. Status shows it, and it keeps another machine from
//! taking our name. No route depends on it: whatever happens to it, traffic does not notice.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cluster::{Alive, Object as _};
use store::{Change, Compare, Kept, LeaseId, Outcome, Store};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{debug, warn};
use types::{NodeName, NodeUid};

use super::join::Registry;
use crate::board::unix_time;

const TTL: Duration = Duration::from_secs(15);
/// Two may be lost.
const BEAT: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_secs(1);
/// How long an agent that ends waits for the store.
const LAST: Duration = Duration::from_millis(800);

/// Who says so.
pub(super) struct Herald {
    pub(super) registry: Registry,
    pub(super) name: NodeName,
    pub(super) uid: NodeUid,
    /// Whether our record stands in the store.
    pub(super) joined: watch::Receiver<bool>,
    pub(super) lease: Arc<Lease>,
}

/// The lease that is held now.
#[derive(Default)]
pub(super) struct Lease(Mutex<Option<LeaseId>>);

impl Lease {
    fn set(&self, lease: Option<LeaseId>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = lease;
    }

    /// Gives it back, so that others need not wait for its end.
    pub(super) async fn give_back(&self, store: &Store) {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(lease) = held else { return };
        if let Err(error) = store.with_deadline(LAST).revoke(lease).await {
            debug!("the lease runs out by itself: {error}");
        }
    }
}

/// Whether the key could be set.
#[derive(Debug)]
pub(super) enum Said {
    Yes(LeaseId),
    /// Another machine says so of our name.
    Taken,
}

impl Herald {
    /// For ever. Nothing is said before the node has joined: the name may be another's.
    pub(super) async fn run(mut self) {
        let since = unix_time();
        loop {
            if self.joined.wait_for(|joined| *joined).await.is_err() {
                return;
            }
            match self.say(since).await {
                Ok(Said::Yes(lease)) => {
                    self.lease.set(Some(lease));
                    self.keep(lease).await;
                    self.lease.set(None);
                }
                Ok(Said::Taken) => {
                    warn!("another machine says to be {}: this one waits for its end", self.name);
                    sleep(TTL).await;
                }
                Err(error) => {
                    debug!("cannot say that this agent is alive: {error}");
                    sleep(RETRY).await;
                }
            }
        }
    }

    pub(super) async fn say(&self, since: u64) -> Result<Said, store::Error> {
        let Registry { store, layout } = &self.registry;
        let key = layout.alive(&self.name);
        let found = store.get(&key).await?;
        let compare = match &found {
            None => Compare::Absent(key.clone()),
            Some(entry) => {
                match Alive::decode(&entry.value) {
                    Ok(alive) if alive.uid != self.uid => return Ok(Said::Taken),
                    // Whoever knows more than we do wrote it: never overwritten.
                    Err(error) if error.is_newer() => return Ok(Said::Taken),
                    Ok(_) | Err(_) => Compare::Revision(key.clone(), entry.revision),
                }
            }
        };
        let lease = store.grant(TTL).await?;
        let value = Alive { uid: self.uid.clone(), since }.encode();
        let put = Change::Put { key, value, lease: Some(lease) };
        match store.commit(&[compare], &[put]).await? {
            Outcome::Done { .. } => Ok(Said::Yes(lease)),
            Outcome::Refused => {
                store.revoke(lease).await?;
                Ok(Said::Taken)
            }
        }
    }

    /// Until the lease is lost, or the node is no longer in the store.
    async fn keep(&mut self, lease: LeaseId) {
        loop {
            tokio::select! {
                () = sleep(BEAT) => {}
                changed = self.joined.wait_for(|joined| !*joined) => {
                    debug!("joining again ({})", changed.is_ok());
                    return;
                }
            }
            match self.registry.store.keep_alive(lease).await {
                Ok(Kept::Alive) => {}
                Ok(Kept::Gone) => return,
                // It may live on: the next beat tells.
                Err(error) => debug!("cannot keep the lease: {error}"),
            }
        }
    }
}
