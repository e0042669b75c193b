//! What the agent knows about itself, written by those who do the work and read by those who are asked.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::{Condition, InactivePort, InstalledFile, Readiness, ReconcileStatus, Repair, Timestamp};
use tracing::{error, info, warn};
use types::{Code, Finding, Severity};

use crate::clock::Now;
use crate::conditions::{ConditionChanges, Conditions, Source};
use crate::peers::routes::LONGEST_CHANGE;

/// How many repairs are remembered for people; metrics count all of them.
const RECENT: usize = 20;
/// A round takes milliseconds; with thousands of pods a second or two.
const LONG_ROUND: Duration = Duration::from_secs(30);
/// A check of the installed files reads some megabytes.
const LONG_INSTALLATION: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct AgentStatus {
    inner: Mutex<AgentStatusInner>,
    started: Instant,
}

#[derive(Debug, Default)]
struct AgentStatusInner {
    keeping: ReconcilerState,
    /// Since when a thread works without a pause.
    busy: [Option<Instant>; 3],
    reconcile: Reconciled,
    installed: Vec<InstalledFile>,
    inactive_ports: Vec<InactivePort>,
    conditions: Conditions,
    /// Final, whatever rounds that are still under way find.
    is_stopping: bool,
}

/// Rounds and repairs so far.
#[derive(Debug, Default)]
struct Reconciled {
    last_round: Option<Instant>,
    duration_ms: u64,
    rounds: u64,
    repairs: u64,
    /// The latest repairs, oldest first.
    recent: Vec<(Instant, String)>,
}

/// A thread that reports when it begins to work and when it waits again.
#[derive(Debug, Clone, Copy)]
pub(crate) enum WatchedThread {
    Peers,
    Installation,
    Inspector,
}

impl WatchedThread {
    const ALL: [Self; 3] = [Self::Peers, Self::Installation, Self::Inspector];

    /// How long it may work without a pause.
    fn limit(self) -> Duration {
        match self {
            Self::Peers => LONGEST_CHANGE,
            Self::Installation => LONG_INSTALLATION,
            Self::Inspector => LONG_ROUND,
        }
    }

    fn stuck(self, since: Option<Instant>, now: Instant) -> Option<Finding> {
        let limit = self.limit();
        since.filter(|since| now.saturating_duration_since(*since) > limit)?;
        let limit = limit.as_secs();
        let (code, object, message) = match self {
            Self::Peers => (
                Code::ReconcileStuck,
                "routes to peers",
                format!(
                    "a change has been running for more than {limit} s: routes to peers do not follow the store"
                ),
            ),
            Self::Installation => (
                Code::InstallIncomplete,
                "installation",
                format!(
                    "a check of plugin and config has been running for more than {limit} s: the disk may hang"
                ),
            ),
            Self::Inspector => (
                Code::ReconcileStuck,
                "pods",
                format!(
                    "an inspection of all pods has been running for more than {limit} s: drift inside pods is not repaired"
                ),
            ),
        };
        // Pods are served as long as the runtime has its files.
        Some(Finding::new(code, object, message).degraded().fix("systemctl restart podwire"))
    }
}

/// What the reconciler does.
#[derive(Debug, Default)]
enum ReconcilerState {
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

impl AgentStatus {
    /// Not ready: the agent is starting.
    pub(crate) fn new() -> Self {
        let agent_status = Self { inner: Mutex::default(), started: Instant::now() };
        agent_status.set_starting();
        agent_status
    }

    /// Not ready until [`Self::set_started`] is called.
    pub(crate) fn set_starting(&self) {
        self.set(Source::Lifecycle, vec![lifecycle(Code::AgentStarting, "the agent is starting")]);
    }

    /// The first reconcile has ended, and the first attempt to install files.
    pub(crate) fn set_started(&self) {
        self.set(Source::Lifecycle, Vec::new());
    }

    pub(crate) fn set_stopping(&self) {
        let found = vec![lifecycle(Code::AgentStopping, "the agent is stopping")];
        // With one lock: the end of a first round in between would make the agent ready for good.
        let mut inner = self.lock();
        inner.is_stopping = true;
        inner.conditions.set(Source::Lifecycle, found, Instant::now());
    }

    /// Replaces the findings of a source. What began and what ended is logged.
    pub(crate) fn set(&self, source: Source, findings: Vec<Finding>) {
        let change = {
            let mut inner = self.lock();
            if source == Source::Lifecycle && inner.is_stopping {
                return;
            }
            inner.conditions.set(source, findings, Instant::now())
        };
        // The agent logs its start and its end.
        if source != Source::Lifecycle {
            log(&change);
        }
    }

    pub(crate) fn conditions(&self) -> Vec<Condition> {
        self.lock().conditions.all(&Now::read())
    }

    /// The conditions with what these sources would report now, and whether that differs from what they reported. Changes
    /// nothing: a client that asks is no reason for a condition to begin or to end.
    pub(crate) fn conditions_with(&self, fresh: Vec<(Source, Vec<Finding>)>) -> (Vec<Condition>, bool) {
        let mut conditions = self.lock().conditions.clone();
        let now = Now::read();
        let mut differs = false;
        for (source, findings) in fresh {
            differs |= conditions.set(source, findings, now.instant) != ConditionChanges::default();
        }
        (conditions.all(&now), differs)
    }

    pub(crate) fn has(&self, code: Code) -> bool {
        self.lock().conditions.has(code)
    }

    /// When the agent started, by the clock of now.
    pub(crate) fn started(&self) -> Timestamp {
        Now::read().wall_time(self.started)
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn readiness(&self) -> Readiness {
        let mut conditions = self.conditions();
        conditions.retain(Condition::keeps_from_ready);
        Readiness { ready: conditions.is_empty(), conditions }
    }

    pub(crate) fn round_begins(&self) {
        self.lock().keeping = ReconcilerState::Round { since: Instant::now() };
    }

    /// Another one follows within this time if all is well.
    pub(crate) fn round_ends(&self, timer: Duration) {
        let at_most = timer.saturating_mul(3).saturating_add(LONG_ROUND);
        self.lock().keeping = ReconcilerState::Pause { since: Instant::now(), at_most };
        // Ends the condition of a round that took long.
        self.check_hangs(Instant::now());
    }

    /// The thread has something to do.
    pub(crate) fn busy_since(&self, thread: WatchedThread, since: Instant) {
        self.lock().busy[thread as usize] = Some(since);
    }

    /// The thread waits for input.
    pub(crate) fn idle(&self, thread: WatchedThread) {
        let now = Instant::now();
        let since = self.lock().busy[thread as usize].take();
        if thread.stuck(since, now).is_some() {
            // Ends the condition.
            self.check_hangs(now);
        }
    }

    /// A thread that hangs cannot report it itself.
    pub(crate) fn check_hangs(&self, now: Instant) {
        let found = {
            let inner = self.lock();
            let threads = WatchedThread::ALL.into_iter();
            let stuck = threads.filter_map(|thread| thread.stuck(inner.busy[thread as usize], now));
            inner.keeping.stuck(now).into_iter().chain(stuck).collect()
        };
        self.set(Source::Watchdog, found);
    }

    pub(crate) fn reconcile(&self) -> ReconcileStatus {
        self.lock().reconcile.shown(&Now::read())
    }

    /// Another round ended, with these repairs.
    pub(crate) fn reconciled(&self, duration_ms: u64, repairs: &[String]) {
        {
            let status = &mut self.lock().reconcile;
            status.last_round = Some(Instant::now());
            status.duration_ms = duration_ms;
            status.rounds += 1;
        }
        self.repaired(repairs.len() as u64, repairs);
    }

    /// So many objects were repaired. One sentence may be about several of them.
    pub(crate) fn repaired(&self, count: u64, repairs: &[String]) {
        let now = Instant::now();
        let status = &mut self.lock().reconcile;
        status.repairs += count;
        status.recent.extend(repairs.iter().map(|what| (now, what.clone())));
        let surplus = status.recent.len().saturating_sub(RECENT);
        status.recent.drain(..surplus);
    }

    pub(crate) fn installed(&self) -> Vec<InstalledFile> {
        self.lock().installed.clone()
    }

    pub(crate) fn set_installed(&self, files: Vec<InstalledFile>) {
        self.lock().installed = files;
    }

    pub(crate) fn inactive_ports(&self) -> Vec<InactivePort> {
        self.lock().inactive_ports.clone()
    }

    pub(crate) fn set_inactive_ports(&self, ports: Vec<InactivePort>) {
        self.lock().inactive_ports = ports;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, AgentStatusInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reconciled {
    fn shown(&self, now: &Now) -> ReconcileStatus {
        let repair =
            |(at, what): &(Instant, String)| Repair { at: now.wall_time(*at), message: what.clone() };
        ReconcileStatus {
            last_round_at: self.last_round.map(|last| now.wall_time(last)),
            duration_ms: self.duration_ms,
            rounds: self.rounds,
            repairs: self.repairs,
            recent_repairs: self.recent.iter().map(repair).collect(),
        }
    }
}

impl ReconcilerState {
    fn stuck(&self, now: Instant) -> Option<Finding> {
        let (what, since, at_most) = match self {
            Self::Nothing => return None,
            Self::Round { since } => ("a reconcile round has been running", since, &LONG_ROUND),
            Self::Pause { since, at_most } => ("no reconcile round has run", since, at_most),
        };
        let message = || {
            let limit = at_most.as_secs();
            format!("{what} for more than {limit} s: pods are served, but drift is not repaired")
        };
        let found = || Finding::new(Code::ReconcileStuck, "reconcile", message());
        (now.saturating_duration_since(*since) > *at_most).then(|| found().fix("systemctl restart podwire"))
    }
}

fn lifecycle(code: Code, message: &str) -> Finding {
    Finding::new(code, "agent", message)
}

/// Conditions of each kind that one change logs. All of them are in the status.
const LOGGED: usize = 20;

fn log(change: &ConditionChanges) {
    let ConditionChanges { began, worsened, eased, ended } = change;
    log_findings(began, "condition began");
    log_findings(worsened, "condition worsened");
    log_findings(eased, "condition eased");
    for (code, object) in ended.iter().take(LOGGED) {
        info!(%code, object, "condition ended");
    }
    if let Some(number) = unlogged(ended.len()) {
        info!(number, "more conditions: condition ended");
    }
}

/// The most severe ones come first.
fn log_findings(findings: &[Finding], what: &'static str) {
    for Finding { code, severity, object, message, fix } in findings.iter().take(LOGGED) {
        // As they are, without quotes: a fix is to be pasted.
        let (object, fix) = (object.as_str(), fix.as_deref().map(tracing::field::display));
        match severity {
            Severity::NotReady => error!(%code, object, reason = %message, fix, "{what}"),
            Severity::Degraded => warn!(%code, object, reason = %message, fix, "{what}"),
        }
    }
    if let Some(number) = unlogged(findings.len()) {
        warn!(number, "more conditions: {what}");
    }
}

fn unlogged(all: usize) -> Option<usize> {
    all.checked_sub(LOGGED).filter(|more| *more > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Format;
    use crate::log::tests::logged;

    fn first(agent_status: &AgentStatus) -> Option<api::ConditionCode> {
        agent_status.readiness().conditions.into_iter().next().map(|condition| condition.code)
    }

    #[test]
    fn stopping_is_final() {
        let agent_status = AgentStatus::new();
        assert!(first(&agent_status).unwrap() == Code::AgentStarting);
        agent_status.set_started();
        assert!(agent_status.readiness().ready);
        agent_status.set_stopping();
        agent_status.set_started();
        assert!(first(&agent_status).unwrap() == Code::AgentStopping);
        agent_status.set(Source::Reconcile, vec![Finding::new(Code::BridgeMissing, "bridge b", "gone")]);
        assert!(first(&agent_status).unwrap() == Code::AgentStopping);
    }

    #[test]
    fn a4_a_first_round_that_ends_meanwhile_does_not_make_a_stopping_agent_ready() {
        for _ in 0..2000 {
            let agent_status = AgentStatus::new();
            let both = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    both.wait();
                    agent_status.set_started();
                });
                both.wait();
                agent_status.set_stopping();
            });
            assert!(first(&agent_status).unwrap() == Code::AgentStopping);
        }
    }

    #[test]
    fn a1_a_change_of_severity_is_logged_and_thousands_of_conditions_are_counted() {
        let agent_status = AgentStatus::new();
        let of = |number: usize| Finding::new(Code::RepairFailed, format_args!("link pw{number}"), "EIO");
        let taken = Finding::new(Code::BridgeNameTaken, "link podwire0", "it is a veth");
        let text = logged(Format::Text, || {
            agent_status.set(Source::Round, vec![taken.clone().degraded()]);
            agent_status.set(Source::Round, vec![taken.clone()]);
            agent_status.set(Source::Round, vec![taken.degraded()]);
            agent_status.set(Source::Reconcile, (0..5000).map(of).collect());
            agent_status.set(Source::Reconcile, Vec::new());
        });
        let changes: Vec<&str> = text.lines().take(3).collect();
        for (line, words) in
            changes.iter().zip(["WARN condition began", "ERROR condition worsened", "WARN condition eased"])
        {
            assert!(line.contains(words) && line.contains("code=BridgeNameTaken"), "{line}");
        }
        assert_eq!(text.lines().count(), 3 + 2 * (LOGGED + 1), "{text}");
        assert_eq!(text.lines().filter(|line| line.contains("number=4980")).count(), 2, "{text}");
    }

    #[test]
    fn a_reconcile_that_hangs_is_reported() {
        let agent_status = AgentStatus::new();
        let is_stuck = |seconds| {
            let stuck = agent_status.lock().keeping.stuck(Instant::now() + Duration::from_secs(seconds));
            stuck.map(|found| found.message)
        };
        assert_eq!(is_stuck(1000), None);
        agent_status.round_begins();
        assert_eq!(is_stuck(29), None);
        assert!(is_stuck(31).unwrap().contains("running for more than 30 s"));
        agent_status.round_ends(Duration::from_secs(10));
        assert_eq!(is_stuck(59), None);
        assert!(is_stuck(61).unwrap().contains("has run for more than 60 s"));
        agent_status.check_hangs(Instant::now() + Duration::from_secs(61));
        assert!(agent_status.conditions().iter().any(|one| one.code == Code::ReconcileStuck));
        let is_reported = || agent_status.conditions().iter().any(|one| one.code == Code::ReconcileStuck);
        assert!(is_reported(), "nothing but a check and the end of a round changes it");
        agent_status.round_begins();
        agent_status.round_ends(Duration::from_secs(10));
        assert!(!is_reported(), "it goes on");
    }

    #[test]
    fn a_thread_that_hangs_is_reported_until_it_goes_on() {
        for (thread, code, object) in [
            (WatchedThread::Peers, Code::ReconcileStuck, "routes to peers"),
            (WatchedThread::Installation, Code::InstallIncomplete, "installation"),
        ] {
            let (agent_status, now, limit) = (AgentStatus::new(), Instant::now(), thread.limit());
            agent_status.set_started();
            let is_reported = || agent_status.conditions().iter().any(|one| one.object == object);
            agent_status.busy_since(thread, now);
            agent_status.check_hangs(now + limit);
            assert!(!is_reported());
            agent_status.check_hangs(now + limit * 2);
            assert!(is_reported() && agent_status.has(code) && agent_status.readiness().ready);
            agent_status.busy_since(thread, now.checked_sub(limit * 2).unwrap());
            agent_status.idle(thread);
            assert!(!is_reported());
        }
    }

    #[test]
    fn a1_repairs_and_rounds_keep_their_age_when_the_clock_is_set() {
        let (agent_status, started) = (AgentStatus::new(), Instant::now());
        agent_status.reconciled(3, &["route restored".to_owned()]);
        let wall = std::time::UNIX_EPOCH + Duration::from_secs(1_800_000_060);
        let now = Now { instant: started + Duration::from_secs(60), wall };
        let shown = agent_status.lock().reconcile.shown(&now);
        for time in [shown.last_round_at.unwrap(), shown.recent_repairs[0].at] {
            assert!((1_800_000_000..1_800_000_050).contains(&time.0), "{time}");
        }
    }

    #[test]
    fn a4_what_a_client_asks_for_changes_no_condition() {
        let agent_status = AgentStatus::new();
        agent_status.set_started();
        let full = Finding::new(Code::RunDirFull, "directory /run/podwire", "no space");
        let text = logged(Format::Text, || {
            let (shown, differs) = agent_status.conditions_with(vec![(Source::RunDir, vec![full.clone()])]);
            assert!(differs && shown.len() == 1 && shown[0].code == Code::RunDirFull);
        });
        assert!(
            agent_status.readiness().ready && agent_status.conditions().is_empty() && text.is_empty(),
            "{text}"
        );
        agent_status.set(Source::RunDir, vec![full.clone()]);
        assert!(!agent_status.conditions_with(vec![(Source::RunDir, vec![full])]).1);
    }
}
