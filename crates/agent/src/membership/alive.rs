//! `alive/NAME`: a key with a lease that says that an agent works here. Whoever has set it has the name: nothing is written under
//! a name without it, so two machines that come at once with the same one cannot both get in. Status shows it, too. No
//! route depends on it: whatever happens to it, traffic does not notice.

use std::sync::Arc;
use std::time::Duration;

use model::{AliveRecord, NodeRecord, Object as _};
use store::{Change, CommitOutcome, Compare, LeaseId, LeaseState, Store};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tracing::{debug, warn};
use types::{NodeName, NodeUid};

use super::contact::Contact;
use super::join::{Candidate, JoinError, Registry, TRIES};

const TTL: Duration = Duration::from_secs(15);
/// One may be lost, also where the store does not answer at all.
const BEAT: Duration = Duration::from_secs(5);
const BEAT_DEADLINE: Duration = Duration::from_millis(2500);
/// After a failed beat the next one follows sooner: two failures in a row are an outage.
const BEAT_RETRY: Duration = Duration::from_millis(500);
/// How long an agent that ends waits for the store.
const LAST: Duration = Duration::from_millis(800);

/// The name is ours as long as this is kept.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    /// With the connection that the rest of the session uses: another one may lead from an address that is gone.
    store: Store,
    pub(crate) key: String,
    pub(crate) revision: u64,
    uid: NodeUid,
    lease: LeaseId,
}

impl Hold {
    /// Is it still ours?
    async fn beat(&self) -> Result<bool, store::Error> {
        let store = self.store.with_deadline(BEAT_DEADLINE);
        if store.keep_alive(self.lease).await? == LeaseState::Gone {
            return Ok(false);
        }
        // The lease may live on without the key.
        let found = store.get(&self.key).await?;
        Ok(found
            .and_then(|entry| AliveRecord::decode(&entry.value).ok())
            .is_some_and(|alive| alive.uid == self.uid))
    }

    /// Whether this node may write. Changes nothing, whether the key exists or not: the store checks the right first.
    async fn try_write(&self) -> Result<(), store::Error> {
        let store = self.store.with_deadline(BEAT_DEADLINE);
        let (compare, change) = (Compare::Absent(self.key.clone()), Change::Delete(self.key.clone()));
        store.commit(&[compare], &[change]).await.map(drop)
    }

    /// So that others need not wait for its end.
    pub(crate) async fn give_back(&self) {
        if let Err(error) = self.store.with_deadline(LAST).revoke(self.lease).await {
            debug!("the lease runs out by itself: {error}");
        }
    }
}

impl Registry {
    /// Takes the name, unless another machine whose agent is alive has it.
    pub(crate) async fn hold(&self, candidate: &Candidate) -> Result<Hold, JoinError> {
        let NodeRecord { name, uid, .. } = &candidate.record;
        let key = self.layout.alive(name);
        for _ in 0..TRIES {
            let compare = match self.store.get(&key).await? {
                None => Compare::Absent(key.clone()),
                Some(entry) => match AliveRecord::decode(&entry.value) {
                    Ok(alive) if alive.uid != *uid => return Err(self.held(name, &alive.uid).await?),
                    // Whoever knows more than we do wrote it: never overwritten.
                    Err(source) if source.is_newer() => return Err(JoinError::Decode { key, source }),
                    Ok(_) | Err(_) => Compare::Revision(key.clone(), entry.revision),
                },
            };
            let lease = self.store.grant(TTL).await?;
            let value = AliveRecord { uid: uid.clone(), since: candidate.since }.encode();
            let put = Change::Put { key: key.clone(), value, lease: Some(lease) };
            match self.store.commit(&[compare], &[put]).await? {
                CommitOutcome::Done { revision } => {
                    return Ok(Hold { store: self.store.clone(), key, revision, uid: uid.clone(), lease });
                }
                CommitOutcome::Refused => self.store.revoke(lease).await?,
            }
        }
        Err(JoinError::Restless { what: key })
    }

    pub(crate) async fn held(&self, name: &NodeName, uid: &NodeUid) -> Result<JoinError, JoinError> {
        let entry = self.store.get(&self.layout.node(name)).await?;
        let record = entry.and_then(|entry| NodeRecord::decode(&entry.value).ok());
        let its =
            record.filter(|record| record.uid == *uid).map(|record| record.addresses).unwrap_or_default();
        let at: Vec<String> = its.iter().map(ToString::to_string).collect();
        let at = if at.is_empty() { "an unknown address".to_owned() } else { at.join(", ") };
        Ok(JoinError::Held { name: name.clone(), uid: uid.to_string(), at })
    }
}

/// Keeps what the member holds, and tells it when it is lost.
pub(crate) struct Heartbeat {
    pub(crate) holds: watch::Receiver<Option<Hold>>,
    pub(crate) lost: Arc<Notify>,
    pub(crate) contact: Arc<Contact>,
}

impl Heartbeat {
    /// For ever, or until nobody is left who could hold anything.
    pub(crate) async fn run(mut self) {
        loop {
            let held = self.holds.borrow_and_update().clone();
            let is_over = match held {
                Some(hold) => self.keep(&hold).await,
                None => self.holds.changed().await.is_err(),
            };
            if is_over {
                return;
            }
        }
    }

    /// Ends the report of a denied write: this node may have nothing to write for a long time.
    async fn check_writes(&self, hold: &Hold) {
        if !self.contact.is_write_denied() {
            return;
        }
        match hold.try_write().await {
            Ok(()) => self.contact.written(),
            Err(error) => self.contact.call_failed(&error),
        }
    }

    /// Until something else is held.
    async fn keep(&mut self, hold: &Hold) -> bool {
        let mut failures = 0;
        loop {
            let pause = if failures == 1 { BEAT_RETRY } else { BEAT };
            tokio::select! {
                () = sleep(pause) => {}
                changed = self.holds.changed() => return changed.is_err(),
            }
            match hold.beat().await {
                Ok(true) => {
                    failures = 0;
                    self.contact.answered();
                    self.check_writes(hold).await;
                }
                Ok(false) => {
                    warn!("{} in the store is not ours any more: joining again", hold.key);
                    self.lost.notify_one();
                    return self.holds.changed().await.is_err();
                }
                // It may live on: the next beat tells.
                Err(error) => {
                    failures += 1;
                    self.contact.call_failed(&error);
                    debug!("cannot keep {}: {error}", hold.key);
                }
            }
        }
    }
}
