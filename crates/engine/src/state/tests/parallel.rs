//! Concurrent attachments: no address is assigned twice, and no record is missed.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use super::*;
use crate::state::network::SEARCH_ORDER;

const THREADS: usize = 16;
const CYCLES: usize = 60;

#[test]
fn c3_sixteen_threads_never_share_an_address() {
    // Only a few addresses more than threads, so conflicts are frequent.
    let state = TestState::new("10.0.0.0/27,fd00::/123");
    let held_now = Mutex::new(HashSet::new());
    let work = |thread: usize| {
        for cycle in 0..CYCLES {
            let mut held = state.started(&key(&format!("t{thread}-{cycle}")));
            let own_ips = ips(&held);
            for ip in &own_ips {
                assert!(held_now.lock().unwrap().insert(*ip), "{ip} has two owners");
            }
            held.commit().unwrap();
            assert!(own_ips.iter().all(|ip| state.network.is_claimed_by(*ip, &held).unwrap()));
            for ip in &own_ips {
                held_now.lock().unwrap().remove(ip);
            }
            held.release(&[]).unwrap();
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || work(thread));
        }
    });
    state.expect_empty();
    assert_eq!(state.fill("a"), 29);
}

#[test]
fn c3_only_one_of_several_threads_begins_a_key() {
    let state = TestState::new(DUAL);
    for round in 0..50 {
        let key = key(&format!("c{round}"));
        let barrier = Barrier::new(4);
        let begun: Vec<Begin> = std::thread::scope(|scope| {
            let begin = || {
                barrier.wait();
                state.begin(&key).unwrap()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(begin)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut started: Vec<HeldAttachment> = Vec::new();
        for outcome in begun {
            match outcome {
                Begin::Started(held) => started.push(*held),
                Begin::Exists(RecordPhase::Pending) => {}
                Begin::Exists(RecordPhase::Ready) => panic!("no thread has committed"),
            }
        }
        assert_eq!(started.len(), 1);
        started.pop().unwrap().release(&[]).unwrap();
    }
    state.expect_empty();
}

/// Three lookups at any moments of a record's lifecycle find it.
#[test]
fn c3_no_rename_hides_a_record_from_a_search() {
    let phases = [RecordPhase::Pending, RecordPhase::Ready, RecordPhase::Pending];
    for first in 0..phases.len() {
        for second in first..phases.len() {
            for third in second..phases.len() {
                let current = [first, second, third].map(|moment| phases[moment]);
                let is_found = SEARCH_ORDER.iter().zip(current).any(|(searched, phase)| *searched == phase);
                assert!(is_found, "missed at moments {first}, {second}, {third}");
            }
        }
    }
}

/// The holder renames a record without the network's lock. A concurrent search must not miss it.
#[test]
fn c3_a_record_is_found_while_it_is_renamed() {
    let state = TestState::new(DUAL);
    let key = key("c1");
    for round in 0..200 {
        let mut held = state.started(&key);
        let (searching, releasing) = (AtomicBool::new(false), AtomicBool::new(false));
        let search = || {
            loop {
                match state.begin(&key).unwrap() {
                    Begin::Started(held) => return *held,
                    Begin::Exists(_) => searching.store(true, Ordering::SeqCst),
                }
            }
        };
        let next = std::thread::scope(|scope| {
            let searcher = scope.spawn(|| {
                let held = search();
                assert!(releasing.load(Ordering::SeqCst), "begun although the record exists");
                held
            });
            while !searching.load(Ordering::SeqCst) && !searcher.is_finished() {
                std::hint::spin_loop();
            }
            // The lookups of the other thread are microseconds apart. Every round hits another moment.
            spin(round % 83);
            held.commit().unwrap();
            spin(round % 61);
            held.reopen().unwrap();
            releasing.store(true, Ordering::SeqCst);
            held.release(&[]).unwrap();
            searcher.join().unwrap()
        });
        next.release(&[]).unwrap();
        state.expect_empty();
    }
}

fn spin(microseconds: u64) {
    let end = Instant::now() + Duration::from_micros(microseconds);
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// A repair must not remove claims of attachments that other processes commit at the same time.
#[test]
fn c3_a_repair_keeps_claims_of_concurrently_renamed_records() {
    let state = TestState::new("10.0.0.0/24");
    let mut all: Vec<HeldAttachment> =
        (0..100).map(|number| state.started(&key(&format!("c{number}")))).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let repairs = scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                state.mark();
                state.network.repair_if_marked().unwrap();
            }
        });
        for _ in 0..20 {
            all.iter_mut().for_each(|held| held.commit().unwrap());
            all.iter_mut().for_each(|held| held.reopen().unwrap());
        }
        done.store(true, Ordering::SeqCst);
        repairs.join().unwrap();
    });
    let lost = all.iter().filter(|held| !state.network.is_claimed_by(ips(held)[0], held).unwrap()).count();
    assert_eq!(lost, 0, "the repair removed claims");
}

#[test]
fn concurrent_first_calls_create_one_directory() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("deep/state");
    let barrier = Barrier::new(8);
    let held: Vec<HeldAttachment> = std::thread::scope(|scope| {
        let start = |number: usize| {
            barrier.wait();
            let network = open(&state);
            started(begin(&network, &key(&format!("c{number}")), Some(&pools(DUAL)), &[]))
        };
        let threads: Vec<_> = (0..8).map(|number| scope.spawn(move || start(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let distinct: BTreeSet<IpAddr> = held.iter().flat_map(ips).collect();
    assert_eq!(distinct.len(), 16);
}
