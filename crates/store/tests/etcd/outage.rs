//! Outages and compaction of etcd.

use std::time::Duration;

use etcd_client::Client;
use store::{Error, Watched};

use super::{config, open};
use crate::common::{Etcd, Options, TIMEOUT, in_time, next_events, put, wait_until_ready};

#[tokio::test]
async fn a_store_can_be_opened_before_etcd_is_running() {
    let mut server = Etcd::start(&Options::default());
    // An etcd that is killed before it has initialized its data directory cannot start again.
    wait_until_ready(&open(&config(&[&server]))).await;
    server.stop();
    let store = open(&config(&[&server]));
    let client = store.clone();
    let waiting = tokio::spawn(async move { client.with_deadline(TIMEOUT).get("/a").await });
    server.restart();
    assert_eq!(in_time(waiting).await.unwrap().unwrap(), None);
}

#[tokio::test]
async fn calls_work_immediately_after_an_outage() {
    let mut server = Etcd::start(&Options::default());
    let store = open(&config(&[&server]));
    store.commit(&[], &[put("/f/a", "1")]).await.unwrap();
    let mut watch = store.watch("/f/", store.list("/f/").await.unwrap().revision + 1).await.unwrap();
    server.stop();
    let error = in_time(watch.next()).await.unwrap_err();
    assert!(matches!(error, Error::WatchFailed { .. }) && error.is_transient(), "{error}");
    assert!(in_time(watch.next()).await.is_err());

    let short = store.with_deadline(Duration::from_secs(1));
    let calls = [("/a", false), ("/b", true)];
    for (key, is_write) in calls {
        let error = if is_write {
            short.commit(&[], &[put(key, "x")]).await.unwrap_err()
        } else {
            short.get(key).await.unwrap_err()
        };
        assert!(matches!(error, Error::Unreachable { .. }) && error.is_transient(), "{error}");
        assert!(error.is_connection_refused(), "{error}");
        assert!(error.to_string().contains(&server.url()) && error.to_string().contains(key), "{error}");
    }
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..5 {
        let store = store.with_deadline(TIMEOUT);
        waiting.spawn(async move { store.get("/f/a").await.unwrap() });
    }
    server.restart();
    for entry in in_time(waiting.join_all()).await {
        assert_eq!(entry.unwrap().value, b"1");
    }
    store.commit(&[], &[put("/f/a", "2")]).await.unwrap();
    assert_eq!(store.get("/b").await.unwrap(), None);
}

#[tokio::test]
async fn a_watch_from_before_a_compaction_reports_it() {
    let server = Etcd::start(&Options::default());
    let store = open(&config(&[&server]));
    for n in 0..10 {
        store.commit(&[], &[put("/f/a", &n.to_string())]).await.unwrap();
    }
    let revision = store.list("/f/").await.unwrap().revision;
    let mut current = store.watch("/f/", revision + 1).await.unwrap();
    let mut client = Client::connect([server.url()], None).await.unwrap();
    client.compact(i64::try_from(revision).unwrap(), None).await.unwrap();
    let mut old = store.watch("/f/", 3).await.unwrap();
    assert_eq!(in_time(old.next()).await.unwrap(), Watched::Compacted);
    assert!(old.next().await.is_err());
    // A watch that is up to date continues.
    store.commit(&[], &[put("/f/a", "new")]).await.unwrap();
    assert_eq!(next_events(&mut current, 1).await, ["+/f/a=new@11"]);
}
