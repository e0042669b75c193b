//! The interface of membership for the other components.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::{Freshness, ObjectSteps, RoutesView};
use ipnet::IpNet;
use model::{BlockAllocation, Catalog, LocalNode, NodeRecord, StoredNode, Tunnels};
use store::Store;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};
use types::{Digest, Mac, NodeName};

use super::ask_error::AskError;
use super::cluster_pods::ClusterPod;
use super::command::{MembershipCommand, StoreContents, StoreQuery};
use super::contact::{Age, Contact};
use super::networks::NetworkLayouts;
use super::node_state::NodeStateDir;
use super::object_changes::ObjectChanges;
use super::shared::SharedMembership;
use super::{ClusterError, ClusterThread, MembershipParts, ThreadExitGuard, store_config};
use crate::clock::unix_time;
use crate::identities::{IdentityObserver, ObserverParts, observer};
use crate::peers::inputs::PeerContents;
use crate::peers::{KnownPeers, PeerInputs, PeerQuery, PeerReportReceivers};
use crate::policies::Policies;
use crate::policies::objects::defaults;
use crate::thread::AgentThread;

/// How long a query waits for the store.
const TIMEOUT: Duration = Duration::from_secs(8);
/// How long the answer to a change waits until this node knows the change.
const OBSERVE_TIMEOUT: Duration = Duration::from_secs(3);
/// Why a query cannot be answered from the copy.
const NO_COPY: &str = "this node has no saved state of the cluster";
/// How long each thread may take to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// Threads for blocking calls: disk, and names of etcd's endpoints. At most four of them wait for files of this module, so that
/// a hanging disk leaves threads for name resolution.
const BLOCKING_THREADS: usize = 8;

/// Membership before it is started. The saved blocks and peers of this node are already in force.
pub(crate) struct Membership {
    shared: Arc<SharedMembership>,
    /// The part of this node's record that never changes.
    pub(crate) record: NodeRecord,
    /// The saved name of this host, if it differs from the configured one.
    former: Option<NodeName>,
    /// The addresses in the saved record of this node.
    saved_addresses: Vec<IpAddr>,
    saved_peers: Vec<NodeRecord>,
    /// Whether saved blocks of this node do not fit the configured subnets and margin.
    is_other_layout: bool,
    runtime: Runtime,
    store: Store,
    peers: PeerInputs,
    policies: Arc<Policies>,
    identities: IdentityObserver,
    commands: (mpsc::Sender<MembershipCommand>, mpsc::Receiver<MembershipCommand>),
}

/// Clones refer to the same threads.
#[derive(Clone)]
pub(crate) struct MembershipHandle {
    commands: mpsc::Sender<MembershipCommand>,
    peers: PeerInputs,
    addresses: watch::Receiver<Option<Vec<IpAddr>>>,
    shared: Arc<SharedMembership>,
    record: NodeRecord,
    contact: Arc<Contact>,
    /// The store in messages: `etcd` or `the store`.
    store_name: &'static str,
    end: Arc<ThreadEnd>,
    pub(crate) name: NodeName,
}

/// Stops the threads.
struct ThreadEnd {
    stop: watch::Sender<bool>,
    ended: Mutex<std::sync::mpsc::Receiver<Infallible>>,
    peers: AgentThread,
}

impl Membership {
    /// Reads the saved state of this node and opens the store. Starts no thread.
    pub(crate) fn load(parts: MembershipParts) -> Result<Self, ClusterError> {
        let config = Arc::clone(&parts.config);
        let (peers, commands) = (parts.peers.clone(), parts.commands);
        let node_state = NodeStateDir::of(&config.state_dir, &config.network.name);
        let uid = node_state.uid()?;
        let name = NodeName::try_from(config.node.as_str())?;
        let record = NodeRecord {
            name: name.clone(),
            tunnel_mac: Mac::local(Digest::of(&["tunnel", uid.as_str()]).first5()),
            macs: Vec::new(),
            uid,
            addresses: Vec::new(),
            blocks: BlockAllocation::default(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            transport: Some(config.cluster.transport),
        };
        let saved = node_state.record().filter(|saved| saved.uid == record.uid);
        let former = saved.as_ref().map(|record| record.name.clone()).filter(|former| *former != name);
        let shared =
            Arc::new(SharedMembership::new(&config, (parts.allocations, parts.agent_status), node_state));
        let saved_addresses = saved.as_ref().map(|record| record.addresses.clone()).unwrap_or_default();
        let is_other_layout = shared.set_saved_blocks(saved.map(|record| record.blocks).unwrap_or_default());
        // In force until the store has answered.
        match shared.node_state.objects(defaults(&config)) {
            Ok(None) => {}
            Ok(Some(objects)) => {
                let objects = Arc::new(objects);
                parts.policies.set_objects(Arc::clone(&objects));
                shared.set_objects(objects);
            }
            Err(error) => shared.set_unreadable_objects(&error),
        }
        let saved_peers = shared.node_state.peers();
        shared.set_peers(&saved_peers, Vec::new());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS)
            .build()
            .map_err(ClusterError::Thread)?;
        let store = {
            let _entered = runtime.enter();
            Store::open(&store_config(&config, &shared.node_state))?
        };
        shared.explain_waiting(&store.describe());
        let policies = parts.policies;
        let identities = observer(ObserverParts {
            own: name,
            config: Arc::clone(&config),
            layout: config.layout.clone(),
            policies: Arc::clone(&policies),
            peers: saved_peers.clone(),
            pods: shared.node_state.pods(),
        });
        Ok(Self {
            shared,
            record,
            former,
            saved_addresses,
            saved_peers,
            is_other_layout,
            runtime,
            store,
            peers,
            policies,
            identities,
            commands,
        })
    }

    /// The saved peers, for use until the store has answered.
    pub(crate) fn known_peers(&self) -> KnownPeers {
        let config = &self.shared.config;
        let local_node = LocalNode {
            name: self.record.name.clone(),
            blocks: self.shared.blocks().to_vec(),
            block_layouts: self.shared.networks().all(),
            transport: config.cluster.transport,
            underlays: Vec::new(),
            tunnels: Tunnels::default(),
            sources: Vec::new(),
        };
        let known = KnownPeers::new(local_node, config.network.subnets.clone(), self.saved_peers.clone());
        known.with_other_layout(self.is_other_layout).with_saved_addresses(self.saved_addresses.clone())
    }

    /// Starts the thread that joins the cluster and follows the store.
    pub(crate) fn start(
        self,
        reports: PeerReportReceivers,
        worker: AgentThread,
    ) -> Result<MembershipHandle, ClusterError> {
        let Self {
            shared,
            record,
            former,
            saved_peers: _,
            saved_addresses: _,
            is_other_layout: _,
            runtime,
            store,
            peers,
            policies,
            identities,
            commands,
        } = self;
        let (commands, waiting) = commands;
        let contact = Arc::clone(&shared.contact);
        let (stop, stopped) = watch::channel(false);
        let (alive, ended) = std::sync::mpsc::channel::<Infallible>();
        let exit_guard = ThreadExitGuard {
            agent_status: Arc::clone(&shared.agent_status),
            contact: Arc::clone(&contact),
            stop: stopped.clone(),
        };
        let store_name = match shared.config.store {
            config::StoreChoice::Embedded => "the store",
            config::StoreChoice::Etcd(_) => "etcd",
        };
        let thread = ClusterThread {
            shared: Arc::clone(&shared),
            record: record.clone(),
            former,
            store,
            peers: peers.clone(),
            policies,
            identities,
            reports: reports.clone(),
            commands: waiting,
            stop: stopped,
        };
        std::thread::Builder::new()
            .name("podwire-cluster".to_owned())
            .stack_size(1 << 20)
            .spawn(move || {
                let (_alive, _exit_guard) = (alive, exit_guard);
                runtime.block_on(thread.run());
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
    /// Asks membership and the peers thread to end, without waiting. Membership releases this node's name for other hosts. Routes and
    /// record remain.
    pub(crate) fn stop(&self) {
        self.end.stop.send_replace(true);
        self.end.peers.stop();
    }

    /// Waits for the end of both threads after [`Self::stop`].
    pub(crate) fn wait(&self) {
        // Never carries a value. It closes when the thread ends. After a timeout, the lease expires after its TTL.
        let _ = self.end.ended.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(STOP_TIMEOUT);
        self.end.peers.wait(STOP_TIMEOUT);
    }

    /// The last known contents of the store, including this node's own record.
    fn last_contents(&self, peers: PeerContents) -> StoreContents {
        let addresses = self.addresses.borrow().clone().unwrap_or_default();
        let record = NodeRecord { addresses, blocks: self.shared.blocks(), ..self.record.clone() };
        let listed = self.contact.listed();
        let unread = listed.as_ref().map(|listed| listed.unread.clone()).unwrap_or_default();
        let networks = self.shared.networks();
        let claims = peers
            .claims
            .into_iter()
            .filter_map(|(block, owner)| Some((networks.network_of(&block)?.clone(), block, owner)));
        let own_claims =
            record.blocks.entries().map(|(network, block)| (network.clone(), *block, record.name.clone()));
        let claims = claims.chain(own_claims).collect();
        let nodes = peers.nodes.into_iter().filter(|node| !unread.contains_key(&node.record.name));
        StoreContents {
            claims,
            nodes: nodes.chain([StoredNode { record, created: 0 }]).collect(),
            unread: unread.into_iter().collect(),
            alive: listed.map(|listed| listed.alive),
        }
    }

    /// The contents of the store, or the last known contents if the store cannot be queried.
    pub(crate) async fn read_contents(&self) -> Result<(StoreContents, Freshness), AskError> {
        let error = match self.contact.failure() {
            Some(reason) if self.contact.is_reachable() => AskError::Refused(reason),
            Some(reason) => AskError::Unreachable(reason),
            None => match self.query(StoreQuery::ReadContents).await {
                Ok(contents) => return Ok((contents, freshness(Some(Duration::ZERO), None))),
                Err(error) => error,
            },
        };
        let reason = self.reason(&error.to_string());
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
        let contents = self.last_contents(self.query_peers(PeerQuery::Contents).await?);
        Ok((contents, freshness(age, Some(reason))))
    }

    fn reason(&self, cause: &str) -> String {
        match self.contact.is_reachable() {
            true => cause.to_owned(),
            false => format!("{} is not reachable: {cause}", self.store_name),
        }
    }

    /// Whether this node's copy of the store's contents, which its routes follow, is up to date.
    fn freshness_of_copy(&self) -> Freshness {
        let reason = self.contact.stale_reason().map(|cause| self.reason(&cause));
        match self.contact.age() {
            Age::Known(age) => freshness(Some(age), reason),
            Age::Unknown => freshness(None, reason),
            Age::NoCopy => freshness(None, reason.map(|reason| format!("{reason}; {NO_COPY}"))),
        }
    }

    /// How the networks are divided into blocks, as far as this node knows.
    pub(crate) fn networks(&self) -> NetworkLayouts {
        self.shared.networks()
    }

    pub(crate) fn contact(&self) -> &Contact {
        &self.contact
    }

    /// Removes a node permanently. Returns the blocks that it freed.
    pub(crate) async fn remove(&self, name: NodeName, force: bool) -> Result<Vec<IpNet>, AskError> {
        self.query(|done| StoreQuery::Remove { name, force, done }).await
    }

    /// Checks objects against all others and writes them to the store.
    pub(crate) async fn change_objects(&self, changes: ObjectChanges) -> Result<ObjectSteps, AskError> {
        let changes = Box::new(changes);
        let changed = self.query(|done| StoreQuery::ChangeObjects { changes, done }).await?;
        if let Some(revision) = changed.revision {
            self.shared.wait_for_objects(revision, OBSERVE_TIMEOUT).await;
        }
        Ok(changed.steps)
    }

    /// The pods of other nodes.
    pub(crate) async fn pods_of_other_nodes(&self) -> Result<Vec<ClusterPod>, AskError> {
        match self.contact.failure() {
            Some(reason) => Err(AskError::Unreachable(self.reason(&reason))),
            None => self.query(StoreQuery::ReadPods).await,
        }
    }

    /// The objects of an empty store.
    pub(crate) fn default_objects(&self) -> Catalog {
        defaults(&self.shared.config)
    }

    /// The routes to peers: desired, observed, and the difference.
    pub(crate) async fn routes(&self) -> Result<RoutesView, AskError> {
        let routes = self.query_peers(PeerQuery::Routes).await??;
        Ok(RoutesView { freshness: self.freshness_of_copy(), routes })
    }

    async fn query_peers<T>(
        &self,
        query: impl FnOnce(oneshot::Sender<T>) -> PeerQuery,
    ) -> Result<T, AskError> {
        let (answer, answered) = oneshot::channel();
        self.peers.send_query(query(answer))?;
        tokio::time::timeout(TIMEOUT, answered)
            .await
            .map_err(|_| AskError::TimedOut { seconds: TIMEOUT.as_secs() })?
            .map_err(|_| AskError::Stopped)
    }

    async fn query<T>(
        &self,
        ask: impl FnOnce(oneshot::Sender<Result<T, AskError>>) -> StoreQuery,
    ) -> Result<T, AskError> {
        let (done, answer) = oneshot::channel();
        send(&self.commands, MembershipCommand::Ask(ask(done)))?;
        match tokio::time::timeout(TIMEOUT, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(AskError::Stopped),
            Err(_) => {
                let reason = format!("the store did not answer within {} s", TIMEOUT.as_secs());
                self.contact.query_timed_out(reason.clone());
                Err(AskError::Unreachable(reason))
            }
        }
    }
}

/// A full channel means that the thread is busy. A closed channel means that it has ended.
fn send<T>(channel: &mpsc::Sender<T>, message: T) -> Result<(), AskError> {
    channel.try_send(message).map_err(|error| match error {
        TrySendError::Full(_) => AskError::Busy,
        TrySendError::Closed(_) => AskError::Stopped,
    })
}

/// A reason means that the store could not be queried.
fn freshness(age: Option<Duration>, reason: Option<String>) -> Freshness {
    let age_seconds = age.map(|age| age.as_secs());
    let as_of = age_seconds.map(|age| api::Timestamp(unix_time().saturating_sub(age)));
    Freshness { as_of, age_seconds, stale: reason.is_some(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a5_an_ended_thread_is_not_reported_as_busy() {
        let (sender, receiver) = mpsc::channel(1);
        assert_eq!(send(&sender, 1), Ok(()));
        assert_eq!(send(&sender, 2), Err(AskError::Busy));
        drop(receiver);
        assert_eq!(send(&sender, 3), Err(AskError::Stopped));
    }
}
