//! This node as one of many: its record and its blocks in the store.
//!
//! One thread with a small runtime of its own. Its parts never wait for each other, and none makes a blocking kernel call:
//!
//! ```text
//! member (store: join, list, watch) ── records, own blocks ──► peers thread (kernel: routes, tunnels)
//! heartbeat (store: alive/NAME)        ◄─ addresses, MTU, peers to save ──┘
//! ```
//!
//! Nothing here stands in a pod's way: requests work with the node's [`netconf::NodeAllocation`], which is remembered over reboots. While the
//! store is away the allocation stays, and so does every route.

mod alive;
pub(crate) mod ask_error;
mod claim;
pub(crate) mod command;
mod contact;
mod grow;
mod handle;
pub(crate) mod join;
mod lease_watch;
mod leases;
pub mod measured;
pub(crate) mod member;
pub(crate) mod node_state;
mod outage;
pub(crate) mod preflight;
pub(crate) mod shared;
pub(crate) mod view;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{BlockLayout, NetworkSpec, NodeRecord};
use store::{EtcdConfig, Store, StoreConfig};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tracing::{debug, info};
use types::{Code, Finding, NodeName};

use crate::agent_status::AgentStatus;
use crate::allocation::NodeAllocations;
use crate::clock::unix_time;
use crate::conditions::Source;
use crate::peers::routes::StartError;
use crate::peers::{PeerInputs, PeerReportReceivers};
pub(crate) use ask_error::AskError;
use command::MembershipCommand;
use config::Config;
pub(crate) use contact::Contact;
pub(crate) use grow::{BlockRequests, GrowError};
pub(crate) use handle::{Membership, MembershipHandle};
use join::{Candidate, Registry};
pub use node_state::{Forgotten, forget};
use node_state::{NodeStateDir, NodeStateDirError};
use shared::SharedMembership;
pub(crate) use view::{blocks, nodes};

/// Commands that may wait.
const COMMANDS: usize = 256;

/// What requests and clients ask of the member.
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
    #[error("cannot start the cluster's thread: {0}")]
    Thread(std::io::Error),
    #[error(transparent)]
    Peers(#[from] StartError),
}

/// What membership works with.
pub(crate) struct MembershipParts {
    pub(crate) config: Arc<Config>,
    pub(crate) allocations: Arc<NodeAllocations>,
    pub(crate) agent_status: Arc<AgentStatus>,
    pub(crate) peers: PeerInputs,
    pub(crate) commands: (mpsc::Sender<MembershipCommand>, mpsc::Receiver<MembershipCommand>),
}

/// A node that nobody can join: one block is all there is, and nobody else uses the store.
pub(crate) fn is_alone(config: &Config) -> bool {
    matches!(config.store, config::StoreChoice::Embedded) && config.cluster.margin == 0
}

/// Everything the thread starts with.
struct Site {
    shared: Arc<SharedMembership>,
    record: NodeRecord,
    /// This machine's name as it is remembered, if that was another one.
    former: Option<NodeName>,
    store: Store,
    peers: PeerInputs,
    reports: PeerReportReceivers,
    commands: mpsc::Receiver<MembershipCommand>,
    /// Comes true when the agent ends.
    stop: watch::Receiver<bool>,
}

/// Says so when the thread ends though nobody asked for it, however it does: nothing would follow the cluster any more.
struct ThreadExitGuard {
    agent_status: Arc<AgentStatus>,
    contact: Arc<Contact>,
    stop: watch::Receiver<bool>,
}

impl Drop for ThreadExitGuard {
    fn drop(&mut self) {
        // Where nobody is left who could ask for it, nobody is left to be told.
        if *self.stop.borrow() || self.stop.has_changed().is_err() {
            return;
        }
        let message = "the agent no longer follows the store: routes to other nodes and this node's record stay as they \
                       are; its log has the reason";
        self.contact.stopped("the agent no longer follows the store");
        let found = Finding::new(Code::StoreWatchStopped, "store", message).fix("systemctl restart podwire");
        self.agent_status.set(Source::Cluster, vec![found]);
    }
}

impl Site {
    async fn run(self) {
        let Self { shared, record, former, store, peers, reports, commands, mut stop } = self;
        let config = Arc::clone(&shared.config);
        let registry = Registry { store, layout: config.layout.clone() };
        info!("the cluster is in {}, under {}", registry.store.describe(), registry.layout.prefix());
        let (holds, held) = watch::channel(None);
        let lost = Arc::<Notify>::default();
        let remembered = shared.blocks();
        let since = unix_time();
        let candidate = Candidate { spec: spec(&config), record, remembered, former, since };
        let contact = Arc::clone(&shared.contact);
        let heartbeat = alive::Heartbeat { holds: held.clone(), lost: Arc::clone(&lost), contact };
        let reporting = Arc::clone(&shared);
        let member = member::Member {
            registry,
            candidate,
            block_layouts: block_layouts(&config),
            shared,
            addresses: reports.addresses,
            holds,
            lost,
            peers,
            commands,
            revision: 0,
            unread: BTreeMap::new(),
            was_wiped: false,
            asked: JoinSet::new(),
            progress_at: tokio::time::Instant::now(),
            aftercare_at: tokio::time::Instant::now(),
        };
        tokio::select! {
            () = member.run() => {}
            () = reporting.report_reach() => {}
            () = reporting.follow_position(reports.position) => {}
            () = reporting.save_peers(reports.records) => {}
            () = heartbeat.run() => {}
            // An error means that nobody is left who could say so.
            _ = stop.wait_for(|stop| *stop) => {}
        }
        let (noting, hold) = (reporting.watch_ended(), held.borrow().clone());
        let note = async {
            if let Some(noting) = noting
                && let Err(error) = noting.await
            {
                debug!("the time of peers.json could not be set: {error}");
            }
        };
        // Beside each other: a disk that hangs does not keep the name.
        let give_back = async {
            if let Some(hold) = hold {
                hold.give_back().await;
            }
        };
        tokio::join!(note, give_back);
    }
}

/// How the network is cut into blocks.
pub(crate) fn block_layouts(config: &Config) -> Vec<BlockLayout> {
    // Checked when the configuration was read.
    join::block_layouts(&spec(config)).unwrap_or_default()
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
