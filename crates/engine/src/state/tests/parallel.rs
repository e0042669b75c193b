//! Many at once: nobody gets what somebody else has, and nobody is overlooked.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use super::*;
use crate::state::network::SEARCH;

const THREADS: usize = 16;
const CYCLES: usize = 60;

#[test]
fn c3_sixteen_at_once_never_share_an_address_and_leave_nothing() {
    // Two addresses more than there are threads: they meet all the time.
    let world = World::new("10.0.0.0/27,fd00::/123");
    let held_now = Mutex::new(HashSet::new());
    let work = |thread: usize| {
        for cycle in 0..CYCLES {
            let mut held = world.started(&key(&format!("t{thread}-{cycle}")));
            let mine = ips(&held);
            for ip in &mine {
                assert!(held_now.lock().unwrap().insert(*ip), "{ip} has two owners");
            }
            held.commit().unwrap();
            assert!(mine.iter().all(|ip| world.network.is_claimed_by(*ip, &held).unwrap()));
            for ip in &mine {
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
    world.expect_empty();
    assert_eq!(world.fill("a"), 29);
}

#[test]
fn c3_of_many_that_begin_one_key_exactly_one_does() {
    let world = World::new(DUAL);
    for round in 0..50 {
        let key = key(&format!("c{round}"));
        let together = Barrier::new(4);
        let begun: Vec<Begin> = std::thread::scope(|scope| {
            let begin = || {
                together.wait();
                world.begin(&key).unwrap()
            };
            let all: Vec<_> = (0..4).map(|_| scope.spawn(begin)).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut started: Vec<HeldAttachment> = Vec::new();
        for outcome in begun {
            match outcome {
                Begin::Started(held) => started.push(*held),
                Begin::Exists(RecordPhase::Pending) => {}
                Begin::Exists(RecordPhase::Ready) => panic!("nobody has committed"),
            }
        }
        assert_eq!(started.len(), 1);
        started.pop().unwrap().release(&[]).unwrap();
    }
    world.expect_empty();
}

/// The life of a record, looked at three times at any moments: while it is there it is seen.
#[test]
fn c3_no_rename_hides_a_record_from_a_search() {
    let life = [RecordPhase::Pending, RecordPhase::Ready, RecordPhase::Pending];
    for first in 0..life.len() {
        for second in first..life.len() {
            for third in second..life.len() {
                let seen = [first, second, third].map(|moment| life[moment]);
                let found = SEARCH.iter().zip(seen).any(|(looked_for, there)| *looked_for == there);
                assert!(found, "missed at moments {first}, {second}, {third}");
            }
        }
    }
}

/// A record is renamed by its holder without the network's lock: whoever looks for it meanwhile must not miss it.
#[test]
fn c3_a_record_is_found_while_it_is_renamed() {
    let world = World::new(DUAL);
    let key = key("c1");
    for round in 0..200 {
        let mut held = world.started(&key);
        let (looking, releasing) = (AtomicBool::new(false), AtomicBool::new(false));
        let look = || {
            loop {
                match world.begin(&key).unwrap() {
                    Begin::Started(held) => return *held,
                    Begin::Exists(_) => looking.store(true, Ordering::SeqCst),
                }
            }
        };
        let next = std::thread::scope(|scope| {
            let looker = scope.spawn(|| {
                let held = look();
                assert!(releasing.load(Ordering::SeqCst), "begun beside an attachment that is there");
                held
            });
            while !looking.load(Ordering::SeqCst) && !looker.is_finished() {
                std::hint::spin_loop();
            }
            // The looks of the other thread are microseconds apart: every round meets another moment.
            spin(round % 83);
            held.commit().unwrap();
            spin(round % 61);
            held.reopen().unwrap();
            releasing.store(true, Ordering::SeqCst);
            held.release(&[]).unwrap();
            looker.join().unwrap()
        });
        next.release(&[]).unwrap();
        world.expect_empty();
    }
}

fn spin(microseconds: u64) {
    let end = Instant::now() + Duration::from_micros(microseconds);
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// The repair of one process must not take away the claims of others that commit at this moment.
#[test]
fn c3_a_repair_leaves_the_claims_of_attachments_that_are_being_renamed() {
    let world = World::new("10.0.0.0/24");
    let mut all: Vec<HeldAttachment> =
        (0..100).map(|number| world.started(&key(&format!("c{number}")))).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let repairs = scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                world.mark();
                world.network.settle().unwrap();
            }
        });
        for _ in 0..20 {
            all.iter_mut().for_each(|held| held.commit().unwrap());
            all.iter_mut().for_each(|held| held.reopen().unwrap());
        }
        done.store(true, Ordering::SeqCst);
        repairs.join().unwrap();
    });
    let lost = all.iter().filter(|held| !world.network.is_claimed_by(ips(held)[0], held).unwrap()).count();
    assert_eq!(lost, 0, "claims were taken away");
}

#[test]
fn many_that_find_no_directory_make_one() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("deep/state");
    let together = Barrier::new(8);
    let held: Vec<HeldAttachment> = std::thread::scope(|scope| {
        let start = |number: usize| {
            together.wait();
            let network = open(&state);
            started(begin(&network, &key(&format!("c{number}")), Some(&pools(DUAL)), &[]))
        };
        let all: Vec<_> = (0..8).map(|number| scope.spawn(move || start(number))).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let distinct: BTreeSet<IpAddr> = held.iter().flat_map(ips).collect();
    assert_eq!(distinct.len(), 16);
}
