//! Several processes at once, and some that are killed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use store::{Compare, Outcome, Watched};

use super::{child, open};
use crate::common::{PATIENCE, events, in_time, put};

const WRITERS: usize = 3;
const ROUNDS: u64 = 8;
const CLAIMS: u32 = 40;

#[tokio::test]
#[ignore = "the other half of after_kills_everything_confirmed_is_there_and_nothing_is_half"]
async fn writes_until_it_is_killed() {
    let Some((dir, name)) = child::task() else { return };
    let store = open(&dir);
    let (left, right) = (format!("/{name}/left"), format!("/{name}/right"));
    let before = store.get(&left).await.unwrap();
    let number = |value: &[u8]| std::str::from_utf8(value).unwrap().trim().parse::<u64>().unwrap();
    let mut n = before.map_or(0, |entry| number(&entry.value));
    // Bounded: if the parent is gone, so are we. Large values make for many compactions.
    let end = Instant::now() + 2 * PATIENCE;
    while Instant::now() < end {
        n += 1;
        let value = format!("{n:20000}");
        store.commit(&[], &[put(&left, &value), put(&right, &value)]).await.unwrap();
        println!("confirmed {n}");
    }
}

#[tokio::test]
async fn after_kills_everything_confirmed_is_there_and_nothing_is_half() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for round in 0..ROUNDS {
        let name = |n: usize| format!("writer{n}");
        let test = "embedded::processes::writes_until_it_is_killed";
        let from = store.list("/writer0/").await.unwrap().revision + 1;
        let children: Vec<_> = (0..WRITERS).map(|n| child::start(test, dir.path(), &name(n))).collect();
        let mut watch = store.watch("/writer0/", from).await.unwrap();
        in_time(watch.next()).await.unwrap();
        // Any moment will do, and each round takes another.
        tokio::time::sleep(Duration::from_micros(round * 11_003 % 30_000)).await;
        for (n, child) in children.into_iter().enumerate() {
            let said = child::kill(child);
            let confirmed = said
                .lines()
                .filter_map(|line| line.strip_prefix("confirmed ")?.parse::<u64>().ok())
                .next_back();
            let entries = store.list(&format!("/{}/", name(n))).await.unwrap().entries;
            let [left, right] = entries.as_slice() else {
                assert!(entries.is_empty() && confirmed.is_none());
                continue;
            };
            assert_eq!(
                (&left.value, left.version, left.revision),
                (&right.value, right.version, right.revision)
            );
            let value: u64 = std::str::from_utf8(&left.value).unwrap().trim().parse().unwrap();
            assert_eq!(value, left.version);
            assert!(
                confirmed.is_none_or(|confirmed| value == confirmed || value == confirmed + 1),
                "{value} {confirmed:?}"
            );
        }
        // A reader that comes anew sees the same.
        assert_eq!(open(dir.path()).list("/writer1/").await.unwrap(), store.list("/writer1/").await.unwrap());
    }
}

#[tokio::test]
#[ignore = "the other half of of_several_processes_that_want_one_key_one_gets_it"]
async fn claims_all_it_can() {
    let Some((dir, name)) = child::task() else { return };
    let store = open(&dir);
    for n in 0..CLAIMS {
        let key = format!("/claims/{n}");
        let outcome = store.commit(&[Compare::Absent(key.clone())], &[put(&key, &name)]).await.unwrap();
        if matches!(outcome, Outcome::Done { .. }) {
            println!("won {key} {name}");
        }
    }
}

#[tokio::test]
async fn of_several_processes_that_want_one_key_one_gets_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut watch = store.watch("/claims/", 1).await.unwrap();
    let test = "embedded::processes::claims_all_it_can";
    let children: Vec<_> = (0..WRITERS).map(|n| child::start(test, dir.path(), &n.to_string())).collect();
    assert_eq!(events(&mut watch, CLAIMS as usize).await.len(), CLAIMS as usize);
    let mut won = BTreeMap::new();
    for child in children {
        for line in child::finish(child).lines().filter_map(|line| line.strip_prefix("won ")) {
            let (key, name) = line.split_once(' ').unwrap();
            assert_eq!(won.insert(key.to_owned(), name.to_owned()), None, "{key} was won twice");
        }
    }
    let entries = store.list("/claims/").await.unwrap().entries;
    let listed: BTreeMap<_, _> =
        entries.into_iter().map(|entry| (entry.key, String::from_utf8(entry.value).unwrap())).collect();
    assert_eq!((won.len(), won), (CLAIMS as usize, listed));
}

#[tokio::test]
async fn a_watch_reports_what_another_store_writes() {
    let dir = tempfile::tempdir().unwrap();
    let (store, other) = (open(dir.path()), open(dir.path()));
    let mut watch = store.watch("/a/", 1).await.unwrap();
    for n in 0..5 {
        other.commit(&[], &[put("/a/b", &n.to_string())]).await.unwrap();
        assert!(matches!(in_time(watch.next()).await.unwrap(), Watched::Events { .. }));
    }
}

/// A lock that somebody holds for good is a call that fails by its deadline, and the runtime goes on meanwhile.
#[tokio::test]
async fn a_lock_that_stays_is_told_by_the_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.commit(&[], &[put("/a", "1")]).await.unwrap();
    let lock = std::fs::File::open(dir.path().join("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let hurried = store.with_deadline(Duration::from_millis(300));
    let mut ticks = 0;
    let ticking = async {
        loop {
            tokio::time::sleep(Duration::from_millis(5)).await;
            ticks += 1;
        }
    };
    let error = tokio::select! {
        result = hurried.get("/a") => result.unwrap_err(),
        () = ticking => unreachable!(),
    };
    assert!(matches!(error, store::Error::TooLate { .. }), "{error}");
    assert!(ticks > 0, "the runtime stood still");
    drop(lock);
    assert_eq!(store.get("/a").await.unwrap().unwrap().value, b"1");
}

#[tokio::test]
#[ignore = "the other half of a_busy_neighbour_leaves_room"]
async fn writes_without_a_pause() {
    let Some((dir, name)) = child::task() else { return };
    let store = open(&dir);
    let end = Instant::now() + 2 * PATIENCE;
    while Instant::now() < end {
        store.commit(&[], &[put(&format!("/busy/{name}"), "x")]).await.unwrap();
    }
}

/// Processes that take the lock again as soon as they gave it back do not starve others.
#[tokio::test]
async fn a_busy_neighbour_leaves_room() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut watch = store.watch("/busy/", 1).await.unwrap();
    let test = "embedded::processes::writes_without_a_pause";
    let children: Vec<_> = (0..WRITERS).map(|n| child::start(test, dir.path(), &n.to_string())).collect();
    in_time(watch.next()).await.unwrap();
    // A commit that gets no turn ends with an error at the deadline of a call.
    for _ in 0..50 {
        store.commit(&[], &[put("/ours", "x")]).await.unwrap();
    }
    children.into_iter().for_each(|child| drop(child::kill(child)));
}
