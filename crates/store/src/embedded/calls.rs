//! Requests and their answers.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use super::Embedded;
use super::fault::Fault;
use super::lease::Lease;
use super::log::{Keep, Log};
use super::record::{Step, Value};
use crate::Result;
use crate::store::Call;
use crate::types::{Change, Compare, Entry, Kept, LeaseId, Listing, Outcome};

impl Embedded {
    pub(crate) async fn get(&self, call: &Call, key: &str) -> Result<Option<Entry>> {
        let key = key.to_owned();
        self.run(call, move |log| Ok(log.state.entries.get(&key).cloned())).await
    }

    pub(crate) async fn list(&self, call: &Call, prefix: &str) -> Result<Listing> {
        let prefix = prefix.to_owned();
        self.run(call, move |log| {
            let entries = log.state.folder(&prefix).cloned().collect();
            Ok(Listing { entries, revision: log.state.revision })
        })
        .await
    }

    pub(crate) async fn keys(&self, call: &Call, prefix: &str) -> Result<Vec<String>> {
        let prefix = prefix.to_owned();
        self.run(call, move |log| Ok(log.state.folder(&prefix).map(|entry| entry.key.clone()).collect()))
            .await
    }

    pub(crate) async fn commit(
        &self,
        call: &Call,
        compares: &[Compare],
        changes: &[Change],
    ) -> Result<Outcome> {
        let (compares, changes) = (compares.to_vec(), changes.to_vec());
        self.run(call, move |log| {
            if !compares.iter().all(|compare| log.state.holds(compare)) {
                return Ok(Outcome::Refused);
            }
            let steps = steps(log, changes)?;
            let revision =
                if steps.is_empty() { log.state.revision } else { log.append(steps, Keep::Durable)? };
            Ok(Outcome::Done { revision })
        })
        .await
    }

    pub(crate) async fn put_counter(&self, call: &Call, key: &str) -> Result<u64> {
        let key = key.to_owned();
        self.run(call, move |log| {
            let before = log.state.entries.get(&key).map_or(0, |entry| entry.version);
            log.append(vec![Step::Put { key, value: Value::of(b""), lease: None }], Keep::Durable)?;
            Ok(before)
        })
        .await
    }

    pub(crate) async fn grant(&self, call: &Call, ttl: Duration) -> Result<LeaseId> {
        self.run(call, move |log| {
            let id = new_id(log);
            log.append(vec![Step::Lease { id, lease: Lease::begin(ttl)? }], Keep::Boot)?;
            Ok(id)
        })
        .await
    }

    pub(crate) async fn keep_alive(&self, call: &Call, id: LeaseId) -> Result<Kept> {
        self.run(call, move |log| {
            let Some(lease) = log.state.leases.get(&id) else { return Ok(Kept::Gone) };
            let lease = lease.again()?;
            log.append(vec![Step::Lease { id, lease }], Keep::Boot)?;
            Ok(Kept::Alive)
        })
        .await
    }

    pub(crate) async fn revoke(&self, call: &Call, id: LeaseId) -> Result<()> {
        self.run(call, move |log| {
            if log.state.leases.contains_key(&id) {
                log.append(log.state.end_of(&[id]), Keep::Durable)?;
            }
            Ok(())
        })
        .await
    }
}

/// What there is to be done: a key that is not there need not be deleted.
fn steps(log: &Log, changes: Vec<Change>) -> Result<Vec<Step>, Fault> {
    let mut steps = Vec::with_capacity(changes.len());
    for change in changes {
        match change {
            Change::Put { lease: Some(lease), .. } if !log.state.leases.contains_key(&lease) => {
                return Err(Fault::LeaseGone(lease));
            }
            Change::Put { key, value, lease } => {
                steps.push(Step::Put { key, value: Value::of(&value), lease });
            }
            Change::Delete(key) if log.state.entries.contains_key(&key) => steps.push(Step::Delete { key }),
            Change::Delete(_) => {}
        }
    }
    Ok(steps)
}

/// Random, so that an id from before a store was removed is nobody's.
fn new_id(log: &Log) -> LeaseId {
    let random = |n: u32| LeaseId((RandomState::new().hash_one(n) >> 1).cast_signed());
    let free = (0..).map(random).find(|id| id.0 != 0 && !log.state.leases.contains_key(id));
    free.unwrap_or(LeaseId(1))
}
