//! The agent's socket: HTTP and JSON for root, over a unix socket; and, where asked for, metrics and health over TCP.
//!
//! Threads at the door (`door`) take clients in and serve a plugin's call at once (`quick`). All else is done by one thread
//! that never blocks: CNI requests go to the queue, and what reads files goes to a thread of its own. Everything a client
//! can take its time with has an end, so a stuck one holds its own connection and nothing else.

mod door;
mod listen;
mod nodes;
mod peer;
mod quick;
mod reply;
mod routes;
mod tcp;
mod timed;
mod view;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::cluster::Cut;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep_until, timeout_at};
use types::{Code, Finding};

use crate::board::Board;
use crate::cluster::Cluster;
use crate::conditions::Source;
use crate::keeper::Bell;
use crate::metrics::Metrics;
use crate::queue::{Leftover, Queue};
use crate::share::Shares;
use crate::work::Work;
use door::{Door, Porters};
use listen::Bounds;
pub(crate) use listen::{Listener, ServerError, SocketWatch, bind, bind_tcp, check};
use routes::{Visit, Way};
use timed::Timed;

/// Connections at once; more wait in the kernel's backlog.
const MOST_CONNECTIONS: usize = 1200;
/// Files that the agent needs besides connections.
const OTHER_FILES: u64 = 512;
/// Out of files or memory: others must end something first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How soon a socket that could not be made again is tried again. Not sooner, whatever happens in its folder: two that
/// want the same name would otherwise fight for it.
const REBIND_PAUSE: Duration = Duration::from_secs(3);

/// What is asked for, and who knows.
pub(crate) struct Service {
    pub(crate) board: Arc<Board>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) work: Arc<Work>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) facts: Facts,
    /// This node's part of the network.
    pub(crate) shares: Arc<Shares>,
    /// Asks for a reconcile round.
    pub(crate) bell: Bell,
    /// None: its store cannot be used.
    pub(crate) cluster: Option<Cluster>,
    /// The CNI config for runtimes, or why there is none.
    pub(crate) cni_config: Box<dyn Fn() -> Result<String, String> + Send + Sync>,
}

/// What does not change while the agent runs.
pub(crate) struct Facts {
    pub(crate) node: String,
    pub(crate) store: String,
    pub(crate) run_dir: PathBuf,
    pub(crate) socket: PathBuf,
    /// Without blocks.
    pub(crate) network: api::NetworkStatus,
    /// How the network is cut into blocks.
    pub(crate) cuts: Vec<Cut>,
}

/// Where the agent listens.
pub(crate) struct Doors {
    pub(crate) socket: Listener,
    /// For metrics and health alone.
    pub(crate) tcp: Option<(SocketAddr, Result<TcpListener, ServerError>)>,
    pub(crate) peers: Peers,
}

/// The users who may ask.
pub(crate) struct Peers(Vec<u32>);

impl Peers {
    pub(crate) fn root_and_self() -> Self {
        Self(vec![0, geteuid().as_raw()])
    }

    fn way(&self, stream: &UnixStream) -> Way {
        match peer::uid(stream.as_fd()) {
            Ok(uid) if self.0.contains(&uid) => Way::Socket,
            Ok(_) | Err(_) => Way::Denied,
        }
    }
}

/// Serves until `stop` says how long what is under way may still take; then waits for it, and says what was left.
pub(crate) async fn run(
    doors: Doors,
    service: Arc<Service>,
    stop: impl Future<Output = Duration>,
) -> Leftover {
    let (stopping, stopped) = watch::channel(false);
    let most = connections();
    let room = Arc::new(Semaphore::new(most));
    let bounds = doors.socket.bounds;
    let house = House { service: Arc::clone(&service), bounds, stopped, room: Arc::clone(&room) };
    if let Some(tcp) = doors.tcp {
        tokio::spawn(tcp::serve(tcp, house.clone()));
    }
    let watch = doors.socket.watch();
    let door = Arc::new(Door::new(doors.socket.inner));
    let porters = Porters::new(Arc::clone(&door), doors.peers, house);
    if let Err(error) = porters.start() {
        tracing::error!("cannot start a thread that takes clients in: {error}");
        return Leftover::default();
    }
    tokio::spawn(keep_name(watch, porters));
    let deadline = Instant::now() + stop.await;
    stopping.send_replace(true);
    if let Err(error) = door.close() {
        tracing::warn!("cannot close the socket: {error}");
    }
    // All room is there again when the last connection is closed. If not, the queue below says what was left.
    let all = u32::try_from(most).unwrap_or(u32::MAX);
    let _ = timeout_at(deadline.into(), room.acquire_many(all)).await;
    let queue = Arc::clone(&service.queue);
    let drained = tokio::task::spawn_blocking(move || queue.drain(deadline));
    drained.await.unwrap_or_default()
}

/// How many connections the limit of open files allows. A service starts with 1,024 and may have more if it asks.
fn connections() -> usize {
    let wanted = MOST_CONNECTIONS as u64 + OTHER_FILES;
    let limit = getrlimit(Resource::Nofile);
    let (mut current, maximum) = (limit.current.unwrap_or(u64::MAX), limit.maximum);
    if current < wanted {
        let raised = wanted.min(maximum.unwrap_or(wanted));
        match setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum }) {
            Ok(()) => current = raised,
            Err(e) => tracing::warn!("cannot raise the limit of open files from {current} to {raised}: {e}"),
        }
    }
    usize::try_from(current.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX).clamp(64, MOST_CONNECTIONS)
}

/// What every connection needs.
#[derive(Clone)]
struct House {
    service: Arc<Service>,
    bounds: Bounds,
    stopped: watch::Receiver<bool>,
    room: Arc<Semaphore>,
}

/// A client's part of it; its room is free again when the connection ends.
struct Guest {
    service: Arc<Service>,
    bounds: Bounds,
    stopped: watch::Receiver<bool>,
    /// None: it is counted elsewhere.
    _room: Option<OwnedSemaphorePermit>,
}

impl House {
    fn guest(&self, room: impl Into<Option<OwnedSemaphorePermit>>) -> Guest {
        let (service, bounds, stopped) = (Arc::clone(&self.service), self.bounds, self.stopped.clone());
        Guest { service, bounds, stopped, _room: room.into() }
    }

    /// Runs the next step of accepting, unless it is over.
    async fn unless_stopped<T>(&mut self, step: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = over(&mut self.stopped) => None,
            done = step => Some(done),
        }
    }
}

/// Returns when no more is to be taken. (An error means that nobody is left who could say so.)
async fn over(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Makes the socket again where somebody took its name away.
async fn keep_name(watch: Arc<SocketWatch>, porters: Arc<Porters>) {
    let mut house = porters.house.clone();
    let mut name = Name { watch, retry: None };
    while house.unless_stopped(name.may_be_lost()).await.is_some() {
        let Some(new) = name.regain(&house.service.board) else { continue };
        let done = porters.door.replace(new.inner).and_then(|old| match old {
            Some(old) => porters.finish(&old),
            None => Ok(()),
        });
        if let Err(error) = done {
            tracing::warn!("clients of the socket that was removed are lost: {error}");
        }
    }
}

/// The socket's name in the file system, which others can take away.
struct Name {
    watch: Arc<SocketWatch>,
    retry: Option<Instant>,
}

impl Name {
    async fn may_be_lost(&self) {
        match self.retry {
            None => self.watch.again.notified().await,
            Some(at) => sleep_until(at.into()).await,
        }
    }

    /// The socket under its name again; None where it has it still, or cannot get it now.
    fn regain(&mut self, board: &Board) -> Option<Listener> {
        let path = &self.watch.path;
        let made = if self.watch.is_ours() { Ok(None) } else { bind(path).map(Some) };
        match made {
            Ok(new) => {
                self.retry = None;
                board.set(Source::Socket, Vec::new());
                if let Some(new) = &new {
                    tracing::warn!("the socket {} was removed or replaced: made again", path.display());
                    self.watch.renew(new);
                }
                new
            }
            Err(error) => {
                self.retry = Some(Instant::now() + REBIND_PAUSE);
                let what = error.to_string();
                let found = Finding::new(Code::SocketLost, format_args!("socket {}", path.display()), what);
                board.set(Source::Socket, vec![found]);
                None
            }
        }
    }
}

/// One client, request after request. Its end, for whatever reason, drops what waits for an answer, and with it the
/// [`crate::work::Line`] that tells the work that nobody does any more.
async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin + Send, way: Way, guest: Guest) {
    let Guest { service, bounds, mut stopped, _room } = guest;
    let visit = Visit { way, body_time: bounds.body };
    let answer = service_fn(move |request| {
        let service = Arc::clone(&service);
        async move { Ok::<_, Infallible>(routes::answer(&service, visit, request).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(bounds.head).max_headers(32).max_buf_size(64 << 10);
    // Over TCP a connection is for one request: a client cannot hold its place by asking again and again.
    builder.keep_alive(way != Way::Tcp);
    let mut served = pin!(builder.serve_connection(TokioIo::new(Timed::new(stream, bounds.answer)), answer));
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = over(&mut stopped) => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection ended early: {error}");
    }
}

#[cfg(test)]
mod tests;
