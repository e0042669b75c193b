//! The calls of the store as requests to etcd.

use std::time::Duration;

use etcd_client::{
    Compare as EtcdCompare, CompareOp, GetOptions, GetResponse, KeyValue, PutOptions, Txn, TxnOp,
};

use super::EtcdBackend;
use super::connect::Connection;
use super::failure::EtcdFailure;
use super::request::RetryPolicy;
use crate::Result;
use crate::store::StoreCall;
use crate::types::{Change, CommitOutcome, Compare, Entry, LeaseId, LeaseState, Listing};

/// The maximum size of an answer.
const MAX_ANSWER: usize = 32 << 20;
/// Keys in one answer. Reduced if the answer is too large.
const PAGE: i64 = 1000;
/// A listing is restarted if a compaction removes its revision.
const MAX_LISTINGS: u32 = 3;

#[derive(Debug, Clone, Copy)]
enum ListKind {
    Entries,
    Keys,
}

pub(super) fn entry(kv: &KeyValue) -> Entry {
    Entry {
        key: String::from_utf8_lossy(kv.key()).into_owned(),
        value: kv.value().to_vec(),
        revision: kv.mod_revision().unsigned_abs(),
        created: kv.create_revision().unsigned_abs(),
        version: kv.version().unsigned_abs(),
        lease: (kv.lease() != 0).then(|| LeaseId(kv.lease())),
    }
}

fn revision(header: Option<&etcd_client::ResponseHeader>) -> u64 {
    header.map_or(0, |header| header.revision().unsigned_abs())
}

/// The end of the key range of a directory: '0' follows '/'.
fn range_end(directory: &str) -> Vec<u8> {
    let mut end = directory.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

fn compare(compare: &Compare) -> EtcdCompare {
    match compare {
        Compare::Absent(key) => EtcdCompare::version(key.as_str(), CompareOp::Equal, 0),
        Compare::Exists(key) => EtcdCompare::version(key.as_str(), CompareOp::Greater, 0),
        Compare::Revision(key, revision) => EtcdCompare::mod_revision(
            key.as_str(),
            CompareOp::Equal,
            i64::try_from(*revision).unwrap_or(i64::MAX),
        ),
    }
}

fn change(change: &Change) -> TxnOp {
    match change {
        Change::Put { key, value, lease } => {
            let options = lease.map(|lease| PutOptions::new().with_lease(lease.0));
            TxnOp::put(key.as_str(), value.as_slice(), options)
        }
        Change::Delete(key) => TxnOp::delete(key.as_str(), None),
    }
}

impl EtcdBackend {
    pub(crate) async fn get(&self, call: &StoreCall, key: &str) -> Result<Option<Entry>> {
        let send = |mut connection: Connection| async move { connection.client.get(key, None).await };
        let answer =
            self.request(call, RetryPolicy::Safe, send).await.map_err(|failure| self.error(call, failure))?;
        Ok(answer.kvs().first().map(entry))
    }

    pub(crate) async fn list(&self, call: &StoreCall, prefix: &str) -> Result<Listing> {
        let (pages, revision) = self.pages(call, prefix, ListKind::Entries).await?;
        Ok(Listing { entries: pages.iter().flat_map(GetResponse::kvs).map(entry).collect(), revision })
    }

    pub(crate) async fn keys(&self, call: &StoreCall, prefix: &str) -> Result<Vec<String>> {
        let (pages, _) = self.pages(call, prefix, ListKind::Keys).await?;
        let keys = pages.iter().flat_map(GetResponse::kvs);
        Ok(keys.map(|kv| String::from_utf8_lossy(kv.key()).into_owned()).collect())
    }

    async fn pages(&self, call: &StoreCall, prefix: &str, kind: ListKind) -> Result<(Vec<GetResponse>, u64)> {
        let mut listings = 1;
        loop {
            match self.pages_once(call, prefix, kind).await {
                Err(EtcdFailure::Compacted) if listings < MAX_LISTINGS => listings += 1,
                other => return other.map_err(|failure| self.error(call, failure)),
            }
        }
    }

    /// Reads all pages at the revision of the first one.
    async fn pages_once(
        &self,
        call: &StoreCall,
        prefix: &str,
        kind: ListKind,
    ) -> Result<(Vec<GetResponse>, u64), EtcdFailure> {
        let mut pages: Vec<GetResponse> = Vec::new();
        let (mut at, mut limit) = (None, PAGE);
        let mut start = prefix.as_bytes().to_vec();
        loop {
            let mut options = GetOptions::new().with_range(range_end(prefix)).with_limit(limit);
            if let Some(at) = at {
                options = options.with_revision(at);
            }
            if matches!(kind, ListKind::Keys) {
                options = options.with_keys_only();
            }
            let send = |connection: Connection| {
                let mut kv = connection.client.kv_client().max_decoding_message_size(MAX_ANSWER);
                let (start, options) = (start.clone(), options.clone());
                async move { kv.get(start, Some(options)).await }
            };
            let page = match self.request(call, RetryPolicy::Safe, send).await {
                Err(EtcdFailure::TooLarge(_)) if limit > 1 => {
                    limit = (limit / 4).max(1);
                    continue;
                }
                other => other?,
            };
            at = at.or_else(|| page.header().map(etcd_client::ResponseHeader::revision));
            let last = page.kvs().last().map(|kv| kv.key().to_vec());
            let has_more = page.more();
            pages.push(page);
            match last {
                Some(last) if has_more => {
                    start = last;
                    start.push(0);
                }
                _ => return Ok((pages, at.unwrap_or_default().unsigned_abs())),
            }
        }
    }

    pub(crate) async fn commit(
        &self,
        call: &StoreCall,
        compares: &[Compare],
        changes: &[Change],
    ) -> Result<CommitOutcome> {
        let compares: Vec<EtcdCompare> = compares.iter().map(compare).collect();
        let operations: Vec<TxnOp> = changes.iter().map(change).collect();
        let txn = Txn::new().when(compares).and_then(operations);
        let send = |mut connection: Connection| {
            let txn = txn.clone();
            async move { connection.client.txn(txn).await }
        };
        match self.request(call, RetryPolicy::Unsafe, send).await {
            Ok(answer) if answer.succeeded() => {
                Ok(CommitOutcome::Done { revision: revision(answer.header()) })
            }
            Ok(_) => Ok(CommitOutcome::Refused),
            Err(EtcdFailure::LeaseExpired) => Err(lease_expired(call, changes)),
            Err(failure) => Err(self.error(call, failure)),
        }
    }

    /// The counter is the version of the key, which etcd increments with each put.
    pub(crate) async fn put_counter(&self, call: &StoreCall, key: &str) -> Result<u64> {
        // Safe to retry: counting twice only skips a number.
        let send = |mut connection: Connection| async move {
            connection.client.put(key, "", Some(PutOptions::new().with_prev_key())).await
        };
        let answer =
            self.request(call, RetryPolicy::Safe, send).await.map_err(|failure| self.error(call, failure))?;
        Ok(answer.prev_key().map_or(0, |before| before.version().unsigned_abs()))
    }

    pub(crate) async fn grant(&self, call: &StoreCall, ttl: Duration) -> Result<LeaseId> {
        let seconds = i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1);
        // Safe to retry: an unused lease expires.
        let send =
            |mut connection: Connection| async move { connection.client.lease_grant(seconds, None).await };
        let answer =
            self.request(call, RetryPolicy::Safe, send).await.map_err(|failure| self.error(call, failure))?;
        Ok(LeaseId(answer.id()))
    }

    pub(crate) async fn keep_alive(&self, call: &StoreCall, lease: LeaseId) -> Result<LeaseState> {
        let send =
            |mut connection: Connection| async move { connection.client.lease_keep_alive(lease.0).await };
        match self.request(call, RetryPolicy::Safe, send).await {
            Ok(_) => Ok(LeaseState::Alive),
            Err(EtcdFailure::LeaseExpired) => Ok(LeaseState::Gone),
            Err(failure) => Err(self.error(call, failure)),
        }
    }

    pub(crate) async fn revoke(&self, call: &StoreCall, lease: LeaseId) -> Result<()> {
        let send = |mut connection: Connection| async move { connection.client.lease_revoke(lease.0).await };
        match self.request(call, RetryPolicy::Safe, send).await {
            Ok(_) | Err(EtcdFailure::LeaseExpired) => Ok(()),
            Err(failure) => Err(self.error(call, failure)),
        }
    }
}

/// etcd does not report which lease expired. Commits rarely use more than one, so the first one is named.
fn lease_expired(call: &StoreCall, changes: &[Change]) -> crate::Error {
    let lease = changes.iter().find_map(|change| match change {
        Change::Put { lease, .. } => *lease,
        Change::Delete(_) => None,
    });
    crate::Error::LeaseExpired { operation: call.operation.clone(), lease: lease.unwrap_or(LeaseId(0)) }
}
