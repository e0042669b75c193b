//! Nodes of the store whose agent holds no lease, and since when. Pure: the caller passes the time.
//!
//! A lease that ends while the store is watched is reported at once. A node that has none when everything is listed may be
//! starting, or joining again after an outage of the store like this one: it is reported after a grace period.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use types::{Code, Finding, NodeName};

use crate::clock::Now;

/// A node that lost the store retries within some seconds.
const GRACE: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
pub(crate) struct Leases {
    /// Nodes with a record.
    nodes: BTreeSet<NodeName>,
    /// Nodes whose agent holds a lease.
    held: BTreeSet<NodeName>,
    lapses: BTreeMap<NodeName, Lapse>,
    /// Lapses up to here are reported.
    reported_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Lapse {
    since: Instant,
    report_at: Instant,
    /// The end of the lease was observed.
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
    /// Everything was listed.
    pub(crate) fn set_all(&mut self, nodes: BTreeSet<NodeName>, held: BTreeSet<NodeName>, now: Instant) {
        (self.nodes, self.held) = (nodes, held);
        let Self { nodes, held, lapses, .. } = self;
        lapses.retain(|name, _| nodes.contains(name) && !held.contains(name));
        for name in nodes.difference(held) {
            lapses.entry(name.clone()).or_insert_with(|| Lapse::unobserved(now));
        }
    }

    /// Whether that changes which nodes lack a lease.
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

    /// When a lapse that was not reported yet is to be.
    pub(crate) fn report_at(&self) -> Option<Instant> {
        let times = self.lapses.values().map(|lapse| lapse.report_at);
        times.filter(|at| self.reported_at.is_none_or(|reported| *at > reported)).min()
    }

    /// The lapses of all nodes but this one. Some have a record that cannot be read.
    pub(crate) fn findings(&mut self, own: &str, unread: &BTreeSet<NodeName>, now: &Now) -> Vec<Finding> {
        self.reported_at = Some(now.instant);
        let is_due = |lapse: &Lapse| lapse.report_at <= now.instant;
        let others = self.lapses.iter().filter(|(name, lapse)| name.as_str() != own && is_due(lapse));
        others.map(|(name, lapse)| lapse.finding(name, unread.contains(name), now)).collect()
    }
}

impl Lapse {
    fn unobserved(now: Instant) -> Self {
        Self { since: now, report_at: now + GRACE, was_observed: false }
    }

    /// Without a fix: a node that is only switched off must not lose its blocks because a command was pasted.
    fn finding(&self, name: &NodeName, is_unread: bool, now: &Now) -> Finding {
        let since = now.wall_time(self.since);
        let what = match self.was_observed {
            true => format!("the lease of its agent ended at {since}"),
            false => format!("its agent has held no lease since {since} or earlier"),
        };
        let removal = match is_unread {
            // `podwire node rm` refuses without --force, and always if a newer version wrote the record.
            true => "its record cannot be read: StoreValueUnreadable says what to do".to_owned(),
            false => format!("'podwire node rm {name}' removes a node that is gone for good"),
        };
        let message = format!("{what}; pods on it may run on; {removal}");
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
        all.iter().map(|one| name(one)).collect()
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

        fn away(&mut self, seconds: u64) -> Vec<Finding> {
            let wall = UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds);
            let now = Now { instant: self.at(seconds), wall };
            self.leases.findings("n1", &names(&["unread"]), &now)
        }

        fn objects(&mut self, seconds: u64) -> Vec<String> {
            self.away(seconds).into_iter().map(|found| found.object).collect()
        }
    }

    #[test]
    fn a1_a_lease_that_ends_is_reported_at_once_until_the_agent_is_back_or_the_node_is_removed() {
        let mut case = Case::new(&["n1", "n2", "n3"], &["n1", "n2", "n3"]);
        assert!(case.apply(Ended(name("n2")), 5) && case.apply(Ended(name("n3")), 5));
        let away = case.away(6);
        assert_eq!((away.len(), away[0].object.as_str(), &away[0].fix), (2, "node n2", &None));
        assert!(away[0].message.contains("ended at 2027-01-15T08:00:05Z"), "{}", away[0].message);
        assert!(away[0].message.contains("'podwire node rm n2'"), "{}", away[0].message);
        assert!(case.apply(Held(name("n2")), 7) && case.apply(Removed(name("n3")), 7));
        assert_eq!(case.objects(8), [""; 0]);
    }

    #[test]
    fn a1_no_removal_that_is_refused_is_named_for_a_record_that_cannot_be_read() {
        let mut case = Case::new(&["n1", "unread"], &["n1", "unread"]);
        assert!(case.apply(Ended(name("unread")), 5));
        let message = case.away(6).remove(0).message;
        assert!(!message.contains("node rm") && message.contains("StoreValueUnreadable"), "{message}");
    }

    #[test]
    fn a1_a_node_that_is_seen_for_the_first_time_may_be_starting() {
        let mut case = Case::new(&["n1", "n2"], &["n1"]);
        assert_eq!((case.objects(19).len(), case.leases.report_at()), (0, Some(case.at(20))));
        assert_eq!(case.objects(20), ["node n2"]);
        assert_eq!(case.leases.report_at(), None, "it is reported");
        assert!(case.away(21)[0].message.contains("since 2027-01-15T08:00:00Z or earlier"));
        // A node that registers has its lease already; a record without one gets the same time.
        assert!(!case.apply(Held(name("n4")), 30) && !case.apply(Registered(name("n4")), 30));
        assert!(case.apply(Registered(name("n5")), 30));
        assert_eq!(
            (case.objects(49), case.objects(50)),
            (vec!["node n2".to_owned()], vec!["node n2".to_owned(), "node n5".to_owned()])
        );
    }

    #[test]
    fn a1_after_an_outage_of_the_store_nodes_have_time_to_join_again() {
        let mut case = Case::new(&["n1", "n2", "n3"], &["n1", "n2", "n3"]);
        case.apply(Ended(name("n3")), 5);
        assert_eq!(case.objects(6), ["node n3"]);
        let now = case.at(100);
        case.leases.set_all(names(&["n1", "n2", "n3"]), names(&["n1"]), now);
        assert_eq!(case.objects(101), ["node n3"], "it was away before");
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
