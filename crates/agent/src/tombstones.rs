//! Draining tombstones: DELs that came while nobody was here are served before anything new is made.
//!
//! One round at a time, on a thread of its own. Whoever needs one waits for a round that began after it came: such a round
//! has seen all tombstones that it could have seen itself. But nobody waits for one tombstone that takes very long (its
//! IPAM plugin may hang), unless it is about the same attachment. One that cannot be served stays, and is tried again a
//! little later. One that is there again each time after it was served is put aside: its IPAM plugin leaves it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use api::{Tombstone, TombstoneError, Tombstones};
use types::{AttachmentKey, Code, Finding, Fix};

/// How long somebody waits for rounds, however many tombstones there are.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A round that is at the same tombstone for so long is not waited for.
const STUCK: Duration = Duration::from_secs(2);
/// One that failed is left alone for so long by those who only pass by: a pod's start must not pay for it each time.
const REST: Duration = Duration::from_secs(1);
/// How many of those that were put aside are remembered for people.
const REMEMBERED: usize = 20;

/// One that came back so often in a row while it was served is left by the serving itself. Once may be a runtime that did
/// not want to wait any longer.
const RETURNS: u32 = 3;

/// There are too many tombstones to wait for.
#[derive(Debug, thiserror::Error)]
#[error("tombstones in {} are not drained yet", dir.display())]
pub(crate) struct Undrained {
    dir: PathBuf,
}

/// What one draining did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DrainReport {
    pub(crate) drained: usize,
    /// Those whose attachment is being worked on: served when that is over.
    pub(crate) pending: usize,
    /// Those that stay, each with its cause.
    pub(crate) failed: Vec<String>,
    /// Where those are now that cannot be read.
    pub(crate) put_aside: Vec<PathBuf>,
}

/// Which tombstones a round tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DrainScope {
    All,
    /// Not those that failed a moment ago.
    Rested,
}

/// What became of a tombstone that was tried.
pub(crate) enum Buried {
    Done,
    /// Somebody else served it.
    Gone,
    /// Another request about the same attachment is not over yet.
    Pending,
    /// The call in it makes no sense, and never will.
    Senseless(String),
    Failed(String),
}

/// Serves the DEL of a tombstone and takes it away.
pub(crate) type Bury<'a> = dyn Fn(&Tombstone) -> Buried + 'a;

pub(crate) struct Drain {
    tombstone_files: Tombstones,
    rounds: Mutex<Rounds>,
    ended: Condvar,
}

#[derive(Default)]
struct Rounds {
    begun: u64,
    ended: u64,
    /// When the round began with the tombstone that it is at.
    moved: Option<Instant>,
    /// Of the last round that ended.
    report: DrainReport,
    failed: BTreeMap<PathBuf, FailedTombstone>,
    /// How often in a row a tombstone was there again when it had been served.
    returned: BTreeMap<PathBuf, u32>,
    /// Where they are now, each with the reason.
    put_aside: Vec<(PathBuf, String)>,
}

struct FailedTombstone {
    at: Instant,
    why: String,
}

impl Drain {
    pub(crate) fn new(run_dir: &Path) -> Self {
        Self { tombstone_files: Tombstones::new(run_dir), rounds: Mutex::default(), ended: Condvar::new() }
    }

    pub(crate) fn tombstone_files(&self) -> &Tombstones {
        &self.tombstone_files
    }

    /// Drains before something new is made. None: there was nothing to do, at the cost of one reading of the directory.
    pub(crate) fn pass(&self, start: &dyn Fn()) -> Result<Option<DrainReport>, Undrained> {
        match self.tombstone_files.is_empty() {
            Ok(true) => Ok(None),
            Ok(false) => self.round(start).map(Some),
            Err(error) => Ok(Some(self.unreadable(&error))),
        }
    }

    /// Serves what was left for this key alone, at the cost of one look where there is nothing.
    pub(crate) fn one(&self, key: &AttachmentKey, bury: &Bury<'_>) -> DrainReport {
        let listed = self.tombstone_files.exists(key).and_then(|exists| match exists {
            true => self.tombstone_files.list(),
            false => Ok(Vec::new()),
        });
        match listed {
            Ok(mut tombstone_files) => {
                tombstone_files.retain(|tombstone| tombstone.key.as_ref() == Some(key));
                self.bury_all(&tombstone_files, DrainScope::Rested, bury)
            }
            Err(error) => self.unreadable(&error),
        }
    }

    /// Why an attachment of this key cannot be made now, if its tombstone is still there.
    pub(crate) fn obstacle(&self, key: &AttachmentKey) -> Option<String> {
        let tombstone = match self.tombstone_files.exists(key) {
            Ok(true) => self
                .tombstone_files
                .list()
                .ok()?
                .into_iter()
                .find(|tombstone| tombstone.key.as_ref() == Some(key))?,
            // Who cannot look has said so in `pass`.
            Ok(false) | Err(_) => return None,
        };
        let rounds = self.lock();
        Some(match rounds.failed.get(&tombstone.path) {
            Some(failed) => format!("an earlier DEL of it cannot be served yet: {}", failed.why),
            None => "a DEL of it came meanwhile and is not served yet".to_owned(),
        })
    }

    /// Has all served that are there now, by a round that `start` leads to [`Drain::run`]. An error: there are too many.
    pub(crate) fn round(&self, start: &dyn Fn()) -> Result<DrainReport, Undrained> {
        let deadline = Instant::now() + TIMEOUT;
        let mut rounds = self.lock();
        let needed = rounds.begun + 1;
        while rounds.ended < needed {
            if rounds.ended == rounds.begun {
                rounds.begun += 1;
                rounds.moved = Some(Instant::now());
                rounds.report = DrainReport::default();
                drop(rounds);
                start();
                rounds = self.lock();
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return Err(Undrained { dir: self.tombstone_files.dir().to_owned() });
            }
            let spent = rounds.moved.map_or(Duration::ZERO, |moved| moved.elapsed());
            if spent >= STUCK {
                return Ok(DrainReport { pending: 1, ..DrainReport::default() });
            }
            let woken = self.ended.wait_timeout(rounds, left.min(STUCK.saturating_sub(spent)));
            rounds = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(rounds.report.clone())
    }

    /// The round that was started.
    pub(crate) fn run(&self, which: DrainScope, bury: &Bury<'_>) {
        let _round = DrainRound(self);
        let report = match self.tombstone_files.list() {
            Ok(tombstone_files) => {
                let mut rounds = self.lock();
                let is_there =
                    |path: &PathBuf| tombstone_files.iter().any(|tombstone| tombstone.path == *path);
                rounds.failed.retain(|path, _| is_there(path));
                rounds.returned.retain(|path, _| is_there(path));
                drop(rounds);
                let step = |tombstone: &Tombstone| {
                    self.lock().moved = Some(Instant::now());
                    bury(tombstone)
                };
                self.bury_all(&tombstone_files, which, &step)
            }
            Err(error) => self.unreadable(&error),
        };
        self.lock().report = report;
    }

    fn bury_all(&self, tombstone_files: &[Tombstone], which: DrainScope, bury: &Bury<'_>) -> DrainReport {
        let mut report = DrainReport::default();
        for tombstone in tombstone_files
            .iter()
            .filter(|tombstone| which == DrainScope::All || self.is_rested(&tombstone.path))
        {
            let outcome = match &tombstone.call {
                Ok(_) if self.leads_to_itself(&tombstone.path) => Buried::Senseless(format!(
                    "it was left again while it was served, {RETURNS} times in a row; does its ipam.type run Podwire?"
                )),
                Ok(_) => bury(tombstone),
                Err(error) => Buried::Senseless(format!("it cannot be read: {error}")),
            };
            match outcome {
                Buried::Done => {
                    self.served(&tombstone.path);
                    report.drained += 1;
                }
                Buried::Gone => {}
                Buried::Pending => report.pending += 1,
                Buried::Senseless(why) => match self.put_aside(tombstone, &why) {
                    Ok(place) => report.put_aside.extend(place),
                    Err(error) => report.failed.push(self.remember(&tombstone.path, &error.to_string())),
                },
                Buried::Failed(why) => report.failed.push(self.remember(&tombstone.path, &why)),
            }
        }
        report
    }

    fn served(&self, path: &Path) {
        let is_there_again = path.symlink_metadata().is_ok();
        let mut rounds = self.lock();
        rounds.failed.remove(path);
        if is_there_again {
            *rounds.returned.entry(path.to_owned()).or_default() += 1;
        } else {
            rounds.returned.remove(path);
        }
    }

    fn leads_to_itself(&self, path: &Path) -> bool {
        self.lock().returned.get(path).is_some_and(|times| *times >= RETURNS)
    }

    fn is_rested(&self, path: &Path) -> bool {
        self.lock().failed.get(path).is_none_or(|failed| failed.at.elapsed() >= REST)
    }

    fn put_aside(&self, tombstone: &Tombstone, why: &str) -> Result<Option<PathBuf>, TombstoneError> {
        let place = self.tombstone_files.put_aside(tombstone)?;
        if let Some(place) = &place {
            let mut rounds = self.lock();
            rounds.failed.remove(&tombstone.path);
            rounds.returned.remove(&tombstone.path);
            rounds.put_aside.push((place.clone(), why.to_owned()));
            let surplus = rounds.put_aside.len().saturating_sub(REMEMBERED);
            rounds.put_aside.drain(..surplus);
        }
        Ok(place)
    }

    fn remember(&self, path: &Path, why: &str) -> String {
        let text = format!("tombstone {} cannot be served yet: {why}", path.display());
        self.lock()
            .failed
            .insert(path.to_owned(), FailedTombstone { at: Instant::now(), why: why.to_owned() });
        text
    }

    fn unreadable(&self, error: &TombstoneError) -> DrainReport {
        let text = self.remember(self.tombstone_files.dir(), &error.to_string());
        DrainReport { failed: vec![text], ..DrainReport::default() }
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        let rounds = self.lock();
        let failed = rounds.failed.iter().map(|(path, failed)| {
            let message = format!("a DEL that was left cannot be served: {}", failed.why);
            Finding::new(Code::TombstoneFailed, format_args!("file {}", path.display()), message)
        });
        let aside = rounds.put_aside.iter().filter(|(path, _)| path.exists()).map(|(path, why)| {
            let message =
                format!("a DEL that was left was put aside: {why}; GC or reconcile removes its attachment");
            let object = format_args!("file {}", path.display());
            let found = Finding::new(Code::TombstoneRejected, object, message);
            found.fix(Fix::words(["rm", &path.to_string_lossy()]))
        });
        failed.chain(aside).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the round, also if serving a tombstone panics.
struct DrainRound<'a>(&'a Drain);

impl Drop for DrainRound<'_> {
    fn drop(&mut self) {
        let mut rounds = self.0.lock();
        rounds.ended = rounds.begun;
        drop(rounds);
        self.0.ended.notify_all();
    }
}
