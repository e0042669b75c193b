//! Stops flows that a change forbids. A thread of its own judges the existing flows, because a node may have hundreds of thousands.
//! `affected`: which flows a change may affect. `schedule`: when they are judged.

mod affected;
mod schedule;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nft::conntrack::{FlowAction, FlowScan, TrackedFlow, judge_flows};
use nft::desired::policy::MarkBit;
use policy::{FlowEnd, FlowParty, PolicyEngine, PolicyFlow, PolicyVerdict};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use tracing::{error, info};
use types::{Code, Finding};

use self::schedule::PassSchedule;
use crate::agent_status::AgentStatus;
use crate::conditions::Source;
use crate::thread::{AgentThread, StopFlag};
use crate::waker::Waker;

pub(super) use affected::AffectedFlows;

/// The pause before a retry.
const RETRY: Duration = Duration::from_secs(1);
/// Verdicts that a pass remembers. Many flows differ only in the source port.
const REMEMBERED: usize = 65_536;

/// What the policy thread hands to the thread that judges flows. The engine is shared, because a copy takes tens of milliseconds in
/// a large cluster.
#[derive(Debug, Default)]
struct FlowInput {
    /// None while the policy thread changes it, and while no policy is enforced.
    engine: Option<Arc<PolicyEngine>>,
    affected: AffectedFlows,
    /// A pass is due and waits for the engine.
    is_awaited: bool,
}

/// The sending side, for the policy thread.
#[derive(Debug, Clone)]
pub(super) struct FlowRequests {
    requested: Arc<Mutex<FlowInput>>,
    waker: Waker,
}

impl FlowRequests {
    pub(super) fn new(waker: Waker) -> Self {
        Self { requested: Arc::default(), waker }
    }

    /// To be called before a change of the engine. Then the change copies the engine only while a pass uses it.
    pub(super) fn withdraw_engine(&self) {
        self.lock().engine = None;
    }

    /// To be called after each change of the engine, with the flows that it affects.
    pub(super) fn judge(&self, engine: &Arc<PolicyEngine>, affected: AffectedFlows) {
        let is_awaited = {
            let mut requested = self.lock();
            requested.engine = Some(Arc::clone(engine));
            let is_awaited = std::mem::take(&mut requested.is_awaited) || !affected.is_empty();
            requested.affected.merge(affected);
            is_awaited
        };
        if is_awaited {
            self.waker.wake();
        }
    }

    fn take(&self) -> AffectedFlows {
        // First, so that later input wakes the thread again.
        self.waker.clear();
        std::mem::take(&mut self.lock().affected)
    }

    /// None if the thread must wait until it is woken.
    fn engine(&self) -> Option<Arc<PolicyEngine>> {
        let mut requested = self.lock();
        requested.is_awaited = requested.engine.is_none();
        requested.engine.clone()
    }

    fn lock(&self) -> MutexGuard<'_, FlowInput> {
        self.requested.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the thread.
pub(super) fn start(
    requests: FlowRequests,
    bit: MarkBit,
    agent_status: Arc<AgentStatus>,
) -> std::io::Result<AgentThread> {
    let waker = requests.waker.clone();
    let judge = FlowJudge { requests, bit, agent_status };
    AgentThread::start("podwire-flows", waker, move |stop| judge.run(stop))
}

struct FlowJudge {
    requests: FlowRequests,
    bit: MarkBit,
    agent_status: Arc<AgentStatus>,
}

impl FlowJudge {
    fn run(&self, stop: &StopFlag) {
        let mut schedule = PassSchedule::new(Instant::now());
        loop {
            schedule.request(self.requests.take());
            if stop.is_set() {
                return;
            }
            let pause = self.pass(&mut schedule);
            let timeout = pause.and_then(|pause| Timespec::try_from(pause).ok());
            if let Err(errno) =
                poll(&mut [PollFd::new(&self.requests.waker, PollFlags::IN)], timeout.as_ref())
                && errno != rustix::io::Errno::INTR
            {
                error!(error = %errno, "the thread that judges flows cannot wait for events");
                std::thread::sleep(RETRY);
            }
        }
    }

    /// Runs the pass that is due. Returns the time until the next one. None if the thread is woken before.
    fn pass(&self, schedule: &mut PassSchedule) -> Option<Duration> {
        if schedule.next()? <= Instant::now() {
            let engine = self.requests.engine()?;
            if let Some(pass) = schedule.begin(Instant::now()) {
                let started = cpu_time();
                let failed = self.judge(&engine, &pass.affected());
                if failed.is_empty() {
                    schedule.end(pass, Instant::now(), cpu_time().saturating_sub(started));
                } else {
                    schedule.retry(&pass, Instant::now());
                }
                self.agent_status.set(Source::Flows, failed);
            }
        }
        schedule.next().map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Returns why flows could not be judged.
    fn judge(&self, engine: &PolicyEngine, affected: &AffectedFlows) -> Vec<Finding> {
        let mut known = HashMap::new();
        let mut failed = Vec::new();
        let mut total = FlowScan::default();
        for selection in affected.selections() {
            let judged = judge_flows(None, self.bit, selection, &mut |flow| action(engine, &mut known, flow));
            match judged {
                Ok(FlowScan { listed, forbidden, cleared }) => {
                    total.listed += listed;
                    total.forbidden += forbidden;
                    total.cleared += cleared;
                }
                Err(error) => {
                    let message = format!("flows that a change of policies forbids may continue: {error}");
                    failed.push(Finding::new(Code::PolicyNotEnforced, "flows", message));
                }
            }
        }
        if total.forbidden + total.cleared > 0 {
            let FlowScan { listed, forbidden, cleared } = total;
            info!(listed, forbidden, allowed = cleared, "existing flows judged after a change of policies");
        }
        failed
    }
}

/// CPU time of this thread, with its system calls.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// A flow without its source port.
type FlowKey = (IpAddr, IpAddr, u8, u16);

fn action(engine: &PolicyEngine, known: &mut HashMap<FlowKey, FlowAction>, flow: &TrackedFlow) -> FlowAction {
    let port = flow.target_port().unwrap_or_default();
    let (from, to, protocol) = (flow.origin(), flow.target(), flow.protocol);
    let key = (from, to, protocol, port);
    if let Some(action) = known.get(&key) {
        return *action;
    }
    let (from, to) = (FlowEnd::Address(from), FlowEnd::Address(to));
    let explained = engine.explain(&PolicyFlow { from, to, protocol, port });
    let is_judged = explained.egress.is_some() || explained.ingress.is_some();
    let action = match explained.verdict {
        _ if !is_judged || is_new(&explained.from) || is_new(&explained.to) => FlowAction::Keep,
        PolicyVerdict::Drop => FlowAction::Forbid,
        PolicyVerdict::Accept => FlowAction::Clear,
    };
    if known.len() < REMEMBERED {
        known.insert(key, action);
    }
    action
}

/// The pods are those at the time of the change. An unknown address may belong to a pod that was added since, whose flows were
/// judged when they began.
fn is_new(party: &FlowParty) -> bool {
    match party {
        FlowParty::Unknown(_) | FlowParty::NoPod(_) => true,
        FlowParty::Pod { .. } | FlowParty::Node { .. } | FlowParty::Outside(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use model::objects::{Identity, NamespacedName};
    use nft::conntrack::FlowTuple;
    use policy::{NodeEntry, PodEntry, PodPhase, PolicyNetwork, WorldChange};
    use types::{NetworkId, NodeName, Placement, TenantName};

    use super::*;

    fn pod(name: &str, tenant: &str, address: &str) -> WorldChange {
        let placement = Placement { tenant: tenant.try_into().unwrap(), ..Placement::default() };
        let identity = Identity { placement, namespace: None, labels: BTreeMap::new(), ports: Vec::new() };
        WorldChange::SetPod(PodEntry {
            uid: name.into(),
            name: NamespacedName { namespace: None, name: name.to_owned() },
            node: NodeName::try_from("n1").unwrap(),
            identity: Arc::new(identity),
            addresses: Some(vec![address.parse().unwrap()]),
            phase: PodPhase::Running,
        })
    }

    fn flow(from: &str, to: &str) -> TrackedFlow {
        let tuple = |source: &str, destination: &str, ports| FlowTuple {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            ports: Some(ports),
        };
        let (original, reply) = (tuple(from, to, (4000, 80)), tuple(to, from, (80, 4000)));
        TrackedFlow { protocol: 6, original, reply, mark: 0 }
    }

    /// A pass runs after the change, with the pods of the change.
    #[test]
    fn d_flows_of_pods_that_were_added_after_the_change_are_kept() {
        let mut engine = PolicyEngine::new(NodeName::try_from("n1").unwrap());
        let network = PolicyNetwork {
            tenant: TenantName::default(),
            id: NetworkId::default(),
            subnets: vec!["10.83.0.0/16".parse().unwrap()],
        };
        let node = WorldChange::SetNode(NodeName::try_from("n1").unwrap(), NodeEntry::default());
        engine.apply([WorldChange::SetNetwork(network), node]);
        engine.apply([pod("a", "default", "10.83.0.2"), pod("b", "blue", "10.83.0.3")]);
        let judged = |from, to| action(&engine, &mut HashMap::new(), &flow(from, to));
        assert_eq!(judged("10.83.0.2", "10.83.0.3"), FlowAction::Forbid);
        assert_eq!(judged("10.83.0.2", "10.83.0.9"), FlowAction::Keep);
        assert_eq!(judged("10.83.0.9", "10.83.0.2"), FlowAction::Keep);
    }

    #[test]
    fn a_change_copies_the_engine_only_while_a_pass_uses_it() {
        let requests = FlowRequests::new(Waker::new().unwrap());
        let mut engine = Arc::new(PolicyEngine::new(NodeName::try_from("n1").unwrap()));
        let is_waiting = || requests.lock().is_awaited;
        for _ in 0..3 {
            requests.judge(&engine, AffectedFlows::all());
            requests.withdraw_engine();
            assert!(Arc::get_mut(&mut engine).is_some());
        }
        assert!(requests.engine().is_none() && is_waiting());
        requests.judge(&engine, AffectedFlows::default());
        assert!(!is_waiting());
        let pass = requests.engine().unwrap();
        requests.withdraw_engine();
        assert!(Arc::get_mut(&mut engine).is_none());
        drop(pass);
        assert!(Arc::get_mut(&mut engine).is_some());
        assert_eq!(requests.take(), AffectedFlows::all());
        assert!(requests.take().is_empty());
    }
}
