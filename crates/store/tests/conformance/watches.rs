//! Watches, with both backends.

use std::time::Duration;

use store::{Change, Watched};

use super::both;
use crate::common::{Testbed, describe, events, in_time, next_events, put};

both!(
    a_watch_from_a_listing_misses_no_event,
    a_watch_reports_its_directory_only_and_in_order,
    a_watch_without_events_reports_that_it_is_current,
    a_cancelled_wait_loses_no_event,
    changes_of_several_clients_arrive_in_order,
    large_changes_arrive_completely,
);

async fn a_watch_from_a_listing_misses_no_event(testbed: &Testbed) {
    let (store, other) = (&testbed.store, testbed.second_client());
    store.commit(&[], &[put(&testbed.key("f/a"), "old")]).await.unwrap();
    let listing = store.list(&testbed.key("f/")).await.unwrap();
    assert_eq!(listing.entries.len(), 1);
    // One change before the watch, and one after.
    other.commit(&[], &[put(&testbed.key("f/a"), "new")]).await.unwrap();
    let mut watch = store.watch(&testbed.key("f/"), listing.revision + 1).await.unwrap();
    other.commit(&[], &[Change::Delete(testbed.key("f/a"))]).await.unwrap();
    let key = testbed.key("f/a");
    assert_eq!(next_events(&mut watch, 2).await, [format!("+{key}=new@2"), format!("-{key}")]);
    // A watch can start at a later revision.
    let mut later = store.watch(&testbed.key("f/"), listing.revision + 2).await.unwrap();
    assert_eq!(next_events(&mut later, 1).await, [format!("-{key}")]);
}

async fn a_watch_reports_its_directory_only_and_in_order(testbed: &Testbed) {
    let (store, other) = (&testbed.store, testbed.second_client());
    let from = store.list(&testbed.key("f/")).await.unwrap().revision + 1;
    let mut watch = store.watch(&testbed.key("f/"), from).await.unwrap();
    other.commit(&[], &[put(&testbed.key("f2/a"), "no"), put(&testbed.key("f"), "no")]).await.unwrap();
    other.commit(&[], &[put(&testbed.key("f/b"), "1"), put(&testbed.key("f/a"), "2")]).await.unwrap();
    other.commit(&[], &[Change::Delete(testbed.key("f/none"))]).await.unwrap();
    other.commit(&[], &[put(&testbed.key("f/a"), "3")]).await.unwrap();
    let all = events(&mut watch, 3).await;
    let mut first: Vec<String> = all[..2].iter().map(describe).collect();
    first.sort();
    assert_eq!(first, [format!("+{}=2@1", testbed.key("f/a")), format!("+{}=1@1", testbed.key("f/b"))]);
    assert_eq!(all[0].revision(), all[1].revision());
    assert_eq!(describe(&all[2]), format!("+{}=3@2", testbed.key("f/a")));
}

async fn a_watch_without_events_reports_that_it_is_current(testbed: &Testbed) {
    let store = &testbed.store;
    let from = store.list(&testbed.key("f/")).await.unwrap().revision + 1;
    let mut watch = store.watch(&testbed.key("f/"), from).await.unwrap();
    for _ in 0..2 {
        watch.request_progress().await.unwrap();
        assert_eq!(in_time(watch.next()).await.unwrap(), Watched::Current);
    }
    store.commit(&[], &[put(&testbed.key("f/a"), "1")]).await.unwrap();
    assert_eq!(next_events(&mut watch, 1).await, [format!("+{}=1@1", testbed.key("f/a"))]);
}

async fn a_cancelled_wait_loses_no_event(testbed: &Testbed) {
    let store = &testbed.store;
    let from = store.list(&testbed.key("f/")).await.unwrap().revision + 1;
    let mut watch = store.watch(&testbed.key("f/"), from).await.unwrap();
    let mut received = Vec::new();
    for n in 0..20 {
        store.commit(&[], &[put(&testbed.key("f/a"), &n.to_string())]).await.unwrap();
        // The timeout is often too short for the event.
        if let Ok(next) = tokio::time::timeout(Duration::from_micros(n * 100), watch.next()).await {
            let Watched::Events { events, .. } = next.unwrap() else { panic!("compacted") };
            received.extend(events.iter().map(describe));
        }
    }
    while received.len() < 20 {
        received.extend(next_events(&mut watch, 1).await);
    }
    let expected: Vec<String> = (0..20).map(|n| format!("+{}={n}@{}", testbed.key("f/a"), n + 1)).collect();
    assert_eq!(received, expected);
}

async fn changes_of_several_clients_arrive_in_order(testbed: &Testbed) {
    let from = testbed.store.list(&testbed.key("f/")).await.unwrap().revision + 1;
    let mut watch = testbed.store.watch(&testbed.key("f/"), from).await.unwrap();
    let writers: Vec<_> = (0..3)
        .map(|w| {
            let (store, key) = (testbed.second_client(), testbed.key(&format!("f/{w}")));
            tokio::spawn(async move {
                for n in 0..30 {
                    store.commit(&[], &[put(&key, &n.to_string())]).await.unwrap();
                }
            })
        })
        .collect();
    let all: Vec<String> = events(&mut watch, 90).await.iter().map(describe).collect();
    for writer in writers {
        in_time(writer).await.unwrap();
    }
    for w in 0..3 {
        let key = testbed.key(&format!("f/{w}"));
        let expected: Vec<String> = (0..30).map(|n| format!("+{key}={n}@{}", n + 1)).collect();
        let of_writer: Vec<String> = all.iter().filter(|event| event.contains(&key)).cloned().collect();
        assert_eq!(of_writer, expected);
    }
}

async fn large_changes_arrive_completely(testbed: &Testbed) {
    let from = testbed.store.list(&testbed.key("f/")).await.unwrap().revision + 1;
    for n in 0..6 {
        let value = n.to_string().repeat(1 << 20);
        testbed.store.commit(&[], &[put(&testbed.key(&format!("f/{n}")), &value)]).await.unwrap();
    }
    let mut watch = testbed.store.watch(&testbed.key("f/"), from).await.unwrap();
    let all = events(&mut watch, 6).await;
    for (n, event) in all.iter().enumerate() {
        let store::Event::Put(entry) = event else { panic!("{}", event.key()) };
        assert_eq!((entry.value.len(), entry.value[0]), (1 << 20, b'0' + u8::try_from(n).unwrap()));
    }
}
