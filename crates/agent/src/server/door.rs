//! The threads at the door: each takes a client in, and serves it itself where that can be done at once.
//!
//! A plugin asks one thing and goes. Served by the thread that took it in, it wakes one thread on the way in and itself on
//! the way back; every other one on the way would cost some 50 to 100 µs. All else goes to the runtime's thread, which
//! waits for any number of clients: whoever takes its time, who asks for something else, who finds no place in the queue,
//! and whoever comes while all the other threads here are busy. So one of them is always ready for the next.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::net::{Shutdown, shutdown};
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

use super::{ACCEPT_PAUSE, Guest, House, Peers, Way, connection, quick};
use crate::queue::STACK;

/// One is always ready, so one less serve. That is enough for calls one after the other, and for a few processors; in a
/// crowd the workers have something to do without being woken. Each costs some memory and its way home from pods.
const MOST: usize = 5;

/// Where the agent listens now; None when it takes nobody in any more.
pub(super) struct Door(Mutex<Option<Arc<UnixListener>>>);

impl Door {
    pub(super) fn new(listener: UnixListener) -> Self {
        Self(Mutex::new(Some(Arc::new(listener))))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<UnixListener>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listener(&self) -> Option<Arc<UnixListener>> {
        self.lock().clone()
    }

    fn is(&self, listener: &Arc<UnixListener>) -> bool {
        self.lock().as_ref().is_some_and(|current| Arc::ptr_eq(current, listener))
    }

    /// Listens elsewhere from now on. Whoever knocked at the old one may still be taken in.
    pub(super) fn replace(&self, new: UnixListener) -> io::Result<Option<Arc<UnixListener>>> {
        // A door that was closed meanwhile stays so.
        let old = self.lock().as_mut().map(|current| std::mem::replace(current, Arc::new(new)));
        let Some(old) = old else { return Ok(None) };
        shutdown(&old, Shutdown::Both)?;
        old.set_nonblocking(true)?;
        Ok(Some(old))
    }

    /// Sends all home who wait for a client.
    pub(super) fn close(&self) -> io::Result<()> {
        match self.lock().take() {
            Some(listener) => Ok(shutdown(&listener, Shutdown::Both)?),
            None => Ok(()),
        }
    }
}

/// What the threads share.
pub(super) struct Porters {
    pub(super) door: Arc<Door>,
    pub(super) peers: Peers,
    pub(super) house: House,
    /// For whoever is not served here.
    pub(super) runtime: Handle,
    /// Threads that are not busy with a client.
    free: AtomicUsize,
    /// Nobody can be taken in, and that was told.
    is_stuck: AtomicBool,
}

impl Porters {
    pub(super) fn new(door: Arc<Door>, peers: Peers, house: House) -> Arc<Self> {
        let (free, is_stuck) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Self { door, peers, house, runtime: Handle::current(), free, is_stuck })
    }

    /// Fewer do as well, as long as there is one.
    pub(super) fn start(self: &Arc<Self>) -> io::Result<()> {
        for number in 0..MOST {
            let porters = Arc::clone(self);
            let builder = thread::Builder::new().name(format!("podwire-door-{number}")).stack_size(STACK);
            self.free.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = builder.spawn(move || porters.work()) {
                self.free.fetch_sub(1, Ordering::Relaxed);
                if number == 0 {
                    return Err(error);
                }
                tracing::warn!("only {number} threads wait for clients: {error}");
                break;
            }
        }
        Ok(())
    }

    /// A thread's life.
    fn work(&self) {
        while let Some((permit, listener)) = self.room().zip(self.door.listener()) {
            match listener.accept() {
                Ok((stream, _)) => {
                    self.is_stuck.store(false, Ordering::Relaxed);
                    self.receive(stream, permit);
                }
                // It was shut because there is another one now, or none.
                Err(_) if !self.door.is(&listener) => {}
                Err(error) => {
                    // Out of files, say: all threads meet it, again and again.
                    if !self.is_stuck.swap(true, Ordering::Relaxed) {
                        tracing::warn!("cannot accept connections: {error}");
                    }
                    thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    /// Waits while too many are connected; None when it is over.
    fn room(&self) -> Option<OwnedSemaphorePermit> {
        let room = &self.house.room;
        if let Ok(permit) = Arc::clone(room).try_acquire_owned() {
            return Some(permit);
        }
        let mut house = self.house.clone();
        self.runtime.block_on(house.unless_stopped(Arc::clone(room).acquire_owned()))?.ok()
    }

    fn receive(&self, stream: UnixStream, permit: OwnedSemaphorePermit) {
        let way = self.peers.way(&stream);
        let guest = self.house.guest(permit);
        let others = self.free.fetch_sub(1, Ordering::Relaxed) - 1;
        let left = if others > 0 && way == Way::Socket {
            quick::serve(stream, guest, &self.runtime)
        } else {
            Some((stream, guest, Vec::new()))
        };
        if let Some((stream, guest, read)) = left {
            self.hand_over(stream, (way, guest), read);
        }
        self.free.fetch_add(1, Ordering::Relaxed);
    }

    /// To the runtime's thread, with what was read already.
    pub(super) fn hand_over(&self, stream: UnixStream, (way, guest): (Way, Guest), read: Vec<u8>) {
        match quick::asynchronous(stream, &self.runtime) {
            Ok(stream) => {
                self.runtime.spawn(connection(quick::Begun::new(read, stream), way, guest));
            }
            Err(error) => tracing::warn!("a connection is lost: {error}"),
        }
    }

    /// Takes those in who knocked at a socket before it lost its name.
    pub(super) fn finish(&self, old: &UnixListener) -> io::Result<()> {
        while let Ok(permit) = Arc::clone(&self.house.room).try_acquire_owned() {
            match old.accept() {
                Ok((stream, _)) => {
                    let way = self.peers.way(&stream);
                    self.hand_over(stream, (way, self.house.guest(permit)), Vec::new());
                }
                // Nobody is left; a socket that was shut says it in its own way.
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::InvalidInput) => {
                    break;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}
