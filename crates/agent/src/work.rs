//! Serves one CNI request: parses it, orders it behind earlier requests of the same attachment, runs the engine, and reports it
//! in log and metrics.
//!
//! ```text
//! accept ─► Task ─► attachment queue ─► worker queue ─► run: tombstones first ─► earlier requests end ─► engine ─► Answer
//!                          └ Cancel: set when the client hangs up, or a DEL of the same attachment arrives
//! ```

mod attachment_queues;
mod blocks;
mod drain;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::{CniAnswer, CniCall, Condition, ConditionCode};
use cni::{Env, Error, ErrorCode, Failure, Request, Version};
use engine::{AllowedDelegates, Caller, Delegates, Done, KernelCache, Wait};
use netconf::{NodeAllocation, NodeNetworks};
use types::{AttachMode, AttachmentKey, NetworkId, NetworkName, RequestId};

use crate::agent_status::AgentStatus;
use crate::allocation::{NoBlock, NodeAllocations};
use crate::log::{self, RequestOutcome, RequestSubject};
use crate::membership::BlockRequests;
use crate::metrics::Metrics;
use crate::policies::Policies;
use crate::queue::RequestClass;
use crate::reconciler::ReconcileRequests;
use crate::tombstones::Drain;
use attachment_queues::{AttachmentQueues, Cancel, CancelReason, QueueSlot, RequestPurpose, SlotError};
use blocks::AnotherBlock;
use drain::NO_WAIT;

/// How long a request waits for earlier requests of the same attachment.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Settings of requests from the agent's configuration.
pub(crate) struct RequestSettings {
    pub(crate) run_dir: PathBuf,
    /// The agent's network.
    pub(crate) network: NetworkName,
    /// Mode of pods whose config sets no mode.
    pub(crate) mode: AttachMode,
    /// IPAM plugins that requests may run.
    pub(crate) delegates: AllowedDelegates,
}

pub(crate) struct WorkParts {
    pub(crate) settings: RequestSettings,
    pub(crate) agent_status: Arc<AgentStatus>,
    pub(crate) metrics: Arc<Metrics>,
    /// This node's blocks.
    pub(crate) allocations: Arc<NodeAllocations>,
    /// Used by an ADD that finds no free address.
    pub(crate) blocks: BlockRequests,
    pub(crate) reconciler: ReconcileRequests,
    pub(crate) policies: Arc<Policies>,
}

/// The engine, or its replacement in tests.
pub(crate) type Serve = dyn Fn(&Request, &Caller<'_>) -> Result<Done, Error> + Send + Sync;

pub(crate) struct Work {
    run_dir: PathBuf,
    network: NetworkName,
    /// Mode of new pods in the agent's network.
    mode: AttachMode,
    agent_status: Arc<AgentStatus>,
    metrics: Arc<Metrics>,
    allocations: Arc<NodeAllocations>,
    blocks: BlockRequests,
    reconciler: ReconcileRequests,
    policies: Arc<Policies>,
    attachment_queues: Arc<AttachmentQueues>,
    /// Held while a task joins its attachment's queue and then the worker queue.
    order: Mutex<()>,
    drain: Drain,
    kernel_cache: KernelCache,
    delegates: AllowedDelegates,
    serve: Box<Serve>,
}

/// The answer to the client.
#[derive(Debug)]
pub(crate) enum Answer {
    Done(CniAnswer),
    Failed(Failure),
    /// The agent cannot serve requests now. The error says why.
    Unavailable(Failure),
}

impl Work {
    pub(crate) fn new(parts: WorkParts) -> Self {
        let WorkParts { settings, agent_status, metrics, allocations, blocks, reconciler, policies } = parts;
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
            policies,
            attachment_queues: Arc::default(),
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

    /// The agent's networks for a request that is served with this allocation.
    fn networks<'a>(
        &'a self,
        allocation: &'a Result<Arc<NodeAllocation>, NoBlock>,
        unnamed: Option<&'a NetworkId>,
    ) -> NodeNetworks<'a> {
        NodeNetworks {
            name: &self.network,
            mode: self.mode,
            run_dir: &self.run_dir,
            unnamed,
            allocation: allocation.as_deref().map_err(|none| none.0.as_str()),
        }
    }

    /// The network of a new pod that names none: that of its group, or the default one of its tenant.
    fn unnamed_network(&self, request: &Request) -> Option<NetworkId> {
        let (Request::Add(call) | Request::Check(call)) = request else { return None };
        let objects = self.policies.objects()?;
        let (tenant, group) = netconf::unnamed_network(call)?;
        objects.unnamed_network(&tenant, group.as_ref())
    }

    /// A request of the agent's network ended. Counting addresses means listing all of them, so it is done only if the outcome
    /// contradicts the current condition.
    fn check_addresses(&self, outcome: &Result<Done, Error>) {
        let is_exhausted = matches!(outcome, Err(error) if error.code == ErrorCode::AddressesExhausted);
        if is_exhausted != self.agent_status.has(types::Code::AddressesExhausted) {
            self.allocations.report_addresses(&self.agent_status, &self.run_dir, &self.network);
        }
    }

    /// Kernel state that requests share.
    pub(crate) fn kernel_cache(&self) -> &KernelCache {
        &self.kernel_cache
    }

    pub(crate) fn policies(&self) -> &Policies {
        &self.policies
    }

    pub(crate) fn network(&self) -> &NetworkName {
        &self.network
    }

    /// Parses a call. An error is the final answer.
    pub(crate) fn accept(self: &Arc<Self>, call: CniCall) -> Result<Task, Answer> {
        let arrived = Instant::now();
        let id = call.request_id.clone();
        let request = match Self::parse(call) {
            Ok(request) => request,
            Err(failure) => {
                self.report(
                    &RequestSubject::unknown(&id),
                    &RequestOutcome::Failed(&failure.error),
                    arrived.elapsed(),
                );
                return Err(Answer::Failed(failure));
            }
        };
        let subject = RequestSubject::of(&request, &id);
        if let Some(error) = self.not_ready_error(&request) {
            self.report(&subject, &RequestOutcome::Refused(&error), arrived.elapsed());
            return Err(Answer::Unavailable(Failure { error, version: request.version() }));
        }
        Ok(Task { work: Arc::clone(self), request, id, subject, arrived, cancel: Arc::default(), slot: None })
    }

    /// Adds a task to the queue of its attachment, and to the worker queue with `enqueue`. Both queues must have the same order.
    /// Otherwise requests that have a worker could wait for requests that get none.
    pub(crate) fn enter<T>(&self, mut task: Task, enqueue: impl FnOnce(Task) -> T) -> T {
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        task.join_attachment_queue();
        enqueue(task)
    }

    fn parse(call: CniCall) -> Result<Request, Failure> {
        let env = Env::from_vars(call.env.into_iter().map(|(name, value)| (name.into(), value.into())));
        Request::parse(&env, call.config.as_bytes())
    }

    /// Why this request is not served now. A DEL is always served, because it has no prerequisites. A GC is served by an agent
    /// that has started, because it frees space and addresses.
    fn not_ready_error(&self, request: &Request) -> Option<Error> {
        let (code, is_status) = match request {
            Request::Del(_) | Request::Version(_) => return None,
            Request::Status(_) => (ErrorCode::NotAvailable, true),
            Request::Add(_) | Request::Check(_) | Request::Gc(_) => (ErrorCode::TryAgainLater, false),
        };
        let is_gc = matches!(request, Request::Gc(_));
        let applies = |condition: &Condition| match condition.code {
            ConditionCode::Known(types::Code::AgentStarting | types::Code::AgentStopping) => true,
            _ if is_gc => false,
            // A runtime that sends a pod has a plugin and a config.
            ConditionCode::Known(types::Code::InstallIncomplete) => is_status,
            // The engine checks whether these apply to this request.
            ConditionCode::Known(
                types::Code::NftMissing
                | types::Code::RunDirFull
                | types::Code::RunDirUnusable
                | types::Code::AddressesExhausted
                | types::Code::IpamUnavailable,
            ) => false,
            _ => true,
        };
        let condition = self.agent_status.readiness().conditions.into_iter().find(applies)?;
        let error = Error::new(code, format!("the agent is not ready: {}", condition.message));
        Some(error.with_details(condition.summary()))
    }

    fn report(&self, subject: &RequestSubject, outcome: &RequestOutcome<'_>, took: Duration) {
        self.metrics.request(subject.verb(), outcome.word(), took);
        log::request(subject, outcome, took);
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
    slot: Option<QueueSlot>,
}

/// Held by the client's connection. If it is dropped before the answer, it cancels the request. It does not cancel a DEL,
/// because the pod has to be removed even if the client no longer waits.
pub(crate) struct ClientGuard(Option<Arc<Cancel>>);

impl Drop for ClientGuard {
    fn drop(&mut self) {
        if let Some(cancel) = &self.0 {
            cancel.set(CancelReason::HungUp);
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

    pub(crate) fn client_guard(&self) -> ClientGuard {
        ClientGuard((!self.is_del()).then(|| Arc::clone(&self.cancel)))
    }

    fn is_del(&self) -> bool {
        matches!(self.request, Request::Del(_))
    }

    fn join_attachment_queue(&mut self) {
        self.slot = attachment_of(&self.request)
            .map(|(key, purpose)| self.work.attachment_queues.join(key, purpose, Arc::clone(&self.cancel)));
    }

    /// Prepares the answer for the case that the worker queue refuses the task.
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

    /// Serves the request on the calling thread. The returned function logs and reports it after the answer was sent.
    /// `hung_up` checks the client's connection if no other code watches it.
    pub(crate) fn run(mut self, hung_up: &(dyn Fn() -> bool + Sync)) -> (Answer, impl FnOnce() + use<>) {
        let outcome = self.serve(hung_up);
        if uses_addresses_of(&self.request, &self.work.network) {
            self.work.check_addresses(&outcome);
        }
        let took = self.arrived.elapsed();
        // Other requests of the attachment need not wait for the log.
        self.slot = None;
        let answer = match &outcome {
            Ok(done) => Answer::Done(CniAnswer { result: done.answer.clone() }),
            Err(error) => Answer::Failed(Failure { error: error.clone(), version: self.request.version() }),
        };
        // Read before the answer is sent, because the client may close the connection afterwards.
        let is_cancelled = self.cancel.get().is_some();
        (answer, move || {
            self.report_outcome(&outcome, is_cancelled, took);
            let detects_faults =
                matches!(self.request, Request::Add(_) | Request::Status(_)) && !is_cancelled;
            let is_fault = outcome.is_err() && detects_faults;
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

    /// A removed pod may have been the last one whose mode differs from its network's. In the agent's network only pods with
    /// another mode than the configured one count. In other networks new pods use the mode of the newest pod, so any pod counts.
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

    fn report_outcome(&self, outcome: &Result<Done, Error>, is_cancelled: bool, took: Duration) {
        let is_gc = matches!(self.request, Request::Gc(_));
        let outcome = match outcome {
            Ok(done) => {
                RequestOutcome::Ok { addresses: &done.addresses, collected: is_gc.then_some(done.collected) }
            }
            Err(error) if is_cancelled && error.code == ErrorCode::TryAgainLater => {
                RequestOutcome::Cancelled(error)
            }
            Err(error) => RequestOutcome::Failed(error),
        };
        self.work.report(&self.subject, &outcome, took);
    }

    /// Serves a tombstone that was written while this request was served.
    fn drain_after(&self) {
        if let Some((key, _)) = attachment_of(&self.request) {
            self.work.drain_key(&key, NO_WAIT);
        }
    }

    fn serve(&self, hung_up: &(dyn Fn() -> bool + Sync)) -> Result<Done, Error> {
        // The client hung up before a worker was free.
        if let Some(reason) = self.cancel.get() {
            return Err(cancelled_error(reason));
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
        if let Some(slot) = &self.slot {
            slot.wait(TIMEOUT).map_err(|e| match e {
                SlotError::Cancelled(reason) => cancelled_error(reason),
                SlotError::Busy => {
                    try_again(format!("another request of the same attachment takes longer than {TIMEOUT:?}"))
                }
            })?;
        }
        // The client may have hung up while the request waited. A DEL is served nevertheless.
        if key.is_some() && hung_up() {
            self.cancel.set(CancelReason::HungUp);
            return Err(cancelled_error(CancelReason::HungUp));
        }
        let cancelled = || {
            if !self.is_del() && hung_up() {
                self.cancel.set(CancelReason::HungUp);
            }
            self.is_cancelled(key.as_ref())
        };
        // The current blocks. They may have changed since the request arrived.
        let mut allocation = self.work.allocations.get();
        let unnamed = self.work.unnamed_network(&self.request);
        let serve = |allocation: &Result<Arc<NodeAllocation>, NoBlock>| {
            let caller = Caller {
                request: Some(&self.id),
                cancelled: &cancelled,
                wait: Wait::UntilLinkRemoved,
                kernel_cache: Some(&self.work.kernel_cache),
                delegates: Delegates::Allowed(&self.work.delegates),
                networks: Some(self.work.networks(allocation, unnamed.as_ref())),
                policies: Some(&*self.work.policies),
                warn: &log::engine_warning,
            };
            (self.work.serve)(&self.request, &caller)
        };
        let mut served = serve(&allocation);
        // The network may need its first blocks, and then each family another one.
        for _ in 0..3 {
            let Err(error) = &served else { break };
            let networks = self.work.networks(&allocation, unnamed.as_ref());
            match self.work.wait_for_another_block(&self.request, (&networks, error.code)) {
                Ok(AnotherBlock::NotNeeded) => break,
                Ok(AnotherBlock::Received) => {
                    allocation = self.work.allocations.get();
                    served = serve(&allocation);
                }
                Err(cause) => {
                    let separator = if error.details.is_empty() { "" } else { "; " };
                    let details = format!("{}{separator}no other block: {cause}", error.details);
                    return Err(error.clone().with_details(details));
                }
            }
        }
        served
    }

    /// Whether the request was cancelled. The engine calls it before it commits an attachment.
    fn is_cancelled(&self, key: Option<&AttachmentKey>) -> bool {
        let exists = |key| {
            self.work.drain.tombstone_files().exists(key).unwrap_or_else(|error| {
                tracing::warn!(%error, "cannot check for a tombstone");
                false
            })
        };
        if self.cancel.get().is_none() && key.is_some_and(exists) {
            self.cancel.set(CancelReason::Deleted);
        }
        self.cancel.get().is_some()
    }
}

/// Builds the answer to a task that was refused. The task itself has been dropped.
pub(crate) struct RejectedTask {
    work: Arc<Work>,
    subject: RequestSubject,
    arrived: Instant,
    code: ErrorCode,
    version: Version,
}

impl RejectedTask {
    pub(crate) fn because(self, cause: &dyn std::fmt::Display) -> Answer {
        let error = Error::new(self.code, cause.to_string());
        self.work.report(&self.subject, &RequestOutcome::Refused(&error), self.arrived.elapsed());
        Answer::Unavailable(Failure { error, version: self.version })
    }

    pub(crate) fn panicked(self) -> Answer {
        let error = Error::new(ErrorCode::Internal, "internal error: please report it with the agent's log");
        self.work.report(&self.subject, &RequestOutcome::Failed(&error), self.arrived.elapsed());
        Answer::Failed(Failure { error, version: self.version })
    }
}

/// The attachment of a request and the purpose of the request, if it is about one attachment.
fn attachment_of(request: &Request) -> Option<(AttachmentKey, RequestPurpose)> {
    match request {
        Request::Add(call) => Some((call.key(), RequestPurpose::Add)),
        Request::Del(call) => Some((call.key(), RequestPurpose::Del)),
        Request::Check(call) => Some((call.key(), RequestPurpose::Check)),
        Request::Gc(_) | Request::Status(_) | Request::Version(_) => None,
    }
}

/// Whether a request allocates or frees addresses of this network.
fn uses_addresses_of(request: &Request, network: &NetworkName) -> bool {
    match request {
        Request::Add(call) | Request::Del(call) => call.config.name == *network,
        Request::Gc(call) => call.config.name == *network,
        Request::Check(_) | Request::Status(_) | Request::Version(_) => false,
    }
}

fn try_again(msg: impl Into<String>) -> Error {
    Error::new(ErrorCode::TryAgainLater, msg)
}

fn cancelled_error(reason: CancelReason) -> Error {
    try_again(match reason {
        CancelReason::HungUp => "the client hung up before the request was served",
        CancelReason::Deleted => "a DEL of the same attachment arrived",
    })
}

#[cfg(test)]
mod tests;
