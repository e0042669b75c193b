//! A process that owns the store: it is alone, and it may be killed.

use std::io::{BufRead as _, BufReader};
use std::time::{Duration, Instant};

use store::{Error, Store, StoreConfig};

use super::{child, open};
use crate::common::{TIMEOUT, put};

const ROUNDS: u64 = 24;

#[tokio::test]
#[ignore = "the other half of after_kills_everything_confirmed_is_there_and_nothing_is_half"]
async fn writes_until_it_is_killed() {
    let Some(dir) = child::task() else { return };
    let store = open(&dir);
    let before = store.get("/left").await.unwrap();
    let mut n = before.map_or(0, |entry| number(&entry.value));
    // Bounded: the parent may be gone. Large values cause many compactions.
    let end = Instant::now() + 2 * TIMEOUT;
    while Instant::now() < end {
        n += 1;
        let value = format!("{n:20000}");
        store.commit(&[], &[put("/left", &value), put("/right", &value)]).await.unwrap();
        println!("confirmed {n}");
    }
}

fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn after_kills_everything_confirmed_is_there_and_nothing_is_half() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..ROUNDS {
        let mut child = child::start("embedded::processes::writes_until_it_is_killed", dir.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut confirmed = || lines.find_map(|line| line.strip_prefix("confirmed ")?.parse::<u64>().ok());
        // Each round kills it at another moment.
        for _ in 0..=round % 5 {
            confirmed().unwrap();
        }
        tokio::time::sleep(Duration::from_micros(round * 11_003 % 30_000)).await;
        child::kill(child);
        let confirmed = std::iter::from_fn(confirmed).last();
        let store = open(dir.path());
        let entries = store.list("/").await.unwrap().entries;
        let [left, right] = entries.as_slice() else { panic!("{} entries", entries.len()) };
        assert_eq!((&left.value, left.version, left.revision), (&right.value, right.version, right.revision));
        let value = number(&left.value);
        assert_eq!(value, left.version);
        assert!(
            confirmed.is_none_or(|confirmed| value == confirmed || value == confirmed + 1),
            "{value} {confirmed:?}"
        );
    }
}

#[tokio::test]
async fn a_store_has_one_owner_and_another_process_is_told_which() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.commit(&[], &[put("/a", "1")]).await.unwrap();
    let error = Store::open(&StoreConfig::Embedded { dir: dir.path().to_owned() }).unwrap_err();
    assert!(matches!(&error, Error::Held { .. }) && !error.is_transient(), "{error}");
    let (holder, path) = (format!("process {}", std::process::id()), dir.path().to_str().unwrap());
    for word in [holder.as_str(), path, "--store-dir", "etcd"] {
        assert!(error.to_string().contains(word), "{error}");
    }
    // All clones have one owner.
    let clone = store.clone();
    drop(store);
    Store::open(&StoreConfig::Embedded { dir: dir.path().to_owned() }).unwrap_err();
    drop(clone);
    assert_eq!(open(dir.path()).get("/a").await.unwrap().unwrap().value, b"1");
}
