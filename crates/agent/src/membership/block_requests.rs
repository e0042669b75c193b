//! Requests for another block: at most one at a time, shared by all pods that wait for it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use model::BlockLayout;
use tokio::sync::mpsc::{self, error::TrySendError};
use tracing::{debug, info};
use types::{Code, Finding, NetworkName, NetworkRef};

use super::claim::{SearchedPools, WantedBlock};
use super::command::MembershipCommand;
use super::join::{JoinError, Joined};
use super::member::{Member, Next, SessionEnd};
use super::{is_alone, networks};
use crate::allocation::{BlockUsage, NoBlock, NodeAllocations};
use config::Config;

/// How long a pod waits for another block.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Delay after an unsuccessful request before the next proactive one.
const REPEAT_AFTER: Duration = Duration::from_secs(30);

/// Why a node gets no other block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BlockRequestError {
    #[error("this node already has the whole network")]
    Alone,
    #[error("no block of this node is full")]
    NotFull,
    #[error(transparent)]
    NoBlock(#[from] NoBlock),
    #[error("too many requests to the store are waiting")]
    Busy,
    #[error("the agent no longer follows the store")]
    Stopped,
    #[error("the store did not answer in time")]
    Late,
    #[error("no pod waits for the block any more")]
    Abandoned,
    #[error("the store assigned no other block")]
    NoOther,
    /// The reason that the membership thread reported.
    #[error("{0}")]
    Refused(String),
}

/// Which blocks of a network are requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WantedBlocks {
    /// One of each subnet in which the node has none.
    First,
    /// One more of the family of this block, which is full.
    Besides(IpNet),
    /// One more of each family of these pools, with addresses of them.
    Within(Vec<IpNet>),
}

/// A request for blocks of a network.
#[derive(Debug)]
pub(crate) struct BlockRequest {
    pub(crate) network: NetworkRef,
    pub(crate) wanted: WantedBlocks,
    /// The node's blocks of the network at the time of the request. If they have changed, the request is fulfilled.
    pub(crate) observed: Vec<IpNet>,
    started: Instant,
    state: Mutex<RequestState>,
    answered: Condvar,
}

#[derive(Debug, Default)]
struct RequestState {
    /// The number of pods that wait for it.
    pods: u32,
    /// Requested before the blocks are full, independent of waiting pods.
    is_proactive: bool,
    answer: Option<(Result<(), BlockRequestError>, Instant)>,
    /// When the block was last found to be needed after the request.
    needed_at: Option<Instant>,
}

/// The parameters of a new request.
pub(crate) struct BlockNeed<'a> {
    pub(crate) network: &'a NetworkRef,
    pub(crate) wanted: WantedBlocks,
    pub(crate) observed: &'a [IpNet],
    pub(crate) commands: &'a mpsc::Sender<MembershipCommand>,
}

impl BlockRequest {
    fn lock(&self) -> MutexGuard<'_, RequestState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn answer(&self, answer: Result<(), BlockRequestError>) {
        self.lock().answer = Some((answer, Instant::now()));
        self.answered.notify_all();
    }

    /// Whether a pod or the reconciler still needs it. Otherwise the request ends here.
    pub(crate) fn is_wanted(&self) -> bool {
        let mut state = self.lock();
        let is_wanted = state.pods > 0 || (state.is_proactive && self.started.elapsed() < REPEAT_AFTER);
        if !is_wanted {
            state.answer = Some((Err(BlockRequestError::Abandoned), Instant::now()));
        }
        is_wanted
    }

    fn mark_needed(&self) {
        self.lock().needed_at = Some(Instant::now());
    }

    /// How long ago the block was found to be needed.
    pub(crate) fn idle(&self) -> Duration {
        self.lock().needed_at.unwrap_or(self.started).elapsed()
    }

    /// Whether a new proactive request may follow. After a failure, it has to wait.
    fn may_repeat(&self) -> bool {
        match &self.lock().answer {
            Some((Ok(()), _)) => true,
            Some((Err(_), at)) => at.elapsed() > REPEAT_AFTER,
            None => self.started.elapsed() > REPEAT_AFTER,
        }
    }

    /// Registers another waiting pod, unless the request is answered.
    fn join(&self) -> bool {
        let mut state = self.lock();
        let is_pending = state.answer.is_none();
        state.pods += u32::from(is_pending);
        is_pending
    }

    fn wait(&self) -> Result<(), BlockRequestError> {
        let waiting = |state: &mut RequestState| state.answer.is_none();
        let waited = self.answered.wait_timeout_while(self.lock(), TIMEOUT, waiting);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.pods -= 1;
        state.answer.as_ref().map_or(Err(BlockRequestError::Late), |(answer, _)| answer.clone())
    }
}

/// The latest request of each network.
#[derive(Default)]
pub(crate) struct PendingBlockRequests(Mutex<BTreeMap<NetworkRef, Arc<BlockRequest>>>);

impl PendingBlockRequests {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<NetworkRef, Arc<BlockRequest>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A proactive request. The caller does not wait.
    pub(crate) fn request(&self, need: BlockNeed<'_>) {
        let mut last = self.lock();
        if let Some(request) = last.get(need.network).filter(|request| !request.may_repeat()) {
            return request.mark_needed();
        }
        info!(network = %need.network, "few free addresses; requesting another block");
        let first = RequestState { is_proactive: true, ..RequestState::default() };
        // If the channel is full, the next round tries again.
        if let Ok(request) = need.send(first) {
            last.insert(request.network.clone(), request);
        }
    }

    /// For a pod that waits. Pods that wait for the same request share its answer.
    pub(crate) fn wait(&self, need: BlockNeed<'_>) -> Result<(), BlockRequestError> {
        let request = {
            let mut last = self.lock();
            match last.get(need.network).filter(|request| need.is_met_by(request) && request.join()) {
                Some(request) => Arc::clone(request),
                None => {
                    let request = need.send(RequestState { pods: 1, ..RequestState::default() })?;
                    last.insert(request.network.clone(), Arc::clone(&request));
                    request
                }
            }
        };
        request.wait()
    }
}

/// Requests blocks for CNI requests and for the reconciler. Clones share the pending request.
#[derive(Clone)]
pub(crate) struct BlockRequests {
    commands: mpsc::Sender<MembershipCommand>,
    allocations: Arc<NodeAllocations>,
    pending_requests: Arc<PendingBlockRequests>,
    is_alone: bool,
    /// The run directory and the network whose records show the used addresses.
    records: (PathBuf, NetworkName),
}

impl BlockRequests {
    pub(crate) fn new(
        config: &Config,
        allocations: Arc<NodeAllocations>,
        commands: mpsc::Sender<MembershipCommand>,
    ) -> Self {
        let records = (config.run_dir.clone(), config.network.name.clone());
        Self { commands, allocations, pending_requests: Arc::default(), is_alone: is_alone(config), records }
    }

    /// Requests one more block of a network, of the family of a block that is full or nearly full. Does not wait. While a request for
    /// the network is pending, no other one is sent.
    pub(crate) fn want_more(&self, network: &NetworkRef, full_block: IpNet) {
        let Ok(allocated) = self.allocations.network(network) else { return };
        if !self.is_alone {
            self.pending_requests.request(BlockNeed {
                network,
                wanted: WantedBlocks::Besides(full_block),
                observed: allocated.blocks(),
                commands: &self.commands,
            });
        }
    }

    /// Waits for the first blocks of a network, for a pod that is placed in it.
    pub(crate) fn wait_for_first_block(&self, network: &NetworkRef) -> Result<(), BlockRequestError> {
        let need =
            || BlockNeed { network, wanted: WantedBlocks::First, observed: &[], commands: &self.commands };
        // An answer may be older than the call.
        for _ in 0..2 {
            if self.allocations.network(network).is_ok() {
                return Ok(());
            }
            self.pending_requests.wait(need())?;
        }
        self.allocations.network(network).map(|_| ()).map_err(|_| BlockRequestError::NoOther)
    }

    /// Waits for another block of a network, for a pod that found no free address in `observed`. A pod of a group with pools needs a
    /// block with addresses of its pools.
    pub(crate) fn wait_for_block(
        &self,
        network: &NetworkRef,
        observed: &[IpNet],
        pools: &[IpNet],
    ) -> Result<(), BlockRequestError> {
        if self.is_alone {
            return Err(BlockRequestError::Alone);
        }
        // An answer may be older than the call.
        for _ in 0..2 {
            let allocated = self.allocations.network(network)?;
            if allocated.blocks() != observed {
                return Ok(());
            }
            let usage = BlockUsage { network: &allocated, name: &self.records.1, run_dir: &self.records.0 };
            let wanted = match pools {
                [] => WantedBlocks::Besides(usage.fullest().ok_or(BlockRequestError::NotFull)?),
                pools => WantedBlocks::Within(pools.to_vec()),
            };
            self.pending_requests.wait(BlockNeed { network, wanted, observed, commands: &self.commands })?;
        }
        let has_more = self.allocations.network(network)?.blocks() != observed;
        if has_more { Ok(()) } else { Err(BlockRequestError::NoOther) }
    }
}

impl BlockNeed<'_> {
    /// Whether the answer to a request counts for this need, too.
    fn is_met_by(&self, request: &BlockRequest) -> bool {
        let is_same_kind = match (&self.wanted, &request.wanted) {
            (WantedBlocks::Within(_), _) | (_, WantedBlocks::Within(_)) => self.wanted == request.wanted,
            (
                WantedBlocks::First | WantedBlocks::Besides(_),
                WantedBlocks::First | WantedBlocks::Besides(_),
            ) => true,
        };
        is_same_kind && self.observed == request.observed
    }

    fn send(self, state: RequestState) -> Result<Arc<BlockRequest>, BlockRequestError> {
        let request = Arc::new(BlockRequest {
            network: self.network.clone(),
            wanted: self.wanted.clone(),
            observed: self.observed.to_vec(),
            started: Instant::now(),
            state: Mutex::new(state),
            answered: Condvar::new(),
        });
        let sent = self.commands.try_send(MembershipCommand::RequestBlock(Arc::clone(&request)));
        sent.map_err(|error| match error {
            TrySendError::Full(_) => BlockRequestError::Busy,
            TrySendError::Closed(_) => BlockRequestError::Stopped,
        })?;
        Ok(request)
    }
}

impl Member {
    pub(crate) async fn serve_block_request(
        &mut self,
        request: &Arc<BlockRequest>,
        joined: Joined,
    ) -> Result<Next, JoinError> {
        if self.is_fulfilled(request, &joined) {
            // The node has got another block meanwhile.
            self.shared.set_block_shortage(None);
            request.answer(Ok(()));
            return Ok(Next::Continue(joined));
        }
        if !request.is_wanted() {
            return Ok(Next::Continue(joined));
        }
        let layouts = self.layouts_for(request, &joined);
        if layouts.is_empty() {
            let reason = format!("network {} has no such blocks", request.network);
            request.answer(Err(BlockRequestError::Refused(reason)));
            return Ok(Next::Continue(joined));
        }
        match self.claim_for(request, joined.clone(), &layouts).await {
            Ok(with_block) => {
                self.shared.set_block_shortage(None);
                self.shared.contact.write_succeeded();
                self.accept(&with_block).await;
                request.answer(Ok(()));
                Ok(Next::Continue(with_block))
            }
            Err(error) => {
                self.report_failed_claim(request, &error);
                request.answer(Err(BlockRequestError::Refused(error.to_string())));
                let is_contended = matches!(error, JoinError::Contended { .. });
                Ok(if is_contended { Next::End(SessionEnd::Rejoin) } else { Next::Continue(joined) })
            }
        }
    }

    /// A failure of the store does not mean that there is no free block.
    fn report_failed_claim(&self, request: &Arc<BlockRequest>, error: &JoinError) {
        let network = &request.network;
        let (object, message) = match &request.wanted {
            WantedBlocks::Besides(block) => {
                (format!("block {block}"), format!("cannot claim another block besides {block}: {error}"))
            }
            WantedBlocks::First | WantedBlocks::Within(_) => {
                (format!("network {network}"), format!("cannot claim a block of network {network}: {error}"))
            }
        };
        debug!(%network, %error, "cannot claim a block");
        if let JoinError::Store(error) = error {
            self.shared.contact.call_failed(error);
        }
        if error.finding(&self.shared.config).code == Code::BlocksExhausted {
            let finding = Finding::new(Code::BlocksExhausted, object, message);
            self.shared.set_block_shortage(Some((finding, Arc::clone(request))));
        }
    }

    /// Whether the node has got the blocks since the request.
    fn is_fulfilled(&self, request: &BlockRequest, joined: &Joined) -> bool {
        match &request.wanted {
            WantedBlocks::First => {
                let exists = !self.candidate.networks.of(&request.network).is_empty();
                exists && self.layouts_for(request, joined).is_empty()
            }
            WantedBlocks::Besides(_) | WantedBlocks::Within(_) => {
                joined.record.blocks.of(&request.network) != request.observed
            }
        }
    }

    /// The subnets of which the request wants a block.
    fn layouts_for(&self, request: &BlockRequest, joined: &Joined) -> Vec<BlockLayout> {
        let layouts = self.candidate.networks.of(&request.network).iter();
        let owned = joined.record.blocks.of(&request.network);
        let is_wanted = |layout: &&BlockLayout| match &request.wanted {
            WantedBlocks::First => !owned.iter().any(|block| layout.owns(block)),
            WantedBlocks::Besides(block) => layout.subnet().contains(block),
            WantedBlocks::Within(pools) => pools.iter().any(|pool| layout.subnet().contains(pool)),
        };
        layouts.filter(is_wanted).copied().collect()
    }

    /// Blocks that were claimed before a failure stay in the record. The next request claims the missing ones.
    async fn claim_for(
        &self,
        request: &BlockRequest,
        mut joined: Joined,
        layouts: &[BlockLayout],
    ) -> Result<Joined, JoinError> {
        let known = self.shared.peers_blocks();
        let reserved = networks::pools_in(self.objects.catalog(), &request.network);
        let pools = match &request.wanted {
            WantedBlocks::First | WantedBlocks::Besides(_) => SearchedPools::Outside(&reserved),
            WantedBlocks::Within(pools) => SearchedPools::Within(pools),
        };
        let mut failed = None;
        for layout in layouts {
            let wanted = WantedBlock { network: &request.network, block_layout: layout, pools };
            match self.registry.claim_another_block(joined.clone(), wanted, &known).await {
                Ok(with_block) => joined = with_block,
                // The pool of one family may be used up while that of the other one is needed.
                Err(error @ JoinError::PoolsExhausted { .. }) if layouts.len() > 1 => failed = Some(error),
                Err(error) => return Err(error),
            }
        }
        let has_more = joined.record.blocks.of(&request.network) != request.observed;
        failed.filter(|_| !has_more).map_or(Ok(joined), Err)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::super::ask_error::AskError;
    use super::*;

    fn net() -> IpNet {
        "10.2.0.0/24".parse().unwrap()
    }

    fn need<'a>(
        observed: &'a [IpNet],
        commands: &'a mpsc::Sender<MembershipCommand>,
        network: &'a NetworkRef,
    ) -> BlockNeed<'a> {
        BlockNeed { network, wanted: WantedBlocks::Besides(net()), observed, commands }
    }

    fn next(received: &mut mpsc::Receiver<MembershipCommand>) -> Option<Arc<BlockRequest>> {
        match received.try_recv().ok()? {
            MembershipCommand::RequestBlock(request) => Some(request),
            MembershipCommand::Ask(ask) => panic!("{ask:?}"),
        }
    }

    #[test]
    fn a_failed_request_is_not_repeated_immediately() {
        let (commands, mut received) = mpsc::channel(16);
        let pending_requests = PendingBlockRequests::default();
        let request_block = || {
            pending_requests.request(need(&[net()], &commands, &NetworkRef::default()));
        };
        request_block();
        let request = next(&mut received).unwrap();
        request.answer(Err(BlockRequestError::Refused("all are taken".to_owned())));
        let before = request.idle();
        for _ in 0..3 {
            request_block();
        }
        assert!(next(&mut received).is_none(), "the request was repeated");
        assert!(request.lock().needed_at.is_some() && before < REPEAT_AFTER, "the need must be recorded");
        request.answer(Ok(()));
        request_block();
        assert!(next(&mut received).is_some(), "after a new block, the next one may be requested");
    }

    #[test]
    fn waiting_pods_share_an_answer_and_later_pods_send_a_new_request() {
        let (commands, mut received) = mpsc::channel(16);
        let pending_requests = PendingBlockRequests::default();
        let wait = || pending_requests.wait(need(&[net()], &commands, &NetworkRef::default()));
        thread::scope(|scope| {
            let waiting: Vec<_> = (0..8).map(|_| scope.spawn(wait)).collect();
            let end = Instant::now() + TIMEOUT;
            let all_wait = || pending_requests.lock().values().any(|request| request.lock().pods == 8);
            while !all_wait() && Instant::now() < end {
                thread::yield_now();
            }
            next(&mut received).unwrap().answer(Err(BlockRequestError::Refused("all are taken".to_owned())));
            for thread in waiting {
                assert_eq!(
                    thread.join().unwrap(),
                    Err(BlockRequestError::Refused("all are taken".to_owned()))
                );
            }
            assert!(next(&mut received).is_none(), "several requests were sent");
            let later = scope.spawn(wait);
            received
                .blocking_recv()
                .map(|command| command.refuse(AskError::Unreachable("no store".to_owned())))
                .unwrap();
            assert_eq!(later.join().unwrap(), Err(BlockRequestError::Refused("no store".to_owned())));
        });
    }

    #[test]
    fn a_request_that_no_pod_waits_for_is_not_wanted() {
        let (commands, _received) = mpsc::channel(16);
        let send = |state| need(&[net()], &commands, &NetworkRef::default()).send(state).unwrap();
        let abandoned = send(RequestState::default());
        assert!(!abandoned.is_wanted());
        assert!(!abandoned.join(), "an ended request must not be joined");
        assert!(send(RequestState { pods: 1, ..RequestState::default() }).is_wanted());
        assert!(send(RequestState { is_proactive: true, ..RequestState::default() }).is_wanted());
    }
}
