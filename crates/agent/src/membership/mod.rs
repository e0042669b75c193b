//! Membership in the cluster: this node's record and its blocks in the store.
//!
//! It runs on one thread with its own runtime. Its parts never wait for each other and make no blocking kernel calls:
//!
//! ```text
//! member (store: join, list, watch) ── records, own blocks ──► peers thread (kernel: routes, tunnels)
//! heartbeat (store: alive/NAME)        ◄─ addresses, MTU, peers to save ──┘
//! ```
//!
//! Pods do not wait for membership: requests use the node's [`netconf::NodeAllocation`], which is saved on disk. While the
//! store is unreachable, the allocation and all routes stay in force.

pub(crate) mod ask_error;
mod block_requests;
mod claim;
mod claim_mirror;
mod cluster_pods;
pub(crate) mod command;
mod contact;
mod former_schema;
mod handle;
mod heartbeat;
pub(crate) mod join;
mod lease_watch;
mod leases;
pub mod measured;
pub(crate) mod member;
pub(crate) mod networks;
pub(crate) mod node_state;
pub(crate) mod object_changes;
mod object_recovery;
pub(crate) mod objects;
mod outage;
pub(crate) mod preflight;
mod saved_objects;
pub(crate) mod shared;
pub(crate) mod view;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{NetworkSpec, NodeRecord};
use store::{EtcdConfig, Store, StoreConfig};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tracing::{debug, info};
use types::{Code, Finding, NodeName};

use crate::agent_status::AgentStatus;
use crate::allocation::NodeAllocations;
use crate::clock::unix_time;
use crate::conditions::Source;
use crate::identities::{IdentityObserver, Publisher};
use crate::peers::routes::StartError;
use crate::peers::{PeerInputs, PeerReportReceivers};
use crate::policies::Policies;
use crate::policies::objects::defaults;
pub(crate) use ask_error::AskError;
pub(crate) use block_requests::{BlockRequestError, BlockRequests};
pub(crate) use cluster_pods::ClusterPod;
use command::MembershipCommand;
use config::Config;
pub(crate) use contact::Contact;
pub(crate) use handle::{Membership, MembershipHandle};
use join::{Candidate, Registry};
use networks::NetworkLayouts;
pub use node_state::{Forgotten, forget};
use node_state::{NodeStateDir, NodeStateDirError};
pub(crate) use object_changes::{ObjectChanges, RequestedObjects, object_name};
use objects::ObjectMirror;
use shared::SharedMembership;
pub(crate) use view::{blocks, nodes};

/// How many commands may wait.
const COMMANDS: usize = 256;

/// Commands of requests and API clients to the membership thread.
pub(crate) fn commands() -> (mpsc::Sender<MembershipCommand>, mpsc::Receiver<MembershipCommand>) {
    mpsc::channel(COMMANDS)
}

#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error(transparent)]
    Name(#[from] types::NameError),
    #[error(transparent)]
    NodeStateDir(#[from] NodeStateDirError),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("cannot start the membership thread: {0}")]
    Thread(std::io::Error),
    #[error(transparent)]
    Peers(#[from] StartError),
}

pub(crate) struct MembershipParts {
    pub(crate) config: Arc<Config>,
    pub(crate) allocations: Arc<NodeAllocations>,
    pub(crate) agent_status: Arc<AgentStatus>,
    pub(crate) peers: PeerInputs,
    /// Receives the objects of the store.
    pub(crate) policies: Arc<Policies>,
    pub(crate) commands: (mpsc::Sender<MembershipCommand>, mpsc::Receiver<MembershipCommand>),
}

/// A single node that no other node can join: its block is the whole network, and only it uses the store.
pub(crate) fn is_alone(config: &Config) -> bool {
    matches!(config.store, config::StoreChoice::Embedded) && config.cluster.margin == 0
}

/// The state with which the membership thread starts.
struct ClusterThread {
    shared: Arc<SharedMembership>,
    record: NodeRecord,
    /// The saved name of this host, if it differs from the configured one.
    former: Option<NodeName>,
    store: Store,
    peers: PeerInputs,
    policies: Arc<Policies>,
    identities: IdentityObserver,
    reports: PeerReportReceivers,
    commands: mpsc::Receiver<MembershipCommand>,
    /// Set when the agent stops.
    stop: watch::Receiver<bool>,
}

/// Reports an unexpected end of the membership thread, also by a panic.
struct ThreadExitGuard {
    agent_status: Arc<AgentStatus>,
    contact: Arc<Contact>,
    stop: watch::Receiver<bool>,
}

impl Drop for ThreadExitGuard {
    fn drop(&mut self) {
        // A dropped sender means that the agent is ending.
        if *self.stop.borrow() || self.stop.has_changed().is_err() {
            return;
        }
        let message = "the agent no longer follows the store; its routes to peers and this node's record do not change; the \
                       agent's log has the cause";
        self.contact.stopped("the agent no longer follows the store");
        let finding =
            Finding::new(Code::StoreWatchStopped, "store", message).fix("systemctl restart podwire");
        self.agent_status.set(Source::Cluster, vec![finding]);
    }
}

impl ClusterThread {
    async fn run(self) {
        let Self { shared, record, former, store, peers, policies, identities, reports, commands, mut stop } =
            self;
        let (objects, changed_objects) = ObjectMirror::new(defaults(&shared.config), policies);
        let config = Arc::clone(&shared.config);
        let registry = Registry { store, layout: config.layout.clone() };
        info!(store = registry.store.describe(), prefix = %registry.layout.prefix(), "joining the cluster");
        let (name_lease, current_lease) = watch::channel(None);
        let name_lost = Arc::<Notify>::default();
        let saved_blocks = shared.blocks();
        let since = unix_time();
        let networks = networks_of(&config);
        let candidate = Candidate {
            spec: spec(&config),
            networks,
            default_pools: Vec::new(),
            released: BTreeSet::new(),
            record,
            saved_blocks,
            former,
            since,
        };
        let contact = Arc::clone(&shared.contact);
        let heartbeat = heartbeat::Heartbeat {
            name_lease: current_lease.clone(),
            name_lost: Arc::clone(&name_lost),
            contact,
        };
        let shared_state = Arc::clone(&shared);
        let publisher = identities.publisher(Arc::clone(&shared.contact));
        let unsaved_pods = identities.saver();
        let member = member::Member {
            registry,
            candidate,
            shared,
            addresses: reports.addresses,
            macs: reports.macs,
            name_lease,
            name_lost,
            peers,
            objects,
            identities,
            commands,
            claims: claim_mirror::ClaimMirror::default(),
            revision: 0,
            unread: BTreeMap::new(),
            was_wiped: false,
            queries: JoinSet::new(),
            progress_at: tokio::time::Instant::now(),
            objects_changed_at: tokio::time::Instant::now(),
            maintenance_at: tokio::time::Instant::now(),
        };
        tokio::select! {
            () = member.run() => {}
            () = shared_state.report_reachability() => {}
            () = shared_state.follow_position(reports.position) => {}
            () = shared_state.save_peers(reports.records) => {}
            () = shared_state.save_objects(changed_objects) => {}
            () = shared_state.save_pods(unsaved_pods) => {}
            () = publish(publisher) => {}
            () = heartbeat.run() => {}
            // An error means that the sender was dropped.
            _ = stop.wait_for(|stop| *stop) => {}
        }
        let (saving, lease) = (shared_state.watch_ended(), current_lease.borrow().clone());
        let save_time = async {
            if let Some(saving) = saving
                && let Err(error) = saving.await
            {
                debug!(%error, "cannot set the modification time of peers.json");
            }
        };
        // Concurrently: a hanging disk must not delay the release of the name.
        let release = async {
            if let Some(lease) = lease {
                lease.release().await;
            }
        };
        tokio::join!(save_time, release);
    }
}

/// Never ends while the membership thread runs.
async fn publish(publisher: Option<Publisher>) {
    match publisher {
        Some(publisher) => publisher.run().await,
        None => std::future::pending().await,
    }
}

/// How the default network is divided into blocks.
pub(crate) fn networks_of(config: &Config) -> NetworkLayouts {
    // Validated when the configuration was loaded.
    NetworkLayouts::of_default(&spec(config)).unwrap_or_default()
}

fn spec(config: &Config) -> NetworkSpec {
    let config::ClusterConfig { margin, vni, vxlan_port, .. } = config.cluster;
    NetworkSpec { subnets: config.network.subnets.clone(), margin, vni, vxlan_port }
}

fn store_config(config: &Config, node_state: &NodeStateDir) -> StoreConfig {
    match &config.store {
        config::StoreChoice::Embedded => StoreConfig::Embedded {
            dir: config.store_dir.clone().unwrap_or_else(|| node_state.dir().join("store")),
        },
        config::StoreChoice::Etcd(etcd) => StoreConfig::Etcd(EtcdConfig {
            endpoints: etcd.endpoints.clone(),
            ca: etcd.ca.clone(),
            cert: etcd.cert.clone(),
            key: etcd.key.clone(),
            user: etcd.user.clone(),
            password: etcd.password.as_ref().map(|password| password.reveal().to_owned()),
            insecure: etcd.insecure,
        }),
    }
}
