//! Draining tombstones: DELs that arrived while no agent ran are served before anything new is created.
//!
//! One round runs at a time, on its own thread. A caller waits for a round that started after its call, because such a round
//! has listed all tombstones that the caller could have listed. A caller does not wait for a tombstone that takes very long (its
//! IPAM plugin may hang), unless it is about the same attachment. A tombstone that cannot be served is retried later. A
//! tombstone that reappears each time after it was served is put aside, because its IPAM plugin writes it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use api::{Tombstone, TombstoneError, Tombstones};
use types::{AttachmentKey, Code, Finding, Fix};

/// How long a caller waits for rounds, with any number of tombstones.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Callers stop waiting for a round that works on one tombstone for this long.
const STUCK: Duration = Duration::from_secs(2);
/// Requests do not retry a failed tombstone for this long, so that it does not delay each pod start.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// How many tombstones that were put aside are reported.
const REPORTED: usize = 20;

/// A tombstone that reappears this often in a row was written by its own DEL. A single reappearance may be a runtime that gave
/// up waiting.
const MAX_REAPPEARANCES: u32 = 3;

/// The tombstones were not drained within the timeout.
#[derive(Debug, thiserror::Error)]
#[error("the tombstones in {} are not drained yet", dir.display())]
pub(crate) struct DrainTimeout {
    dir: PathBuf,
}

/// The result of a drain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DrainReport {
    pub(crate) drained: usize,
    /// Tombstones of attachments that another request is working on. They are served after it.
    pub(crate) pending: usize,
    /// Tombstones that were not served, each with its cause.
    pub(crate) failed: Vec<String>,
    /// The new paths of tombstones that were put aside.
    pub(crate) put_aside: Vec<PathBuf>,
}

/// Which tombstones a round tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DrainScope {
    All,
    /// All but those that failed within [`RETRY_DELAY`].
    SkipRecentlyFailed,
}

/// The result of serving a tombstone.
pub(crate) enum TombstoneOutcome {
    Served,
    /// Another thread served it.
    AlreadyServed,
    /// Another request of the same attachment is not finished.
    Pending,
    /// It can never be served.
    Invalid(String),
    Failed(String),
}

/// Serves the DEL of a tombstone and removes the tombstone.
pub(crate) type ServeTombstone<'a> = dyn Fn(&Tombstone) -> TombstoneOutcome + 'a;

pub(crate) struct Drain {
    tombstone_files: Tombstones,
    rounds: Mutex<Rounds>,
    ended: Condvar,
}

#[derive(Default)]
struct Rounds {
    started: u64,
    ended: u64,
    /// When the round started with its current tombstone.
    current_since: Option<Instant>,
    /// The report of the last round that ended.
    report: DrainReport,
    failed: BTreeMap<PathBuf, FailedTombstone>,
    /// How often in a row a tombstone reappeared after it was served.
    reappeared: BTreeMap<PathBuf, u32>,
    /// The new paths of tombstones that were put aside, each with the reason.
    put_aside: Vec<(PathBuf, String)>,
}

struct FailedTombstone {
    at: Instant,
    cause: String,
}

impl Drain {
    pub(crate) fn new(run_dir: &Path) -> Self {
        Self { tombstone_files: Tombstones::new(run_dir), rounds: Mutex::default(), ended: Condvar::new() }
    }

    pub(crate) fn tombstone_files(&self) -> &Tombstones {
        &self.tombstone_files
    }

    /// Drains before something new is created. None if there is no tombstone, which costs one read of the directory.
    pub(crate) fn drain_all(&self, start: &dyn Fn()) -> Result<Option<DrainReport>, DrainTimeout> {
        match self.tombstone_files.is_empty() {
            Ok(true) => Ok(None),
            Ok(false) => self.round(start).map(Some),
            Err(error) => Ok(Some(self.unreadable(&error))),
        }
    }

    /// Serves the tombstone of this key only. Costs one lookup if there is none.
    pub(crate) fn drain_key(&self, key: &AttachmentKey, serve: &ServeTombstone<'_>) -> DrainReport {
        let listed = self.tombstone_files.exists(key).and_then(|exists| match exists {
            true => self.tombstone_files.list(),
            false => Ok(Vec::new()),
        });
        match listed {
            Ok(mut tombstone_files) => {
                tombstone_files.retain(|tombstone| tombstone.key.as_ref() == Some(key));
                self.serve_all(&tombstone_files, DrainScope::SkipRecentlyFailed, serve)
            }
            Err(error) => self.unreadable(&error),
        }
    }

    /// Why an attachment of this key cannot be created now: its tombstone still exists.
    pub(crate) fn blocked_reason(&self, key: &AttachmentKey) -> Option<String> {
        let tombstone = match self.tombstone_files.exists(key) {
            Ok(true) => self
                .tombstone_files
                .list()
                .ok()?
                .into_iter()
                .find(|tombstone| tombstone.key.as_ref() == Some(key))?,
            // `drain_all` has reported the error.
            Ok(false) | Err(_) => return None,
        };
        let rounds = self.lock();
        Some(match rounds.failed.get(&tombstone.path) {
            Some(failed) => {
                format!("an earlier DEL of this attachment cannot be served yet: {}", failed.cause)
            }
            None => "a newer DEL of this attachment has not been served yet".to_owned(),
        })
    }

    /// Serves all current tombstones by a round. `start` must call [`Drain::run`]. Fails if the round exceeds the timeout.
    pub(crate) fn round(&self, start: &dyn Fn()) -> Result<DrainReport, DrainTimeout> {
        let deadline = Instant::now() + TIMEOUT;
        let mut rounds = self.lock();
        let needed = rounds.started + 1;
        while rounds.ended < needed {
            if rounds.ended == rounds.started {
                rounds.started += 1;
                rounds.current_since = Some(Instant::now());
                rounds.report = DrainReport::default();
                drop(rounds);
                start();
                rounds = self.lock();
                continue;
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining == Duration::ZERO {
                return Err(DrainTimeout { dir: self.tombstone_files.dir().to_owned() });
            }
            let spent = rounds.current_since.map_or(Duration::ZERO, |since| since.elapsed());
            if spent >= STUCK {
                return Ok(DrainReport { pending: 1, ..DrainReport::default() });
            }
            let woken = self.ended.wait_timeout(rounds, remaining.min(STUCK.saturating_sub(spent)));
            rounds = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(rounds.report.clone())
    }

    /// Runs the round that [`Self::round`] started.
    pub(crate) fn run(&self, scope: DrainScope, serve: &ServeTombstone<'_>) {
        let _round = DrainRound(self);
        let report = match self.tombstone_files.list() {
            Ok(tombstone_files) => {
                let mut rounds = self.lock();
                let exists = |path: &PathBuf| tombstone_files.iter().any(|tombstone| tombstone.path == *path);
                rounds.failed.retain(|path, _| exists(path));
                rounds.reappeared.retain(|path, _| exists(path));
                drop(rounds);
                let step = |tombstone: &Tombstone| {
                    self.lock().current_since = Some(Instant::now());
                    serve(tombstone)
                };
                self.serve_all(&tombstone_files, scope, &step)
            }
            Err(error) => self.unreadable(&error),
        };
        self.lock().report = report;
    }

    fn serve_all(
        &self,
        tombstone_files: &[Tombstone],
        scope: DrainScope,
        serve: &ServeTombstone<'_>,
    ) -> DrainReport {
        let mut report = DrainReport::default();
        for tombstone in tombstone_files
            .iter()
            .filter(|tombstone| scope == DrainScope::All || self.may_retry(&tombstone.path))
        {
            let outcome = match &tombstone.call {
                Ok(_) if self.keeps_reappearing(&tombstone.path) => TombstoneOutcome::Invalid(format!(
                    "it reappeared after it was served, {MAX_REAPPEARANCES} times in a row; does its ipam.type run Podwire?"
                )),
                Ok(_) => serve(tombstone),
                Err(error) => TombstoneOutcome::Invalid(format!("it cannot be read: {error}")),
            };
            match outcome {
                TombstoneOutcome::Served => {
                    self.served(&tombstone.path);
                    report.drained += 1;
                }
                TombstoneOutcome::AlreadyServed => {}
                TombstoneOutcome::Pending => report.pending += 1,
                TombstoneOutcome::Invalid(cause) => match self.put_aside(tombstone, &cause) {
                    Ok(new_path) => report.put_aside.extend(new_path),
                    Err(error) => {
                        report.failed.push(self.record_failure(&tombstone.path, &error.to_string()));
                    }
                },
                TombstoneOutcome::Failed(cause) => {
                    report.failed.push(self.record_failure(&tombstone.path, &cause));
                }
            }
        }
        report
    }

    fn served(&self, path: &Path) {
        let reappeared = path.symlink_metadata().is_ok();
        let mut rounds = self.lock();
        rounds.failed.remove(path);
        if reappeared {
            *rounds.reappeared.entry(path.to_owned()).or_default() += 1;
        } else {
            rounds.reappeared.remove(path);
        }
    }

    fn keeps_reappearing(&self, path: &Path) -> bool {
        self.lock().reappeared.get(path).is_some_and(|times| *times >= MAX_REAPPEARANCES)
    }

    fn may_retry(&self, path: &Path) -> bool {
        self.lock().failed.get(path).is_none_or(|failed| failed.at.elapsed() >= RETRY_DELAY)
    }

    fn put_aside(&self, tombstone: &Tombstone, cause: &str) -> Result<Option<PathBuf>, TombstoneError> {
        let new_path = self.tombstone_files.put_aside(tombstone)?;
        if let Some(new_path) = &new_path {
            let mut rounds = self.lock();
            rounds.failed.remove(&tombstone.path);
            rounds.reappeared.remove(&tombstone.path);
            rounds.put_aside.push((new_path.clone(), cause.to_owned()));
            let surplus = rounds.put_aside.len().saturating_sub(REPORTED);
            rounds.put_aside.drain(..surplus);
        }
        Ok(new_path)
    }

    fn record_failure(&self, path: &Path, cause: &str) -> String {
        let text = format!("tombstone {} cannot be served yet: {cause}", path.display());
        self.lock()
            .failed
            .insert(path.to_owned(), FailedTombstone { at: Instant::now(), cause: cause.to_owned() });
        text
    }

    fn unreadable(&self, error: &TombstoneError) -> DrainReport {
        let text = self.record_failure(self.tombstone_files.dir(), &error.to_string());
        DrainReport { failed: vec![text], ..DrainReport::default() }
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        let rounds = self.lock();
        let failed = rounds.failed.iter().map(|(path, failed)| {
            let message = format!("cannot serve a DEL that was stored while no agent ran: {}", failed.cause);
            Finding::new(Code::TombstoneFailed, format_args!("file {}", path.display()), message)
        });
        let aside = rounds.put_aside.iter().filter(|(path, _)| path.exists()).map(|(path, cause)| {
            let message =
                format!("put aside a DEL that was stored while no agent ran: {cause}; GC or reconcile removes its attachment");
            let object = format_args!("file {}", path.display());
            let finding = Finding::new(Code::TombstoneRejected, object, message);
            finding.fix(Fix::words(["rm", &path.to_string_lossy()]))
        });
        failed.chain(aside).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks the round as ended, also if serving a tombstone panics.
struct DrainRound<'a>(&'a Drain);

impl Drop for DrainRound<'_> {
    fn drop(&mut self) {
        let mut rounds = self.0.lock();
        rounds.ended = rounds.started;
        drop(rounds);
        self.0.ended.notify_all();
    }
}
