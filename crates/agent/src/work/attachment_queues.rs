//! Orders the requests of each attachment: they are served one after the other, in order of arrival.
//!
//! They have different request classes, so a worker may take a request before an earlier one is done. It waits here. A DEL does
//! not wait for an ADD that has not started. It cancels the ADD, which then fails.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use types::AttachmentKey;

/// Why a request was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CancelReason {
    HungUp,
    Deleted,
}

/// Shared by a request, its client's connection and a DEL that cancels it. The first reason wins.
#[derive(Debug, Default)]
pub(crate) struct Cancel(AtomicU8);

impl Cancel {
    pub(crate) fn set(&self, reason: CancelReason) {
        let number = match reason {
            CancelReason::HungUp => 1,
            CancelReason::Deleted => 2,
        };
        // Fails if another reason was set first.
        let _ = self.0.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Option<CancelReason> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            1 => Some(CancelReason::HungUp),
            _ => Some(CancelReason::Deleted),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestPurpose {
    Add,
    Del,
    Check,
}

/// Why a slot could not be taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SlotError {
    Cancelled(CancelReason),
    /// An earlier request of the attachment takes too long.
    Busy,
}

#[derive(Debug)]
struct QueuedRequest {
    purpose: RequestPurpose,
    cancel: Arc<Cancel>,
}

impl QueuedRequest {
    fn is_cancelled_add(&self) -> bool {
        self.purpose == RequestPurpose::Add && self.cancel.get().is_some()
    }
}

/// The requests of one attachment.
#[derive(Debug, Default)]
struct AttachmentQueue {
    running: Option<Arc<QueuedRequest>>,
    waiting: VecDeque<Arc<QueuedRequest>>,
}

#[derive(Debug, Default)]
pub(crate) struct AttachmentQueues {
    by_key: Mutex<HashMap<AttachmentKey, AttachmentQueue>>,
    changed: Condvar,
}

/// A request's position in the queue of its attachment. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct QueueSlot {
    queues: Arc<AttachmentQueues>,
    key: AttachmentKey,
    request: Arc<QueuedRequest>,
}

impl AttachmentQueues {
    /// Joins at the end. A DEL cancels all earlier ADDs.
    pub(crate) fn join(
        self: &Arc<Self>,
        key: AttachmentKey,
        purpose: RequestPurpose,
        cancel: Arc<Cancel>,
    ) -> QueueSlot {
        let request = Arc::new(QueuedRequest { purpose, cancel });
        let mut all = self.lock();
        let queue = all.entry(key.clone()).or_default();
        if purpose == RequestPurpose::Del {
            queue.waiting.iter().chain(&queue.running).for_each(|earlier| cancel_add(earlier));
        }
        queue.waiting.push_back(Arc::clone(&request));
        drop(all);
        self.changed.notify_all();
        QueueSlot { queues: Arc::clone(self), key, request }
    }

    /// Joins at the front, for the DEL of a tombstone. Waiting requests arrived after the tombstone and are served after it. A
    /// running ADD started before the tombstone was written and is cancelled.
    pub(crate) fn join_first(self: &Arc<Self>, key: AttachmentKey) -> QueueSlot {
        let request = Arc::new(QueuedRequest { purpose: RequestPurpose::Del, cancel: Arc::default() });
        let mut all = self.lock();
        let queue = all.entry(key.clone()).or_default();
        queue.running.iter().for_each(|running| cancel_add(running));
        queue.waiting.push_front(Arc::clone(&request));
        drop(all);
        QueueSlot { queues: Arc::clone(self), key, request }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AttachmentKey, AttachmentQueue>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cancel_add(request: &QueuedRequest) {
    if request.purpose == RequestPurpose::Add {
        request.cancel.set(CancelReason::Deleted);
    }
}

impl QueueSlot {
    /// Waits until all earlier requests of the attachment are done.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<(), SlotError> {
        let deadline = Instant::now() + timeout;
        let mut all = self.queues.lock();
        loop {
            if let Some(reason) = self.request.cancel.get() {
                return Err(SlotError::Cancelled(reason));
            }
            let queue = all.entry(self.key.clone()).or_default();
            if queue.running.is_none() && self.is_first(queue) {
                queue.waiting.retain(|request| !Arc::ptr_eq(request, &self.request));
                queue.running = Some(Arc::clone(&self.request));
                return Ok(());
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining == Duration::ZERO {
                return Err(SlotError::Busy);
            }
            let woken = self.queues.changed.wait_timeout(all, remaining);
            all = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// ADDs that were cancelled before they started are skipped.
    fn is_first(&self, queue: &AttachmentQueue) -> bool {
        queue
            .waiting
            .iter()
            .find(|request| !request.is_cancelled_add())
            .is_some_and(|first| Arc::ptr_eq(first, &self.request))
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        let mut all = self.queues.lock();
        if let Some(queue) = all.get_mut(&self.key) {
            queue.waiting.retain(|request| !Arc::ptr_eq(request, &self.request));
            queue.running.take_if(|running| Arc::ptr_eq(running, &self.request));
            if queue.running.is_none() && queue.waiting.is_empty() {
                all.remove(&self.key);
            }
        }
        drop(all);
        self.queues.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    const TEST_TIMEOUT: Duration = Duration::from_secs(60);
    const NO_WAIT: Duration = Duration::ZERO;

    fn key(container: &str) -> AttachmentKey {
        AttachmentKey {
            network: "net".try_into().unwrap(),
            container: container.try_into().unwrap(),
            ifname: "eth0".try_into().unwrap(),
        }
    }

    fn join(queues: &Arc<AttachmentQueues>, purpose: RequestPurpose) -> QueueSlot {
        queues.join(key("a"), purpose, Arc::default())
    }

    #[test]
    fn requests_of_one_attachment_are_served_in_order() {
        let queues = Arc::new(AttachmentQueues::default());
        let (first, second) = (join(&queues, RequestPurpose::Add), join(&queues, RequestPurpose::Check));
        assert_eq!(second.wait(NO_WAIT), Err(SlotError::Busy));
        first.wait(NO_WAIT).unwrap();
        assert_eq!(second.wait(NO_WAIT), Err(SlotError::Busy));
        drop(first);
        second.wait(NO_WAIT).unwrap();
        drop(second);
        assert!(queues.lock().is_empty());
    }

    #[test]
    fn other_attachments_do_not_wait() {
        let queues = Arc::new(AttachmentQueues::default());
        let first = join(&queues, RequestPurpose::Add);
        first.wait(NO_WAIT).unwrap();
        queues.join(key("b"), RequestPurpose::Add, Arc::default()).wait(NO_WAIT).unwrap();
    }

    #[test]
    fn a_del_cancels_a_running_add_and_waits_for_it() {
        let queues = Arc::new(AttachmentQueues::default());
        let add = join(&queues, RequestPurpose::Add);
        add.wait(NO_WAIT).unwrap();
        assert_eq!(add.request.cancel.get(), None);
        let del = join(&queues, RequestPurpose::Del);
        assert_eq!(add.request.cancel.get(), Some(CancelReason::Deleted));
        let (started, received) = mpsc::channel();
        let waiting = thread::spawn(move || {
            del.wait(TEST_TIMEOUT).unwrap();
            started.send(()).unwrap();
        });
        assert!(received.try_recv().is_err());
        drop(add);
        received.recv_timeout(TEST_TIMEOUT).unwrap();
        waiting.join().unwrap();
    }

    #[test]
    fn a_del_does_not_wait_for_an_add_that_has_not_started() {
        let queues = Arc::new(AttachmentQueues::default());
        let (add, del) = (join(&queues, RequestPurpose::Add), join(&queues, RequestPurpose::Del));
        del.wait(NO_WAIT).unwrap();
        assert_eq!(add.wait(NO_WAIT), Err(SlotError::Cancelled(CancelReason::Deleted)));
    }

    #[test]
    fn an_add_after_a_del_waits_for_it_and_is_not_cancelled() {
        let queues = Arc::new(AttachmentQueues::default());
        let (del, add) = (join(&queues, RequestPurpose::Del), join(&queues, RequestPurpose::Add));
        assert_eq!(add.wait(NO_WAIT), Err(SlotError::Busy));
        drop(del);
        add.wait(NO_WAIT).unwrap();
    }

    #[test]
    fn a_tombstone_precedes_waiting_requests_and_cancels_the_running_add() {
        let queues = Arc::new(AttachmentQueues::default());
        let (running, waiting) = (join(&queues, RequestPurpose::Add), join(&queues, RequestPurpose::Add));
        running.wait(NO_WAIT).unwrap();
        let tombstone = queues.join_first(key("a"));
        assert_eq!(running.request.cancel.get(), Some(CancelReason::Deleted));
        assert_eq!(waiting.request.cancel.get(), None);
        drop(running);
        assert_eq!(waiting.wait(NO_WAIT), Err(SlotError::Busy));
        tombstone.wait(NO_WAIT).unwrap();
        drop(tombstone);
        waiting.wait(NO_WAIT).unwrap();
    }

    #[test]
    fn requests_of_one_attachment_never_run_concurrently() {
        let queues = Arc::new(AttachmentQueues::default());
        let inside = Arc::new(Mutex::new(()));
        let all: Vec<_> = (0..8)
            .map(|_| {
                let (queues, inside) = (Arc::clone(&queues), Arc::clone(&inside));
                thread::spawn(move || {
                    for _ in 0..200 {
                        let slot = join(&queues, RequestPurpose::Check);
                        slot.wait(TEST_TIMEOUT).unwrap();
                        drop(inside.try_lock().unwrap());
                    }
                })
            })
            .collect();
        all.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(queues.lock().is_empty());
    }
}
