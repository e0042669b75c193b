//! Streamed answers: hyper polls for the next part only when the client can receive it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use http_body_util::BodyExt as _;
use hyper::body::{Body, Bytes, Frame};
use hyper::{Request, Response};
use tokio::time::timeout;

use super::super::client_socket::ClientIo;
use super::super::reply::{BodyError, HttpReply};
use super::*;

const PART: usize = 16 << 10;
/// More than hyper and the kernel buffer for a client that does not read.
const MAX_BUFFERED: usize = 4 << 20;

/// A body of unknown length.
struct Endless {
    parts: Arc<AtomicUsize>,
    /// The number of parts that it produces. Then it is pending and is never woken.
    limit: usize,
    /// Closed when the body is dropped.
    _alive: mpsc::Sender<()>,
}

impl Body for Endless {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.parts.load(Ordering::Relaxed) == self.limit {
            return Poll::Pending;
        }
        self.parts.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; PART])))))
    }
}

struct Streaming {
    client: Client,
    parts: Arc<AtomicUsize>,
    dropped: mpsc::Receiver<()>,
    stop: watch::Sender<bool>,
}

impl Streaming {
    /// A client that requested a stream, and the connection that serves it.
    fn start(limit: usize) -> (Self, impl Future<Output = ()>) {
        let (mut client, server) = Client::pair().unwrap();
        client.write_all(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        client.set_nonblocking(true).unwrap();
        let (alive, dropped) = mpsc::channel();
        let (stop, stopped) = watch::channel(false);
        let parts = Arc::<AtomicUsize>::default();
        let produced = Arc::clone(&parts);
        let hour = Duration::from_secs(3600);
        let timeouts = ClientTimeouts { head: hour, body: hour, answer: hour };
        let answer = move |_: Request<_>| {
            let (parts, _alive) = (Arc::clone(&produced), alive.clone());
            async move { HttpReply::from(Response::new(Endless { parts, limit, _alive }.boxed_unsync())) }
        };
        let rules = ConnectionRules { timeouts, keep_alive: true, stopped };
        let io = ClientIo::new(ClientSocket::new(server));
        (Self { client, parts, dropped, stop }, http::serve(io, rules, answer))
    }

    fn produced(&self) -> usize {
        self.parts.load(Ordering::Relaxed)
    }

    /// Reads the available bytes.
    fn read(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self.client.read_to_end(&mut bytes) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        bytes
    }

    /// Whether the body was dropped. The connection owns its sender and the one in `answer`.
    fn is_dropped(&self) -> bool {
        self.dropped.try_recv() == Err(mpsc::TryRecvError::Disconnected)
    }
}

fn block_on<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(TEST_TIMEOUT, test).await.expect("the test timed out") })
}

#[test]
fn a_stream_waits_for_a_client_that_does_not_read() {
    block_on(async {
        let (mut streaming, connection) = Streaming::start(usize::MAX);
        let mut connection = pin!(connection);
        let mut poll_now = || {
            let polled = connection.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
        };
        // Tokio reports that the socket is readable and writable.
        while streaming.produced() == 0 {
            poll_now();
            tokio::task::yield_now().await;
        }
        for _ in 0..3 {
            // Hyper returns after some parts to let other connections run. It waits for the client when a poll produces no part.
            let mut before = usize::MAX;
            while before != streaming.produced() {
                before = streaming.produced();
                poll_now();
            }
            assert!(before * PART < MAX_BUFFERED, "{before} parts without a reader");
            assert!(!streaming.read().is_empty());
            while streaming.produced() == before {
                tokio::task::yield_now().await;
                poll_now();
            }
            streaming.parts.store(0, Ordering::Relaxed);
        }
    });
}

#[test]
fn a_stream_ends_when_its_client_disconnects() {
    // A body that is sending, and one that waits for its next part.
    for limit in [usize::MAX, 1] {
        block_on(async {
            let (streaming, connection) = Streaming::start(limit);
            let task = tokio::spawn(connection);
            while streaming.produced() == 0 {
                tokio::task::yield_now().await;
            }
            assert!(!streaming.is_dropped());
            streaming.client.shutdown(std::net::Shutdown::Both).unwrap();
            task.await.unwrap();
            assert!(streaming.is_dropped());
        });
    }
}

#[test]
fn a_stream_is_cut_off_when_the_agent_stops() {
    block_on(async {
        let (mut streaming, connection) = Streaming::start(1);
        let task = tokio::spawn(connection);
        let mut text = Vec::new();
        while text.len() < PART {
            text.extend(streaming.read());
            tokio::task::yield_now().await;
        }
        streaming.stop.send_replace(true);
        task.await.unwrap();
        text.extend(streaming.read());
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n"), "{text}");
        assert!(!text.ends_with("0\r\n\r\n"), "the client could take the partial body for a complete one");
    });
}
