//! The pods of other nodes, as the store has them. Values that cannot be read are left out.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::objects::{Identity, NamespacedName};
use model::{IdentityHash, KeyLayout, Object as _, PodRecord};
use store::Entry;
use types::{NodeName, Placement};

use super::join::Registry;

/// A pod with all its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClusterPod {
    pub(crate) node: NodeName,
    pub(crate) name: NamespacedName,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) placement: Placement,
}

pub(crate) async fn read_pods(registry: &Registry, own: &NodeName) -> Result<Vec<ClusterPod>, store::Error> {
    let Registry { store, layout } = registry;
    // An identity exists before the first pod that has it.
    let pods = store.list(&layout.pods()).await?.entries;
    let identities = store.list(&layout.identities()).await?.entries;
    Ok(pods_of_other_nodes(layout, own, pods.iter().chain(&identities)))
}

/// `entries` are those of pods and identities, in any order. Others are ignored.
pub(crate) fn pods_of_other_nodes<'a>(
    layout: &KeyLayout,
    own: &NodeName,
    entries: impl Iterator<Item = &'a Entry> + Clone,
) -> Vec<ClusterPod> {
    let identity = |entry: &Entry| {
        let hash = layout.identity_of(&entry.key)?;
        let identity = Identity::of_stored(&hash, &entry.value).ok()?;
        Some((hash, identity))
    };
    let identities: BTreeMap<IdentityHash, Identity> = entries.clone().filter_map(identity).collect();
    let mut pods: BTreeMap<(NodeName, String), ClusterPod> = BTreeMap::new();
    for entry in entries {
        let Some((node, address)) = layout.pod_of(&entry.key).filter(|(node, _)| node != own) else {
            continue;
        };
        let Ok(PodRecord { identity, uid, name }) = PodRecord::decode(&entry.value) else { continue };
        let Some(Identity { placement, namespace, .. }) = identities.get(&identity) else { continue };
        let pod = pods.entry((node.clone(), uid)).or_insert_with(|| ClusterPod {
            node,
            name: NamespacedName { namespace: namespace.clone(), name },
            addresses: Vec::new(),
            placement: placement.clone(),
        });
        pod.addresses.push(address);
    }
    pods.into_values().collect()
}
