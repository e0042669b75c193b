//! One thread of this process at a time at a lock that processes share. Waiting for flock(2) with an end means asking again
//! and again; sixteen threads that do so keep each other waiting, so only one of them does.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One for every lock file that was ever wanted: as many as there are networks.
static GATES: LazyLock<Mutex<HashMap<PathBuf, Arc<Gate>>>> = LazyLock::new(Mutex::default);

#[derive(Debug, Default)]
struct Gate {
    taken: Mutex<bool>,
    free: Condvar,
}

/// The way through; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Pass(Arc<Gate>);

impl Pass {
    /// None: others took longer than that.
    pub(super) fn take(path: &Path, timeout: Duration) -> Option<Self> {
        let gate = {
            let mut gates = lock(&GATES);
            match gates.get(path) {
                Some(gate) => Arc::clone(gate),
                None => Arc::clone(gates.entry(path.to_owned()).or_default()),
            }
        };
        let waited = gate.free.wait_timeout_while(lock(&gate.taken), timeout, |taken| *taken);
        let (mut taken, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *taken {
            return None;
        }
        *taken = true;
        drop(taken);
        Some(Self(gate))
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        *lock(&self.0.taken) = false;
        self.0.free.notify_one();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_a_wait_has_an_end() {
        let path = Path::new("/a/gate/of/this/test");
        let pass = Pass::take(path, Duration::ZERO).unwrap();
        assert!(Pass::take(path, Duration::from_millis(1)).is_none());
        assert!(Pass::take(Path::new("/another"), Duration::ZERO).is_some());
        std::thread::scope(|scope| {
            let next = scope.spawn(|| Pass::take(path, Duration::from_secs(20)).is_some());
            drop(pass);
            assert!(next.join().unwrap());
        });
    }
}
