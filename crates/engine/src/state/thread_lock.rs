//! A lock between the threads of this process, taken before a flock(2) that processes share. Waiting for flock(2) with a timeout
//! means polling. Many polling threads slow each other down, so only one thread per process polls.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One entry per lock file that was ever used, that is, one per network.
static LOCKS: LazyLock<Mutex<HashMap<PathBuf, Arc<ThreadLock>>>> = LazyLock::new(Mutex::default);

#[derive(Debug, Default)]
struct ThreadLock {
    taken: Mutex<bool>,
    free: Condvar,
}

/// Releases the lock when it is dropped.
#[derive(Debug)]
pub(super) struct ThreadLockGuard(Arc<ThreadLock>);

impl ThreadLockGuard {
    /// None if other threads held the lock until the timeout.
    pub(super) fn take(path: &Path, timeout: Duration) -> Option<Self> {
        let thread_lock = {
            let mut locks = lock(&LOCKS);
            match locks.get(path) {
                Some(thread_lock) => Arc::clone(thread_lock),
                None => Arc::clone(locks.entry(path.to_owned()).or_default()),
            }
        };
        let waited = thread_lock.free.wait_timeout_while(lock(&thread_lock.taken), timeout, |taken| *taken);
        let (mut taken, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *taken {
            return None;
        }
        *taken = true;
        drop(taken);
        Some(Self(thread_lock))
    }
}

impl Drop for ThreadLockGuard {
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
    fn one_thread_holds_the_lock_and_waiting_times_out() {
        let path = Path::new("/a/lock/of/this/test");
        let guard = ThreadLockGuard::take(path, Duration::ZERO).unwrap();
        assert!(ThreadLockGuard::take(path, Duration::from_millis(1)).is_none());
        assert!(ThreadLockGuard::take(Path::new("/another"), Duration::ZERO).is_some());
        std::thread::scope(|scope| {
            let next = scope.spawn(|| ThreadLockGuard::take(path, Duration::from_secs(20)).is_some());
            drop(guard);
            assert!(next.join().unwrap());
        });
    }
}
