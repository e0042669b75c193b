//! How the rest of the agent talks to the cluster's side.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::{Freshness, RoutesView};
use ipnet::IpNet;
use model::{LocalNode, NodeRecord, StoredNode, Tunnels};
use store::Store;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};
use types::{Digest, Mac, NodeName};

use super::ask_error::AskError;
use super::command::{MembershipCommand, StoreContents, StoreQuery};
use super::contact::{Age, Contact};
use super::node_state::NodeStateDir;
use super::shared::SharedMembership;
use super::{ClusterError, MembershipParts, Site, ThreadExitGuard, store_config};
use crate::clock::unix_time;
use crate::peers::inputs::PeerContents;
use crate::peers::{KnownPeers, PeerInputs, PeerReportReceivers, Question};
use crate::thread::AgentThread;

/// How long somebody who asks waits for the store.
const TIMEOUT: Duration = Duration::from_secs(8);
/// Why there is nothing to answer with.
const NO_COPY: &str = "this node has no saved state of the cluster";
/// How long the end may take.
const GOODBYE: Duration = Duration::from_secs(1);
/// Threads that may wait for the disk or for names of etcd's endpoints. At most four wait for files of this module, so that a
/// disk that hangs leaves some for the names.
const WAITING_THREADS: usize = 8;

/// Membership before it is started. What it remembers is in force: this node's blocks and its peers.
pub(crate) struct Membership {
    shared: Arc<SharedMembership>,
    /// The part of this node's record that never changes.
    pub(crate) record: NodeRecord,
    /// This machine's name as it is remembered, if that was another one.
    former: Option<NodeName>,
    remembered_peers: Vec<NodeRecord>,
    runtime: Runtime,
    store: Store,
    peers: PeerInputs,
    commands: (mpsc::Sender<MembershipCommand>, mpsc::Receiver<MembershipCommand>),
}

/// Its clones talk to the same one.
#[derive(Clone)]
pub(crate) struct MembershipHandle {
    commands: mpsc::Sender<MembershipCommand>,
    peers: PeerInputs,
    addresses: watch::Receiver<Option<Vec<IpAddr>>>,
    shared: Arc<SharedMembership>,
    record: NodeRecord,
    contact: Arc<Contact>,
    /// In messages: `etcd`, or `the store`.
    store_name: &'static str,
    end: Arc<ThreadEnd>,
    pub(crate) name: NodeName,
}

/// How the threads end.
struct ThreadEnd {
    stop: watch::Sender<bool>,
    ended: Mutex<std::sync::mpsc::Receiver<Infallible>>,
    peers: AgentThread,
}

impl Membership {
    /// Reads what this node remembers, and opens the store. Nothing runs yet.
    pub(crate) fn load(parts: MembershipParts) -> Result<Self, ClusterError> {
        let config = Arc::clone(&parts.config);
        let (peers, commands) = (parts.peers.clone(), parts.commands);
        let node_state = NodeStateDir::of(&config.state_dir, &config.network.name);
        let uid = node_state.uid()?;
        let name = NodeName::try_from(config.node.as_str())?;
        let record = NodeRecord {
            name: name.clone(),
            tunnel_mac: Mac::local(Digest::of(&["tunnel", uid.as_str()]).first5()),
            uid,
            addresses: Vec::new(),
            blocks: Vec::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            transport: Some(config.cluster.transport),
        };
        let remembered = node_state.record().filter(|saved| saved.uid == record.uid);
        let former = remembered.as_ref().map(|saved| saved.name.clone()).filter(|former| *former != name);
        let shared =
            Arc::new(SharedMembership::new(&config, (parts.allocations, parts.agent_status), node_state));
        shared.remember(remembered.map(|saved| saved.blocks).unwrap_or_default());
        let remembered_peers = shared.node_state.peers();
        shared.know_peers(&remembered_peers, Vec::new());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(WAITING_THREADS)
            .build()
            .map_err(ClusterError::Thread)?;
        let store = {
            let _inside = runtime.enter();
            Store::open(&store_config(&config, &shared.node_state))?
        };
        shared.explain_asking(&store.describe());
        Ok(Self { shared, record, former, remembered_peers, runtime, store, peers, commands })
    }

    /// The peers as they are known before the store has answered.
    pub(crate) fn known_peers(&self) -> KnownPeers {
        let config = &self.shared.config;
        let local_node = LocalNode {
            name: self.record.name.clone(),
            blocks: self.shared.blocks(),
            subnets: config.network.subnets.clone(),
            margin: config.cluster.margin,
            transport: config.cluster.transport,
            underlays: Vec::new(),
            tunnels: Tunnels::default(),
            sources: Vec::new(),
        };
        KnownPeers::new(local_node, self.remembered_peers.clone())
    }

    /// Starts the thread that joins the cluster and follows the store.
    pub(crate) fn start(
        self,
        reports: PeerReportReceivers,
        worker: AgentThread,
    ) -> Result<MembershipHandle, ClusterError> {
        let Self { shared, record, former, runtime, store, peers, commands: (commands, waiting), .. } = self;
        let contact = Arc::clone(&shared.contact);
        let (stop, stopped) = watch::channel(false);
        let (ending, ended) = std::sync::mpsc::channel::<Infallible>();
        let last = ThreadExitGuard {
            agent_status: Arc::clone(&shared.agent_status),
            contact: Arc::clone(&contact),
            stop: stopped.clone(),
        };
        let store_name = match shared.config.store {
            config::StoreChoice::Embedded => "the store",
            config::StoreChoice::Etcd(_) => "etcd",
        };
        let site = Site {
            shared: Arc::clone(&shared),
            record: record.clone(),
            former,
            store,
            peers: peers.clone(),
            reports: reports.clone(),
            commands: waiting,
            stop: stopped,
        };
        std::thread::Builder::new()
            .name("podwire-cluster".to_owned())
            .stack_size(1 << 20)
            .spawn(move || {
                let (_ending, _last) = (ending, last);
                runtime.block_on(site.run());
            })
            .map_err(ClusterError::Thread)?;
        Ok(MembershipHandle {
            commands,
            peers,
            addresses: reports.addresses,
            shared,
            name: record.name.clone(),
            record,
            contact,
            store_name,
            end: Arc::new(ThreadEnd { stop, ended: Mutex::new(ended), peers: worker }),
        })
    }
}

impl MembershipHandle {
    /// Says goodbye: another machine may have this node's name at once. Routes and record stay.
    pub(crate) fn end(&self) {
        self.end.stop.send_replace(true);
        // Nothing is ever sent: it is closed when the thread ends, or else the lease runs out by itself.
        let _ = self.end.ended.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(GOODBYE);
        self.end.peers.end(GOODBYE);
    }

    /// The last state that this node knows, its own record included.
    fn contents(&self, peers: PeerContents) -> StoreContents {
        let addresses = self.addresses.borrow().clone().unwrap_or_default();
        let record = NodeRecord { addresses, blocks: self.shared.blocks(), ..self.record.clone() };
        let listed = self.contact.listed();
        let unread = listed.as_ref().map(|listed| listed.unread.clone()).unwrap_or_default();
        let own_claims = record.blocks.iter().map(|block| (*block, record.name.clone()));
        let claims = peers.claims.into_iter().chain(own_claims).collect();
        let nodes = peers.nodes.into_iter().filter(|node| !unread.contains_key(&node.record.name));
        StoreContents {
            claims,
            nodes: nodes.chain([StoredNode { record, created: 0 }]).collect(),
            unread: unread.into_iter().collect(),
            alive: listed.map(|listed| listed.alive),
        }
    }

    /// Everything that stands in the store. If the store cannot be asked: the last state that this node knows.
    pub(crate) async fn look(&self) -> Result<(StoreContents, Freshness), AskError> {
        let why = match self.contact.failure() {
            Some(why) if self.contact.is_reachable() => AskError::Refused(why),
            Some(why) => AskError::Unreachable(why),
            None => match self.ask(StoreQuery::Look).await {
                Ok(contents) => return Ok((contents, freshness(Some(Duration::ZERO), None))),
                Err(why) => why,
            },
        };
        let reason = self.reason(&why.to_string());
        let age = match self.contact.age() {
            Age::NoCopy => {
                let reason = format!("{reason}; {NO_COPY}");
                return Err(match self.contact.is_reachable() {
                    true => AskError::Refused(reason),
                    false => AskError::Unreachable(reason),
                });
            }
            Age::Known(age) => Some(age),
            Age::Unknown => None,
        };
        let contents = self.contents(self.question(Question::Contents).await?);
        Ok((contents, freshness(age, Some(reason))))
    }

    fn reason(&self, why: &str) -> String {
        match self.contact.is_reachable() {
            true => why.to_owned(),
            false => format!("{} is not reachable: {why}", self.store_name),
        }
    }

    /// Whether this node's copy of the store's contents, which its routes follow, is up to date.
    fn freshness_of_copy(&self) -> Freshness {
        let reason = self.contact.lag().map(|why| self.reason(&why));
        match self.contact.age() {
            Age::Known(age) => freshness(Some(age), reason),
            Age::Unknown => freshness(None, reason),
            Age::NoCopy => freshness(None, reason.map(|reason| format!("{reason}; {NO_COPY}"))),
        }
    }

    pub(crate) fn contact(&self) -> &Contact {
        &self.contact
    }

    /// Removes a node for good; the blocks that are free now.
    pub(crate) async fn remove(&self, name: NodeName, force: bool) -> Result<Vec<IpNet>, AskError> {
        self.ask(|done| StoreQuery::Remove { name, force, done }).await
    }

    /// The routes to other nodes: wanted, there, and the difference.
    pub(crate) async fn routes(&self) -> Result<RoutesView, AskError> {
        let routes = self.question(Question::Routes).await??;
        Ok(RoutesView { freshness: self.freshness_of_copy(), routes })
    }

    async fn question<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> Question) -> Result<T, AskError> {
        let (answer, answered) = oneshot::channel();
        self.peers.ask(ask(answer))?;
        tokio::time::timeout(TIMEOUT, answered)
            .await
            .map_err(|_| AskError::TimedOut { seconds: TIMEOUT.as_secs() })?
            .map_err(|_| AskError::Stopped)
    }

    async fn ask<T>(
        &self,
        ask: impl FnOnce(oneshot::Sender<Result<T, AskError>>) -> StoreQuery,
    ) -> Result<T, AskError> {
        let (done, answer) = oneshot::channel();
        send(&self.commands, MembershipCommand::Ask(ask(done)))?;
        match tokio::time::timeout(TIMEOUT, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(AskError::Stopped),
            Err(_) => {
                let why = format!("the store did not answer within {} s", TIMEOUT.as_secs());
                self.contact.unanswered(why.clone());
                Err(AskError::Unreachable(why))
            }
        }
    }
}

/// A full channel is busy; one that is closed has lost its thread.
fn send<T>(channel: &mpsc::Sender<T>, message: T) -> Result<(), AskError> {
    channel.try_send(message).map_err(|error| match error {
        TrySendError::Full(_) => AskError::Busy,
        TrySendError::Closed(_) => AskError::Stopped,
    })
}

/// A reason means that the store could not be asked.
fn freshness(age: Option<Duration>, reason: Option<String>) -> Freshness {
    let age_seconds = age.map(|age| age.as_secs());
    let as_of = age_seconds.map(|age| api::Timestamp(unix_time().saturating_sub(age)));
    Freshness { as_of, age_seconds, stale: reason.is_some(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a5_a_thread_that_has_ended_is_not_busy() {
        let (sender, receiver) = mpsc::channel(1);
        assert_eq!(send(&sender, 1), Ok(()));
        assert_eq!(send(&sender, 2), Err(AskError::Busy));
        drop(receiver);
        assert_eq!(send(&sender, 3), Err(AskError::Stopped));
    }
}
