//! A watch: inspects the state when the revision changed, and when a lease runs out.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep};

use super::Embedded;
use super::state::Since;
use crate::Result;
use crate::error::{Error, Operation};
use crate::store::StoreCall;
use crate::types::{Event, Watched};

/// How long one look may wait for other calls.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A lease that ran out is looked at a moment later.
const AFTER_THE_END: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(crate) struct EmbeddedWatch {
    embedded: Arc<Embedded>,
    prefix: String,
    /// The first revision that was not told yet.
    from: u64,
    /// The last revision of the store that we know of. One that is older now is another store.
    known: u64,
    /// Of the log. Another one is another store.
    generation: u64,
    revisions: Receiver<u64>,
    end: WatchPhase,
    is_progress_requested: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchPhase {
    Open,
    Ended,
}

/// What one look finds.
#[derive(Debug)]
enum WatchProgress {
    Forgotten,
    Changes(Vec<Event>),
    /// Look again after this time at the latest.
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
            end: WatchPhase::Open,
            is_progress_requested: false,
        })
    }
}

impl EmbeddedWatch {
    pub(crate) fn request_progress(&mut self) {
        self.is_progress_requested = true;
    }

    pub(crate) async fn next(&mut self) -> Result<Watched> {
        if self.end == WatchPhase::Ended {
            let ended = io::Error::other("it has ended before");
            return Err(Error::WatchBroke { prefix: self.prefix.clone(), source: ended.into() });
        }
        loop {
            // Whatever changes from here on wakes us below.
            self.revisions.borrow_and_update();
            match self.look().await? {
                WatchProgress::Forgotten => {
                    self.end = WatchPhase::Ended;
                    return Ok(Watched::Compacted);
                }
                WatchProgress::Changes(events) => {
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

    async fn look(&self) -> Result<WatchProgress> {
        let operation = Operation::new("watch", self.prefix.clone());
        let call = StoreCall { operation, deadline: Instant::now() + TIMEOUT, timeout: TIMEOUT };
        let (prefix, from, known, generation) = (self.prefix.clone(), self.from, self.known, self.generation);
        let work = move |log: &mut super::EmbeddedLog| match log.state.since(&prefix, from) {
            _ if log.generation != generation || log.state.revision < known => Ok(WatchProgress::Forgotten),
            Since::Forgotten => Ok(WatchProgress::Forgotten),
            Since::Events(events) if events.is_empty() => {
                let mut next = None;
                for lease in log.state.leases.values() {
                    let left = lease.left()?.unwrap_or_default();
                    next = Some(next.map_or(left, |next: Duration| next.min(left)));
                }
                Ok(WatchProgress::Nothing {
                    revision: log.state.revision,
                    until: next.map(|left| left + AFTER_THE_END),
                })
            }
            Since::Events(events) => Ok(WatchProgress::Changes(events)),
        };
        self.embedded.run(&call, work).await
    }

    /// Until something was committed, or for this time.
    async fn wait(&mut self, until: Option<Duration>) {
        let lease_ends = async {
            match until {
                Some(until) => sleep(until).await,
                None => pending().await,
            }
        };
        tokio::select! {
            // It cannot fail: the store that this watch refers to has the sender.
            _ = self.revisions.changed() => {}
            () = lease_ends => {}
        }
    }
}
