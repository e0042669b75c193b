//! Pauses between tries: short at first, longer after each, never the same for two nodes, so that a cluster whose etcd
//! comes back does not call all at once.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

const SHORTEST: Duration = Duration::from_millis(100);
/// A call that waits for etcd to come back notices it about so late.
const LONGEST: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(super) fn new() -> Self {
        Self { next: SHORTEST }
    }

    /// Between half of the pause and all of it.
    pub(super) fn pause(&mut self) -> Duration {
        let full = self.next;
        self.next = (full * 2).min(LONGEST);
        full / 2 + full.mul_f64(f64::from(random_below(1000)) / 2000.0)
    }
}

/// Any number below this one, another in each process.
pub(super) fn random_below(limit: u32) -> u32 {
    let random = RandomState::new().hash_one(0) % u64::from(limit.max(1));
    u32::try_from(random).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_have_an_end() {
        let mut backoff = Backoff::new();
        let pauses: Vec<Duration> = (0..8).map(|_| backoff.pause()).collect();
        assert!(pauses[0] >= SHORTEST / 2 && pauses[0] <= SHORTEST);
        assert!(pauses[3] > pauses[0]);
        assert!(pauses.iter().all(|pause| *pause <= LONGEST), "{pauses:?}");
        assert!(pauses[7] >= LONGEST / 2);
    }
}
