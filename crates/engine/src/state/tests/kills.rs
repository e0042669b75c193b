//! Processes are killed while they change the state. The next process finds it consistent.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;

/// The environment variable that names the run directory for the child process.
const DIRECTORY_VARIABLE: &str = "PODWIRE_TEST_STATE";
const PROCESSES: u32 = 3;
const ROUNDS: u32 = 30;

#[test]
#[ignore = "child process of c3_after_kills_claims_and_records_are_consistent"]
fn changes_the_state_until_killed() {
    let Some(directory) = std::env::var_os(DIRECTORY_VARIABLE) else { return };
    let network = open(Path::new(&directory));
    let pools = pools("10.0.0.0/27,fd00::/123");
    let pid = std::process::id();
    // Bounded, in case the parent does not kill this process.
    let end = Instant::now() + Duration::from_secs(120);
    for cycle in 0.. {
        let key = key(&format!("p{pid}-{}", cycle % 4));
        let mut held = started(begin(&network, &key, Some(&pools), &[]));
        held.commit().unwrap();
        held.reopen().unwrap();
        held.release(&[]).unwrap();
        if Instant::now() > end {
            return;
        }
    }
}

fn start(state: &TestState) -> Child {
    let name = "state::tests::kills::changes_the_state_until_killed";
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env(DIRECTORY_VARIABLE, state.dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Kills a child process. A child that exited before has failed.
fn kill(mut child: Child) {
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "the child exited: {status}");
}

#[test]
fn c3_after_kills_claims_and_records_are_consistent() {
    let state = TestState::new("10.0.0.0/27,fd00::/123");
    for round in 0..ROUNDS {
        let children: Vec<Child> = (0..PROCESSES).map(|_| start(&state)).collect();
        let is_working = || !state.names("attachments").is_empty();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_working() {
            assert!(Instant::now() < deadline, "no child changed the state");
        }
        // Each round kills at another moment.
        std::thread::sleep(Duration::from_micros(u64::from(round) * 137 % 2000));
        children.into_iter().for_each(kill);

        state.network.repair_if_marked().unwrap();
        state.expect_consistent();
        let remaining = state.network.list().unwrap();
        assert!(remaining.len() <= PROCESSES as usize, "{remaining:?}");
        for listed in remaining {
            state.network.find_stem(&listed.stem).unwrap().unwrap().release(&[]).unwrap();
        }
        state.expect_empty();
    }
    // All addresses of the pool are free again.
    assert_eq!(state.fill("a"), 29);
}
