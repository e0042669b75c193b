//! The input of the policy thread from requests and membership, and the groups that it publishes.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::policy::{LinkGroup, PodPolicies, PodProfile};
use engine::state::Attachment;
use model::Catalog;
use policy::{FlowAnswers, FlowQuery, FlowQueryError};
use tokio::sync::oneshot;
use types::{AttachMode, AttachmentKey, Code, Finding, NodeName, Placement};

use super::denied::DeniedSample;
use super::denied_flows::DeniedFlows;
use super::objects::restrict_pod;
use super::pods::{LocalPod, LocalPods};
use super::{placement, profiles};
use crate::agent_status::AgentStatus;
use crate::conditions::Source;
use crate::identities::{LocalIdentities, RemoteChanges};
use crate::reconciler::ReconcileRequests;
use crate::waker::Waker;

/// How long an ADD waits for the policy thread. The pod starts isolated afterwards.
const DEADLINE: Duration = Duration::from_secs(5);

/// How long a query of an API client waits for the policy thread.
const QUERY_TIMEOUT: Duration = Duration::from_secs(8);
/// Queries that wait. Further ones are refused.
const MAX_QUERIES: usize = 32;
/// Denied packets that wait. Further ones are counted as lost.
const MAX_SAMPLES: usize = 64;

/// Shared by requests, the reconciler, membership and the policy thread.
///
/// An ADD hands its pod to the policy thread and waits, so that no lock is held across a system call, and concurrent ADDs share one
/// transaction. While no policy is enforced, ADD and DEL only read a flag: the thread lists the records when enforcement begins.
#[derive(Debug)]
pub(crate) struct Policies {
    node: NodeName,
    state: Mutex<PolicyState>,
    pub(super) waker: Waker,
    pub(crate) denied: DeniedFlows,
    agent_status: Arc<AgentStatus>,
    /// Changes of other nodes and their pods that the thread has not taken. Never larger than the store's contents.
    remote: Mutex<RemoteChanges>,
    /// None if this node's pods are not published.
    identities: Option<Arc<LocalIdentities>>,
    /// Held while isolated pods are reported, so that an earlier list cannot replace a later one.
    reporting: Mutex<()>,
    /// They compare running pods after a change of profiles.
    profile_readers: Option<ProfileReaders>,
}

#[derive(Debug)]
struct ProfileReaders {
    reconciler: ReconcileRequests,
    inspector: Waker,
}

impl ProfileReaders {
    fn wake(&self) {
        self.reconciler.request_round();
        self.inspector.wake();
    }
}

#[derive(Debug, Default)]
struct PolicyState {
    is_enforced: bool,
    requests: Vec<PodRequest>,
    queries: VecDeque<PolicyQuery>,
    samples: Vec<DeniedSample>,
    /// None until the store was read.
    objects: Option<Arc<Catalog>>,
    /// The groups of all pods that the policy thread knows.
    groups: HashMap<AttachmentKey, LinkGroup>,
    /// The same by host end.
    links: HashMap<String, LinkGroup>,
    /// Pods that started isolated because the policy thread did not answer.
    isolated: BTreeSet<AttachmentKey>,
}

/// A request to the policy thread. If it has ended or takes too long, the receiver gets no answer.
#[derive(Debug)]
pub(super) enum PodRequest {
    Add {
        pod: LocalPod,
        done: SyncSender<LinkGroup>,
    },
    Remove(AttachmentKey),
    /// Sets the group of the link, too.
    Restore {
        pod: LocalPod,
        done: SyncSender<Result<(), String>>,
    },
}

impl PodRequest {
    /// Whether enforcement begins with this pod if it did not before.
    pub(super) fn needs_policies(&self) -> bool {
        match self {
            Self::Add { pod, .. } => pod.needs_policies(),
            Self::Remove(_) | Self::Restore { .. } => false,
        }
    }
}

/// Whether this node enforces policies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EnforcementState {
    Enforced,
    /// With the reason.
    Not(String),
}

/// A query of an API client. The number of packets is counted before its answer.
#[derive(Debug)]
pub(super) enum PolicyQuery {
    Explain {
        query: Box<FlowQuery>,
        done: oneshot::Sender<(EnforcementState, Result<FlowAnswers, FlowQueryError>)>,
    },
    /// Counts denied packets.
    Count { done: oneshot::Sender<EnforcementState> },
}

/// Why the policy thread did not answer a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PolicyAskError {
    #[error("{MAX_QUERIES} queries about policies are waiting: try again later")]
    Busy,
    #[error("the policy thread did not answer within {} s: see `podwire status`", QUERY_TIMEOUT.as_secs())]
    TimedOut,
    #[error("the policy thread has ended: see the agent's log")]
    Stopped,
}

/// Input that the policy thread has not taken yet, and the current objects.
#[derive(Debug, Default)]
pub(super) struct PolicyInputs {
    pub(super) requests: Vec<PodRequest>,
    /// One of those that wait, because ADDs must not wait for all of them.
    pub(super) query: Option<PolicyQuery>,
    pub(super) samples: Vec<DeniedSample>,
    pub(super) objects: Option<Arc<Catalog>>,
}

impl Policies {
    /// `waker` wakes the policy thread.
    pub(crate) fn new(node: NodeName, waker: Waker, agent_status: Arc<AgentStatus>) -> Self {
        Self {
            node,
            state: Mutex::default(),
            waker,
            denied: DeniedFlows::new(),
            agent_status,
            remote: Mutex::default(),
            identities: None,
            reporting: Mutex::default(),
            profile_readers: None,
        }
    }

    /// The reconciler and the inspector are woken when the profile of a group changes.
    pub(crate) fn with_profile_readers(self, reconciler: ReconcileRequests, inspector: Waker) -> Self {
        Self { profile_readers: Some(ProfileReaders { reconciler, inspector }), ..self }
    }

    /// The identities of this node's pods are published, also while no policy is enforced.
    pub(crate) fn publishing(self, identities: Arc<LocalIdentities>) -> Self {
        Self { identities: Some(identities), ..self }
    }

    pub(crate) fn identities(&self) -> Option<&Arc<LocalIdentities>> {
        self.identities.as_ref()
    }

    /// Adds changes of other nodes and their pods.
    pub(crate) fn update_remote(&self, changes: RemoteChanges) {
        if changes.is_empty() {
            return;
        }
        self.lock_remote().merge(changes);
        self.waker.wake();
    }

    /// At most `limit` pods. The thread is woken again for the others.
    pub(super) fn take_remote(&self, limit: usize) -> RemoteChanges {
        let (changes, is_empty) = {
            let mut remote = self.lock_remote();
            (remote.take(limit), remote.is_empty())
        };
        if !is_empty {
            self.waker.wake();
        }
        changes
    }

    fn lock_remote(&self) -> MutexGuard<'_, RemoteChanges> {
        self.remote.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the objects.
    pub(crate) fn set_objects(&self, objects: Arc<Catalog>) {
        let profiles = profiles::of_groups(&objects);
        let (is_changed, earlier) = {
            let mut state = self.lock();
            let is_changed = state.objects.as_ref() != Some(&objects);
            (is_changed, state.objects.replace(objects))
        };
        if is_changed {
            self.waker.wake();
        }
        if earlier.map(|earlier| profiles::of_groups(&earlier)) != Some(profiles) {
            self.wake_profile_readers();
        }
    }

    pub(crate) fn objects(&self) -> Option<Arc<Catalog>> {
        self.lock().objects.clone()
    }

    /// The group that the host end with this name should have. None if it is not known, or no policy is enforced.
    pub(crate) fn group_of_link(&self, name: &str) -> Option<LinkGroup> {
        let state = self.lock();
        state.links.get(name).copied().filter(|_| state.is_enforced)
    }

    fn wake_profile_readers(&self) {
        if let Some(readers) = &self.profile_readers {
            readers.wake();
        }
    }

    pub(crate) fn node(&self) -> &NodeName {
        &self.node
    }

    pub(super) fn take(&self) -> PolicyInputs {
        // First, so that later input wakes the thread again.
        self.waker.clear();
        let (inputs, has_more) = {
            let mut state = self.lock();
            let inputs = PolicyInputs {
                requests: std::mem::take(&mut state.requests),
                query: state.queries.pop_front(),
                samples: std::mem::take(&mut state.samples),
                objects: state.objects.clone(),
            };
            (inputs, !state.queries.is_empty())
        };
        if has_more {
            self.waker.wake();
        }
        inputs
    }

    /// From now on, ADDs and DELs are handed to the thread. ADDs before have a record, which the thread lists afterwards.
    pub(super) fn begin(&self) {
        self.lock().is_enforced = true;
    }

    /// ADDs that wait are answered: their pods need no group. Those that need policies wait: enforcement begins again.
    pub(super) fn end(&self) {
        {
            let mut state = self.lock();
            let (objects, queries) = (state.objects.take(), std::mem::take(&mut state.queries));
            let mut requests = std::mem::take(&mut state.requests);
            requests.retain(PodRequest::needs_policies);
            *state = PolicyState { objects, queries, requests, ..PolicyState::default() };
        }
        self.report_isolated();
    }

    /// Publishes groups before the links get them: an ADD that creates its link at the same time finds the new group.
    pub(super) fn publish<'a>(&self, groups: impl IntoIterator<Item = (&'a LocalPod, LinkGroup)>) {
        let mut state = self.lock();
        for (pod, group) in groups {
            state.groups.insert(pod.key.clone(), group);
            state.links.insert(pod.link.to_string(), group);
        }
    }

    pub(super) fn forget(&self, pod: &LocalPod) {
        let mut state = self.lock();
        state.groups.remove(&pod.key);
        state.links.remove(pod.link.as_str());
    }

    /// Forgets all pods but these.
    pub(super) fn retain(&self, pods: &LocalPods) {
        let links: HashSet<&str> = pods.iter().map(|pod| pod.link.as_str()).collect();
        {
            let mut state = self.lock();
            state.groups.retain(|key, _| pods.get(key).is_some());
            state.links.retain(|link, _| links.contains(link.as_str()));
            state.isolated.retain(|key| pods.get(key).is_some());
        }
        self.report_isolated();
    }

    pub(super) fn group(&self, key: &AttachmentKey) -> LinkGroup {
        self.lock().groups.get(key).copied().unwrap_or(LinkGroup::CLOSED)
    }

    /// The link has its group, or does not exist any more.
    pub(super) fn set_connected(&self, key: &AttachmentKey) {
        let was_isolated = self.lock().isolated.remove(key);
        if was_isolated {
            self.report_isolated();
        }
    }

    /// Returns whether policies are enforced, or the pod needs them. Otherwise the request is dropped.
    fn send(&self, request: PodRequest) -> bool {
        {
            let mut state = self.lock();
            if !state.is_enforced && !request.needs_policies() {
                return false;
            }
            state.requests.push(request);
        }
        self.waker.wake();
        true
    }

    /// Hands logged packets to the thread.
    pub(super) fn explain_denied(&self, samples: Vec<DeniedSample>) {
        let total = samples.len();
        let taken = {
            let mut state = self.lock();
            let space = MAX_SAMPLES.saturating_sub(state.samples.len());
            state.samples.extend(samples.into_iter().take(space));
            total.min(space)
        };
        self.denied.lost((total - taken) as u64);
        self.waker.wake();
    }

    /// Explains flows, also if no policies are enforced.
    pub(crate) async fn explain(
        &self,
        query: FlowQuery,
    ) -> Result<(EnforcementState, Result<FlowAnswers, FlowQueryError>), PolicyAskError> {
        let query = Box::new(query);
        self.ask(|done| PolicyQuery::Explain { query, done }).await
    }

    /// Updates the number of denied packets in the metrics.
    pub(crate) async fn count_denied(&self) -> Result<EnforcementState, PolicyAskError> {
        self.ask(|done| PolicyQuery::Count { done }).await
    }

    async fn ask<T>(
        &self,
        query: impl FnOnce(oneshot::Sender<T>) -> PolicyQuery,
    ) -> Result<T, PolicyAskError> {
        let (done, answer) = oneshot::channel();
        {
            let mut state = self.lock();
            if state.queries.len() >= MAX_QUERIES {
                return Err(PolicyAskError::Busy);
            }
            state.queries.push_back(query(done));
        }
        self.waker.wake();
        match tokio::time::timeout(QUERY_TIMEOUT, answer).await {
            Ok(answer) => answer.map_err(|_| PolicyAskError::Stopped),
            Err(_) => Err(PolicyAskError::TimedOut),
        }
    }

    fn isolate(&self, key: &AttachmentKey) {
        let is_new = {
            let mut state = self.lock();
            // Enforcement may have ended meanwhile.
            state.is_enforced && state.isolated.insert(key.clone())
        };
        if is_new {
            self.report_isolated();
        }
    }

    fn report_isolated(&self) {
        let _reporting = self.reporting.lock().unwrap_or_else(PoisonError::into_inner);
        let message = "the agent could not determine the policies of the pod in time, so all its flows are dropped until the \
                       agent repairs this";
        let finding =
            |key: &AttachmentKey| Finding::new(Code::PodIsolated, format_args!("attachment {key}"), message);
        let findings: Vec<Finding> = self.lock().isolated.iter().map(finding).collect();
        self.agent_status.set(Source::IsolatedPods, findings);
    }

    fn publish_identity(&self, pod: &LocalPod) {
        if let Some(identities) = &self.identities {
            identities.set(pod);
        }
    }

    fn lock(&self) -> MutexGuard<'_, PolicyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PodPolicies for Policies {
    fn check(&self, placement: &Placement, mode: AttachMode) -> Result<(), cni::Error> {
        if *placement == Placement::default() {
            return Ok(());
        }
        placement::check(self.objects().as_deref(), placement, mode)
    }

    fn may_be_known_elsewhere(&self, address: IpAddr) -> bool {
        self.identities.as_ref().is_some_and(|identities| identities.is_stored(address))
    }

    fn add_pod(&self, pod: &Attachment) -> LinkGroup {
        let is_enforced = self.lock().is_enforced || pod.placement.as_ref().is_some_and(restrict_pod);
        if !is_enforced && self.identities.is_none() {
            return LinkGroup::CLOSED;
        }
        let local = LocalPod::of(&self.node, pod);
        self.publish_identity(&local);
        let (done, answer) = mpsc::sync_channel(1);
        if !is_enforced || !self.send(PodRequest::Add { pod: local, done }) {
            return LinkGroup::CLOSED;
        }
        answer.recv_timeout(DEADLINE).unwrap_or_else(|_| {
            self.isolate(&pod.key);
            LinkGroup::CLOSED
        })
    }

    fn link_created(&self, pod: &Attachment, group: LinkGroup) {
        let expected = {
            let state = self.lock();
            state.groups.get(&pod.key).copied().filter(|_| state.is_enforced)
        };
        // If the pod has no group yet, the thread finds the link when it publishes one.
        if expected.is_some_and(|expected| expected != group) && self.restore_pod(pod).is_err() {
            self.isolate(&pod.key);
        }
    }

    fn remove_pod(&self, key: &AttachmentKey) {
        if let Some(identities) = &self.identities {
            identities.remove(key);
        }
        if self.send(PodRequest::Remove(key.clone())) {
            self.set_connected(key);
        }
    }

    fn has_drift(&self, key: &AttachmentKey, group: LinkGroup) -> bool {
        let state = self.lock();
        state.is_enforced && state.groups.get(key) != Some(&group)
    }

    fn restore_pod(&self, pod: &Attachment) -> Result<(), engine::Error> {
        let (done, answer) = mpsc::sync_channel(1);
        let local = LocalPod::of(&self.node, pod);
        self.publish_identity(&local);
        if !self.send(PodRequest::Restore { pod: local, done }) {
            return Ok(());
        }
        let failed = |reason: String| {
            engine::Error::NotAvailable(format!("cannot set the group of link {}: {reason}", pod.host_link))
        };
        match answer.recv_timeout(DEADLINE) {
            Ok(result) => result.map_err(failed),
            Err(_) => Err(failed(format!("the policy thread did not answer within {DEADLINE:?}"))),
        }
    }

    fn profile(&self, placement: &Placement) -> Option<PodProfile> {
        self.objects().map(|objects| profiles::of_placement(&objects, placement))
    }

    fn uses_dscp(&self) -> Option<bool> {
        let objects = self.objects()?;
        Some(profiles::of_groups(&objects).into_values().any(|profile| profile.dscp.is_some()))
    }

    fn profile_applied(&self, pod: &Attachment, profile: Option<PodProfile>) {
        let current = pod.placement.as_ref().and_then(|placement| self.profile(placement));
        if current != profile {
            self.wake_profile_readers();
        }
    }
}
