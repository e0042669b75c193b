//! Trying again while the agent restarts: short pauses that grow, up to an end.

use std::time::{Duration, Instant};

use rustix::rand::{GetRandomFlags, getrandom};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

pub(crate) struct Retry {
    end: Instant,
    pause: Duration,
    pub(crate) attempts: u32,
}

impl Retry {
    /// The first attempt is about to be made.
    pub(crate) fn within(timeout: Duration) -> Self {
        Self { end: Instant::now() + timeout, pause: FIRST_PAUSE, attempts: 1 }
    }

    /// Waits before the next attempt. False: there is no time for another one.
    pub(crate) fn again(&mut self) -> bool {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        std::thread::sleep(jittered(self.pause).min(left));
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.attempts += 1;
        true
    }
}

/// Between half of it and all of it: a crowd of plugins that lost their agent at one moment does not come back at one.
fn jittered(pause: Duration) -> Duration {
    let mut byte = [0u8];
    // Without random numbers the pauses are just shorter.
    let _ = getrandom(&mut byte, GetRandomFlags::empty());
    pause / 2 + pause * u32::from(byte[0]) / 510
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_and_pauses_grow_within_bounds() {
        let start = Instant::now();
        let mut retry = Retry::within(Duration::from_millis(100));
        let mut pauses = vec![retry.pause];
        while retry.again() {
            pauses.push(retry.pause);
        }
        assert!(start.elapsed() >= Duration::from_millis(100));
        assert!(pauses.windows(2).all(|two| two[1] == (two[0] * 2).min(LONGEST_PAUSE)), "{pauses:?}");
        assert!(retry.attempts > 1 && retry.attempts as usize == pauses.len(), "{} attempts", retry.attempts);
        for _ in 0..100 {
            let pause = jittered(LONGEST_PAUSE);
            assert!((LONGEST_PAUSE / 2..=LONGEST_PAUSE).contains(&pause), "{pause:?}");
        }
    }

    #[test]
    fn no_timeout_is_one_attempt() {
        assert!(!Retry::within(Duration::ZERO).again());
    }
}
