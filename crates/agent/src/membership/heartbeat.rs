//! `alive/NAME`: a key with a lease that shows that the agent of this node is running. The agent that set it holds the name.
//! Nothing is written under a name without this key, so two hosts with the same name cannot both join. Status shows it, too. No
//! route depends on it, so its loss does not affect traffic.

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
/// Allows for one lost heartbeat, also if the store does not answer at all.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
const HEARTBEAT_DEADLINE: Duration = Duration::from_millis(2500);
/// The delay after a first failure. Two failures in a row are an outage.
const HEARTBEAT_RETRY: Duration = Duration::from_millis(500);
/// How long a stopping agent waits for the store.
const RELEASE_DEADLINE: Duration = Duration::from_millis(800);

/// The lease that reserves this node's name.
#[derive(Debug, Clone)]
pub(crate) struct NameLease {
    /// The connection of the current session. Another one may use a source address that no longer exists.
    store: Store,
    pub(crate) key: String,
    pub(crate) revision: u64,
    uid: NodeUid,
    lease: LeaseId,
}

impl NameLease {
    /// Renews the lease. Returns false if this node no longer holds the name.
    async fn beat(&self) -> Result<bool, store::Error> {
        let store = self.store.with_deadline(HEARTBEAT_DEADLINE);
        if store.keep_alive(self.lease).await? == LeaseState::Gone {
            return Ok(false);
        }
        // The lease may exist without the key.
        let entry = store.get(&self.key).await?;
        Ok(entry
            .and_then(|entry| AliveRecord::decode(&entry.value).ok())
            .is_some_and(|alive| alive.uid == self.uid))
    }

    /// Checks whether this node may write. Changes nothing, whether or not the key exists: the store checks permissions first.
    async fn try_write(&self) -> Result<(), store::Error> {
        let store = self.store.with_deadline(HEARTBEAT_DEADLINE);
        let (compare, change) = (Compare::Absent(self.key.clone()), Change::Delete(self.key.clone()));
        store.commit(&[compare], &[change]).await.map(drop)
    }

    /// Releases the name, so that another host need not wait for the lease to expire.
    pub(crate) async fn release(&self) {
        if let Err(error) = self.store.with_deadline(RELEASE_DEADLINE).revoke(self.lease).await {
            debug!(%error, "cannot revoke the lease; it expires after its TTL");
        }
    }
}

impl Registry {
    /// Takes the name, unless another host with a running agent holds it.
    pub(crate) async fn acquire_name(&self, candidate: &Candidate) -> Result<NameLease, JoinError> {
        let NodeRecord { name, uid, .. } = &candidate.record;
        let key = self.layout.alive(name);
        for _ in 0..TRIES {
            let compare = match self.store.get(&key).await? {
                None => Compare::Absent(key.clone()),
                Some(entry) => match AliveRecord::decode(&entry.value) {
                    Ok(alive) if alive.uid != *uid => return Err(self.name_held(name, &alive.uid).await?),
                    // A newer version wrote it, so it is never overwritten.
                    Err(source) if source.is_newer() => return Err(JoinError::Decode { key, source }),
                    Ok(_) | Err(_) => Compare::Revision(key.clone(), entry.revision),
                },
            };
            let lease = self.store.grant(TTL).await?;
            let value = AliveRecord { uid: uid.clone(), since: candidate.since }.encode();
            let put = Change::Put { key: key.clone(), value, lease: Some(lease) };
            match self.store.commit(&[compare], &[put]).await? {
                CommitOutcome::Done { revision } => {
                    return Ok(NameLease {
                        store: self.store.clone(),
                        key,
                        revision,
                        uid: uid.clone(),
                        lease,
                    });
                }
                CommitOutcome::Refused => self.store.revoke(lease).await?,
            }
        }
        Err(JoinError::Contended { object: key })
    }

    pub(crate) async fn name_held(&self, name: &NodeName, uid: &NodeUid) -> Result<JoinError, JoinError> {
        let entry = self.store.get(&self.layout.node(name)).await?;
        let record = entry.and_then(|entry| NodeRecord::decode(&entry.value).ok());
        let addresses =
            record.filter(|record| record.uid == *uid).map(|record| record.addresses).unwrap_or_default();
        let at: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let at = if at.is_empty() { "an unknown address".to_owned() } else { at.join(", ") };
        Ok(JoinError::Held { name: name.clone(), uid: uid.to_string(), at })
    }
}

/// Renews the current lease of the member, and notifies it when the name is lost.
pub(crate) struct Heartbeat {
    pub(crate) name_lease: watch::Receiver<Option<NameLease>>,
    pub(crate) name_lost: Arc<Notify>,
    pub(crate) contact: Arc<Contact>,
}

impl Heartbeat {
    /// Runs until the member has ended.
    pub(crate) async fn run(mut self) {
        loop {
            let lease = self.name_lease.borrow_and_update().clone();
            let is_over = match lease {
                Some(lease) => self.renew(&lease).await,
                None => self.name_lease.changed().await.is_err(),
            };
            if is_over {
                return;
            }
        }
    }

    /// Retries a write after a denial. Otherwise the condition would last until this node's next write.
    async fn check_writes(&self, lease: &NameLease) {
        if !self.contact.is_write_denied() {
            return;
        }
        match lease.try_write().await {
            Ok(()) => self.contact.write_succeeded(),
            Err(error) => self.contact.call_failed(&error),
        }
    }

    /// Renews one lease until the member has another one. Returns whether the member has ended.
    async fn renew(&mut self, lease: &NameLease) -> bool {
        let mut failures = 0;
        loop {
            let pause = if failures == 1 { HEARTBEAT_RETRY } else { HEARTBEAT_INTERVAL };
            tokio::select! {
                () = sleep(pause) => {}
                changed = self.name_lease.changed() => return changed.is_err(),
            }
            match lease.beat().await {
                Ok(true) => {
                    failures = 0;
                    self.contact.answered();
                    self.check_writes(lease).await;
                }
                Ok(false) => {
                    warn!(key = lease.key, "this node's name is no longer held; joining again");
                    self.name_lost.notify_one();
                    return self.name_lease.changed().await.is_err();
                }
                // The lease may still be valid. The next heartbeat checks it.
                Err(error) => {
                    failures += 1;
                    self.contact.call_failed(&error);
                    debug!(key = lease.key, %error, "heartbeat failed");
                }
            }
        }
    }
}
