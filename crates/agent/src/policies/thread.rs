//! The policy thread. `observe`: pods and addresses of this node. `report`: conditions and metrics. `queries`: explanations.

mod observe;
mod queries;
mod remote;
mod report;
mod tenants;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::policy::LinkGroup;
use engine::state::RecordPhase;
use model::Catalog;
use nft::{RulesetMonitor, Surplus};
use policy::{Delta, WorldChange};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing::{error, info, warn};
use types::{AttachMode, AttachmentKey};

use super::denied::{self, DeniedParts};
use super::enforced::Enforced;
use super::flows::{self, AffectedFlows, FlowRequests};
use super::handle::{PodRequest, Policies};
use super::kernel::{PolicyKernel, forbidden_bit};
use super::marker::TableMarker;
use super::objects::restrict_flows;
use super::others;
use super::pods::LocalPod;
use super::remote::RemoteWorld;
use super::unused::UnusedRanges;
use crate::agent_status::{AgentStatus, WatchedThread};
use crate::metrics::Metrics;
use crate::monitor::{MonitorSlot, Read};
use crate::thread::{AgentThread, StopFlag};
use crate::waker::{Slot, Waker};
use config::Config;

/// The pause before a retry.
const RETRY: Duration = Duration::from_secs(1);
/// After an event, the table is compared after this many times the duration of the last comparison, so that continuous changes by
/// another program do not keep the thread busy.
const PAUSE_FACTOR: u32 = 4;

pub(crate) struct PolicyParts {
    pub(crate) config: Arc<Config>,
    pub(crate) agent_status: Arc<AgentStatus>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) policies: Arc<Policies>,
}

#[derive(Debug, thiserror::Error)]
pub enum PolicyStartError {
    #[error(transparent)]
    Nft(#[from] nft::Error),
    #[error("cannot start the policy thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// The policy thread, the thread that judges existing flows, and the thread that reads denied packets.
pub(crate) struct PolicyThreads {
    pub(crate) policies: AgentThread,
    pub(crate) flows: AgentThread,
    pub(crate) denied: AgentThread,
}

/// Starts the threads. The objects that are known are in force when this returns, before the first ADD is served.
pub(crate) fn start(parts: PolicyParts) -> Result<PolicyThreads, PolicyStartError> {
    let waker = parts.policies.waker.clone();
    let flow_waker = Waker::new().map_err(std::io::Error::from)?;
    let requests = FlowRequests::new(flow_waker);
    let flows = flows::start(requests.clone(), forbidden_bit(), Arc::clone(&parts.agent_status))?;
    let denied_waker = Waker::new().map_err(std::io::Error::from)?;
    let has_table = Arc::new(Slot::new(false, vec![denied_waker.clone()]));
    let denied = denied::start(DeniedParts {
        enforced: Arc::clone(&has_table),
        waker: denied_waker,
        policies: Arc::clone(&parts.policies),
        agent_status: Arc::clone(&parts.agent_status),
    })?;
    let mut thread = PolicyThread::new(parts, requests, has_table)?;
    thread.follow_remote(usize::MAX);
    thread.follow(thread.parts.policies.objects());
    let policies = AgentThread::start("podwire-policy", waker, move |stop| thread.run(stop))?;
    Ok(PolicyThreads { policies, flows, denied })
}

/// Why elements change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChangeCause {
    /// Pods start and stop.
    Pods,
    /// An address belongs to a pod with other properties than before.
    Identities,
    Objects,
}

struct PolicyThread {
    parts: PolicyParts,
    kernel: PolicyKernel,
    marker: TableMarker,
    flows: FlowRequests,
    /// Whether policies are enforced, for the thread that reads denied packets.
    has_table: Arc<Slot<bool>>,
    nft: MonitorSlot<RulesetMonitor, nft::Error>,
    /// The objects that were applied last.
    objects: Option<Arc<Catalog>>,
    /// Whether they restrict flows.
    restricts: bool,
    remote: RemoteWorld,
    /// None while no policy is enforced.
    enforced: Option<Enforced>,
    unused: UnusedRanges,
    /// When records, groups and the table are compared. None while no policy is enforced.
    compare_at: Option<Instant>,
    /// When only the table is compared, after an event.
    check_at: Option<Instant>,
    compared_at: Instant,
    /// Duration of the last comparison.
    took: Duration,
    /// Why the kernel does not have the desired state.
    failure: Option<String>,
}

impl PolicyThread {
    fn new(parts: PolicyParts, flows: FlowRequests, has_table: Arc<Slot<bool>>) -> Result<Self, nft::Error> {
        let marker = TableMarker::new(&parts.config.run_dir);
        Ok(Self {
            parts,
            marker,
            kernel: PolicyKernel::new(),
            flows,
            has_table,
            nft: MonitorSlot::open("nftables-policies", RulesetMonitor::open)?,
            objects: None,
            restricts: false,
            remote: RemoteWorld::default(),
            enforced: None,
            unused: UnusedRanges::new(Instant::now()),
            compare_at: None,
            check_at: None,
            compared_at: Instant::now(),
            took: Duration::ZERO,
            failure: None,
        })
    }

    fn run(mut self, stop: &StopFlag) {
        loop {
            let inputs = self.parts.policies.take();
            if stop.is_set() {
                return;
            }
            self.parts.agent_status.busy_since(WatchedThread::Policies, Instant::now());
            self.follow(inputs.objects);
            self.serve(inputs.requests);
            self.follow_remote(remote::REMOTE_CHANGES);
            self.follow_tenants();
            self.record_denied(inputs.samples);
            inputs.query.into_iter().for_each(|query| self.answer_query(query));
            self.read_events();
            self.run_timers();
            self.parts.agent_status.idle(WatchedThread::Policies);
            if let Err(errno) = self.wait() {
                error!(error = %errno, "the policy thread cannot wait for events");
                // The timer still compares everything.
                std::thread::sleep(RETRY);
            }
        }
    }

    fn wait(&self) -> Result<(), Errno> {
        let next = [self.compare_at, self.check_at, self.unused.due(), self.nft.retry_at()]
            .into_iter()
            .flatten()
            .min();
        let pause = next.map(|next| next.saturating_duration_since(Instant::now()));
        let timeout = pause.map(Timespec::try_from).transpose().map_err(|_| Errno::INVAL)?;
        let mut fds = vec![PollFd::new(&self.parts.policies.waker, PollFlags::IN)];
        fds.extend(self.nft.fd().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Applies the objects if they changed, and begins or ends enforcement.
    fn follow(&mut self, objects: Option<Arc<Catalog>>) {
        let Some(objects) = objects else { return };
        let is_first = self.objects.is_none();
        if self.objects.as_ref().is_some_and(|known| Arc::ptr_eq(known, &objects)) {
            return;
        }
        self.objects = Some(Arc::clone(&objects));
        self.restricts = restrict_flows(&objects);
        let has_earlier_table = is_first && self.is_marked();
        let has_tenant_pods = self.has_tenant_pods() || (is_first && self.has_tenant_records());
        let is_needed = (self.restricts || has_tenant_pods) && self.obstacle().is_none();
        match (&mut self.enforced, is_needed) {
            (None, true) => self.begin(&objects),
            (Some(enforced), true) => {
                let changes = enforced.set_objects(&objects);
                self.apply(changes, &BTreeSet::new(), ChangeCause::Objects);
            }
            (None, false) if has_earlier_table => self.end(),
            (None, false) => {}
            (Some(_), false) => self.end(),
        }
        self.report();
    }

    /// Why policies cannot be enforced on this node.
    fn obstacle(&self) -> Option<&'static str> {
        let config = &self.parts.config;
        match config.network.mode {
            AttachMode::Bridge => Some(
                "they need attach mode routed: set network.mode = \"routed\" and restart the pods; until then all flows are \
                 allowed",
            ),
            AttachMode::Routed => None,
        }
    }

    /// Running pods get their groups before the table appears, so that none is isolated in between.
    fn begin(&mut self, objects: &Arc<Catalog>) {
        // Existing flows of unknown addresses are not judged.
        self.follow_remote(usize::MAX);
        let mut enforced = Enforced::new(self.parts.policies.node());
        self.parts.policies.begin();
        self.has_table.set(true);
        let mut changes = enforced.set_objects(objects);
        changes.extend(self.remote.all());
        enforced.apply(changes);
        self.enforced = Some(enforced);
        self.failure = None;
        // A failure of one of the steps brings it forward.
        self.compare_at = Some(Instant::now() + self.parts.config.reconcile);
        self.mark();
        // Also pods with an ADD in progress, which did not report them.
        let changes = self.sync(&[RecordPhase::Ready, RecordPhase::Pending]);
        if let Some(enforced) = &mut self.enforced {
            enforced.apply(changes);
        }
        // The table of an earlier agent. Its pods keep their rules until they have their new groups.
        if self.kernel.has_table().unwrap_or(false) {
            self.keep_table(Surplus::Keep);
        }
        self.regroup();
        self.keep_table(self.surplus());
        self.judge_all();
        info!("policies are enforced");
    }

    /// Judges all existing flows. While the table or a group was wrong, forbidden flows may have begun.
    fn judge_all(&self) {
        if let Some(enforced) = &self.enforced {
            self.flows.judge(enforced.engine(), AffectedFlows::all());
        }
    }

    /// Whether this agent left the table when it ended. The table of another agent must not be removed.
    fn is_marked(&self) -> bool {
        self.marker.is_set().unwrap_or_else(|error| {
            warn!(%error, "cannot determine whether this agent enforced policies; an existing table is kept");
            false
        })
    }

    fn mark(&mut self) {
        let marked = self.marker.set();
        self.failed("the run directory cannot record that policies are enforced", marked.err());
    }

    fn unmark(&self) {
        if let Err(error) = self.marker.clear() {
            // The next start removes the table again.
            warn!(%error, "cannot record that policies are no longer enforced");
        }
    }

    fn end(&mut self) {
        match self.kernel.remove_table() {
            Ok(existed) => {
                if existed {
                    info!("policies are no longer enforced: no object restricts flows");
                }
                self.failure = None;
                self.compare_at = None;
                self.unmark();
            }
            // Without nftables there is no table.
            Err(nft::Error::Unsupported { .. }) => self.compare_at = None,
            Err(error) => {
                self.failure = Some(format!("the table of policies cannot be removed: {error}"));
                self.compare_at = Some(Instant::now() + RETRY);
            }
        }
        self.check_at = None;
        self.flows.withdraw_engine();
        self.unused.clear();
        self.enforced = None;
        self.has_table.set(false);
        self.parts.policies.end();
    }

    /// Serves all requests with one transaction.
    fn serve(&mut self, requests: Vec<PodRequest>) {
        if self.enforced.is_none() && requests.iter().any(PodRequest::needs_policies) {
            self.begin_for_pods();
        }
        let Some(enforced) = self.enforced.as_mut().filter(|_| !requests.is_empty()) else { return };
        let (mut changes, mut new) = (Vec::new(), BTreeSet::new());
        for request in &requests {
            match request {
                PodRequest::Add { pod, .. } | PodRequest::Restore { pod, .. } => {
                    changes.extend(enforced.pods.set(pod.clone()));
                    new.insert(pod.key.clone());
                }
                PodRequest::Remove(key) => {
                    if let Some(pod) = enforced.pods.get(key) {
                        self.parts.policies.forget(pod);
                    }
                    changes.extend(enforced.pods.remove(key));
                    new.remove(key);
                }
            }
        }
        self.apply(changes, &new, ChangeCause::Pods);
        self.answer(requests);
    }

    fn answer(&mut self, requests: Vec<PodRequest>) {
        for request in requests {
            match request {
                PodRequest::Add { pod, done } => {
                    // The ADD did not wait, and its link may exist.
                    if done.send(self.parts.policies.group(&pod.key)).is_err() {
                        // The reconciler retries.
                        let _ = self.regroup_pod(&pod);
                    }
                }
                PodRequest::Restore { pod, done } => {
                    let regrouped = self.regroup_pod(&pod);
                    if regrouped.as_ref().is_ok_and(|changed| *changed > 0) {
                        self.judge_all();
                    }
                    // The reconciler may have stopped waiting. It finds the group in its next round.
                    let _ = done.send(regrouped.map(drop));
                }
                PodRequest::Remove(_) => {}
            }
        }
    }

    /// Returns the number of links whose group was another one.
    fn regroup_pod(&mut self, pod: &LocalPod) -> Result<usize, String> {
        let group = self.parts.policies.group(&pod.key);
        let changed = self.kernel.set_groups(&[(pod, group)]).map_err(|error| error.to_string())?;
        self.parts.policies.set_connected(&pod.key);
        Ok(changed)
    }

    /// Applies changes in an order without a wrong verdict in between. The links of new pods do not exist yet.
    fn apply(&mut self, changes: Vec<WorldChange>, new: &BTreeSet<AttachmentKey>, cause: ChangeCause) {
        let started = Instant::now();
        let Some(enforced) = &mut self.enforced else { return };
        let own_node = enforced.own_node();
        self.flows.withdraw_engine();
        let pods = others::changed_pods(&changes);
        let delta = enforced.apply(changes);
        let mut affected = match cause {
            ChangeCause::Objects | ChangeCause::Identities => AffectedFlows::of(&delta),
            // Flows of an earlier pod are removed before its address is assigned again.
            ChangeCause::Pods => {
                AffectedFlows::of(&others::of_others(&delta, &pods, enforced.engine().profiles()))
            }
        };
        let Delta { replaced, set, profiles, removed } = self.unused.postpone(delta);
        let has_other_rules = enforced.own_node() != own_node;
        let applied = self.kernel.apply(&replaced, &set);
        if let Err(error) = &applied {
            info!(%error, "the table of policies differs; applying all elements");
            if !self.keep_table(Surplus::Keep).is_empty() {
                affected = AffectedFlows::all();
            }
        } else if has_other_rules {
            self.keep_table(Surplus::Keep);
        }
        let Some(enforced) = &self.enforced else { return };
        let added = new.iter().filter_map(|key| enforced.pods.get(key));
        self.parts.policies.publish(added.map(|pod| (pod, enforced.group(pod))));
        let changed: Vec<(&LocalPod, LinkGroup)> = profiles
            .iter()
            .filter_map(|(uid, profile)| enforced.pods.grouped(uid, *profile))
            .filter(|(pod, _)| !new.contains(&pod.key))
            .collect();
        self.parts.policies.publish(changed.iter().copied());
        let regrouped = self.kernel.set_groups(&changed);
        let cleaned = self.kernel.remove(&removed);
        self.flows.judge(enforced.engine(), affected);
        self.failed("groups of links cannot be set", regrouped.err());
        self.failed("elements of policies cannot be removed", cleaned.err());
        if applied.is_err() {
            // The elements that the refused transaction should have removed.
            self.keep_table(self.surplus());
        }
        self.parts.metrics.policies_applied(started.elapsed());
    }

    /// Publishes and sets the groups of all pods. Returns the number of links whose group was another one.
    fn regroup(&mut self) -> usize {
        let Some(enforced) = &self.enforced else { return 0 };
        let groups = enforced.groups();
        self.parts.policies.retain(&enforced.pods);
        self.parts.policies.publish(groups.iter().copied());
        let regrouped = self.kernel.set_groups(&groups);
        if regrouped.is_ok() {
            groups.iter().for_each(|(pod, _)| self.parts.policies.set_connected(&pod.key));
        }
        let changed = regrouped.as_ref().copied().unwrap_or_default();
        self.failed("groups of links cannot be set", regrouped.err());
        changed
    }

    fn failed(&mut self, what: &str, error: Option<impl std::fmt::Display>) {
        if let Some(error) = error {
            self.failure = Some(format!("{what}: {error}"));
            self.compare_at = self.compare_at.map(|at| at.min(Instant::now() + RETRY));
            self.report();
        }
    }

    /// Compares the whole table with the engine's elements and repairs it. Returns the changes in words.
    fn keep_table(&mut self, surplus: Surplus) -> Vec<String> {
        let Some(enforced) = &self.enforced else { return Vec::new() };
        let started = Instant::now();
        let mut elements = enforced.elements();
        elements.extend(self.unused.iter());
        let kept = self.kernel.keep(&elements, enforced.own_node(), surplus);
        (self.compared_at, self.took) = (Instant::now(), started.elapsed());
        match kept {
            Ok(changes) => changes,
            Err(error) => {
                self.failed("the table of policies cannot be applied", Some(error));
                Vec::new()
            }
        }
    }

    /// After a failure, the pods or their groups may be incomplete. Then running pods keep their elements until the next comparison.
    fn surplus(&self) -> Surplus {
        if self.failure.is_some() { Surplus::Keep } else { Surplus::Remove }
    }

    fn read_events(&mut self) {
        if let Some(monitor) = self.nft.monitor() {
            // The socket may be a new one. If there is none, the thread changes nothing.
            let _ = self.kernel.hide_from(monitor);
        }
        match self.nft.read(Instant::now(), RulesetMonitor::read) {
            Read::Events(change) if !change.policies => {}
            Read::Events(_) | Read::Reopened if self.enforced.is_some() => {
                let earliest = self.compared_at + self.took * PAUSE_FACTOR;
                self.check_at.get_or_insert(earliest);
            }
            Read::Events(_) | Read::Reopened => {}
            Read::Failed => self.report(),
        }
    }

    fn run_timers(&mut self) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= Instant::now());
        if is_due(self.compare_at) {
            self.compare();
        } else if is_due(self.check_at) {
            self.check();
        }
        self.remove_unused();
    }

    fn remove_unused(&mut self) {
        let started = Instant::now();
        let batch = self.unused.batch(started);
        let removed = self.kernel.remove(&batch);
        match &removed {
            Ok(()) if batch.is_empty() => {}
            Ok(()) => self.unused.removed(&batch, Instant::now(), started.elapsed()),
            Err(_) => self.unused.clear(),
        }
        self.failed("elements of policies cannot be removed", removed.err());
    }

    /// Compares only the table.
    fn check(&mut self) {
        self.check_at = None;
        let changes = self.keep_table(self.surplus());
        if !changes.is_empty() {
            self.judge_all();
        }
        self.repaired(&changes);
    }

    fn compare(&mut self) {
        if self.enforced.is_none() {
            self.end();
            return self.report();
        }
        self.failure = None;
        self.compare_at = Some(Instant::now() + self.parts.config.reconcile);
        self.mark();
        let changes = self.sync(&[RecordPhase::Ready]);
        self.apply(changes, &BTreeSet::new(), ChangeCause::Objects);
        if self.regroup() > 0 {
            self.judge_all();
        }
        self.check();
        self.count();
        self.report();
    }
}
