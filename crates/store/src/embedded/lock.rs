//! One process at a time. The kernel gives the lock back when its holder is killed.
//!
//! There is no flock with a timeout, so whoever waits asks again and again; and whoever has just given the lock back would be
//! quicker to take it again than anybody who waits. Therefore the lock is reached through a gate, which is held while one
//! waits for the lock: all others, the last holder included, queue up before it.

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::fault::{Fault, io_fault};
use super::file;

const PAUSE: Duration = Duration::from_millis(2);
/// Whoever waited for long asks more often than those who come.
const LONG: Duration = Duration::from_millis(100);
const SHORT_PAUSE: Duration = Duration::from_micros(300);

/// Given back when it is dropped. None: others held it until the deadline.
pub(super) fn acquire(dir: &Path, deadline: Instant) -> Result<Option<File>, Fault> {
    let Some(_gate) = take(&dir.join("gate"), deadline)? else { return Ok(None) };
    take(&dir.join("lock"), deadline)
}

fn take(path: &Path, deadline: Instant) -> Result<Option<File>, Fault> {
    let file = file::open_or_create(path)?;
    let begun = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(file)),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(error) => return Err(io_fault("lock", path)(error)),
        }
        let now = Instant::now();
        if now >= deadline {
            return Ok(None);
        }
        let pause = if now - begun < LONG { PAUSE } else { SHORT_PAUSE };
        thread::sleep(pause.min(deadline - now));
    }
}
