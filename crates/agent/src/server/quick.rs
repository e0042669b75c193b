//! One CNI call, read, served and answered on one thread.
//!
//! Reads only what the plugin writes: `POST /v1/cni`, few headers, a length, one request to a connection. Everything else
//! is for hyper, which then begins with what was read here.

use std::io;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use api::CniCall;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::{Guest, reply};
use crate::work::{Answer, Task, lane_of};

/// How long a client may take between its first byte and its last before somebody more patient takes over. A plugin sends
/// all at once; it takes longer only where it has to wait for a processor.
pub(super) const PATIENCE: Duration = Duration::from_millis(10);
/// A usual call has one to two KiB.
const LARGEST: usize = 64 << 10;
const FIRST_READ: usize = 8 << 10;

/// Serves a client, or gives it back with what was read of it.
pub(super) fn serve(
    stream: UnixStream,
    guest: Guest,
    runtime: &Handle,
) -> Option<(UnixStream, Guest, Vec<u8>)> {
    let mut bytes = Vec::with_capacity(FIRST_READ);
    let Some(call) = read(&stream, &mut bytes) else { return Some((stream, guest, bytes)) };
    let service = Arc::clone(&guest.service);
    // Where it had to wait for its place, it waits with the others.
    let Some(place) = service.queue.place(lane_of(&call)) else { return Some((stream, guest, bytes)) };
    let (answer, afterwards) = match service.work.accept(call) {
        Ok(task) => perform(task, &stream),
        Err(answer) => (answer, None),
    };
    let (status, body) = reply::cni(&answer);
    let mut text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )
    .into_bytes();
    text.extend_from_slice(&body);
    write(stream, text, (guest, runtime));
    if let Some(afterwards) = afterwards {
        afterwards();
    }
    drop(place);
    None
}

type Afterwards = Box<dyn FnOnce()>;

fn perform(task: Task, client: &UnixStream) -> (Answer, Option<Afterwards>) {
    let refusal = task.refusal();
    let served = catch_unwind(AssertUnwindSafe(|| {
        let (answer, afterwards) = task.run(&|| hung_up(client));
        (answer, Some(Box::new(afterwards) as Afterwards))
    }));
    served.unwrap_or_else(|_| {
        tracing::error!("a request made the agent panic: please report it");
        (refusal.panicked(), None)
    })
}

/// Asked while nobody reads from the connection.
fn hung_up(client: &UnixStream) -> bool {
    let mut fds = [PollFd::new(client, PollFlags::RDHUP)];
    match poll(&mut fds, Some(&Timespec::default())) {
        Ok(_) => fds[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR),
        // It cannot be asked: it shows when it is answered.
        Err(_) => false,
    }
}

/// The whole call; None where it is none, or not there in time.
fn read(stream: &UnixStream, bytes: &mut Vec<u8>) -> Option<CniCall> {
    let end = Instant::now() + PATIENCE;
    let mut wanted = None;
    loop {
        if read_some(stream, bytes, end)? == 0 {
            return None;
        }
        if wanted.is_none() {
            wanted = match Head::parse(bytes) {
                Head::Whole { length, body } => Some((length, body)),
                Head::Partial => None,
                Head::Other => return None,
            };
        }
        if let Some((head, body)) = wanted {
            let found = bytes.len() - head;
            if found == body {
                return serde_json::from_slice(&bytes[head..]).ok();
            }
            if found > body || head + body > LARGEST {
                return None;
            }
        }
    }
}

/// Waits for the next bytes until the end; None where they do not come.
fn read_some(stream: &UnixStream, bytes: &mut Vec<u8>, end: Instant) -> Option<usize> {
    if bytes.len() >= LARGEST {
        return None;
    }
    let old = bytes.len();
    bytes.resize(old + FIRST_READ, 0);
    let read = loop {
        match recv(stream, &mut bytes[old..], RecvFlags::DONTWAIT) {
            Ok((count, _)) => break Some(count),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if is_readable(stream, end) => {}
            Err(_) => break None,
        }
    };
    bytes.truncate(old + read.unwrap_or(0));
    read
}

fn is_readable(stream: &UnixStream, end: Instant) -> bool {
    let left = end.saturating_duration_since(Instant::now());
    let Ok(left) = Timespec::try_from(left) else { return false };
    matches!(poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&left)), Ok(1..))
}

/// A request's head, as far as it is the plugin's.
#[derive(Debug, PartialEq, Eq)]
enum Head {
    Whole {
        length: usize,
        body: usize,
    },
    Partial,
    /// Somebody else's.
    Other,
}

impl Head {
    fn parse(bytes: &[u8]) -> Self {
        let first = format!("POST {} HTTP/1.1\r\n", api::CNI);
        let common = first.len().min(bytes.len());
        if bytes[..common] != first.as_bytes()[..common] {
            return Self::Other;
        }
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Self::Partial };
        let headers = bytes.get(first.len()..end).and_then(|headers| std::str::from_utf8(headers).ok());
        match headers.and_then(body_of) {
            Some(body) => Self::Whole { length: end + 4, body },
            None => Self::Other,
        }
    }
}

/// The body's length, where nothing but what the plugin says is said.
fn body_of(headers: &str) -> Option<usize> {
    let (mut length, mut closes) = (None, false);
    for header in headers.split("\r\n") {
        let (name, value) = header.split_once(':')?;
        let value = value.trim_matches([' ', '\t']);
        match name {
            "Host" | "Content-Type" => {}
            "Connection" if value.eq_ignore_ascii_case("close") => closes = true,
            "Content-Length" if length.is_none() && value.bytes().all(|b| b.is_ascii_digit()) => {
                length = Some(value.parse().ok()?);
            }
            _ => return None,
        }
    }
    length.filter(|length| closes && *length <= LARGEST)
}

/// Whoever does not read its answer is the runtime's, for as long as it may take.
fn write(stream: UnixStream, mut text: Vec<u8>, (guest, runtime): (Guest, &Handle)) {
    loop {
        match send(&stream, &text, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) if sent == text.len() => return,
            Ok(sent) => drop(text.drain(..sent)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break,
            Err(error) => {
                tracing::debug!("a client went without its answer: {error}");
                return;
            }
        }
    }
    match asynchronous(stream, runtime) {
        Ok(mut stream) => {
            runtime.spawn(async move {
                // It had its time. Until then it has its room.
                let _ = timeout(guest.bounds.answer, stream.write_all(&text)).await;
            });
        }
        Err(error) => tracing::debug!("a client went without its answer: {error}"),
    }
}

/// The same stream, for the runtime.
pub(super) fn asynchronous(stream: UnixStream, runtime: &Handle) -> io::Result<tokio::net::UnixStream> {
    stream.set_nonblocking(true)?;
    let _inside = runtime.enter();
    tokio::net::UnixStream::from_std(stream)
}

/// A stream of which something was read already.
pub(super) struct Begun<S> {
    read: Vec<u8>,
    /// How much of it was given out.
    given: usize,
    stream: S,
}

impl<S> Begun<S> {
    pub(super) fn new(read: Vec<u8>, stream: S) -> Self {
        Self { read, given: 0, stream }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Begun<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = &self.read[self.given..];
        if left.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let count = left.len().min(buffer.remaining());
        buffer.put_slice(&left[..count]);
        self.given += count;
        if self.given == self.read.len() {
            (self.read, self.given) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Begun<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(lines: &str) -> Head {
        Head::parse(format!("POST /v1/cni HTTP/1.1\r\n{lines}\r\n\r\n").as_bytes())
    }

    #[test]
    fn the_plugins_head_is_understood() {
        let lines =
            "Host: podwire\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 12";
        let length = "POST /v1/cni HTTP/1.1\r\n".len() + lines.len() + 4;
        assert_eq!(head(lines), Head::Whole { length, body: 12 });
        let whole = format!("POST /v1/cni HTTP/1.1\r\n{lines}\r\n\r\n");
        for cut in 0..whole.len() {
            assert_eq!(Head::parse(&whole.as_bytes()[..cut]), Head::Partial, "{cut}");
        }
    }

    #[test]
    fn all_else_is_left_to_hyper() {
        for lines in [
            "Host: a",
            "Host: a\r\nContent-Length: 3",
            "Host: a\r\nConnection: close",
            "Connection: keep-alive\r\nContent-Length: 3",
            "Connection: close\r\nContent-Length: 3\r\nContent-Length: 4",
            "Connection: close\r\nContent-Length: +3",
            "Connection: close\r\nContent-Length: 99999999999999999999",
            "Connection: close\r\nContent-Length: 65537",
            "Connection: close\r\nContent-Length: 3\r\nTransfer-Encoding: chunked",
            "Connection: close\r\nContent-Length: 3\r\nExpect: 100-continue",
            "Connection: close\r\nContent-Length : 3",
            "Connection: close\r\nContent-Length:",
            "Connection: close\r\n folded\r\nContent-Length: 3",
            "",
        ] {
            assert_eq!(head(lines), Head::Other, "{lines:?}");
        }
        for line in ["GET /v1/cni HTTP/1.1", "POST /v1/cni HTTP/1.0", "POST /v1/cnix HTTP/1.1"] {
            let text = format!("{line}\r\nConnection: close\r\nContent-Length: 3\r\n\r\n");
            assert_eq!(Head::parse(text.as_bytes()), Head::Other, "{line}");
        }
        assert_eq!(Head::parse(b"POST /v1/cni HTTP/1.1\r\n\r\n"), Head::Other);
    }
}
