//! Processes that are killed while they work on the state: the next one finds it consistent.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;

/// Tells the test below, run as a process of its own, which directory to work on.
const DIRECTORY: &str = "PODWIRE_TEST_STATE";
const PROCESSES: u32 = 3;
const ROUNDS: u32 = 30;

#[test]
#[ignore = "the other half of c3_after_kills_every_claim_has_its_record_and_every_record_its_claims"]
fn works_until_it_is_killed() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let network = open(Path::new(&directory));
    let pools = pools("10.0.0.0/27,fd00::/123");
    let pid = std::process::id();
    // Bounded: if the parent is gone, so are we.
    let end = Instant::now() + Duration::from_secs(120);
    for cycle in 0.. {
        let held = started(begin(&network, &key(&format!("p{pid}-{}", cycle % 4)), Some(&pools), &[]));
        let mut held = held;
        held.commit().unwrap();
        held.reopen().unwrap();
        held.release(&[]).unwrap();
        if Instant::now() > end {
            return;
        }
    }
}

fn start(world: &World) -> Child {
    let name = "state::tests::kills::works_until_it_is_killed";
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env(DIRECTORY, world.dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Ends a process that we started; one that had ended by itself has found something wrong.
fn kill(mut child: Child) {
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "it ended by itself: {status}");
}

#[test]
fn c3_after_kills_every_claim_has_its_record_and_every_record_its_claims() {
    let world = World::new("10.0.0.0/27,fd00::/123");
    for round in 0..ROUNDS {
        let children: Vec<Child> = (0..PROCESSES).map(|_| start(&world)).collect();
        let at_work = || world.names("attachments").iter().any(|name| !name.starts_with("left"));
        let timeout = Instant::now() + Duration::from_secs(60);
        while !at_work() {
            assert!(Instant::now() < timeout, "nobody began to work");
        }
        // Any moment will do, and each round takes another.
        std::thread::sleep(Duration::from_micros(u64::from(round) * 137 % 2000));
        children.into_iter().for_each(kill);

        world.network.settle().unwrap();
        world.expect_consistent();
        let left = world.network.list().unwrap();
        assert!(left.len() <= PROCESSES as usize, "{left:?}");
        for listed in left {
            world.network.find_stem(&listed.stem).unwrap().unwrap().release(&[]).unwrap();
        }
        world.expect_empty();
    }
    assert_eq!(world.fill("a"), 29);
}
