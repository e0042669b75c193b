//! Pauses between retries. They grow and are random, so that the nodes of a cluster do not call at the same time when etcd
//! comes back.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

const MIN_PAUSE: Duration = Duration::from_millis(100);
/// Also the time after which a waiting call notices that etcd is back.
const MAX_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(super) fn new() -> Self {
        Self { next: MIN_PAUSE }
    }

    /// Returns between half and all of the current pause.
    pub(super) fn pause(&mut self) -> Duration {
        let full = self.next;
        self.next = (full * 2).min(MAX_PAUSE);
        full / 2 + full.mul_f64(f64::from(random_below(1000)) / 2000.0)
    }
}

/// A random number below `limit`.
pub(super) fn random_below(limit: u32) -> u32 {
    let random = RandomState::new().hash_one(0) % u64::from(limit.max(1));
    u32::try_from(random).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_maximum() {
        let mut backoff = Backoff::new();
        let pauses: Vec<Duration> = (0..8).map(|_| backoff.pause()).collect();
        assert!(pauses[0] >= MIN_PAUSE / 2 && pauses[0] <= MIN_PAUSE);
        assert!(pauses[3] > pauses[0]);
        assert!(pauses.iter().all(|pause| *pause <= MAX_PAUSE), "{pauses:?}");
        assert!(pauses[7] >= MAX_PAUSE / 2);
    }
}
