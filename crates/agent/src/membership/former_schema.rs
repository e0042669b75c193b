//! Keys of schema 1, which was used before the first release. It is not migrated: a node that finds such keys does not join and
//! changes nothing.

use model::{DecodeError, KeyLayout, NetworkSpec, NodeRecord, Object as _};
use store::Entry;
use types::Fix;

use super::join::{JoinError, Registry};

/// A key of schema 1, and what the operator can do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{key} in the store has schema 1, which was used before the first release and is not migrated; nothing was changed: {remedy}"
)]
pub struct FormerSchema {
    pub(crate) key: String,
    remedy: String,
}

impl FormerSchema {
    pub(crate) fn new(registry: &Registry, key: String) -> Self {
        let layout = &registry.layout;
        let remedy = match registry.store.directory() {
            Some(directory) => {
                let remove = Fix::words(["rm", "-r", &directory.to_string_lossy()]);
                format!("stop the agent, then remove its store with `{remove}`")
            }
            None => {
                let remove = [
                    Fix::words(["etcdctl", "del", &layout.network()]),
                    Fix::words(["etcdctl", "del", "--prefix", &layout.former_blocks()]),
                    Fix::words(["etcdctl", "del", "--prefix", &layout.nodes()]),
                ];
                let remove = remove.map(|command| command.to_string()).join("; ");
                format!(
                    "use another `etcd.prefix` on all nodes, or stop all agents and remove the old keys with `{remove}`"
                )
            }
        };
        Self { key, remedy }
    }

    /// Whether the store was written by a version before the first release. Agents of schema 2 set the network first, and agents of
    /// schema 1 refuse the newer value. So only a store without a network can have further keys of schema 1.
    pub(crate) fn find(registry: &Registry, entries: &[Entry]) -> Option<Self> {
        let layout = &registry.layout;
        let network = entries.iter().find(|entry| entry.key == layout.network());
        let key = match network {
            Some(network) if is_older(&NetworkSpec::decode(&network.value)) => Some(network),
            Some(_) => None,
            None => entries.iter().find(|entry| is_former(layout, entry)),
        };
        key.map(|entry| Self::new(registry, entry.key.clone()))
    }
}

impl Registry {
    /// Fails if the store has keys of schema 1.
    pub(super) async fn refuse_former_schema(&self) -> Result<(), JoinError> {
        let mut entries: Vec<Entry> = self.store.get(&self.layout.network()).await?.into_iter().collect();
        if entries.is_empty() {
            entries = self.store.list(&self.layout.former_blocks()).await?.entries;
            entries.extend(self.store.list(&self.layout.nodes()).await?.entries);
        }
        FormerSchema::find(self, &entries).map_or(Ok(()), |former| Err(former.into()))
    }
}

fn is_former(layout: &KeyLayout, entry: &Entry) -> bool {
    let is_node = || layout.node_of(&entry.key).is_some() && is_older(&NodeRecord::decode(&entry.value));
    entry.key.starts_with(&layout.former_blocks()) || is_node()
}

fn is_older<T>(decoded: &Result<T, DecodeError>) -> bool {
    matches!(decoded, Err(DecodeError::Older { .. }))
}
