//! One CNI request in the agent: parsed, put in line with others about the same
//! attachment, served by the engine, told in the log and in the metrics.
//!
//! ```text
//! accept ─► Task ─► a place in the queue ─► run: tombstones first ─► its turn ─► engine ─► Answer
//!                          └ Cancel: set when the client hangs up, or a DEL of the same attachment comes
//! ```

mod blocks;
mod drain;
mod turns;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::{CniAnswer, CniCall, Condition, ConditionCode};
use cni::{Env, Error, ErrorCode, Failure, Request, Version};
use engine::{AllowedDelegates, Caller, Delegates, Done, KernelCache, Wait};
use netconf::{NodeAllocation, NodeNetworks};
use types::{AttachMode, AttachmentKey, NetworkName, RequestId};

use crate::agent_status::AgentStatus;
use crate::allocation::{NoBlock, NodeAllocations};
use crate::log::{self, RequestOutcome, RequestSubject};
use crate::membership::BlockRequests;
use crate::metrics::Metrics;
use crate::queue::RequestClass;
use crate::reconciler::ReconcileRequests;
use crate::tombstones::Drain;
use blocks::Grown;
use drain::AT_ONCE;
use turns::{Cancel, NoTurn, RequestPurpose, Turn, Turns, Unwanted};

/// How long a request waits for earlier ones about the same attachment.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What the agent's configuration says about requests.
pub(crate) struct RequestSettings {
    pub(crate) run_dir: PathBuf,
    /// The agent's own network.
    pub(crate) network: NetworkName,
    /// Of pods whose config states no mode.
    pub(crate) mode: AttachMode,
    /// IPAM plugins that requests may have run.
    pub(crate) delegates: AllowedDelegates,
}

/// What requests are served with.
pub(crate) struct WorkParts {
    pub(crate) settings: RequestSettings,
    pub(crate) agent_status: Arc<AgentStatus>,
    pub(crate) metrics: Arc<Metrics>,
    /// This node's part of the network.
    pub(crate) allocations: Arc<NodeAllocations>,
    /// For an ADD that finds no free address.
    pub(crate) blocks: BlockRequests,
    pub(crate) reconciler: ReconcileRequests,
}

/// The engine, or what stands in for it in tests.
pub(crate) type Serve = dyn Fn(&Request, &Caller<'_>) -> Result<Done, Error> + Send + Sync;

pub(crate) struct Work {
    run_dir: PathBuf,
    network: NetworkName,
    /// Of new pods in the agent's network.
    mode: AttachMode,
    agent_status: Arc<AgentStatus>,
    metrics: Arc<Metrics>,
    allocations: Arc<NodeAllocations>,
    blocks: BlockRequests,
    reconciler: ReconcileRequests,
    turns: Arc<Turns>,
    /// Held from the place in line until the place in the queue.
    order: Mutex<()>,
    drain: Drain,
    kernel_cache: KernelCache,
    delegates: AllowedDelegates,
    serve: Box<Serve>,
}

/// What the client gets.
#[derive(Debug)]
pub(crate) enum Answer {
    Done(CniAnswer),
    Failed(Failure),
    /// The agent cannot work now; it says why.
    Unavailable(Failure),
}

impl Work {
    pub(crate) fn new(parts: WorkParts) -> Self {
        let WorkParts { settings, agent_status, metrics, allocations, blocks, reconciler } = parts;
        let RequestSettings { run_dir, network, mode, delegates } = settings;
        Self {
            drain: Drain::new(&run_dir),
            run_dir,
            network,
            mode,
            agent_status,
            metrics,
            allocations,
            blocks,
            reconciler,
            turns: Arc::default(),
            order: Mutex::default(),
            kernel_cache: KernelCache::default(),
            delegates,
            serve: Box::new(engine::serve),
        }
    }

    #[cfg(test)]
    pub(crate) fn with_engine(self, serve: Box<Serve>) -> Self {
        Self { serve, ..self }
    }

    /// The agent's part of a request that is served with this allocation.
    fn networks<'a>(&'a self, allocation: &'a Result<Arc<NodeAllocation>, NoBlock>) -> NodeNetworks<'a> {
        NodeNetworks {
            name: &self.network,
            mode: self.mode,
            run_dir: &self.run_dir,
            allocation: allocation.as_deref().map_err(|none| none.0.as_str()),
        }
    }

    /// A request of the agent's own network ended. To count addresses takes a listing of all of them: it is done only if
    /// the request's end contradicts the condition.
    fn check_addresses(&self, outcome: &Result<Done, Error>) {
        let is_exhausted = matches!(outcome, Err(error) if error.code == ErrorCode::AddressesExhausted);
        if is_exhausted != self.agent_status.has(types::Code::AddressesExhausted) {
            self.allocations.report_addresses(&self.agent_status, &self.run_dir, &self.network);
        }
    }

    /// What requests remember of the kernel.
    pub(crate) fn kernel_cache(&self) -> &KernelCache {
        &self.kernel_cache
    }

    pub(crate) fn network(&self) -> &NetworkName {
        &self.network
    }

    /// Understands a call. An error is the answer already.
    pub(crate) fn accept(self: &Arc<Self>, call: CniCall) -> Result<Task, Answer> {
        let arrived = Instant::now();
        let id = call.request_id.clone();
        let request = match Self::parse(call) {
            Ok(request) => request,
            Err(failure) => {
                self.tell(
                    &RequestSubject::unknown(&id),
                    &RequestOutcome::Failed(&failure.error),
                    arrived.elapsed(),
                );
                return Err(Answer::Failed(failure));
            }
        };
        let subject = RequestSubject::of(&request, &id);
        if let Some(error) = self.obstacle(&request) {
            self.tell(&subject, &RequestOutcome::Refused(&error), arrived.elapsed());
            return Err(Answer::Unavailable(Failure { error, version: request.version() }));
        }
        Ok(Task { work: Arc::clone(self), request, id, subject, arrived, cancel: Arc::default(), turn: None })
    }

    /// Gives a task its place among the requests about the same attachment, and puts it into the queue with `enqueue`. Requests
    /// enter the queue in the order of their places. Otherwise requests with a worker could wait for others that get none.
    pub(crate) fn enter<T>(&self, mut task: Task, enqueue: impl FnOnce(Task) -> T) -> T {
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        task.join_line();
        enqueue(task)
    }

    fn parse(call: CniCall) -> Result<Request, Failure> {
        let env = Env::from_vars(call.env.into_iter().map(|(name, value)| (name.into(), value.into())));
        Request::parse(&env, call.config.as_bytes())
    }

    /// Why this request is not served now. A DEL always is: it needs nothing that could be missing. A GC is served by an
    /// agent that has started: it frees the space and the addresses that may be missing.
    fn obstacle(&self, request: &Request) -> Option<Error> {
        let (code, is_status) = match request {
            Request::Del(_) | Request::Version(_) => return None,
            Request::Status(_) => (ErrorCode::NotAvailable, true),
            Request::Add(_) | Request::Check(_) | Request::Gc(_) => (ErrorCode::TryAgainLater, false),
        };
        let is_gc = matches!(request, Request::Gc(_));
        let concerns = |found: &Condition| match found.code {
            ConditionCode::Known(types::Code::AgentStarting | types::Code::AgentStopping) => true,
            _ if is_gc => false,
            // The runtime has a plugin and a config if it sends a pod.
            ConditionCode::Known(types::Code::InstallIncomplete) => is_status,
            // The engine finds out whether they hold now, and whether they concern this request.
            ConditionCode::Known(
                types::Code::NftMissing
                | types::Code::RunDirFull
                | types::Code::RunDirUnusable
                | types::Code::AddressesExhausted
                | types::Code::IpamUnavailable,
            ) => false,
            _ => true,
        };
        let found = self.agent_status.readiness().conditions.into_iter().find(concerns)?;
        let error = Error::new(code, format!("the agent is not ready: {}", found.message));
        Some(error.with_details(found.summary()))
    }

    fn tell(&self, subject: &RequestSubject, ending: &RequestOutcome<'_>, took: Duration) {
        self.metrics.request(subject.verb(), ending.word(), took);
        log::request(subject, ending, took);
    }
}

/// A request that waits for a worker, or is being served.
pub(crate) struct Task {
    work: Arc<Work>,
    request: Request,
    id: RequestId,
    subject: RequestSubject,
    arrived: Instant,
    cancel: Arc<Cancel>,
    turn: Option<Turn>,
}

/// Held by the client's connection. Dropped before the answer is there, it cancels the request. A DEL is not cancelled: the
/// pod is to be removed, whether the client waits for it or not.
pub(crate) struct ClientGuard(Option<Arc<Cancel>>);

impl Drop for ClientGuard {
    fn drop(&mut self) {
        if let Some(cancel) = &self.0 {
            cancel.set(Unwanted::HungUp);
        }
    }
}

impl Task {
    pub(crate) fn class(&self) -> RequestClass {
        match &self.request {
            Request::Add(call) if netconf::external_ipam(&call.config).is_some() => {
                RequestClass::DelegatedAdd
            }
            Request::Add(_) => RequestClass::Add,
            Request::Del(_) => RequestClass::Del,
            Request::Check(_) | Request::Gc(_) | Request::Status(_) | Request::Version(_) => {
                RequestClass::Other
            }
        }
    }

    pub(crate) fn line(&self) -> ClientGuard {
        ClientGuard((!self.is_del()).then(|| Arc::clone(&self.cancel)))
    }

    fn is_del(&self) -> bool {
        matches!(self.request, Request::Del(_))
    }

    fn join_line(&mut self) {
        self.turn = keyed(&self.request)
            .map(|(key, purpose)| self.work.turns.join(key, purpose, Arc::clone(&self.cancel)));
    }

    /// What to answer if the queue does not take it.
    pub(crate) fn refusal(&self) -> RejectedTask {
        RejectedTask {
            work: Arc::clone(&self.work),
            subject: self.subject.clone(),
            arrived: self.arrived,
            code: match self.request {
                Request::Status(_) => ErrorCode::NotAvailable,
                Request::Add(_)
                | Request::Del(_)
                | Request::Check(_)
                | Request::Gc(_)
                | Request::Version(_) => ErrorCode::TryAgainLater,
            },
            version: self.request.version(),
        }
    }

    /// Serves the request, on the calling thread. What is told about it is told after the answer.
    /// `hung_up` asks the client's connection where nobody else looks after it.
    pub(crate) fn run(mut self, hung_up: &(dyn Fn() -> bool + Sync)) -> (Answer, impl FnOnce() + use<>) {
        let outcome = self.serve(hung_up);
        if is_of_addresses(&self.request, &self.work.network) {
            self.work.check_addresses(&outcome);
        }
        let took = self.arrived.elapsed();
        // Others about the same attachment need not wait for the log.
        self.turn = None;
        let answer = match &outcome {
            Ok(done) => Answer::Done(CniAnswer { result: done.answer.clone() }),
            Err(error) => Answer::Failed(Failure { error: error.clone(), version: self.request.version() }),
        };
        // Asked now: when the answer is on its way, the client is free to go.
        let unwanted = self.cancel.get().is_some();
        (answer, move || {
            self.reported(&outcome, unwanted, took);
            let finds_faults = matches!(self.request, Request::Add(_) | Request::Status(_)) && !unwanted;
            let is_fault = outcome.is_err() && finds_faults;
            if is_fault || self.may_end_condition(&outcome) {
                self.work.reconciler.report_fault();
            }
            let mtu = outcome.ok().and_then(|done| done.mtu);
            if mtu.is_some_and(|mtu| self.work.allocations.is_too_large(mtu)) {
                self.work.reconciler.request_round();
            }
            self.drain_after();
        })
    }

    /// A pod that leaves may be the last one in another mode than its network. In the agent's network only pods of another mode
    /// than the configured one count. In other networks new pods have the mode of the newest, so that any pod counts.
    fn may_end_condition(&self, outcome: &Result<Done, Error>) -> bool {
        let Ok(done) = outcome else { return false };
        let counts = match &self.request {
            Request::Del(call) if call.config.name == self.work.network => {
                done.mode.is_some_and(|mode| mode != self.work.mode)
            }
            Request::Del(_) => done.mode.is_some(),
            Request::Gc(_) => done.collected > 0,
            Request::Add(_) | Request::Check(_) | Request::Status(_) | Request::Version(_) => false,
        };
        counts && self.work.agent_status.has(types::Code::PodModeDiffers)
    }

    fn reported(&self, outcome: &Result<Done, Error>, unwanted: bool, took: Duration) {
        let is_gc = matches!(self.request, Request::Gc(_));
        let ending = match outcome {
            Ok(done) => {
                RequestOutcome::Ok { addresses: &done.addresses, collected: is_gc.then_some(done.collected) }
            }
            Err(error) if unwanted && error.code == ErrorCode::TryAgainLater => {
                RequestOutcome::Cancelled(error)
            }
            Err(error) => RequestOutcome::Failed(error),
        };
        self.work.tell(&self.subject, &ending, took);
    }

    /// A tombstone that came while this request was served did not wait for its end.
    fn drain_after(&self) {
        if let Some((key, _)) = keyed(&self.request) {
            self.work.drain_key(&key, AT_ONCE);
        }
    }

    fn serve(&self, hung_up: &(dyn Fn() -> bool + Sync)) -> Result<Done, Error> {
        // Whose client is gone is not begun.
        if let Some(why) = self.cancel.get() {
            return Err(unwanted(why));
        }
        let key = match &self.request {
            Request::Add(call) => Some(call.key()),
            Request::Del(_)
            | Request::Check(_)
            | Request::Gc(_)
            | Request::Status(_)
            | Request::Version(_) => None,
        };
        if matches!(self.request, Request::Add(_) | Request::Gc(_)) {
            self.work.drain_before(key.as_ref())?;
        }
        if let Some(turn) = &self.turn {
            turn.begin(TIMEOUT).map_err(|e| match e {
                NoTurn::Unwanted(why) => unwanted(why),
                NoTurn::Busy => try_again(format!("another request about it takes longer than {TIMEOUT:?}")),
            })?;
        }
        // It may have waited long. A DEL is right, whoever waits for it.
        if key.is_some() && hung_up() {
            self.cancel.set(Unwanted::HungUp);
            return Err(unwanted(Unwanted::HungUp));
        }
        let cancelled = || {
            if !self.is_del() && hung_up() {
                self.cancel.set(Unwanted::HungUp);
            }
            self.is_cancelled(key.as_ref())
        };
        // The blocks that the node owns now, and not when the request arrived.
        let mut allocation = self.work.allocations.get();
        let serve = |allocation: &Result<Arc<NodeAllocation>, NoBlock>| {
            let caller = Caller {
                request: Some(&self.id),
                cancelled: &cancelled,
                wait: Wait::UntilGone,
                kernel_cache: Some(&self.work.kernel_cache),
                delegates: Delegates::Allowed(&self.work.delegates),
                networks: Some(self.work.networks(allocation)),
                warn: &log::engine_warning,
            };
            (self.work.serve)(&self.request, &caller)
        };
        let mut served = serve(&allocation);
        // Each family may be short of addresses.
        for _ in 0..2 {
            let Err(error) = &served else { break };
            if error.code != ErrorCode::AddressesExhausted {
                break;
            }
            match self.work.grow(&self.request, &self.work.networks(&allocation)) {
                Ok(Grown::NotWanted) => break,
                Ok(Grown::Yes) => {
                    allocation = self.work.allocations.get();
                    served = serve(&allocation);
                }
                Err(why) => {
                    let sofar = if error.details.is_empty() { "" } else { "; " };
                    let details = format!("{}{sofar}no other block: {why}", error.details);
                    return Err(error.clone().with_details(details));
                }
            }
        }
        served
    }

    /// Asked before an attachment is committed: is it still wanted?
    fn is_cancelled(&self, key: Option<&AttachmentKey>) -> bool {
        let exists = |key| {
            self.work.drain.tombstone_files().exists(key).unwrap_or_else(|error| {
                tracing::warn!("cannot look for a tombstone: {error}");
                false
            })
        };
        if self.cancel.get().is_none() && key.is_some_and(exists) {
            self.cancel.set(Unwanted::Deleted);
        }
        self.cancel.get().is_some()
    }
}

/// The answer to a task that was not taken; the task itself is gone by then.
pub(crate) struct RejectedTask {
    work: Arc<Work>,
    subject: RequestSubject,
    arrived: Instant,
    code: ErrorCode,
    version: Version,
}

impl RejectedTask {
    pub(crate) fn because(self, why: &dyn std::fmt::Display) -> Answer {
        let error = Error::new(self.code, why.to_string());
        self.work.tell(&self.subject, &RequestOutcome::Refused(&error), self.arrived.elapsed());
        Answer::Unavailable(Failure { error, version: self.version })
    }

    pub(crate) fn panicked(self) -> Answer {
        let error = Error::new(ErrorCode::Internal, "internal error: please report it, with the agent's log");
        self.work.tell(&self.subject, &RequestOutcome::Failed(&error), self.arrived.elapsed());
        Answer::Failed(Failure { error, version: self.version })
    }
}

/// Requests about one attachment, and what they do to it.
fn keyed(request: &Request) -> Option<(AttachmentKey, RequestPurpose)> {
    match request {
        Request::Add(call) => Some((call.key(), RequestPurpose::Add)),
        Request::Del(call) => Some((call.key(), RequestPurpose::Del)),
        Request::Check(call) => Some((call.key(), RequestPurpose::Look)),
        Request::Gc(_) | Request::Status(_) | Request::Version(_) => None,
    }
}

/// Whether a request takes or frees addresses of this network.
fn is_of_addresses(request: &Request, network: &NetworkName) -> bool {
    match request {
        Request::Add(call) | Request::Del(call) => call.config.name == *network,
        Request::Gc(call) => call.config.name == *network,
        Request::Check(_) | Request::Status(_) | Request::Version(_) => false,
    }
}

fn try_again(msg: impl Into<String>) -> Error {
    Error::new(ErrorCode::TryAgainLater, msg)
}

fn unwanted(why: Unwanted) -> Error {
    try_again(match why {
        Unwanted::HungUp => "the client hung up before the work began",
        Unwanted::Deleted => "a DEL of the same attachment came meanwhile",
    })
}

#[cfg(test)]
mod tests;
