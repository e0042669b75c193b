//! What the agent knows about itself, written by those who do the work and read by those who are asked.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use api::{InstalledFile, Problem, Readiness, ReconcileStatus, Repair};

/// How many repairs are remembered for people; metrics count all of them.
const RECENT: usize = 20;

#[derive(Debug)]
pub(crate) struct Board {
    inner: Mutex<Inner>,
    /// Seconds since 1970.
    pub(crate) started: u64,
}

#[derive(Debug, Default)]
struct Inner {
    /// Why no ADD is served; None when ready.
    obstacle: Option<String>,
    reconcile: ReconcileStatus,
    installed: Vec<InstalledFile>,
    /// What a person should look at, by who found it.
    problems: BTreeMap<Finder, Vec<Problem>>,
}

/// Who looks for problems; each replaces only its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Finder {
    Keeper,
    Firewall,
    Tombstones,
}

impl Board {
    pub(crate) fn new() -> Self {
        let inner = Inner { obstacle: Some("the agent is starting".to_owned()), ..Inner::default() };
        Self { inner: Mutex::new(inner), started: unix_time() }
    }

    pub(crate) fn readiness(&self) -> Readiness {
        let reason = self.lock().obstacle.clone();
        Readiness { ready: reason.is_none(), reason }
    }

    pub(crate) fn set_ready(&self) {
        self.lock().obstacle = None;
    }

    pub(crate) fn set_not_ready(&self, reason: impl Into<String>) {
        self.lock().obstacle = Some(reason.into());
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

    pub(crate) fn problems(&self) -> Vec<Problem> {
        self.lock().problems.values().flatten().cloned().collect()
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
