//! Whose turn it is: requests about one attachment are served one after the other, in the order of their arrival.
//!
//! They wait in different lanes of the queue, so a worker that takes one may find that an earlier one is not done yet; it
//! waits here. A DEL does not wait for an ADD that nobody has begun: it cancels it, and the ADD finds that out.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use types::AttachmentKey;

/// Why a request is not wanted any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unwanted {
    HungUp,
    Deleted,
}

/// Shared by a request, its client's connection, and a DEL that overtakes it. The first reason stays.
#[derive(Debug, Default)]
pub(crate) struct Cancel(AtomicU8);

impl Cancel {
    pub(crate) fn set(&self, why: Unwanted) {
        let number = match why {
            Unwanted::HungUp => 1,
            Unwanted::Deleted => 2,
        };
        // Another reason was first: that one stays.
        let _ = self.0.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Option<Unwanted> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            1 => Some(Unwanted::HungUp),
            _ => Some(Unwanted::Deleted),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestPurpose {
    Add,
    Del,
    Look,
}

/// Why a turn did not come.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoTurn {
    Unwanted(Unwanted),
    /// An earlier request of the attachment takes too long.
    Busy,
}

#[derive(Debug)]
struct QueuedRequest {
    purpose: RequestPurpose,
    cancel: Arc<Cancel>,
}

impl QueuedRequest {
    fn is_dead(&self) -> bool {
        self.purpose == RequestPurpose::Add && self.cancel.get().is_some()
    }
}

/// The requests about one attachment.
#[derive(Debug, Default)]
struct AttachmentQueue {
    running: Option<Arc<QueuedRequest>>,
    waiting: VecDeque<Arc<QueuedRequest>>,
}

#[derive(Debug, Default)]
pub(crate) struct Turns {
    lines: Mutex<HashMap<AttachmentKey, AttachmentQueue>>,
    moved: Condvar,
}

/// A place in the line, given back when dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Arc<Turns>,
    key: AttachmentKey,
    claim: Arc<QueuedRequest>,
}

impl Turns {
    /// Takes the last place. A DEL cancels every ADD before it.
    pub(crate) fn join(
        self: &Arc<Self>,
        key: AttachmentKey,
        purpose: RequestPurpose,
        cancel: Arc<Cancel>,
    ) -> Turn {
        let claim = Arc::new(QueuedRequest { purpose, cancel });
        let mut lines = self.lock();
        let line = lines.entry(key.clone()).or_default();
        if purpose == RequestPurpose::Del {
            line.waiting.iter().chain(&line.running).for_each(|earlier| cancel_add(earlier));
        }
        line.waiting.push_back(Arc::clone(&claim));
        drop(lines);
        self.moved.notify_all();
        Turn { turns: Arc::clone(self), key, claim }
    }

    /// Takes the first place, for the DEL of a tombstone: whoever waits found it there, and comes after it. One who
    /// works already began before it was left, and is cancelled.
    pub(crate) fn cut_in(self: &Arc<Self>, key: AttachmentKey) -> Turn {
        let claim = Arc::new(QueuedRequest { purpose: RequestPurpose::Del, cancel: Arc::default() });
        let mut lines = self.lock();
        let line = lines.entry(key.clone()).or_default();
        line.running.iter().for_each(|running| cancel_add(running));
        line.waiting.push_front(Arc::clone(&claim));
        drop(lines);
        Turn { turns: Arc::clone(self), key, claim }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AttachmentKey, AttachmentQueue>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cancel_add(claim: &QueuedRequest) {
    if claim.purpose == RequestPurpose::Add {
        claim.cancel.set(Unwanted::Deleted);
    }
}

impl Turn {
    /// Waits until all that came before is done.
    pub(crate) fn begin(&self, timeout: Duration) -> Result<(), NoTurn> {
        let deadline = Instant::now() + timeout;
        let mut lines = self.turns.lock();
        loop {
            if let Some(why) = self.claim.cancel.get() {
                return Err(NoTurn::Unwanted(why));
            }
            let line = lines.entry(self.key.clone()).or_default();
            if line.running.is_none() && self.is_first(line) {
                line.waiting.retain(|claim| !Arc::ptr_eq(claim, &self.claim));
                line.running = Some(Arc::clone(&self.claim));
                return Ok(());
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining == Duration::ZERO {
                return Err(NoTurn::Busy);
            }
            let woken = self.turns.moved.wait_timeout(lines, remaining);
            lines = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// ADDs that were cancelled before they began never will.
    fn is_first(&self, line: &AttachmentQueue) -> bool {
        line.waiting
            .iter()
            .find(|claim| !claim.is_dead())
            .is_some_and(|first| Arc::ptr_eq(first, &self.claim))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut lines = self.turns.lock();
        if let Some(line) = lines.get_mut(&self.key) {
            line.waiting.retain(|claim| !Arc::ptr_eq(claim, &self.claim));
            line.running.take_if(|running| Arc::ptr_eq(running, &self.claim));
            if line.running.is_none() && line.waiting.is_empty() {
                lines.remove(&self.key);
            }
        }
        drop(lines);
        self.turns.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    const SOON: Duration = Duration::from_secs(60);
    const AT_ONCE: Duration = Duration::ZERO;

    fn key(container: &str) -> AttachmentKey {
        AttachmentKey {
            network: "net".try_into().unwrap(),
            container: container.try_into().unwrap(),
            ifname: "eth0".try_into().unwrap(),
        }
    }

    fn join(turns: &Arc<Turns>, purpose: RequestPurpose) -> Turn {
        turns.join(key("a"), purpose, Arc::default())
    }

    #[test]
    fn one_after_the_other_in_the_order_of_arrival() {
        let turns = Arc::new(Turns::default());
        let (first, second) = (join(&turns, RequestPurpose::Add), join(&turns, RequestPurpose::Look));
        assert_eq!(second.begin(AT_ONCE), Err(NoTurn::Busy));
        first.begin(AT_ONCE).unwrap();
        assert_eq!(second.begin(AT_ONCE), Err(NoTurn::Busy));
        drop(first);
        second.begin(AT_ONCE).unwrap();
        drop(second);
        assert!(turns.lock().is_empty());
    }

    #[test]
    fn other_attachments_do_not_wait() {
        let turns = Arc::new(Turns::default());
        let first = join(&turns, RequestPurpose::Add);
        first.begin(AT_ONCE).unwrap();
        turns.join(key("b"), RequestPurpose::Add, Arc::default()).begin(AT_ONCE).unwrap();
    }

    #[test]
    fn a_del_cancels_the_add_that_works_and_waits_for_its_end() {
        let turns = Arc::new(Turns::default());
        let add = join(&turns, RequestPurpose::Add);
        add.begin(AT_ONCE).unwrap();
        assert_eq!(add.claim.cancel.get(), None);
        let del = join(&turns, RequestPurpose::Del);
        assert_eq!(add.claim.cancel.get(), Some(Unwanted::Deleted));
        let (begun, observed) = mpsc::channel();
        let waiting = thread::spawn(move || {
            del.begin(SOON).unwrap();
            begun.send(()).unwrap();
        });
        assert!(observed.try_recv().is_err());
        drop(add);
        observed.recv_timeout(SOON).unwrap();
        waiting.join().unwrap();
    }

    #[test]
    fn a_del_does_not_wait_for_an_add_that_nobody_began() {
        let turns = Arc::new(Turns::default());
        let (add, del) = (join(&turns, RequestPurpose::Add), join(&turns, RequestPurpose::Del));
        del.begin(AT_ONCE).unwrap();
        assert_eq!(add.begin(AT_ONCE), Err(NoTurn::Unwanted(Unwanted::Deleted)));
    }

    #[test]
    fn an_add_after_a_del_waits_for_it_and_is_not_cancelled() {
        let turns = Arc::new(Turns::default());
        let (del, add) = (join(&turns, RequestPurpose::Del), join(&turns, RequestPurpose::Add));
        assert_eq!(add.begin(AT_ONCE), Err(NoTurn::Busy));
        drop(del);
        add.begin(AT_ONCE).unwrap();
    }

    #[test]
    fn a_tombstone_goes_before_those_who_wait_and_cancels_who_works() {
        let turns = Arc::new(Turns::default());
        let (working, waiting) = (join(&turns, RequestPurpose::Add), join(&turns, RequestPurpose::Add));
        working.begin(AT_ONCE).unwrap();
        let tombstone = turns.cut_in(key("a"));
        assert_eq!(working.claim.cancel.get(), Some(Unwanted::Deleted));
        assert_eq!(waiting.claim.cancel.get(), None);
        drop(working);
        assert_eq!(waiting.begin(AT_ONCE), Err(NoTurn::Busy));
        tombstone.begin(AT_ONCE).unwrap();
        drop(tombstone);
        waiting.begin(AT_ONCE).unwrap();
    }

    #[test]
    fn many_threads_never_work_on_one_attachment_together() {
        let turns = Arc::new(Turns::default());
        let inside = Arc::new(Mutex::new(()));
        let all: Vec<_> = (0..8)
            .map(|_| {
                let (turns, inside) = (Arc::clone(&turns), Arc::clone(&inside));
                thread::spawn(move || {
                    for _ in 0..200 {
                        let turn = join(&turns, RequestPurpose::Look);
                        turn.begin(SOON).unwrap();
                        drop(inside.try_lock().unwrap());
                    }
                })
            })
            .collect();
        all.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(turns.lock().is_empty());
    }
}
