//! Deleting a link. The kernel holds the caller for a grace period, some 20 ms, but the link, its routes and its name are
//! gone after one, and it announces that. So one thread sends the request and sits out the rest, and another listens
//! on the same socket:
//!
//! ```text
//!   worker: send RTM_DELLINK ──────────── grace period ────────────▶ (done)
//!   caller: ······· hears "gone" ▶ carries on ······················ answer
//! ```

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::Builder;
use std::time::Duration;

use netlink_packet_core::NLM_F_ECHO;
use rustix::io::Errno;

use crate::error::Error;
use crate::header::LinkHeader;
use crate::op::Op;
use crate::rtsocket::RtSocket;
use crate::socket::{Content, Sender, Socket};
use crate::wire::{Batch, Head, NLM_F_ACK, NLM_F_REQUEST, Oversize};

/// So many threads may sit out grace periods after their callers were let go.
const MOST: usize = 128;

/// All they do is one system call.
const STACK: usize = 64 * 1024;

static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// More than can be deleted before the news of it are read.
const REMEMBERED: usize = 1024;

static DELETED: Mutex<VecDeque<u32>> = Mutex::new(VecDeque::new());

impl RtSocket {
    /// Deletes a link and runs `meanwhile` as soon as it is gone, beside the rest of the deletion. If the link cannot be
    /// deleted, `meanwhile` runs all the same.
    pub fn delete_link<T>(&mut self, index: u32, meanwhile: impl FnOnce() -> T) -> (Result<(), Error>, T) {
        match Deletion::prepare(&mut self.socket, index, Told::by_this_kernel()) {
            Ok(deletion) => deletion.run(meanwhile),
            Err(error) => (Err(error), meanwhile()),
        }
    }
}

/// Deletes a link of the calling thread's namespace, and returns as soon as it is gone: link, routes and name. A thread
/// of its own sits out the rest of the grace period; where there are too many of them, the caller does.
pub fn delete_link_early(index: u32) -> Result<(), Error> {
    // Before it is done: whoever hears the kernel's news may be quicker than we are.
    note(index);
    let deleted = delete_early(index);
    // A link that lives makes news. Of one that somebody else was quicker to delete there are no others.
    if deleted.as_ref().is_err_and(|error| !error.is_missing()) {
        forget(index);
    }
    deleted
}

fn delete_early(index: u32) -> Result<(), Error> {
    let mut host = RtSocket::open()?;
    let Some(turn) = WaiterPermit::take() else { return host.run(&Op::DelLink(index)) };
    let mut deletion = Deletion::prepare(&mut host.socket, index, Told::by_this_kernel())?;
    let (failed, failure) = mpsc::sync_channel(1);
    match Sitter::send(BackgroundDeletion { request: deletion.request(), failed, turn }) {
        Ok(()) => deletion.hear().map(|_| ()).map_err(|silence| failure.try_recv().unwrap_or(silence)),
        Err(_) => deletion.run(|| ()).0,
    }
}

/// A deletion whose caller does not wait for its end.
struct BackgroundDeletion {
    request: DeletionRequest,
    failed: mpsc::SyncSender<Error>,
    turn: WaiterPermit,
}

impl BackgroundDeletion {
    fn run(self) {
        if let Err(error) = self.request.send() {
            // There is room for one, and where nobody listens any more, the link was gone.
            let _ = self.failed.try_send(error);
        }
        // The socket is closed before the turn is over: whoever waits for that wants nothing left.
        drop(self.request);
        drop(self.turn);
    }
}

/// A thread that sits out one grace period after the other: to start and end one for each costs more than to wake it.
struct Sitter {
    number: usize,
    tasks: mpsc::SyncSender<BackgroundDeletion>,
}

/// Those who have nothing to do; who came last is woken first.
static SITTERS: Mutex<Vec<Sitter>> = Mutex::new(Vec::new());
/// So many stay for a while.
const MOST_IDLE: usize = 16;
/// How long one stays without anything to do.
const IDLE: Duration = Duration::from_secs(1);

impl Sitter {
    fn idle() -> MutexGuard<'static, Vec<Self>> {
        SITTERS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives it to one who is free, or to a new one.
    fn send(task: BackgroundDeletion) -> std::io::Result<()> {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let free = Self::idle().pop();
        let task = match free {
            Some(sitter) => match sitter.tasks.try_send(task) {
                Ok(()) => return Ok(()),
                // It ended by a mistake of its own: there are others.
                Err(mpsc::TrySendError::Full(task) | mpsc::TrySendError::Disconnected(task)) => task,
            },
            None => task,
        };
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        named().spawn(move || Self::sit(number, task)).map(drop)
    }

    /// A thread's life. The requests bring their sockets, so it does not matter in which namespace it is.
    fn sit(number: usize, first: BackgroundDeletion) {
        let (tasks, given) = mpsc::sync_channel(1);
        let mut next = Some(first);
        while let Some(task) = next {
            task.run();
            let mut idle = Self::idle();
            if idle.len() >= MOST_IDLE {
                return;
            }
            idle.push(Self { number, tasks: tasks.clone() });
            drop(idle);
            next = given.recv_timeout(IDLE).ok().or_else(|| Self::leave(number, &given));
        }
    }

    /// Goes, unless somebody chose it just now: then the task is there, or will be at once.
    fn leave(number: usize, given: &mpsc::Receiver<BackgroundDeletion>) -> Option<BackgroundDeletion> {
        let mut idle = Self::idle();
        if let Some(place) = idle.iter().position(|sitter| sitter.number == number) {
            idle.remove(place);
            return None;
        }
        drop(idle);
        given.recv_timeout(IDLE).ok()
    }
}

/// Whether this process deleted the link of this index (of whatever namespace) not long ago: news of it are no news.
pub fn was_deleted_here(index: u32) -> bool {
    DELETED.lock().unwrap_or_else(PoisonError::into_inner).contains(&index)
}

fn note(index: u32) {
    let mut deleted = DELETED.lock().unwrap_or_else(PoisonError::into_inner);
    if deleted.len() == REMEMBERED {
        deleted.pop_front();
    }
    deleted.push_back(index);
}

/// Once: several may have tried to delete the same link, and one of them may have done so.
fn forget(index: u32) {
    let mut deleted = DELETED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(place) = deleted.iter().rposition(|noted| *noted == index) {
        deleted.remove(place);
    }
}

/// How many threads still wait for the kernel to end a deletion whose caller was let go.
pub fn deletions_under_way() -> usize {
    UNDER_WAY.load(Ordering::Acquire)
}

fn named() -> Builder {
    Builder::new().name("delete-link".to_owned()).stack_size(STACK)
}

/// The right to be one of the threads that wait.
struct WaiterPermit;

impl WaiterPermit {
    fn take() -> Option<Self> {
        let more = |count| (count < MOST).then_some(count + 1);
        UNDER_WAY.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok().map(|_| Self)
    }
}

impl Drop for WaiterPermit {
    fn drop(&mut self) {
        UNDER_WAY.fetch_sub(1, Ordering::AcqRel);
    }
}

/// How the kernel says that a link is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// To the socket that asked for the deletion, and of no other deletion: since Linux 6.2.
    Alone,
    /// To everybody who wants to know of links, of all of them.
    WithAll,
}

impl Told {
    fn by_this_kernel() -> Self {
        let release = rustix::system::uname();
        let mut numbers = release.release().to_str().unwrap_or_default().split(['.', '-']).map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (6u32, 2u32) => Self::Alone,
            _ => Self::WithAll,
        }
    }
}

/// What was heard of a deletion.
enum DeletionEvent {
    Gone,
    Ended,
}

/// The request of one deletion, for the thread that sends it.
struct DeletionRequest {
    sender: Sender,
    bytes: Vec<u8>,
    index: u32,
}

impl DeletionRequest {
    /// Returns at the end of the grace period.
    fn send(&self) -> Result<(), Error> {
        self.sender.send(&self.bytes).map_err(|e| e.during(Op::DelLink(self.index)))
    }
}

/// One deletion on a socket that nobody else uses meanwhile.
struct Deletion<'a> {
    socket: &'a mut Socket,
    index: u32,
    sequence: u32,
    reported: Told,
    batch: Batch,
}

impl<'a> Deletion<'a> {
    fn prepare(socket: &'a mut Socket, index: u32, reported: Told) -> Result<Self, Error> {
        // The kernel tells the peer's end of a veth to the same port number in the pod's namespace, where it may be a
        // socket of ours: there this sequence number must be nobody's.
        let sequence = (1 << 31) | socket.take_sequences(1).start;
        if reported == Told::WithAll {
            socket.grow_event_buffer()?;
            socket.listen(&[libc::RTNLGRP_LINK])?;
        }
        let mut batch = Batch::new();
        let head = Head { kind: libc::RTM_DELLINK, flags: NLM_F_REQUEST | NLM_F_ACK | NLM_F_ECHO, sequence };
        let link = LinkHeader { index, ..LinkHeader::default() };
        batch.message(head, |body| body.header(&link)).map_err(|Oversize| Error::Invalid {
            operation: Op::DelLink(index).to_string(),
            reason: Oversize.to_string(),
        })?;
        Ok(Self { socket, index, sequence, reported, batch })
    }

    fn request(&self) -> DeletionRequest {
        DeletionRequest {
            sender: self.socket.sender(),
            bytes: self.batch.as_bytes().to_vec(),
            index: self.index,
        }
    }

    /// Deletes the link to the end, and does the rest beside it.
    fn run<T>(mut self, meanwhile: impl FnOnce() -> T) -> (Result<(), Error>, T) {
        let request = self.request();
        std::thread::scope(|scope| {
            let Ok(worker) = named().spawn_scoped(scope, || request.send()) else {
                let deleted = request.send().and_then(|()| self.end());
                return (deleted, meanwhile());
            };
            let observed = self.hear();
            let done = meanwhile();
            let sent = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let deleted = sent.and_then(|()| match observed {
                Ok(DeletionEvent::Ended) => Ok(()),
                Err(refused @ (Error::Refused { .. } | Error::Malformed { .. })) => Err(refused),
                // Whoever holds the kernel's lock may hold it for long; now that all was sent the answer is there.
                Ok(DeletionEvent::Gone) | Err(_) => self.end(),
            });
            (deleted, done)
        })
    }

    fn end(&mut self) -> Result<(), Error> {
        while let DeletionEvent::Gone = self.hear()? {}
        Ok(())
    }

    /// Waits until the link is gone or the deletion has ended.
    fn hear(&mut self) -> Result<DeletionEvent, Error> {
        loop {
            let replies = match self.socket.receive() {
                Ok(replies) => replies,
                // There was more news of others than room for it; the answer is still to come.
                Err(error) if error.errno() == Some(Errno::NOBUFS) => continue,
                Err(error) => return Err(error.during(Op::DelLink(self.index))),
            };
            for reply in replies {
                let ours = reply.sequence == self.sequence;
                match reply.content {
                    Content::Data(body) if reply.kind == libc::RTM_DELLINK && is_link(body, self.index) => {
                        return Ok(DeletionEvent::Gone);
                    }
                    Content::Ack if ours => return Ok(DeletionEvent::Ended),
                    Content::Refused(refusal) if ours => return Err(refusal.during(Op::DelLink(self.index))),
                    Content::Data(_) | Content::Ack | Content::Refused(_) | Content::Done => {}
                }
            }
        }
    }
}

impl Drop for Deletion<'_> {
    fn drop(&mut self) {
        if self.reported == Told::WithAll {
            // What cannot fail, and if it did: news that nobody asked for is passed over.
            let _ = self.socket.stop_listening(&[libc::RTNLGRP_LINK]);
        }
    }
}

/// `struct ifinfomsg`: the family, which is `AF_BRIDGE` where a link only leaves its bridge, and the index.
fn is_link(body: &[u8], index: u32) -> bool {
    body.first().is_some_and(|family| i32::from(*family) == libc::AF_UNSPEC)
        && body.get(4..8).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes) == Some(index)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use types::IfName;

    use super::*;
    use crate::netns::NetNs;

    /// They count the same threads.
    static ALONE: Mutex<()> = Mutex::new(());

    fn with_link(socket: &mut RtSocket) -> u32 {
        let name = IfName::try_from("ifb9").unwrap();
        socket.run(&Op::AddIfb { name: &name, mtu: 1500 }).unwrap();
        socket.link(&name).unwrap().unwrap().index
    }

    #[test]
    fn kernels_that_tell_nobody_alone_tell_all() {
        let mut socket = RtSocket::open_in(&NetNs::create().unwrap()).unwrap();
        for reported in [Told::WithAll, Told::Alone] {
            let index = with_link(&mut socket);
            let mut deletion = Deletion::prepare(&mut socket.socket, index, reported).unwrap();
            let request = deletion.request();
            std::thread::scope(|scope| {
                scope.spawn(|| request.send().unwrap());
                assert!(matches!(deletion.hear(), Ok(DeletionEvent::Gone)), "{reported:?}");
                deletion.end().unwrap();
            });
            drop(deletion);
            let index = with_link(&mut socket);
            Deletion::prepare(&mut socket.socket, index, reported).unwrap().run(|| ()).0.unwrap();
            let missing = Deletion::prepare(&mut socket.socket, index, reported).unwrap().run(|| ()).0;
            assert!(missing.unwrap_err().is_missing());
        }
    }

    #[test]
    fn threads_that_sat_out_a_deletion_are_used_again_and_go_in_the_end() {
        let _alone = ALONE.lock().unwrap();
        let ns = NetNs::create().unwrap();
        let mut socket = RtSocket::open_in(&ns).unwrap();
        for _ in 0..20 {
            let index = with_link(&mut socket);
            ns.run(|| delete_link_early(index)).unwrap().unwrap();
            assert!(socket.link_at(index).unwrap().is_none());
        }
        let missing = ns.run(|| delete_link_early(4242)).unwrap();
        assert!(missing.unwrap_err().is_missing());
        let end = Instant::now() + IDLE * 20;
        while deletions_under_way() > 0 || !Sitter::idle().is_empty() {
            assert!(Instant::now() < end, "{} threads stay", Sitter::idle().len());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn a_link_that_stays_is_not_taken_for_deleted() {
        let _alone = ALONE.lock().unwrap();
        // The kernel never deletes it.
        const LOOPBACK: u32 = 1;
        let ns = NetNs::create().unwrap();
        let refused = ns.run(|| delete_link_early(LOOPBACK)).unwrap().unwrap_err();
        assert!(matches!(refused, Error::Refused { .. }) && !was_deleted_here(LOOPBACK), "{refused}");
        // One that was deleted stays known, also when another tries it once more and is refused.
        note(LOOPBACK);
        ns.run(|| delete_link_early(LOOPBACK)).unwrap().unwrap_err();
        assert!(was_deleted_here(LOOPBACK));
        forget(LOOPBACK);
        let mut socket = RtSocket::open_in(&ns).unwrap();
        let index = with_link(&mut socket);
        ns.run(|| delete_link_early(index)).unwrap().unwrap();
        assert!(was_deleted_here(index));
    }

    #[test]
    fn where_too_many_threads_wait_the_caller_does() {
        let _alone = ALONE.lock().unwrap();
        let turns: Vec<_> = std::iter::from_fn(WaiterPermit::take).collect();
        assert_eq!((turns.len(), deletions_under_way()), (MOST, MOST));
        let ns = NetNs::create().unwrap();
        let mut socket = RtSocket::open_in(&ns).unwrap();
        let index = with_link(&mut socket);
        ns.run(|| delete_link_early(index)).unwrap().unwrap();
        assert!(socket.link_at(index).unwrap().is_none());
        drop(turns);
        assert_eq!(deletions_under_way(), 0);
    }
}
