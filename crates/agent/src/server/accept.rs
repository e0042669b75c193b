//! Acceptor threads: each accepts a connection and serves its first request directly if that does not have to wait.
//!
//! The plugin sends one request per connection. If an acceptor serves it, no other thread has to be woken. Each wake-up would
//! cost 50 to 100 µs. The tokio thread serves all other connections: slow clients, other requests, CNI requests without a
//! slot in the queue, and connections that arrive while all other acceptors are busy. So one acceptor is always free for the
//! next connection.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

use super::client_socket::{ClientIo, ClientSocket};
use super::{ACCEPT_PAUSE, AllowedUsers, HttpServer, RequestOrigin, serve_connection};
use crate::queue::STACK;

/// One of them always accepts, the other four serve. That suffices for sequential calls and for a few processors. Under load
/// the workers are busy and need no wake-up. Each acceptor costs some memory and an open namespace.
const MAX_ACCEPTORS: usize = 5;
/// How long an acceptor waits for the first bytes. A plugin sends its request immediately, unless it waits for a processor.
pub(super) const FIRST_BYTES: Duration = Duration::from_millis(10);

/// The listener from which connections are accepted. None when the agent stops.
pub(super) struct CurrentListener(Mutex<Option<Arc<UnixListener>>>);

impl CurrentListener {
    pub(super) fn new(listener: UnixListener) -> Self {
        Self(Mutex::new(Some(Arc::new(listener))))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<UnixListener>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self) -> Option<Arc<UnixListener>> {
        self.lock().clone()
    }

    fn is(&self, listener: &Arc<UnixListener>) -> bool {
        self.lock().as_ref().is_some_and(|current| Arc::ptr_eq(current, listener))
    }

    /// Accepts from `new` from now on. The backlog of the old listener can still be accepted.
    pub(super) fn replace(&self, new: UnixListener) -> io::Result<Option<Arc<UnixListener>>> {
        // A closed listener stays closed.
        let old = self.lock().as_mut().map(|current| std::mem::replace(current, Arc::new(new)));
        let Some(old) = old else { return Ok(None) };
        shutdown(&old, Shutdown::Both)?;
        old.set_nonblocking(true)?;
        Ok(Some(old))
    }

    /// Wakes all acceptors, so that they end.
    pub(super) fn close(&self) -> io::Result<()> {
        match self.lock().take() {
            Some(listener) => Ok(shutdown(&listener, Shutdown::Both)?),
            None => Ok(()),
        }
    }
}

/// Shared state of the acceptors.
pub(super) struct Acceptors {
    pub(super) listener: Arc<CurrentListener>,
    pub(super) users: AllowedUsers,
    pub(super) server: HttpServer,
    runtime: Handle,
    /// The number of acceptors without a connection.
    free: AtomicUsize,
    /// accept(2) failed, and the failure was logged.
    is_failing: AtomicBool,
}

impl Acceptors {
    pub(super) fn new(listener: Arc<CurrentListener>, users: AllowedUsers, server: HttpServer) -> Arc<Self> {
        let (free, is_failing) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Self { listener, users, server, runtime: Handle::current(), free, is_failing })
    }

    /// Starts the threads. Succeeds if at least one thread could be started.
    pub(super) fn start(self: &Arc<Self>) -> io::Result<()> {
        for number in 0..MAX_ACCEPTORS {
            let acceptors = Arc::clone(self);
            let builder = thread::Builder::new().name(format!("podwire-accept{number}")).stack_size(STACK);
            self.free.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = builder.spawn(move || acceptors.work()) {
                self.free.fetch_sub(1, Ordering::Relaxed);
                if number == 0 {
                    return Err(error);
                }
                tracing::warn!(%error, started = number, "cannot start all acceptor threads");
                break;
            }
        }
        Ok(())
    }

    /// The loop of one acceptor.
    fn work(&self) {
        // Timers of hyper and of request bodies belong to the tokio runtime.
        let _entered = self.runtime.enter();
        while let Some((permit, listener)) = self.permit().zip(self.listener.get()) {
            match listener.accept() {
                Ok((stream, _)) => {
                    self.is_failing.store(false, Ordering::Relaxed);
                    self.receive(stream, permit);
                }
                // The listener was replaced or closed.
                Err(_) if !self.listener.is(&listener) => {}
                Err(error) => {
                    // For example without free file descriptors. All acceptors get this error repeatedly.
                    if !self.is_failing.swap(true, Ordering::Relaxed) {
                        tracing::warn!(%error, "cannot accept connections");
                    }
                    thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    /// Waits while the connection limit is reached. None when the agent stops.
    fn permit(&self) -> Option<OwnedSemaphorePermit> {
        let permits = &self.server.permits;
        if let Ok(permit) = Arc::clone(permits).try_acquire_owned() {
            return Some(permit);
        }
        let mut server = self.server.clone();
        self.runtime.block_on(server.unless_stopped(Arc::clone(permits).acquire_owned()))?.ok()
    }

    fn receive(&self, stream: UnixStream, permit: OwnedSemaphorePermit) {
        let free = self.free.fetch_sub(1, Ordering::Relaxed) - 1;
        let origin = self.users.origin(&stream);
        let socket = ClientSocket::new(stream);
        let mut connection = Box::pin(self.connection(&socket, (origin, permit)));
        let is_served = free > 0
            && origin == RequestOrigin::Socket
            && socket.is_readable(FIRST_BYTES)
            && socket.poll_connection(connection.as_mut()).is_ready();
        if !is_served {
            self.runtime.spawn(connection);
        }
        if let Some(work) = socket.take_after_answer() {
            work();
        }
        self.free.fetch_add(1, Ordering::Relaxed);
    }

    fn connection(
        &self,
        socket: &Arc<ClientSocket>,
        (origin, permit): (RequestOrigin, OwnedSemaphorePermit),
    ) -> impl Future<Output = ()> + Send + use<> {
        let (stream, client) = (ClientIo::new(Arc::clone(socket)), Some(Arc::clone(socket)));
        serve_connection(stream, (origin, client), self.server.connection(permit))
    }

    /// Accepts the connections in the backlog of a listener that was replaced.
    pub(super) fn accept_backlog(&self, old: &UnixListener) -> io::Result<()> {
        while let Ok(permit) = Arc::clone(&self.server.permits).try_acquire_owned() {
            match old.accept() {
                Ok((stream, _)) => {
                    let origin = self.users.origin(&stream);
                    self.runtime.spawn(self.connection(&ClientSocket::new(stream), (origin, permit)));
                }
                // The backlog is empty. A listener that was shut down returns EINVAL.
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::InvalidInput) => {
                    break;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}
