//! Retries with growing pauses until a deadline.

use std::time::{Duration, Instant};

use rustix::rand::{GetRandomFlags, getrandom};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_millis(200);

pub(crate) struct Retry {
    deadline: Instant,
    pause: Duration,
    pub(crate) attempts: u32,
}

impl Retry {
    /// Counts the first attempt, which the caller makes next.
    pub(crate) fn within(timeout: Duration) -> Self {
        Self { deadline: Instant::now() + timeout, pause: FIRST_PAUSE, attempts: 1 }
    }

    /// Waits before the next attempt. Returns false after the deadline.
    pub(crate) fn wait(&mut self) -> bool {
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return false;
        }
        std::thread::sleep(jittered(self.pause).min(remaining));
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        self.attempts += 1;
        true
    }
}

/// 50 to 100 % of the pause, so that plugins that lost the agent at the same time do not retry at the same time.
fn jittered(pause: Duration) -> Duration {
    let mut byte = [0u8];
    // Without random numbers the pauses are only shorter.
    let _ = getrandom(&mut byte, GetRandomFlags::empty());
    pause / 2 + pause * u32::from(byte[0]) / 510
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_maximum_until_the_deadline() {
        let start = Instant::now();
        let mut retry = Retry::within(Duration::from_millis(100));
        let mut pauses = vec![retry.pause];
        while retry.wait() {
            pauses.push(retry.pause);
        }
        assert!(start.elapsed() >= Duration::from_millis(100));
        assert!(pauses.windows(2).all(|pair| pair[1] == (pair[0] * 2).min(MAX_PAUSE)), "{pauses:?}");
        assert!(retry.attempts > 1 && retry.attempts as usize == pauses.len(), "{} attempts", retry.attempts);
        for _ in 0..100 {
            let pause = jittered(MAX_PAUSE);
            assert!((MAX_PAUSE / 2..=MAX_PAUSE).contains(&pause), "{pause:?}");
        }
    }

    #[test]
    fn a_timeout_of_zero_allows_one_attempt() {
        assert!(!Retry::within(Duration::ZERO).wait());
    }
}
