//! State of the agent and its conditions. The components write it; the API and the metrics read it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::{Condition, InactivePort, InstalledFile, Readiness, ReconcileStatus, Repair, Timestamp};
use tracing::{error, info, warn};
use types::{Code, Finding, Severity};

use crate::clock::Now;
use crate::conditions::{ConditionChanges, Conditions, Source};
use crate::peers::routes::LONGEST_CHANGE;

/// How many recent repairs the status shows. The metrics count all of them.
const RECENT: usize = 20;
/// Upper bound for a round. A round takes milliseconds, or a second or two with thousands of pods.
const LONG_ROUND: Duration = Duration::from_secs(30);
/// Upper bound for a check of the installed files. It reads some megabytes.
const LONG_INSTALLATION: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct AgentStatus {
    inner: Mutex<AgentStatusInner>,
    started: Instant,
}

#[derive(Debug, Default)]
struct AgentStatusInner {
    reconciler: ReconcilerState,
    /// When a watched thread started to work. None while it waits.
    busy: [Option<Instant>; 4],
    reconcile: ReconcileCounters,
    installed: Vec<InstalledFile>,
    inactive_ports: Vec<InactivePort>,
    conditions: Conditions,
    /// Set once. Rounds that end later do not change the lifecycle condition.
    is_stopping: bool,
}

/// Counters and recent repairs of the reconciler.
#[derive(Debug, Default)]
struct ReconcileCounters {
    last_round: Option<Instant>,
    duration_ms: u64,
    rounds: u64,
    repairs: u64,
    /// The latest repairs, oldest first.
    recent: Vec<(Instant, String)>,
}

/// A thread that reports when it starts to work and when it waits.
#[derive(Debug, Clone, Copy)]
pub(crate) enum WatchedThread {
    Peers,
    Installation,
    Inspector,
    Policies,
}

impl WatchedThread {
    const ALL: [Self; 4] = [Self::Peers, Self::Installation, Self::Inspector, Self::Policies];

    /// How long it may work without waiting.
    fn limit(self) -> Duration {
        match self {
            Self::Peers | Self::Policies => LONGEST_CHANGE,
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
            Self::Policies => (
                Code::ReconcileStuck,
                "policies",
                format!(
                    "a change has been running for more than {limit} s: policies do not follow the store, and new pods are isolated"
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
        // Pods are served as long as the runtime has plugin and config.
        Some(Finding::new(code, object, message).degraded().fix("systemctl restart podwire"))
    }
}

#[derive(Debug, Default)]
enum ReconcilerState {
    #[default]
    NotStarted,
    Round {
        since: Instant,
    },
    Idle {
        since: Instant,
        /// The longest time until the next round starts.
        limit: Duration,
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

    /// The first reconcile round and the first attempt to install files are over.
    pub(crate) fn set_started(&self) {
        self.set(Source::Lifecycle, Vec::new());
    }

    pub(crate) fn set_stopping(&self) {
        let findings = vec![lifecycle(Code::AgentStopping, "the agent is stopping")];
        // Under one lock: a first round that ends in between would otherwise report a stopping agent as ready.
        let mut inner = self.lock();
        inner.is_stopping = true;
        inner.conditions.set(Source::Lifecycle, findings, Instant::now());
    }

    /// Replaces the findings of a source and logs the conditions that began or ended.
    pub(crate) fn set(&self, source: Source, findings: Vec<Finding>) {
        let change = {
            let mut inner = self.lock();
            if source == Source::Lifecycle && inner.is_stopping {
                return;
            }
            inner.conditions.set(source, findings, Instant::now())
        };
        // The agent logs its own start and stop.
        if source != Source::Lifecycle {
            log(&change);
        }
    }

    pub(crate) fn conditions(&self) -> Vec<Condition> {
        self.lock().conditions.all(&Now::read())
    }

    /// The conditions with fresh findings of these sources, and whether the fresh findings differ from the reported ones.
    /// Stores and logs nothing: a query must not begin or end a condition.
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

    /// Start time of the agent, by the current wall clock.
    pub(crate) fn started(&self) -> Timestamp {
        Now::read().wall_time(self.started)
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn readiness(&self) -> Readiness {
        let mut conditions = self.conditions();
        conditions.retain(Condition::prevents_ready);
        Readiness { ready: conditions.is_empty(), conditions }
    }

    pub(crate) fn round_begins(&self) {
        self.lock().reconciler = ReconcilerState::Round { since: Instant::now() };
    }

    /// The next round is expected within `timer`.
    pub(crate) fn round_ends(&self, timer: Duration) {
        let limit = timer.saturating_mul(3).saturating_add(LONG_ROUND);
        self.lock().reconciler = ReconcilerState::Idle { since: Instant::now(), limit };
        // Ends the condition of a round that took too long.
        self.check_hangs(Instant::now());
    }

    /// The thread works since then.
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

    /// Called from another thread: a thread that hangs cannot report it.
    pub(crate) fn check_hangs(&self, now: Instant) {
        let findings = {
            let inner = self.lock();
            let threads = WatchedThread::ALL.into_iter();
            let stuck = threads.filter_map(|thread| thread.stuck(inner.busy[thread as usize], now));
            inner.reconciler.stuck(now).into_iter().chain(stuck).collect()
        };
        self.set(Source::Watchdog, findings);
    }

    pub(crate) fn reconcile(&self) -> ReconcileStatus {
        self.lock().reconcile.to_status(&Now::read())
    }

    /// A round ended, with these repairs.
    pub(crate) fn reconciled(&self, duration_ms: u64, repairs: &[String]) {
        {
            let status = &mut self.lock().reconcile;
            status.last_round = Some(Instant::now());
            status.duration_ms = duration_ms;
            status.rounds += 1;
        }
        self.repaired(repairs.len() as u64, repairs);
    }

    /// `count` objects were repaired. One message may describe several of them.
    pub(crate) fn repaired(&self, count: u64, repairs: &[String]) {
        let now = Instant::now();
        let status = &mut self.lock().reconcile;
        status.repairs += count;
        status.recent.extend(repairs.iter().map(|message| (now, message.clone())));
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

impl ReconcileCounters {
    fn to_status(&self, now: &Now) -> ReconcileStatus {
        let repair =
            |(at, message): &(Instant, String)| Repair { at: now.wall_time(*at), message: message.clone() };
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
        let (problem, since, limit) = match self {
            Self::NotStarted => return None,
            Self::Round { since } => ("a reconcile round has been running", since, &LONG_ROUND),
            Self::Idle { since, limit } => ("no reconcile round has run", since, limit),
        };
        let message = || {
            let seconds = limit.as_secs();
            format!("{problem} for more than {seconds} s: pods are served, but drift is not repaired")
        };
        let finding = || Finding::new(Code::ReconcileStuck, "reconcile", message());
        (now.saturating_duration_since(*since) > *limit).then(|| finding().fix("systemctl restart podwire"))
    }
}

fn lifecycle(code: Code, message: &str) -> Finding {
    Finding::new(code, "agent", message)
}

/// How many conditions of each kind one change logs. The status shows all of them.
const MAX_LOGGED: usize = 20;

fn log(change: &ConditionChanges) {
    let ConditionChanges { began, worsened, eased, ended } = change;
    log_findings(began, "condition began");
    log_findings(worsened, "condition worsened");
    log_findings(eased, "condition eased");
    for (code, object) in ended.iter().take(MAX_LOGGED) {
        info!(%code, object, "condition ended");
    }
    if let Some(number) = unlogged(ended.len()) {
        info!(number, "more conditions: condition ended");
    }
}

/// The most severe ones are first in the list.
fn log_findings(findings: &[Finding], event: &'static str) {
    for Finding { code, severity, object, message, fix } in findings.iter().take(MAX_LOGGED) {
        // Display format, without quotes: operators paste the fix into a shell.
        let (object, fix) = (object.as_str(), fix.as_deref().map(tracing::field::display));
        match severity {
            Severity::NotReady => error!(%code, object, reason = %message, fix, "{event}"),
            Severity::Degraded => warn!(%code, object, reason = %message, fix, "{event}"),
        }
    }
    if let Some(number) = unlogged(findings.len()) {
        warn!(number, "more conditions: {event}");
    }
}

fn unlogged(all: usize) -> Option<usize> {
    all.checked_sub(MAX_LOGGED).filter(|more| *more > 0)
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
        agent_status.set(Source::Reconcile, vec![Finding::new(Code::BridgeMissing, "bridge b", "missing")]);
        assert!(first(&agent_status).unwrap() == Code::AgentStopping);
    }

    #[test]
    fn a4_a_first_round_that_ends_during_stop_does_not_set_ready() {
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
    fn a1_severity_changes_are_logged_and_surplus_conditions_counted() {
        let agent_status = AgentStatus::new();
        let finding =
            |number: usize| Finding::new(Code::RepairFailed, format_args!("link pw{number}"), "EIO");
        let name_taken = Finding::new(Code::BridgeNameTaken, "link podwire0", "the link is a veth");
        let text = logged(Format::Text, || {
            agent_status.set(Source::Round, vec![name_taken.clone().degraded()]);
            agent_status.set(Source::Round, vec![name_taken.clone()]);
            agent_status.set(Source::Round, vec![name_taken.degraded()]);
            agent_status.set(Source::Reconcile, (0..5000).map(finding).collect());
            agent_status.set(Source::Reconcile, Vec::new());
        });
        let changes: Vec<&str> = text.lines().take(3).collect();
        for (line, words) in
            changes.iter().zip(["WARN condition began", "ERROR condition worsened", "WARN condition eased"])
        {
            assert!(line.contains(words) && line.contains("code=BridgeNameTaken"), "{line}");
        }
        assert_eq!(text.lines().count(), 3 + 2 * (MAX_LOGGED + 1), "{text}");
        assert_eq!(text.lines().filter(|line| line.contains("number=4980")).count(), 2, "{text}");
    }

    #[test]
    fn a_hanging_reconcile_round_is_reported() {
        let agent_status = AgentStatus::new();
        let message_after = |seconds| {
            let stuck = agent_status.lock().reconciler.stuck(Instant::now() + Duration::from_secs(seconds));
            stuck.map(|finding| finding.message)
        };
        assert_eq!(message_after(1000), None);
        agent_status.round_begins();
        assert_eq!(message_after(29), None);
        assert!(message_after(31).unwrap().contains("running for more than 30 s"));
        agent_status.round_ends(Duration::from_secs(10));
        assert_eq!(message_after(59), None);
        assert!(message_after(61).unwrap().contains("has run for more than 60 s"));
        agent_status.check_hangs(Instant::now() + Duration::from_secs(61));
        assert!(agent_status.conditions().iter().any(|condition| condition.code == Code::ReconcileStuck));
        let is_reported =
            || agent_status.conditions().iter().any(|condition| condition.code == Code::ReconcileStuck);
        assert!(is_reported(), "the condition must last until a check or the end of a round");
        agent_status.round_begins();
        agent_status.round_ends(Duration::from_secs(10));
        assert!(!is_reported(), "the next round ended");
    }

    #[test]
    fn a_hanging_thread_is_reported_until_it_is_idle() {
        for (thread, code, object) in [
            (WatchedThread::Peers, Code::ReconcileStuck, "routes to peers"),
            (WatchedThread::Installation, Code::InstallIncomplete, "installation"),
        ] {
            let (agent_status, now, limit) = (AgentStatus::new(), Instant::now(), thread.limit());
            agent_status.set_started();
            let is_reported = || agent_status.conditions().iter().any(|condition| condition.object == object);
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
    fn a1_setting_the_clock_keeps_the_age_of_repairs_and_rounds() {
        let (agent_status, started) = (AgentStatus::new(), Instant::now());
        agent_status.reconciled(3, &["route restored".to_owned()]);
        let wall = std::time::UNIX_EPOCH + Duration::from_secs(1_800_000_060);
        let now = Now { instant: started + Duration::from_secs(60), wall };
        let status = agent_status.lock().reconcile.to_status(&now);
        for time in [status.last_round_at.unwrap(), status.recent_repairs[0].at] {
            assert!((1_800_000_000..1_800_000_050).contains(&time.0), "{time}");
        }
    }

    #[test]
    fn a4_a_status_query_changes_no_condition() {
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
