//! What a start would meet in the store and on the node's links. Reads only.

use model::{AliveRecord, NetworkSpec, Object as _};
use store::{Change, Compare, Store};
use types::{Finding, NodeName, NodeUid};

use super::join::{JoinError, Registry};
use super::node_state::NodeStateDir;
use super::{ClusterError, is_alone, spec, store_config};
use crate::peers::kernel::PeerKernel;
use crate::peers::underlay;
use config::Config;

/// No object has it: a commit that compares with it changes nothing.
const NO_REVISION: u64 = i64::MAX.cast_unsigned();

/// Why this node could not join. The embedded store is a directory of this machine, which a start would make.
pub(crate) fn store(config: &Config) -> Result<(), JoinRefused> {
    let node_state = NodeStateDir::of(&config.state_dir, &config.network.name);
    let uid = node_state.known_uid().map_err(ClusterError::from)?;
    if config.store == config::StoreChoice::Embedded {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(ClusterError::Thread)?;
    runtime.block_on(async {
        let store = Store::open(&store_config(config, &node_state)).map_err(ClusterError::from)?;
        let registry = Registry { store, layout: config.layout.clone() };
        let name = NodeName::try_from(config.node.as_str()).map_err(ClusterError::from)?;
        Ok(registry.check(&spec(config), &name, uid.as_ref()).await?)
    })
}

#[derive(Debug, thiserror::Error)]
pub enum JoinRefused {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Join(#[from] JoinError),
}

/// What is wrong with the addresses by which other nodes would reach this one. A node that is alone needs none, but those
/// that are configured must exist.
pub(crate) fn addresses(config: &Config) -> Result<Vec<Finding>, netlink::Error> {
    let is_given = config.node_interface.is_some() || !config.node_addresses.is_empty();
    if is_alone(config) && !is_given {
        return Ok(Vec::new());
    }
    let around = PeerKernel::open()?.surroundings(config.node_interface.as_ref())?;
    let (bridge, tunnel) = (config.network.bridge.as_str(), config.cluster.tunnel.as_str());
    let is_managed = |link: &netlink::Link| link.name == bridge || link.name.starts_with(tunnel);
    Ok(underlay::find(config, &around, is_managed, &[]).problems)
}

impl Registry {
    /// Login, role, network and name, as [`Registry::enter`] would need them.
    async fn check(
        &self,
        ours: &NetworkSpec,
        name: &NodeName,
        uid: Option<&NodeUid>,
    ) -> Result<(), JoinError> {
        let network = self.layout.network();
        if let Some(theirs) = self.get::<NetworkSpec>(&network).await?
            && theirs.object != *ours
            && self.has_others(name).await?
        {
            return Err(JoinError::network(&theirs.object, ours));
        }
        let alive = self.layout.alive(name);
        if let Some(entry) = self.store.get(&alive).await?
            && let Ok(held) = AliveRecord::decode(&entry.value)
            && uid != Some(&held.uid)
        {
            return Err(self.held(name, &held.uid).await?);
        }
        // etcd checks the role for all changes of a transaction before it compares.
        let put = |key: &str| Change::Put { key: key.to_owned(), value: Vec::new(), lease: None };
        let changes = [put(&network), put(&self.layout.node(name)), put(&alive), put(self.layout.counter())];
        self.store.commit(&[Compare::Revision(network.clone(), NO_REVISION)], &changes).await?;
        Ok(())
    }
}
