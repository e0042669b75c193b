//! The conditions of the node: what each source reports, and since when.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use api::Condition;
use types::{Code, Finding, Severity};

use crate::clock::Now;

/// Which part of the agent reports findings. Each one replaces only its own.
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
    /// A thread that hangs: the reconciler, or that of the peers.
    Watchdog,
    Install,
    /// Runtimes that do not find the installed files.
    Runtimes,
    /// Firewall chains that Podwire does not manage.
    Firewall,
    /// Elements that no pod should have.
    Elements,
    /// Interfaces of pods.
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
    /// Rules of the firewall that could not be made, and what could not be checked.
    Rules,
    /// Events of the kernel that the agent does not receive.
    Monitors,
    /// Lock files that were removed and cannot be made again.
    Locks,
    /// IPAM plugins of networks.
    Ipam,
}

/// Code and object: a condition lasts as long as a source reports them.
type Identity = (Code, String);

#[derive(Debug, Clone, Default)]
pub(crate) struct Conditions {
    found: BTreeMap<Source, Vec<Finding>>,
    lasting: BTreeMap<Identity, Lasting>,
}

#[derive(Debug, Clone, Copy)]
struct Lasting {
    since: Instant,
    severity: Severity,
}

/// Conditions that began, ended or have another severity than before.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ConditionChanges {
    pub(crate) began: Vec<Finding>,
    /// They keep the node from being ready now.
    pub(crate) worsened: Vec<Finding>,
    pub(crate) eased: Vec<Finding>,
    pub(crate) ended: Vec<Identity>,
}

impl Conditions {
    /// Replaces the findings of a source.
    pub(crate) fn set(&mut self, source: Source, findings: Vec<Finding>, now: Instant) -> ConditionChanges {
        let findings = combined(findings);
        if self.found.get(&source).map_or(&[][..], Vec::as_slice) == findings {
            return ConditionChanges::default();
        }
        self.found.insert(source, findings);
        let before = std::mem::take(&mut self.lasting);
        let (mut change, mut lasting) = (ConditionChanges::default(), BTreeMap::new());
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
            lasting.insert(identity, Lasting { since, severity });
        }
        change.ended = before.into_keys().filter(|identity| !lasting.contains_key(identity)).collect();
        self.lasting = lasting;
        change
    }

    /// Those that keep the node from being ready come first, each by importance.
    pub(crate) fn all(&self, now: &Now) -> Vec<Condition> {
        let since = |finding: &Finding| {
            self.lasting.get(&identity(finding)).map(|lasting| now.wall_time(lasting.since))
        };
        self.merged().into_iter().map(|finding| Condition::new(finding.clone(), since(finding))).collect()
    }

    pub(crate) fn has(&self, code: Code) -> bool {
        self.lasting.range((code, String::new())..).next().is_some_and(|((first, _), _)| *first == code)
    }

    /// Of several sources that report the same condition, the most severe one counts, then the first.
    fn merged(&self) -> Vec<&Finding> {
        let mut merged: BTreeMap<(Severity, Code, &str), &Finding> = BTreeMap::new();
        for finding in self.found.values().flatten() {
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

/// What one source reports several times of one object is one condition with all messages.
fn combined(findings: Vec<Finding>) -> Vec<Finding> {
    let mut combined: Vec<Finding> = Vec::new();
    let mut places: BTreeMap<Identity, usize> = BTreeMap::new();
    let mut messages: BTreeSet<(usize, String)> = BTreeSet::new();
    for finding in findings {
        let place = *places.entry(identity(&finding)).or_insert(combined.len());
        let is_new = messages.insert((place, finding.message.clone()));
        let Some(same) = combined.get_mut(place) else {
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

fn identity(finding: &Finding) -> Identity {
    (finding.code, finding.object.clone())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use api::Timestamp;

    use super::*;

    /// A clock on which the agent has run for some seconds, and was started in the second 1000.
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
    fn a1_since_stays_while_a_condition_lasts_and_its_message_may_change() {
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
        assert_eq!(all.all(&clock.now())[0].since, Some(Timestamp(1040)), "it began anew");
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
            "the most severe one counts"
        );
        let eased = vec![missing().degraded()];
        let change = all.set(Source::Reconcile, vec![], clock.at(3));
        assert_eq!(change, ConditionChanges { eased, ..ConditionChanges::default() }, "it lasts");
        assert_eq!(all.all(&clock.now()).len(), 1);
        assert_eq!(all.set(Source::Elements, vec![], clock.at(4)).ended.len(), 1);
    }

    #[test]
    fn a1_what_keeps_a_node_from_being_ready_comes_first() {
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
    fn a1_a_message_that_is_part_of_another_is_kept() {
        let (mut all, clock) = (Conditions::default(), clock());
        all.set(Source::Reconcile, vec![stuck("pod a-1: EIO"), stuck("EIO"), stuck("EIO")], clock.at(1));
        assert_eq!(all.all(&clock.now()), [Condition::new(stuck("pod a-1: EIO; EIO"), Timestamp(1001))]);
    }

    #[test]
    fn a1_a_clock_that_is_set_after_the_boot_does_not_change_how_long_a_condition_lasts() {
        let (mut all, started) = (Conditions::default(), Instant::now());
        // The clock showed 1970 then.
        all.set(Source::Reconcile, vec![stuck("EIO")], started);
        let wall = UNIX_EPOCH + Duration::from_secs(1_800_000_060);
        let now = Now { instant: started + Duration::from_secs(60), wall };
        assert_eq!(all.all(&now)[0].since, Some(Timestamp(1_800_000_000)));
        let before_1970 = Now { instant: started + Duration::from_secs(60), wall: SystemTime::UNIX_EPOCH };
        assert_eq!(all.all(&before_1970)[0].since, Some(Timestamp(0)));
    }

    #[test]
    fn a_code_is_found_whatever_its_object() {
        let (mut all, clock) = (Conditions::default(), clock());
        all.set(Source::Reconcile, vec![stuck("EIO")], clock.at(1));
        assert!(all.has(Code::RepairFailed) && !all.has(Code::ReconcileStuck) && !all.has(Code::BridgeDown));
    }
}
