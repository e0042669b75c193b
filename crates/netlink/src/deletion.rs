//! Deletes links without waiting for the kernel's grace period. RTM_DELLINK blocks its caller for about 20 ms, but link,
//! routes and name are removed after about one, and the kernel sends a notification then. One thread therefore sends the
//! request and waits for the grace period, while the caller waits for the notification on the same socket:
//!
//! ```text
//!   worker: send RTM_DELLINK ──────────── grace period ────────────▶ (done)
//!   caller: ······· RTM_DELLINK event ▶ continues ·················· ack
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

/// The maximum number of threads that wait for grace periods on behalf of callers that have returned.
const MAX_WAITERS: usize = 128;

/// These threads only make one system call.
const STACK: usize = 64 * 1024;

static PENDING: AtomicUsize = AtomicUsize::new(0);

/// More links than can be deleted before their events are read.
const MAX_RECENT: usize = 1024;

static RECENTLY_DELETED: Mutex<VecDeque<u32>> = Mutex::new(VecDeque::new());

impl RtSocket {
    /// Deletes a link. Runs `on_removed` as soon as the link is removed, in parallel with the grace period. If the link cannot
    /// be deleted, `on_removed` runs as well.
    pub fn delete_link<T>(&mut self, index: u32, on_removed: impl FnOnce() -> T) -> (Result<(), Error>, T) {
        match Deletion::prepare(&mut self.socket, index, Notification::of_this_kernel()) {
            Ok(deletion) => deletion.run(on_removed),
            Err(error) => (Err(error), on_removed()),
        }
    }
}

/// Deletes a link in the calling thread's namespace, and returns as soon as link, routes and name are removed. A background
/// thread waits for the end of the grace period. If there are too many such threads, the caller waits.
pub fn delete_link_early(index: u32) -> Result<(), Error> {
    // Before the deletion: the monitor may receive the kernel's event before this function returns.
    remember(index);
    let deleted = delete_early(index);
    // A link that still exists can cause events later. A link that another process deleted first causes no more events.
    if deleted.as_ref().is_err_and(|error| !error.is_missing()) {
        forget(index);
    }
    deleted
}

fn delete_early(index: u32) -> Result<(), Error> {
    let mut host = RtSocket::open()?;
    let Some(permit) = WaiterPermit::take() else { return host.run(&Op::DelLink(index)) };
    let mut deletion = Deletion::prepare(&mut host.socket, index, Notification::of_this_kernel())?;
    let (failed, failure) = mpsc::sync_channel(1);
    match GraceWaiter::assign(BackgroundDeletion { request: deletion.request(), failed, permit }) {
        Ok(()) => deletion.wait().map(|_| ()).map_err(|timeout| failure.try_recv().unwrap_or(timeout)),
        Err(_) => deletion.run(|| ()).0,
    }
}

/// A deletion without a caller that waits for its end.
struct BackgroundDeletion {
    request: DeletionRequest,
    failed: mpsc::SyncSender<Error>,
    permit: WaiterPermit,
}

impl BackgroundDeletion {
    fn run(self) {
        if let Err(error) = self.request.send() {
            // The channel has space for one error. If the receiver is dropped, the link was removed before.
            let _ = self.failed.try_send(error);
        }
        // Close the socket before the permit is released: a caller that waits for all permits expects no open sockets.
        drop(self.request);
        drop(self.permit);
    }
}

/// A thread that waits for one grace period after another. Waking an idle thread is cheaper than starting a new one.
struct GraceWaiter {
    number: usize,
    tasks: mpsc::SyncSender<BackgroundDeletion>,
}

/// Idle threads. The last one is woken first.
static IDLE_WAITERS: Mutex<Vec<GraceWaiter>> = Mutex::new(Vec::new());
/// The maximum number of threads that stay idle.
const MAX_IDLE: usize = 16;
/// An idle thread ends after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

impl GraceWaiter {
    fn idle() -> MutexGuard<'static, Vec<Self>> {
        IDLE_WAITERS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns the task to an idle thread, or to a new one.
    fn assign(task: BackgroundDeletion) -> std::io::Result<()> {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let idle = Self::idle().pop();
        let task = match idle {
            Some(waiter) => match waiter.tasks.try_send(task) {
                Ok(()) => return Ok(()),
                // The thread panicked. Start a new one.
                Err(mpsc::TrySendError::Full(task) | mpsc::TrySendError::Disconnected(task)) => task,
            },
            None => task,
        };
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        thread_builder().spawn(move || Self::run(number, task)).map(drop)
    }

    /// The thread's main loop. Each request brings its own socket, so the thread's namespace does not matter.
    fn run(number: usize, first: BackgroundDeletion) {
        let (tasks, queue) = mpsc::sync_channel(1);
        let mut next = Some(first);
        while let Some(task) = next {
            task.run();
            let mut idle = Self::idle();
            if idle.len() >= MAX_IDLE {
                return;
            }
            idle.push(Self { number, tasks: tasks.clone() });
            drop(idle);
            next = queue.recv_timeout(IDLE_TIMEOUT).ok().or_else(|| Self::retire(number, &queue));
        }
    }

    /// Removes the thread from the idle list. If it is not in the list, a task was just assigned to it and is returned.
    fn retire(number: usize, queue: &mpsc::Receiver<BackgroundDeletion>) -> Option<BackgroundDeletion> {
        let mut idle = Self::idle();
        if let Some(position) = idle.iter().position(|waiter| waiter.number == number) {
            idle.remove(position);
            return None;
        }
        drop(idle);
        queue.recv_timeout(IDLE_TIMEOUT).ok()
    }
}

/// Whether this process recently deleted a link with this index, in any namespace. Events of such a link can be ignored.
pub fn was_deleted_by_this_process(index: u32) -> bool {
    RECENTLY_DELETED.lock().unwrap_or_else(PoisonError::into_inner).contains(&index)
}

fn remember(index: u32) {
    let mut deleted = RECENTLY_DELETED.lock().unwrap_or_else(PoisonError::into_inner);
    if deleted.len() == MAX_RECENT {
        deleted.pop_front();
    }
    deleted.push_back(index);
}

/// Removes one entry only: of several callers that delete the same link, one may have succeeded.
fn forget(index: u32) {
    let mut deleted = RECENTLY_DELETED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(position) = deleted.iter().rposition(|recent| *recent == index) {
        deleted.remove(position);
    }
}

/// The number of threads that wait for the end of a deletion after their caller has returned.
pub fn pending_deletions() -> usize {
    PENDING.load(Ordering::Acquire)
}

fn thread_builder() -> Builder {
    Builder::new().name("delete-link".to_owned()).stack_size(STACK)
}

/// Permission to run one of the waiting threads.
struct WaiterPermit;

impl WaiterPermit {
    fn take() -> Option<Self> {
        let increment = |count| (count < MAX_WAITERS).then_some(count + 1);
        PENDING.fetch_update(Ordering::AcqRel, Ordering::Acquire, increment).ok().map(|_| Self)
    }
}

impl Drop for WaiterPermit {
    fn drop(&mut self) {
        PENDING.fetch_sub(1, Ordering::AcqRel);
    }
}

/// How the kernel reports that a link was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notification {
    /// Only to the socket that requested the deletion (`NLM_F_ECHO`, since Linux 6.2).
    Echo,
    /// To all members of the link group, for all links.
    Multicast,
}

impl Notification {
    fn of_this_kernel() -> Self {
        let release = rustix::system::uname();
        let mut numbers = release.release().to_str().unwrap_or_default().split(['.', '-']).map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (6u32, 2u32) => Self::Echo,
            _ => Self::Multicast,
        }
    }
}

/// The progress of a deletion.
enum DeletionEvent {
    Removed,
    Acknowledged,
}

/// The request of one deletion, sent by another thread.
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

/// One deletion. No other request uses the socket until it ends.
struct Deletion<'a> {
    socket: &'a mut Socket,
    index: u32,
    sequence: u32,
    notification: Notification,
    batch: Batch,
}

impl<'a> Deletion<'a> {
    fn prepare(socket: &'a mut Socket, index: u32, notification: Notification) -> Result<Self, Error> {
        // For the peer of a veth, the kernel notifies the same port number in the pod's namespace, which may belong to
        // another Podwire socket. No other request may have this sequence number.
        let sequence = (1 << 31) | socket.take_sequences(1).start;
        if notification == Notification::Multicast {
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
        Ok(Self { socket, index, sequence, notification, batch })
    }

    fn request(&self) -> DeletionRequest {
        DeletionRequest {
            sender: self.socket.sender(),
            bytes: self.batch.as_bytes().to_vec(),
            index: self.index,
        }
    }

    /// Deletes the link and waits for the acknowledgement. Runs `on_removed` in parallel with the grace period.
    fn run<T>(mut self, on_removed: impl FnOnce() -> T) -> (Result<(), Error>, T) {
        let request = self.request();
        std::thread::scope(|scope| {
            let Ok(worker) = thread_builder().spawn_scoped(scope, || request.send()) else {
                let deleted = request.send().and_then(|()| self.wait_for_ack());
                return (deleted, on_removed());
            };
            let observed = self.wait();
            let result = on_removed();
            let sent = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let deleted = sent.and_then(|()| match observed {
                Ok(DeletionEvent::Acknowledged) => Ok(()),
                Err(refused @ (Error::Refused { .. } | Error::Malformed { .. })) => Err(refused),
                // `wait` times out if another process holds the rtnl lock for long. The send has ended, so the ack is there.
                Ok(DeletionEvent::Removed) | Err(_) => self.wait_for_ack(),
            });
            (deleted, result)
        })
    }

    fn wait_for_ack(&mut self) -> Result<(), Error> {
        while let DeletionEvent::Removed = self.wait()? {}
        Ok(())
    }

    /// Waits until the link is removed or the request is acknowledged.
    fn wait(&mut self) -> Result<DeletionEvent, Error> {
        loop {
            let replies = match self.socket.receive() {
                Ok(replies) => replies,
                // Events of other links overran the receive buffer. The acknowledgement still arrives.
                Err(error) if error.errno() == Some(Errno::NOBUFS) => continue,
                Err(error) => return Err(error.during(Op::DelLink(self.index))),
            };
            for reply in replies {
                let is_own = reply.sequence == self.sequence;
                match reply.content {
                    Content::Data(body) if reply.kind == libc::RTM_DELLINK && is_link(body, self.index) => {
                        return Ok(DeletionEvent::Removed);
                    }
                    Content::Ack if is_own => return Ok(DeletionEvent::Acknowledged),
                    Content::Refused(refusal) if is_own => {
                        return Err(refusal.during(Op::DelLink(self.index)));
                    }
                    Content::Data(_) | Content::Ack | Content::Refused(_) | Content::Done => {}
                }
            }
        }
    }
}

impl Drop for Deletion<'_> {
    fn drop(&mut self) {
        if self.notification == Notification::Multicast {
            // Cannot fail. If it did, later readers would skip the events.
            let _ = self.socket.stop_listening(&[libc::RTNLGRP_LINK]);
        }
    }
}

/// `struct ifinfomsg`: the family, which is `AF_BRIDGE` if the link only leaves its bridge, and the index.
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

    /// Tests that count threads must not run in parallel, or while a deletion of an earlier test is pending.
    fn serial() -> MutexGuard<'static, ()> {
        static SERIAL: Mutex<()> = Mutex::new(());
        let guard = SERIAL.lock().unwrap();
        while pending_deletions() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        guard
    }

    fn create_link(socket: &mut RtSocket) -> u32 {
        let name = IfName::try_from("ifb9").unwrap();
        socket.run(&Op::AddIfb { name: &name, mtu: 1500 }).unwrap();
        socket.link(&name).unwrap().unwrap().index
    }

    #[test]
    fn deletion_works_with_echo_and_with_multicast_notification() {
        let mut socket = RtSocket::open_in(&NetNs::create().unwrap()).unwrap();
        for notification in [Notification::Multicast, Notification::Echo] {
            let index = create_link(&mut socket);
            let mut deletion = Deletion::prepare(&mut socket.socket, index, notification).unwrap();
            let request = deletion.request();
            std::thread::scope(|scope| {
                scope.spawn(|| request.send().unwrap());
                assert!(matches!(deletion.wait(), Ok(DeletionEvent::Removed)), "{notification:?}");
                deletion.wait_for_ack().unwrap();
            });
            drop(deletion);
            let index = create_link(&mut socket);
            Deletion::prepare(&mut socket.socket, index, notification).unwrap().run(|| ()).0.unwrap();
            let missing = Deletion::prepare(&mut socket.socket, index, notification).unwrap().run(|| ()).0;
            assert!(missing.unwrap_err().is_missing());
        }
    }

    #[test]
    fn waiting_threads_are_reused_and_end_when_idle() {
        let _serial = serial();
        let ns = NetNs::create().unwrap();
        let mut socket = RtSocket::open_in(&ns).unwrap();
        for _ in 0..20 {
            let index = create_link(&mut socket);
            ns.run(|| delete_link_early(index)).unwrap().unwrap();
            assert!(socket.link_at(index).unwrap().is_none());
        }
        let missing = ns.run(|| delete_link_early(4242)).unwrap();
        assert!(missing.unwrap_err().is_missing());
        let deadline = Instant::now() + IDLE_TIMEOUT * 20;
        while pending_deletions() > 0 || !GraceWaiter::idle().is_empty() {
            assert!(Instant::now() < deadline, "{} idle threads did not end", GraceWaiter::idle().len());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn a_link_that_could_not_be_deleted_is_not_remembered() {
        let _serial = serial();
        // The kernel does not allow its deletion.
        const LOOPBACK: u32 = 1;
        let ns = NetNs::create().unwrap();
        let refused = ns.run(|| delete_link_early(LOOPBACK)).unwrap().unwrap_err();
        assert!(
            matches!(refused, Error::Refused { .. }) && !was_deleted_by_this_process(LOOPBACK),
            "{refused}"
        );
        // A deleted link stays remembered if another attempt to delete it is refused.
        remember(LOOPBACK);
        ns.run(|| delete_link_early(LOOPBACK)).unwrap().unwrap_err();
        assert!(was_deleted_by_this_process(LOOPBACK));
        forget(LOOPBACK);
        let mut socket = RtSocket::open_in(&ns).unwrap();
        let index = create_link(&mut socket);
        ns.run(|| delete_link_early(index)).unwrap().unwrap();
        assert!(was_deleted_by_this_process(index));
    }

    #[test]
    fn the_caller_waits_if_too_many_threads_wait() {
        let _serial = serial();
        let permits: Vec<_> = std::iter::from_fn(WaiterPermit::take).collect();
        assert_eq!((permits.len(), pending_deletions()), (MAX_WAITERS, MAX_WAITERS));
        let ns = NetNs::create().unwrap();
        let mut socket = RtSocket::open_in(&ns).unwrap();
        let index = create_link(&mut socket);
        ns.run(|| delete_link_early(index)).unwrap().unwrap();
        assert!(socket.link_at(index).unwrap().is_none());
        drop(permits);
        assert_eq!(pending_deletions(), 0);
    }
}
