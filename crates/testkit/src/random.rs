use std::time::{SystemTime, UNIX_EPOCH};

/// True for `make soak`, the long version of the tests.
pub fn is_soak() -> bool {
    std::env::var_os("PODWIRE_SOAK").is_some()
}

/// Reproducible pseudo-random numbers.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Uses the seed in `PODWIRE_SEED` or the clock, and prints it, so that a failure can be reproduced.
    pub fn new(purpose: &str) -> Self {
        Self::with_seed(Self::seed(purpose))
    }

    /// Returns only the seed, for a program with several generators.
    pub fn seed(purpose: &str) -> u64 {
        let now = || {
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| u64::from(since.subsec_nanos()))
        };
        let seed = std::env::var("PODWIRE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(now);
        println!("{purpose}: PODWIRE_SEED={seed}");
        seed
    }

    pub fn with_seed(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// A number below `limit`; the generator is xorshift64*.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % limit
    }

    pub fn coin(&mut self) -> bool {
        self.below(2) == 1
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}
