//! Checks of the store and of the node's addresses for `--check-config`. They change nothing.

use model::{AliveRecord, NetworkSpec, Object as _};
use store::{Change, Compare, Store};
use types::{Finding, NodeName, NodeUid};

use super::join::{JoinError, Registry};
use super::node_state::NodeStateDir;
use super::{ClusterError, is_alone, spec, store_config};
use crate::peers::kernel::PeerKernel;
use crate::peers::underlay;
use config::Config;

/// A revision that no object has, so that a commit that compares with it changes nothing.
const NO_REVISION: u64 = i64::MAX.cast_unsigned();

/// Why this node could not join. The embedded store needs no check, because a start would create its directory.
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

/// Problems with the addresses under which peers would reach this node. A single node needs no address, but configured ones must
/// exist.
pub(crate) fn addresses(config: &Config) -> Result<Vec<Finding>, netlink::Error> {
    let is_configured = config.node_interface.is_some() || !config.node_addresses.is_empty();
    if is_alone(config) && !is_configured {
        return Ok(Vec::new());
    }
    let candidates = PeerKernel::open()?.underlay_candidates(config.node_interface.as_ref())?;
    let (bridge, tunnel) = (config.network.bridge.as_str(), config.cluster.tunnel.as_str());
    let is_managed = |link: &netlink::Link| link.name == bridge || link.name.starts_with(tunnel);
    Ok(underlay::find(config, &candidates, is_managed, &[]).problems)
}

impl Registry {
    /// Checks login, role, network and name as [`Registry::enter`] needs them.
    async fn check(
        &self,
        configured: &NetworkSpec,
        name: &NodeName,
        uid: Option<&NodeUid>,
    ) -> Result<(), JoinError> {
        let network = self.layout.network();
        if let Some(stored) = self.get::<NetworkSpec>(&network).await?
            && stored.object != *configured
            && self.has_peers(name).await?
        {
            return Err(JoinError::network(&stored.object, configured));
        }
        let alive = self.layout.alive(name);
        if let Some(entry) = self.store.get(&alive).await?
            && let Ok(holder) = AliveRecord::decode(&entry.value)
            && uid != Some(&holder.uid)
        {
            return Err(self.name_held(name, &holder.uid).await?);
        }
        // etcd checks the role for all changes of a transaction before it evaluates the compares.
        let put = |key: &str| Change::Put { key: key.to_owned(), value: Vec::new(), lease: None };
        let changes = [put(&network), put(&self.layout.node(name)), put(&alive), put(self.layout.counter())];
        self.store.commit(&[Compare::Revision(network.clone(), NO_REVISION)], &changes).await?;
        Ok(())
    }
}
