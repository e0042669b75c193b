//! Maps paths to handlers.

use std::sync::Arc;
use std::time::Duration;

use api::{CniCall, VersionAnswer};
use cni::{Command, Version};
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use model::ObjectId;
use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::json;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};
use types::RequestId;

use super::nodes::{self, ClusterQuery};
use super::objects::{self, ObjectPath};
use super::reply::{self, HttpReply};
use super::{ApiService, ClientSocket, view};
use crate::contiv::{self, ContivPod, PodAnswer};
use crate::metrics;
use crate::queue::{QueueRefusal, RequestClass, WorkerSlot};
use crate::work::{Answer, ClientGuard, RejectedTask, Task};

/// Metrics over TCP are rendered one at a time. Otherwise clients that disconnect early would leave an unbounded backlog on the
/// threads that also serve `podwire status`.
static SCRAPES: Semaphore = Semaphore::const_new(1);

/// The listener and permission of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestOrigin {
    Socket,
    /// From a user without permission.
    Denied,
    Tcp,
}

/// The connection of a request.
#[derive(Clone)]
pub(super) struct RequestContext {
    pub(super) origin: RequestOrigin,
    /// Timeout for the request body.
    pub(super) body_timeout: Duration,
    /// None for TCP.
    pub(super) client: Option<Arc<ClientSocket>>,
}

/// The routes of the API.
#[derive(Debug, PartialEq, Eq)]
enum ApiRoute {
    Cni,
    Pod(Command),
    Health,
    Ready,
    Version,
    Local(LocalQuery),
    Cluster(ClusterQuery),
    Objects(ObjectPath),
    ObjectDetails(ObjectId),
}

/// Queries that read files.
#[derive(Debug, PartialEq, Eq)]
enum LocalQuery {
    /// All attachments, or those of one container.
    Attachments(Option<String>),
    Status,
    CniConfig,
    Metrics,
}

impl ApiRoute {
    fn find(path: &str) -> Option<Self> {
        Some(match path {
            api::CNI => Self::Cni,
            api::HEALTH => Self::Health,
            api::READY => Self::Ready,
            api::ATTACHMENTS => Self::Local(LocalQuery::Attachments(None)),
            api::VERSION => Self::Version,
            api::STATUS => Self::Local(LocalQuery::Status),
            api::CNI_CONFIG => Self::Local(LocalQuery::CniConfig),
            api::METRICS => Self::Local(LocalQuery::Metrics),
            contiv::ADD_POD => Self::Pod(Command::Add),
            contiv::DEL_POD => Self::Pod(Command::Del),
            _ => match path.strip_prefix(api::ATTACHMENTS).and_then(|path| path.strip_prefix('/')) {
                Some(container) => Self::Local(LocalQuery::Attachments(Some(container.to_owned()))),
                None => match (ObjectPath::find(path), ObjectPath::find_details(path)) {
                    (Some(path), _) => Self::Objects(path),
                    (None, Some(id)) => Self::ObjectDetails(id),
                    (None, None) => Self::Cluster(ClusterQuery::find(path)?),
                },
            },
        })
    }

    /// None: it depends on the request.
    fn method(&self) -> Option<Method> {
        Some(match self {
            Self::Objects(_) => return None,
            Self::Cni | Self::Pod(_) => Method::POST,
            Self::Cluster(ClusterQuery::Remove(_)) => Method::DELETE,
            Self::Health
            | Self::Ready
            | Self::Version
            | Self::Local(_)
            | Self::ObjectDetails(_)
            | Self::Cluster(_) => Method::GET,
        })
    }

    /// Routes that reveal nothing about pods and change nothing.
    fn is_public(&self) -> bool {
        matches!(self, Self::Health | Self::Ready | Self::Local(LocalQuery::Metrics))
    }
}

pub(super) async fn answer(
    service: &Arc<ApiService>,
    context: &RequestContext,
    request: Request<Incoming>,
) -> HttpReply {
    let RequestContext { origin, body_timeout, client } = context;
    let (origin, body_timeout, client) = (*origin, *body_timeout, client.as_deref());
    if origin == RequestOrigin::Denied {
        return reply::error(StatusCode::FORBIDDEN, "access denied: only root may use the agent's API");
    }
    let route = ApiRoute::find(request.uri().path())
        .filter(|route| origin != RequestOrigin::Tcp || route.is_public());
    let Some(route) = route else { return reply::error(StatusCode::NOT_FOUND, api::PAGE_NOT_FOUND) };
    if let Some(method) = route.method().filter(|method| method != request.method()) {
        return reply::not_allowed(&method);
    }
    match route {
        ApiRoute::Cni => match reply::read(request, body_timeout).await {
            Ok(body) => cni(service, client, &body).await,
            Err(reply) => reply,
        },
        ApiRoute::Pod(command) => match reply::read(request, body_timeout).await {
            Ok(body) => pod(service, client, (command, &body)).await,
            Err(reply) => reply,
        },
        ApiRoute::Health => reply::json(StatusCode::OK, &json!({ "healthy": true })),
        ApiRoute::Ready => {
            let readiness = service.agent_status.readiness();
            let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            reply::json(status, &readiness)
        }
        ApiRoute::Version => {
            let cni_versions = Version::ALL.map(|version| version.as_str().to_owned()).to_vec();
            let version = env!("CARGO_PKG_VERSION").to_owned();
            reply::json(StatusCode::OK, &VersionAnswer { version, api: api::API_VERSION, cni_versions })
        }
        ApiRoute::Local(query) => {
            let permit = if origin == RequestOrigin::Tcp { SCRAPES.acquire().await.ok() } else { None };
            run_local(service, query, permit).await
        }
        ApiRoute::Objects(path) => objects::answer(service, path, request, body_timeout).await,
        ApiRoute::ObjectDetails(id) => objects::details(service, &id).await,
        ApiRoute::Cluster(query) => nodes::answer(service, query, request.uri().query()).await,
    }
}

/// Answers a query that reads files.
fn answer_local(service: &ApiService, query: &LocalQuery) -> Result<HttpReply, String> {
    match query {
        LocalQuery::Attachments(container) => {
            let all = view::attachments(&service.description.run_dir, container.as_deref());
            all.map(|all| reply::json(StatusCode::OK, &all))
        }
        LocalQuery::Status => Ok(reply::json(StatusCode::OK, &view::status(service))),
        LocalQuery::CniConfig => {
            (service.cni_config)().map(|text| reply::with_type(StatusCode::OK, reply::JSON, text))
        }
        LocalQuery::Metrics => {
            let page = service.metrics.render(&view::metrics_snapshot(service)).map_err(|e| e.to_string())?;
            Ok(reply::with_type(StatusCode::OK, metrics::CONTENT_TYPE, page))
        }
    }
}

/// Reads files on a blocking thread.
async fn run_local(
    service: &Arc<ApiService>,
    query: LocalQuery,
    permit: Option<SemaphorePermit<'static>>,
) -> HttpReply {
    let service = Arc::clone(service);
    let work = move || {
        let _permit = permit;
        answer_local(&service, &query)
    };
    let outcome = tokio::task::spawn_blocking(work).await;
    match outcome.unwrap_or_else(|_| Err("internal error: please report it with the agent's log".to_owned()))
    {
        Ok(reply) => reply,
        Err(message) => reply::error(StatusCode::INTERNAL_SERVER_ERROR, &message),
    }
}

async fn cni(service: &ApiService, client: Option<&ClientSocket>, body: &[u8]) -> HttpReply {
    let call: CniCall = match serde_json::from_slice(body) {
        Ok(call) => call,
        Err(cause) => {
            let message = format!("the body is not a CNI call (requestId, env, config): {cause}");
            return reply::error(StatusCode::BAD_REQUEST, &message);
        }
    };
    reply::cni(&perform(service, client, call).await)
}

/// Contiv's calls return 200 or 500.
async fn pod(
    service: &ApiService,
    client: Option<&ClientSocket>,
    (command, body): (Command, &[u8]),
) -> HttpReply {
    let answer = match (ContivPod::parse(body), random_id()) {
        (Err(answer), _) => *answer,
        (_, Err(error)) => PodAnswer::failed("cannot generate a request ID", &error.to_string()),
        (Ok(pod), Ok(id)) => {
            let network = service.work.network();
            match perform(service, client, pod.call(command, network, id)).await {
                Answer::Done(answer) => pod.done(network, answer.result.as_ref()),
                Answer::Failed(failure) | Answer::Unavailable(failure) => PodAnswer::from(&failure.error),
            }
        }
    };
    let status = if answer.is_success() { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    reply::json(status, &answer)
}

/// Serves a call on this thread if the thread may block and the queue has a free slot. Otherwise submits the call to the queue
/// and waits for its end. Hyper drops this future when the client hangs up, which cancels the call unless it is a DEL.
async fn perform(service: &ApiService, client: Option<&ClientSocket>, call: CniCall) -> Answer {
    let task = match service.work.accept(call) {
        Ok(task) => task,
        Err(answer) => return answer,
    };
    let class = task.class();
    // Another IPAM plugin may take a minute, and there are only a few acceptors.
    let acceptor = client.filter(|client| client.may_block() && class != RequestClass::DelegatedAdd);
    let entered = service.work.enter(task, |task| {
        match acceptor.and_then(|client| Some((client, service.queue.slot(class)?))) {
            Some((client, slot)) => Entered::Slot { client, slot, task: Box::new(task) },
            None => Entered::Queue {
                refusal: task.refusal(),
                guard: task.client_guard(),
                result: service.queue.submit(class, move || task.run(&|| false)),
            },
        }
    });
    match entered {
        Entered::Slot { client, slot, task } => {
            let (answer, afterwards) = task.run(&|| client.is_closed());
            client.set_after_answer(move || {
                afterwards();
                drop(slot);
            });
            answer
        }
        Entered::Queue { refusal, guard, result: Ok(result) } => {
            let answer = result.await.unwrap_or_else(|_| refusal.panicked());
            drop(guard);
            answer
        }
        Entered::Queue { refusal, result: Err(refused), .. } => refusal.because(&refused),
    }
}

/// The thread that serves a call.
enum Entered<'a> {
    /// This thread.
    Slot { client: &'a ClientSocket, slot: WorkerSlot, task: Box<Task> },
    /// A worker.
    Queue {
        refusal: RejectedTask,
        guard: ClientGuard,
        result: Result<oneshot::Receiver<Answer>, QueueRefusal>,
    },
}

fn random_id() -> std::io::Result<RequestId> {
    let mut bytes = [0; 16];
    // getrandom(2) returns up to 256 bytes completely.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(RequestId::from_random(bytes))
}

#[cfg(test)]
mod reference;
