//! The node's conditions: the findings of each source, and when each condition began.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use api::Condition;
use types::{Code, Finding, Severity};

use crate::clock::Now;

/// The component that reports findings. It replaces only its own findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// The agent is starting or stopping.
    Lifecycle,
    Config,
    /// Whether the node has a block.
    Block,
    Reconcile,
    /// A reconcile round that failed as a whole.
    Round,
    /// A thread that hangs: the reconciler, the peers thread or the installation thread.
    Watchdog,
    Install,
    /// Runtimes that do not find the installed files.
    Runtimes,
    /// Firewall chains that Podwire does not manage.
    Firewall,
    /// Set or map elements that belong to no pod.
    Elements,
    /// Pod interfaces.
    Pods,
    /// Whether the run directory has space and can be written.
    RunDir,
    Socket,
    Tcp,
    Tombstones,
    /// Records that cannot be read.
    Records,
    /// Whether the node has addresses left.
    Addresses,
    Cluster,
    Routes,
    /// Steps of a round that failed, such as a firewall rule that could not be applied.
    Steps,
    /// Kernel events that the agent does not receive.
    Monitors,
    /// Lock files that were removed and could not be created again.
    Locks,
    /// IPAM plugins of networks.
    Ipam,
    /// Policies that are not in force.
    Policies,
    /// Flows that are not judged.
    Flows,
    /// Pods without known policies.
    IsolatedPods,
    /// Denied packets are not logged.
    DeniedLog,
}

/// A condition lasts as long as a source reports this code for this object.
type ConditionKey = (Code, String);

#[derive(Debug, Clone, Default)]
pub(crate) struct Conditions {
    findings: BTreeMap<Source, Vec<Finding>>,
    active: BTreeMap<ConditionKey, ActiveCondition>,
}

#[derive(Debug, Clone, Copy)]
struct ActiveCondition {
    since: Instant,
    severity: Severity,
}

/// Conditions that began, ended or changed their severity.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ConditionChanges {
    pub(crate) began: Vec<Finding>,
    /// Conditions that now make the node not ready.
    pub(crate) worsened: Vec<Finding>,
    pub(crate) eased: Vec<Finding>,
    pub(crate) ended: Vec<ConditionKey>,
}

impl Conditions {
    /// Replaces the findings of a source.
    pub(crate) fn set(&mut self, source: Source, findings: Vec<Finding>, now: Instant) -> ConditionChanges {
        let findings = combined(findings);
        if self.findings.get(&source).map_or(&[][..], Vec::as_slice) == findings {
            return ConditionChanges::default();
        }
        self.findings.insert(source, findings);
        let before = std::mem::take(&mut self.active);
        let (mut change, mut active) = (ConditionChanges::default(), BTreeMap::new());
        for finding in self.merged() {
            let (identity, severity) = (identity(finding), finding.severity);
            let known = before.get(&identity);
            match (known.map(|known| known.severity), severity) {
                (None, _) => change.began.push(finding.clone()),
                (Some(Severity::Degraded), Severity::NotReady) => change.worsened.push(finding.clone()),
                (Some(Severity::NotReady), Severity::Degraded) => change.eased.push(finding.clone()),
                (Some(_), _) => {}
            }
            let since = known.map_or(now, |known| known.since);
            active.insert(identity, ActiveCondition { since, severity });
        }
        change.ended = before.into_keys().filter(|identity| !active.contains_key(identity)).collect();
        self.active = active;
        change
    }

    /// All conditions, those that make the node not ready first.
    pub(crate) fn all(&self, now: &Now) -> Vec<Condition> {
        let since =
            |finding: &Finding| self.active.get(&identity(finding)).map(|active| now.wall_time(active.since));
        self.merged().into_iter().map(|finding| Condition::new(finding.clone(), since(finding))).collect()
    }

    pub(crate) fn has(&self, code: Code) -> bool {
        self.active.range((code, String::new())..).next().is_some_and(|((first, _), _)| *first == code)
    }

    /// If several sources report the same condition, the most severe finding wins, then that of the first source.
    fn merged(&self) -> Vec<&Finding> {
        let mut merged: BTreeMap<(Severity, Code, &str), &Finding> = BTreeMap::new();
        for finding in self.findings.values().flatten() {
            let key = |severity| (severity, finding.code, finding.object.as_str());
            match finding.severity {
                Severity::NotReady => {
                    merged.remove(&key(Severity::Degraded));
                }
                Severity::Degraded if merged.contains_key(&key(Severity::NotReady)) => continue,
                Severity::Degraded => {}
            }
            merged.entry(key(finding.severity)).or_insert(finding);
        }
        merged.into_values().collect()
    }
}

/// Merges repeated findings of one object into one finding that has all messages.
fn combined(findings: Vec<Finding>) -> Vec<Finding> {
    let mut combined: Vec<Finding> = Vec::new();
    let mut positions: BTreeMap<ConditionKey, usize> = BTreeMap::new();
    let mut messages: BTreeSet<(usize, String)> = BTreeSet::new();
    for finding in findings {
        let position = *positions.entry(identity(&finding)).or_insert(combined.len());
        let is_new = messages.insert((position, finding.message.clone()));
        let Some(same) = combined.get_mut(position) else {
            combined.push(finding);
            continue;
        };
        if is_new {
            same.message = format!("{}; {}", same.message, finding.message);
        }
        same.severity = same.severity.min(finding.severity);
        same.fix = same.fix.take().or(finding.fix);
    }
    combined
}

fn identity(finding: &Finding) -> ConditionKey {
    (finding.code, finding.object.clone())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use api::Timestamp;

    use super::*;

    /// A clock of an agent that started at Unix time 1000 and has run for 100 seconds.
    struct Clock(Instant);

    impl Clock {
        fn at(&self, seconds: u64) -> Instant {
            self.0 + Duration::from_secs(seconds)
        }

        fn now(&self) -> Now {
            Now { instant: self.at(100), wall: UNIX_EPOCH + Duration::from_secs(1100) }
        }
    }

    fn clock() -> Clock {
        Clock(Instant::now())
    }

    fn stuck(message: &str) -> Finding {
        Finding::new(Code::RepairFailed, "link pw1", message)
    }

    fn missing() -> Finding {
        Finding::new(Code::NftMissing, "program nft", "not installed")
    }

    #[test]
    fn a1_since_is_constant_while_the_message_of_a_condition_changes() {
        let (mut all, clock) = (Conditions::default(), clock());
        let change = all.set(Source::Reconcile, vec![stuck("EBUSY")], clock.at(10));
        assert_eq!(change, ConditionChanges { began: vec![stuck("EBUSY")], ..ConditionChanges::default() });
        assert_eq!(all.set(Source::Reconcile, vec![stuck("EIO")], clock.at(20)), ConditionChanges::default());
        assert_eq!(all.all(&clock.now()), [Condition::new(stuck("EIO"), Timestamp(1010))]);
        let ended = (Code::RepairFailed, "link pw1".to_owned());
        assert_eq!(all.set(Source::Reconcile, vec![], clock.at(30)).ended, [ended]);
        all.set(Source::Reconcile, vec![stuck("EIO"), stuck("EBUSY"), stuck("EIO")], clock.at(35));
        assert_eq!(all.all(&clock.now()), [Condition::new(stuck("EIO; EBUSY"), Timestamp(1035))]);
        all.set(Source::Reconcile, vec![], clock.at(36));
        all.set(Source::Reconcile, vec![stuck("EIO")], clock.at(40));
        assert_eq!(all.all(&clock.now())[0].since, Some(Timestamp(1040)), "a new condition began");
    }

    #[test]
    fn a1_two_sources_of_one_condition_do_not_duplicate_it() {
        let (mut all, clock) = (Conditions::default(), clock());
        all.set(Source::Elements, vec![missing().degraded()], clock.at(1));
        let change = all.set(Source::Reconcile, vec![missing(), missing()], clock.at(2));
        assert_eq!(change, ConditionChanges { worsened: vec![missing()], ..ConditionChanges::default() });
        assert_eq!(
            all.all(&clock.now()),
            [Condition::new(missing(), Timestamp(1001))],
            "the most severe finding must win"
        );
        let eased = vec![missing().degraded()];
        let change = all.set(Source::Reconcile, vec![], clock.at(3));
        assert_eq!(
            change,
            ConditionChanges { eased, ..ConditionChanges::default() },
            "the condition must last"
        );
        assert_eq!(all.all(&clock.now()).len(), 1);
        assert_eq!(all.set(Source::Elements, vec![], clock.at(4)).ended.len(), 1);
    }

    #[test]
    fn a1_not_ready_conditions_come_first() {
        let (mut all, clock) = (Conditions::default(), clock());
        let starting = Finding::new(Code::AgentStarting, "agent", "starting");
        all.set(Source::Lifecycle, vec![starting], clock.at(1));
        all.set(Source::Routes, vec![stuck("x")], clock.at(1));
        all.set(Source::Reconcile, vec![missing()], clock.at(1));
        let codes: Vec<String> =
            all.all(&clock.now()).iter().map(|condition| condition.code.to_string()).collect();
        assert_eq!(codes, ["NftMissing", "AgentStarting", "RepairFailed"]);
    }

    #[test]
    fn a1_a_message_contained_in_another_one_is_not_dropped() {
        let (mut all, clock) = (Conditions::default(), clock());
        all.set(Source::Reconcile, vec![stuck("pod a-1: EIO"), stuck("EIO"), stuck("EIO")], clock.at(1));
        assert_eq!(all.all(&clock.now()), [Condition::new(stuck("pod a-1: EIO; EIO"), Timestamp(1001))]);
    }

    #[test]
    fn a1_setting_the_clock_does_not_change_the_age_of_a_condition() {
        let (mut all, started) = (Conditions::default(), Instant::now());
        // The wall clock showed 1970 at this time.
        all.set(Source::Reconcile, vec![stuck("EIO")], started);
        let wall = UNIX_EPOCH + Duration::from_secs(1_800_000_060);
        let now = Now { instant: started + Duration::from_secs(60), wall };
        assert_eq!(all.all(&now)[0].since, Some(Timestamp(1_800_000_000)));
        let before_1970 = Now { instant: started + Duration::from_secs(60), wall: SystemTime::UNIX_EPOCH };
        assert_eq!(all.all(&before_1970)[0].since, Some(Timestamp(0)));
    }

    #[test]
    fn has_finds_a_code_of_any_object() {
        let (mut all, clock) = (Conditions::default(), clock());
        all.set(Source::Reconcile, vec![stuck("EIO")], clock.at(1));
        assert!(all.has(Code::RepairFailed) && !all.has(Code::ReconcileStuck) && !all.has(Code::BridgeDown));
    }
}
