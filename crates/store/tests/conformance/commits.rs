//! Commits with compares, counters and deadlines, with both backends.

use std::collections::BTreeSet;
use std::time::Duration;

use store::{Change, CommitOutcome, Compare};
use tokio::task::JoinSet;

use super::both;
use crate::common::{Testbed, in_time, put};

both!(
    all_compares_must_hold,
    a_commit_is_atomic,
    concurrent_calls_of_a_counter_get_unique_numbers,
    one_of_two_concurrent_claims_succeeds,
    deleting_a_missing_key_is_no_change,
    a_call_ends_by_its_deadline,
);

fn done(outcome: CommitOutcome) -> u64 {
    match outcome {
        CommitOutcome::Done { revision } => revision,
        CommitOutcome::Refused => panic!("refused"),
    }
}

async fn all_compares_must_hold(testbed: &Testbed) {
    let (store, a, b) = (&testbed.store, testbed.key("a"), testbed.key("b"));
    let change = [put(&a, "1")];
    let (absent, exists) = (Compare::Absent(a.clone()), Compare::Exists(a.clone()));
    assert_eq!(store.commit(std::slice::from_ref(&exists), &change).await.unwrap(), CommitOutcome::Refused);
    let first = done(store.commit(std::slice::from_ref(&absent), &change).await.unwrap());
    assert_eq!(store.commit(std::slice::from_ref(&absent), &change).await.unwrap(), CommitOutcome::Refused);
    let same = Compare::Revision(a.clone(), first);
    let both = [same.clone(), Compare::Exists(b.clone())];
    assert_eq!(store.commit(&both, &[put(&a, "2")]).await.unwrap(), CommitOutcome::Refused);
    let second = done(store.commit(&[same.clone(), Compare::Absent(b)], &[put(&a, "2")]).await.unwrap());
    assert!(second > first);
    assert_eq!(store.commit(&[same], &[put(&a, "3")]).await.unwrap(), CommitOutcome::Refused);
    done(store.commit(&[exists], &[Change::Delete(a.clone())]).await.unwrap());
    done(store.commit(&[absent], &[]).await.unwrap());
    assert_eq!(store.get(&a).await.unwrap(), None);
}

async fn a_commit_is_atomic(testbed: &Testbed) {
    let store = &testbed.store;
    done(store.commit(&[], &[put(&testbed.key("f/old"), "x")]).await.unwrap());
    let changes =
        [put(&testbed.key("f/a"), "1"), Change::Delete(testbed.key("f/old")), put(&testbed.key("f/b"), "2")];
    let revision = done(store.commit(&[], &changes).await.unwrap());
    let listing = store.list(&testbed.key("f/")).await.unwrap();
    assert_eq!(listing.entries.iter().map(|entry| entry.revision).collect::<Vec<_>>(), [revision, revision]);
}

async fn concurrent_calls_of_a_counter_get_unique_numbers(testbed: &Testbed) {
    let mut tasks = JoinSet::new();
    let clients = [testbed.store.clone(), testbed.second_client()];
    for n in 0..50 {
        let (store, key) = (clients[n % 2].clone(), testbed.key("counter"));
        tasks.spawn(async move { store.put_counter(&key).await.unwrap() });
    }
    let numbers: BTreeSet<u64> = in_time(tasks.join_all()).await.into_iter().collect();
    assert_eq!(numbers, (0..50).collect());
}

async fn one_of_two_concurrent_claims_succeeds(testbed: &Testbed) {
    let clients = [testbed.store.clone(), testbed.second_client()];
    for round in 0..20 {
        let key = testbed.key(&format!("claim{round}"));
        let claim = |n: usize| {
            let (store, key) = (clients[n].clone(), key.clone());
            async move {
                store.commit(&[Compare::Absent(key.clone())], &[put(&key, &n.to_string())]).await.unwrap()
            }
        };
        let (zero, one) = tokio::join!(claim(0), claim(1));
        let winner = match (zero, one) {
            (CommitOutcome::Done { .. }, CommitOutcome::Refused) => b"0",
            (CommitOutcome::Refused, CommitOutcome::Done { .. }) => b"1",
            both => panic!("{both:?}"),
        };
        assert_eq!(testbed.store.get(&key).await.unwrap().unwrap().value, winner);
    }
}

async fn deleting_a_missing_key_is_no_change(testbed: &Testbed) {
    let store = &testbed.store;
    let key = testbed.key("a");
    done(store.commit(&[], &[Change::Delete(key.clone())]).await.unwrap());
    let first = done(store.commit(&[], &[put(&key, "1")]).await.unwrap());
    done(store.commit(&[], &[Change::Delete(key.clone())]).await.unwrap());
    let second = done(store.commit(&[], &[put(&key, "1")]).await.unwrap());
    assert!(second > first);
    // A key that is created again starts with version 1.
    assert_eq!(store.get(&key).await.unwrap().unwrap().version, 1);
}

async fn a_call_ends_by_its_deadline(testbed: &Testbed) {
    let error = testbed.store.with_deadline(Duration::ZERO).get(&testbed.key("a")).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert!(error.to_string().starts_with(&format!("cannot read {}: ", testbed.key("a"))), "{error}");
    testbed.store.get(&testbed.key("a")).await.unwrap();
}
