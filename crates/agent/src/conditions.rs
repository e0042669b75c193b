//! The conditions of the node: what each source reports, and since when.

use std::collections::BTreeMap;

use api::{Condition, Timestamp};
use types::{Code, Finding, Severity};

/// Which part of the agent reports findings. Each one replaces only its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// The agent is starting or stopping.
    Lifecycle,
    Config,
    /// Whether the node has a block.
    Block,
    Reconcile,
    /// A reconcile round that hangs.
    Watchdog,
    Install,
    /// Runtimes that do not find the installed files.
    Runtimes,
    /// Firewall chains that Podwire does not manage.
    Firewall,
    /// Elements of pods that are gone.
    Elements,
    /// Interfaces of pods.
    Pods,
    /// The file system of the run directory.
    Space,
    Socket,
    Tcp,
    Tombstones,
    /// Records that could not be read for an answer.
    Records,
    Cluster,
    Routes,
}

/// Code and object: a condition lasts as long as a source reports them.
type Identity = (Code, String);

#[derive(Debug, Default)]
pub(crate) struct Conditions {
    found: BTreeMap<Source, Vec<Finding>>,
    since: BTreeMap<Identity, Timestamp>,
}

/// Conditions that began and ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) began: Vec<Finding>,
    pub(crate) ended: Vec<Identity>,
}

impl Conditions {
    /// Replaces the findings of a source.
    pub(crate) fn set(&mut self, source: Source, findings: Vec<Finding>, now: Timestamp) -> Change {
        let findings = combined(findings);
        if self.found.get(&source).map_or(&[][..], Vec::as_slice) == findings {
            return Change::default();
        }
        self.found.insert(source, findings);
        let merged = self.merged();
        let is_new = |finding: &&Finding| !self.since.contains_key(&identity(finding));
        let began: Vec<Finding> = merged.iter().copied().filter(is_new).cloned().collect();
        let remaining: Vec<Identity> = merged.into_iter().map(identity).collect();
        let ended: Vec<Identity> =
            self.since.keys().filter(|identity| !remaining.contains(identity)).cloned().collect();
        self.since.extend(began.iter().map(|finding| (identity(finding), now)));
        self.since.retain(|identity, _| remaining.contains(identity));
        Change { began, ended }
    }

    /// Those that keep the node from being ready come first, each by importance.
    pub(crate) fn all(&self) -> Vec<Condition> {
        let since = |finding: &Finding| self.since.get(&identity(finding)).copied();
        self.merged().into_iter().map(|finding| Condition::new(finding.clone(), since(finding))).collect()
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
    for finding in findings {
        let same = combined.iter_mut().find(|one| one.code == finding.code && one.object == finding.object);
        let Some(same) = same else {
            combined.push(finding);
            continue;
        };
        if !same.message.contains(&finding.message) {
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
    use super::*;

    fn stuck(message: &str) -> Finding {
        Finding::new(Code::RepairFailed, "link pw1", message)
    }

    fn missing() -> Finding {
        Finding::new(Code::NftMissing, "program nft", "not installed")
    }

    #[test]
    fn a1_since_stays_while_a_condition_lasts_and_its_message_may_change() {
        let mut all = Conditions::default();
        let change = all.set(Source::Reconcile, vec![stuck("EBUSY")], Timestamp(10));
        assert_eq!(change, Change { began: vec![stuck("EBUSY")], ended: vec![] });
        assert_eq!(all.set(Source::Reconcile, vec![stuck("EIO")], Timestamp(20)), Change::default());
        assert_eq!(all.all(), [Condition::new(stuck("EIO"), Timestamp(10))]);
        let ended = (Code::RepairFailed, "link pw1".to_owned());
        assert_eq!(all.set(Source::Reconcile, vec![], Timestamp(30)).ended, [ended]);
        all.set(Source::Reconcile, vec![stuck("EIO"), stuck("EBUSY"), stuck("EIO")], Timestamp(35));
        assert_eq!(all.all(), [Condition::new(stuck("EIO; EBUSY"), Timestamp(35))]);
        all.set(Source::Reconcile, vec![], Timestamp(36));
        all.set(Source::Reconcile, vec![stuck("EIO")], Timestamp(40));
        assert_eq!(all.all()[0].since, Some(Timestamp(40)), "it began anew");
    }

    #[test]
    fn a1_two_sources_of_one_condition_do_not_duplicate_it() {
        let mut all = Conditions::default();
        all.set(Source::Elements, vec![missing().degraded()], Timestamp(1));
        let change = all.set(Source::Reconcile, vec![missing(), missing()], Timestamp(2));
        assert_eq!(change, Change::default(), "it is there");
        assert_eq!(all.all(), [Condition::new(missing(), Timestamp(1))], "the most severe one counts");
        assert_eq!(all.set(Source::Reconcile, vec![], Timestamp(3)), Change::default(), "it lasts");
        assert_eq!(all.all().len(), 1);
        assert_eq!(all.set(Source::Elements, vec![], Timestamp(4)).ended.len(), 1);
    }

    #[test]
    fn a1_what_keeps_a_node_from_being_ready_comes_first() {
        let mut all = Conditions::default();
        let starting = Finding::new(Code::AgentStarting, "agent", "starting");
        all.set(Source::Lifecycle, vec![starting], Timestamp(1));
        all.set(Source::Routes, vec![stuck("x")], Timestamp(1));
        all.set(Source::Reconcile, vec![missing()], Timestamp(1));
        let codes: Vec<String> = all.all().iter().map(|condition| condition.code.to_string()).collect();
        assert_eq!(codes, ["NftMissing", "AgentStarting", "RepairFailed"]);
    }
}
