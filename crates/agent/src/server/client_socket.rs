//! A client's connection on the unix socket. The acceptor's thread polls it first, then tokio.
//!
//! The acceptor polls it once. If a request has arrived completely, that poll parses, serves and answers it without waking
//! another thread. If it would have to wait, tokio takes over the connection.

use std::io::{self, ErrorKind, IoSlice};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, sendmsg, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream as RuntimeStream;

type AfterAnswer = Box<dyn FnOnce() + Send>;

pub(super) struct ClientSocket {
    /// None after tokio took over.
    stream: Mutex<Option<UnixStream>>,
    /// Whether the acceptor polls the connection. Only the acceptor may block.
    is_with_acceptor: AtomicBool,
    after_answer: Mutex<Option<AfterAnswer>>,
}

impl ClientSocket {
    pub(super) fn new(stream: UnixStream) -> Arc<Self> {
        let (is_with_acceptor, after_answer) = (AtomicBool::new(false), Mutex::new(None));
        Arc::new(Self { stream: Mutex::new(Some(stream)), is_with_acceptor, after_answer })
    }

    /// Polls the connection once on the calling thread, which may block. This poll registers no waker, so tokio has to
    /// poll an incomplete connection.
    pub(super) fn poll_connection(&self, connection: Pin<&mut impl Future<Output = ()>>) -> Poll<()> {
        self.is_with_acceptor.store(true, Ordering::Relaxed);
        let polled = connection.poll(&mut Context::from_waker(Waker::noop()));
        self.is_with_acceptor.store(false, Ordering::Relaxed);
        polled
    }

    /// Whether the calling thread may serve a request directly.
    pub(super) fn may_block(&self) -> bool {
        self.is_with_acceptor.load(Ordering::Relaxed)
    }

    /// Sets the function that the acceptor runs after the answer was written. Runs the function of an earlier request on the
    /// same connection.
    pub(super) fn set_after_answer(&self, work: impl FnOnce() + Send + 'static) {
        let previous = lock(&self.after_answer).replace(Box::new(work));
        if let Some(previous) = previous {
            previous();
        }
    }

    pub(super) fn take_after_answer(&self) -> Option<AfterAnswer> {
        lock(&self.after_answer).take()
    }

    /// Waits for the first bytes.
    pub(super) fn is_readable(&self, timeout: Duration) -> bool {
        let Ok(timeout) = Timespec::try_from(timeout) else { return false };
        matches!(self.events(PollFlags::IN, timeout), Ok(events) if !events.is_empty())
    }

    /// Whether the client closed its end. For requests that the acceptor serves, because nothing reads the connection meanwhile.
    pub(super) fn is_closed(&self) -> bool {
        let closed = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        // If poll(2) fails, the answer is written, and that write fails for a closed connection.
        matches!(self.events(PollFlags::RDHUP, Timespec::default()), Ok(events) if events.intersects(closed))
    }

    fn events(&self, wanted: PollFlags, timeout: Timespec) -> Result<PollFlags, Errno> {
        self.call(|stream| {
            let mut fds = [PollFd::new(stream, wanted)];
            poll(&mut fds, Some(&timeout))?;
            Ok(fds[0].revents())
        })
    }

    fn call<T>(&self, call: impl FnOnce(&UnixStream) -> Result<T, Errno>) -> Result<T, Errno> {
        lock(&self.stream).as_ref().map_or(Err(Errno::NOTCONN), call)
    }

    /// For the acceptor, which does not wait. On EAGAIN tokio polls again.
    fn poll_call<T>(&self, call: impl FnOnce(&UnixStream) -> Result<T, Errno>) -> Poll<io::Result<T>> {
        match self.call(call) {
            Err(Errno::AGAIN) => Poll::Pending,
            done => Poll::Ready(done.map_err(io::Error::from)),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads and writes for hyper. The socket is registered with tokio only on takeover, so that a connection that the
/// acceptor completes costs no epoll calls.
pub(super) struct ClientIo {
    socket: Arc<ClientSocket>,
    runtime: Option<RuntimeStream>,
}

impl ClientIo {
    pub(super) fn new(socket: Arc<ClientSocket>) -> Self {
        Self { socket, runtime: None }
    }

    /// None while the acceptor polls the connection.
    fn runtime(&mut self) -> io::Result<Option<Pin<&mut RuntimeStream>>> {
        if self.runtime.is_none() && !self.socket.may_block() {
            let stream = lock(&self.socket.stream).take().ok_or(ErrorKind::NotConnected)?;
            stream.set_nonblocking(true)?;
            self.runtime = Some(RuntimeStream::from_std(stream)?);
        }
        Ok(self.runtime.as_mut().map(Pin::new))
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.runtime()? {
            Some(stream) => stream.poll_read(cx, buffer),
            None => self.socket.poll_call(|stream| {
                let (count, _) = recv(stream, buffer.initialize_unfilled(), RecvFlags::DONTWAIT)?;
                buffer.advance(count);
                Ok(())
            }),
        }
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.runtime()? {
            Some(stream) => stream.poll_write_vectored(cx, parts),
            None => self.socket.poll_call(|stream| {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                sendmsg(stream, parts, &mut SendAncillaryBuffer::default(), flags)
            }),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Nothing is buffered here.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.runtime()? {
            Some(stream) => stream.poll_shutdown(cx),
            None => self.socket.poll_call(|stream| shutdown(stream, Shutdown::Write)),
        }
    }
}
