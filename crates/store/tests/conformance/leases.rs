//! Leases and the keys that are bound to them, with both backends.

use std::time::{Duration, Instant};

use store::{Change, Error, LeaseId, LeaseState};

use super::both;
use crate::common::{Testbed, in_time, next_events, put};

both!(
    an_expired_lease_removes_its_keys,
    a_renewed_lease_keeps_its_keys,
    a_revoked_lease_removes_its_keys_immediately,
    a_write_without_a_lease_detaches_the_key,
    a_commit_with_an_expired_lease_fails,
);

const TTL: Duration = Duration::from_secs(1);

fn leased(key: &str, lease: LeaseId) -> Change {
    Change::Put { key: key.to_owned(), value: b"x".to_vec(), lease: Some(lease) }
}

async fn an_expired_lease_removes_its_keys(testbed: &Testbed) {
    let (store, key) = (&testbed.store, testbed.key("alive/a"));
    let start = Instant::now();
    let lease = store.grant(TTL).await.unwrap();
    store.commit(&[], &[leased(&key, lease), leased(&testbed.key("alive/b"), lease)]).await.unwrap();
    let listing = store.list(&testbed.key("alive/")).await.unwrap();
    assert_eq!(listing.entries[0].lease, Some(lease));
    let mut watch =
        testbed.second_client().watch(&testbed.key("alive/"), listing.revision + 1).await.unwrap();
    let mut removed = next_events(&mut watch, 2).await;
    removed.sort();
    assert_eq!(removed, [format!("-{key}"), format!("-{}", testbed.key("alive/b"))]);
    let elapsed = start.elapsed();
    assert!(elapsed >= TTL, "{elapsed:?}");
    assert_eq!(store.keys(&testbed.key("alive/")).await.unwrap(), Vec::<String>::new());
    assert_eq!(store.keep_alive(lease).await.unwrap(), LeaseState::Gone);
}

async fn a_renewed_lease_keeps_its_keys(testbed: &Testbed) {
    let (store, key) = (&testbed.store, testbed.key("a"));
    let lease = store.grant(TTL * 2).await.unwrap();
    store.commit(&[], &[leased(&key, lease)]).await.unwrap();
    let start = Instant::now();
    while start.elapsed() < TTL * 5 / 2 {
        assert_eq!(in_time(store.keep_alive(lease)).await.unwrap(), LeaseState::Alive);
        tokio::time::sleep(TTL / 4).await;
    }
    assert!(store.get(&key).await.unwrap().is_some());
    store.revoke(lease).await.unwrap();
}

async fn a_revoked_lease_removes_its_keys_immediately(testbed: &Testbed) {
    let (store, key) = (&testbed.store, testbed.key("alive/a"));
    let lease = store.grant(Duration::from_secs(60)).await.unwrap();
    store.commit(&[], &[leased(&key, lease), put(&testbed.key("alive/other"), "")]).await.unwrap();
    let from = store.list(&testbed.key("alive/")).await.unwrap().revision + 1;
    let mut watch = store.watch(&testbed.key("alive/"), from).await.unwrap();
    store.revoke(lease).await.unwrap();
    assert_eq!(next_events(&mut watch, 1).await, [format!("-{key}")]);
    assert_eq!(store.keys(&testbed.key("alive/")).await.unwrap(), [testbed.key("alive/other")]);
    assert_eq!(store.keep_alive(lease).await.unwrap(), LeaseState::Gone);
    store.revoke(lease).await.unwrap();
}

async fn a_write_without_a_lease_detaches_the_key(testbed: &Testbed) {
    let (store, key) = (&testbed.store, testbed.key("a"));
    let lease = store.grant(Duration::from_secs(60)).await.unwrap();
    store.commit(&[], &[leased(&key, lease)]).await.unwrap();
    store.commit(&[], &[put(&key, "new")]).await.unwrap();
    store.revoke(lease).await.unwrap();
    assert_eq!(store.get(&key).await.unwrap().unwrap().lease, None);
}

async fn a_commit_with_an_expired_lease_fails(testbed: &Testbed) {
    let (store, key) = (&testbed.store, testbed.key("a"));
    let lease = store.grant(Duration::from_secs(60)).await.unwrap();
    store.revoke(lease).await.unwrap();
    let error = store.commit(&[], &[leased(&key, lease)]).await.unwrap_err();
    assert!(matches!(error, Error::LeaseExpired { lease: expired, .. } if expired == lease), "{error}");
    assert_eq!(store.get(&key).await.unwrap(), None);
}
