//! Reads, listings and the limits of keys and values, with both backends.

use store::{Change, CommitOutcome, Entry, Error, MAX_KEY, MAX_VALUE};

use super::both;
use crate::common::{Testbed, put};

both!(
    a_read_returns_the_written_entry,
    a4_a_prefix_matches_complete_segments,
    a_large_directory_is_listed_completely,
    oversized_requests_are_refused,
);

async fn a_read_returns_the_written_entry(testbed: &Testbed) {
    let (store, key) = (&testbed.store, testbed.key("a"));
    assert_eq!(store.get(&key).await.unwrap(), None);
    let mut created = None;
    for (version, value) in [(1, &b"{\"a\":1}"[..]), (2, b""), (3, b"\0\xff\n")] {
        let change = Change::Put { key: key.clone(), value: value.to_vec(), lease: None };
        let CommitOutcome::Done { revision } = store.commit(&[], &[change]).await.unwrap() else {
            panic!("refused")
        };
        let created = *created.get_or_insert(revision);
        let expected =
            Entry { key: key.clone(), value: value.to_vec(), revision, created, version, lease: None };
        assert_eq!(store.get(&key).await.unwrap(), Some(expected.clone()));
        assert_eq!(testbed.second_client().get(&key).await.unwrap(), Some(expected));
    }
    // A key that is created again has a new creation revision.
    store.commit(&[], &[Change::Delete(key.clone())]).await.unwrap();
    store.commit(&[], &[put(&key, "new")]).await.unwrap();
    let entry = store.get(&key).await.unwrap().unwrap();
    assert!(Some(entry.created) > created && entry.created == entry.revision, "{entry:?}");
}

async fn a4_a_prefix_matches_complete_segments(testbed: &Testbed) {
    let (store, key) = (&testbed.store, |name: &str| testbed.key(name));
    let changes: Vec<Change> = ["hosts", "hosts/a", "hosts/b/c", "hosts2/a", "hosts.x", "host/a", "hosts0"]
        .iter()
        .map(|name| put(&key(name), "x"))
        .collect();
    store.commit(&[], &changes).await.unwrap();
    let expected = vec![key("hosts/a"), key("hosts/b/c")];
    assert_eq!(store.keys(&key("hosts/")).await.unwrap(), expected);
    let listing = store.list(&key("hosts/")).await.unwrap();
    assert_eq!(listing.entries.iter().map(|entry| entry.key.clone()).collect::<Vec<_>>(), expected);
    assert!(listing.entries.iter().all(|entry| entry.value == b"x" && entry.revision <= listing.revision));
    assert_eq!(store.list(&key("none/")).await.unwrap().entries, []);
    for error in [
        store.list(&key("hosts")).await.unwrap_err(),
        store.keys("").await.unwrap_err(),
        store.watch(&key("hosts"), 1).await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
}

async fn a_large_directory_is_listed_completely(testbed: &Testbed) {
    let store = &testbed.store;
    let value = "v".repeat(1024);
    let names: Vec<String> = (0..3000).map(|n| testbed.key(&format!("big/{n:05}"))).collect();
    for chunk in names.chunks(store::MAX_CHANGES) {
        let changes: Vec<Change> = chunk.iter().map(|name| put(name, &value)).collect();
        store.commit(&[], &changes).await.unwrap();
    }
    let listing = store.list(&testbed.key("big/")).await.unwrap();
    assert_eq!(listing.entries.len(), 3000);
    assert!(
        listing
            .entries
            .iter()
            .zip(&names)
            .all(|(entry, name)| entry.key == *name && entry.value.len() == 1024)
    );
    assert_eq!(store.keys(&testbed.key("big/")).await.unwrap(), names);
}

async fn oversized_requests_are_refused(testbed: &Testbed) {
    let store = &testbed.store;
    let largest = Change::Put { key: testbed.key("largest"), value: vec![b'x'; MAX_VALUE], lease: None };
    store.commit(&[], &[largest]).await.unwrap();
    assert_eq!(store.get(&testbed.key("largest")).await.unwrap().unwrap().value.len(), MAX_VALUE);
    let long = testbed.key(&"k".repeat(MAX_KEY));
    let oversized =
        Change::Put { key: testbed.key("oversized"), value: vec![b'x'; MAX_VALUE + 1], lease: None };
    let half = |name: &str| Change::Put {
        key: testbed.key(name),
        value: vec![b'x'; MAX_VALUE * 3 / 4],
        lease: None,
    };
    let many: Vec<Change> = (0..129).map(|n| put(&testbed.key(&format!("n{n}")), "")).collect();
    for (changes, expected) in [
        (vec![oversized], "1048577 bytes"),
        (vec![put(&long, "")], "too long"),
        (vec![put("", "")], "empty"),
        (vec![half("a"), half("b")], "a commit of"),
        (vec![put(&testbed.key("a"), ""), Change::Delete(testbed.key("a"))], "twice"),
        (many, "129 compares or changes"),
    ] {
        let error = store.commit(&[], &changes).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(expected), "{error}");
        assert!(!error.is_transient());
    }
    assert!(store.get(&long).await.is_err() && store.put_counter(&long).await.is_err());
    assert_eq!(store.get(&testbed.key("a")).await.unwrap(), None);
}
