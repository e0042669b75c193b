//! A log that is mostly dead is written anew.

use std::fs;

use store::Watched;

use super::open;
use crate::common::{events, in_time, put};

#[tokio::test]
async fn a_log_stays_small_and_its_watchers_know() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.commit(&[], &[put("/kept/a", "a")]).await.unwrap();
    let lease = store.grant(std::time::Duration::from_secs(60)).await.unwrap();
    let leased = store::Change::Put { key: "/kept/b".to_owned(), value: b"b".to_vec(), lease: Some(lease) };
    store.commit(&[], &[leased]).await.unwrap();
    let before = store.list("/kept/").await.unwrap();
    let mut lazy = store.watch("/many/", before.revision + 1).await.unwrap();
    let mut busy = store.watch("/many/", before.revision + 1).await.unwrap();
    let value = "x".repeat(50_000);
    for n in 1..=60 {
        store.commit(&[], &[put("/many/a", &format!("{n} {value}"))]).await.unwrap();
        // Whoever is up to date misses nothing.
        let seen = events(&mut busy, 1).await;
        assert!(matches!(&seen[..], [store::Event::Put(entry)] if entry.version == n), "{n}");
    }
    assert!(fs::metadata(dir.path().join("log")).unwrap().len() < 1_300_000);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "the log and the lock");
    // Whoever is not is told.
    assert_eq!(in_time(lazy.next()).await.unwrap(), Watched::Compacted);
    let mut late = store.watch("/many/", before.revision + 1).await.unwrap();
    assert_eq!(in_time(late.next()).await.unwrap(), Watched::Compacted);
    // Nothing else changed.
    let expect_same = async |store: store::Store| {
        assert_eq!(store.list("/kept/").await.unwrap().entries, before.entries);
        let many = store.get("/many/a").await.unwrap().unwrap();
        assert_eq!((many.version, many.created), (60, before.revision + 1));
        assert_eq!(store.keep_alive(lease).await.unwrap(), store::LeaseState::Alive);
    };
    drop((lazy, busy, late));
    expect_same(store).await;
    expect_same(open(dir.path())).await;
}
