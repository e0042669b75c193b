//! One wish for another block at a time, and all who wait for its answer.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use model::BlockLayout;
use tokio::sync::mpsc::{self, error::TrySendError};
use tracing::{debug, info};
use types::{Code, Finding, NetworkName};

use super::command::MembershipCommand;
use super::is_alone;
use super::join::{JoinError, Joined};
use super::member::{Member, Next, SessionEnd};
use crate::allocation::{BlockUsage, NoBlock, NodeAllocations};
use config::Config;

/// How long a pod waits for another block.
const TIMEOUT: Duration = Duration::from_secs(3);
/// When there was no other block, it is asked for again after this time.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// Why a node gets no other block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GrowError {
    #[error("this node has all of the network already")]
    Alone,
    #[error("no block of this node is full")]
    NotFull,
    #[error(transparent)]
    NoBlock(#[from] NoBlock),
    #[error("too many requests to the store wait already")]
    Busy,
    #[error("the agent no longer follows the store")]
    Stopped,
    #[error("the store did not answer in time")]
    Late,
    #[error("no pod waited for it any more")]
    Unwanted,
    #[error("the store gave no other block")]
    NoOther,
    /// In the words of the store's side.
    #[error("{0}")]
    Refused(String),
}

/// One more block of this one's family.
#[derive(Debug)]
pub(crate) struct BlockRequest {
    pub(crate) like: IpNet,
    /// The blocks there were: who has others by now needs no more.
    pub(crate) observed: Vec<IpNet>,
    begun: Instant,
    state: Mutex<Waiting>,
    answered: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Pods that wait for it.
    pods: u32,
    /// It is asked for in good time, whether or not a pod waits.
    is_precaution: bool,
    answer: Option<(Result<(), GrowError>, Instant)>,
    /// When the node was last found to need it, after it was asked for.
    renewed: Option<Instant>,
}

/// Who needs a block.
pub(crate) struct Asker<'a> {
    pub(crate) like: IpNet,
    pub(crate) observed: &'a [IpNet],
    pub(crate) commands: &'a mpsc::Sender<MembershipCommand>,
}

impl BlockRequest {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn answer(&self, answer: Result<(), GrowError>) {
        self.lock().answer = Some((answer, Instant::now()));
        self.answered.notify_all();
    }

    /// Does anybody want it still? If not, this is its end.
    pub(crate) fn is_wanted(&self) -> bool {
        let mut state = self.lock();
        let is_wanted = state.pods > 0 || (state.is_precaution && self.begun.elapsed() < ASK_AGAIN);
        if !is_wanted {
            state.answer = Some((Err(GrowError::Unwanted), Instant::now()));
        }
        is_wanted
    }

    fn renew(&self) {
        self.lock().renewed = Some(Instant::now());
    }

    /// How long ago the node was found to need it.
    pub(crate) fn idle(&self) -> Duration {
        self.lock().renewed.unwrap_or(self.begun).elapsed()
    }

    /// May be asked for again in good time? Where there was none, not at once.
    fn is_over(&self) -> bool {
        match &self.lock().answer {
            Some((Ok(()), _)) => true,
            Some((Err(_), at)) => at.elapsed() > ASK_AGAIN,
            None => self.begun.elapsed() > ASK_AGAIN,
        }
    }

    /// Waits with the others, if it is not answered yet.
    fn join(&self) -> bool {
        let mut state = self.lock();
        let is_open = state.answer.is_none();
        state.pods += u32::from(is_open);
        is_open
    }

    fn wait(&self) -> Result<(), GrowError> {
        let waiting = |state: &mut Waiting| state.answer.is_none();
        let waited = self.answered.wait_timeout_while(self.lock(), TIMEOUT, waiting);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.pods -= 1;
        state.answer.as_ref().map_or(Err(GrowError::Late), |(answer, _)| answer.clone())
    }
}

/// The last wish there was.
#[derive(Default)]
pub(crate) struct PendingBlockRequest(Mutex<Option<Arc<BlockRequest>>>);

impl PendingBlockRequest {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<BlockRequest>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In good time; nobody waits for it.
    pub(crate) fn want(&self, asker: Asker<'_>) {
        let mut last = self.lock();
        if let Some(request) = last.as_ref().filter(|request| !request.is_over()) {
            return request.renew();
        }
        info!("few addresses are left beside {}: another block is asked for", asker.like);
        let first = Waiting { is_precaution: true, ..Waiting::default() };
        // Too many questions: the next round asks again.
        if let Ok(request) = asker.ask(first) {
            *last = Some(request);
        }
    }

    /// For a pod that waits. Who comes while somebody waits gets the same answer.
    pub(crate) fn wait(&self, asker: Asker<'_>) -> Result<(), GrowError> {
        let request = {
            let mut last = self.lock();
            match last.as_ref().filter(|request| request.observed == asker.observed && request.join()) {
                Some(request) => Arc::clone(request),
                None => {
                    let request = asker.ask(Waiting { pods: 1, ..Waiting::default() })?;
                    Arc::clone(last.insert(request))
                }
            }
        };
        request.wait()
    }
}

/// Asks for blocks, for requests and for the reconciler. Its clones ask together.
#[derive(Clone)]
pub(crate) struct BlockRequests {
    commands: mpsc::Sender<MembershipCommand>,
    allocations: Arc<NodeAllocations>,
    pending_request: Arc<PendingBlockRequest>,
    is_alone: bool,
    /// Where addresses in use are recorded.
    place: (PathBuf, NetworkName),
}

impl BlockRequests {
    pub(crate) fn new(
        config: &Config,
        allocations: Arc<NodeAllocations>,
        commands: mpsc::Sender<MembershipCommand>,
    ) -> Self {
        let place = (config.run_dir.clone(), config.network.name.clone());
        Self { commands, allocations, pending_request: Arc::default(), is_alone: is_alone(config), place }
    }

    /// Asks for one more block beside this one, which is full or nearly so. The caller does not wait for it, and while one is
    /// asked for there is no other request.
    pub(crate) fn want_more(&self, like: IpNet) {
        let Ok(network) = self.allocations.default_network() else { return };
        if !self.is_alone {
            self.pending_request.want(Asker { like, observed: network.blocks(), commands: &self.commands });
        }
    }

    /// The same for a pod that found no address in `observed`, and waits. Of many that wait one asks, and all get it.
    pub(crate) fn wait_for_block(&self, observed: &[IpNet]) -> Result<(), GrowError> {
        if self.is_alone {
            return Err(GrowError::Alone);
        }
        // An answer may be older than the question.
        for _ in 0..2 {
            let network = self.allocations.default_network()?;
            if network.blocks() != observed {
                return Ok(());
            }
            let usage = BlockUsage { network: &network, name: &self.place.1, run_dir: &self.place.0 };
            let like = usage.fullest().ok_or(GrowError::NotFull)?;
            self.pending_request.wait(Asker { like, observed, commands: &self.commands })?;
        }
        let has_more = self.allocations.default_network()?.blocks() != observed;
        if has_more { Ok(()) } else { Err(GrowError::NoOther) }
    }
}

impl Asker<'_> {
    fn ask(self, state: Waiting) -> Result<Arc<BlockRequest>, GrowError> {
        let request = Arc::new(BlockRequest {
            like: self.like,
            observed: self.observed.to_vec(),
            begun: Instant::now(),
            state: Mutex::new(state),
            answered: Condvar::new(),
        });
        let sent = self.commands.try_send(MembershipCommand::Grow(Arc::clone(&request)));
        sent.map_err(|error| match error {
            TrySendError::Full(_) => GrowError::Busy,
            TrySendError::Closed(_) => GrowError::Stopped,
        })?;
        Ok(request)
    }
}

impl Member {
    pub(crate) async fn grow(
        &mut self,
        request: &Arc<BlockRequest>,
        joined: Joined,
    ) -> Result<Next, JoinError> {
        if joined.record.blocks != request.observed {
            // It has another one already.
            self.shared.set_growth_trouble(None);
            request.answer(Ok(()));
            return Ok(Next::Go(joined));
        }
        if !request.is_wanted() {
            return Ok(Next::Go(joined));
        }
        let Some(block_layout) = self.cut_of(&request.like) else {
            request.answer(Err(GrowError::Refused(format!("{} is not of this network", request.like))));
            return Ok(Next::Go(joined));
        };
        match self.registry.grow(joined.clone(), &block_layout, &self.shared.peers_blocks()).await {
            Ok(grown) => {
                self.shared.set_growth_trouble(None);
                self.shared.contact.written();
                self.accept(&grown).await;
                request.answer(Ok(()));
                Ok(Next::Go(grown))
            }
            Err(error) => {
                self.grow_failed(request, &error);
                request.answer(Err(GrowError::Refused(error.to_string())));
                let restless = matches!(error, JoinError::Restless { .. });
                Ok(if restless { Next::End(SessionEnd::Again) } else { Next::Go(joined) })
            }
        }
    }

    /// A store that fails says nothing about free blocks.
    fn grow_failed(&self, request: &Arc<BlockRequest>, error: &JoinError) {
        let message = format!("another block beside {} could not be claimed: {error}", request.like);
        debug!("{message}");
        if let JoinError::Store(error) = error {
            self.shared.contact.call_failed(error);
        }
        if error.finding().code == Code::BlocksExhausted {
            let found = Finding::new(Code::BlocksExhausted, format_args!("block {}", request.like), message);
            self.shared.set_growth_trouble(Some((found, Arc::clone(request))));
        }
    }

    fn cut_of(&self, like: &IpNet) -> Option<BlockLayout> {
        self.block_layouts.iter().find(|block_layout| block_layout.subnet().contains(like)).copied()
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

    fn next(asked: &mut mpsc::Receiver<MembershipCommand>) -> Option<Arc<BlockRequest>> {
        match asked.try_recv().ok()? {
            MembershipCommand::Grow(request) => Some(request),
            MembershipCommand::Ask(ask) => panic!("{ask:?}"),
        }
    }

    #[test]
    fn where_there_was_none_it_is_not_asked_for_again_at_once() {
        let (commands, mut asked) = mpsc::channel(16);
        let pending_request = PendingBlockRequest::default();
        let want = || pending_request.want(Asker { like: net(), observed: &[net()], commands: &commands });
        want();
        let request = next(&mut asked).unwrap();
        request.answer(Err(GrowError::Refused("all are taken".to_owned())));
        let before = request.idle();
        for _ in 0..3 {
            want();
        }
        assert!(next(&mut asked).is_none(), "asked again");
        assert!(request.lock().renewed.is_some() && before < ASK_AGAIN, "the need is known to last");
        request.answer(Ok(()));
        want();
        assert!(next(&mut asked).is_some(), "a node that got one may need the next");
    }

    #[test]
    fn all_who_wait_get_one_answer_and_who_comes_later_asks_anew() {
        let (commands, mut asked) = mpsc::channel(16);
        let pending_request = PendingBlockRequest::default();
        let wait = || pending_request.wait(Asker { like: net(), observed: &[net()], commands: &commands });
        thread::scope(|scope| {
            let waiting: Vec<_> = (0..8).map(|_| scope.spawn(wait)).collect();
            let end = Instant::now() + TIMEOUT;
            let all_wait = || pending_request.lock().as_ref().is_some_and(|request| request.lock().pods == 8);
            while !all_wait() && Instant::now() < end {
                thread::yield_now();
            }
            next(&mut asked).unwrap().answer(Err(GrowError::Refused("all are taken".to_owned())));
            for one in waiting {
                assert_eq!(one.join().unwrap(), Err(GrowError::Refused("all are taken".to_owned())));
            }
            assert!(next(&mut asked).is_none(), "one question for all");
            let later = scope.spawn(wait);
            asked
                .blocking_recv()
                .map(|command| command.refuse(AskError::Unreachable("no store".to_owned())))
                .unwrap();
            assert_eq!(later.join().unwrap(), Err(GrowError::Refused("no store".to_owned())));
        });
    }

    #[test]
    fn what_nobody_waits_for_is_not_wanted() {
        let (commands, _asked) = mpsc::channel(16);
        let ask = |state| Asker { like: net(), observed: &[net()], commands: &commands }.ask(state).unwrap();
        let given_up = ask(Waiting::default());
        assert!(!given_up.is_wanted());
        assert!(!given_up.join(), "nobody waits for what will not come");
        assert!(ask(Waiting { pods: 1, ..Waiting::default() }).is_wanted());
        assert!(ask(Waiting { is_precaution: true, ..Waiting::default() }).is_wanted());
    }
}
