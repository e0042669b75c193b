//! Inputs of threads that sleep in poll(2): the latest value is in a slot, and one eventfd per thread wakes the thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, PoisonError, RwLock};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// Wakes one thread. Clones wake the same thread.
#[derive(Debug, Clone)]
pub(crate) struct Waker(Arc<OwnedFd>);

impl Waker {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    pub(crate) fn wake(&self) {
        // Fails only if the counter is at its maximum. The thread wakes up in that case, too.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Call it in the thread before it reads its input.
    pub(crate) fn clear(&self) {
        // Fails if `wake` was not called.
        let _ = rustix::io::read(&*self.0, &mut [0; 8]);
    }

    #[cfg(test)]
    pub(crate) fn is_awake(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(self, PollFlags::IN)], Some(&now)).unwrap() > 0
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The latest value of an input. Threads that read it are woken when it changes.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    value: RwLock<T>,
    readers: Vec<Waker>,
}

impl<T: Clone + PartialEq> Slot<T> {
    pub(crate) fn new(value: T, readers: Vec<Waker>) -> Self {
        Self { value: RwLock::new(value), readers }
    }

    pub(crate) fn get(&self) -> T {
        self.value.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, value: T) {
        {
            let mut current = self.value.write().unwrap_or_else(PoisonError::into_inner);
            if *current == value {
                return;
            }
            *current = value;
        }
        self.readers.iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_are_woken_once_per_changed_value() {
        let (one, other) = (Waker::new().unwrap(), Waker::new().unwrap());
        let slot = Slot::new(1, vec![one.clone(), other.clone()]);
        slot.set(1);
        assert!(!one.is_awake() && !other.is_awake());
        slot.set(2);
        assert!(one.is_awake() && other.is_awake() && slot.get() == 2);
        one.clear();
        assert!(!one.is_awake() && other.is_awake());
    }
}
