//! Nodes without a lease of their agent, and since when. Pure: the caller passes the time.
//!
//! If a lease ends while the store is watched, the node is reported immediately. A node that has no lease when the store is
//! listed may be starting, or joining again after the same outage. It is reported after a grace period.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use types::{Code, Finding, NodeName};

use crate::clock::Now;

/// A node that lost the store retries within a few seconds.
const GRACE: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
pub(crate) struct Leases {
    /// Nodes with a record.
    nodes: BTreeSet<NodeName>,
    /// Nodes whose agent holds a lease.
    held: BTreeSet<NodeName>,
    lapses: BTreeMap<NodeName, Lapse>,
    /// Lapses that were due at this time have been reported.
    reported_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Lapse {
    since: Instant,
    report_at: Instant,
    /// The watch reported the end of the lease.
    was_observed: bool,
}

/// A change of one node in the store.
#[derive(Debug)]
pub(crate) enum LeaseEvent {
    Registered(NodeName),
    Removed(NodeName),
    Held(NodeName),
    Ended(NodeName),
}

impl Leases {
    /// The store was listed.
    pub(crate) fn set_all(&mut self, nodes: BTreeSet<NodeName>, held: BTreeSet<NodeName>, now: Instant) {
        (self.nodes, self.held) = (nodes, held);
        let Self { nodes, held, lapses, .. } = self;
        lapses.retain(|name, _| nodes.contains(name) && !held.contains(name));
        for name in nodes.difference(held) {
            lapses.entry(name.clone()).or_insert_with(|| Lapse::unobserved(now));
        }
    }

    /// Returns whether the set of nodes without a lease changed.
    pub(crate) fn apply(&mut self, event: LeaseEvent, now: Instant) -> bool {
        match event {
            LeaseEvent::Registered(name) => {
                let is_lapse = !self.held.contains(&name) && !self.lapses.contains_key(&name);
                if is_lapse {
                    self.lapses.insert(name.clone(), Lapse::unobserved(now));
                }
                self.nodes.insert(name);
                is_lapse
            }
            LeaseEvent::Removed(name) => {
                self.nodes.remove(&name);
                self.lapses.remove(&name).is_some()
            }
            LeaseEvent::Held(name) => {
                let was_lapsed = self.lapses.remove(&name).is_some();
                self.held.insert(name);
                was_lapsed
            }
            LeaseEvent::Ended(name) => {
                let is_lapse = self.held.remove(&name) && self.nodes.contains(&name);
                if is_lapse {
                    self.lapses.insert(name, Lapse { since: now, report_at: now, was_observed: true });
                }
                is_lapse
            }
        }
    }

    /// When the next lapse has to be reported.
    pub(crate) fn report_at(&self) -> Option<Instant> {
        let times = self.lapses.values().map(|lapse| lapse.report_at);
        times.filter(|at| self.reported_at.is_none_or(|reported| *at > reported)).min()
    }

    /// The lapses of all other nodes. `unread` has the nodes with an unreadable record.
    pub(crate) fn findings(&mut self, own: &str, unread: &BTreeSet<NodeName>, now: &Now) -> Vec<Finding> {
        self.reported_at = Some(now.instant);
        let is_due = |lapse: &Lapse| lapse.report_at <= now.instant;
        let due = self.lapses.iter().filter(|(name, lapse)| name.as_str() != own && is_due(lapse));
        due.map(|(name, lapse)| lapse.finding(name, unread.contains(name), now)).collect()
    }
}

impl Lapse {
    fn unobserved(now: Instant) -> Self {
        Self { since: now, report_at: now + GRACE, was_observed: false }
    }

    /// Has no fix: a pasted command must not remove the blocks of a node that is only switched off.
    fn finding(&self, name: &NodeName, is_unread: bool, now: &Now) -> Finding {
        let since = now.wall_time(self.since);
        let lapse = match self.was_observed {
            true => format!("the lease of its agent ended at {since}"),
            false => format!("its agent has held no lease since {since} or longer"),
        };
        let removal = match is_unread {
            // `podwire node rm` refuses without --force, and always if a newer version wrote the record.
            true => "its record cannot be read: see the condition StoreValueUnreadable".to_owned(),
            false => format!("'podwire node rm {name}' removes a node permanently"),
        };
        let message = format!("{lapse}; its pods may still run; {removal}");
        Finding::new(Code::PeerAway, format_args!("node {name}"), message)
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::LeaseEvent::{Ended, Held, Registered, Removed};
    use super::*;

    fn name(name: &str) -> NodeName {
        name.try_into().unwrap()
    }

    fn names(all: &[&str]) -> BTreeSet<NodeName> {
        all.iter().map(|text| name(text)).collect()
    }

    struct Case {
        leases: Leases,
        start: Instant,
    }

    impl Case {
        fn new(nodes: &[&str], held: &[&str]) -> Self {
            let mut case = Self { leases: Leases::default(), start: Instant::now() };
            case.leases.set_all(names(nodes), names(held), case.start);
            case
        }

        fn at(&self, seconds: u64) -> Instant {
            self.start + Duration::from_secs(seconds)
        }

        fn apply(&mut self, event: LeaseEvent, seconds: u64) -> bool {
            let now = self.at(seconds);
            self.leases.apply(event, now)
        }

        fn findings(&mut self, seconds: u64) -> Vec<Finding> {
            let wall = UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds);
            let now = Now { instant: self.at(seconds), wall };
            self.leases.findings("n1", &names(&["unread"]), &now)
        }

        fn objects(&mut self, seconds: u64) -> Vec<String> {
            self.findings(seconds).into_iter().map(|finding| finding.object).collect()
        }
    }

    #[test]
    fn a1_an_ended_lease_is_reported_until_renewal_or_removal() {
        let mut case = Case::new(&["n1", "n2", "n3"], &["n1", "n2", "n3"]);
        assert!(case.apply(Ended(name("n2")), 5) && case.apply(Ended(name("n3")), 5));
        let findings = case.findings(6);
        assert_eq!((findings.len(), findings[0].object.as_str(), &findings[0].fix), (2, "node n2", &None));
        assert!(findings[0].message.contains("ended at 2027-01-15T08:00:05Z"), "{}", findings[0].message);
        assert!(findings[0].message.contains("'podwire node rm n2'"), "{}", findings[0].message);
        assert!(case.apply(Held(name("n2")), 7) && case.apply(Removed(name("n3")), 7));
        assert_eq!(case.objects(8), [""; 0]);
    }

    #[test]
    fn a1_an_unreadable_record_gets_no_removal_command() {
        let mut case = Case::new(&["n1", "unread"], &["n1", "unread"]);
        assert!(case.apply(Ended(name("unread")), 5));
        let message = case.findings(6).remove(0).message;
        assert!(!message.contains("node rm") && message.contains("StoreValueUnreadable"), "{message}");
    }

    #[test]
    fn a1_a_node_without_lease_at_the_first_listing_has_a_grace_period() {
        let mut case = Case::new(&["n1", "n2"], &["n1"]);
        assert_eq!((case.objects(19).len(), case.leases.report_at()), (0, Some(case.at(20))));
        assert_eq!(case.objects(20), ["node n2"]);
        assert_eq!(case.leases.report_at(), None, "the lapse was reported");
        assert!(case.findings(21)[0].message.contains("since 2027-01-15T08:00:00Z or longer"));
        // A node that registers already has its lease. A record without a lease has the same grace period.
        assert!(!case.apply(Held(name("n4")), 30) && !case.apply(Registered(name("n4")), 30));
        assert!(case.apply(Registered(name("n5")), 30));
        assert_eq!(
            (case.objects(49), case.objects(50)),
            (vec!["node n2".to_owned()], vec!["node n2".to_owned(), "node n5".to_owned()])
        );
    }

    #[test]
    fn a1_nodes_have_time_to_join_after_an_outage_of_the_store() {
        let mut case = Case::new(&["n1", "n2", "n3"], &["n1", "n2", "n3"]);
        case.apply(Ended(name("n3")), 5);
        assert_eq!(case.objects(6), ["node n3"]);
        let now = case.at(100);
        case.leases.set_all(names(&["n1", "n2", "n3"]), names(&["n1"]), now);
        assert_eq!(case.objects(101), ["node n3"], "its lease had ended before");
        case.apply(Held(name("n2")), 105);
        assert_eq!(case.objects(200), ["node n3"]);
    }

    #[test]
    fn a1_this_node_and_names_without_a_record_are_not_reported() {
        let mut case = Case::new(&["n1"], &["n1", "n9"]);
        assert!(case.apply(Ended(name("n1")), 1) && !case.apply(Ended(name("n9")), 1));
        assert_eq!(case.objects(60), [""; 0]);
    }
}
