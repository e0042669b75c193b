//! The process that owns the store: there is only one, and it may be killed.

use std::io::{BufRead as _, BufReader};
use std::time::{Duration, Instant};

use store::{Error, Store, StoreConfig};

use super::{child, open};
use crate::common::{TIMEOUT, put};

const ROUNDS: u64 = 24;

#[tokio::test]
#[ignore = "the child process of after_kills_all_acknowledged_commits_exist_completely"]
async fn writes_until_it_is_killed() {
    let Some(dir) = child::directory() else { return };
    let store = open(&dir);
    let before = store.get("/left").await.unwrap();
    let mut n = before.map_or(0, |entry| number(&entry.value));
    // Bounded, because the parent may have ended. Large values cause many compactions.
    let deadline = Instant::now() + 2 * TIMEOUT;
    while Instant::now() < deadline {
        n += 1;
        let value = format!("{n:20000}");
        store.commit(&[], &[put("/left", &value), put("/right", &value)]).await.unwrap();
        println!("committed {n}");
    }
}

fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn after_kills_all_acknowledged_commits_exist_completely() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..ROUNDS {
        let mut child = child::start("embedded::processes::writes_until_it_is_killed", dir.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut committed = || lines.find_map(|line| line.strip_prefix("committed ")?.parse::<u64>().ok());
        // Each round kills the process at a different time.
        for _ in 0..=round % 5 {
            committed().unwrap();
        }
        tokio::time::sleep(Duration::from_micros(round * 11_003 % 30_000)).await;
        child::kill(child);
        let committed = std::iter::from_fn(committed).last();
        let store = open(dir.path());
        let entries = store.list("/").await.unwrap().entries;
        let [left, right] = entries.as_slice() else { panic!("{} entries", entries.len()) };
        assert_eq!((&left.value, left.version, left.revision), (&right.value, right.version, right.revision));
        let value = number(&left.value);
        assert_eq!(value, left.version);
        assert!(
            committed.is_none_or(|committed| value == committed || value == committed + 1),
            "{value} {committed:?}"
        );
    }
}

#[tokio::test]
async fn opening_a_store_in_use_reports_its_owner() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.commit(&[], &[put("/a", "1")]).await.unwrap();
    let error = Store::open(&StoreConfig::Embedded { dir: dir.path().to_owned() }).unwrap_err();
    assert!(matches!(&error, Error::Held { .. }) && !error.is_transient(), "{error}");
    let (holder, path) = (format!("process {}", std::process::id()), dir.path().to_str().unwrap());
    for word in [holder.as_str(), path, "--store-dir", "etcd"] {
        assert!(error.to_string().contains(word), "{error}");
    }
    // Clones share the ownership.
    let clone = store.clone();
    drop(store);
    Store::open(&StoreConfig::Embedded { dir: dir.path().to_owned() }).unwrap_err();
    drop(clone);
    assert_eq!(open(dir.path()).get("/a").await.unwrap().unwrap().value, b"1");
}
