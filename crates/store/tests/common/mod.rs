//! Stores for tests.

mod certs;
mod server;
mod testbed;

use std::future::Future;
use std::time::Duration;

use store::{Change, Event, Store, Watch, Watched};

pub(crate) use certs::Certs;
pub(crate) use server::{Etcd, Options};
pub(crate) use testbed::Testbed;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Fails the test after a long timeout.
pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, future).await.expect("in time")
}

pub(crate) fn put(key: &str, value: &str) -> Change {
    Change::Put { key: key.to_owned(), value: value.as_bytes().to_vec(), lease: None }
}

/// `+key=value@version` or `-key`.
pub(crate) fn describe(event: &Event) -> String {
    match event {
        Event::Put(entry) => {
            format!("+{}={}@{}", entry.key, String::from_utf8_lossy(&entry.value), entry.version)
        }
        Event::Delete { key, .. } => format!("-{key}"),
    }
}

/// Reads this number of events, in order.
pub(crate) async fn events(watch: &mut Watch, count: usize) -> Vec<Event> {
    let mut all: Vec<Event> = Vec::new();
    while all.len() < count {
        match in_time(watch.next()).await.unwrap() {
            Watched::Events { events, revision } => {
                assert_eq!(events.last().map(Event::revision), Some(revision));
                all.extend(events);
            }
            Watched::Current => {}
            Watched::Compacted => panic!("compacted after {} of {count} events", all.len()),
        }
    }
    assert!(all.is_sorted_by_key(Event::revision), "{all:?}");
    all
}

pub(crate) async fn next_events(watch: &mut Watch, count: usize) -> Vec<String> {
    events(watch, count).await.iter().map(describe).collect()
}

/// Waits until a call succeeds.
pub(crate) async fn wait_until_ready(store: &Store) {
    in_time(async { while store.get("/ready").await.is_err() {} }).await;
}
