//! The agent's API: HTTP and JSON over a unix socket for root and, if configured, metrics and health over TCP.
//!
//! Hyper serves all requests (`http`). Acceptor threads (`accept`) accept connections, and serve a CNI request directly if it
//! has arrived completely. The tokio thread serves all other connections and never blocks: CNI requests go to the queue,
//! and requests that read files run on blocking threads. Every operation that a client can delay has a timeout, so that a stuck
//! client blocks only its own connection.

mod accept;
mod client_socket;
mod client_uid;
mod denied;
mod explain;
mod http;
mod listen;
mod nodes;
mod object_details;
mod objects;
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
use crate::queue::{Queue, UnfinishedRequests};
use crate::reconciler::ReconcileRequests;
use crate::work::Work;
use accept::{Acceptors, CurrentListener};
use client_socket::ClientSocket;
use http::ConnectionRules;
use listen::ClientTimeouts;
pub(crate) use listen::{ServerError, SocketListener, SocketWatch, bind, bind_tcp, check};
use routes::{RequestContext, RequestOrigin};

/// Concurrent connections. Further ones wait in the kernel's backlog.
const MAX_CONNECTIONS: usize = 1200;
/// File descriptors that the agent needs besides connections.
const OTHER_FILES: u64 = 512;
/// Delay after a failed accept(2), for example without free file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Delay before a failed bind is retried, regardless of events in the directory. Otherwise two processes that want the same
/// path would replace each other's socket continuously.
const REBIND_PAUSE: Duration = Duration::from_secs(3);

/// The components that answer API requests.
pub(crate) struct ApiService {
    pub(crate) agent_status: Arc<AgentStatus>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) work: Arc<Work>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) description: NodeDescription,
    /// This node's blocks.
    pub(crate) allocations: Arc<NodeAllocations>,
    pub(crate) reconciler: ReconcileRequests,
    /// None if the store cannot be used.
    pub(crate) cluster: Option<MembershipHandle>,
    /// The CNI config for runtimes, or why there is none.
    pub(crate) cni_config: Box<dyn Fn() -> Result<String, String> + Send + Sync>,
}

/// Constant properties of the node.
pub(crate) struct NodeDescription {
    pub(crate) node: String,
    pub(crate) store: String,
    pub(crate) run_dir: PathBuf,
    pub(crate) socket: PathBuf,
    /// Its block list is empty.
    pub(crate) network: api::NetworkStatus,
}

/// The listeners of the agent.
pub(crate) struct Endpoints {
    pub(crate) socket: SocketListener,
    /// Only for metrics and health.
    pub(crate) tcp: Option<(SocketAddr, Result<TcpListener, ServerError>)>,
    pub(crate) users: AllowedUsers,
}

/// The users who may use the API.
pub(crate) struct AllowedUsers(Vec<u32>);

impl AllowedUsers {
    pub(crate) fn root_and_self() -> Self {
        Self(vec![0, geteuid().as_raw()])
    }

    fn origin(&self, stream: &UnixStream) -> RequestOrigin {
        match client_uid::client_uid(stream.as_fd()) {
            Ok(uid) if self.0.contains(&uid) => RequestOrigin::Socket,
            Ok(_) | Err(_) => RequestOrigin::Denied,
        }
    }
}

/// Serves until `stop` returns the time limit for in-flight requests. Then waits for them, and returns the unfinished ones.
pub(crate) async fn run(
    endpoints: Endpoints,
    service: Arc<ApiService>,
    stop: impl Future<Output = Duration>,
) -> UnfinishedRequests {
    let (stopping, stopped) = watch::channel(false);
    let max_connections = connection_limit();
    let permits = Arc::new(Semaphore::new(max_connections));
    let timeouts = endpoints.socket.timeouts;
    let server =
        HttpServer { service: Arc::clone(&service), timeouts, stopped, permits: Arc::clone(&permits) };
    if let Some(tcp) = endpoints.tcp {
        tokio::spawn(tcp::serve(tcp, server.clone()));
    }
    let watch = endpoints.socket.watch();
    let listener = Arc::new(CurrentListener::new(endpoints.socket.inner));
    let acceptors = Acceptors::new(Arc::clone(&listener), endpoints.users, server);
    if let Err(error) = acceptors.start() {
        tracing::error!(%error, "cannot start an acceptor thread");
        return UnfinishedRequests::default();
    }
    tokio::spawn(restore_socket(watch, acceptors));
    let deadline = Instant::now() + stop.await;
    stopping.send_replace(true);
    if let Err(error) = listener.close() {
        tracing::warn!(%error, "cannot close the socket");
    }
    // All permits are free when the last connection is closed. After a timeout, the queue below reports the unfinished requests.
    let all = u32::try_from(max_connections).unwrap_or(u32::MAX);
    let _ = timeout_at(deadline.into(), permits.acquire_many(all)).await;
    let queue = Arc::clone(&service.queue);
    let drained = tokio::task::spawn_blocking(move || queue.drain(deadline));
    drained.await.unwrap_or_default()
}

/// Raises the limit of open files if necessary, and returns how many connections it allows. A service starts with 1,024.
fn connection_limit() -> usize {
    let wanted = MAX_CONNECTIONS as u64 + OTHER_FILES;
    let limit = getrlimit(Resource::Nofile);
    let (mut current, maximum) = (limit.current.unwrap_or(u64::MAX), limit.maximum);
    if current < wanted {
        let raised = wanted.min(maximum.unwrap_or(wanted));
        match setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum }) {
            Ok(()) => current = raised,
            Err(error) => {
                tracing::warn!(%error, current, wanted = raised, "cannot raise the limit of open files");
            }
        }
    }
    usize::try_from(current.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX).clamp(64, MAX_CONNECTIONS)
}

/// Shared state of all connections.
#[derive(Clone)]
struct HttpServer {
    service: Arc<ApiService>,
    timeouts: ClientTimeouts,
    stopped: watch::Receiver<bool>,
    permits: Arc<Semaphore>,
}

/// State of one connection. Its permit is released when the connection ends.
struct HttpConnection {
    service: Arc<ApiService>,
    timeouts: ClientTimeouts,
    stopped: watch::Receiver<bool>,
    /// None for TCP connections, which have a separate limit.
    _permit: Option<OwnedSemaphorePermit>,
}

impl HttpServer {
    fn connection(&self, permit: impl Into<Option<OwnedSemaphorePermit>>) -> HttpConnection {
        let (service, timeouts, stopped) = (Arc::clone(&self.service), self.timeouts, self.stopped.clone());
        HttpConnection { service, timeouts, stopped, _permit: permit.into() }
    }

    /// Runs `step` unless the agent stops first.
    async fn unless_stopped<T>(&mut self, step: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = stop_requested(&mut self.stopped) => None,
            done = step => Some(done),
        }
    }
}

/// Returns when the agent stops. An error means that the sender was dropped.
async fn stop_requested(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Creates the socket again after another process removed or replaced it.
async fn restore_socket(watch: Arc<SocketWatch>, acceptors: Arc<Acceptors>) {
    let mut server = acceptors.server.clone();
    let mut path = SocketPath { watch, retry: None };
    while server.unless_stopped(path.may_be_lost()).await.is_some() {
        let Some(new) = path.rebind(&server.service.agent_status) else { continue };
        let done = acceptors.listener.replace(new.inner).and_then(|old| match old {
            Some(old) => acceptors.accept_backlog(&old),
            None => Ok(()),
        });
        if let Err(error) = done {
            tracing::warn!(%error, "connections of the removed socket were lost");
        }
    }
}

/// The socket's path, which another process may remove or replace.
struct SocketPath {
    watch: Arc<SocketWatch>,
    retry: Option<Instant>,
}

impl SocketPath {
    async fn may_be_lost(&self) {
        match self.retry {
            None => self.watch.lost.notified().await,
            Some(at) => sleep_until(at.into()).await,
        }
    }

    /// Creates the socket again. None if the path still belongs to the current socket, or if the attempt failed.
    fn rebind(&mut self, agent_status: &AgentStatus) -> Option<SocketListener> {
        let path = &self.watch.path;
        let bound = if self.watch.is_current() { Ok(None) } else { bind(path).map(Some) };
        match bound {
            Ok(new) => {
                self.retry = None;
                agent_status.set(Source::Socket, Vec::new());
                if let Some(new) = &new {
                    tracing::warn!(path = %path.display(), "socket was removed or replaced; created it again");
                    self.watch.set_identity(new);
                }
                new
            }
            Err(error) => {
                self.retry = Some(Instant::now() + REBIND_PAUSE);
                agent_status.set(Source::Socket, vec![socket_lost(path, &error)]);
                None
            }
        }
    }
}

fn socket_lost(path: &Path, error: &ServerError) -> Finding {
    let finding = Finding::new(Code::SocketLost, format_args!("socket {}", path.display()), error);
    match error {
        // The agent retries, so the path only has to be free.
        ServerError::NotASocket(path) => {
            let path = path.to_string_lossy();
            finding.fix(Fix::words(["mv", &path, &format!("{path}.old")]))
        }
        ServerError::Socket { .. }
        | ServerError::TooLong(_)
        | ServerError::Taken(_)
        | ServerError::Tcp { .. } => finding,
    }
}

/// Serves one client. If the connection ends before the answer, the [`crate::work::ClientGuard`] cancels the request.
async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    (origin, client): (RequestOrigin, Option<Arc<ClientSocket>>),
    connection: HttpConnection,
) {
    let HttpConnection { service, timeouts, stopped, _permit } = connection;
    let context = RequestContext { origin, body_timeout: timeouts.body, client };
    // A TCP connection serves one request, so that a client cannot occupy it with repeated requests.
    let rules = ConnectionRules { timeouts, keep_alive: origin != RequestOrigin::Tcp, stopped };
    let answer = |request| {
        let (service, context) = (Arc::clone(&service), context.clone());
        async move { routes::answer(&service, &context, request).await }
    };
    http::serve(stream, rules, answer).await;
}

#[cfg(test)]
mod tests;
