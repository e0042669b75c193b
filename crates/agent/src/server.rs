//! The agent's socket: HTTP and JSON for root, over a unix socket; and, where asked for, metrics and health over TCP.
//!
//! Hyper serves all requests (`http`). Acceptor threads (`accept`) accept connections and serve a CNI request themselves if
//! it has arrived completely. All other connections are served by the runtime's thread, which never blocks: CNI requests go
//! to the queue, and requests that read files go to a thread of their own. Everything that a client can delay has a timeout,
//! so that a stuck client holds its own connection and nothing else.

mod accept;
mod client_socket;
mod http;
mod listen;
mod nodes;
mod peer;
mod reply;
mod routes;
mod tcp;
mod view;
mod write_timeout;

use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::BlockLayout;
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep_until, timeout_at};
use types::{Code, Finding, Fix};

use crate::agent_status::AgentStatus;
use crate::allocation::NodeAllocations;
use crate::conditions::Source;
use crate::membership::MembershipHandle;
use crate::metrics::Metrics;
use crate::queue::{Leftover, Queue};
use crate::reconciler::ReconcileRequests;
use crate::work::Work;
use accept::{Acceptors, CurrentListener};
use client_socket::ClientSocket;
use http::ConnectionRules;
use listen::Bounds;
pub(crate) use listen::{ServerError, SocketListener, SocketWatch, bind, bind_tcp, check};
use routes::{RequestContext, RequestOrigin};

/// Connections at once; more wait in the kernel's backlog.
const MOST_CONNECTIONS: usize = 1200;
/// Files that the agent needs besides connections.
const OTHER_FILES: u64 = 512;
/// Out of files or memory: others must end something first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How soon a socket that could not be made again is tried again. Not sooner, whatever happens in its directory: two that
/// want the same name would otherwise fight for it.
const REBIND_PAUSE: Duration = Duration::from_secs(3);

/// What is asked for, and who knows.
pub(crate) struct ApiService {
    pub(crate) agent_status: Arc<AgentStatus>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) work: Arc<Work>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) description: NodeDescription,
    /// This node's part of the network.
    pub(crate) allocations: Arc<NodeAllocations>,
    pub(crate) reconciler: ReconcileRequests,
    /// None: its store cannot be used.
    pub(crate) cluster: Option<MembershipHandle>,
    /// The CNI config for runtimes, or why there is none.
    pub(crate) cni_config: Box<dyn Fn() -> Result<String, String> + Send + Sync>,
}

/// What does not change while the agent runs.
pub(crate) struct NodeDescription {
    pub(crate) node: String,
    pub(crate) store: String,
    pub(crate) run_dir: PathBuf,
    pub(crate) socket: PathBuf,
    /// Without blocks.
    pub(crate) network: api::NetworkStatus,
    /// How the network is cut into blocks.
    pub(crate) block_layouts: Vec<BlockLayout>,
}

/// Where the agent listens.
pub(crate) struct Endpoints {
    pub(crate) socket: SocketListener,
    /// For metrics and health alone.
    pub(crate) tcp: Option<(SocketAddr, Result<TcpListener, ServerError>)>,
    pub(crate) users: AllowedUsers,
}

/// The users who may ask.
pub(crate) struct AllowedUsers(Vec<u32>);

impl AllowedUsers {
    pub(crate) fn root_and_self() -> Self {
        Self(vec![0, geteuid().as_raw()])
    }

    fn origin(&self, stream: &UnixStream) -> RequestOrigin {
        match peer::uid(stream.as_fd()) {
            Ok(uid) if self.0.contains(&uid) => RequestOrigin::Socket,
            Ok(_) | Err(_) => RequestOrigin::Denied,
        }
    }
}

/// Serves until `stop` says how long requests in flight may still take; then waits for them, and returns what was left.
pub(crate) async fn run(
    endpoints: Endpoints,
    service: Arc<ApiService>,
    stop: impl Future<Output = Duration>,
) -> Leftover {
    let (stopping, stopped) = watch::channel(false);
    let most = connections();
    let permits = Arc::new(Semaphore::new(most));
    let bounds = endpoints.socket.bounds;
    let server = HttpServer { service: Arc::clone(&service), bounds, stopped, permits: Arc::clone(&permits) };
    if let Some(tcp) = endpoints.tcp {
        tokio::spawn(tcp::serve(tcp, server.clone()));
    }
    let watch = endpoints.socket.watch();
    let listener = Arc::new(CurrentListener::new(endpoints.socket.inner));
    let acceptors = Acceptors::new(Arc::clone(&listener), endpoints.users, server);
    if let Err(error) = acceptors.start() {
        tracing::error!("cannot start an acceptor thread: {error}");
        return Leftover::default();
    }
    tokio::spawn(keep_name(watch, acceptors));
    let deadline = Instant::now() + stop.await;
    stopping.send_replace(true);
    if let Err(error) = listener.close() {
        tracing::warn!("cannot close the socket: {error}");
    }
    // All permits are free again when the last connection is closed. If not, the queue below says what was left.
    let all = u32::try_from(most).unwrap_or(u32::MAX);
    let _ = timeout_at(deadline.into(), permits.acquire_many(all)).await;
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
struct HttpServer {
    service: Arc<ApiService>,
    bounds: Bounds,
    stopped: watch::Receiver<bool>,
    permits: Arc<Semaphore>,
}

/// What one connection needs. Its permit is free again when the connection ends.
struct HttpConnection {
    service: Arc<ApiService>,
    bounds: Bounds,
    stopped: watch::Receiver<bool>,
    /// None: it is counted elsewhere.
    _permit: Option<OwnedSemaphorePermit>,
}

impl HttpServer {
    fn connection(&self, permit: impl Into<Option<OwnedSemaphorePermit>>) -> HttpConnection {
        let (service, bounds, stopped) = (Arc::clone(&self.service), self.bounds, self.stopped.clone());
        HttpConnection { service, bounds, stopped, _permit: permit.into() }
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
async fn keep_name(watch: Arc<SocketWatch>, acceptors: Arc<Acceptors>) {
    let mut server = acceptors.server.clone();
    let mut name = SocketName { watch, retry: None };
    while server.unless_stopped(name.may_be_lost()).await.is_some() {
        let Some(new) = name.regain(&server.service.agent_status) else { continue };
        let done = acceptors.listener.replace(new.inner).and_then(|old| match old {
            Some(old) => acceptors.finish(&old),
            None => Ok(()),
        });
        if let Err(error) = done {
            tracing::warn!("clients of the socket that was removed are lost: {error}");
        }
    }
}

/// The socket's name in the file system, which others can take away.
struct SocketName {
    watch: Arc<SocketWatch>,
    retry: Option<Instant>,
}

impl SocketName {
    async fn may_be_lost(&self) {
        match self.retry {
            None => self.watch.again.notified().await,
            Some(at) => sleep_until(at.into()).await,
        }
    }

    /// The socket under its name again; None where it has it still, or cannot get it now.
    fn regain(&mut self, agent_status: &AgentStatus) -> Option<SocketListener> {
        let path = &self.watch.path;
        let made = if self.watch.is_ours() { Ok(None) } else { bind(path).map(Some) };
        match made {
            Ok(new) => {
                self.retry = None;
                agent_status.set(Source::Socket, Vec::new());
                if let Some(new) = &new {
                    tracing::warn!("the socket {} was removed or replaced: made again", path.display());
                    self.watch.renew(new);
                }
                new
            }
            Err(error) => {
                self.retry = Some(Instant::now() + REBIND_PAUSE);
                agent_status.set(Source::Socket, vec![lost(path, &error)]);
                None
            }
        }
    }
}

fn lost(path: &Path, error: &ServerError) -> Finding {
    let found = Finding::new(Code::SocketLost, format_args!("socket {}", path.display()), error);
    match error {
        // The agent retries: the path only has to be free.
        ServerError::NotASocket(path) => {
            let path = path.to_string_lossy();
            found.fix(Fix::words(["mv", &path, &format!("{path}.old")]))
        }
        ServerError::Socket { .. }
        | ServerError::TooLong(_)
        | ServerError::Taken(_)
        | ServerError::Tcp { .. } => found,
    }
}

/// One client. Dropping what waits for an answer drops its [`crate::work::ClientGuard`], which cancels the work.
async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    (origin, client): (RequestOrigin, Option<Arc<ClientSocket>>),
    connection: HttpConnection,
) {
    let HttpConnection { service, bounds, stopped, _permit } = connection;
    let context = RequestContext { origin, body_time: bounds.body, client };
    // Over TCP a connection is for one request: a client cannot hold its place by asking again and again.
    let rules = ConnectionRules { bounds, keep_alive: origin != RequestOrigin::Tcp, stopped };
    let answer = |request| {
        let (service, context) = (Arc::clone(&service), context.clone());
        async move { routes::answer(&service, &context, request).await }
    };
    http::serve(stream, rules, answer).await;
}

#[cfg(test)]
mod tests;
