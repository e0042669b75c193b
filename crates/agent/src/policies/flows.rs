//! Stops flows that a change forbids. A thread of its own judges the existing flows, because a node may have hundreds of thousands.
//!
//! A flow whose first packet is on its way during a pass is not listed, so each change has a second pass.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nft::conntrack::{FlowAction, FlowScan, FlowSelection, TrackedFlow, judge_flows};
use nft::desired::policy::MarkBit;
use policy::{Delta, FlowEnd, FlowParty, PolicyElement, PolicyEngine, PolicyFlow, PolicyVerdict};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::{error, info};
use types::{Code, Family, Finding};

use crate::agent_status::AgentStatus;
use crate::conditions::Source;
use crate::thread::{AgentThread, StopFlag};
use crate::waker::Waker;

/// The shortest time between two passes, and the time until the second pass of a change.
const PAUSE: Duration = Duration::from_secs(1);
/// Verdicts that a pass remembers. Many flows differ only in the source port.
const REMEMBERED: usize = 65_536;

/// The flows that a change may affect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AffectedFlows {
    None,
    /// The change only allows more, so flows that were forbidden before are judged again.
    Forbidden,
    All,
}

impl AffectedFlows {
    pub(super) fn of(delta: &Delta) -> Self {
        let mut changed = delta.replaced.iter().chain(&delta.set).chain(&delta.removed);
        let may_forbid = |element: &PolicyElement, verdict: PolicyVerdict| match element {
            PolicyElement::Verdict { verdict: found, .. } => *found == verdict,
            PolicyElement::Address { .. } | PolicyElement::Addresses { .. } => true,
            PolicyElement::OwnAddress { .. } => false,
        };
        let forbids = !delta.profiles.is_empty()
            || delta.set.iter().any(|element| may_forbid(element, PolicyVerdict::Drop))
            || delta.replaced.iter().chain(&delta.removed).any(|it| may_forbid(it, PolicyVerdict::Accept));
        match (forbids, changed.next()) {
            (true, _) => Self::All,
            (false, Some(_)) => Self::Forbidden,
            (false, None) => Self::None,
        }
    }

    fn selection(self) -> Option<FlowSelection> {
        match self {
            Self::None => None,
            Self::Forbidden => Some(FlowSelection::Forbidden),
            Self::All => Some(FlowSelection::All),
        }
    }
}

/// A pass that was requested. Later requests are merged into it.
#[derive(Debug)]
struct FlowPass {
    engine: Arc<PolicyEngine>,
    affected: AffectedFlows,
}

/// The sending side, for the policy thread.
#[derive(Debug, Clone)]
pub(super) struct FlowRequests {
    slot: Arc<Mutex<Option<FlowPass>>>,
    waker: Waker,
}

impl FlowRequests {
    pub(super) fn new(waker: Waker) -> Self {
        Self { slot: Arc::default(), waker }
    }

    pub(super) fn judge(&self, engine: &PolicyEngine, affected: AffectedFlows) {
        if affected == AffectedFlows::None {
            return;
        }
        let engine = Arc::new(engine.clone());
        {
            let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
            let earlier = slot.take().map_or(AffectedFlows::None, |request| request.affected);
            *slot = Some(FlowPass { engine, affected: affected.max(earlier) });
        }
        self.waker.wake();
    }

    fn take(&self) -> Option<FlowPass> {
        // First, so that later input wakes the thread again.
        self.waker.clear();
        self.slot.lock().unwrap_or_else(PoisonError::into_inner).take()
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
        let mut next = Instant::now();
        let (mut first, mut second) = (None::<FlowPass>, None::<FlowPass>);
        loop {
            if let Some(request) = self.requests.take() {
                let earlier = first.as_ref().map_or(AffectedFlows::None, |earlier| earlier.affected);
                first = Some(FlowPass { affected: request.affected.max(earlier), ..request });
            }
            if stop.is_set() {
                return;
            }
            if Instant::now() >= next {
                // A new request includes the second pass of an earlier one.
                if let Some(request) = first.take() {
                    self.judge(&request);
                    let earlier = second.take().map_or(AffectedFlows::None, |earlier| earlier.affected);
                    second = Some(FlowPass { affected: request.affected.max(earlier), ..request });
                    next = Instant::now() + PAUSE;
                } else if let Some(request) = second.take() {
                    self.judge(&request);
                    next = Instant::now() + PAUSE;
                }
            }
            let is_waiting = first.is_some() || second.is_some();
            let pause = is_waiting.then(|| next.saturating_duration_since(Instant::now()));
            let timeout = pause.and_then(|pause| Timespec::try_from(pause).ok());
            if let Err(errno) =
                poll(&mut [PollFd::new(&self.requests.waker, PollFlags::IN)], timeout.as_ref())
                && errno != rustix::io::Errno::INTR
            {
                error!(error = %errno, "the thread that judges flows cannot wait for events");
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn judge(&self, request: &FlowPass) {
        let Some(selection) = request.affected.selection() else { return };
        let mut known = HashMap::new();
        let mut failed = Vec::new();
        let mut total = FlowScan::default();
        for family in [Family::V4, Family::V6] {
            let judged = judge_flows(family, self.bit, selection, &mut |flow| {
                action(&request.engine, &mut known, flow)
            });
            match judged {
                Ok(FlowScan { listed, forbidden, cleared }) => {
                    total.listed += listed;
                    total.forbidden += forbidden;
                    total.cleared += cleared;
                }
                Err(error) => {
                    let message =
                        format!("{family} flows that a change of policies forbids may continue: {error}");
                    failed.push(Finding::new(Code::PolicyNotEnforced, "flows", message));
                }
            }
        }
        if total.forbidden + total.cleared > 0 {
            let FlowScan { listed, forbidden, cleared } = total;
            info!(listed, forbidden, allowed = cleared, "existing flows judged after a change of policies");
        }
        self.agent_status.set(Source::Flows, failed);
    }
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

    use model::objects::{Direction, Identity, NamespacedName};
    use nft::conntrack::FlowTuple;
    use policy::{NodeEntry, PodEntry, PodPhase, PolicyNetwork, ProfileId, VerdictKey, WorldChange};
    use types::{NetworkId, NodeName, Placement, TenantName};

    use super::*;

    fn default(verdict: PolicyVerdict) -> PolicyElement {
        let key = VerdictKey::Default { profile: ProfileId(ProfileId::FIRST) };
        PolicyElement::Verdict { direction: Direction::Ingress, key, verdict }
    }

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
    fn only_changes_that_may_forbid_judge_all_flows() {
        let (accept, drop) = (default(PolicyVerdict::Accept), default(PolicyVerdict::Drop));
        let (none, replaced) = (Delta::default(), vec![drop]);
        assert_eq!(AffectedFlows::of(&none), AffectedFlows::None);
        let allows = Delta { replaced, set: vec![accept], ..Delta::default() };
        assert_eq!(AffectedFlows::of(&allows), AffectedFlows::Forbidden);
        for forbids in [
            Delta { set: vec![drop], ..Delta::default() },
            Delta { removed: vec![accept], ..Delta::default() },
            Delta { profiles: vec![("p".into(), ProfileId(ProfileId::FIRST))], ..Delta::default() },
        ] {
            assert_eq!(AffectedFlows::of(&forbids), AffectedFlows::All);
        }
    }
}
