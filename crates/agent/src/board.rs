//! What the agent knows about itself, written by those who do the work and read by those who are asked.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::{InstalledFile, Problem, Readiness, ReconcileStatus, Repair};

/// How many repairs are remembered for people; metrics count all of them.
const RECENT: usize = 20;
/// A round takes milliseconds; with thousands of pods a second or two.
const LONG_ROUND: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Board {
    inner: Mutex<Inner>,
    /// Seconds since 1970.
    pub(crate) started: u64,
}

#[derive(Debug, Default)]
struct Inner {
    standing: Standing,
    keeping: Keeping,
    reconcile: ReconcileStatus,
    installed: Vec<InstalledFile>,
    inactive_ports: Vec<String>,
    /// What a person should look at, by who found it.
    problems: BTreeMap<Finder, Vec<Problem>>,
}

/// Whether ADDs are served, and why not.
#[derive(Debug, Default)]
enum Standing {
    #[default]
    Starting,
    Ready,
    Hindered(String),
    /// Final, whatever rounds that are still under way find.
    Stopping,
}

/// What the keeper does.
#[derive(Debug, Default)]
enum Keeping {
    #[default]
    Nothing,
    Round {
        since: Instant,
    },
    Pause {
        since: Instant,
        /// How long it may take, at the longest.
        at_most: Duration,
    },
}

/// Who looks for problems; each replaces only its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Finder {
    Config,
    Keeper,
    Firewall,
    /// Elements of pods that are gone.
    Elements,
    Socket,
    Tcp,
    Tombstones,
    Cluster,
    Routes,
}

impl Board {
    pub(crate) fn new() -> Self {
        Self { inner: Mutex::default(), started: unix_time() }
    }

    pub(crate) fn readiness(&self) -> Readiness {
        let reason = match &self.lock().standing {
            Standing::Ready => None,
            Standing::Starting => Some("the agent is starting".to_owned()),
            Standing::Hindered(why) => Some(why.clone()),
            Standing::Stopping => Some("the agent is stopping".to_owned()),
        };
        Readiness { ready: reason.is_none(), reason }
    }

    pub(crate) fn set_ready(&self) {
        self.stand(Standing::Ready);
    }

    pub(crate) fn set_not_ready(&self, reason: impl Into<String>) {
        self.stand(Standing::Hindered(reason.into()));
    }

    pub(crate) fn set_stopping(&self) {
        self.stand(Standing::Stopping);
    }

    fn stand(&self, new: Standing) {
        let standing = &mut self.lock().standing;
        if !matches!(standing, Standing::Stopping) {
            *standing = new;
        }
    }

    pub(crate) fn round_begins(&self) {
        self.lock().keeping = Keeping::Round { since: Instant::now() };
    }

    /// Another one follows within this time if all is well.
    pub(crate) fn round_ends(&self, timer: Duration) {
        let at_most = timer.saturating_mul(3).saturating_add(LONG_ROUND);
        self.lock().keeping = Keeping::Pause { since: Instant::now(), at_most };
    }

    /// A keeper that hangs cannot say so itself.
    pub(crate) fn hangs(&self, now: Instant) -> Option<Problem> {
        let (what, since, at_most) = match self.lock().keeping {
            Keeping::Nothing => return None,
            Keeping::Round { since } => ("a round of reconcile has been running", since, LONG_ROUND),
            Keeping::Pause { since, at_most } => ("reconcile has not looked at anything", since, at_most),
        };
        let age = now.saturating_duration_since(since);
        // The age is not told: a problem that stays the same is one problem.
        let problem = || Problem {
            what: format!(
                "{what} for more than {} s: pods are served, but what is damaged is not repaired; \
                 if it stays, restart the agent and report it with its log",
                at_most.as_secs()
            ),
            command: None,
        };
        (age > at_most).then(problem)
    }

    pub(crate) fn reconcile(&self) -> ReconcileStatus {
        self.lock().reconcile.clone()
    }

    /// Another round ended, with these repairs.
    pub(crate) fn reconciled(&self, took_ms: u64, repairs: &[String]) {
        let time = unix_time();
        let status = &mut self.lock().reconcile;
        status.last = Some(time);
        status.took_ms = took_ms;
        status.rounds += 1;
        status.repairs += repairs.len() as u64;
        status.recent.extend(repairs.iter().map(|what| Repair { time, what: what.clone() }));
        let surplus = status.recent.len().saturating_sub(RECENT);
        status.recent.drain(..surplus);
    }

    pub(crate) fn installed(&self) -> Vec<InstalledFile> {
        self.lock().installed.clone()
    }

    pub(crate) fn set_installed(&self, files: Vec<InstalledFile>) {
        self.lock().installed = files;
    }

    pub(crate) fn inactive_ports(&self) -> Vec<String> {
        self.lock().inactive_ports.clone()
    }

    pub(crate) fn set_inactive_ports(&self, ports: Vec<String>) {
        self.lock().inactive_ports = ports;
    }

    pub(crate) fn problems(&self) -> Vec<Problem> {
        let found: Vec<Problem> = self.lock().problems.values().flatten().cloned().collect();
        self.hangs(Instant::now()).into_iter().chain(found).collect()
    }

    pub(crate) fn set_problems(&self, finder: Finder, problems: Vec<Problem>) {
        self.lock().problems.insert(finder, problems);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopping_is_final() {
        let board = Board::new();
        assert_eq!(board.readiness().reason.as_deref(), Some("the agent is starting"));
        board.set_ready();
        assert!(board.readiness().ready);
        board.set_stopping();
        board.set_ready();
        assert_eq!(board.readiness().reason.as_deref(), Some("the agent is stopping"));
        board.set_not_ready("the bridge is missing");
        assert_eq!(board.readiness().reason.as_deref(), Some("the agent is stopping"));
    }

    #[test]
    fn a_keeper_that_hangs_is_told() {
        let board = Board::new();
        let in_seconds = |seconds| Instant::now() + Duration::from_secs(seconds);
        assert!(board.hangs(in_seconds(1000)).is_none());
        board.round_begins();
        assert!(board.hangs(in_seconds(29)).is_none() && board.problems().is_empty());
        assert!(board.hangs(in_seconds(31)).unwrap().what.contains("running for more than 30 s"));
        board.round_ends(Duration::from_secs(10));
        assert!(board.hangs(in_seconds(59)).is_none());
        assert!(board.hangs(in_seconds(61)).unwrap().what.contains("anything for more than 60 s"));
    }
}
