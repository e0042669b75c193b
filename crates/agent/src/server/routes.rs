//! Which path does what.

use std::sync::Arc;
use std::time::Duration;

use api::{CniCall, VersionAnswer};
use cni::{Command, Version};
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::json;
use tokio::sync::{Semaphore, SemaphorePermit};
use types::RequestId;

use super::nodes::{self, Question};
use super::reply::{self, Reply};
use super::{Service, view};
use crate::contiv::{self, Pod, PodAnswer};
use crate::metrics;
use crate::work::Answer;

/// Metrics over TCP are made one after the other: clients that ask and hang up would leave work behind without end, and the
/// threads that do it also serve `podwire status`.
static SCRAPES: Semaphore = Semaphore::const_new(1);

/// How a request came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Socket,
    /// From a user who may not ask.
    Denied,
    Tcp,
}

/// A request's circumstances.
#[derive(Debug, Clone, Copy)]
pub(super) struct Visit {
    pub(super) way: Way,
    /// How long its body may take.
    pub(super) body_time: Duration,
}

/// What can be asked for.
#[derive(Debug, PartialEq, Eq)]
enum Route {
    Cni,
    Pod(Command),
    Health,
    Ready,
    Version,
    Look(Look),
    Cluster(Question),
}

/// What is looked up in files.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// All, or those of one container.
    Attachments(Option<String>),
    Status,
    CniConfig,
    Metrics,
}

impl Route {
    fn find(path: &str) -> Option<Self> {
        Some(match path {
            api::CNI => Self::Cni,
            api::HEALTH => Self::Health,
            api::READY => Self::Ready,
            api::ATTACHMENTS => Self::Look(Look::Attachments(None)),
            api::VERSION => Self::Version,
            api::STATUS => Self::Look(Look::Status),
            api::CNI_CONFIG => Self::Look(Look::CniConfig),
            api::METRICS => Self::Look(Look::Metrics),
            contiv::ADD_POD => Self::Pod(Command::Add),
            contiv::DEL_POD => Self::Pod(Command::Del),
            _ => match path.strip_prefix(api::ATTACHMENTS).and_then(|path| path.strip_prefix('/')) {
                Some(container) => Self::Look(Look::Attachments(Some(container.to_owned()))),
                None => Self::Cluster(Question::find(path)?),
            },
        })
    }

    fn method(&self) -> Method {
        match self {
            Self::Cni | Self::Pod(_) => Method::POST,
            Self::Cluster(Question::Remove(_)) => Method::DELETE,
            Self::Health | Self::Ready | Self::Version | Self::Look(_) | Self::Cluster(_) => Method::GET,
        }
    }

    /// What says nothing about pods, and changes nothing.
    fn is_public(&self) -> bool {
        matches!(self, Self::Health | Self::Ready | Self::Look(Look::Metrics))
    }
}

pub(super) async fn answer(service: &Arc<Service>, visit: Visit, request: Request<Incoming>) -> Reply {
    let Visit { way, body_time } = visit;
    if way == Way::Denied {
        return reply::error(StatusCode::FORBIDDEN, "access denied: only root may ask the agent");
    }
    let route = Route::find(request.uri().path()).filter(|route| way != Way::Tcp || route.is_public());
    let Some(route) = route else { return reply::error(StatusCode::NOT_FOUND, api::PAGE_NOT_FOUND) };
    if *request.method() != route.method() {
        return reply::not_allowed(&route.method());
    }
    match route {
        Route::Cni => match reply::read(request, body_time).await {
            Ok(body) => cni(service, &body).await,
            Err(reply) => reply,
        },
        Route::Pod(command) => match reply::read(request, body_time).await {
            Ok(body) => pod(service, command, &body).await,
            Err(reply) => reply,
        },
        Route::Health => reply::json(StatusCode::OK, &json!({ "healthy": true })),
        Route::Ready => {
            let readiness = service.board.readiness();
            let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            reply::json(status, &readiness)
        }
        Route::Version => {
            let cni_versions = Version::ALL.map(|version| version.as_str().to_owned()).to_vec();
            let version = env!("CARGO_PKG_VERSION").to_owned();
            reply::json(StatusCode::OK, &VersionAnswer { version, api: 1, cni_versions })
        }
        Route::Look(look) => {
            let permit = if way == Way::Tcp { SCRAPES.acquire().await.ok() } else { None };
            looked_up(service, look, permit).await
        }
        Route::Cluster(question) => nodes::answer(service, question, request.uri().query()).await,
    }
}

/// What must be looked up in files.
fn shown(service: &Service, look: &Look) -> Result<Reply, String> {
    match look {
        Look::Attachments(container) => {
            let all = view::attachments(&service.facts.run_dir, container.as_deref());
            all.map(|all| reply::json(StatusCode::OK, &all)).map_err(|error| error.to_string())
        }
        Look::Status => Ok(reply::json(StatusCode::OK, &view::status(service))),
        Look::CniConfig => {
            (service.cni_config)().map(|text| reply::with_type(StatusCode::OK, reply::JSON, text))
        }
        Look::Metrics => {
            let page = service.metrics.render(&view::seen(service)).map_err(|e| e.to_string())?;
            Ok(reply::with_type(StatusCode::OK, metrics::CONTENT_TYPE, page))
        }
    }
}

/// Reads files on a thread that may wait for them.
async fn looked_up(service: &Arc<Service>, look: Look, permit: Option<SemaphorePermit<'static>>) -> Reply {
    let service = Arc::clone(service);
    let work = move || {
        let _permit = permit;
        shown(&service, &look)
    };
    let outcome = tokio::task::spawn_blocking(work).await;
    match outcome.unwrap_or_else(|_| Err("internal error: please report it, with the agent's log".to_owned()))
    {
        Ok(reply) => reply,
        Err(what) => reply::error(StatusCode::INTERNAL_SERVER_ERROR, &what),
    }
}

async fn cni(service: &Service, body: &[u8]) -> Reply {
    let call: CniCall = match serde_json::from_slice(body) {
        Ok(call) => call,
        Err(cause) => {
            let what = format!("the body is not a CNI call (requestId, env, config): {cause}");
            return reply::error(StatusCode::BAD_REQUEST, &what);
        }
    };
    let (status, text) = reply::cni(&perform(service, call).await);
    reply::with_type(status, reply::JSON, text)
}

/// Contiv's calls know success and 500.
async fn pod(service: &Service, command: Command, body: &[u8]) -> Reply {
    let answer = match (Pod::parse(body), random_id()) {
        (Err(answer), _) => *answer,
        (_, Err(error)) => PodAnswer::failed("no random number for the request", &error.to_string()),
        (Ok(pod), Ok(id)) => {
            let network = service.work.network();
            match perform(service, pod.call(command, network, id)).await {
                Answer::Done(answer) => pod.done(network, answer.result.as_ref()),
                Answer::Failed(failure) | Answer::Unavailable(failure) => PodAnswer::from(&failure.error),
            }
        }
    };
    let status = if answer.is_success() { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    reply::json(status, &answer)
}

/// Puts a call into the queue and waits for its end. Dropped meanwhile, which hyper does when the client hangs up, it
/// tells the work so.
async fn perform(service: &Service, call: CniCall) -> Answer {
    let task = match service.work.accept(call) {
        Ok(task) => task,
        Err(answer) => return answer,
    };
    let (lane, refusal) = (task.lane(), task.refusal());
    let _line = task.line();
    match service.queue.submit(lane, move || task.run(&|| false)) {
        Ok(result) => match result.await {
            Ok(answer) => answer,
            Err(_) => refusal.panicked(),
        },
        Err(refused) => refusal.because(&refused),
    }
}

fn random_id() -> std::io::Result<RequestId> {
    let mut bytes = [0; 16];
    // Up to 256 bytes come whole.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(RequestId::from_random(bytes))
}
