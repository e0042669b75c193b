//! The flows that were denied last. The policy thread writes them, and the API reads them. Their number is bounded.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::DeniedFlow;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast};

/// Flows that are kept. The oldest ones are forgotten.
const MAX_FLOWS: usize = 1000;
/// Events that a follower may be behind. It misses older ones.
const MAX_BEHIND: usize = 256;
const MAX_FOLLOWERS: usize = 16;

#[derive(Debug)]
pub(crate) struct DeniedFlows {
    state: Mutex<DeniedState>,
    events: broadcast::Sender<Arc<DeniedFlow>>,
    followers: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct DeniedState {
    /// In the order of their last packet.
    flows: VecDeque<Arc<DeniedFlow>>,
    sampled: u64,
    lost: u64,
}

/// The flows, and the numbers of logged packets since the start.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeniedSnapshot {
    pub(crate) flows: Vec<Arc<DeniedFlow>>,
    pub(crate) sampled: u64,
    pub(crate) lost: u64,
}

/// A client that gets all flows that are recorded from now on.
#[derive(Debug)]
pub(crate) struct DeniedFollower {
    /// The flows before.
    pub(crate) known: VecDeque<Arc<DeniedFlow>>,
    pub(crate) events: broadcast::Receiver<Arc<DeniedFlow>>,
    _permit: OwnedSemaphorePermit,
}

impl DeniedFlows {
    pub(crate) fn new() -> Self {
        let (events, _) = broadcast::channel(MAX_BEHIND);
        Self { state: Mutex::default(), events, followers: Arc::new(Semaphore::new(MAX_FOLLOWERS)) }
    }

    /// Adds a logged packet, or counts it in the entry of its flow.
    pub(crate) fn record(&self, flow: DeniedFlow) {
        let mut state = self.lock();
        state.sampled += flow.samples;
        let known = state.flows.iter().rposition(|known| known.is_same_flow(&flow));
        let earlier = known.and_then(|position| state.flows.remove(position));
        let samples = flow.samples + earlier.map_or(0, |earlier| earlier.samples);
        let flow = Arc::new(DeniedFlow { samples, ..flow });
        if state.flows.len() == MAX_FLOWS {
            state.flows.pop_front();
        }
        state.flows.push_back(Arc::clone(&flow));
        // Under the lock, so that a new follower gets each event once. Fails if there is no follower.
        let _ = self.events.send(flow);
    }

    /// Logged packets that could not be explained.
    pub(crate) fn lost(&self, packets: u64) {
        self.lock().lost += packets;
    }

    pub(crate) fn snapshot(&self) -> DeniedSnapshot {
        let state = self.lock();
        DeniedSnapshot {
            flows: state.flows.iter().cloned().collect(),
            sampled: state.sampled,
            lost: state.lost,
        }
    }

    /// None if there are too many followers.
    pub(crate) fn follow(&self) -> Option<DeniedFollower> {
        let permit = Arc::clone(&self.followers).try_acquire_owned().ok()?;
        let state = self.lock();
        Some(DeniedFollower { known: state.flows.clone(), events: self.events.subscribe(), _permit: permit })
    }

    fn lock(&self) -> MutexGuard<'_, DeniedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use api::{FlowDirection, FlowEndKind, FlowEndView, Timestamp};
    use tokio::sync::broadcast::error::TryRecvError;

    use super::*;

    fn flow(port: u16, time: u64) -> DeniedFlow {
        let end = FlowEndView { kind: FlowEndKind::Outside, name: None, node: None, address: None };
        DeniedFlow {
            time: Timestamp(time),
            direction: FlowDirection::Ingress,
            from: end.clone(),
            to: end,
            protocol: "tcp".to_owned(),
            port: Some(port),
            icmp_type: None,
            tenant: None,
            link: None,
            tier: None,
            rule: "rule".to_owned(),
            samples: 1,
        }
    }

    #[test]
    fn packets_of_one_flow_are_one_entry_and_old_flows_are_forgotten() {
        let denied = DeniedFlows::new();
        for (time, port) in [(1, 80), (2, 443), (3, 80)] {
            denied.record(flow(port, time));
        }
        let found = denied.snapshot();
        let shown: Vec<_> = found.flows.iter().map(|it| (it.port, it.time.0, it.samples)).collect();
        assert_eq!(shown, [(Some(443), 2, 1), (Some(80), 3, 2)]);
        assert_eq!(found.sampled, 3);
        for port in 1000..3000 {
            denied.record(flow(port, 9));
        }
        let found = denied.snapshot();
        assert_eq!((found.flows.len(), found.sampled), (MAX_FLOWS, 2003));
        assert_eq!(found.flows.first().unwrap().port, Some(2000));
    }

    #[test]
    fn a_follower_gets_known_flows_and_each_event_once_and_the_number_of_missed_ones() {
        let denied = DeniedFlows::new();
        denied.record(flow(1, 1));
        let mut follower = denied.follow().unwrap();
        denied.record(flow(2, 2));
        assert_eq!(follower.known.iter().map(|it| it.port).collect::<Vec<_>>(), [Some(1)]);
        assert_eq!(follower.events.try_recv().unwrap().port, Some(2));
        assert_eq!(follower.events.try_recv(), Err(TryRecvError::Empty));
        for port in 0..1000 {
            denied.record(flow(port, 3));
        }
        assert_eq!(follower.events.try_recv(), Err(TryRecvError::Lagged(1000 - MAX_BEHIND as u64)));
        assert_eq!(follower.events.try_recv().unwrap().port, Some(1000 - MAX_BEHIND as u16));
    }

    #[test]
    fn the_number_of_followers_is_limited() {
        let denied = DeniedFlows::new();
        let mut all: Vec<_> = (0..MAX_FOLLOWERS).map(|_| denied.follow().unwrap()).collect();
        assert!(denied.follow().is_none());
        all.pop();
        assert!(denied.follow().is_some());
    }
}
