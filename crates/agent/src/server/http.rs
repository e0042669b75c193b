//! HTTP/1.1 on one connection, by hyper. Used for the requests of all listeners.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use http_body_util::BodyExt as _;
use hyper::Request;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use super::listen::ClientTimeouts;
use super::reply::{BodyError, HttpReply, ReplyBody};
use super::stop_requested;
use super::write_timeout::WriteTimeout;

/// Limits of a connection.
pub(super) struct ConnectionRules {
    pub(super) timeouts: ClientTimeouts,
    /// Whether the connection may carry several requests.
    pub(super) keep_alive: bool,
    pub(super) stopped: watch::Receiver<bool>,
}

/// Serves the requests of one client. When the client closes the connection, hyper drops the pending answer and the body that is
/// being sent.
pub(super) async fn serve<F: Future<Output = HttpReply>>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    rules: ConnectionRules,
    answer: impl Fn(Request<Incoming>) -> F,
) {
    let ConnectionRules { timeouts, keep_alive, mut stopped } = rules;
    let until = stopped.clone();
    let service = service_fn(|request| {
        let (reply, until) = (answer(request), until.clone());
        async move { Ok::<_, Infallible>(reply.await.map(|body| until_stopped(body, until))) }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(timeouts.head)
        .max_headers(32)
        .max_buf_size(64 << 10);
    builder.keep_alive(keep_alive);
    let mut served =
        pin!(builder.serve_connection(TokioIo::new(WriteTimeout::new(stream, timeouts.answer)), service));
    let ended = tokio::select! {
        // First, so that a request that has arrived is answered even while the agent stops.
        biased;
        ended = served.as_mut() => ended,
        () = stop_requested(&mut stopped) => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended early");
    }
}

/// A body of known length is sent completely. A stream of unknown length is cut off when the agent stops.
fn until_stopped(body: ReplyBody, mut stopped: watch::Receiver<bool>) -> ReplyBody {
    if body.size_hint().exact().is_some() {
        return body;
    }
    let stopped = Box::pin(async move { stop_requested(&mut stopped).await });
    UntilStopped { body, stopped }.boxed_unsync()
}

struct UntilStopped {
    body: ReplyBody,
    stopped: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Body for UntilStopped {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.stopped.as_mut().poll(cx).is_ready() {
            // An error, so that the client does not take the partial body for a complete one.
            return Poll::Ready(Some(Err("the agent is stopping".into())));
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
