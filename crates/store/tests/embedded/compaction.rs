//! Compaction of the log.

use std::fs;

use store::Watched;

use super::open;
use crate::common::{events, in_time, put};

#[tokio::test]
async fn the_log_is_compacted_and_late_watches_are_notified() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.commit(&[], &[put("/small/a", "a")]).await.unwrap();
    let lease = store.grant(std::time::Duration::from_secs(60)).await.unwrap();
    let leased = store::Change::Put { key: "/small/b".to_owned(), value: b"b".to_vec(), lease: Some(lease) };
    store.commit(&[], &[leased]).await.unwrap();
    let before = store.list("/small/").await.unwrap();
    let mut lazy = store.watch("/many/", before.revision + 1).await.unwrap();
    let mut busy = store.watch("/many/", before.revision + 1).await.unwrap();
    let value = "x".repeat(50_000);
    for n in 1..=60 {
        store.commit(&[], &[put("/many/a", &format!("{n} {value}"))]).await.unwrap();
        // A watch that is up to date misses no event.
        let received = events(&mut busy, 1).await;
        assert!(matches!(&received[..], [store::Event::Put(entry)] if entry.version == n), "{n}");
    }
    assert!(fs::metadata(dir.path().join("log")).unwrap().len() < 1_300_000);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "the log and the lock");
    // Other watches are notified of the compaction.
    assert_eq!(in_time(lazy.next()).await.unwrap(), Watched::Compacted);
    let mut late = store.watch("/many/", before.revision + 1).await.unwrap();
    assert_eq!(in_time(late.next()).await.unwrap(), Watched::Compacted);
    // Nothing else has changed.
    let expect_same = async |store: store::Store| {
        assert_eq!(store.list("/small/").await.unwrap().entries, before.entries);
        let many = store.get("/many/a").await.unwrap().unwrap();
        assert_eq!((many.version, many.created), (60, before.revision + 1));
        assert_eq!(store.keep_alive(lease).await.unwrap(), store::LeaseState::Alive);
    };
    drop((lazy, busy, late));
    expect_same(store).await;
    expect_same(open(dir.path())).await;
}
