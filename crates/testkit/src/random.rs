use std::time::{SystemTime, UNIX_EPOCH};

/// Whether this is `make soak`: the long version of the tests.
pub fn soak() -> bool {
    std::env::var_os("PODWIRE_SOAK").is_some()
}

/// Numbers that look random and can be had again.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// From `PODWIRE_SEED`, else from the clock; printed, so that a failure can be repeated.
    pub fn new(purpose: &str) -> Self {
        Self::with_seed(Self::seed(purpose))
    }

    /// The seed alone, for a program with several generators.
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

    /// Below `limit`; the generator is xorshift64*.
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
