//! The state that results from the lines of a log. Pure.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use super::lease::EmbeddedLease;
use super::record::{EmbeddedRecord, FORMAT, RecordedChange};
use crate::types::{Compare, Entry, Event, LeaseId};

#[derive(Debug, Default)]
pub(super) struct EmbeddedState {
    pub(super) entries: BTreeMap<String, Entry>,
    pub(super) leases: BTreeMap<LeaseId, EmbeddedLease>,
    pub(super) revision: u64,
    /// The history up to this revision is not available.
    pub(super) compacted: u64,
    /// The later events, in order.
    history: VecDeque<Event>,
}

/// Why a record cannot be applied.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ApplyError {
    Newer(u32),
    Problem(String),
}

impl From<&str> for ApplyError {
    fn from(problem: &str) -> Self {
        Self::Problem(problem.to_owned())
    }
}

/// The events since a revision.
#[derive(Debug)]
pub(super) enum EventsSince {
    Compacted,
    Events(Vec<Event>),
}

impl EmbeddedState {
    /// An empty store has revision 1, as in etcd.
    pub(super) fn empty() -> Self {
        Self { revision: 1, ..Self::default() }
    }

    pub(super) fn apply(&mut self, record: EmbeddedRecord) -> Result<(), ApplyError> {
        match record {
            EmbeddedRecord::Head { .. } if self.revision != 0 => Err("there is a second header".into()),
            EmbeddedRecord::Head { format, .. } if format != FORMAT => Err(ApplyError::Newer(format)),
            EmbeddedRecord::Head { revision, compacted, .. } => {
                (self.revision, self.compacted) = (revision, compacted);
                Ok(())
            }
            _ if self.revision == 0 => Err("the header is missing".into()),
            EmbeddedRecord::Entry { key, value, revision, created, version, lease } => {
                let value = value.into_bytes().map_err(ApplyError::Problem)?;
                let created = created.unwrap_or(revision);
                self.entries.insert(key.clone(), Entry { key, value, revision, created, version, lease });
                Ok(())
            }
            EmbeddedRecord::Lease { id, lease } => {
                self.leases.insert(id, lease);
                Ok(())
            }
            EmbeddedRecord::Commit { revision, steps } => self.commit(revision, steps),
        }
    }

    fn commit(&mut self, revision: u64, steps: Vec<RecordedChange>) -> Result<(), ApplyError> {
        if revision != self.next_revision(&steps) {
            return Err("a revision is missing".into());
        }
        self.revision = revision;
        for step in steps {
            match step {
                RecordedChange::Put { key, value, lease } => {
                    let value = value.into_bytes().map_err(ApplyError::Problem)?;
                    let before = self.entries.get(&key);
                    let version = before.map_or(0, |entry| entry.version) + 1;
                    let created = before.map_or(revision, |entry| entry.created);
                    let entry = Entry { key: key.clone(), value, revision, created, version, lease };
                    self.history.push_back(Event::Put(entry.clone()));
                    self.entries.insert(key, entry);
                }
                RecordedChange::Delete { key } => {
                    self.entries.remove(&key);
                    self.history.push_back(Event::Delete { key, revision });
                }
                RecordedChange::Lease { id, lease } => {
                    self.leases.insert(id, lease);
                }
                RecordedChange::End { id } => {
                    self.leases.remove(&id);
                }
            }
        }
        Ok(())
    }

    /// The approximate size of a snapshot.
    pub(super) fn size(&self) -> u64 {
        const OVERHEAD: usize = 100;
        let entries = self.entries.values().map(|entry| entry.key.len() + entry.value.len() + OVERHEAD);
        (entries.sum::<usize>() + self.leases.len() * 2 * OVERHEAD) as u64
    }

    /// The revision after these steps.
    pub(super) fn next_revision(&self, steps: &[RecordedChange]) -> u64 {
        let has_changes = steps
            .iter()
            .any(|step| matches!(step, RecordedChange::Put { .. } | RecordedChange::Delete { .. }));
        self.revision + u64::from(has_changes)
    }

    /// Called after a snapshot, which does not contain the history.
    pub(super) fn forget_history(&mut self) {
        self.history.clear();
        self.compacted = self.revision;
    }

    pub(super) fn holds(&self, compare: &Compare) -> bool {
        match compare {
            Compare::Absent(key) => !self.entries.contains_key(key),
            Compare::Exists(key) => self.entries.contains_key(key),
            // The revision of a missing key is 0, as in etcd.
            Compare::Revision(key, revision) => {
                self.entries.get(key).map_or(0, |entry| entry.revision) == *revision
            }
        }
    }

    pub(super) fn directory<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Entry> {
        let range = self.entries.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        range.map(|(_, entry)| entry).take_while(move |entry| entry.key.starts_with(prefix))
    }

    pub(super) fn since(&self, prefix: &str, from: u64) -> EventsSince {
        if from <= self.compacted {
            return EventsSince::Compacted;
        }
        let first = self.history.partition_point(|event| event.revision() < from);
        let events = self.history.range(first..).filter(|event| event.key().starts_with(prefix));
        EventsSince::Events(events.cloned().collect())
    }

    /// The changes that remove leases and all their keys.
    pub(super) fn expiry_changes(&self, leases: &[LeaseId]) -> Vec<RecordedChange> {
        let leased =
            self.entries.values().filter(|entry| entry.lease.is_some_and(|lease| leases.contains(&lease)));
        let deletes = leased.map(|entry| RecordedChange::Delete { key: entry.key.clone() });
        deletes.chain(leases.iter().map(|id| RecordedChange::End { id: *id })).collect()
    }
}
