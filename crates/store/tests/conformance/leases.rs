use std::time::{Duration, Instant};

use store::{Change, Error, LeaseId, LeaseState};

use super::both;
use crate::common::{World, in_time, put, told};

both!(
    a_lease_that_runs_out_takes_its_keys,
    a_lease_that_is_kept_stays,
    a_revoked_lease_takes_its_keys_at_once,
    a_key_leaves_its_lease_when_it_is_written_without,
    a_lease_that_is_gone_holds_nothing,
);

const TTL: Duration = Duration::from_secs(1);

fn leased(key: &str, lease: LeaseId) -> Change {
    Change::Put { key: key.to_owned(), value: b"x".to_vec(), lease: Some(lease) }
}

async fn a_lease_that_runs_out_takes_its_keys(world: &World) {
    let (store, key) = (&world.store, world.key("alive/a"));
    let begun = Instant::now();
    let lease = store.grant(TTL).await.unwrap();
    store.commit(&[], &[leased(&key, lease), leased(&world.key("alive/b"), lease)]).await.unwrap();
    let listing = store.list(&world.key("alive/")).await.unwrap();
    assert_eq!(listing.entries[0].lease, Some(lease));
    let mut watch = world.another().watch(&world.key("alive/"), listing.revision + 1).await.unwrap();
    let mut gone = told(&mut watch, 2).await;
    gone.sort();
    assert_eq!(gone, [format!("-{key}"), format!("-{}", world.key("alive/b"))]);
    let took = begun.elapsed();
    assert!(took >= TTL, "{took:?}");
    assert_eq!(store.keys(&world.key("alive/")).await.unwrap(), Vec::<String>::new());
    assert_eq!(store.keep_alive(lease).await.unwrap(), LeaseState::Gone);
}

async fn a_lease_that_is_kept_stays(world: &World) {
    let (store, key) = (&world.store, world.key("a"));
    let lease = store.grant(TTL * 2).await.unwrap();
    store.commit(&[], &[leased(&key, lease)]).await.unwrap();
    let begun = Instant::now();
    while begun.elapsed() < TTL * 5 / 2 {
        assert_eq!(in_time(store.keep_alive(lease)).await.unwrap(), LeaseState::Alive);
        tokio::time::sleep(TTL / 4).await;
    }
    assert!(store.get(&key).await.unwrap().is_some());
    store.revoke(lease).await.unwrap();
}

async fn a_revoked_lease_takes_its_keys_at_once(world: &World) {
    let (store, key) = (&world.store, world.key("alive/a"));
    let lease = store.grant(Duration::from_secs(60)).await.unwrap();
    store.commit(&[], &[leased(&key, lease), put(&world.key("alive/other"), "")]).await.unwrap();
    let from = store.list(&world.key("alive/")).await.unwrap().revision + 1;
    let mut watch = store.watch(&world.key("alive/"), from).await.unwrap();
    store.revoke(lease).await.unwrap();
    assert_eq!(told(&mut watch, 1).await, [format!("-{key}")]);
    assert_eq!(store.keys(&world.key("alive/")).await.unwrap(), [world.key("alive/other")]);
    assert_eq!(store.keep_alive(lease).await.unwrap(), LeaseState::Gone);
    store.revoke(lease).await.unwrap();
}

async fn a_key_leaves_its_lease_when_it_is_written_without(world: &World) {
    let (store, key) = (&world.store, world.key("a"));
    let lease = store.grant(Duration::from_secs(60)).await.unwrap();
    store.commit(&[], &[leased(&key, lease)]).await.unwrap();
    store.commit(&[], &[put(&key, "mine")]).await.unwrap();
    store.revoke(lease).await.unwrap();
    assert_eq!(store.get(&key).await.unwrap().unwrap().lease, None);
}

async fn a_lease_that_is_gone_holds_nothing(world: &World) {
    let (store, key) = (&world.store, world.key("a"));
    let lease = store.grant(Duration::from_secs(60)).await.unwrap();
    store.revoke(lease).await.unwrap();
    let error = store.commit(&[], &[leased(&key, lease)]).await.unwrap_err();
    assert!(matches!(error, Error::LeaseGone { lease: gone, .. } if gone == lease), "{error}");
    assert_eq!(store.get(&key).await.unwrap(), None);
}
