//! A watch. It checks the state when the revision changes and when a lease expires.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep};

use super::Embedded;
use super::state::EventsSince;
use crate::Result;
use crate::error::{Error, Operation};
use crate::store::StoreCall;
use crate::types::{Event, Watched};

/// How long one check may wait for other calls.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Delay after the expiry of a lease, so that the check does not come too early.
const EXPIRY_MARGIN: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(crate) struct EmbeddedWatch {
    embedded: Arc<Embedded>,
    prefix: String,
    /// The first revision that was not reported yet.
    from: u64,
    /// The last known revision of the store. A lower one belongs to a different store.
    known: u64,
    /// The generation of the log. A different one belongs to a different store.
    generation: u64,
    revisions: Receiver<u64>,
    phase: WatchPhase,
    is_progress_requested: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchPhase {
    Open,
    Ended,
}

/// The result of one check.
#[derive(Debug)]
enum WatchProgress {
    Compacted,
    Events(Vec<Event>),
    /// Check again after this time at the latest.
    Nothing {
        revision: u64,
        until: Option<Duration>,
    },
}

impl Embedded {
    pub(crate) async fn watch(
        self: &Arc<Self>,
        call: &StoreCall,
        prefix: &str,
        from: u64,
    ) -> Result<EmbeddedWatch> {
        let revisions = self.revision.subscribe();
        let (known, generation) = self.run(call, |log| Ok((log.state.revision, log.generation))).await?;
        let (embedded, prefix) = (Arc::clone(self), prefix.to_owned());
        Ok(EmbeddedWatch {
            embedded,
            prefix,
            from: from.max(1),
            known,
            generation,
            revisions,
            phase: WatchPhase::Open,
            is_progress_requested: false,
        })
    }
}

impl EmbeddedWatch {
    pub(crate) fn request_progress(&mut self) {
        self.is_progress_requested = true;
    }

    pub(crate) async fn next(&mut self) -> Result<Watched> {
        if self.phase == WatchPhase::Ended {
            let ended = io::Error::other("the watch has ended");
            return Err(Error::WatchFailed { prefix: self.prefix.clone(), source: ended.into() });
        }
        loop {
            // Changes from here on wake the `wait` below.
            self.revisions.borrow_and_update();
            match self.check().await? {
                WatchProgress::Compacted => {
                    self.phase = WatchPhase::Ended;
                    return Ok(Watched::Compacted);
                }
                WatchProgress::Events(events) => {
                    let revision = events.last().map_or(self.from, Event::revision);
                    (self.from, self.known) = (revision + 1, revision);
                    return Ok(Watched::Events { events, revision });
                }
                WatchProgress::Nothing { revision, until } => {
                    self.known = revision;
                    if std::mem::take(&mut self.is_progress_requested) {
                        return Ok(Watched::Current);
                    }
                    self.wait(until).await;
                }
            }
        }
    }

    async fn check(&self) -> Result<WatchProgress> {
        let operation = Operation::new("watch", self.prefix.clone());
        let call = StoreCall { operation, deadline: Instant::now() + TIMEOUT, timeout: TIMEOUT };
        let (prefix, from, known, generation) = (self.prefix.clone(), self.from, self.known, self.generation);
        let work = move |log: &mut super::EmbeddedLog| match log.state.since(&prefix, from) {
            _ if log.generation != generation || log.state.revision < known => Ok(WatchProgress::Compacted),
            EventsSince::Compacted => Ok(WatchProgress::Compacted),
            EventsSince::Events(events) if events.is_empty() => {
                let mut next_expiry = None;
                for lease in log.state.leases.values() {
                    let remaining = lease.remaining()?.unwrap_or_default();
                    next_expiry = Some(next_expiry.map_or(remaining, |next: Duration| next.min(remaining)));
                }
                Ok(WatchProgress::Nothing {
                    revision: log.state.revision,
                    until: next_expiry.map(|remaining| remaining + EXPIRY_MARGIN),
                })
            }
            EventsSince::Events(events) => Ok(WatchProgress::Events(events)),
        };
        self.embedded.run(&call, work).await
    }

    /// Waits for a commit, or for this time.
    async fn wait(&mut self, until: Option<Duration>) {
        let lease_expires = async {
            match until {
                Some(until) => sleep(until).await,
                None => pending().await,
            }
        };
        tokio::select! {
            // Cannot fail: the store, which the watch refers to, owns the sender.
            _ = self.revisions.changed() => {}
            () = lease_expires => {}
        }
    }
}
