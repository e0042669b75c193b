//! Implementation of the store's calls.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use files::Durability;

use super::Embedded;
use super::fault::EmbeddedFault;
use super::lease::EmbeddedLease;
use super::log::EmbeddedLog;
use super::record::{RecordedChange, RecordedValue};
use crate::Result;
use crate::store::StoreCall;
use crate::types::{Change, CommitOutcome, Compare, Entry, LeaseId, LeaseState, Listing};

impl Embedded {
    pub(crate) async fn get(&self, call: &StoreCall, key: &str) -> Result<Option<Entry>> {
        let key = key.to_owned();
        self.run(call, move |log| Ok(log.state.entries.get(&key).cloned())).await
    }

    pub(crate) async fn list(&self, call: &StoreCall, prefix: &str) -> Result<Listing> {
        let prefix = prefix.to_owned();
        self.run(call, move |log| {
            let entries = log.state.directory(&prefix).cloned().collect();
            Ok(Listing { entries, revision: log.state.revision })
        })
        .await
    }

    pub(crate) async fn keys(&self, call: &StoreCall, prefix: &str) -> Result<Vec<String>> {
        let prefix = prefix.to_owned();
        self.run(call, move |log| Ok(log.state.directory(&prefix).map(|entry| entry.key.clone()).collect()))
            .await
    }

    pub(crate) async fn commit(
        &self,
        call: &StoreCall,
        compares: &[Compare],
        changes: &[Change],
    ) -> Result<CommitOutcome> {
        let (compares, changes) = (compares.to_vec(), changes.to_vec());
        self.run(call, move |log| {
            if !compares.iter().all(|compare| log.state.holds(compare)) {
                return Ok(CommitOutcome::Refused);
            }
            let steps = effective_steps(log, changes)?;
            let revision =
                if steps.is_empty() { log.state.revision } else { log.append(steps, Durability::Disk)? };
            Ok(CommitOutcome::Done { revision })
        })
        .await
    }

    pub(crate) async fn put_counter(&self, call: &StoreCall, key: &str) -> Result<u64> {
        let key = key.to_owned();
        self.run(call, move |log| {
            let before = log.state.entries.get(&key).map_or(0, |entry| entry.version);
            log.append(
                vec![RecordedChange::Put { key, value: RecordedValue::of(b""), lease: None }],
                Durability::Disk,
            )?;
            Ok(before)
        })
        .await
    }

    pub(crate) async fn grant(&self, call: &StoreCall, ttl: Duration) -> Result<LeaseId> {
        self.run(call, move |log| {
            let id = new_id(log);
            log.append(
                vec![RecordedChange::Lease { id, lease: EmbeddedLease::new(ttl)? }],
                Durability::Boot,
            )?;
            Ok(id)
        })
        .await
    }

    pub(crate) async fn keep_alive(&self, call: &StoreCall, id: LeaseId) -> Result<LeaseState> {
        self.run(call, move |log| {
            let Some(lease) = log.state.leases.get(&id) else { return Ok(LeaseState::Gone) };
            let lease = lease.renewed()?;
            log.append(vec![RecordedChange::Lease { id, lease }], Durability::Boot)?;
            Ok(LeaseState::Alive)
        })
        .await
    }

    pub(crate) async fn revoke(&self, call: &StoreCall, id: LeaseId) -> Result<()> {
        self.run(call, move |log| {
            if log.state.leases.contains_key(&id) {
                log.append(log.state.expiry_changes(&[id]), Durability::Disk)?;
            }
            Ok(())
        })
        .await
    }
}

/// The changes that have an effect: a missing key need not be deleted.
fn effective_steps(log: &EmbeddedLog, changes: Vec<Change>) -> Result<Vec<RecordedChange>, EmbeddedFault> {
    let mut steps = Vec::with_capacity(changes.len());
    for change in changes {
        match change {
            Change::Put { lease: Some(lease), .. } if !log.state.leases.contains_key(&lease) => {
                return Err(EmbeddedFault::LeaseExpired(lease));
            }
            Change::Put { key, value, lease } => {
                steps.push(RecordedChange::Put { key, value: RecordedValue::of(&value), lease });
            }
            Change::Delete(key) if log.state.entries.contains_key(&key) => {
                steps.push(RecordedChange::Delete { key });
            }
            Change::Delete(_) => {}
        }
    }
    Ok(steps)
}

/// Random, so that an ID from before a store was removed is not valid in a new store.
fn new_id(log: &EmbeddedLog) -> LeaseId {
    let random = |n: u32| LeaseId((RandomState::new().hash_one(n) >> 1).cast_signed());
    let free = (0..).map(random).find(|id| id.0 != 0 && !log.state.leases.contains_key(id));
    free.unwrap_or(LeaseId(1))
}
