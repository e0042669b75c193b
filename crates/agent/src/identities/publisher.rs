//! Writes the identities of this node's pods to the store.
//!
//! Only the keys of this node's pods are written or deleted, and identities, whose values cannot differ. A transaction compares the revision
//! of this node's record, so that a host that lost its name writes nothing. The differences are computed from what the watch has
//! observed. So a value that was removed by another program is written again, and a restart writes only differences.

use std::sync::Arc;
use std::time::Duration;

use engine::state::{RecordPhase, StateError};
use model::KeyLayout;
use store::{Change, CommitOutcome, Compare};
use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, info, warn};
use types::{Digest, NodeName};

use super::differences::OwnKeys;
use super::local::{LocalIdentities, PublishedPods};
use super::observer::PublishSession;
use super::records::local_pods;
use super::unused::{Removal, UnusedValues};
use super::{SharedMirror, lock};
use crate::membership::Contact;
use config::Config;

/// Changes within this time are written together.
const BATCH: Duration = Duration::from_millis(10);
/// The first and the longest pause after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// How long the watch may take to show a transaction of this node. The session ends at about the same time if the watch is broken.
const OBSERVED: Duration = Duration::from_secs(5);
/// The mean time between two checks for unused values.
const CHECK_UNUSED: Duration = Duration::from_secs(3600);

pub(super) struct PublisherParts {
    pub(super) own: NodeName,
    pub(super) config: Arc<Config>,
    pub(super) layout: KeyLayout,
    pub(super) local: Arc<LocalIdentities>,
    pub(super) mirror: SharedMirror,
    pub(super) session: watch::Receiver<Option<PublishSession>>,
    pub(super) observed: watch::Receiver<u64>,
    pub(super) contact: Arc<Contact>,
}

pub(crate) struct Publisher {
    parts: PublisherParts,
    changed: Arc<Notify>,
    /// When the records of the run directory are listed next.
    list_at: Instant,
    /// When unused values are removed next.
    check_at: Instant,
    unused: UnusedValues,
}

#[derive(Debug, thiserror::Error)]
enum PublishError {
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("the record of this node was changed")]
    Refused,
    #[error("the watch did not show revision {0}")]
    NotObserved(u64),
}

impl PublishError {
    /// The store refuses this transaction, but may accept others.
    fn is_about_request(&self) -> bool {
        match self {
            Self::Store(error) => error.is_about_request(),
            Self::Refused | Self::NotObserved(_) => false,
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum RecordsError {
    #[error("the records of pods cannot be read: {0}")]
    State(#[from] StateError),
    #[error("the records of pods cannot be read: {0}")]
    Task(#[from] JoinError),
}

impl Publisher {
    pub(super) fn new(parts: PublisherParts) -> Self {
        let changed = parts.local.changed();
        let check_at = Instant::now() + check_pause(&parts.own, 0);
        Self { parts, changed, list_at: Instant::now(), check_at, unused: UnusedValues::default() }
    }

    /// Runs until the agent ends. A failure delays only the next attempt.
    pub(crate) async fn run(mut self) {
        let (mut pause, mut tries) = (RETRY.0, 0_u64);
        loop {
            if self.list_at <= Instant::now() {
                self.list_records().await;
            }
            let done = self.publish().await;
            if let Err(error) = done {
                self.failed(&error);
                sleep(pause).await;
                pause = (pause * 2).min(RETRY.1);
                continue;
            }
            pause = RETRY.0;
            if self.check_at <= Instant::now() {
                tries += 1;
                self.check_at = Instant::now() + check_pause(&self.parts.own, tries);
                if let Err(error) = self.remove_unused().await {
                    self.failed(&error);
                }
            }
            self.wait().await;
        }
    }

    fn failed(&self, error: &PublishError) {
        if let PublishError::Store(error) = error {
            self.parts.contact.call_failed(error);
        }
        debug!(%error, "identities of pods were not written; retrying");
    }

    /// Waits for a change, and a moment longer for further ones.
    async fn wait(&mut self) {
        tokio::select! {
            () = self.changed.notified() => {}
            changed = self.parts.session.changed() => if changed.is_err() {
                return std::future::pending().await;
            },
            () = sleep_until(self.list_at.min(self.check_at)) => return,
        }
        sleep(BATCH).await;
    }

    /// Finds pods of an earlier agent, and pods whose addresses another IPAM plugin assigned.
    async fn list_records(&mut self) {
        self.list_at = Instant::now() + self.parts.config.reconcile;
        let (config, own) = (Arc::clone(&self.parts.config), self.parts.own.clone());
        self.parts.local.begin_listing();
        let listed = spawn_blocking(move || local_pods(&config.run_dir, &own, &[RecordPhase::Ready])).await;
        match listed.map_err(RecordsError::from).and_then(|listed| Ok(listed?)) {
            Ok((ready, recorded)) => self.parts.local.finish_listing(&ready, &recorded),
            Err(error) => warn!(%error, "identities of pods cannot be compared with the store"),
        }
    }

    fn input(&self) -> Option<(PublishSession, PublishedPods)> {
        Some((self.parts.session.borrow().clone()?, self.parts.local.published()?))
    }

    /// Writes all differences. Nothing is written while this node is not a member or its records were not listed.
    async fn publish(&mut self) -> Result<(), PublishError> {
        // A session that begins after this wakes the publisher again.
        self.parts.session.mark_unchanged();
        let Some((session, pods)) = self.input() else { return Ok(()) };
        let keys = OwnKeys { layout: &self.parts.layout, node: &self.parts.own };
        let commits = lock(&self.parts.mirror).differences(keys, &pods, &session.blocks);
        let mut refused = Ok(());
        for changes in commits {
            match self.commit(&session, Vec::new(), &changes).await {
                Ok(()) => {}
                // The other transactions do not depend on it.
                Err(error) if error.is_about_request() => refused = Err(error),
                Err(error) => return Err(error),
            }
        }
        refused
    }

    /// The next differences are computed when the watch has shown this transaction.
    async fn commit(
        &self,
        session: &PublishSession,
        mut compares: Vec<Compare>,
        changes: &[Change],
    ) -> Result<(), PublishError> {
        compares.push(Compare::Revision(self.parts.layout.node(&self.parts.own), session.record));
        let CommitOutcome::Done { revision } = session.store.commit(&compares, changes).await? else {
            return Err(PublishError::Refused);
        };
        let mut observed = self.parts.observed.clone();
        let mut ended = self.parts.session.clone();
        let is_observed = async { observed.wait_for(|observed| *observed >= revision).await.is_ok() };
        let is_ended = ended.wait_for(Option::is_none);
        let waited = timeout(OBSERVED, async {
            tokio::select! {
                is_observed = is_observed => is_observed,
                _ = is_ended => false,
            }
        });
        match waited.await {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(PublishError::NotObserved(revision)),
        }
    }

    async fn remove_unused(&mut self) -> Result<(), PublishError> {
        let Some((session, pods)) = self.input() else { return Ok(()) };
        let now = lock(&self.parts.mirror).unused(&pods);
        let Removal { compares, changes } = now.removal(&self.unused, &self.parts.layout);
        self.unused = now;
        if changes.is_empty() {
            return Ok(());
        }
        self.commit(&session, compares, &changes).await?;
        info!(count = changes.len(), "removed unused identities and pods of nodes that do not exist");
        Ok(())
    }
}

/// Between half and one and a half of the mean, different for each node.
fn check_pause(own: &NodeName, tries: u64) -> Duration {
    let byte = Digest::of(&["unused", own.as_str(), &tries.to_string()]).first5()[0];
    CHECK_UNUSED / 2 + CHECK_UNUSED * u32::from(byte) / 256
}
