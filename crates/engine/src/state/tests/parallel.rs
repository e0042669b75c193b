//! Many at once: nobody gets what somebody else has, and nobody is overlooked.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};

use super::*;

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
            held.release().unwrap();
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
        let mut started: Vec<Held> = Vec::new();
        for outcome in begun {
            match outcome {
                Begin::Started(held) => started.push(*held),
                Begin::Exists(Phase::Pending) => {}
                Begin::Exists(Phase::Ready) => panic!("nobody has committed"),
            }
        }
        assert_eq!(started.len(), 1);
        started.pop().unwrap().release().unwrap();
    }
    world.expect_empty();
}

/// A record is renamed by its holder without the network's lock: whoever looks for it meanwhile must not miss it.
#[test]
fn c3_a_record_is_found_while_it_is_renamed() {
    let world = World::new(DUAL);
    let key = key("c1");
    for _ in 0..400 {
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
            held.commit().unwrap();
            held.reopen().unwrap();
            releasing.store(true, Ordering::SeqCst);
            held.release().unwrap();
            looker.join().unwrap()
        });
        next.release().unwrap();
        world.expect_empty();
    }
}

/// The repair of one process must not take away the claims of another that commits at this moment.
#[test]
fn c3_a_repair_leaves_the_claims_of_attachments_that_are_being_renamed() {
    let world = World::new("10.0.0.0/24");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                world.mark();
                world.network.settle().unwrap();
            }
        });
        let lives = || {
            for round in 0..300 {
                let mut held = world.started(&key(&format!("c{round}")));
                held.commit().unwrap();
                held.reopen().unwrap();
                assert!(
                    world.network.is_claimed_by(ips(&held)[0], &held).unwrap(),
                    "its claim was taken away"
                );
                held.release().unwrap();
            }
        };
        let outcome = scope.spawn(lives).join();
        done.store(true, Ordering::SeqCst);
        outcome.unwrap();
    });
    world.network.settle().unwrap();
    world.expect_empty();
}

#[test]
fn many_that_find_no_folder_make_one() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("deep/state");
    let together = Barrier::new(8);
    let held: Vec<Held> = std::thread::scope(|scope| {
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
